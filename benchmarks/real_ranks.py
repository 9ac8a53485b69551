"""SmolLM2 under DDP on two processes: killed with -9 in its third step and started again.

    python benchmarks/real_ranks.py nbs/results/smollm2_ranks.csv   # after `grpo_nb get smollm2`; takes 8 GB

Four steps of 16 answers each, with a checkpoint after the second. Another run is left alone; at the end the
two checkpoints of step 4 are compared tensor by tensor. `--model tiny` shows in half a minute that the
script works.
"""
import argparse, csv, json, os, resource, subprocess, sys, tempfile, time
from pathlib import Path
import torch

ROOT = Path(__file__).resolve().parent.parent
STEPS,HALF = 4,2

def right(completions, answer, **kw):
    "1 for an answer whose first line is the sum."
    return [float(c.strip().split('\n')[0].strip()==a) for c,a in zip(completions, answer)]

def process(model, folder):
    "One of the two processes."
    from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferConfig, GRPOWithReplayBufferTrainer
    from grpo_nb.parts.datasets import make_problems
    from grpo_nb.tiny_qwen import load_model
    torch.set_num_threads(1)
    net,tok = load_model(model)
    args = GRPOWithReplayBufferConfig(output_dir=folder, max_steps=STEPS, save_strategy='steps',
        save_steps=HALF, save_total_limit=2, per_device_train_batch_size=8, num_generations=4,
        max_completion_length=6, learning_rate=1e-5, lr_scheduler_type='constant', replay_buffer_size=8,
        logging_steps=1, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to='none',
        disable_tqdm=True, seed=0)
    t = GRPOWithReplayBufferTrainer(model=net, reward_funcs=right, args=args, processing_class=tok,
        train_dataset=make_problems('two_digit_sums', 64, 0))
    t.train(resume_from_checkpoint='auto' if Path(folder).exists() else None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss*1024/1e9
    rank = os.environ['RANK']
    Path(f'{folder}-{rank}.json').write_text(json.dumps(dict(peak=peak, log=t.state.log_history)),
        encoding='utf-8')

def start(model, folder):
    words = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', 2, __file__,
        '--process', folder, '--model', model]
    env = os.environ|dict(OMP_NUM_THREADS='1', PYTHONPATH=str(ROOT))
    return subprocess.Popen([*map(str, words)], env=env)

def run_to_the_end(model, folder):
    code = start(model, folder).wait()
    assert code==0, f'{folder}: the launcher ended with {code}'

def kill_after_the_checkpoint(model, folder):
    "Start a run, and kill its processes and their launcher as soon as the first checkpoint is whole."
    p,marker = start(model, folder),folder/f'checkpoint-{HALF}'/'trainer_state.json'
    while not marker.exists():
        assert p.poll() is None, 'the run ended before it was killed'
        time.sleep(.05)
    ranks = Path(f'/proc/{p.pid}/task/{p.pid}/children').read_text(encoding='utf-8').split()
    for pid in [*map(int, ranks), p.pid]: os.kill(pid, 9)
    p.wait()
    assert not (folder/f'checkpoint-{STEPS}').exists(), 'killed too late'

def tensors(o):
    "All tensors of a nested state, in order."
    if isinstance(o, torch.Tensor): yield o
    elif isinstance(o, dict): yield from (t for v in o.values() for t in tensors(v))
    elif isinstance(o, (list,tuple)): yield from (t for v in o for t in tensors(v))

def compared(a, b):
    "Numbers in two states, and how many of them differ."
    pairs = list(zip(tensors(a), tensors(b), strict=True))
    return sum(x.numel() for x,_ in pairs),sum(int((x!=y).sum()) for x,y in pairs)

def main(out, model):
    from grpo_nb.run.checkpoints import load_state
    from safetensors.torch import load_file
    with tempfile.TemporaryDirectory() as d:
        whole,killed = Path(d)/'whole',Path(d)/'killed'
        run_to_the_end(model, whole)
        kill_after_the_checkpoint(model, killed)
        run_to_the_end(model, killed)
        def states(folder):
            at = folder/f'checkpoint-{STEPS}'
            yield 'weights',load_file(at/'model.safetensors')
            yield "Adam's averages",torch.load(at/'optimizer.pt', weights_only=True)['state']
            for r in (0, 1): yield f'buffer, process {r}',load_state(at/f'grpo_state_{r}.pt')['buffer']
        rows = []
        for (what,a),(_,b) in zip(states(whole), states(killed)):
            n,differ = compared(a, b)
            rows.append(dict(what=what, numbers=n, differ=differ))
        def end(f, rank): return json.loads(Path(f'{f}-{rank}.json').read_text(encoding='utf-8'))
        ends = [[end(f, r) for r in (0, 1)] for f in (whole, killed)]
        loss = [[o['loss'] for o in e[0]['log'] if 'loss' in o] for e in ends]
        rows.append(dict(what='losses', numbers=STEPS, differ=sum(x!=y for x,y in zip(*loss, strict=True))))
        replaced = sum(o.get('replay/replaced', 0) for o in ends[0][0]['log'])
        peak = max(o['peak'] for e in ends for o in e)
        facts = {'groups replaced':int(replaced), 'peak GB, the larger process':round(peak, 2)}
        rows += [dict(what=k, numbers=v) for k,v in facts.items()]
    with open(out, 'w', newline='', encoding='utf-8') as f:
        w = csv.DictWriter(f, ['what','numbers','differ'], lineterminator='\n')
        w.writeheader()
        w.writerows(rows)
    for o in rows: print(o)

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('out', nargs='?')
    p.add_argument('--model', default='smollm2')
    p.add_argument('--process', help='what a process is started with: the folder of its run')
    a = p.parse_args()
    process(a.model, a.process) if a.process else main(a.out, a.model)
