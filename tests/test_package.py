"""The package as its users get it: built, installed alone, light to import, documented,
with imports that point down"""

import ast, json, os, re, subprocess, sys, venv, zipfile, tarfile
from pathlib import Path
from textwrap import dedent
import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(f.stem for f in ROOT.glob('grpo_nb/*.py') if f.stem[0]!='_')
HOUSE = [
    'workshop',
    'course',
    'reference',
]  # from the ground up; which of them a module belongs to is read from its notebook's folder
FLOORS = dict(  # inside each; a module imports from the floors below its own
    workshop=[
        {'core', 'tested'},
        {'plotting', 'stats', 'ratios', 'signals', 'blocks', 'fast_qwen', 'findings', 'masters', 'store',
            'epochs'},
        {
            'widgets',
            'sampling',
            'checkpoints',
            'checks',
            'records',
            'problems',
            'reward_loading',
            'distributed',
            'packing',
            'treatment',
            'batches',
        },
        {'view', 'rollouts', 'answers', 'loss_inputs'},
        {'logs', 'report', 'watch'},
        {'small_world', 'trl_rows', 'trl_checks', 'study', 'stacked', 'plans', 'launch', 'options',
            'run_settings', 'equal_tokens', 'run_end', 'recipe_data'},
        {'trl_resume', 'trl_settings', 'harness', 'families', 'run_record', 'run_checkpoints',
            'recipe_settings'},
        {'trl_record', 'run_watch'},
        {'trl_shared'},
    ],
    course=[
        {'tasks', 'tiny_qwen'},
        {'generation'},
        {'rewards', 'advantages', 'kl', 'dialects'},
        {'loss', 'replay', 'evaluation'},
        {'methods', 'records', 'distributed'},
        {'trainer', 'grpo_with_replay_buffer', 'batch_size'},
        {'inspector', 'diagnose', 'report', 'contest', 'off_policy'},
        {'bakeoff'},
        {'demo'},
        {'recipes'},
    ],
    reference=[{'speed', 'pages', 'stacked_runs'}, {'dev', 'replay_study'}, {'cli'}],
)
HEAVY = ['torch','trl','transformers','ipywidgets','matplotlib','pandas','nbdev','datasets']

def _python(code, python=sys.executable, **kw):
    return subprocess.run([python, '-c', code], capture_output=True, text=True, **kw)

def _place(name):
    "Where a module's notebook stands: in the course, the workshop or the reference"
    at = re.search(r'File to edit: \.\./nbs/(?:(\w+)/)?\w+\.ipynb',
                   (ROOT / 'grpo_nb' / f'{name}.py').read_text(encoding='utf-8'))
    return at[1] or 'course'

def _floor(name):
    "(part of the house, floor in it); floor -1 for a room that no list names"
    place = _place(name)
    return HOUSE.index(place),next((i for i,o in enumerate(FLOORS[place]) if name in o), -1)

def _imports(name):
    "Our modules that `name` imports, at the top or inside functions"
    for o in ast.walk(ast.parse((ROOT/'grpo_nb'/f'{name}.py').read_text(encoding='utf-8'))):
        if isinstance(o, ast.ImportFrom) and (o.level==1 or (o.module or '').startswith('grpo_nb')):
            mod = (o.module or '').removeprefix('grpo_nb').strip('.')
            yield from ([mod] if mod else [a.name for a in o.names])
        elif isinstance(o, ast.Import):
            yield from (a.name.removeprefix('grpo_nb.') for a in o.names if a.name.startswith('grpo_nb.'))


def test_every_module_has_a_floor():
    assert [f'{m}, in {_place(m)}' for m in MODULES if _floor(m)[1]<0]==[]

@pytest.mark.parametrize('name', MODULES)
def test_imports_point_down(name):
    "The course stands on the workshop, the reference on both; inside each, a floor on those below"
    wrong = [f'{o} ({_place(o)})' for o in set(_imports(name)) & set(MODULES) if not _floor(o)<_floor(name)]
    assert wrong==[], f'{name} ({_place(name)}, floor {_floor(name)[1]}) imports {wrong}'

def test_importing_the_package_imports_nothing_heavy():
    r = _python(f'import sys, grpo_nb; print([o for o in {HEAVY} if o in sys.modules], grpo_nb.__version__)')
    assert r.returncode==0, r.stderr
    assert r.stdout.startswith('[]'), r.stdout

