"""What looking at a run costs, in processor time, and in Chromium by the clock:
`python benchmarks/bench_look.py` writes nbs/results/looking.csv, which the page on how results
are made shows. Takes two minutes."""

import random, statistics, sys, tempfile, time
from pathlib import Path
sys.path.append(str(Path(__file__).resolve().parents[1]/'tests'))   # their helpers
import pandas as pd, torch
import grpo_nb.trainer as tr
from grpo_nb.see import monitor as run_watch
from grpo_nb.inspector import inspect_run, write_inspector
from grpo_nb.see.view import write_report
from grpo_nb.parts.datasets import chain_sum
from grpo_nb.tasks import accuracy_reward
from grpo_nb.tiny_qwen import load_model
from conftest import CHROME, QUIET
from grpo_nb.see.view import view_html
from made_runs import long_run, make_run

N = 5

def spent(f, *args, **kw):
    "Processor seconds of this thread, and what came back"
    t = time.thread_time()
    return (lambda out: (time.thread_time()-t, out))(f(*args, **kw))

def recording(steps=24):
    "Share of a training run with the demo's settings that goes into its record"
    used = dict(s=0.)
    old = run_watch.record_batch
    def watched(*args):
        s,_ = spent(old, *args)
        used['s'] += s
    run_watch.record_batch = watched
    try:
        model,tok = load_model()
        args = tr.TrainConfig(output_dir=tempfile.mkdtemp(), max_steps=steps, learning_rate=2e-4,
                              disable_tqdm=True)
        s,_ = spent(tr.train, model, tok, chain_sum(200, seed=0), accuracy_reward, args)
    finally: run_watch.record_batch = old
    return 100*used['s']/s

WATCH = """() => {   // from an event to the frame that shows what it changed, in ms
  window.took = []
  let began = null
  const found = document.querySelector('.gv-found')
  const told = () => { if (!found.textContent.startsWith('searching')) requestAnimationFrame(() => {
    const painted = new MessageChannel()
    painted.port1.onmessage = () => {
      if (began != null) window.took.push(performance.now() - began)
      began = null }
    painted.port2.postMessage(0) }) }
  for (const type of ['keydown', 'pointerup']) addEventListener(type, e => { began = e.timeStamp }, true)
  addEventListener('input', told, true)
  for (const o of [found, document.querySelector('.gv-body')])
    new MutationObserver(told).observe(o, {childList: true, subtree: true}) }"""
STAND = 'new Promise(r => requestAnimationFrame(() => setTimeout(r)))'

def in_chromium(html):
    "Seconds in which a page opens, and ms in which a key, a click, a letter and a search are answered in it"
    from playwright.sync_api import sync_playwright
    with tempfile.TemporaryDirectory() as d, sync_playwright() as p:
        (Path(d)/'page.html').write_text(html, encoding='utf-8')
        b = p.chromium.launch(executable_path=CHROME, args=QUIET)
        opens = []
        for _ in range(N):
            page = b.new_page(viewport=dict(width=1280, height=900), bypass_csp=True)
            t = time.perf_counter()
            page.goto(f'file://{d}/page.html')
            page.wait_for_selector('.gv-body > *', timeout=60_000)
            page.evaluate(STAND)
            opens.append(time.perf_counter()-t)
        out = dict(opens=opens)|answers(page)
        b.close()
    return out

def answers(page):
    "What a person waits for, by real keys and clicks"
    def ms(act):
        n = page.evaluate('took.length')
        act()
        page.wait_for_function('n => took.length>n', arg=n, timeout=60_000)
        return page.evaluate('took.at(-1)')
    def press(k): return ms(lambda: page.keyboard.press(k))
    page.evaluate(WATCH)
    page.locator('.gv-plot').focus()
    page.keyboard.press('Home')
    page.wait_for_timeout(500)
    moves = ['ArrowRight']*10+['ArrowDown']*4+['PageDown']*2+['d']*2+['ArrowUp','ArrowLeft']
    out,rng = dict(key=[press(k) for k in moves*5]),random.Random(0)
    box = page.locator('.gv-over').bounding_box()
    def click():
        x,y = rng.uniform(.1, .95),rng.uniform(.35, .9)
        page.mouse.click(box['x']+box['width']*x, box['y']+box['height']*y)
    out['click'] = [ms(click) for _ in range(100)]
    search = page.get_by_label('search')
    search.click()
    page.wait_for_timeout(500)
    out['letter'] = [press(c) for c in ('What is 1234 + 5?'*6)[:100]]
    out['search'] = []
    for q in ('= 1234<', 'what is 77 + 7', '<answer>50<', 'nowhere', '4999'):
        search.fill(q)
        page.wait_for_timeout(500)
        out['search'].append(press('Enter'))
    return out

def main(out):
    torch.set_num_threads(1)
    run = make_run(Path(tempfile.mkdtemp())/'run', n_steps=500, B=16, buffer_size=64, T=8)
    box,steps = inspect_run(run),iter(range(10, 500, 7))
    def move(): box.handles['step'].value = next(steps)

    found = [('a run of 500 steps × 16 groups × 8 completions opens', 's', 1,
              [spent(inspect_run, run)[0] for _ in range(N)]),
             ('another step of it is drawn', 'ms', 100, [1e3 * spent(move)[0] for _ in range(5 * N)]),
             ("recording, share of the demo's training", '%', 1, [recording() for _ in range(N)]),
             ('its report.html', 'MB', 5, [write_report(run).stat().st_size / 1e6]),
             ('its inspector.html', 'MB', 5, [write_inspector(run).stat().st_size / 1e6])]
    took = in_chromium(view_html(long_run()))
    found += [('a page of 5,000 steps × 64 groups × 8 opens in Chromium', 's', 2, took['opens'])]
    events = dict(key='a key on the map', click='a click on the map', letter='a letter in the search box')
    found += [(f'in it, {what} is answered', 'ms', 100, took[k]) for k,what in events.items()]
    rows = [dict(what=w, unit=u, at_most=m, median=f'{statistics.median(x):.3g}', least=f'{min(x):.3g}',
                 most=f'{max(x):.3g}', times=len(x)) for w, u, m, x in found]
    pd.DataFrame(rows).to_csv(out, index=False)
    print(pd.DataFrame(rows).to_string())

if __name__ == '__main__':
    main(Path(sys.argv[1])
         if len(sys.argv) > 1 else Path(__file__).parent.parent / 'nbs' / 'results' / 'looking.csv')
