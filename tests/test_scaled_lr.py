"`scale_lr_by_alive`: the rate of a batch follows the share of its groups that teach, nothing else does."
import io, math
from contextlib import contextmanager, redirect_stdout
import pytest, torch
from grpo_nb import trainer as tr
from grpo_nb.parts.groups import live_groups, lr_factor
from grpo_nb.run.optim import MasterAdamW, scaled_step
from grpo_nb.tiny_qwen import load_model
from grpo_nb.trainer import TrainConfig, init_state, train, train_batch

torch.set_num_threads(1)
ROWS = [dict(prompt=f'{a}+{b}=') for a in range(4) for b in range(4)]
SMALL = dict(generation_batch_size=16, num_generations=4, steps_per_generation=2, max_completion_length=4,
    disable_tqdm=True, learning_rate=1e-2, max_steps=8)

def lives(k):
    "A reward that tells the answers apart in the first `k(step)` groups of a batch."
    def reward(completions, trainer_state, **kw):
        n = k(trainer_state.global_step)
        return [float(i%2)*(i<4*n) for i in range(len(completions))]
    return reward

def weights(model): return [p.detach().clone() for p in model.parameters()]

@contextmanager
def gradients(s):
    "The gradient of every optimizer step, taken or not, before it."
    seen,inner = [],tr.scaled_step
    def step(optimizer, factor):
        seen.append(([p.grad.clone() for p in s.model.parameters()], s.scheduler.get_last_lr()[0]))
        return inner(optimizer, factor)
    tr.scaled_step = step
    try: yield seen
    finally: tr.scaled_step = inner

def adamw(start, steps, decay=.01, b1=.9, b2=.999, eps=1e-8):
    "AdamW by hand in float64: (gradients, rate or 0 for no step) -> weights."
    w = [x.double() for x in start]
    m,v,n = [torch.zeros_like(x) for x in w],[torch.zeros_like(x) for x in w],0
    for grads,lr in steps:
        if lr is None: continue
        n += 1
        for i,g in enumerate(grads):
            g = g.double()
            m[i],v[i] = b1*m[i]+(1-b1)*g,b2*v[i]+(1-b2)*g*g
            w[i] = w[i]*(1-lr*decay)-lr*(m[i]/(1-b1**n))/((v[i]/(1-b2**n)).sqrt()+eps)
    return w

PLAIN = dict(replay_buffer_size=0)
CASES = [dict(), dict(num_iterations=2), dict(steps_per_generation=4),
    dict(lr_scheduler_type='linear', warmup_steps=2), PLAIN, PLAIN|dict(beta=.1),
    PLAIN|dict(skip_zero_advantage=True), dict(strategy='mask'), dict(strategy='gfpo'),
    dict(strategy='dynamic'),
    dict(loss_type='cispo', epsilon_high=1.2)]

