"The learning rate on TRL times the share of living groups: exact, off to the bit, over batches and resumes."
import shutil
import pytest, torch
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
import trl_tiny as T
from trl_tiny import DEAD, LIVE, Scripted

torch.set_num_threads(1)
G = 4

class Rates(TrainerCallback):
    "The learning rate that the optimizer sees in each step, and how far the weights go."
    def __init__(self): self.rates,self.moves = [],[]
    def on_pre_optimizer_step(self, args, state, control, optimizer=None, model=None, **kw):
        self.rates.append(optimizer.param_groups[0]['lr'])
        self.before = [p.detach().clone() for p in model.parameters()]
    def on_optimizer_step(self, args, state, control, model=None, **kw):
        self.moves.append(sum((p-q).abs().sum().item() for p,q in zip(model.parameters(), self.before)))

def run(plan, how, steps=4, resume=None, **kw):
    own = dict(per_device_train_batch_size=4*G, max_steps=steps, learning_rate=1e-2,
        lr_scheduler_type='constant', replay_buffer_size=0, scale_lr_by_alive=how)
    t = T.trainer(Scripted(plan, G), **(own|kw))
    see = Rates()
    t.add_callback(see)
    t.train(resume)
    return t,see

def share(n): return [LIVE]*n+[DEAD]*(4-n)   # of 4 groups

@pytest.mark.parametrize('how', ['sqrt','linear'])
def test_each_step_has_the_rate_of_its_share_and_none_where_nothing_lives(how, caplog):
    t,see = run(share(4)+share(1)+share(0)+share(2), how)
    factors = [{'sqrt':s**.5, 'linear':s}[how] for s in (1, .25, 0, .5)]
    assert see.rates==pytest.approx([.01*f for f in factors])
    assert [o['lr_factor'] for o in t.state.log_history if 'loss' in o]==pytest.approx(factors)
    assert [o['learning_rate'] for o in t.state.log_history if 'loss' in o]==[.01]*4
    assert see.moves[2]==0 and min(see.moves[i] for i in (0, 1, 3))>0
    assert 'step 3: no group of the batch teaches' in caplog.text
    adam = next(iter(t.optimizer.state.values()))
    assert adam['step'].item()==3   # the averages were left alone, too

def test_off_is_off_to_the_bit_and_all_alive_changes_nothing():
    plain = T.trainer(Scripted(share(4)+share(2), G), cls=GRPOTrainer, args=T.config(GRPOConfig,
        per_device_train_batch_size=4*G, max_steps=2))
    plain.train()
    off,_ = run(share(4)+share(2), 'none', steps=2, learning_rate=1e-3, lr_scheduler_type='linear')
    assert T.same(T.weights(plain), T.weights(off)) and 'lr_factor' not in off.state.log_history[0]
    on,_ = run(share(4), 'sqrt', steps=2)
    without,_ = run(share(4), 'none', steps=2)
    assert T.same(T.weights(on), T.weights(without))

def test_a_scheduler_goes_on_as_if_nothing_were_scaled():
    t,see = run(share(1)*4, 'linear', lr_scheduler_type='linear')
    assert see.rates==pytest.approx([.01*.25*r for r in (1, .75, .5, .25)])
    assert [o['learning_rate'] for o in t.state.log_history if 'loss' in o]==pytest.approx(
        [.01, .0075, .005, .0025])

@pytest.mark.parametrize('kw,rates', [
    (dict(steps_per_generation=2, num_iterations=2, per_device_train_batch_size=2*G), [.25]*4+[.75]*4),
    (dict(steps_per_generation=1, gradient_accumulation_steps=2), [.5]*4)])
def test_a_batch_of_several_steps_has_one_share_and_a_step_of_several_batches_their_mean(kw, rates):
    _,see = run((share(1)+share(3))*8, 'linear', steps=len(rates), **kw)
    assert see.rates==pytest.approx([.01*r for r in rates])

def test_a_replaced_group_is_alive_and_a_masked_or_truncated_one_is_not():
    _,see = run(share(4)+share(1), 'linear', steps=2, replay_buffer_size=8)
    assert see.rates==pytest.approx([.01, .01])
    _,see = run(share(1), 'linear', steps=1, replay_unreplaced='mask')
    assert see.rates==pytest.approx([.0025])
    t,see = run(share(4), 'linear', steps=1, mask_truncated_completions=True, max_completion_length=1,
        temperature=.1)
    b = t.batch.sampled.completion_mask.any(1).view(-1, G).any(1).float().mean().item()
    assert b<1 and see.rates==pytest.approx([.01*b])

def test_a_run_resumed_within_a_batch_has_its_share(tmp_path):
    kw = dict(steps_per_generation=2, per_device_train_batch_size=2*G, save_strategy='steps', save_steps=1)
    plan = share(1)+share(3)
    whole,see = run(plan, 'sqrt', output_dir=str(tmp_path/'a'), **kw)
    shutil.copytree(tmp_path/'a'/'checkpoint-1', tmp_path/'b'/'checkpoint-1')
    part,rest = run(plan[4:], 'sqrt', output_dir=str(tmp_path/'b'), resume=True, **kw)
    assert rest.rates==see.rates[1:] and T.same(T.weights(whole), T.weights(part))

def test_the_pages_callback_has_the_same_factors_in_plain_trl():
    from test_trl_page import REST
    block, = [b for b in REST if 'class ScaleByAlive' in b]
    space = {}
    exec(block[:block.index('scale = ')], space)
    plan,kw = share(4)+share(1)+share(0)+share(2),dict(per_device_train_batch_size=4*G, max_steps=4,
        learning_rate=1e-2, lr_scheduler_type='constant')
    scale,see = space['ScaleByAlive'](),Rates()
    scale.trainer = t = T.trainer(Scripted(plan, G), cls=GRPOTrainer, args=T.config(GRPOConfig, **kw),
        callbacks=[scale, see])
    t.train()
    ours,same = run(plan, 'sqrt')
    assert see.rates==same.rates and T.same(T.weights(t), T.weights(ours))
    assert t.optimizer.param_groups[0]['lr']==.01

def test_deepspeed_and_other_words_are_refused():
    with pytest.raises(ValueError, match='steps within the backward pass'):
        from grpo_nb.on_trl.config import _check_replay_settings
        a = T.config(scale_lr_by_alive='sqrt')
        a.deepspeed = 'zero3.json'
        _check_replay_settings(a)
    with pytest.raises(ValueError, match='scale_lr_by_alive.*one of'): T.config(scale_lr_by_alive='root')
