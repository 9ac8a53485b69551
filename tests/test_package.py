"""The package as its users get it: built, installed alone, light to import, documented,
with imports that point down"""

import ast, csv, os, re, shutil, subprocess, sys, venv, zipfile, tarfile
from configparser import ConfigParser
from pathlib import Path
from graphlib import TopologicalSorter
import pytest
from packaging.version import Version

ROOT = Path(__file__).parent.parent
LIB = ROOT/'grpo_nb'
FILES = {'.'.join(f.relative_to(LIB).with_suffix('').parts):f for f in LIB.rglob('*.py') if f.stem[0]!='_'}
FILES |= {'.'.join(f.parent.relative_to(LIB).parts):f   # folders that are modules
    for f in LIB.glob('*/**/__init__.py') if f.read_text(encoding='utf-8').strip()}
MODULES = sorted(FILES)
# from the ground up
WINGS = 'parts','run','see','course','on_trl','research','teach','studies','dev','door'
ON_TRL = dict(grpo_with_replay_buffer='on_trl', recipes='door')   # chapters that stand on these wings
HEAVY = ['torch','trl','transformers','ipywidgets','matplotlib','pandas','nbdev','datasets']

def _python(code, python=sys.executable, **kw):
    return subprocess.run([python, '-c', code], capture_output=True, text=True, **kw)

def _wing(name):
    "The folder of a module; flat ones and `variants` are the course, and `cli` is the door to all of them."
    if name.startswith('variants.'): return 'course'
    return name.split('.')[0] if '.' in name else 'door' if name=='cli' else ON_TRL.get(name, 'course')

def _imports(name):
    "Our modules that `name` imports, at the top or inside functions"
    home = ['grpo_nb', *name.split('.')[:None if FILES[name].stem=='__init__' else -1]]
    for o in ast.walk(ast.parse(FILES[name].read_text(encoding='utf-8'))):
        if isinstance(o, ast.ImportFrom):
            base = home[:len(home)-o.level+1] if o.level else []
            full = '.'.join(base+[o.module]*bool(o.module))
            names = [full, *(f'{full}.{a.name}' for a in o.names)]
        elif isinstance(o, ast.Import): names = [a.name for a in o.names]
        else: continue
        yield from (k for n in names if (k := n.removeprefix('grpo_nb.')) in FILES and n!=k)

@pytest.mark.parametrize('name', MODULES)
def test_imports_point_down(name):
    "To wings below, or to rooms of the same wing"
    wrong = [o for o in set(_imports(name)) if WINGS.index(_wing(o))>WINGS.index(_wing(name))]
    assert wrong==[], f'{name} imports {wrong}'

@pytest.mark.parametrize('wing', WINGS)
def test_no_rooms_of_a_wing_import_each_other_in_a_circle(wing):
    rooms = {m:{o for o in _imports(m) if _wing(o)==wing and o!=m} for m in MODULES if _wing(m)==wing}
    assert len([*TopologicalSorter(rooms).static_order()])==len(rooms)>0

def _reached(name):
    "Our modules that come with `name`, itself among them"
    found,left = set(),[name]
    while left:
        o = left.pop()
        if o not in found: left += _imports(o)
        found.add(o)
    return found

@pytest.mark.parametrize('name', ['see.readers','on_trl.record'])
def test_whoever_reads_or_writes_a_record_brings_no_sampler_and_no_settings_of_a_run(name):
    there = _reached(name)
    assert {'run.record','parts.groups'}<=there
    assert not {'parts.fast_path','parts.sampling','parts.loss_inputs','run.config','run.state'}&there

def test_only_the_door_and_the_maintainers_import_studies():
    may = 'research','studies','dev','door'
    wrong = [m for m in MODULES for o in _imports(m) if _wing(o)=='research' and _wing(m) not in may]
    assert wrong==[]

# what is imported: what is installed, where the names differ
NAMES = dict(yaml='pyyaml', PIL='pillow', bs4='beautifulsoup4', fontTools='fonttools', IPython='ipython')
NOT_OURS = {'deepspeed','vllm'}   # imported only where the user's own run has them

def _declared(ini):
    "{field: packages} of the requirements in the text of settings.ini"
    c = ConfigParser(delimiters=['='])
    c.read_string(ini)
    fields = {k:v.split() for k,v in c['DEFAULT'].items() if k.endswith('requirements')}
    return {k:{re.match(r'[\w-]+', o)[0].replace('_', '-') for o in v} for k,v in fields.items()}

