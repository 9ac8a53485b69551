"Notebooks in JupyterLab, driven as a person would"

import difflib
import pytest
from conftest import ROOT, run_all
from grpo_nb.dev import site as dev

@pytest.mark.parametrize('name,times', [('widgets', 2), ('tested', 1)])
def test_running_all_and_saving_leaves_nothing_to_commit(notebook, lab, monkeypatch, name, times):
    "Run All, save and `clean` give back the stored notebook to the byte, with widgets and without."
    at,token,home = lab
    stored = next((home/'nbs').rglob(f'*{name}.ipynb'))
    before = (ROOT/stored.relative_to(home)).read_bytes()
    pg = notebook(name)
    for _ in range(times-1): run_all(pg)   # the same kernel makes the same widgets again
    pg.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    pg.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty")
    monkeypatch.chdir(home)
    dev.clean([stored.stem])
    changed = difflib.unified_diff(before.decode().splitlines(), stored.read_text().splitlines(), n=0)
    assert stored.read_bytes()==before, '\n'.join(list(changed)[:40])

def test_a_chapter_runs_and_its_slider_turns_the_frames(notebook):
    pg = notebook('widgets')
    out = pg.locator('.jp-OutputArea-output').filter(has_text='clip eps').first
    out.scroll_into_view_if_needed()
    pg.wait_for_selector('svg[aria-label^="clip eps 0.20, A 1.0"]', state='visible')
    slider = out.get_by_role('slider').first
    slider.focus(); slider.press('ArrowRight')
    pg.wait_for_selector('svg[aria-label^="clip eps 0.30, A 1.0"]', state='visible')
    slider.press('ArrowLeft'); slider.press('ArrowLeft')
    pg.wait_for_selector('svg[aria-label^="clip eps 0.10, A 1.0"]', state='visible')
    out.get_by_role('button', name='-1.0').click()
    pg.wait_for_selector('svg[aria-label^="clip eps 0.10, A -1.0"]', state='visible')

def test_before_anything_runs_a_picture_stands_where_the_inspector_will(notebook):
    "A frame is stripped from what was not run here"
    for name in ('look_at_a_run', 'index', 'reward_hacking'):
        pg = notebook(name, run=False)
        # the notebook in front: those behind it have a picture too
        out = pg.locator('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output',
                         has_text='Run the cell to click through it')
        out.first.scroll_into_view_if_needed()
        assert out.locator('iframe').count()==0
        assert out.locator('img').first.evaluate('o => o.decode().then(() => o.naturalWidth)')>100, name

FIRST_SIGHT = """() => {   // the tops of the first sentence and picture; cells of imports that lie open
  const cells = [...document.querySelectorAll('.jp-Notebook .jp-Cell')]
  const top = o => o.getBoundingClientRect().top
  const open = o => !o.querySelector('.jp-mod-collapsed, .jp-Placeholder') && o.innerText.includes('import ')
  return {sentence: top(document.querySelector('.jp-Notebook .jp-RenderedMarkdown > p')),
    picture: top(document.querySelector('.jp-Notebook .jp-OutputArea-output img')),
    open: cells.filter(o => o.classList.contains('jp-CodeCell')).slice(0, 6).filter(open).length} }"""

@pytest.mark.slow
@pytest.mark.parametrize('number', '00 01 07 09 11 14 17'.split())   # 12: the code of its picture comes first
def test_a_chapter_opens_with_a_sentence_and_a_picture_before_anything_runs(lab, browser, number):
    at,token,home = lab
    pg = browser.new_page(viewport=dict(width=1280, height=800))
    name = next((home/'nbs').glob(f'{number}_*.ipynb')).name
    pg.goto(f'{at}/lab/tree/nbs/{name}?token={token}&reset')
    pg.wait_for_selector('.jp-Notebook .jp-OutputArea-output img')
    pg.wait_for_timeout(2000)   # until nothing moves any more
    seen = pg.evaluate(FIRST_SIGHT)
    pg.close()
    assert seen['sentence']<seen['picture']<700 and seen['open']==0, seen
