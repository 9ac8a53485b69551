"""What several tests need: the built site, a Chromium that is on the machine,
a JupyterLab on a copy of the project."""

import asyncio, contextlib, functools, gc, http.server, json, os, re, secrets, shutil, socket, subprocess
import sys, tempfile, threading, time
import urllib.request
from pathlib import Path
from unittest.mock import patch
import pytest

os.environ.pop('PYTHONDONTWRITEBYTECODE', None)   # else each process compiles its imports again
os.environ.setdefault('OMP_NUM_THREADS', '1')   # two threads on two busy cores are many times slower than one
from another import elsewhere
from browsing import CHROME, PATIENCE, QUIET, patient
ROOT = Path(__file__).parent.parent
sys.path += [str(ROOT/'benchmarks'), str(ROOT/'nbs'/'scale')]   # whose scripts are tested too

def pytest_addoption(parser):
    parser.addoption('--slow', action='store_true', help='run the slow tests too: benchmarks and long runs')
    parser.addoption('--weekly', action='store_true', help='run whole grids, and what seldom breaks')
    parser.addoption('--studies', action='store_true', help='run the tests of the studies too')
    parser.addoption('--kills', type=int, default=5, help='how often the killed run is killed')


# The files that take longest, to be begun first: one left for the end keeps one core waiting.
LONGEST = 'docs live class lab package road trl_stored trl_resume trainer trl_record'.split()

AROUND = {'browser', 'lab', 'notebook', 'site'}   # fixtures that hold a browser, a server or a built site

def pytest_configure(config):
    config.addinivalue_line('markers', 'slow: takes long, and waits for `--slow`')
    config.addinivalue_line('markers', 'weekly: a row of a grid, or what seldom breaks: waits for `--weekly`')
    config.addinivalue_line('markers', 'studies: a study, of no concern to users: waits for `--studies`')
    config.addinivalue_line('markers', 'points: of a check of a hand-in, on the page of checks')
    config.addinivalue_line('markers', 'flaky: of pytest-rerunfailures, absent in a smaller environment')
    config.addinivalue_line('markers', 'processes: starts other processes; tried once more if it fails')
    config.option.loadscopereorder = False   # else xdist begins with the files of most tests

def pytest_collection_modifyitems(config, items):
    rank = {f'test_{o}':i for i,o in enumerate(LONGEST)}
    items.sort(key=lambda o: rank.get(o.path.stem, len(rank)))   # within a file as it was
    for o in items:   # a browser or another process may fail by chance; what is computed here may not
        around = AROUND & {*o.fixturenames} or o.get_closest_marker('processes')
        if around: o.add_marker(pytest.mark.flaky(reruns=1))
    for word in ('slow','studies','weekly'):
        if config.getoption(f'--{word}'): continue
        skip = pytest.mark.skip(reason=f'{word}: run it with --{word}')
        for o in items:
            if o.get_closest_marker(word): o.add_marker(skip)

@pytest.hookimpl(wrapper=True)
def pytest_collection():
    "Every end of a training collects garbage: what the imports made is none, and need not be walked again."
    gc.disable()
    try: return (yield)
    finally:
        gc.freeze()
        gc.enable()

@pytest.fixture(autouse=True, scope='module')
def nothing_old_to_walk():
    "And what earlier files left alive, which would make a training of .05 s one of .8 s in the last files."
    gc.collect()
    gc.freeze()

@pytest.fixture(autouse=True, scope='session')
def nothing_left_behind(tmp_path_factory):
    "What the tests and their processes write through tempfile lies in pytest's folder, which pytest clears."
    folder = str(tmp_path_factory.mktemp('tempfile'))
    with pytest.MonkeyPatch.context() as m:
        m.setattr(tempfile, 'tempdir', folder)
        m.setenv('TMPDIR', folder)
        yield

@pytest.fixture(autouse=True)
def no_stop_before():
    "A run that a test stopped by a signal is of no concern to the next test."
    yield
    if o := sys.modules.get('grpo_nb.run.signals'): o.forget_stop()

@pytest.fixture(autouse=True)
def no_loop_of_a_browser(request):
    "Playwright leaves a loop running in its thread; who asks for no browser finds none."
    loop = None if AROUND & {*request.fixturenames} else asyncio._get_running_loop()
    if loop: asyncio._set_running_loop(None)
    yield
    if loop: asyncio._set_running_loop(loop)

