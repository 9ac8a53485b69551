"What two processes do, for `test_trl_record.py`: run by torchrun with an output folder and a scene."
import os, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import trl_tiny as T

out,scene,rank = Path(sys.argv[1]),sys.argv[2],int(os.environ['RANK'])
T.folder = lambda: os.environ['TINY']

def rewards(completions, prompts, **kw):
    r = T.n_red(completions)
    # decided by the prompt, so that straddling groups are dead on both
    return [1. if len(p)%2 else o for p,o in zip(prompts, r)]

kw = dict(local=dict(replay_scope='local'), shared={}, straddle=dict(per_device_train_batch_size=5,
    steps_per_generation=2))[scene]
t = T.trainer(rewards, args=T.config(**(dict(output_dir=str(out), max_steps=6, per_device_train_batch_size=8,
    steps_per_generation=2, learning_rate=5e-3, lr_scheduler_type='constant', replay_buffer_size=4,
    record_tokens=True) | kw)))
got = T.spy(t); t.train()
torch.save(dict(batches=got), out/f'facts{rank}')
