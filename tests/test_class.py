"""The problem sets: a student's folder, made, solved and graded; each check against wrong answers
that a student would give; hand-ins that can't be graded, and what is said of them"""

import copy, csv, json, math, random, re, shutil, statistics, subprocess, sys
from pathlib import Path
from types import ModuleType
import nbformat, pytest, torch
from tokenizers.processors import TemplateProcessing
from nbclient import NotebookClient
from scipy.stats import nct
from grpo_nb.teach import classroom
from grpo_nb.teach.classroom import attempt, checks_of, folder_seed, grade, handout, make, run_checks
from grpo_nb.teach.classroom import open_fields, same, score, score_lines, split_handout
from grpo_nb.cli import main
from grpo_nb.parts.stats import mean_ci

ROOT = Path(__file__).parent.parent
KEY = ROOT/'tests'/'class_key'
PAGE = {}   # the page of checks, run
exec(compile(split_handout(handout('checks'))[0]['checks.py'], 'checks.py', 'exec'), PAGE)

def checks_in(which): return [PAGE[f'test_{name}'] for _,name in checks_of(which)]

def module(folder, source):
    m = ModuleType('handed_in')
    m.folder = folder
    exec(source, m.__dict__)
    return m

def message(check, m, seed=0):
    "None, or the sentence of a check"
    torch.manual_seed(seed)
    try: check(m, torch.Generator().manual_seed(seed))
    except AssertionError as e: return str(e)
    except Exception as e: return f'it raises {type(e).__name__}'

@pytest.fixture
def quick(monkeypatch):
    "Sets are examined in this process: for tests of what the checks say"
    def here(folder, which, seed=None, limit=60.):
        m = module(folder, (folder/'adapters.py').read_text())
        return [message(f, m, folder_seed(folder) if seed is None else seed) for f in checks_in(which)]
    monkeypatch.setattr(classroom, 'run_checks', here)

def with_results(which, seed):
    "The key's adapters.py, with what its runs on a seed give"
    mean,half = mean_ci(PAGE['last_values'](which, seed))
    broken = f"BROKEN = {PAGE['n_broken'](seed)}\n" if which=='C' else ''
    report = ''
    if which=='E':
        verdict = 'ahead' if mean>half else 'behind' if -mean>half else 'undecided'
        report = f'REPORT = """Difference: {mean:+.4f} ± {half:.4f}\nVerdict: {verdict}\n' \
            f'Smallest difference: {1.379*half:.4f}"""\n'
    done = f'SEED = {seed}\nRESULT = {mean:.4f},{half:.4f}\n'
    return (KEY/which/'adapters.py').read_text()+done+broken+report

@pytest.fixture(scope='module')
def solved(tmp_path_factory):
    "A student's folder, solved by the key: copied and filled as a student would, the experiment run"
    root = tmp_path_factory.mktemp('class')/'ada'
    make(root, 'ABCDE', seed=0)
    for k in 'ABCE': (root/k/'adapters.py').write_text(with_results(k, 0))
    for o in ('plan.md','report.md'): shutil.copy(KEY/'D'/o, root/'D'/o)
    with (root/'D'/'experiment.py').open('a') as f: f.write('\n\n'+(KEY/'D'/'changed.py').read_text())
    assert module(root/'D', (root/'D'/'experiment.py').read_text()).record(root/'D').startswith('16 runs')
    ticked = (root/'D'/'checklist.md').read_text().replace('[ ]', '[x]')
    (root.parent/'ticked.md').write_text(ticked)
    return root

@pytest.fixture
def mine(solved, tmp_path): return Path(shutil.copytree(solved, tmp_path/'mine'))

# --- the folder

def test_a_folder_that_could_not_be_written_whole_is_not_there(tmp_path, monkeypatch):
    write = Path.write_text
    def full(self, *args, **kwargs):
        if self.name=='handout.ipynb': raise OSError(28, 'No space left on device')
        return write(self, *args, **kwargs)
    with monkeypatch.context() as m, pytest.raises(OSError, match='No space'):
        m.setattr(Path, 'write_text', full)
        make(tmp_path/'ada')
    assert not (tmp_path/'ada').exists()

def test_a_folder_is_made_and_what_is_there_already_is_left_alone(tmp_path):
    made = make(tmp_path/'new'/'ada')
    assert sorted(str(f.relative_to(tmp_path/'new'/'ada')) for f in (tmp_path/'new').rglob('*.*'))==made
    about = (tmp_path/'new'/'ada'/'README.md').read_text(encoding='utf-8')
    assert "`pip install 'grpo_nb[notebooks]'`" in about   # the wheel alone opens no handout and runs no test
    (tmp_path/'work').mkdir()
    (tmp_path/'work'/'mine.py').write_text('x = 1')
    with pytest.raises(ValueError, match="holds .'mine.py'.: name a new folder"): make(tmp_path/'work')
    with pytest.raises(ValueError, match='is a file'): make(tmp_path/'work'/'mine.py')
    assert [o.name for o in (tmp_path/'work').iterdir()]==['mine.py']
    assert (tmp_path/'work'/'mine.py').read_text()=='x = 1'
    with pytest.raises(ValueError, match="no problem set 'F': there are A, B, C, D, E"): make(tmp_path, ['f'])

def test_the_folder_holds_no_solution_and_nothing_of_the_hidden_checks(solved, tmp_path):
    make(tmp_path/'new', 'ABCDE')
    text = '\n'.join(f.read_text() for f in (tmp_path/'new').rglob('*.*'))
    for k in 'ABCE':
        for line in (KEY/k/'adapters.py').read_text().splitlines():
            if line.startswith('    ') and len(line.strip())>12: assert line.strip() not in text, line
    assert '@points(' not in text and '../' not in text.replace('../..', '')

@pytest.mark.parametrize('which', 'ABCE')
def test_the_visible_tests_pass_for_the_key_and_say_not_yet_for_the_stubs(which, solved):
    files,_ = split_handout(handout(which))
    def message(adapters):
        m = module(solved, adapters+'\n'+files['test_visible.py'].replace('from adapters import *', ''))
        return [attempt(f) for k,f in vars(m).items() if k.startswith('test_')]
    assert set(message((KEY/which/'adapters.py').read_text()))=={'right'}
    assert set(message(files['adapters.py']))=={'not yet: it returns None: is its last line a `return`?'}

