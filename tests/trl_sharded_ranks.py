"""What each process does, for `test_trl_sharded.py`: run by torchrun with an output folder and a comma
list of scenes, one after the other."""

import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import trl_tiny as T
from transformers import TrainerCallback

out,scenes,rank = Path(sys.argv[1]),sys.argv[2].split(','),int(os.environ['RANK'])
T.folder = lambda: os.environ['TINY']
KEYS = ('prompt_ids','prompt_mask','completion_ids','completion_mask','advantages','replayed','replay_dead',
    'num_items_in_batch')

def rewards(completions, prompts, **kw):
    r = T.n_red(completions)
    # decided by the prompt, so that straddling groups are dead on both
    return [1. if len(p)%2 else o for p,o in zip(prompts, r)]

def make(name, steps, reward=rewards, **kw):
    opts = dict(output_dir=str(out/name), max_steps=steps, save_strategy='steps', save_steps=3,
        per_device_train_batch_size=8, learning_rate=5e-3, lr_scheduler_type='constant', replay_buffer_size=4)
    own = {k:kw.pop(k) for k in ('dataset','model_','peft_config','rollout_func') if k in kw}
    return T.trainer(reward, args=T.config(**(opts | kw)), **own)

def full(p): return (p.full_tensor() if hasattr(p, 'full_tensor') else p).detach().clone()

def keep(name, t, got=()):
    w = {k:full(v) for k,v in t.accelerator.unwrap_model(t.model).state_dict().items()}
    own = ('loss','grad_norm','step','lr_factor')
    log = [{k:v for k,v in o.items() if k.startswith('replay/') or k in own} for o in t.state.log_history]
    torch.save(dict(w=w, b=t.buffer.state_dict(), log=log,
        batches=[{k:o[k] for k in KEYS} for o in got],
        calls=t.buffer.ranks.calls,
        sharded=any(hasattr(p, 'full_tensor') for p in t.model.parameters()),
        step=t.state.global_step, by=t.stopped_by), out/f'{name}{rank}')

def run(name, steps=6, resume=None, folder=None, callback=None, reward=rewards, **kw):
    t = make(folder or name, steps, reward, **kw)
    got = T.spy(t)
    if callback: t.add_callback(callback)
    t.train(resume_from_checkpoint=resume)
    keep(name, t, got)
    return t

def refused(name, **kw):
    try: make(name, 1, **kw); said = 'nothing'
    except ValueError as e: said = str(e)
    (out/f'{name}{rank}').write_text(said)

class Signal(TrainerCallback):
    "SIGTERM on rank 0 before the third step's generation; rank 1 has it within."
    def on_step_begin(self, args, state, control, **kw):
        if state.global_step==2 and rank==0: os.kill(os.getpid(), signal.SIGTERM)

def signalled(completions, prompts, trainer_state, **kw):
    if trainer_state.global_step==2 and rank==1: os.kill(os.getpid(), signal.SIGTERM)
    return rewards(completions, prompts)
signalled.__name__ = 'rewards'

def judge(completions, prompts, trainer_state, **kw):
    import time
    if trainer_state.global_step==1 and rank==1:
        if scenes==['hangs']: time.sleep(900)
        raise KeyError('no solution')
    return rewards(completions, prompts)

def letters(completions, **kw):
    "Seldom the same for all of a group."
    return [float(sum(map(ord, c))%7+i%2) for i,c in enumerate(completions)]

failed = []
def fails(completions, prompts, trainer_state, **kw):
    "On rank 1 alone, in the fourth step; a second run finds it mended."
    if trainer_state.global_step==3 and rank==1 and not failed:
        failed.append(1)
        raise KeyError('no solution')
    return rewards(completions, prompts)
fails.__name__ = 'rewards'

calls = []
def fails_late(completions, prompts, trainer_state, **kw):
    "On rank 1 alone, in the second batch of the fourth step of two batches each."
    calls.append(1)
    if len(calls)==8 and rank==1: raise KeyError('no solution')
    return rewards(completions, prompts)
fails_late.__name__ = 'rewards'

def dies_once(completions, prompts, trainer_state, **kw):
    "As by kill -9, on both ranks in the third step; the same command lives on when it is given again."
    died = out/f'died{rank}'
    if trainer_state.global_step==2 and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return rewards(completions, prompts)
dies_once.__name__ = 'rewards'

def adapters():
    "LoRA on a Llama; adapters that begin at random, so that the first step moves all of them."
    from peft import LoraConfig
    return dict(model_=T.llama(), peft_config=LoraConfig(r=2, target_modules='all-linear',
        init_lora_weights=False, task_type='CAUSAL_LM'))

class Fixed:
    "The same answers on any number of processes; of a batch's 4 groups `live[i]` are alive."
    live,calls = [4,1,0,3],0
    def __call__(self, prompts, trainer):
        ids = [trainer.processing_class(p)['input_ids'] for p in prompts]
        first = rank*len(prompts)
        self.calls += 1
        def answer(i):   # of row i of all processes
            alive = i//4<self.live[(self.calls-1)%4]
            return [9+(i*alive+self.calls)%20]*3
        done = [answer(first+i) for i in range(len(prompts))]
        return dict(prompt_ids=ids, completion_ids=done, logprobs=[[-1.]*3 for _ in done])
def tokens(completion_ids, **kw): return [float(o[0]) for o in completion_ids]

