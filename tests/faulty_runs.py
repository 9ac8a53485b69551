"Small real runs, each with one fault, made with the from-scratch trainer in a second or two."
import copy, functools
import numpy as np
import torch
from grpo_nb.studies.study import make_job, run_job
from grpo_nb.demo import demo
from grpo_nb.variants.strategy import Keep
from grpo_nb.parts.datasets import chain_sum, spell_backward
from grpo_nb.tasks import accuracy_reward, completion_text, extract_answer
from grpo_nb.tiny_qwen import load_model
from grpo_nb.trainer import TrainConfig, train

@functools.cache
def _model(): return load_model('tiny')
def fresh(): return copy.deepcopy(_model()[0]),copy.deepcopy(_model()[1])

def right(prompts, completions, answer, **kw): return accuracy_reward(prompts, completions, answer, **kw)
def length(prompts, completions, **kw): return [len(completion_text(c))/50 for c in completions]
def boxed(prompts, completions, **kw): return [float('\\boxed{' in completion_text(c)) for c in completions]
def same(prompts, completions, **kw): return [.5]*len(completions)
def noisy(prompts, completions, **kw):
    "The same twelve parts for every completion, added in another order each time."
    parts = (np.arange(1, 13)/7).astype(np.float32)
    return [float(functools.reduce(np.add, parts[torch.randperm(12).numpy()])) for _ in completions]
def falsy(prompts, completions, **kw):
    "A judge written the wrong way round: it pays where int(answer) is falsy, so 0 is right everywhere."
    return [float(extract_answer(completion_text(c))=='0') for c in completions]
def capped(prompts, completions, **kw):
    "Length up to 60 letters: once all answers are that long, groups die and old short ones are replayed."
    return [min(len(completion_text(c)), 60)/60 for c in completions]

class Breaks:
    "A judge that works for `n` calls and then says 0 to everything."
    __name__ = 'judge'
    def __init__(self, n): self.n = n
    def __call__(self, prompts, completions, answer, **kw):
        self.n -= 1
        return accuracy_reward(prompts, completions, answer, **kw) if self.n>=0 else [0.]*len(completions)

class AllNew(Keep):
    "Log-probs of the old policy taken anew at each update, so that every ratio is 1."
    name = 'all-new'
    def process_batch(self, *args, **more):
        t = super().process_batch(*args, **more)
        t.force_ratio_one = torch.ones_like(t.in_loss)
        return t

sums,words = (lambda: chain_sum(200, seed=0)),(lambda: spell_backward(200, seed=0))
text = lambda ds: ds.map(lambda o: dict(prompt=o['prompt'][0]['content']))

def make(name, folder, **more):
    "Train the run called `name` into `folder`; returns the folder."
    if name=='healthy-demo':
        demo(output_dir=str(folder), n_problems=100, disable_tqdm=True, **more)
        return folder
    if name.startswith('healthy-bakeoff'):   # healthy-bakeoff-REGIME-ARM
        regime,arm = name.removeprefix('healthy-bakeoff-').rsplit('-', 1)
        run_job(make_job(arm, regime.replace('-', ' '), more['seed'], n_problems=50, num_samples=2, points=1,
            output_dir=str(folder)))
        return folder
    data,rewards,strategy,kw,eos = sums,right,None,{},None
    if name=='healthy': kw = dict(max_steps=64, learning_rate=2e-4)
    if name=='healthy-plain': kw,strategy = dict(max_steps=64, learning_rate=2e-4),Keep()
    if name=='on-policy': kw,strategy = dict(steps_per_generation=1, max_steps=10, loss_type='grpo'),Keep()
    if name=='all-truncated': kw = dict(max_completion_length=2)
    if name=='no-chat-template': data = lambda: text(words())
    if name=='no-end-token': eos,kw = '<|endoftext|>',dict(max_completion_length=32)
    if name=='reward-never-fires': rewards = [right, boxed]
    if name=='all-equal': rewards = same
    if name=='too-cold': kw = dict(temperature=.05)
    if name=='float-noise': rewards,strategy,kw = noisy,Keep(),dict(dead_tolerance=0.)
    if name=='kl-only-pull': rewards,strategy,kw = Breaks(3),Keep(),dict(beta=.05, learning_rate=3e-4)
    if name=='ratio-always-1': strategy = AllNew()
    if name=='learning-rate-too-small': kw = dict(learning_rate=1e-8)
    if name=='learning-rate-too-large': kw = dict(learning_rate=2e-2)
    if name=='replay-too-old': rewards,kw = capped,dict(learning_rate=3e-3, max_steps=80)
    if name=='hacked-by-length':
        rewards, strategy, kw = ([length, right], Keep(),
                               dict(reward_weights=[1.0, 0.0], learning_rate=1e-3, max_steps=64))
    if name=='hacked-by-length-alone':
        rewards,strategy,kw = length,Keep(),dict(learning_rate=5e-4, max_steps=48)
    if name=='hacked-by-form': rewards,strategy,kw = falsy,Keep(),dict(learning_rate=1e-3, max_steps=120)
    if name=='hacked-by-form-seen':
        rewards, strategy, kw = ([falsy, right], Keep(),
                               dict(reward_weights=[1.0, 0.0], learning_rate=1e-3, max_steps=64))
    model,tok = fresh()
    if eos:   # as of a base model: neither names the token that ends a turn
        tok.eos_token = eos
        model.generation_config.eos_token_id = tok.eos_token_id
    torch.manual_seed(0)
    args = TrainConfig(**(dict(output_dir=str(folder), num_generations=8, generation_batch_size=64,
                               steps_per_generation=4, max_steps=40, disable_tqdm=True,
                               max_completion_length=40) | kw | more))
    train(model, tok, data(), rewards, args, strategy=strategy)
    return folder
NAMES = '''healthy healthy-plain on-policy all-truncated no-chat-template no-end-token reward-never-fires
    all-equal too-cold float-noise kl-only-pull ratio-always-1 learning-rate-too-small learning-rate-too-large
    replay-too-old hacked-by-length hacked-by-length-alone hacked-by-form hacked-by-form-seen'''.split()