@pytest.mark.parametrize('names,may', [
    (['core','advantages','loss'], {'torch'}), (['plotting'], {'matplotlib'}), (['cli','dev'], set())])
def test_modules_import_only_the_heavy_packages_of_their_room(names, may):
    names = [o for o in names if o in MODULES]
    imports = '; '.join(f'import grpo_nb.{o}' for o in names)
    r = _python(f'import sys; {imports}; print(*[o for o in {HEAVY} if o in sys.modules])')
    assert names and r.returncode==0, r.stderr
    assert set(r.stdout.split()) <= may

def test_every_module_imports_fresh_and_has_what_it_promises():
    code = ';'.join(
        ['import importlib']
        + [f"m=importlib.import_module('grpo_nb.{o}');[getattr(m,k) for k in m.__all__]" for o in MODULES]
    )
    r = _python(code, cwd='/')
    assert r.returncode==0, r.stderr[-3000:]

def _public(name):
    "Exported functions and classes of a module, as (qualified name, node, source lines)"
    src = (ROOT/'grpo_nb'/f'{name}.py').read_text(encoding='utf-8')
    for o in ast.parse(src).body:
        if isinstance(o, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and o.name[0] != '_':
            yield o.name, o, src.splitlines()


def _undocumented(name):
    "What is missing: a docstring, or a docment or type at a parameter"
    for q,o,lines in _public(name):
        if not ast.get_docstring(o): yield f'{q}: no docstring'
        if isinstance(o, ast.ClassDef): continue
        args = [*o.args.posonlyargs, *o.args.args, *o.args.kwonlyargs,
                *filter(None, [o.args.vararg, o.args.kwarg])]
        for a in args:
            if a.arg in ('self','cls'): continue
            if not (o.lineno < a.lineno and '#' in lines[a.lineno - 1]) and not ast.get_docstring(o).count(
                f'`{a.arg}`'
            ):
                yield f'{q}: `{a.arg}` has no docment'


@pytest.mark.parametrize('name', MODULES)
def test_everything_exported_is_documented(name):
    "A docstring for each, a word for each parameter"
    assert '\n'.join(_undocumented(name))==''

def _signatures(src):
    "Public functions and methods of a module's source, and the `__init__` of its classes, by qualified name"
    body,functions = ast.parse(src).body,(ast.FunctionDef, ast.AsyncFunctionDef)
    exported = next(ast.literal_eval(o.value) for o in body
                    if isinstance(o, ast.Assign) and getattr(o.targets[0], 'id', '')=='__all__')
    for o in body:
        patched = any('patch' in ast.unparse(d) for d in getattr(o, 'decorator_list', ()))
        if isinstance(o, functions) and (o.name in exported or patched and o.name[0]!='_'): yield o.name, o
        if isinstance(o, ast.ClassDef) and o.name in exported:
            yield from ((f'{o.name}.{m.name}', m) for m in o.body if isinstance(m, functions)
                        and (m.name[0]!='_' or m.name in ('__init__','__call__')))

def _untyped(src):
    "What has no type: a parameter, or what comes back"
    for q,o in _signatures(src):
        a = o.args
        for p in (*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, [a.vararg, a.kwarg])):
            if not p.annotation and p.arg not in ('self','cls'): yield f'{q}: `{p.arg}` has no type'
        if not o.returns and o.name!='__init__': yield f'{q}: no return type'

@pytest.mark.parametrize('name', MODULES)
def test_everything_public_has_types(name):
    assert [*_untyped((ROOT/'grpo_nb'/f'{name}.py').read_text(encoding='utf-8'))]==[]

def test_a_missing_type_is_seen():
    src = dedent("""
        __all__ = ['f', 'C']
        def f(a, *b:int, c=0, **d)->int:
            def inner(x): pass
        def hidden(x): pass
        class C:
            def __init__(self, x): pass
            def m(self, y:int): pass
            def _n(self, z): pass
        @patch
        def p(self:C, w): pass
        """)
    assert [*_untyped(src)]==['f: `a` has no type', 'f: `c` has no type', 'f: `d` has no type',
        'C.__init__: `x` has no type', 'C.m: no return type', 'p: `w` has no type', 'p: no return type']

def _code():
    "(place, line) of all code in notebooks and tests"
    for f in sorted(ROOT.glob('nbs/**/*.ipynb')):
        if '.ipynb_checkpoints' in f.parts: continue
        for i,c in enumerate(json.loads(f.read_text(encoding='utf-8'))['cells']):
            if c['cell_type']=='code':
                yield from ((f'{f.name}, cell {i}', o) for o in ''.join(c['source']).splitlines())
    for f in sorted(ROOT.glob('tests/*.py')):
        yield from ((f'{f.name}:{n}', o) for n,o in enumerate(f.read_text(encoding='utf-8').splitlines(), 1))

