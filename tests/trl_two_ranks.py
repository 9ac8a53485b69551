"""What two processes do, for `test_trl_ranks.py`: run by torchrun with an output folder;
one scene after the other."""

import os, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import trl_tiny as T
from transformers import TrainerCallback

out,rank = Path(sys.argv[1]),int(os.environ['RANK'])
T.folder = lambda: os.environ['TINY']
G = 4

def rewards(completions, **kw):
    r = T.n_red(completions)
    for g in range(0, len(r), G):
        if sum(map(len, completions[g:g+G]))%2==0: r[g:g+G] = [1.]*G
    return r

def make(name, steps, **kw):
    return T.trainer(rewards, args=T.config(output_dir=str(out/name), max_steps=steps, replay_scope='local',
        save_strategy='steps', save_steps=1, per_device_train_batch_size=8, learning_rate=5e-3,
        lr_scheduler_type='constant', **kw))

def facts(t):
    return dict(w=T.weights(t), b=t.replay_buffer.state_dict(),
        log=[{k:v for k,v in o.items() if k.startswith('replay/')} for o in t.state.log_history])

for scene in ('straddle','resume','signal'):
    if scene=='straddle':
        try:
            T.trainer(rewards, args=T.config(output_dir=str(out), per_device_train_batch_size=2,
                replay_scope='local'))
            said = ''
        except ValueError as e: said = str(e)
        (out/f'said{rank}').write_text(said)
    if scene=='resume':
        a = make('a', 6, num_iterations=2); got = T.spy(a); a.train()
        import shutil
        if rank==0: shutil.copytree(out/'a'/'checkpoint-3', out/'b'/'checkpoint-3')
        a.accelerator.wait_for_everyone()
        b = make('b', 6, num_iterations=2); b.train(resume_from_checkpoint=True)
        torch.save(dict(a=facts(a), b=facts(b), items=[int(o['num_items_in_batch']) for o in got],
            local=[int(o['completion_mask'].sum()) for o in got],
            dead=[int(o['replay_dead'].sum()) for o in got]), out/f'facts{rank}')
    if scene=='signal':
        t = make('s', 6)
        class Send(TrainerCallback):
            def on_step_begin(self, args, state, control, **kw):
                if state.global_step==2 and rank==1: os.kill(os.getpid(), 15)
        t.add_callback(Send()); t.train()
        (out/f'step{rank}').write_text(f'{t.state.global_step} {t.stopped_by}')
