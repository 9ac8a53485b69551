"The inspector in JupyterLab, driven as a person would: the map, a row, the keyboard, a step set from Python"
import os
from pathlib import Path
import pytest
from browsing import picture_of, save_recording
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

POINTER = """at => {
  const there = document.getElementById('pointer') || document.body.appendChild(document.createElement('div'))
  there.id = 'pointer'
  there.style.cssText = `left:${at[0]-9}px;top:${at[1]-9}px;width:18px;height:18px;border-radius:50%;` +
    'background:#e22;border:2px solid #fff;position:fixed;z-index:9999;pointer-events:none' }"""
KEY = """key => {
  document.getElementById('key')?.remove()
  if (!key) return
  const there = document.body.appendChild(document.createElement('div'))
  there.id = 'key'
  there.textContent = key
  there.style.cssText = 'position:fixed;right:40px;bottom:60px;z-index:9999;padding:6px 18px;' +
    'border-radius:8px;background:#222;color:#fff;font:bold 26px monospace' }"""

@pytest.mark.slow
def test_the_map_is_zoomed_and_shown_whole_again_and_answers_are_colored(chapter):
    "With a folder in RECORD it is recorded there, as `inspector_lab.webp`"
    page,recorded,frames = chapter,os.environ.get('RECORD'),[]
    if recorded:
        page.set_viewport_size(dict(width=1000, height=860))
        page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
        page.locator('#jp-left-stack').wait_for(state='hidden')
    out = page.locator('.jp-OutputArea-output .gv').first
    out.evaluate('o => o.scrollIntoView()')
    sees(page, 'step 4, group 1')
    view = "document.querySelector('.jp-OutputArea-output .gv').gv"
    page.wait_for_function(f'{view}.run.B === 8')
    def at(step, group):   # of a cell, in the window
        box = out.locator('.gv-over').bounding_box()
        return (box['x']+64+(step//4+.5)*(box['width']-74)/16, box['y']+150+80+4+(group+.5)*22)
    def move(to):
        page.mouse.move(*to, steps=4)
        page.evaluate(POINTER, to)
    def take(ms, key=''):
        if not recorded: return
        page.evaluate(KEY, key)
        frames.append((picture_of(page), ms))
    take(1400)
    move(at(44, 0))
    take(1100)
    page.mouse.click(*at(44, 0))
    sees(page, 'Group 0, sampled at step 44')
    take(1600)
    for step in (48, 52):
        page.keyboard.press('d')
        sees(page, f'step {step}, group 4: dead')
        take(1100, 'd')
    move(at(20, 1))
    page.mouse.down()
    move(at(40, 5))
    take(1100)
    page.mouse.up()
    page.wait_for_function(f'{view}.now.from === 5 && {view}.now.to === 11')
    take(1400)
    page.keyboard.press('0')
    page.wait_for_function(f'{view}.now.from === 0 && {view}.now.to === 16')
    take(1100, '0')
    out.get_by_label('color text by').select_option('advantage')
    out.locator('.gv-pair').first.evaluate('o => o.scrollIntoView()')
    take(2600)
    assert page.errors==[]
    if recorded: save_recording(frames, Path(recorded)/'inspector_lab.webp')
