"""Is a step slower than it was? Processor time of two checkouts, in turns: A B A B ...

    python benchmarks/step_speed.py ../before . [rounds, 4]

Each round starts a process per checkout, which imports the package from there and trains the tiny Qwen, by
the chapters' trainer and by TRL's with replay. It prints the median seconds of a batch and of a step on TRL,
and at the end new/old: the median of the rounds, with the smallest and the largest. On a busy machine,
differences below some 5% are noise.
"""
import json, os, statistics, subprocess, sys, tempfile, time
from pathlib import Path

SUMS = [dict(prompt=f'{a} + {b} =') for a in range(1, 9) for b in range(1, 9)]

def reward(prompts, completions, **kwargs):
    "Every second prompt is dead; in the others a third of the lengths is paid."
    return [float(len(str(c))%3==0)*(len(str(p))%2) for p,c in zip(prompts, completions)]

def chapters():
    "Seconds of a batch by the chapters' trainer."
    from grpo_nb.tiny_qwen import load_model
    from grpo_nb.trainer import TrainConfig, train
    marks = [time.process_time()]
    args = TrainConfig(max_steps=48, steps_per_generation=4, generation_batch_size=64, num_generations=8,
        max_completion_length=24, seed=0, disable_tqdm=True)
    train(*load_model('tiny'), SUMS, [reward], args,
        callbacks=[lambda state, record: marks.append(time.process_time())])
    return dict(batch=median_gap(marks[2:]))

def on_trl():
    "Seconds of a step by TRL's trainer with replay."
    from datasets import Dataset
    from transformers import PrinterCallback, ProgressCallback, TrainerCallback
    from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferConfig, GRPOWithReplayBufferTrainer
    from grpo_nb.tiny_qwen import load_model
    marks = []
    class Mark(TrainerCallback):
        def on_step_end(self, *args, **kwargs): marks.append(time.process_time())
    model,tok = load_model('tiny')
    with tempfile.TemporaryDirectory() as d:
        args = GRPOWithReplayBufferConfig(output_dir=d, per_device_train_batch_size=32,
            steps_per_generation=1, gradient_accumulation_steps=1, num_generations=8,
            max_completion_length=24, max_steps=30, logging_steps=1, report_to='none', save_strategy='no',
            use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True, seed=0)
        trainer = GRPOWithReplayBufferTrainer(model=model, reward_funcs=reward, args=args,
            train_dataset=Dataset.from_list(SUMS), processing_class=tok)
        for o in (PrinterCallback, ProgressCallback): trainer.remove_callback(o)
        trainer.add_callback(Mark())
        trainer.train()
    return dict(trl_step=median_gap(marks[3:]))

def median_gap(marks): return statistics.median(b-a for a,b in zip(marks, marks[1:]))

def measure(checkout):
    "The seconds of one process that imports the package from `checkout`."
    words = [sys.executable, str(Path(__file__).resolve()), '--here']
    env = os.environ|dict(PYTHONPATH=str(Path(checkout).resolve()), OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1')
    with tempfile.TemporaryDirectory() as d:
        p = subprocess.run(words, cwd=d, env=env, capture_output=True, text=True)
    if p.returncode: raise SystemExit(f'{checkout}: {p.stderr[-1500:]}')
    return json.loads(p.stdout.splitlines()[-1])

def main(old, new, rounds=4):
    pairs = []
    for i in range(int(rounds)):
        pairs.append((measure(old), measure(new)))
        print(i, *pairs[-1], flush=True)
    for k in pairs[0][0]:
        ratios = [b[k]/a[k] for a,b in pairs]
        print(f'{k}: new/old {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})')

if __name__=='__main__':
    if sys.argv[1:]==['--here']: print(json.dumps(chapters()|on_trl()))
    elif len(sys.argv) in (3, 4): main(*sys.argv[1:])
    else: sys.exit(__doc__)