@pytest.mark.processes
def test_the_visible_tests_run_in_the_students_folder(solved):
    words = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', 'test_visible.py']
    out = subprocess.run(words, cwd=solved/'A', capture_output=True, text=True).stdout
    assert '5 passed' in out, out

def given(which, solved):
    "The key's functions and the code that the handout gives, in one module"
    m = module(solved/which, (solved/which/'adapters.py').read_text())
    for c in handout(which)['cells']:
        src = ''.join(c['source'])
        skip = re.match(r'#\| (filename: adapters|fig-alt)|attempt', src)
        if which=='C':   # the curves without the ratio are counted by the check
            src = src.replace('for w in (True, False)}', 'for w in (True,)}')
        if c['cell_type']=='code' and not skip: exec(src, m.__dict__)
    return m

@pytest.mark.parametrize('which,name', [('A', 'runs'), ('B', 'curves'), ('C', 'curves'),
    ('E', 'differences')])
def test_the_results_over_seeds_are_what_the_handouts_own_cells_give(which, name, solved):
    "What the checks compare with is what a student's functions give in the code the student runs"
    m = given(which, solved)
    runs = getattr(m, name)
    last = runs if which=='E' else [o[-1] for o in runs['k3' if which=='B' else which=='C']]
    assert last==pytest.approx(PAGE['last_values'](which, 0), abs=1e-5)
    noted = dict(A=(33.78, 1.00), B=(.035, .025), C=(.487, .018), E=(.0196, .0111))   # noted once
    mean = noted[which]
    assert mean_ci(last)==pytest.approx(mean, abs=.006 if which=='A' else 6e-4)

def test_a_result_of_another_seed_earns_nothing_and_no_page_holds_one_to_copy(solved):
    "The results of a folder are those of its own seed; a changed seed is noticed by a teacher who knows it"
    page = json.dumps([c['source'] for c in handout('checks')['cells']])
    assert not any(f'{o:g}' in page for o in (33.78, .035, .487))
    for which,name in (('A', 'length_over_seeds'), ('B', 'kl_over_seeds')):
        check = PAGE[f'test_{name}']
        zero = module(solved/which, with_results(which, 0))
        three = module(solved/which, with_results(which, 0)+'SEED = 3\n')
        assert message(check, zero) is None
        assert 'over seeds 24 to 31 it is another' in message(check, three, 3)
        assert '`SEED` is 0, but this folder is graded with seed 3' in message(check, zero, 3)

VALUES = [.0171, .0274, -.0012, .0183, .0169, .0224, .0149, .0031]   # a set's results over eight seeds
def _sd(v): return statistics.stdev(v)
WRONG_HALVES = {'the standard deviation':_sd, 'the standard error':lambda v: _sd(v)/8**.5,
    'the normal quantile':lambda v: 1.96*_sd(v)/8**.5,
    'divides by n, not n-1':lambda v: 2.3646*statistics.pstdev(v)/8**.5,
    'is it the 95 % interval':lambda v: 2*mean_ci(v)[1], 'is nan, or':lambda v: float('nan')}

@pytest.mark.parametrize('which,unit,digits', [('A', 100, 2), ('B', 2, 3), ('C', 3, 3), ('E', 1, 4)])
def test_a_half_width_is_told_from_what_is_mistaken_for_one(which, unit, digits, solved, monkeypatch):
    "As printed, in every set; and the mean of seven seeds, of another folder, or nan is another mean"
    values = [unit*o for o in VALUES]
    monkeypatch.setitem(PAGE, 'last_values', lambda *o: values)
    monkeypatch.setitem(PAGE, 'n_broken', lambda seed: 5)
    check = next(f for f in checks_in(which) if f.__name__.endswith('over_seeds'))
    mean,half = mean_ci(values)
    def of(x, y):
        m = module(solved/which, (solved/which/'adapters.py').read_text())
        m.RESULT,m.BROKEN = (round(x, digits),round(y, digits)),5
        return message(check, m)
    assert of(mean, half) is None
    for says,f in WRONG_HALVES.items(): assert says.split(', or')[0] in of(mean, f(values)), says
    for x in (sum(values[:7])/7, 1.1*mean, float('nan')): assert 'it is another' in of(x, half)

def test_the_smallest_difference_of_the_ladder_is_found_by_four_in_five():
    def power(d): return nct.sf(2.3646, 7, 2.3646*d)+nct.cdf(-2.3646, 7, 2.3646*d)
    assert power(1)==pytest.approx(.53, abs=.005) and power(1+.896/2.365)==pytest.approx(.8, abs=.005)
    m = ModuleType('m')
    m.RESULT = .0148,.0079
    def of(x):
        m.REPORT = f'Difference: +0.0148 ± 0.0079\nVerdict: ahead\nSmallest difference: {x:.4f}'
        return message(PAGE['test_ladder_report'], m)
    assert of(.0109) is None
    wrong = {.0079:'about half', .0113:'normal quantiles', .0158:'four in five', .0094:'wanted'}
    for x,words in wrong.items(): assert words in of(x)

def test_each_folder_has_a_seed_of_its_own(tmp_path):
    seeds = {}
    for name in ('ada', 'bob', 'cleo'):
        make(tmp_path/name, ['A'])
        seeds[name] = folder_seed(tmp_path/name/'A')
        assert f'SEED = {seeds[name]} ' in (tmp_path/name/'A'/'handout.ipynb').read_text()
    assert len({*seeds.values()})==3 and all(seeds.values())
    (tmp_path/'again').mkdir()
    make(tmp_path/'again'/'ada', ['A'])
    assert folder_seed(tmp_path/'again'/'ada'/'A')==seeds['ada']
    make(tmp_path/'eva', ['A', 'C'], seed=41)
    assert folder_seed(tmp_path/'eva'/'A')==folder_seed(tmp_path/'eva'/'C')==41

