"Notebooks, modules, README and settings agree, and running a notebook again changes nothing"
import json, os, re, shutil, subprocess, sys
from pathlib import Path
import pytest
from grpo_nb.dev import site as dev

ROOT = Path(__file__).parent.parent

@pytest.fixture
def copy(tmp_path, monkeypatch):
    "A private copy of the sources, to break"
    for o in ('nbs', 'grpo_nb'):
        shutil.copytree(ROOT / o, tmp_path / o,
                        ignore=shutil.ignore_patterns('.ipynb_checkpoints', 'results'))
    for o in ('settings.ini','setup.py','README.md'):
        if (ROOT/o).exists(): shutil.copy(ROOT/o, tmp_path)
    monkeypatch.chdir(tmp_path)
    # what a reader sees is looked at in all pages, once, by the next test
    monkeypatch.setattr(dev, '_text_faults', lambda *a: [])
    return tmp_path

def notebook(root, name):
    "The notebook that exports the module `name`, wherever it stands"
    names = rf'default_exp (\w+\.)?{name}\b'
    return next(f for f in root.glob('nbs/**/*.ipynb') if re.search(names, f.read_text()))

@pytest.mark.skipif('GRPO_NB_FAILED' in os.environ, reason='`grpo_nb.dev test` has checked it, and says so')
def test_everything_is_in_step(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert dev.check()>10

def test_a_module_edited_by_hand_is_told(copy):
    f = copy/'grpo_nb'/'see'/'plotting.py'
    f.write_text(f.read_text()+'\nx = 1\n')
    with pytest.raises(dev.ProjectError, match='grpo_nb/see/plotting.py: not what .*plotting.ipynb exports'):
        dev.check(['plotting'])

def test_a_module_without_a_notebook_is_told(copy):
    for f in copy.glob('nbs/**/*.ipynb'):
        if f!=notebook(copy, 'plotting'): f.unlink()   # one is as good as all
    (copy/'grpo_nb'/'stray.py').write_text('x = 1\n')
    with pytest.raises(dev.ProjectError, match='grpo_nb/stray.py: no notebook exports it'): dev.check()

def test_a_readme_behind_its_notebook_is_told(copy):
    (copy/'README.md').write_text('old')
    with pytest.raises(dev.ProjectError, match='README.md'): dev.readme(check=True)
    dev.readme()
    assert dev.readme(check=True)==[]

def test_a_notebook_with_execution_counts_is_told(copy):
    f = notebook(copy, 'plotting')
    nb = json.loads(f.read_text())
    next(c for c in nb['cells'] if c['cell_type']=='code')['execution_count'] = 7
    f.write_text(json.dumps(nb, indent=1)+'\n')
    with pytest.raises(dev.ProjectError, match='plotting.ipynb: not clean'): dev.check(['plotting'])

def test_an_import_that_is_not_collapsed_is_told(copy):
    "JupyterLab shows the first sentence before the imports; exported code, tests and prose stay in sight"
    f = notebook(copy, 'plotting')
    dev.clean(['plotting'])
    cells = json.loads(f.read_text())['cells']
    hidden = [''.join(c['source']) for c in cells if c['metadata'].get('jupyter', {}).get('source_hidden')]
    code = [''.join(c['source']) for c in cells if c['cell_type']=='code']
    seen = [o for o in code if o not in hidden]
    assert any('from matplotlib' in o for o in hidden) and any('def new_figure' in o for o in seen)
    f.write_text(f.read_text().replace('"source_hidden": true', '"source_hidden": false', 1))
    with pytest.raises(dev.ProjectError, match='plotting.ipynb: not clean: run .*clean'):
        dev.check(['plotting'])

def test_an_answer_is_collapsed_with_its_output_and_code_that_a_page_folds_is_collapsed(copy):
    f = notebook(copy, 'plotting')
    nb = json.loads(f.read_text())
    for i,o in enumerate(['"The answer"', 'The loop', '"The answers behind the figure"']):
        source = f'#| code-fold: true\n#| code-summary: {o}\nx = 1'
        nb['cells'].append(dict(cell_type='code', id=f'folded0{i}', metadata={}, source=source, outputs=[],
            execution_count=None))
    f.write_text(json.dumps(nb))
    dev.clean(['plotting'])
    folded = json.loads(f.read_text())['cells'][-3:]
    tags = [c['metadata'] for c in folded]
    both,one = [dict(jupyter=dict(source_hidden=True, **more)) for more in (dict(outputs_hidden=True), {})]
    assert tags==[both, one, one]
    first = [''.join(c['source']).splitlines() for c in folded]   # the line that JupyterLab shows of it
    assert first[0]==['#| code-summary: "The answer"', '#| code-fold: true', 'x = 1']
    assert all(o[0].startswith('#| code-summary') for o in first)

def test_a_chapter_opens_on_colab_and_the_cell_does_nothing_elsewhere(copy, monkeypatch):
    f = copy/'nbs'/'07_advantages.ipynb'
    f.write_text(f.read_text().replace('"id": "colab"', '"id": "other"'))
    dev.write_order()
    cells = json.loads(f.read_text())['cells']
    first = next(c for c in cells if c['cell_type']=='code')   # below the chapter's first sentences
    code = ''.join(first['source'])
    assert first['id']=='colab' and code==dev.colab_cell()['source']
    assert 'pip install' in code and 'git clone' in code
    monkeypatch.delenv('COLAB_RELEASE_TAG', raising=False)
    monkeypatch.setattr('os.system', lambda o: pytest.fail(o))
    exec(code)
    assert dev.write_order(check=True)==[]

def test_on_colab_a_chapter_imports_the_clone_which_has_the_studies_too(tmp_path, monkeypatch):
    (tmp_path/'grpo_nb'/'nbs'/'catalogue').mkdir(parents=True)
    ran,path = [],sys.path[:]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('COLAB_RELEASE_TAG', '1')
    monkeypatch.setattr('os.system', ran.append)
    monkeypatch.setattr(sys, 'path', path)
    exec(dev.colab_cell('nbs/catalogue')['source'])
    assert [o.split()[0] for o in ran]==['git','pip']
    assert path[0]==str(tmp_path/'grpo_nb') and Path.cwd()==tmp_path/'grpo_nb'/'nbs'/'catalogue'

def test_an_unknown_notebook_is_told(copy):
    with pytest.raises(dev.ProjectError, match='no such notebook among 77_nothing'): dev.check(['77_nothing'])

@pytest.mark.processes
@pytest.mark.weekly
def test_a_check_of_many_changes_nothing_names_what_is_stale_and_goes_on_behind_a_failure(copy):
    """The two with figures and widgets, whose bytes and names would change if anything did; one number is
    old; one notebook before them fails"""
    bad,f,w = (notebook(copy, o) for o in ('checkpoints', 'plotting', 'widgets'))
    for o in (f, w):
        nb = json.loads(o.read_text())
        first = next(i for i,c in enumerate(nb['cells']) if 'image/png' in str(c.get('outputs')))
        del nb['cells'][first+1:]   # one figure is as good as all
        o.write_text(json.dumps(nb, indent=1, ensure_ascii=False)+'\n')
    nb = json.loads(bad.read_text())
    nb['cells'].insert(1, dict(cell_type='code', id='bad', metadata={}, execution_count=None, outputs=[],
                               source=['1/0']))
    bad.write_text(json.dumps(nb))
    f.write_text(f.read_text().replace('"4.54"', '"4.55"'))
    with pytest.raises(dev.ProjectError) as error: dev.run_nbs([bad.stem, 'plotting', 'widgets'], check=True)
    *faults,_ = str(error.value).splitlines()
    assert len(faults)==2 and 'ZeroDivisionError' in faults[0]
    assert re.search(r'plotting.ipynb, cell \d+ \(.*: another output now', faults[1])
    assert '4.55' in f.read_text()   # a check writes nothing

@pytest.mark.processes
def test_a_failing_cell_is_told_with_its_error(copy):
    f = notebook(copy, 'widgets')
    nb = json.loads(f.read_text())
    nb['cells'].insert(3, dict(cell_type='code', id='bad', metadata={}, execution_count=None, outputs=[],
                               source=['1/0']))
    f.write_text(json.dumps(nb))
    with pytest.raises(dev.ProjectError, match=r'widgets.ipynb, cell 3 \(1/0\): ZeroDivisionError'):
        dev.run_nbs(['widgets'])

def test_what_the_workflows_call_is_there():
    import yaml
    from grpo_nb.dev.__main__ import COMMANDS
    flows = [yaml.safe_load(f.read_text()) for f in ROOT.glob('.github/workflows/*.yml')]
    runs = [s['run'] for f in flows for job in f['jobs'].values() for s in job['steps'] if 'run' in s]
    files = {o for r in runs for o in re.findall(r'(?:^|\s)((?:tests|nbs|\.ci)/[\w./]*)', r)}
    assert {'.ci/run','tests/versions.py'}<=files and {o for o in files if not (ROOT/o).exists()}==set()
    commands = {o for r in runs for o in re.findall(r'grpo_nb\.dev (\w+)', r)}
    assert {'docs'}<=commands<={*COMMANDS}

def test_no_file_names_the_machine_it_was_made_on():
    files = subprocess.run(['git','ls-files'], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not files: pytest.skip('not a git clone')
    odd = re.compile(r'/(?:root|work)/\w+')
    listed = [f for f in files if Path(f).suffix in ('.py', '.ipynb', '.md', '.qmd', '.yml', '.ini', '.csv',
                                                   '.json') and f != 'tests/test_sync.py'
            and f != 'nbs/dev/site.ipynb' and f != 'grpo_nb/dev/site.py' and (ROOT / f).exists()
            and odd.search((ROOT / f).read_text(encoding='utf-8'))]
    assert listed==[]