@pytest.fixture(scope='session')
def browser():
    "Chromium without a window; the tests that ask for it are skipped where there is none"
    play = pytest.importorskip('playwright.sync_api', reason='no playwright: pip install -e .[dev]')
    if not CHROME:
        pytest.skip('no Chromium here: `apt-get install chromium-headless-shell`, or name one in CHROME')
    with play.sync_playwright() as p:
        b = patient(p.chromium.launch(executable_path=CHROME, args=QUIET, timeout=PATIENCE))
        yield b
        b.close()

@pytest.fixture(scope='session')
def axe():
    "The text of axe-core, or None where it can't be fetched"
    from grpo_nb.see.live import NpmError, npm_package
    try: return (npm_package('axe-core@4.10.3')/'axe.min.js').read_text(encoding='utf-8')
    except NpmError: return None

@pytest.fixture(scope='session')
def site(tmp_path_factory):
    "The docs, built once from the stored notebooks; SITE names a built one to look at instead"
    if o := os.environ.get('SITE'): return Path(o)
    pytest.importorskip('myst_nb', reason='no Sphinx: pip install -e .[dev]')
    out,t = tmp_path_factory.mktemp('site')/'docs',time.monotonic()
    said = out.parent/'said'
    p = elsewhere(_build_site, out, said)   # a fork: what the pages import is imported
    p.join()
    assert p.exitcode==0, said.read_text(encoding='utf-8')[-6000:]
    print(f'site built in {time.monotonic()-t:.1f} s')
    return out

def _build_site(out, said):
    from grpo_nb.dev.pages import docs
    os.dup2(os.open(said, os.O_WRONLY|os.O_CREAT), 1)
    os.dup2(1, 2)   # pytest's own would keep what is printed
    sys.stdout,sys.stderr = (os.fdopen(o, 'w', buffering=1, encoding='utf-8') for o in (1, 2))
    os.chdir(ROOT)
    docs(out=str(out))

@pytest.fixture(scope='session')
def url(site):
    "The site behind a local server, under the folder that it is published in"
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args): pass
        def translate_path(self, path): return super().translate_path(path.removeprefix('/grpo_nb'))

    with http.server.ThreadingHTTPServer(
        ('127.0.0.1', 0), functools.partial(Quiet, directory=str(site))
    ) as s:
        threading.Thread(target=s.serve_forever, daemon=True).start()
        yield f'http://127.0.0.1:{s.server_port}/grpo_nb'
        s.shutdown()

LAB = {
    '@jupyterlab/notebook-extension/tracker': dict(
        windowingMode='none'
    ),  # else cells out of sight don't exist
    '@jupyterlab/docmanager-extension/plugin': dict(autosave=False),   # only what a test saves is saved
    '@jupyterlab/apputils-extension/notification': dict(fetchNews='false', checkForUpdates=False),
}

@pytest.fixture(scope='session')
def lab(tmp_path_factory):
    "A running JupyterLab on a private copy of the project, as (url, token, folder)"
    pytest.importorskip('jupyterlab', reason='no JupyterLab: pip install -e .[dev]')
    d = tmp_path_factory.mktemp('lab')
    for o in ('nbs','grpo_nb'): shutil.copytree(ROOT/o, d/'project'/o)
    for o in ('settings.ini','tested.txt'): shutil.copy(ROOT/o, d/'project')
    for k,v in LAB.items():
        f = d/'settings'/f'{k}.jupyterlab-settings'
        f.parent.mkdir(parents=True, exist_ok=True)
        f.write_text(json.dumps(v))
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    token,at = secrets.token_hex(8),f'http://127.0.0.1:{port}'
    env = {**os.environ, 'JUPYTER_CONFIG_DIR': str(d / 'config'),
           'JUPYTERLAB_SETTINGS_DIR': str(d / 'settings'),
           'JUPYTERLAB_WORKSPACES_DIR': str(d / 'workspaces'), 'JUPYTER_RUNTIME_DIR': str(d / 'runtime'),
           'IPYTHONDIR': str(d / 'ipython'), 'PYTHONPATH': str(d / 'project')}
    with open(d/'lab.log', 'w', encoding='utf-8') as log:
        p = subprocess.Popen([sys.executable, '-m', 'jupyterlab', '--no-browser', '--allow-root',
                              '--ServerApp.ip=127.0.0.1', f'--ServerApp.port={port}',
                              '--ServerApp.port_retries=0', f'--IdentityProvider.token={token}',
                              f"--ServerApp.root_dir={d / 'project'}",
                              '--LabApp.expose_app_in_browser=True', '--LabApp.news_url=None'], env=env,
                             stdout=log, stderr=log)
        end = time.monotonic()+300
        try:
            while True:
                try: urllib.request.urlopen(f'{at}/api/status?token={token}', timeout=60).close()
                except OSError:
                    if p.poll() is not None or time.monotonic() > end:
                        pytest.fail('JupyterLab did not start:\n' + (d / 'lab.log').read_text()[-3000:])
                    time.sleep(.3)
                else: break
            yield at,token,d/'project'
        finally:
            p.terminate()
            try: p.wait(10)
            except subprocess.TimeoutExpired: p.kill()

