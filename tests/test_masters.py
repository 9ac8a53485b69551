"bfloat16 weights with float32 masters: a whole run against Adam by hand; resume; what a run takes on a GPU."
import numpy as np
import pytest, torch
from grpo_nb import cli
from grpo_nb.run.optim import MasterAdamW
from grpo_nb.tiny_qwen import tiny_model
from grpo_nb.trainer import train
from small_run import DATA, TOK, cfg, parity

def bf16(): return tiny_model(0).to(torch.bfloat16)

def by_hand(w, grads, lr, b1=.9, b2=.999, eps=1e-8):
    "Float32 masters after Adam's steps, from the formula: one array of gradients a step."
    w,m,v = w.astype(np.float64),0.,0.
    for t,g in enumerate(grads, 1):
        g = g.astype(np.float64)
        m,v = b1*m+(1-b1)*g,b2*v+(1-b2)*g*g
        w = w-lr*(m/(1-b1**t))/(np.sqrt(v/(1-b2**t))+eps)
    return w

def test_a_run_equals_adam_by_hand_on_float32_masters(monkeypatch):
    model,grads,old = bf16(),[],MasterAdamW.step
    before = [p.detach().float().numpy().copy() for p in model.parameters()]
    def step(self):
        grads.append([p.grad.float().numpy().copy() for p in self.weights])
        return old(self)
    monkeypatch.setattr(MasterAdamW, 'step', step)
    s = train(model, TOK, DATA, parity, cfg(learning_rate=1e-4, max_steps=6))
    assert len(grads)==6 and all(p.dtype==torch.bfloat16 for p in model.parameters())
    hidden = 0
    for i,(p,m,w) in enumerate(zip(model.parameters(), s.optimizer.masters, before)):
        want = by_hand(w, [g[i] for g in grads], 1e-4)
        assert m.dtype==torch.float32
        np.testing.assert_allclose(m.detach().numpy(), want, rtol=0, atol=3e-7)
        assert torch.equal(p.detach(), m.detach().bfloat16())
        hidden += int((p.detach().float()!=m.detach()).sum())
    assert hidden>1000   # digits that only the masters hold

def test_small_steps_arrive_where_plain_adamw_loses_them():
    def moved(opt, w):
        for _ in range(50):
            w.grad = torch.ones_like(w)
            opt.step()
        return 1-w.item()
    make = lambda: torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    a,b = make(),make()
    assert moved(torch.optim.AdamW([a], lr=1e-4, weight_decay=0.), a)==0
    assert moved(MasterAdamW([b], lr=1e-4, weight_decay=0.), b)==pytest.approx(.005, abs=.004)

def test_a_resumed_run_has_its_masters(tmp_path):
    def run(steps, resume=None, name='a', model=None):
        args = cfg(max_steps=steps, save_steps=4, output_dir=str(tmp_path/name))
        return train(model or bf16(), TOK, DATA, parity, args, resume_from_checkpoint=resume)
    whole = run(8, name='whole')
    run(4)
    part = run(8, resume=True)
    for x,y in zip(whole.optimizer.masters, part.optimizer.masters): assert torch.equal(x, y)
    for x,y in zip(whole.model.parameters(), part.model.parameters()): assert torch.equal(x, y)

def test_a_large_models_step_takes_one_tensor_after_another_with_the_same_bits(monkeypatch):
    from grpo_nb.run import optim
    def run():
        s = train(tiny_model(0), TOK, DATA, parity, cfg(max_steps=4))
        return s.optimizer.defaults['foreach'],s.model
    all_at_a_time,a = run()
    monkeypatch.setattr(optim, 'FOREACH_MAX_PARAMS', 1000)
    chosen,b = run()
    assert all_at_a_time and not chosen   # `foreach` needs another copy of all weights for a moment
    for x,y in zip(a.parameters(), b.parameters()): assert torch.equal(x, y)

# -- what `grpo_nb train` takes ---------------------------------------------------------------------
@pytest.mark.parametrize('there,said,device,dtype', [(True, {}, 'cuda', 'bfloat16'),
    (False, {}, 'cpu', 'float32'), (True, dict(device='cpu'), 'cpu', 'float32'),
    (True, dict(device='cuda:1'), 'cuda:1', 'bfloat16'), (True, dict(dtype='float32'), 'cuda', 'float32'),
    (False, dict(dtype='bfloat16'), 'cpu', 'bfloat16')])
def test_train_uses_the_gpu_that_is_there_and_what_is_said(monkeypatch, there, said, device, dtype):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: there)
    monkeypatch.setattr(torch, 'Generator', lambda device: None)
    asked = {}
    class Model:
        def to(self, where):
            asked['device'] = where
            raise InterruptedError
    def load(name, kept):
        asked['dtype'] = kept
        return Model(),None
    monkeypatch.setattr('grpo_nb.tiny_qwen.load_model', load)
    with pytest.raises(InterruptedError): cli.train_command(dataset='sums', **said)
    assert asked==dict(device=device, dtype=dtype)