MU2 = dict(num_iterations=2, beta=.1, sync_ref_model=True, ref_model_sync_steps=2)
for scene in scenes:
    if scene=='whole': run(scene)
    if scene=='straddle': run(scene, per_device_train_batch_size=6)
    if scene=='mu2': run(scene, **MU2)
    if scene=='scaled':
        run(scene, steps=4, reward=tokens, rollout_func=Fixed(), shuffle_dataset=False, replay_buffer_size=0,
            replay_unreplaced='mask', scale_lr_by_alive='sqrt', save_strategy='no',
            per_device_train_batch_size=16//int(os.environ['WORLD_SIZE']))
    if scene=='disagree': refused(scene, learning_rate=1e-3*(rank+1), seed=rank)
    if scene=='other_data': refused(scene, dataset=T.data(17-rank))
    if scene=='images': refused(scene, dataset=T.data(image=['a']*17))
    if scene=='signal': run(scene, callback=Signal(), reward=signalled, save_steps=100, **MU2)
    if scene=='resumed': run(scene, resume=True, folder='signal', **MU2)
    if scene=='from_one': run(scene, resume=os.environ['FROM_ONE'])
    if scene=='fsdp2':
        from on_cpu import fsdp2_on_cpu
        fsdp2_on_cpu()
        run(scene, per_device_train_batch_size=6)
        run('fsdp2_resumed', resume=str(out/'fsdp2'/'checkpoint-3'), folder='fsdp2',
            per_device_train_batch_size=6)
    if scene=='parts':
        from on_cpu import fsdp2_on_cpu
        fsdp2_on_cpu(fsdp_state_dict_type='SHARDED_STATE_DICT')
        run(scene, per_device_train_batch_size=6).save_model(str(out/'parts_model'))
        run('parts_resumed', resume=str(out/scene/'checkpoint-3'), folder=scene,
            per_device_train_batch_size=6)
    if scene=='stored':
        kw = dict(replay_stored_per_fresh=1, num_iterations=2, save_steps=5, reward=letters)
        run(scene, **kw)
        run('stored_resumed', resume=str(out/'stored'/'checkpoint-5'), folder=scene, **kw)
    if scene=='stored_local':
        t = make(scene, 5, replay_stored_per_fresh=1, replay_scope='local')
        got = T.spy(t)
        t.train()
        torch.save([{k:o[k] for k in KEYS} for o in got], out/f'{scene}{rank}')
    if scene=='own':   # a buffer each
        kw = dict(replay_scope='local', num_iterations=2)
        run(scene, **kw)
        run('own_resumed', resume=str(out/'own'/'checkpoint-3'), folder=scene, **kw)
    if scene=='mended':
        t = make(scene, 6, fails, save_strategy='no')
        try: t.train()
        except Exception as e:
            (out/f'mended_said{rank}').write_text(f'{type(e).__name__}: {e} '+' '.join(getattr(e, '__notes__',
                [])))
        run(scene, resume='auto', save_strategy='no')
    if scene=='accumulated':
        kw = dict(gradient_accumulation_steps=2, steps_per_generation=1, replay_stored_per_fresh=1,
            save_strategy='no')
        run(scene, **kw)
        try: make('late', 6, fails_late, **kw).train()
        except Exception as e: (out/f'late_said{rank}').write_text(' '.join(getattr(e, '__notes__', [])))
        run('late_mended', resume=True, folder='late', **kw)
    if scene=='objective':   # resumes of 'stored'
        for name,reward,weights in (('added', [letters, rewards], None), ('turned', letters, [-1.])):
            t = make('stored', 6, reward, replay_stored_per_fresh=1, num_iterations=2, reward_weights=weights)
            got = T.spy(t)
            try:
                t.train(resume_from_checkpoint=str(out/'stored'/'checkpoint-5'))
                said = 'nothing'
            except Exception as e: said = f'{type(e).__name__} after {len(got)} batches: {e}'
            (out/f'{name}{rank}').write_text(said)
    if scene=='moving':
        from on_cpu import fsdp2_on_cpu
        fsdp2_on_cpu(fsdp_cpu_ram_efficient_loading=False)
        kw = dict(beta=.1, sync_ref_model=True, ref_model_sync_steps=1, ref_model_mixup_alpha=.5,
            save_steps=2)
        run(scene, steps=4, **kw)
        run('moving_resumed', steps=4, resume=str(out/'moving'/'checkpoint-2'), folder=scene, **kw)
    if scene in ('llama','llama_fsdp2','llama_killed'):
        if scene!='llama':
            from on_cpu import fsdp2_on_cpu
            fsdp2_on_cpu(fsdp_cpu_ram_efficient_loading=False)
        kw = dict(steps=4, save_steps=2, per_device_train_batch_size=6)
        if scene=='llama_killed':
            run(scene, resume='auto', reward=dies_once, **kw, **adapters())
            continue
        run(scene, **kw, **adapters())
        run(f'{scene}_resumed', resume=str(out/scene/'checkpoint-2'), folder=scene, **kw, **adapters())
    if scene in ('zero2','zero3'):
        run(scene, per_device_train_batch_size=6, use_cpu=False, ddp_backend='gloo', save_strategy='no')
    if scene in ('hangs','raises'): make(scene, 3, judge, ddp_timeout=20).train()
