"Runs on TRL that are saved after each step, and what two of them are compared by"

import torch
import trl_tiny as T

G = 4

def rewards(completions, **kw):
    "A pure function of the text, with dead groups among them."
    out = T.n_red(completions)
    for g in range(0, len(out), G):
        if sum(map(len, map(str, completions[g:g+G])))%2==0: out[g:g+G] = [1.]*G
    return out

def buffers_equal(a, b): return equal(a.state_dict(), b.state_dict())

def equal(a, b):
    if isinstance(a, torch.Tensor): return torch.equal(a, b)
    if isinstance(a, dict): return a.keys()==b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list,tuple)): return len(a)==len(b) and all(map(equal, a, b))
    return a==b

def logs(t):
    "What each step logged, without what a clock says"
    return [{k:v for k,v in o.items() if 'time' not in k and 'runtime' not in k and 'second' not in k
        and k not in ('train_loss','total_flos')} for o in t.state.log_history if 'loss' in o]

def make(out, steps, peft=False, **kw):
    "A trainer with a checkpoint after each step"
    own = {}
    if peft:
        from peft import LoraConfig
        own['peft_config'] = LoraConfig(r=2, target_modules=['q_proj','v_proj'], init_lora_weights=False)
    data = kw.pop('dataset', None)
    opts = dict(output_dir=str(out), max_steps=steps, save_strategy='steps', save_steps=1, learning_rate=5e-3,
        per_device_train_batch_size=8, lr_scheduler_type='constant') | kw
    return T.trainer(rewards, args=T.config(**opts), dataset=data, **own)
