"""Damage a module in small ways, one at a time: do the quick tests notice? cosmic-ray makes the damages.

    python tests/mutants.py [ROOM ...] [--each 25 | --together N] [--seed 0] [--nearest | --map FILE]

Every number, comparison, operator, `and`, `not`, loop, `break`, exception and decorator is a place; of each
place one damage is drawn, and of the places of a room `--each` (0: all), or of those of all rooms
`--together`. Annotations and the texts of errors are left alone: they are no behaviour. The tests that go
through the damaged line run, the quickest first, until one fails, each damage in a process of its own that
has torch and transformers loaded already. Rows are written to `nbs/results/mutants.csv.xz` as they come, and
a run that is started again goes on: a row of a draw stays as long as its line is in the room and its damage
in the sample. `draw` is the seed: rows of other draws stay as they are, and what they damaged is not drawn
again. `same` says in a word why a survivor changes nothing; it is written into the CSV by hand. `--again
survived` judges survivors once more, `--again all` everything. Of tests that take more than `--tests`
seconds together the slowest are left out. `--map FILE` keeps which test goes through which line. With
`--nearest` there is no map: the files that are nearest to a room judge, those of their tests that start
processes last; a lower bound, and they have to pass without a damage. Ends with 1 where fewer than
`--least` of the damages are noticed.
"""
import argparse, ast, csv, importlib, json, lzma, math, os, pkgutil, random, resource, signal, sys, tempfile
import time
from collections import Counter
from itertools import accumulate, islice, zip_longest
from pathlib import Path
from pytest import hookimpl

ROOT = Path(__file__).resolve().parent.parent
ROOMS = '''replay loss variants.losses advantages trainer parts.ratios parts.loss_settings parts.corrections
    parts.loss_inputs parts.groups parts.storage parts.setting_checks parts.row_checks parts.reward_checks
    run.record run.checkpoints on_trl.record on_trl.rows on_trl.replayed on_trl.batch_record on_trl.resume
    on_trl.distributed see.findings see.verdict see.readers see.readers.history
    see.readers.table see.readers.groups run.reading run.batch_record
    see.readers.names see.readers.trl see.readers.verl see.readers.verifiers see.readers.tinker
    see.readers.nemo see.readers.trackio what_if inspector evaluation teach.classroom teach.hunts'''.split()
JUDGES = '''advantages checkpoints checks class diagnose distributed evaluation findings folders frameworks
    grpo_with_replay_buffer hunts inspector kinds kl loss messages methods one_text parity problems ratios
    read_back records replay report reuse road rollouts scaled_lr settings terms thresholds trainer
    trainer_input trl_defects trl_faults trl_own_suite trl_record trl_resume trl_stored unread view
    watch'''.split()
NEAREST = {'run.record':'records terms', 'run.reading':'read_back records unread frameworks rollouts',
    'run.batch_record':'messages records', 'on_trl.record':'trl_record trl_stored',
    'on_trl.batch_record':'trl_record trl_stored', 'what_if':'inspector', 'inspector':'inspector view',
    'evaluation':'evaluation kinds', 'teach.classroom':'class', 'teach.hunts':'hunts'}
ROAD = 'tests/test_road.py::test_a_rare_pair_of_options_is_the_plain_loop'
READERS = 'unread read_back frameworks rollouts diagnose'   # the tests nearest to any reader
FIELDS = 'draw room line function before after outcome by first same'.split()   # `first`: its first outcome
QUICKEST = 20   # so many tests judge before the files of the others are imported
SECONDS = 60   # of the processor that a damage may take more than its tests take without it

def source(room):
    path = ROOT/'grpo_nb'/room.replace('.', '/')
    return path/'__init__.py' if path.is_dir() else path.with_suffix('.py')

# ---- damages ----------------------------------------------------------------------------------------------
def untouched(tree):
    "The spans of annotations and of what is raised, as ((line, column), (line, column))"
    for o in ast.walk(tree):
        nodes = [getattr(o, 'annotation', None), getattr(o, 'returns', None)]
        if isinstance(o, ast.Raise): nodes.append(o.exc)
        for n in filter(None, nodes): yield (n.lineno, n.col_offset), (n.end_lineno, n.end_col_offset)

def places(room):
    "{(start, end): [(operator, occurrence)]} of all places of a room"
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names
    code = source(room).read_text()
    nodes = list(ast_nodes(get_ast(code)))
    spans = list(untouched(ast.parse(code)))
    found = {}
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments(): continue
        spots = (o for n in nodes for o in operator().mutation_positions(n))
        for i,(start,end) in enumerate(spots):
            if any(a<=start and end<=b for a,b in spans): continue
            found.setdefault((start, end), []).append((name, i))
    return found