@pytest.mark.parametrize('how', ['sqrt','linear'])
@pytest.mark.parametrize('case', CASES, ids=lambda o: '-'.join(o) or 'usual')
def test_each_step_is_adamws_at_the_rate_times_the_share(case, how):
    alive = [2, 1, 3, 0]   # of 4 groups, batch by batch
    s = init_state(*load_model('tiny'), ROWS, lives(lambda step: alive[step//per]),
        TrainConfig(**SMALL|dict(scale_lr_by_alive=how, weight_decay=.01, strategy='replay',
            max_steps=64)|case))
    per = s.args.steps_per_batch
    start,steps = weights(s.model),[]
    for n in alive:
        with gradients(s) as seen: info = train_batch(s)
        r = info.processed.batch.rewards
        A = info.processed.batch.advantages
        share = sum(any(a!=0 for a in row) for row in A.tolist())/4
        if case.get('replay_buffer_size')==0: assert share==n/4
        factor = math.sqrt(share) if how=='sqrt' else share
        assert info.row['lr_factor']==pytest.approx(factor) and len(seen)==per and len(r)==4
        steps += [(g, lr*factor if factor else None) for g,lr in seen]
    want = adamw(start, steps)
    off = max((a.double()-b).abs().max().item() for a,b in zip(weights(s.model), want))
    assert off<2e-6, off

def run(**more):
    s = train(*load_model('tiny'), ROWS, lives(lambda step: 2), TrainConfig(**SMALL|more))
    return weights(s.model),s.history

def same(a, b): return all(map(torch.equal, a, b))

def test_off_is_off_to_the_bit(monkeypatch):
    usual,history = run()
    assert all('lr_factor' not in o for o in history)
    monkeypatch.setattr(tr, 'scaled_step', lambda optimizer, factor: optimizer.step())
    assert same(usual, run(scale_lr_by_alive='none')[0])
    monkeypatch.undo()
    assert not same(usual, run(scale_lr_by_alive='sqrt', replay_buffer_size=0)[0])

def test_where_nothing_lives_no_step_is_taken_and_it_is_said(recwarn):
    out = io.StringIO()
    s = init_state(*load_model('tiny'), ROWS, lives(lambda step: 2 if step<2 else 0),
        TrainConfig(**SMALL|PLAIN|dict(scale_lr_by_alive='sqrt', beta=.1, lr_scheduler_type='linear')))
    train_batch(s)
    before,state = weights(s.model),[{k:v.clone() for k,v in o.items()} for o in s.optimizer.state.values()]
    rate,row = s.scheduler.get_last_lr(),train_batch(s).row
    assert row['lr_factor']==0 and row['grad_norm']>0 and s.step==4 and s.scheduler.get_last_lr()<rate
    assert same(before, weights(s.model))
    for o,was in zip(s.optimizer.state.values(), state): assert all(torch.equal(o[k], was[k]) for k in was)
    with redirect_stdout(out):
        train(*load_model('tiny'), ROWS, lives(lambda step: 0), TrainConfig(**SMALL|dict(disable_tqdm=False,
            scale_lr_by_alive='linear')))
    assert out.getvalue().count('no step is taken')==4
    assert not [o for o in recwarn if 'lr_scheduler' in str(o.message)]

def test_a_run_resumes_to_the_bit(tmp_path):
    how = dict(scale_lr_by_alive='sqrt', replay_buffer_size=0, lr_scheduler_type='linear')
    whole,history = run(**how)
    reward = lives(lambda step: 2)
    args = TrainConfig(**SMALL|how|dict(output_dir=str(tmp_path), save_steps=4))
    class Enough(Exception): pass
    def stop(s, batch):
        if s.step==6: raise Enough
    with pytest.raises(Enough): train(*load_model('tiny'), ROWS, reward, args, callbacks=[stop])
    s = train(*load_model('tiny'), ROWS, reward, args, resume_from_checkpoint=True)
    assert same(whole, weights(s.model))
    assert [o['lr_factor'] for o in s.history]==[o['lr_factor'] for o in history]
    with pytest.raises(ValueError, match='scale_lr_by_alive: sqrt then, none now'):
        train(*load_model('tiny'), ROWS, reward, args, scale_lr_by_alive='none', resume_from_checkpoint=True)

@pytest.mark.parametrize('kind', [torch.optim.AdamW, MasterAdamW])
def test_every_optimizer_of_a_run_takes_the_scaled_step(kind):
    def after(factor, lr):
        dtype = torch.bfloat16 if kind is MasterAdamW else torch.float32
        p = torch.nn.Parameter(torch.linspace(-1, 1, 6).view(2, 3).to(dtype))
        opt = kind([p], lr=lr, weight_decay=.1)
        p.grad = torch.ones_like(p)
        scaled_step(opt, factor)
        assert [g['lr'] for g in opt.param_groups]==[lr]
        return p.detach()
    assert torch.equal(after(.5, .2), after(1., .1)) and not torch.equal(after(.5, .2), after(1., .2))

def test_what_lives_has_an_advantage_on_a_token_that_counts():
    A = torch.tensor([[1., -1], [0, 0], [0, 2], [3, -3]])
    mask = torch.ones(4, 2, 3).bool()
    mask[2,1],mask[3] = False,False   # the one answer with an advantage; all of the last group
    assert live_groups(A, mask).tolist()==[True,False,False,False]
    by_token = A[...,None]*torch.tensor([1., 0, 0])
    mask[0,:,0] = False   # the one token with an advantage
    assert live_groups(by_token, mask).tolist()==[False]*4
    assert live_groups(A, mask, torch.tensor([False,True,True,True])).tolist()==[False]*4
    assert [lr_factor(.25, o) for o in ('none','sqrt','linear')]==[1, .5, .25]
