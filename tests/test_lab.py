"Notebooks in JupyterLab, driven as a person would"

import difflib, os, subprocess, sys
from pathlib import Path
import pytest
from conftest import ROOT, run_all

@pytest.mark.parametrize('name,times', [('core', 1), ('widgets', 2), ('rewards', 1)])
def test_running_all_and_saving_leaves_nothing_to_commit(notebook, lab, name, times):
    "Run All, save and nbdev_clean give back the stored notebook to the byte, with widgets and without."
    at,token,home = lab
    stored = next((home/'nbs').rglob(f'*{name}.ipynb'))
    before = (ROOT/stored.relative_to(home)).read_bytes()
    pg = notebook(name)
    for _ in range(times-1): run_all(pg)   # the same kernel makes the same widgets again
    pg.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    pg.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty", timeout=30_000)
    clean = [Path(sys.executable).parent/'nbdev_clean', '--fname', str(stored)]
    subprocess.run(clean, cwd=home, check=True, env={**os.environ, 'PYTHONPATH': str(home)})
    changed = difflib.unified_diff(before.decode().splitlines(), stored.read_text().splitlines(), n=0)
    assert stored.read_bytes()==before, '\n'.join(list(changed)[:40])

def test_a_chapter_runs_and_its_slider_turns_the_frames(notebook):
    pg = notebook('widgets')
    out = pg.locator('.jp-OutputArea-output').filter(has_text='clip eps').first
    out.scroll_into_view_if_needed()
    pg.wait_for_selector('svg[aria-label^="clip eps 0.20, A 1.0"]', state='visible', timeout=20_000)
    slider = out.get_by_role('slider').first
    slider.focus(); slider.press('ArrowRight')
    pg.wait_for_selector('svg[aria-label^="clip eps 0.30, A 1.0"]', state='visible')
    slider.press('ArrowLeft'); slider.press('ArrowLeft')
    pg.wait_for_selector('svg[aria-label^="clip eps 0.10, A 1.0"]', state='visible')
    out.get_by_role('button', name='-1.0').click()
    pg.wait_for_selector('svg[aria-label^="clip eps 0.10, A -1.0"]', state='visible')

def test_live_text_is_computed_by_the_kernel(notebook):
    pg = notebook('widgets')
    box = pg.locator('.needs-kernel').first
    box.scroll_into_view_if_needed()
    assert 'a: 3' in box.inner_text()
    box.locator('input[type=text]').fill('zzz')
    pg.wait_for_function(
        "[...document.querySelectorAll('.needs-kernel')].some(o => o.innerText.includes('z: 3'))",
        timeout=20_000,
    )
    box.locator('input[type=text]').fill('')
    pg.wait_for_function(
        "[...document.querySelectorAll('.needs-kernel')].some(o => o.innerText.includes('nothing to count'))",
        timeout=20_000,
    )
