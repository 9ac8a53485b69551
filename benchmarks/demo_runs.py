"""The runs behind the first page's table: `grpo_nb demo`, with and without replay, three seeds.

    python benchmarks/demo_runs.py nbs/results/demo_runs.csv      # puts this machine's rows in their place
    python benchmarks/demo_runs.py nbs/results/demo_runs.csv --map nbs/results/demo_map.csv   # and the film's
    python benchmarks/demo_runs.py nbs/results/demo_smollm2.csv --model smollm2 --keep runs/real
        # five seeds, four minutes a run; what is in the folder is not run again; real_run.py reads it
    python benchmarks/demo_runs.py nbs/results/smollm2_memory.csv --model smollm2 --peak   # a minute
    ATEN_CPU_CAPABILITY=avx2 python benchmarks/demo_runs.py ...   # as a processor without AVX512 would

The last bits of a sum depend on the processor's instructions and on torch, and a trained model on the last
bits of its sums; so the page says what held in all rows of the file, and `test_readme.py` makes them again.
"""
import argparse, csv, json, os, subprocess, sys, tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNS = [(seed, size) for seed in range(3) for size in (0, 64)]
FIELDS = '''torch instructions seed replay_buffer_size before after n_problems groups dead replaced
    tokens'''.split()
SMOLLM2_RUNS = [(seed, size) for size in (64, 0) for seed in range(5)]
PRETRAINED = ['greedy_before', 'greedy_after', 'cpu_s']   # more columns, where there are any

def here():
    "What this machine's sums depend on."
    import torch
    return dict(torch=torch.__version__.split('+')[0], instructions=torch.backends.cpu.get_cpu_capability())

def run(seed, size, folder, model='tiny', *more):
    "The command of the first page, as typed."
    words = ['demo', '--model', model, '--seed', seed, '--replay_buffer_size', size, '--output_dir', folder,
             '--disable_tqdm', *more]
    import resource   # not there on Windows
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, '-m', 'grpo_nb', *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    took = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost = dict(cpu_s=round(took.ru_utime-before.ru_utime))
    return row(seed, size, folder)|(cost if model!='tiny' else {})

def peak(model, steps=6):
    "Most memory of a run of three batches between its two measurements, in 10^9 bytes."
    import resource
    with tempfile.TemporaryDirectory() as d: run(0, 64, d, model, '--max_steps', steps)
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss   # of the largest child
    return dict(max_steps=steps, memory_gb=round(most*1024/1e9, 2))

def row(seed, size, folder):
    "What a run's summary says."
    o = json.loads((Path(folder)/'summary.json').read_text(encoding='utf-8'))
    same = {k:o[k] for k in ('groups','dead','replaced')}
    if 'greedy' in o['before']: same |= {f'greedy_{k}':o[k]['greedy'] for k in ('before','after')}
    return dict(seed=seed, replay_buffer_size=size, before=o['before']['pass@1'], after=o['after']['pass@1'],
        n_problems=o['after']['n_problems'], tokens=o['num_tokens'], **same)

def groups_of(folder):
    "What the film on the first page shows of a run's groups."
    with open(Path(folder)/'groups.jsonl', encoding='utf-8') as f: groups = [json.loads(o) for o in f]
    def one(o): return dict(step=o['step'], group=o['group'], dead=int(o['dead']),
        replaced=int(o['outcome']=='replaced'), right=sum(o['rewards'])/len(o['rewards']))
    return [one(o) for o in groups]

def key(o): return str(o['torch']),str(o['instructions']),int(o['seed']),int(o['replay_buffer_size'])

def write(path, new):
    "Rows of the file, with those of the same machine and run replaced."
    there = path if Path(path).exists() else os.devnull
    with open(there, encoding='utf-8', newline='') as f: old = list(csv.DictReader(f))
    rows = {key(o):o for o in [*old, *new]}
    save(path, [rows[k] for k in sorted(rows)], FIELDS+[k for k in PRETRAINED if k in new[0]])

def save(path, rows, fields):
    with open(path, 'w', encoding='utf-8', newline='') as f:
        w = csv.DictWriter(f, fields, lineterminator='\n')
        w.writeheader()
        w.writerows(rows)

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('out')
    p.add_argument('--map')
    p.add_argument('--model', default='tiny')
    p.add_argument('--keep', help='keep the folders of the runs here')
    p.add_argument('--peak', action='store_true', help='measure the memory of a short run, and nothing else')
    a = p.parse_args()
    if a.peak:
        found = here()|peak(a.model)
        sys.exit(save(a.out, [found], list(found)))
    for seed,size in RUNS if a.model=='tiny' else SMOLLM2_RUNS:
        with tempfile.TemporaryDirectory() as d:
            folder = Path(a.keep or d)/f'{seed}-{size}'
            if (folder/'inspector.html').exists(): continue   # the last of its files
            write(a.out, [here()|run(seed, size, folder, a.model)])
            if a.map and (seed, size)==(0, 64):
                groups = groups_of(folder)
                save(a.map, groups, list(groups[0]))