@pytest.mark.parametrize('line,seed', [('SEED = 1_2 # mine', 12), ('SEED: int = 12', 12),
    ('SEED = 3\nSEED = 12', 12), ('SEED = 100000000', 100_000_000), *((o, None) for o in ('', 'SEED = 3.5',
    'SEED = "7"', 'SEED = 2*3', 'SEED = -1', 'SEED = 100000001', 'def f():\n    SEED = 5'))])
def test_a_seed_is_read_and_one_that_is_missing_is_named(tmp_path, monkeypatch, line, seed):
    make(tmp_path/'ada', ['A', 'D'], seed=4)
    file = tmp_path/'ada'/'A'/'adapters.py'
    file.write_text(re.sub('^SEED = 4.*', lambda _: line, file.read_text(), flags=re.M))
    assert folder_seed(file.parent)==seed
    asked = []
    def note(file, which, seed, limit, names):
        asked.append(seed)
        return [None]*(2+len(names)),''
    monkeypatch.setattr(classroom, '_run_pytest', note)
    graded = grade(tmp_path/'ada', ['A'])
    named = [o for o in score_lines(graded) if ' seed: ' in o]
    assert asked==[seed or 0] and score(graded['A'])==(25, 25)   # it costs nothing of its own
    assert len(named)==(seed is None) and all('graded with seed 0' in o and '--seed N' in o for o in named)
    for o in (grade(tmp_path/'ada', ['A'], seed=4), grade(tmp_path/'ada', ['D'])):
        assert ' seed: ' not in str(score_lines(o))
    assert asked[1]==4

def test_a_field_of_a_plan_is_filled_from_three_words_on():
    def plan(text): return '\n'.join(f'## {k}\n\n{text}\n' for k in classroom.FIELDS)
    texts = {'':True, '…':True, 'two words':True, '… two words':True, 'three such words':False}
    for text,is_open in texts.items():
        assert open_fields(plan(text))==list(classroom.FIELDS)*is_open, text

@pytest.mark.parametrize('got,says', [([1., 2.], 'it returns shape (2,), needs (1,)'),
    ('x', 'it returns a str, which is no tensor'), (None, 'it returns None: is its last line a `return`?')])
def test_an_answer_of_another_shape_or_kind_is_named(got, says):
    with pytest.raises(AssertionError, match=f'^{re.escape(says)}$'): same(got, [1.])

def test_no_folder_is_made_or_graded_with_a_seed_that_no_run_takes(tmp_path):
    with pytest.raises(ValueError, match=r'--seed -1: needs a whole number from 0'):
        make(tmp_path/'ada', ['A'], seed=-1)
    assert not (tmp_path/'ada').exists()
    make(tmp_path/'ada', ['A'])
    with pytest.raises(ValueError, match='--seed -3: needs'): grade(tmp_path/'ada', ['A'], seed=-3)

@pytest.mark.parametrize('seed', range(20))
def test_a_handout_is_taken_apart_as_by_hand(seed):
    "Cells of files, code and text in any order: what comes into which file, and what is left of the notebook"
    rng = random.Random(seed)
    cells,want,files = [dict(cell_type='markdown', source=['# A title\n', 'and more'])],[],{}
    want.append(('markdown', '# A title\nand more'))
    for n in range(rng.randint(1, 9)):
        at = rng.choice(['text','code','adapters.py','adapters.py','test_visible.py','plan.md'])
        body = f'SEED = 0\nx = {n}  # SEED = 0' if at!='text' else f'see [a](../07_advantages.ipynb#b), {n}'
        line = f'SEED = {seed}\nx = {n}  # SEED = 0' if at!='text' else \
            f'see [a](https://grpo-nb.github.io/grpo_nb/advantages.html#b), {n}'
        marked = f'#| filename: {at}\n'+(f'```markdown\n{body}\n```' if at=='plan.md' else body)
        kind = 'markdown' if at in ('text','plan.md') else 'code'
        cells.append(dict(cell_type=kind, source=[marked if '.' in at else body]))
        if '.' in at: files.setdefault(at, []).append(line)
        if at=='adapters.py':
            if len(files[at])==1: want.append(('code',
                '%load_ext autoreload\n%autoreload 2\nfrom adapters import *'))
            want.append(('markdown', f'In `adapters.py`:\n\n```python\n{line}\n```'))
        else: want.append((kind, f'```markdown\n{line}\n```' if at=='plan.md' else line))
    got,nb = split_handout(dict(cells=cells), seed)
    assert [(o['cell_type'], o['source']) for o in nb['cells']]==want and got.keys()==files.keys()
    for o in nb['cells']: assert ('outputs' in o)==('execution_count' in o)==(o['cell_type']=='code')
    for name,texts in files.items():
        body = '\n\n'.join(f'{o}\n' for o in texts)
        assert got[name].endswith(body)
        head = got[name].removesuffix(body)
        assert head.startswith('"A title: ')==bool(head)==name.endswith('.py')
    assert (nb['nbformat'], nb['nbformat_minor'])==(4, 4)

@pytest.mark.processes
def test_a_student_can_do_a_set_from_the_folder_alone(tmp_path, solved):
    """The handout runs in its folder, from stubs to the result over seeds, and imports what was written
    there; set D after set A, with all names forgotten"""
    make(tmp_path/'bob', ['A', 'D'])
    for which,written in dict(A=['adapters.py'], D=['plan.md', 'experiment.py']).items():
        for o in written: shutil.copy(solved/which/o, tmp_path/'bob'/which/o)
    nb,last = (nbformat.read(tmp_path/'bob'/k/'handout.ipynb', 4) for k in 'AD')
    away = nbformat.v4.new_code_cell('%reset -f\n%cd -q ../D')
    del away['id']   # as the handouts' cells, which have none
    nb.cells += [away, *last.cells]
    here = dict(metadata=dict(path=str(tmp_path/'bob'/'A')))
    NotebookClient(nb, timeout=300, kernel_name='python3', resources=here).execute()
    shown = [o['data']['text/plain'] for c in nb.cells for o in c.get('outputs', []) if 'data' in o]
    assert shown[:6]==["'right'"]*5+["['4.89 ± 1.74', '33.78 ± 1.00']"] and 'Canvas' in shown[6]
    assert shown[-1]=="'16 runs in results.csv'"
    assert (tmp_path/'bob'/'D'/'results.csv').read_text().count('\n')==17