def test_no_line_of_code_is_wider_than_110_columns():
    assert {where:o for where,o in _code() if len(o)>110}=={}

@pytest.fixture(scope='module')
def built(tmp_path_factory):
    "An sdist, and a wheel built from it, as `build` does unasked"
    pytest.importorskip('build', reason='no build: pip install -e .[dev]')
    out = tmp_path_factory.mktemp('dist')
    r = subprocess.run([sys.executable, '-m', 'build', '--outdir', str(out), str(ROOT)],
                       capture_output=True, text=True,
                       env={**os.environ, 'PIP_DISABLE_PIP_VERSION_CHECK': '1'})
    if r.returncode and re.search(
        'ConnectionError|NewConnectionError|Temporary failure|No matching distribution found for setuptools',
        r.stdout + r.stderr,
    ):
        pytest.skip('no package registry to fetch setuptools from')
    assert r.returncode==0, (r.stdout+r.stderr)[-3000:]
    return next(out.glob('*.whl')),next(out.glob('*.tar.gz'))

def test_wheel_and_sdist_hold_the_modules_and_the_shipped_model(built):
    wheel,sdist = built
    whl = set(zipfile.ZipFile(wheel).namelist())
    tar = {o.split('/',1)[1] for o in tarfile.open(sdist).getnames() if '/' in o}
    want = {f'grpo_nb/{o}.py' for o in MODULES} | {str(f.relative_to(ROOT))
                                                   for f in ROOT.glob('grpo_nb/assets/**/*') if f.is_file()}
    assert any('assets/tiny_qwen' in o
               for o in want), ('the shipped weights are not in grpo_nb/assets/tiny_qwen')
    assert want<=whl and want|{'settings.ini','setup.py','README.md','LICENSE'}<=tar, (want-whl, want-tar)
    assert not [o for o in whl if o.startswith(('tests/','nbs/'))]
    assert wheel.stat().st_size<6e6

@pytest.mark.parametrize('kind', ['wheel', pytest.param('sdist', marks=pytest.mark.slow)])
def test_it_works_installed_alone(built, tmp_path, kind):
    """In a fresh environment that borrows this one's other packages, far from the clone; the wheel was built
    from the sdist, so that what works here was in both"""
    env = tmp_path/'env'
    venv.create(env, with_pip=True, system_site_packages=False)
    py = env/'bin'/'python'
    r = subprocess.run([py, '-m', 'pip', 'install', '-q', '--no-deps', str(built[kind == 'sdist'])],
                       capture_output=True, text=True)
    assert r.returncode==0, r.stderr[-2000:]
    here = next(p for p in sys.path if p.endswith('site-packages'))
    site = Path(subprocess.run([py, '-c', 'import site; print(site.getsitepackages()[0])'],
                               capture_output=True, text=True).stdout.strip())
    (site/'borrowed.pth').write_text(here+'\n')
    code = ('import grpo_nb, pathlib; print(pathlib.Path(grpo_nb.__file__).parent); '
            'from grpo_nb.tiny_qwen import load_model; m,t = load_model(); '
            'print(sum(p.numel() for p in m.parameters()))')
    r = _python(code, str(py), cwd=str(tmp_path))
    assert r.returncode==0, r.stderr[-3000:]
    where,n = r.stdout.split()[-2:]
    assert where.startswith(str(site)) and 1e4<int(n)<2e6
    if (
        kind == 'wheel'
    ):  # the tests of two rooms, far from the clone; those that ask trl or read notebooks stay at home
        for o in ('test_advantages.py', 'test_kl.py'):
            (tmp_path / o).write_text((ROOT / 'tests' / o).read_text(encoding='utf-8'), encoding='utf-8')
        r = subprocess.run([py, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-k',
                            'not trl and not exercise', 'test_advantages.py', 'test_kl.py'],
                           capture_output=True, text=True, cwd=tmp_path)
        assert r.returncode==0, r.stdout[-3000:]
    r = subprocess.run([env/'bin'/'grpo_nb', '--help'], capture_output=True, text=True, cwd=tmp_path)
    assert r.returncode==0 and 'demo' in r.stdout, r.stderr[-2000:]