def damages(room, each, seed):
    "The drawn damages of a room: dicts with the damaged code"
    rng = random.Random(f'{seed} {room}')
    found = sorted(places(room).items())
    drawn = [(room, place, rng.choice(ways)) for place,ways in found]
    rng.shuffle(drawn)
    return filter(None, (damage_at(*o, seed) for o in drawn[:each or None]))

def damage_at(room, place, way, seed):
    "A dict with the damaged code, or None: no damage but nonsense, `0 iss` of `0<=s`"
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator
    code,(name, i),((line, _), _) = source(room).read_text(),way,place
    damaged = mutate_code(code, get_operator(name)(), i)
    try: compile(damaged, room, 'exec')
    except SyntaxError: return None
    old,new = code.splitlines(),damaged.splitlines()
    before = old[line-1].strip()
    after = '' if len(new)<len(old) else new[line-1].strip()
    within,_,_ = function_at(code, line)
    about = dict(draw=str(seed), room=room, line=line, function=within)
    return about|dict(before=before, after=after, code=damaged)

def nearest(room):
    "The files of the tests that are nearest to a room"
    names = READERS if room.startswith('see.readers') else NEAREST[room]
    ways = [f'{ROAD}[on_trl-{o}]' for o in ('problems-stored_per_fresh', 'tools-accumulate-passes-beta-loss')]
    return [f'tests/test_{o}.py' for o in names.split()]+ways*room.startswith('on_trl')

def damages_together(rooms, n, seed):
    "`n` damages of all rooms together, in the order in which they are drawn"
    rng = random.Random(seed)
    found = [(room, place, ways) for room in rooms for place,ways in sorted(places(room).items())]
    drawn = [(room, place, rng.choice(ways)) for room,place,ways in rng.sample(found, len(found))]
    return islice(filter(None, (damage_at(*o, seed) for o in drawn)), n)

def function_at(code, line):
    "(name, first line, last line) of the innermost function or class around a line"
    best = '',1,len(code.splitlines())
    for o in ast.walk(ast.parse(code)):
        if not isinstance(o, (ast.FunctionDef, ast.ClassDef)): continue
        first = min([o.lineno, *(d.lineno for d in o.decorator_list)])
        if first<=line<=o.end_lineno and o.end_lineno-first<best[2]-best[1]: best = o.name,first,o.end_lineno
    return best

# ---- tests in a process of their own ----------------------------------------------------------------------
def load():
    "Import what the package imports, then forget the package: each process imports its own, damaged one."
    import datasets, hypothesis, pandas, pytest, torch, transformers, trl   # noqa
    import grpo_nb
    for o in pkgutil.walk_packages(grpo_nb.__path__, 'grpo_nb.'):
        if 'dev' not in o.name and '__main__' not in o.name: importlib.import_module(o.name)
    for o in [o for o in sys.modules if o.split('.')[0]=='grpo_nb']: del sys.modules[o]

FINDS_OTHER_CODE = """import importlib.machinery
loader = importlib.machinery.SourceFileLoader
get_code = loader.get_code
def get(self, fullname):
    return compile({code!r}, {path!r}, 'exec') if fullname=={name!r} else get_code(self, fullname)
loader.get_code = get
"""

def damage(room, code, folder):
    "Let the import of a room find other code, in this process and in those that its tests start."
    text = FINDS_OTHER_CODE.format(code=code, path=str(source(room)), name=f'grpo_nb.{room}')
    exec(text, {})
    folder.mkdir()
    (folder/'sitecustomize.py').write_text(text)
    os.environ['PYTHONPATH'] = os.pathsep.join([str(folder), os.environ.get('PYTHONPATH', '')])

