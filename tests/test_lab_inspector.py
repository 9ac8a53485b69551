"The inspector in JupyterLab, driven as a person would: the map, a row, the keyboard, a step set from Python"
import os
import pytest
from grpo_nb.run.reading import read_run
from conftest import ROOT

RUN = ROOT/'nbs'/'results'/'run_tiny'

def run_cell(page, code, seconds=120):
    "Add a cell at the end, run it, wait for it"
    page.evaluate("""async code => {
        const w = window.jupyterapp.shell.currentWidget, c = window.jupyterapp.commands
        w.content.activeCellIndex = w.content.model.cells.length-1
        await c.execute('notebook:insert-cell-below')
        w.content.activeCell.model.sharedModel.setSource(code)
        await c.execute('notebook:run-cell')
    }""", code)

@pytest.fixture
def chapter(lab, browser):
    "The chapter opened, with a fresh kernel and the inspector in a cell of its own"
    at,token,_ = lab
    page = browser.new_page(viewport=dict(width=1280, height=1000))
    page.errors = []
    page.on('pageerror', lambda e: page.errors.append(str(e)))
    page.goto(f'{at}/lab/tree/nbs/15_look_at_a_run.ipynb?token={token}&reset')
    page.wait_for_function(
        "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'",
    )
    run_cell(
        page,
        "from grpo_nb.inspector import inspect_run\nw = inspect_run('results/run_tiny', step=4, group=1)\nw",
    )
    page.wait_for_selector('.jp-OutputArea-output .gv .gv-row')
    yield page
    page.close()

def sees(page, text):
    page.wait_for_function(
        "s => [...document.querySelectorAll('.jp-OutputArea-output .gv')].some(o => o.innerText.includes(s))",
        arg=text,
    )

@pytest.mark.slow
def test_a_person_looks_around(chapter):
    page,run = chapter,read_run(RUN)
    out = page.locator('.jp-OutputArea-output .gv').first
    out.scroll_into_view_if_needed()
    sees(page, 'step 4, group 1')
    sees(page, run.by_step[4][1]['prompt'])   # the text came from the kernel
    out.locator('.gv-row').nth(3).click()     # rows are clickable here as on the page
    sees(page, 'Group 3, sampled at step 4')
    plot = out.locator('.gv-plot')
    plot.focus()
    page.keyboard.press('Home')
    sees(page, 'step 0, group 3')
    cells = page.evaluate("window.jupyterapp.shell.currentWidget.content.model.cells.length")
    for _ in range(3): page.keyboard.press('ArrowRight')   # the notebook must not take our keys
    sees(page, f'step {run.steps[3]}, group 3')
    page.keyboard.press('d'); page.keyboard.press('d')     # twice `d` deletes a cell, were it the notebook's
    assert page.evaluate("window.jupyterapp.shell.currentWidget.content.model.cells.length")==cells
    out.get_by_label('what if').select_option('1')
    sees(page, 'what if: without replay')
    out.get_by_label('search').fill(run.rows[9]['prompt'])
    page.keyboard.press('Enter')
    page.wait_for_function("[...document.querySelectorAll('.gv-found')].some(o => /group/.test(o.innerText))")
    if shots := os.environ.get('SHOTS'):
        out.scroll_into_view_if_needed()
        page.screenshot(path=f'{shots}/lab_light.png')
        page.evaluate(
            "window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"
        )
        page.wait_for_timeout(2500)
        page.screenshot(path=f'{shots}/lab_dark.png')
    run_cell(page, 'w.step,w.group = 60,2')
    sees(page, 'step 60, group 2')
    assert page.errors==[]