def _packages(source):
    "(other packages that it imports, those of them that its import needs)"
    def named(o):
        if isinstance(o, ast.Import): return [a.name for a in o.names]
        return [o.module] if isinstance(o, ast.ImportFrom) and not o.level else []
    def found(nodes):
        names = {n.split('.')[0] for o in nodes for n in named(o)}-{'grpo_nb'}-sys.stdlib_module_names
        return {NAMES.get(o, o).replace('_', '-') for o in names}
    tree = ast.parse(source)
    return found(ast.walk(tree)),found(tree.body)

def _undeclared(name, source, declared):
    "What a module imports and no requirement names: an extra will do inside functions, and for maintainers"
    every,at_once = _packages(source)
    mine = _wing(name)=='dev'
    some = set().union(*(v for k,v in declared.items() if mine or k!='dev_requirements'))
    return (every-some-NOT_OURS)|(set() if mine else at_once-declared['requirements'])

# names that fastcore 1 and 2 both have: nbdev 2 asks for the one, and who installs the wheel gets the other
FASTCORE = {'basics.groupby','basics.partialler','basics.patch','basics.str2bool','docments.docments'}

def _of_fastcore(source):
    "`module.name` of everything that is imported from fastcore"
    for o in ast.walk(ast.parse(source)):
        if isinstance(o, ast.ImportFrom) and (o.module or '').startswith('fastcore'):
            yield from (f"{o.module.removeprefix('fastcore.')}.{a.name}" for a in o.names)

@pytest.mark.parametrize('name', [m for m in MODULES if _wing(m)!='dev'])
def test_what_comes_from_fastcore_is_in_its_first_and_second_edition(name):
    assert {*_of_fastcore(FILES[name].read_text(encoding='utf-8'))}<=FASTCORE

DECLARED = _declared((ROOT/'settings.ini').read_text(encoding='utf-8'))

@pytest.mark.parametrize('name', MODULES)
def test_every_package_that_is_imported_is_declared(name):
    assert _undeclared(name, FILES[name].read_text(encoding='utf-8'), DECLARED)==set()

def test_every_requirement_is_imported():
    used = set().union(*(_packages(f.read_text(encoding='utf-8'))[0] for f in FILES.values()))
    assert DECLARED['requirements']-used==set()

def _settings():
    c = ConfigParser(delimiters=['='])
    c.read(ROOT/'settings.ini', encoding='utf-8')
    return c['DEFAULT']

def test_what_is_called_tested_is_what_the_table_of_runs_holds():
    "`tested.txt` is the row of that name, and the newest that was tried is that of a row that passed"
    from grpo_nb.parts.versions import NEWEST_TESTED
    with open(ROOT/'nbs/results/versions.csv', encoding='utf-8', newline='') as f:
        rows = {o['combination']:o for o in csv.DictReader(f)}
    text = (ROOT/'tested.txt').read_text(encoding='utf-8')
    pins = dict(re.findall(r'^([\w-]+)==([\d.]+?)(?:\.\*)?$', text, re.M))
    assert {*pins}=={*NEWEST_TESTED} and all(rows['tested'][k].startswith(v) for k,v in pins.items())
    newest = {k:max(Version(o[k]).release[:2] for o in rows.values() if o['failed']=='0')
        for k in NEWEST_TESTED}
    assert newest=={k:Version(v).release for k,v in NEWEST_TESTED.items()}

def test_the_oldest_versions_are_the_lower_bound_of_every_requirement():
    "uv takes the lowest of what it is given: each requirement, and each package that the tests need"
    from versions import TESTERS, with_testers
    given = with_testers()
    assert given[:-len(TESTERS)]==_settings()['requirements'].split()
    assert sorted(re.split('[=>]', o)[0] for o in given[-len(TESTERS):])==sorted(TESTERS)
    assert all(re.search('[=>]=', o) for o in given)

@pytest.mark.parametrize('names,may', [(['see.plotting'], {'matplotlib'}), (['cli','dev.site'], set())])
def test_modules_import_only_the_heavy_packages_of_their_room(names, may):
    assert {*names}<={*MODULES}
    imports = '; '.join(f'import grpo_nb.{o}' for o in names)
    r = _python(f'import sys; {imports}; print(*[o for o in {HEAVY} if o in sys.modules])')
    assert r.returncode==0, r.stderr
    assert set(r.stdout.split()) <= may

