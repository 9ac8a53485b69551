"""The five small records that the chapter on diagnosis reads for its word on reuse, written once into
nbs/results/reuse_runs: three runs of the demo (`tests/runs`), one of the trainer on TRL, trained here, and
the first one as verl would have logged it, with seconds as a large model has them."""
import json, sys, tempfile
from pathlib import Path
from grpo_nb.run.reading import read_run
from grpo_nb.see.readers import history_rows
sys.path.append(str(Path(__file__).resolve().parents[1]/'tests'))   # their helpers
from stored_runs import stored

AT = Path(__file__).parent.parent/'nbs'/'results'/'reuse_runs'
KEEP = ('step','reward','frac_reward_zero_std','generation_time','rollout_time','step_time',
    'replay/ess_answers')
TOLD = ('num_iterations','steps_per_generation','gradient_accumulation_steps','num_generations',
    'replay_stored_per_fresh','learning_rate')

def put(name, rows, settings):
    folder = AT/name
    folder.mkdir(parents=True, exist_ok=True)
    few = [{k:float(f'{o[k]:.4g}') for k in KEEP if o.get(k) is not None and o[k]==o[k]} for o in rows]
    (folder/'history.jsonl').write_text(''.join(json.dumps(o)+'\n' for o in few))
    args = {k:v for k,v in settings['args'].items() if k in TOLD}
    (folder/'settings.json').write_text(json.dumps(dict(trainer=settings.get('trainer'), args=args))+'\n')

def on_trl(folder, **more):
    "24 steps of the tiny Qwen on TRL's trainer, recorded, where `more` does not say otherwise"
    import faulty_runs
    from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferConfig, GRPOWithReplayBufferTrainer
    from grpo_nb.parts.datasets import chain_sum
    model,tok = faulty_runs.fresh()
    args = dict(per_device_train_batch_size=32, num_generations=8, max_completion_length=40,
        learning_rate=3e-4, report_to='none', use_cpu=True, bf16=False, logging_steps=1, max_steps=24,
        save_strategy='no', disable_tqdm=True, seed=0)
    args = GRPOWithReplayBufferConfig(output_dir=str(folder), **(args|more))
    GRPOWithReplayBufferTrainer(model=model, reward_funcs=faulty_runs.right, args=args,
        train_dataset=chain_sum(64, seed=0), processing_class=tok).train()
    return read_run(folder)

if __name__=='__main__':
    for i in range(3):
        run = stored(f'healthy-demo-{i}')
        put(f'demo_{i}', history_rows(run), run.settings)
    verl = [dict(step=o['step'], data={'critic/rewards/mean':round(o['reward'], 4), 'timing_s/gen':212.5+i%7,
        'timing_s/step':236.+i%5}) for i,o in enumerate(history_rows(stored('healthy-demo-0')))]
    (AT/'verl.jsonl').write_text(''.join(json.dumps(o)+'\n' for o in verl))
    with tempfile.TemporaryDirectory() as d:
        run = on_trl(Path(d)/'r')
        put('trl', history_rows(run), run.settings)