class Judge:
    "A plugin of pytest: which test fails, how long each takes, and with `cover` what each goes through."
    def __init__(self, order=None, cover=None):
        self.order,self.cover,self.by,self.took = order,cover,'',{}
        self.fixtures,self.now = {},['']   # of each test; whose lines are being run

    def pytest_itemcollected(self, item): self.fixtures[item.nodeid] = set(item.fixturenames)

    def goes_on(self, name):
        if self.cover: self.cover.switch_context(name)

    def pytest_runtest_logstart(self, nodeid):
        self.now = [nodeid]
        self.goes_on(nodeid)

    @hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        "What several tests share is set up in the first of them; its lines are those of them all."
        shared = fixturedef.scope!='function'
        self.now.append(f'{fixturedef.baseid}::{fixturedef.argname}' if shared else self.now[-1])
        self.goes_on(self.now[-1])
        try: return (yield)
        finally:
            self.now.pop()
            self.goes_on(self.now[-1])

    def tests_with(self, name):
        "The tests that a name of `now` speaks of: a test's own, or all that use a fixture"
        if name in self.took or not name: return [name]
        at,_,fixture = name.rpartition('::')
        return [k for k,v in self.fixtures.items() if fixture in v and k.startswith(at)]

    def pytest_collectreport(self, report):
        if report.failed and not self.by: self.by = 'import'

    def pytest_keyboard_interrupt(self):
        "`Stopped` is one: a damage that makes it rise where nobody expects it ends the tests."
        self.by = self.by or self.now[0] or 'interrupt'

    def pytest_runtest_logreport(self, report):
        if report.failed and not self.by: self.by = report.nodeid
        good = report.passed and self.took.get(report.nodeid, 0)is not None
        self.took[report.nodeid] = self.took.get(report.nodeid, 0)+report.duration if good else None

def chosen(judge):
    "The hook that leaves the tests of `judge.order`, in its order."
    class Last:
        @hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items):
            if judge.order is None: return
            rank = {o:i for i,o in enumerate(judge.order)}
            items[:] = sorted((o for o in items if o.nodeid in rank), key=lambda o: rank[o.nodeid])
    return Last()

def judge(paths, order, first, cover=None, more=()):
    import pytest
    o = Judge(order, cover)
    flags = ['-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', '-W', 'ignore', *(['-x'] if first else [])]
    pytest.main([*flags, *more, *paths], plugins=[o, chosen(o)])
    return o

def start(work, out, seconds):
    "Run `work` in a forked process that writes its result to `out`; its id"
    pid = os.fork()
    if pid: return pid
    code = 1
    try:
        os.setsid()
        null = os.open(out.with_suffix('.log'), os.O_CREAT|os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds+5))
        out.write_text(json.dumps(work()))
        code = 0
    finally: os._exit(code)

def wait(running):
    "The next of the `running` that ends, as (id, was it killed?); one is killed when its time is up."
    while True:
        pid,status = os.waitpid(-1, os.WNOHANG)
        if pid in running: return pid, os.WIFSIGNALED(status)
        for o,(end,_) in running.items():
            if time.monotonic()>end: os.killpg(o, signal.SIGKILL)
        time.sleep(.1)

def through():
    "How long each test takes, and which go through a line: dict(took={test: s}, lines={room: {line: tests}})"
    import coverage
    files = {str(source(o)):o for o in ROOMS}
    cover = coverage.Coverage(data_file=None, include=list(files), config_file=False)
    cover.start()
    o = judge([f'tests/test_{o}.py' for o in JUDGES], None, False, cover)
    cover.stop()
    data = cover.get_data()
    took = {k:v for k,v in o.took.items() if v is not None}   # a test that fails or is skipped judges nothing
    def known(by_line):
        tests = {line:{t for name in names for t in o.tests_with(name)} for line,names in by_line.items()}
        return {line:[t for t in sorted(ts) if t in took or not t] for line,ts in tests.items()}
    lines = {room:known(data.contexts_by_lineno(f)) for f,room in files.items()}
    return dict(took=took, lines=lines)

def tests_of(d, seen):
    """The tests that go through a damage's line; where the import does ('' in the map), those that go through
    its function, or else through its room."""
    lines = {int(k):set(v) for k,v in seen['lines'][d['room']].items()}
    here = lines.get(d['line'], {''})
    if '' not in here: return here
    used = {n:o for n,o in lines.items() if '' not in o}
    _,first,last = function_at(source(d['room']).read_text(), d['line'])
    here = here.union(*(o for n,o in used.items() if first<=n<=last)) - {''}
    return here or set().union(*used.values())

# ---- the table --------------------------------------------------------------------------------------------
def key(o): return tuple(o[k] for k in ('draw','room','function','before','after'))

def opened(path, mode):
    "A table, compressed where its name ends in .xz."
    how = lzma.open if path.suffix=='.xz' else open
    return how(path, mode, encoding='utf-8', newline='')

def read(path):
    if not path.exists(): return {}
    with opened(path, 'rt') as f: return {key(o):o for o in csv.DictReader(f)}

def write(path, rows):
    with opened(path, 'wt') as f:
        w = csv.DictWriter(f, FIELDS, lineterminator='\n', extrasaction='ignore')
        w.writeheader()
        place = lambda o: (int(o['draw']), ROOMS.index(o['room']), int(o['line']), o['after'])
        w.writerows(sorted(rows, key=place))