# --- the whole

@pytest.mark.processes
def test_the_key_is_worth_100_of_100_also_as_windows_saves_it(mine, solved):
    for o in ('A/adapters.py', 'C/adapters.py', 'D/plan.md', 'D/results.csv'):
        (mine/o).write_text((mine/o).read_text(), encoding='utf-8-sig')   # with its mark
    got = grade(mine, checklist=solved.parent/'ticked.md')
    assert {k:score(v) for k,v in got.items()}=={k:(25, 25) for k in 'ABCD'}, score_lines(got)
    assert score_lines(got)[-1]=='100 of 100'

def test_the_key_of_the_ladder_is_worth_100_by_itself(solved, quick):
    got = grade(solved, ['E'])
    assert score_lines(got)==['E  the ladder: 100 of 100']

@pytest.mark.parametrize('sets', ['A', 'B', 'C', 'D', 'E', 'ABCD', 'BD', 'ABCDE'])
def test_the_command_in_a_folders_readme_grades_what_is_in_it(sets, tmp_path, monkeypatch, capsys):
    make(tmp_path/'ada', list(sets))
    monkeypatch.setattr(classroom, '_run_pytest', lambda *o: ([None]*(2+len(o[-1])), ''))
    monkeypatch.chdir(tmp_path/'ada')
    about = (tmp_path/'ada'/'README.md').read_text()
    main(re.search('`grpo_nb (class grade[^`]*)`', about)[1].split())
    lines = capsys.readouterr().out.splitlines()
    assert [o[0] for o in lines if re.match('[A-E]  ', o)]==list(sets)
    assert not [o for o in lines if o.startswith('   -') and 'reader' not in o]
    for k in sets: assert f'{k} ({classroom.TITLES[k]})' in about
    if sets=='E':   # a teacher's plain command
        main(['class', 'grade', '.'])
        assert capsys.readouterr().out=='E  the ladder: 100 of 100\n'

@pytest.mark.processes
def test_grading_writes_nothing_into_the_students_folder(mine):
    def state(): return {f:(f.stat().st_mtime_ns, f.read_bytes()) for f in mine.rglob('*') if f.is_file()}
    with (mine/'A'/'adapters.py').open('a') as f: f.write('\nopen("left.txt", "w").close()\nprint("hello")\n')
    before = state()
    assert score(grade(mine, ['A'])['A'])==(25, 25)
    assert state()==before

def test_another_seed_draws_other_inputs_and_the_key_keeps_its_points(solved, monkeypatch):
    monkeypatch.setitem(PAGE, 'last_values', lambda which, seed: [o+seed/100 for o in VALUES])
    monkeypatch.setitem(PAGE, 'n_broken', lambda seed: 5)
    for seed in (1, 2, 3):
        for which in 'ABCE':
            m = module(solved/which, with_results(which, seed))
            assert [message(f, m, seed) for f in checks_in(which)]==[None]*len(checks_in(which))
            assert None not in [message(f, ModuleType('empty'), seed) for f in checks_in(which)]

# --- wrong answers for each check