def test_the_parts_of_a_step_import_torch_alone(fresh):
    line = re.search('^the parts: (.*)', fresh.stdout, re.M)
    assert line and line[1].split()==['torch'], fresh.stdout+fresh.stderr[-3000:]

def test_importing_the_chapters_trainer_loads_no_server_no_database_and_no_tables(fresh):
    "The monitor of a run brings them, when a run has one."
    line = re.search("^the chapters' trainer: (.*)", fresh.stdout, re.M)
    assert line and line[1].split()==['grpo_nb.trainer'], fresh.stdout+fresh.stderr[-3000:]

def _others():
    "The statements by which our modules import those of others, at the top."
    for f in FILES.values():
        for o in ast.parse(f.read_text(encoding='utf-8')).body:
            if not isinstance(o, (ast.Import, ast.ImportFrom)): continue
            names = [o.module] if isinstance(o, ast.ImportFrom) else [a.name for a in o.names]
            ours = getattr(o, 'level', 0) or any(k.split('.')[0]=='grpo_nb' for k in names)
            if not ours: yield ast.unparse(o)

# What a few modules bring, each in a fork that has imported nothing else of ours
FORKS = f"""
import os, sys
def forked(name, modules, *seen):
    there = set(sys.modules)
    if pid := os.fork():
        os.waitpid(pid, 0)
        return
    import importlib
    for o in modules: importlib.import_module('grpo_nb.'+o)
    new = [o for o in sys.modules if o in seen or o not in there and o in
        ('http.server','sqlite3','pandas','scipy.stats','matplotlib','grpo_nb.trainer')
        or o.startswith('grpo_nb.see.')]
    print(name, *new, flush=True)
    os._exit(0)
import torch
forked('the parts:', ['parts.tensors','advantages','loss'], *{HEAVY})
import transformers, huggingface_hub.utils
# what others load first is theirs: a newer lock file of the hub's brings sqlite3
forked("the chapters' trainer:", ['trainer'])
"""

# What a library must leave alone. Whoever is told of something keeps no list that could be read: it is noted.
STATE = """
import atexit, codecs, collections, faulthandler, locale, logging, os, random, signal, sys, threading
import warnings
told = []
def noting(module, name):
    f = getattr(module, name)
    def noted(*args, **kw):
        told.append(f'{name}{args}')
        return f(*args, **kw)
    setattr(module, name, noted)
for o in ((codecs, 'register_error'), (codecs, 'register'), (atexit, 'register'), (os, 'register_at_fork')):
    noting(*o)
import datasets, huggingface_hub, ipywidgets, matplotlib, numpy, pandas, torch, transformers
def state():
    def of(o): return o.level,[*o.handlers],[*o.filters],o.propagate,o.disabled
    logs = {k:of(o) for k,o in logging.root.manager.loggerDict.items() if isinstance(o, logging.Logger)}
    return dict(told=[*told], signals={o:signal.getsignal(o) for o in signal.valid_signals()},
        logs={k:o for k,o in logs.items() if k.split('.')[0]!='grpo_nb'}, root=of(logging.root),
        logging_disabled=logging.root.manager.disable, logger_class=logging.getLoggerClass(),
        warnings=[*warnings.filters], show=warnings.showwarning, environ=dict(os.environ), cwd=os.getcwd(),
        path=[*sys.path], hooks=(sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook),
        streams=[(o, o.errors, o.encoding) for o in (sys.stdin, sys.stdout, sys.stderr)],
        limits=(sys.getrecursionlimit(), sys.getswitchinterval(), faulthandler.is_enabled()),
        locale=locale.setlocale(locale.LC_ALL),
        transformers=[f() for f in (transformers.logging.get_verbosity,
            transformers.logging.is_progress_bar_enabled)],
        datasets=[f() for f in (datasets.logging.get_verbosity, datasets.are_progress_bars_disabled,
            datasets.is_caching_enabled)], hub=huggingface_hub.utils.are_progress_bars_disabled(),
        widgets=ipywidgets.Widget._widget_construction_callback, rc=matplotlib.rcParams.copy(),
        torch=[f() for f in (torch.get_default_dtype, torch.get_num_threads, torch.get_num_interop_threads,
            torch.is_grad_enabled, torch.are_deterministic_algorithms_enabled, torch.get_default_device)],
        random=(random.getstate(), repr(numpy.random.get_state()), torch.get_rng_state().tolist()),
        numpy=(numpy.geterr(), numpy.get_printoptions()),
        pandas=repr(pandas.describe_option(_print_desc=False)))
"""

