"""What `skip_zero_advantage` saves: processor time of an update with it and without it, in turns, by share of
zero-variance groups; a row each for `nbs/results/skip_rows.csv`, which `nbs/variants/batch_logps.ipynb`
shows.

    python benchmarks/skip_rows.py [file.csv]
"""
import sys, time
from statistics import median
import pandas as pd
import torch
from grpo_nb.parts.datasets import chain_sum
from grpo_nb.studies.study import machine
from grpo_nb.variants.strategy import Keep
from grpo_nb.tasks import accuracy_reward
from grpo_nb.tiny_qwen import load_model
from grpo_nb.trainer import TrainConfig, init_state, rollout, update_batch

def cpu_ms(f):
    "Processor time of a call."
    before = time.process_time()
    f()
    return 1e3*(time.process_time()-before)

def with_dead(s, batch, share):
    "The same answers with right and wrong ones in turn, but for the first groups, which are all right."
    B,G = batch.rewards.shape
    batch.rewards = (torch.arange(G)%2).float().repeat(B, 1)
    batch.rewards[:round(share*B)] = 1.
    batch.advantages = s.advantage_fn(batch.rewards)
    batch.dead = None
    return Keep().process_batch(batch)

def measure(share, advantages='grpo', rounds=15):
    "Medians of sampling 16 groups of 8, and of one step on them, whole and with answers left out."
    data = list(chain_sum(16, seed=1))
    args = TrainConfig(num_generations=8, generation_batch_size=128, steps_per_generation=1, strategy='keep',
        learning_rate=1e-9, disable_tqdm=True, output_dir=None, advantages=advantages)
    s = init_state(*load_model('tiny'), data, accuracy_reward, args)
    sampling = [cpu_ms(lambda: rollout(s, [*range(16)])) for _ in range(5)]
    processed = with_dead(s, rollout(s, [*range(16)])[0], share)
    spent = {False:[], True:[]}
    for _ in range(rounds+2):
        for skip in spent:
            s.args.skip_zero_advantage = skip
            spent[skip].append(cpu_ms(lambda: update_batch(s, processed)))
    whole,part = (median(spent[k][2:]) for k in (False, True))
    return dict(advantages=advantages, dead=share, sampling_ms=median(sampling), update_ms=whole,
        skipped_ms=part)

def main(path=None):
    torch.set_num_threads(1)
    tries = [(o, 'grpo') for o in (0., .25, .5, .75, .9375)]+[(.5, 'rft')]
    rows = pd.DataFrame([measure(*o)|dict(machine=machine()) for o in tries]).round(3)
    print(rows.to_string(index=False))
    if path: rows.to_csv(path, index=False)

if __name__=='__main__': main(*sys.argv[1:])