HEAD = 'import math, torch\n'
WRONG = {   # (set, check): [(what a student would write, words of the sentence)]
    ('A','draw'): [
        ('def draw(p, u): return torch.searchsorted(p.cumsum(1), u[:,None]*p.sum(1, keepdim=True))[:,0]',
            'weight 0'),
        ('def draw(p, u):\n    i = torch.searchsorted(p.double().cumsum(1), u[:,None], right=True)\n'
            '    return i[:,0].clamp(max=4)',
            'sum to 1'),
        ('def draw(p, u): return torch.multinomial(p, 1)', 'shape (8, 1), needs (8,)')],
    ('A','noted'): [
        ('def noted(z, ids, t): return z.log_softmax(1).gather(1, ids[:,None])[:,0]',
            'temperature is forgotten'),
        ('def noted(z, ids, t): return (z/t).softmax(1).gather(1, ids[:,None])[:,0]', 'not their logs'),
        ('def noted(z, ids, t): return (z/t).gather(1, ids[:,None])[:,0]', 'without the log of their sum')],
    ('A','answer_mask'): [
        ('def answer_mask(ids, ends): return torch.isin(ids, ends).int().cumsum(1)==0',
            'end token is left out'),
        ('def answer_mask(ids, ends): return ~torch.isin(ids, ends)', 'after the end'),
        ('def answer_mask(ids, ends):\n    e = (ids==ends[0]).int()\n    return e.cumsum(1)-e==0',
            'only the first')],
    ('A','sample'): [
        ('''
def sample(scores, u, end, temperature):
    ids,logps = [],[]
    for x in u:
        lp = (scores(ids)/temperature).log_softmax(0)
        i = torch.searchsorted(lp.exp().double().cumsum(0), x).item()
        if i==end: break
        ids.append(i)
        logps.append(lp[i].item())
    return ids,logps''', 'belongs to the answer'),
        ('''
def sample(scores, u, end, temperature):
    ids,logps = [],[]
    for x in u:
        lp = (scores(ids)/temperature).log_softmax(0)
        ids.append(torch.searchsorted(lp.exp().double().cumsum(0), x).item())
        logps.append(lp[ids[-1]].item())
    return ids,logps''', 'goes on behind the end'),
        ('''
def sample(scores, u, end, temperature):
    ids,logps = [],[]
    for x in u:
        z = scores(ids)
        ids.append(torch.searchsorted((z/temperature).softmax(0).double().cumsum(0), x).item())
        logps.append(z.log_softmax(0)[ids[-1]].item())
        if ids[-1]==end: break
    return ids,logps''', 'forget the temperature')],
    ('A','end_score'): [
        ('def end_score(n, ended, e, with_end): return 1-n*e if with_end else -(n-1)*e', 'cut off'),
        ('def end_score(n, ended, e, with_end): return -n*e + (1-e)*ended*with_end', 'also counted'),
        ('def end_score(n, ended, e, with_end): return e*(n-ended.int()) - (1-e)*ended*with_end',
            'wrong way round')],
    ('A','length_over_seeds'): [
        ('PREDICTION = None', "choose one of"),
        ('RESULT = 33.78, 0.', 'half-width is 0'),
        ('RESULT = 4.89, 1.74', 'it is another')],
    ('B','dead'): [
        ('def dead(r): return r.std(1)==0', 'rounding'),
        ('def dead(r): return r.sum(1)==0', 'all wrong'),
        ('def dead(r): return r.amax(1)-r.amin(1)>1e-6', 'swapped')],
    ('B','advantages'): [
        ('def advantages(r):\n    d = r-r.mean(1, keepdim=True)\n'
            '    return d/((d**2).mean(1, keepdim=True)**.5+1e-4)',
            'G-1'),
        ('def advantages(r): return (r-r.mean())/(r.std()+1e-4)', 'whole batch'),
        ('def advantages(r): return r-r.mean(1, keepdim=True)', 'does not divide')],
    ('B','expected_score'): [
        ('def expected_score(p, G): return 2*G*p*(1-p)', 'square of the mean'),
        ('def expected_score(p, G): return 1-p**G-(1-p)**G', 'living groups')],
    ('B','k3'): [
        ('def k3(a, b): return (a-b).exp()-(a-b)-1', 'swapped'),
        ('def k3(a, b): return a-b', 'this is k1'),
        ('def k3(a, b): return (b-a)**2/2', 'this is k2'),
        ('def k3(a, b): return (b-a).exp()-(b-a)-1', 'expm1')],
    ('B','kl_gradient'): [
        ('def kl_gradient(t, r): return t.softmax(0)-r.softmax(0)', 'other way round'),
        ('def kl_gradient(t, r): return t.softmax(0)*(t.log_softmax(0)-r.log_softmax(0))', 'bracket')],
    ('B','penalty'): [
        ('def penalty(a, b, m): return (a-b)[m].mean()', 'this is k1'),
        ('def penalty(a, b, m): return k3(a, b)[m].mean()', 'this is k3'),
        ('def penalty(a, b, m): return ((a-b)**2/2).masked_fill(~m, 0).mean()', 'padded width'),
        ('def penalty(a, b, m): return (((a-b)**2/2)*m).sum()/m.sum()', 'there is nan'),
        ('def penalty(a, b, m): return ((a-b).detach()[m]**2/2).mean()', 'no gradient')],
    ('B','kl_over_seeds'): [
        ("PREDICTION = 'yes'", 'choose one of'), ('RESULT = .126, .008', 'it is another'), ('RESULT = None',
            'pair')],
    ('C','push'): [
        ('def push(rho, A, eps): return torch.where((rho-1).abs()>eps, 0., rho*A)', 'one side only'),
        ('def push(rho, A, eps): return torch.where((A>0)&(rho>1+eps)|(A<0)&(rho<1-eps), 0., A)',
            'as a factor'),
        ('def push(rho, A, eps): return rho*A', 'nothing is clipped')],
    ('C','objective'): [
        ('def objective(n, o, A, m, eps=.2):\n    r,A = (n-o).exp(),A[...,None]\n'
            '    return torch.maximum(r*A, r.clamp(1-eps, 1+eps)*A)[m].mean()', 'the larger'),
        ('def objective(n, o, A, m, eps=.2): return ((n-o).exp()*A[...,None])[m].mean()',
            'nothing is clipped'),
        ('def objective(n, o, A, m, eps=.2): return ((n-o).exp().clamp(1-eps, 1+eps)*A[...,None])[m].mean()',
            'alone'),
        ('def objective(n, o, A, m, eps=.2): return ((n-n.detach()).exp()*A[...,None])[m].mean()',
            'taken as 1'),
        ('def objective(n, o, A, m, eps=.2):\n    r,A = (n-o).exp(),A[...,None]\n'
            '    return (torch.minimum(r*A, r.clamp(1-eps, 1+eps)*A)*m).mean()', 'padded width'),
        ('def objective(n, o, A, m, eps=.2):\n    r,A = (n-o).exp(),A[...,None]\n'
            '    return -torch.minimum(r*A, r.clamp(1-eps, 1+eps)*A)[m].mean()', 'other sign'),
        ('def objective(n, o, A, m, eps=.2):\n    r,A = (n-o).detach().exp(),A[...,None]\n'
            '    return torch.minimum(r*A, r.clamp(1-eps, 1+eps)*A)[m].mean()', 'no gradient')],
    ('C','keep'): [
        ('def keep(s, n): return sorted(sorted(range(len(s)), key=lambda i: (-s[i], i))[:n])',
            'never renews'),
        ('def keep(s, n): return list(range(len(s)))[-n:]', 'whatever they are worth'),
        ('def keep(s, n): return sorted(sorted(range(len(s)), key=lambda i: (-s[i], -i))[:n])',
            'needs (1,)'),
        ('def keep(s, n): return sorted(i for _,i in sorted((x, i) for i,x in enumerate(s) if x>0)[-n:])',
            'a buffer without places keeps nothing')],
    ('C','ess'): [
        ('def ess(x, m):\n    w = x[m].exp()\n    return w.sum()**2/(w**2).sum()/len(w)', 'over tokens'),
        ('def ess(x, m):\n    w = (x.exp()*m).sum(1)/m.sum(1)\n    return w.sum()**2/(w**2).sum()/len(w)',
            'not their mean'),
        ('def ess(x, m):\n    w = x.sum(1).exp()\n    return w.sum()**2/(w**2).sum()/len(w)', 'padding'),
        ('def ess(x, m):\n    w = (x*m).sum(1).exp()\n    return w.sum()**2/(w**2).sum()/len(w)', 'nan')],
    ('C','replace_dead'): [
        ('def replace_dead(batch, dead, stored):\n    for b,g in zip(dead.nonzero()[:,0], stored):\n'
            '        for k in batch: batch[k][b] = g[k]\n    return batch', 'work on a copy'),
        ('def replace_dead(batch, dead, stored):\n    out = {k:v.clone() for k,v in batch.items()}\n'
            '    for b,g in zip(dead.nonzero()[:,0], stored):\n'
            '        for k in ("ids", "advantages", "rewards"):'
            ' out[k][b] = g[k]\n    return out', '`old_logps` of the replaced rows'),
        ('def replace_dead(batch, dead, stored):\n    out = {k:v.clone() for k,v in batch.items()}\n'
            '    for b,g in enumerate(stored):\n        for k in out: out[k][b] = g[k]\n    return out',
                'wanted')],
    ('C','replay_over_seeds'): [
        ("PREDICTION = .285", 'choose one of'), ('RESULT = .64, .42', 'it is another'), ('RESULT = .285',
            'it raises'),
        ('RESULT = .487, .3', '95 % interval'), ('BROKEN = None', 'falls below .01'),
        ('BROKEN = 0', 'of eight')],
    ('E','weight'): [
        ('key = weight\ndef weight(f, p, G): return G*key(f, p, G)', 'the update is its mean'),
        ('def weight(f, p, G): return None', 'returns None')],
    ('E','maxrl_weight'): [
        ('def maxrl_weight(p, G): return (1-(1-p)**G)/p', 'groups without a right answer get 0'),
        ('def maxrl_weight(p, G): return (1-(1-p)**(G-2))/p', 'the answer itself'),
        ('def maxrl_weight(p, G): return 1/p', 'its limit')],
    ('E','grpo'): [
        ('def grpo(r): return r-r.mean(1, keepdim=True)', 'does not divide'),
        ('def grpo(r): return (r-r.mean())/(r.std()+1e-4)', 'wanted'),
        ('def grpo(r): return (r-r.mean(1, keepdim=True))/r.std(1, keepdim=True)', 'nan')],
    ('E','maxrl'): [
        ('def maxrl(r): return grpo(r)', 'this is GRPO'),
        ('def maxrl(r): return r/r.mean(1, keepdim=True).clamp(min=1e-9)-1', 'gets 0, not -1'),
        ('def maxrl(r): return r/r.mean(1, keepdim=True).clamp(min=1e-9)', 'does not subtract')],
    ('E','mean_objective'): [
        ('def passes(A): return A==0', 'swapped'),
        ('def mean_objective(x, A, mask): return x.nansum()/mask.numel()', 'padded width'),
        ('def mean_objective(x, A, mask): return (x*mask[A!=0]).sum()/mask.sum()', 'nan')],
    ('E','gspo'): [
        ('def gspo(n, o, A, m, eps=.2): return ((((n-o)*m).sum(-1)/m.sum(-1)).exp()*A).mean()',
            'nothing is clipped'),
        ('key = gspo\ndef gspo(n, o, A, m, eps=.2): return -key(n, o, A, m, eps)', 'other sign'),
        ('key = gspo\ndef gspo(n, o, A, m, eps=.2): return key(n.detach(), o, A, m, eps)', 'no gradient')],
    ('E','rungs_over_seeds'): [
        ("PREDICTION = 'better'", 'choose one of'), ('RESULT = .1, .01', 'it is another'),
        ("REASON = 'a guess'", 'eight words'),
        ('RESULT = RESULT[0], 3*RESULT[1]', '95 % interval')],
    ('E','ladder_report'): [
        ("REPORT = 'MaxRL is better'", 'no line `Difference'),
        ("REPORT = REPORT.replace('ahead', 'undecided')", 'by the rule MaxRL is ahead'),
        ("REPORT = REPORT.split('Smallest')[0]", 'no line `Smallest')],
}