@pytest.fixture(scope='module')
def fresh(tmp_path_factory):
    """A process of its own, in somebody else's nbdev project, that imports the trainer on TRL, makes its
    config, then imports all the rest; TRL's source reads there as after a rename. What others bring is
    imported before, and what changed after that is said"""
    home = tmp_path_factory.mktemp('other_project')
    (home/'settings.ini').touch()
    return _python(f"""{FORKS}{STATE}
import importlib, inspect
for o in {sorted({*_others()})}: exec(o, {{}})
before = state()
real,theirs = inspect.getsource,'trl.trainer.grpo_trainer'
def moved(o): return real(o).replace('self.loss_type', 'kind') if o is sys.modules.get(theirs) else real(o)
inspect.getsource = moved
import grpo_nb.grpo_with_replay_buffer as M
print(*[o for o in sys.modules if o.startswith('grpo_nb.') and sys.modules[o].__doc__])
M.GRPOWithReplayBufferConfig(output_dir={str(tmp_path_factory.mktemp('fresh'))!r}, use_cpu=True, bf16=False)
print('config made')
inspect.getsource = real
for o in {MODULES}:
    m = importlib.import_module('grpo_nb.'+o)
    for k in m.__all__: getattr(m, k)
print('all imported')
for k,o in state().items():
    if o!=before[k]: print(f'changed: {{k}}: {{before[k]!s:.1000}} -> {{o!s:.1000}}')
""", cwd=home)

def test_importing_the_trainer_leaves_out_the_record_the_doctor_and_the_other_trainer(fresh):
    "They come with their use."
    rooms = {o.removeprefix('grpo_nb.') for o in re.search('^grpo_nb.*', fresh.stdout, re.M)[0].split()}
    assert 'grpo_with_replay_buffer' in rooms, fresh.stderr[-3000:]
    assert not {o for o in rooms if o.startswith('see.')}
    assert not {'on_trl.record','generation','trainer','loss'}&rooms

def test_a_rename_within_trl_refuses_no_config(fresh):
    "Nothing is read from the source of TRL's trainer, where names may change with any release."
    assert 'config made' in fresh.stdout, fresh.stderr[-3000:]

def test_every_module_imports_fresh_and_has_what_it_promises(fresh):
    assert fresh.returncode==0 and 'all imported' in fresh.stdout, fresh.stderr[-3000:]

def test_importing_every_module_changes_nothing_outside_the_library(fresh):
    assert 'all imported' in fresh.stdout, fresh.stderr[-3000:]
    assert 'changed: ' not in fresh.stdout, fresh.stdout[fresh.stdout.index('changed: '):]

@pytest.fixture(scope='module')
def built(tmp_path_factory):
    "An sdist, and a wheel built from it, as `build` does unasked; weekly it fetches its setuptools, too"
    pytest.importorskip('build', reason='no build: pip install -e .[dev]')
    out = tmp_path_factory.mktemp('dist')
    r = subprocess.run([sys.executable, '-m', 'build', '--no-isolation', '--outdir', str(out), str(ROOT)],
                       capture_output=True, text=True)
    assert r.returncode==0, (r.stdout+r.stderr)[-3000:]
    return next(out.glob('*.whl')),next(out.glob('*.tar.gz'))

def test_every_link_and_picture_of_the_package_page_is_absolute_and_there(built):
    "Pages by their addresses on the site, which have no chapter numbers; pictures as they lie on GitHub"
    with zipfile.ZipFile(built[0]) as z:
        text = z.read(next(o for o in z.namelist() if o.endswith('.dist-info/METADATA'))).decode()
    links = re.findall(r'\]\(([^)\s]+)\)|\b(?:src|href)="([^"]+)"', text.split('\n\n', 1)[1])
    links = {a or b for a,b in links}
    assert [o for o in links if not o.startswith(('https://','#'))]==[]
    own,raw = 'https://grpo-nb.github.io/grpo_nb/','https://raw.githubusercontent.com/grpo-nb/grpo_nb/main/'
    there = [f.relative_to(ROOT/'nbs') for k in ('ipynb','qmd') for f in ROOT.glob(f'nbs/**/*.{k}')]
    there = {str(f.with_name(re.sub(r'^\d+[a-zA-Z0-9]*_', '', f.stem)+'.html')) for f in there}
    pages = {o.removeprefix(own).split('#')[0] for o in links if o.startswith(own)}
    pictures = [o.removeprefix(raw) for o in links if o.startswith(raw)]
    assert 'real_run.html' in pages and pages<=there|{'live/index.html'}
    assert 'nbs/images/demo.gif' in pictures and all((ROOT/o).exists() for o in pictures)

