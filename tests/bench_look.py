"""What looking at a run costs, in processor time: `python tests/bench_look.py` writes
nbs/results/looking.csv, which the page on how results are made shows.
Takes half a minute of processor time."""

import statistics, sys, tempfile, time
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
import pandas as pd, torch
import grpo_nb.trainer as tr
from grpo_nb import run_watch
from grpo_nb.inspector import inspect_run, write_inspector
from grpo_nb.report import write_report
from grpo_nb.problems import chain_sum
from grpo_nb.tasks import accuracy_reward
from grpo_nb.tiny_qwen import load_model
from made_runs import make_run

N = 5

def spent(f, *args, **kw):
    "Processor seconds of this thread, and what came back"
    t = time.thread_time()
    return (lambda out: (time.thread_time()-t, out))(f(*args, **kw))

def recording(steps=24):
    "Share of a training run with the demo's settings that goes into its record"
    used = dict(s=0.)
    old = run_watch.record
    def watched(*args):
        s,_ = spent(old, *args)
        used['s'] += s
    run_watch.record = watched
    try:
        model,tok = load_model()
        args = tr.TrainConfig(output_dir=tempfile.mkdtemp(), max_steps=steps, learning_rate=2e-4,
                              disable_tqdm=True)
        s,_ = spent(tr.train, model, tok, chain_sum(200, seed=0), accuracy_reward, args)
    finally: run_watch.record = old
    return 100*used['s']/s

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
    rows = [dict(what=w, unit=u, at_most=m, median=f'{statistics.median(x):.3g}', least=f'{min(x):.3g}',
                 most=f'{max(x):.3g}', times=len(x)) for w, u, m, x in found]
    pd.DataFrame(rows).to_csv(out, index=False)
    print(pd.DataFrame(rows).to_string())

if __name__ == '__main__':
    main(Path(sys.argv[1])
         if len(sys.argv) > 1 else Path(__file__).parent.parent / 'nbs' / 'results' / 'looking.csv')