def test_every_check_of_a_set_with_answers_meets_wrong_ones():
    assert {(k, name) for k in 'ABCE' for _,name in checks_of(k)}==set(WRONG)

@pytest.mark.parametrize('which,name', WRONG)
def test_a_check_finds_what_is_wrong(which, name, solved):
    for source,words in WRONG[which, name]:
        m = module(solved/which, (solved/which/'adapters.py').read_text()+'\n'+HEAD+source)
        assert words in (message(PAGE[f'test_{name}'], m) or 'nothing'), source

def change(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))

GUESS = 'Groups of 8 are ahead by about 0.05: fewer of them die, and a living one has more to teach.'
D_WRONG = {   # check: [(file, what is there, what stands in its place)], or what is done to the results
    'plan': [
        ('plan.md', GUESS, '…'),
        ('plan.md', '## Prediction', '## Guess'),
        ('plan.md', '## Question', '')],
    'registered': [
        ('plan.md', 'about 0.05', 'about 0.10'),
        ('plan.md', 'seeds 0 to 7', 'seeds 0 to 6'),
        lambda rows: [r[:3] for r in rows]],
    'results': [
        lambda rows: rows[:-2],
        lambda rows: rows+[['another', '0', '.5', rows[-1][-1]]],
        lambda rows: rows[:3]+[[*rows[3][:2], 'nan', rows[3][3]]]+rows[4:]],
    'again': [
        ('experiment.py', 'G=int(arm[-1])', 'G=int(arm[-1]), rate=2.1'),
        ('experiment.py', 'return train(seed, G=int(arm[-1]))', 'train(seed, G=int(arm[-1]))'),
        lambda rows: [[a, s, float(x)+.1 if a=='groups of 8' else x, p] for a,s,x,p in rows]],
    'report': [
        ('report.md', '± 0.040', '± 0.133'),
        ('report.md', '± 0.040', '± 0.048'),   # the standard deviation
        ('report.md', '+0.101', '-0.101'),
        ('report.md', 'Verdict: ahead', 'Verdict: undecided'),
        ('report.md', 'Difference:', 'It is about')],
}

@pytest.mark.parametrize('name', D_WRONG)
def test_a_check_of_the_experiment_finds_what_is_wrong(name, solved, tmp_path):
    for i,wrong in enumerate(D_WRONG[name]):
        d = Path(shutil.copytree(solved/'D', tmp_path/str(i)))
        if isinstance(wrong, tuple): change(d/wrong[0], *wrong[1:])
        else:
            rows = wrong(list(csv.reader((d/'results.csv').open())))
            with (d/'results.csv').open('w', newline='') as f: csv.writer(f).writerows(rows)
        why = message(PAGE[f'test_{name}'], module(d, (d/'experiment.py').read_text()))
        assert why and len(why)>20, wrong