def limits(seen, tests, known, most):
    "Tests in the order in which they judge, those first that noticed most; and how long they may take."
    noticed = Counter(o['by'] for o in known)
    tests = sorted(tests, key=lambda t: (-noticed[t], seen['took'][t]))
    before = [0, *accumulate(seen['took'][t] for t in tests)]
    tests = [t for t,s in zip(tests, before) if s<most]
    return tests,SECONDS+int(before[len(tests)])

def judged(drawn, seen, known, folder, jobs, end, most):
    "Each of the drawn damages with its outcome, as they end; `known` are rows of before."
    running,known = {},list(known)
    while True:
        while len(running)<jobs and time.monotonic()<end and (o := next(drawn, None)):
            tests,seconds = limits(seen, tests_of(o, seen), known, most) if seen else ([], 10*SECONDS)
            to = folder/f"{o['room']}-{len(known)}-{time.monotonic_ns()}.json"
            def work(o=o, tests=tests):
                damage(o['room'], o['code'], to.with_suffix(''))
                slow = ['--slow']*o['room'].startswith('on_trl')   # two processes
                rounds = [('-m', 'not processes'), ('-m', 'processes', *slow)]
                for more in rounds if not seen else ():
                    if by := judge(nearest(o['room']), None, True, more=more).by: return by
                for some in filter(None, (tests[:QUICKEST], tests[QUICKEST:])) if seen else ():
                    if by := judge(sorted({t.split('::')[0] for t in some}), some, True).by: return by
                return ''
            running[start(work, to, seconds)] = time.monotonic()+10*seconds,(o, to)
        if not running: return
        pid,killed = wait(running)
        _,(o, to) = running.pop(pid)
        by = json.loads(to.read_text()) if to.exists() else '' if killed else 'crash'
        known.append(o|dict(outcome='timeout' if killed else 'killed' if by else 'survived', by=by))
        yield known[-1]

def main(a):
    os.chdir(ROOT)
    load()
    end = time.monotonic()+a.hours*3600
    old,rows = read(a.out),{}
    others = {key(o)[1:] for o in old.values() if o['draw']!=str(a.seed)}
    def unknown(o):
        if key(o)[1:] in others: return False
        row = old.get(key(o), {})
        o |= {k:row.get(k, '') for k in ('first','same')}
        if not row or a.again=='all' or a.again==row['outcome'] and not o['same']: return True
        rows[key(o)] = row|dict(line=o['line'])
    with tempfile.TemporaryDirectory() as d:
        seen_at = Path(a.map or f'{d}/map.json')
        if not a.nearest and not seen_at.exists(): os.waitpid(start(through, seen_at, 7200), 0)
        if not a.nearest and not seen_at.exists():
            raise SystemExit(seen_at.with_suffix('.log').read_text()[-3000:])
        seen = None if a.nearest else json.loads(seen_at.read_text(encoding='utf-8'))
        by_room = [damages(room, a.each, a.seed) for room in a.rooms]
        in_turn = (o for turn in zip_longest(*by_room) for o in turn if o and unknown(o))
        if a.together: in_turn = filter(unknown, damages_together(a.rooms, a.together, a.seed))
        for o in judged(in_turn, seen, old.values(), Path(d), a.jobs, end, a.tests):
            rows[key(o)] = o|dict(first=o['first'] or o['outcome'])
            write(a.out, (old|rows).values())
            print(f"{o['room']}:{o['line']} {o['outcome']} {o['by']}")
            print(o['before'], o['after'], sep='\n', flush=True)
    aside = [o for o in old.values() if o['draw']!=str(a.seed) or o['room'] not in a.rooms]
    write(a.out, [*rows.values(), *aside])
    counted = [o for o in rows.values() if not o['same']]
    for room in a.rooms:
        noticed = [o['outcome']!='survived' for o in counted if o['room']==room]
        print(f'{room}: {sum(noticed)} of {len(noticed)}')
    return sum(o['outcome']!='survived' for o in counted)<a.least*len(counted)

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('rooms', nargs='*', default=ROOMS)
    p.add_argument('--each', type=int, default=25)
    p.add_argument('--together', type=int, default=0)
    p.add_argument('--nearest', action='store_true')
    p.add_argument('--seed', type=int, default=0)
    p.add_argument('--jobs', type=int, default=2)
    p.add_argument('--hours', type=float, default=24)
    p.add_argument('--out', type=Path, default=ROOT/'nbs'/'results'/'mutants.csv.xz')
    p.add_argument('--map')
    p.add_argument('--again', choices=['survived','all'])
    p.add_argument('--least', type=float, default=.9)
    p.add_argument('--tests', type=float, default=math.inf)
    a = p.parse_args()
    a.rooms = a.rooms or ROOMS
    sys.exit(main(a))
