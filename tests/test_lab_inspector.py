"The inspector in JupyterLab, driven as a person would: the slider, a group, the toggles."
import os
from grpo_nb.inspector import inspector_view
from grpo_nb.records import read_run
from conftest import ROOT

def test_a_person_moves_the_slider_picks_a_group_and_sees_the_text_change(notebook):
    run = read_run(ROOT/'nbs'/'results'/'run_tiny'); page = notebook('11_inspector.ipynb', seconds=240)
    out = page.locator('.jp-OutputArea-output').filter(has=page.get_by_role('button', name='read again')).first   # the widget
    sees = lambda s: page.wait_for_function("s => [...document.querySelectorAll('.widget-box')].some(o => o.querySelector('.at') && o.innerText.includes(s))", arg=s, timeout=20_000)
    slider = out.get_by_role('slider').first; out.scroll_into_view_if_needed()
    slider.focus(); page.keyboard.press('Home'); sees(f'step {run.steps[0]} of {run.steps[-1]}')
    for _ in range(3): page.keyboard.press('ArrowRight')
    sees(f'step {run.steps[3]} of')
    row = next(o for o in run.by_step[run.steps[3]] if o['replacement']); live = next(o for o in run.by_step[run.steps[3]] if not o['dead'])
    out.get_by_role('button', name=str(live['group']), exact=True).click()
    sees(f"Group {live['group']}, sampled at step {run.steps[3]}"); sees(live['completions'][0]); assert out.get_by_text('What came in').count()==0
    out.get_by_role('button', name=str(row['group']), exact=True).click()
    sees(f"Group {row['group']}, sampled"); sees(row['prompt']); sees(f"What came in: group {row['replacement']['id']}"); sees(row['replacement']['completions'][0])
    out.get_by_role('button', name='off', exact=True).click(); sees('0 replaced'); assert out.get_by_text('What came in').count()==0
    out.get_by_role('button', name='uncorrected', exact=True).click(); sees('takes all of these as 1')
    out.get_by_role('button', name='on', exact=True).click()
    out.locator('select').nth(0).select_option('1'); sees('8 of 8 groups dead, 0 replaced'); out.locator('select').nth(0).select_option('as in the run')
    out.locator('select').nth(2).select_option('0'); sees('buffer of 0'); sees(f"{inspector_view(run, run.steps[3])['n_dead']} of 8 groups dead, 0 replaced"); out.locator('select').nth(2).select_option('as in the run'); sees('as the run did it')
    if shots := os.environ.get('SHOTS'):
        out.scroll_into_view_if_needed(); page.screenshot(path=f'{shots}/lab_light.png')
        page.evaluate("window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"); page.wait_for_timeout(2500); page.screenshot(path=f'{shots}/lab_dark.png')
        page.locator('iframe[title="group inspector"]').scroll_into_view_if_needed(); page.wait_for_timeout(500); page.screenshot(path=f'{shots}/lab_frame.png')
    frame = page.frame_locator('iframe[title="group inspector"]')   # the page without a kernel, in the same notebook
    frame.locator('#step').focus(); page.keyboard.press('Home'); assert f'step {run.steps[0]} of' in frame.locator('#view').inner_text()
    frame.locator('.row').nth(2).click(); assert 'Group 2, sampled' in frame.locator('#view').inner_text()

def test_play_walks_through_the_steps(notebook):
    run = read_run(ROOT/'nbs'/'results'/'run_tiny'); page = notebook('11_inspector.ipynb', seconds=240)
    out = page.locator('.jp-OutputArea-output').filter(has=page.get_by_role('button', name='read again')).first
    out.get_by_role('slider').first.focus(); page.keyboard.press('Home'); page.wait_for_timeout(300)
    out.locator('.jupyter-widgets.widget-play button').first.click()
    page.wait_for_function("s => [...document.querySelectorAll('.widget-box')].some(o => o.querySelector('.at') && o.innerText.includes(s))", arg=f'step {run.steps[2]} of', timeout=30_000)