def test_ten_points_of_the_experiment_come_from_a_reader(solved, tmp_path, monkeypatch):
    monkeypatch.setattr(classroom, 'run_checks', lambda *o: [None]*5)
    rows = grade(solved, ['D'])['D']
    assert score(rows)==(15, 25) and rows[-1][2].startswith('wait for a reader')
    text = (solved.parent/'ticked.md').read_text()
    (tmp_path/'seven.md').write_text(text.replace('[x]', '[ ]', 3), encoding='utf-16')
    assert score(grade(solved, ['D'], checklist=tmp_path/'seven.md')['D'])==(22, 25)
    with pytest.raises(ValueError, match='no such file'): grade(solved, ['D'], checklist='nowhere.md')
    for n in (0, 1, 9, 11, 20):
        (tmp_path/'other.md').write_text('- [x] good\n'*n, encoding='utf-8-sig')
        with pytest.raises(ValueError, match=f'{n} boxes; checklist.md has ten'):
            grade(solved, ['D'], checklist=tmp_path/'other.md')

def test_a_run_is_not_begun_without_a_plan_and_never_written_over(solved, tmp_path):
    make(tmp_path/'new', ['D'])
    d = tmp_path/'new'/'D'
    m = module(d, (d/'experiment.py').read_text())
    assert m.record(d)=='not yet: plan.md says nothing under Question, Arms, Prediction'
    assert not (d/'results.csv').exists()
    before = (solved/'D'/'results.csv').read_text()
    m = module(solved/'D', (solved/'D'/'experiment.py').read_text())
    assert 'give it another name' in m.record(solved/'D') and (solved/'D'/'results.csv').read_text()==before

# --- hand-ins that can't be graded as they are

REFUSED = {   # what stands in adapters.py: words of the sentence
    'def draw(:\n    pass':'line 1 is no Python',
    'x = "\x00"':'is no Python', b'\xff\xfe':'it is no text in UTF-8',
    'from grpo_nb.generation import sample_inverse_cdf as draw':
        'line 1 imports grpo_nb.generation, which holds',
    'import math, grpo_nb.parts.sampling as s':'which holds the solution',
}

@pytest.mark.parametrize('source', REFUSED, ids=range(len(REFUSED)))
def test_what_is_not_run_is_worth_nothing_and_a_sentence_says_why(source, mine):
    (mine/'A'/'adapters.py').write_bytes(source if isinstance(source, bytes) else source.encode())
    why = run_checks(mine/'A', 'A')
    assert REFUSED[source] in why[0] and why==[why[0]]*6, why

@pytest.mark.processes
def test_a_hand_in_that_does_nothing(mine):
    for source,words in (('x = 1/0', 'can not be imported: it raises Zero'), ('', 'no function `draw`')):
        (mine/'A'/'adapters.py').write_text(source)
        why = run_checks(mine/'A', 'A')
        assert words in why[0] and None not in why and len(why)==6

@pytest.mark.parametrize('seed', range(40))
def test_what_a_check_says_is_kept_and_one_that_ends_the_process_loses_no_other(seed, mine, monkeypatch):
    "A grader that plays a drawn plan: what each check says, and which of them end its process"
    rng = random.Random(seed)
    names = [name for _,name in checks_of('A')]
    says = {k:rng.choice([None, None, 'wrong']) for k in names}
    ends = {k for k in names if rng.random()<.3}
    imports = rng.choice([None]*5+['adapters.py can not be imported: x', 'never'])
    asked = []
    def play(file, which, number, limit, left):
        asked.append((file, which, number, limit, left))
        if imports=='never': return [None],'too late'
        if imports: return [None, imports],'it ends'
        done = next((i for i,k in enumerate(left) if k in ends), len(left))
        return [None, None, *(says[k]
            for k in left[:done])],f'ended by {left[done]}' if done<len(left) else ''
    monkeypatch.setattr(classroom, '_run_pytest', play)
    got = run_checks(mine/'A', 'A', rng.choice([None, 3]), 2.)
    whole = {'never':'adapters.py can not be imported: too late'}.get(imports, imports)
    assert got==([whole]*len(names) if imports else [f'ended by {k}' if k in ends else says[k]
        for k in names])
    assert all(o[:2]==(mine/'A'/'adapters.py', 'A') and o[2] in (0, 3) and o[3]==2. for o in asked)
    left = [o[4] for o in asked]   # each time those behind the one that ended it
    after = [names.index(k)+1 for k in names if k in ends and k!=names[-1]]
    assert left==([names] if imports else [names, *(names[i:] for i in after)])

@pytest.mark.parametrize('seed', range(30))
def test_what_is_returned_is_compared_number_by_number(seed):
    "A value that is near is right; else a mistake that gives it, nan, or both are told"
    rng = random.Random(seed)
    n = rng.choice([1, 2, 6, 7])
    want = [rng.choice([-1., 0., 1/3, 2.5]) for _ in range(n)]
    i,by = rng.randrange(n),rng.choice([0., 9e-5, 2e-4, 1., math.nan])
    got = [x+by*(k==i) for k,x in enumerate(want)]
    slip = rng.choice([None, got, [9.]*n, [9.]*(n+1)])
    form = rng.choice([list, torch.tensor, lambda x: torch.tensor(x, requires_grad=True)])
    def shown(x): return ', '.join(f'{round(v, 4):g}' for v in x[:6])+(', …' if n>6 else '')
    try: same(form(got), want, {'a slip':slip} if slip else None)
    except AssertionError as e:
        assert by not in (0., 9e-5)
        words = 'there is nan in what it returns' if by!=by else 'a slip' if slip==got else \
            f'it gives {shown(got)}; wanted {shown(want)}'
        assert str(e)==words
    else: assert by in (0., 9e-5)

