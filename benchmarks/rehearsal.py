"""Chapter 18's run, rehearsed: `full_run.py` under FSDP2 on two processes of this machine, killed and started
again, and the same run on one process.

    grpo_nb get smollm2
    python benchmarks/rehearsal.py nbs/results           # 16 minutes of two cores; 9 GB
    python benchmarks/rehearsal.py runs --model tiny     # the same in a minute or two

Given again, the command goes on where it was. Three tables, for each seed and number of processes:

- `full_run.csv`: a row for each step as it was logged
- `full_run_groups.csv`: a row for each group of each batch, on which process it lies, and what replaced it
- `full_run_cost.csv`: seconds by the clock and of all processors, from the first launch to the end
"""
import argparse, json, os, resource, subprocess, sys, time
from pathlib import Path
import pandas as pd
import yaml

ROOT = Path(__file__).resolve().parent.parent
SCALE = ROOT/'nbs'/'scale'
SETTINGS = yaml.safe_load((SCALE/'two_processes.yaml').read_text(encoding='utf-8'))
TINY = dict(model='tiny', dataset='sums', max_steps=6, save_steps=3, learning_rate=2e-4)
SHOWN = {'step':'step', 'loss':'loss', 'grad_norm':'grad_norm', 'reward':'reward', 'replay/dead':'dead',
    'replay/replaced':'replaced', 'num_tokens':'tokens', 'completions/mean_length':'length',
    'completions/clipped_ratio':'truncated', 'entropy':'entropy', 'replay/ratio_max':'ratio_max',
    'step_time':'step_s', 'generation_time':'sampling_s'}

def command(processes, folder, seed, settings):
    "The launch of a run: the batch stays the same on any number of processes, and so does the buffer."
    rows,groups = (2*settings[k]//processes for k in ('per_device_train_batch_size','replay_buffer_size'))
    own = settings|dict(per_device_train_batch_size=rows, replay_buffer_size=groups, seed=seed,
        output_dir=folder)
    words = [f'{SCALE}/on_cpu.py', f'{SCALE}/full_run.py', *(w for k,v in own.items() for w in (f'--{k}', v))]
    launcher = ['-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', processes]
    return [str(o) for o in (sys.executable, *(launcher if processes>1 else []), *words)]

def history(folder):
    "The logged steps of a run."
    f = Path(folder)/'history.jsonl'
    rows = [json.loads(o) for o in f.read_text(encoding='utf-8').splitlines()] if f.exists() else []
    return [o for o in rows if 'loss' in o]

def children(pid):
    return [int(o) for o in Path(f'/proc/{pid}/task/{pid}/children').read_text(encoding='utf-8').split()]

def kill_one(launcher, folder, step):
    "`kill -9` to the second process, once a step behind the checkpoint of `step` is logged."
    while len(history(folder))<=step:
        if launcher.poll() is not None: raise RuntimeError('the run ended before it was killed')
        time.sleep(.05)
    os.kill(children(launcher.pid)[1], 9)
    return launcher.wait()

def rehearse(processes, folder, seed, settings, kill):
    "One run to its end; its row of costs."
    words = command(processes, folder, seed, settings)
    if kill: launch(words, folder, settings['save_steps'])
    while len(history(folder))<settings['max_steps']:
        if code := launch(words, folder): raise RuntimeError(f'{folder}: the launcher ended with {code}')
    return cost(processes, seed, folder)

def launch(words, folder, kill_at=None):
    "One launch, to its end or `kill -9`: its exit code. What it cost is noted in the folder."
    env = os.environ|dict(OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1', PYTHONPATH=str(ROOT))
    def cpu():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime+used.ru_stime
    begun,used = time.time(),cpu()
    launcher = subprocess.Popen(words, env=env)
    code = kill_one(launcher, folder, kill_at) if kill_at else launcher.wait()
    row = dict(wall_s=time.time()-begun, cpu_s=cpu()-used, killed=bool(kill_at), code=code)
    with (Path(folder)/'launches.jsonl').open('a', encoding='utf-8') as f: print(json.dumps(row), file=f)
    return code

def cost(processes, seed, folder):
    "The row of costs of all launches that ended while this script waited for them."
    f = Path(folder)/'launches.jsonl'
    rows = [json.loads(o) for o in f.read_text(encoding='utf-8').splitlines()] if f.exists() else []
    def total(k): return round(sum(o[k] for o in rows)) if rows else None
    return dict(processes=processes, seed=seed, wall_s=total('wall_s'), cpu_s=total('cpu_s'),
        killed=sum(o['killed'] for o in rows), exit_codes=' '.join(str(o['code']) for o in rows))

def read_groups(folder, processes, G=SETTINGS['num_generations']):
    "A row for each group: its process, and where what replaced it was made."
    rows = [json.loads(o) for o in (folder/'groups.jsonl').read_text(encoding='utf-8').splitlines()]
    per_process = len([o for o in rows if o['step']==rows[0]['step']])/processes
    def process(group): return int(group//per_process)
    made = {o['id']:o for o in rows if o['id'] is not None}
    out = []
    for o in rows:
        origin = made.get((o['replacement'] or {}).get('id'))
        out.append(dict(step=o['step'], group=o['group'], process=process(o['group']), dead=o['dead'],
            outcome=o['outcome'], reward=sum(o['rewards'])/G, made_step=origin and origin['step'],
            made_process=process(origin['group']) if origin else None))
    return out

def write(out, name, key, rows):
    "Add rows to a table, in place of those with the same key."
    path,new = out/f'{name}.csv',pd.DataFrame(rows)
    if path.exists():
        old = pd.read_csv(path)
        again = old.set_index(key).index.isin(new.set_index(key).index)
        new = pd.concat([old[~again], new])
    new.sort_values(key, kind='stable').to_csv(path, index=False, lineterminator='\n')

def is_stored(out, processes, seed):
    path = out/'full_run_cost.csv'
    keys = pd.read_csv(path)[['processes','seed']].values.tolist() if path.exists() else []
    return [processes, seed] in keys   # the table that is written last

def store(out, processes, seed, folder, cost):
    "The rows of a finished run."
    key = dict(seed=seed, processes=processes)
    log = [key|{new:o.get(k) for k,new in SHOWN.items()} for o in history(folder)]
    write(out, 'full_run', ['seed','processes'], log)
    write(out, 'full_run_groups', ['seed','processes'], [key|o for o in read_groups(folder, processes)])
    write(out, 'full_run_cost', ['seed','processes'], [cost])

def main(words=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('out', type=Path, help='folder of the tables')
    p.add_argument('--runs', type=Path, default=Path('runs/rehearsal'), help='folder of the runs')
    p.add_argument('--seeds', type=int, nargs='*', default=[0])
    p.add_argument('--model', default='smollm2', choices=['smollm2','tiny'])
    a = p.parse_args(words)
    settings = SETTINGS|(TINY if a.model=='tiny' else {})
    for seed in a.seeds:
        for processes in (2, 1):
            folder = a.runs/f'{a.model}-{seed}-{processes}'
            if is_stored(a.out, processes, seed) and len(history(folder))>=settings['max_steps']: continue
            kill = processes==2 and not history(folder)
            store(a.out, processes, seed, folder, rehearse(processes, folder, seed, settings, kill))

if __name__=='__main__': main()
