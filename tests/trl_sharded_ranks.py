"What each process does, for `test_trl_sharded.py`: run by torchrun with an output folder and a scene."
import os, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import trl_tiny as T

out,scene,rank = Path(sys.argv[1]),sys.argv[2],int(os.environ['RANK'])
T.folder = lambda: os.environ['TINY']
G = 4

def rewards(completions, prompts, **kw):
    r = T.n_red(completions)
    return [1. if len(p)%2 else o for p,o in zip(prompts, r)]    # decided by the prompt, so that straddling groups are dead on both

def make(name, steps, **kw): return T.trainer(rewards, args=T.config(**(dict(output_dir=str(out/name), max_steps=steps, save_strategy='steps', save_steps=3, per_device_train_batch_size=int(os.environ.get('SHARDED_ROWS', 8)), learning_rate=5e-3, lr_scheduler_type='constant', replay_buffer_size=4*2//int(os.environ['WORLD_SIZE'])) | kw)))

def facts(t): return dict(w=T.weights(t), b=t.shared and t.shared.state_dict(), log=[{k:v for k,v in o.items() if k.startswith('replay/')} for o in t.state.log_history])

KEYS = ('prompt_ids','prompt_mask','completion_ids','completion_mask','advantages','replayed','replay_dead','num_items_in_batch')
if scene in ('whole','straddle','mu2'):
    t = make('a', 6, **dict(whole={}, straddle=dict(per_device_train_batch_size=6), mu2=dict(num_iterations=2, beta=.1, sync_ref_model=True, ref_model_sync_steps=2))[scene])
    got = T.spy(t); t.train()
    torch.save(facts(t)|dict(batches=[{k:o[k] for k in KEYS} for o in got], calls=t.shared.ranks.calls), out/f'facts{rank}')
elif scene=='first': make('r', 3).train()
elif scene=='second':
    t = make('r', 6); t.train(resume_from_checkpoint=True)
    torch.save(facts(t), out/f'facts{rank}')