@pytest.mark.parametrize('seed', range(10))
def test_points_and_what_was_lost_are_told_by_set(seed):
    rng = random.Random(seed)
    graded = {k:[(rng.randint(1, 9), f'check{i}', rng.choice([None, f'why {i}']))
        for i in range(rng.randint(1, 4))]
        for k in rng.sample('ABCDE', rng.randint(1, 3))}
    want,sums = [],[0, 0]
    for k,rows in graded.items():
        won,all_ = sum(p for p,_,why in rows if not why),sum(p for p,_,_ in rows)
        assert score(rows)==(won, all_)
        want += [f'{k}  {classroom.TITLES[k]}: {won} of {all_}', *(f'   -{p}  {n}: {why}' for p,n,why in rows
            if why)]
        sums = [sums[0]+won, sums[1]+all_]
    assert score_lines(graded)==want+[f'{sums[0]} of {sums[1]}']*(len(graded)>1)

def test_groups_written_by_hand_become_rows_of_one_size():
    from grpo_nb.advantages import group_advantages
    from grpo_nb.tiny_qwen import load_model
    tok = copy.deepcopy(load_model('tiny')[1])
    start = TemplateProcessing(single='<|im_start|> $A', special_tokens=[('<|im_start|>', 258)])
    tok.backend_tokenizer.post_processor = start   # as many tokenizers begin a text
    assert tok('1')['input_ids'][0]==258
    groups = [dict(prompt=[dict(role='user', content=q)], completions=texts, rewards=[1., 0., i/2])
        for i,(q,texts) in enumerate([('1+1=', ['2', 'it is 3', '']), ('20+20=', ['40', '4', '44 or so'])])]
    x = classroom.rollouts_from_text(tok, groups)
    assert x.completion_ids.shape[:2]==x.completion_mask.shape[:2]==x.rewards.shape==(2, 3)
    for b,g in enumerate(groups):
        for i,text in enumerate(g['completions']):
            ids = x.completion_ids[b,i][x.completion_mask[b,i]]
            assert ids.tolist()==tok(text+tok.eos_token, add_special_tokens=False)['input_ids']
            assert set(x.completion_ids[b,i][~x.completion_mask[b,i]].tolist())<={tok.pad_token_id}
            assert x.completion_mask[b,i].int().diff().max()<=0 if len(x.completion_mask[b,i])>1 else True
        asked = tok.apply_chat_template(g['prompt'], add_generation_prompt=True, tokenize=False)
        assert tok.decode(x.prompt_ids[b][x.prompt_mask[b]])==asked
    assert x.rewards.tolist()==[[1., 0., 0.], [1., 0.,
        .5]] and not x.old_logps.any() and x.pad_id==tok.pad_token_id
    assert x.old_logps.shape==x.completion_ids.shape and torch.equal(x.advantages,
        group_advantages(x.rewards))
    for bad,sizes in ((groups[:1]+[dict(groups[1], completions=['a'])], r'\[1, 3\]'), ([], r'\[\]')):
        with pytest.raises(ValueError,
            match=f'groups of {sizes} completions'): classroom.rollouts_from_text(tok, bad)

LOOP_AND_CRASH = '''
def noted(logits, ids, temperature): torch.futures.Future().wait()
def sample(scores, u, end, temperature): torch.utils.data._utils.worker.os._exit(7)
'''

@pytest.mark.processes
def test_an_endless_loop_and_a_crash_cost_a_check_each_and_the_others_go_on(mine):
    with (mine/'A'/'adapters.py').open('a') as f: f.write(LOOP_AND_CRASH)
    why = run_checks(mine/'A', 'A', limit=4)
    assert why[1]=='no answer within 4 s: does a loop never end?' and why[3]=='it ends Python itself, with 7'
    assert [why[i] for i in (0, 2, 4, 5)]==[None]*4

@pytest.mark.processes
def test_an_endless_loop_at_import_costs_the_set_and_returns(mine):
    with (mine/'A'/'adapters.py').open('a') as f: f.write('\nwhile True: pass\n')
    late = 'adapters.py can not be imported: no answer within 1 s: does a loop never end?'
    assert run_checks(mine/'A', 'A', limit=1)==[late]*6

def graders_page(monkeypatch, first):
    "The grader's own runs begin with this"
    page = handout('checks')
    for c in page['cells']:
        src = ''.join(c['source'])
        c['source'] = [re.sub(r'(def prepare_results\((?s:.*?)->None:\n)', rf'\1    {first}\n', src)]
    assert first in json.dumps(page)
    monkeypatch.setattr(classroom, 'handout', lambda which: page)

@pytest.mark.processes
def test_the_graders_own_time_is_not_the_students(mine, monkeypatch):
    graders_page(monkeypatch, 'import time; time.sleep(9)')
    assert run_checks(mine/'A', 'A', limit=8)==[None]*6

@pytest.mark.processes
def test_a_grader_that_fails_takes_no_points(mine, monkeypatch):
    graders_page(monkeypatch, 'raise MemoryError')
    with pytest.raises(RuntimeError, match='nothing is graded(?s:.*)MemoryError'): run_checks(mine/'A', 'A')

@pytest.mark.processes
def test_what_is_missing_is_named(mine, tmp_path):
    (mine/'A'/'adapters.py').unlink()
    shutil.rmtree(mine/'B')
    (mine/'D'/'results.csv').unlink()
    got = grade(mine, ['A', 'B', 'D'])
    assert score(got['A'])==score(got['B'])==(0, 25) and score(got['D'])==(4, 25)
    assert got['A'][0][2]=='adapters.py is missing' and got['B'][0][2]=='there is no folder B'
    assert got['D'][1][2]=='results.csv is missing'
    with pytest.raises(ValueError, match='none of the folders A, B, C, D'): grade(tmp_path/'nobody')

def test_the_command_makes_and_grades(tmp_path, solved, capsys):
    main(['class', 'make', str(tmp_path/'new'), '--sets', 'A'])
    assert capsys.readouterr().out==f"4 files in {tmp_path/'new'}: begin with README.md\n"
    main(['class', 'grade', str(solved), '--sets', 'A'])
    assert capsys.readouterr().out=='A  the sampler and the mask: 25 of 25\n'
    for words in (['make', str(tmp_path/'new')], ['grade', str(tmp_path)], ['praise', 'x'],
            ['make', str(tmp_path/'other'), '--checklist', 'mine.md']):
        with pytest.raises(SystemExit): main(['class', *words])
        err = capsys.readouterr().err
        assert err.startswith('grpo_nb class: ') and len(err.splitlines())==1, err