def run_all(pg, seconds=300):
    "Run all cells of the notebook that `pg` shows and wait for their end; an error in a cell fails the test."
    pg.evaluate("""() => { window.ranAll = false
        const run = window.jupyterapp.commands.execute('notebook:run-all-cells')
        run.then(() => { window.ranAll = true }) }""")
    pg.wait_for_function("""() => {
        const w = window.jupyterapp.shell.currentWidget
        const idle = w.sessionContext.session.kernel.status === 'idle'
        const ran = c => c.type !== 'code' || !c.sharedModel.source.trim() || c.executionCount !== null
        return window.ranAll && idle && [...w.content.model.cells].every(ran) }""", timeout=seconds*1000)
    errors = pg.evaluate("""() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
        .filter(c => c.type === 'code').flatMap(c => c.sharedModel.outputs ?? [])
        .filter(o => o.output_type === 'error').map(o => o.ename + ': ' + o.evalue)""")
    assert not errors, errors

OPEN = "path => { window.jupyterapp.commands.execute('docmanager:open', {path}) }"

@pytest.fixture(scope='module')
def notebook(lab, browser):
    """Open a notebook in JupyterLab and give the page, with a tab for each notebook of a file's tests. Unless
    `run` is false all cells are run in a fresh kernel; an error in a cell fails the test"""
    at,token,_ = lab
    pg = browser.new_page(viewport=dict(width=1280, height=900))
    opened,ran = set(),set()
    def show(name, seconds=300, run=True):
        file = next(f for f in sorted((ROOT / 'nbs').rglob('*.ipynb'))
                    if re.sub(r'^\d+\w*?_', '', f.stem) == name or f.name == name)
        path = f'nbs/{file.relative_to(ROOT/"nbs")}'
        if opened: pg.evaluate(OPEN, path)
        else: pg.goto(f'{at}/lab/tree/{path}?token={token}&reset')
        opened.add(name)
        pg.wait_for_function("""([path, idle]) => {
            const w = window.jupyterapp?.shell.currentWidget
            return w?.context?.path === path &&
                (!idle || w.sessionContext?.session?.kernel?.status === 'idle') }""", arg=[path, run])
        if run and name not in ran:
            run_all(pg, seconds)
            ran.add(name)
        return pg
    yield show
    pg.close()
    # a kernel outlives its page, and the next page would find it
    auth = dict(Authorization=f'token {token}')
    ask = lambda path, method='GET': urllib.request.urlopen(
        urllib.request.Request(f'{at}/api/{path}', headers=auth, method=method), timeout=60)
    with ask('sessions') as r: left = json.load(r)
    for o in left: ask(f'sessions/{o["id"]}', 'DELETE').close()

def pytest_terminal_summary(terminalreporter):
    """What failed and was tried again; and beside the tests that fail what `grpo_nb.dev test` saw fail before
    them: checks and notebooks"""
    for o in terminalreporter.stats.get('rerun', ()):
        why = str(getattr(o.longrepr, 'reprcrash', None) or o.longrepr).strip().splitlines()[-1:]
        terminalreporter.write_line(f'TRIED AGAIN {o.nodeid}: {" ".join(why)[:300]}', yellow=True)
    for o in os.environ.get('GRPO_NB_FAILED', '').splitlines():
        terminalreporter.write_line(f'FAILED {o}', red=True)

@pytest.fixture
def tables():
    "Names that a test registers are gone after it."
    from grpo_nb.parts.registry import REGISTRIES
    with contextlib.ExitStack() as stack:
        for o in REGISTRIES.values():
            o.load()
            stack.enter_context(patch.object(o, 'entries', {**o.entries}))
            stack.enter_context(patch.object(o, 'about', {**o.about}))
        yield