@pytest.mark.processes
def test_wheel_and_sdist_hold_the_modules_and_the_shipped_model(built):
    wheel,sdist = built
    whl = set(zipfile.ZipFile(wheel).namelist())
    tar = {o.split('/',1)[1] for o in tarfile.open(sdist).getnames() if '/' in o}
    assert not [o for o in tar if o.startswith('tests/')]   # without their helpers and runs they'd fail
    assets = [f for f in ROOT.glob('grpo_nb/assets/**/*') if f.is_file()]
    shipped = [f for m,f in FILES.items() if _wing(m) not in ('dev','studies')]
    want = {str(f.relative_to(ROOT)) for f in [*shipped, *assets]}
    handouts = [f.name for f in ROOT.glob('nbs/teach/?_*.ipynb')]
    assert len(handouts)==5
    assert {f'grpo_nb/assets/teach/{o}' for o in [*handouts, 'checks.ipynb']}<=whl
    assert any('assets/tiny_qwen' in o
               for o in want), ('the shipped weights are not in grpo_nb/assets/tiny_qwen')
    assert want<=whl and want|{'settings.ini','setup.py','README.md','LICENSE'}<=tar, (want-whl, want-tar)
    if shutil.which('npm'): assert {'grpo_nb/assets/jax/index.js', 'grpo_nb/assets/jax/LICENSE'}<=whl
    assert not [o for o in whl if o.startswith(('tests/','nbs/','grpo_nb/dev/','grpo_nb/studies/'))]
    assert wheel.stat().st_size<4.5e6

@pytest.mark.parametrize('kind', ['wheel', pytest.param('sdist', marks=pytest.mark.slow)])
@pytest.mark.processes
def test_it_works_installed_alone(built, tmp_path, kind):
    """In a fresh environment that borrows this one's other packages, far from the clone; the wheel was built
    from the sdist, so that what works here was in both"""
    alone = {k:v for k,v in os.environ.items() if k!='PYTHONPATH'}   # it may name the checkout
    env = tmp_path/'env'
    venv.create(env, with_pip=False, system_site_packages=False)
    py = env/'bin'/'python'
    r = subprocess.run([sys.executable, '-m', 'pip', '--python', py, 'install', '-q', '--no-deps',
                        '--no-compile', str(built[kind == 'sdist'])], capture_output=True, text=True,
                       env=alone)
    assert r.returncode==0, r.stderr[-2000:]
    here = next(p for p in sys.path if p.endswith('site-packages'))
    site = Path(subprocess.run([py, '-c', 'import site; print(site.getsitepackages()[0])'],
                               capture_output=True, text=True, env=alone).stdout.strip())
    (site/'borrowed.pth').write_text(here+'\n')
    options = dict(capture_output=True, text=True, cwd=tmp_path, env=alone)
    code = f"""import grpo_nb
from grpo_nb.tiny_qwen import load_model
assert grpo_nb.__file__.startswith({str(site)!r})
assert 1e4<sum(p.numel() for p in load_model()[0].parameters())<2e6"""
    r = subprocess.run([py, '-c', code], **options)
    assert r.returncode==0, r.stderr[-2000:]
    if kind=='sdist':   # the tests of a room, far from the clone; those that ask trl or read notebooks don't
        shutil.copy(ROOT/'tests'/'test_advantages.py', tmp_path)
        words = ['-q', '-p', 'no:cacheprovider', '-k', 'not trl and not exercise', 'test_advantages.py']
        r = subprocess.run([py, '-m', 'pytest', *words], **options)
        assert r.returncode==0, r.stdout[-3000:]
    r = subprocess.run([env/'bin'/'grpo_nb', '--help'], **options)
    assert r.returncode==0 and 'demo' in r.stdout, r.stderr[-2000:]
    r = subprocess.run([env/'bin'/'grpo_nb', 'study', 'replay'], **options)
    assert r.returncode==2 and 'comes with a clone' in r.stderr, r.stderr[-2000:]
