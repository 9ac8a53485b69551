"Log-probs, entropies and KL: against loops without padding, TRL's code, finite differences and exact sums"
import functools, math
import pytest, torch
from dataclasses import replace
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)
from grpo_nb.parts.tensors import test_tensor as assert_tensor
from grpo_nb.parts import fast_path
from grpo_nb.parts.chunked_logps import chunked_logps
from grpo_nb.parts.fast_path import fast_path_blocker
from grpo_nb.generation import Rollouts
from grpo_nb.kl import kl_estimate
from grpo_nb.logps import token_entropy, selective_log_softmax, token_logps

def gen(seed=0): return torch.Generator().manual_seed(seed)

SIZES = dict(vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2)

@functools.lru_cache
def model(dtype=torch.float32, tie=True, **kw):
    torch.manual_seed(0)
    m = Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=tie, **kw)).to(dtype)
    with torch.no_grad():
        for p in m.parameters():
            if p.ndim>1: p.mul_(4)   # far from uniform
    return m.eval()

def batch(B=3, G=4, P=6, T=5, seed=0):
    g = gen(seed)
    pm = torch.arange(P)>=torch.randint(0, P, (B,1), generator=g)
    cm = torch.arange(T)<torch.randint(0, T+1, (B,G,1), generator=g)
    cm[0,0] = True
    q,o = torch.randint(0, 50, (B,P), generator=g),torch.randint(0, 50, (B,G,T), generator=g)
    return Rollouts(q, pm, o, cm, torch.zeros(B,G,T))

def alone(m, ro, temperature=1.):
    "Each completion by itself, without padding, token by token."
    logps,H = (torch.zeros(ro.completion_mask.shape, dtype=next(m.parameters()).dtype) for _ in range(2))
    for b in range(len(ro)):
        for g in range(logps.shape[1]):
            q,o = ro.prompt_ids[b][ro.prompt_mask[b]],ro.completion_ids[b,g][ro.completion_mask[b,g]]
            z = (m(torch.cat([q, o])[None]).logits[0]/temperature).log_softmax(-1)
            for t,i in enumerate(o):
                now = z[len(q)+t-1]
                logps[b,g,t] = now[i]
                H[b,g,t] = -(now.exp()*now).sum()
    return logps,H

def with_grad(m, f, shape, seed=9):
    w,u = torch.randn(2, *shape, generator=gen(seed))
    m.zero_grad()
    a,e = f()
    ((a*w).sum()+(e*u).sum()).backward()
    return a.detach(),e.detach(),grads(m)

def grads(m): return torch.cat([p.grad.flatten() for p in m.parameters() if p.grad is not None])

def near(got, want, eps=1e-5):
    "Gradients, as parts of their length"
    assert_tensor(got/want.norm(), want/want.norm(), eps)

@pytest.mark.parametrize('tie', [True,False])
@pytest.mark.parametrize('opts', [{}, dict(chunk_size=3), dict(shared_prefix=True),
                                  dict(shared_prefix=True, chunk_size=1)])
def test_values_and_gradients_are_those_of_each_completion_alone(opts, tie):
    m,ro = model(tie=tie),batch()
    shape = ro.completion_mask.shape
    for temperature in (1., .6):
        want = with_grad(m, lambda: alone(m, ro, temperature), shape)
        got = with_grad(m, lambda: token_logps(m, ro, temperature, **opts, entropy=True), shape)
        for a,b in zip(got[:2], want): assert_tensor(a, b, 2e-5)
        near(got[2], want[2])
        assert_tensor(token_logps(m, ro, temperature, **opts), want[0], 2e-5)

@pytest.mark.parametrize('opts', [{}, dict(shared_prefix=True)])
def test_more_padding_another_order_and_a_split_change_nothing(opts):
    m,ro = model(torch.float64),batch(seed=1)
    def run(o, w):
        m.zero_grad()
        lp = token_logps(m, o, **opts)
        (lp*w).sum().backward()
        return lp.detach(),grads(m)
    w = torch.randn(ro.completion_mask.shape, generator=gen(2), dtype=torch.float64)
    lp,g = run(ro, w)
    wide,wider = ro.pad_to(11, 9),torch.nn.functional.pad(w, (0,4))
    lp2,g2 = run(wide, wider)
    assert_tensor(lp2[...,:5], lp, 1e-10)
    assert_tensor(g2, g, 1e-10)
    assert (lp2[...,5:]==0).all()
    junk = replace(wide, prompt_ids=wide.prompt_ids.masked_fill(~wide.prompt_mask, 7),
                   completion_ids=wide.completion_ids.masked_fill(~wide.completion_mask, 8))
    assert_tensor(run(junk, wider)[1], g, 1e-10)   # what stands in the padding does not matter
    order = torch.tensor([2,0,1])
    assert_tensor(run(ro[order], w[order])[1], g, 1e-10)
    assert_tensor(sum(run(ro[i:i+1], w[i:i+1])[1] for i in range(3)), g, 1e-10)

def test_rows_and_batches_without_a_token_give_zero_and_a_gradient_of_zero():
    m,ro = model(),batch()
    none = replace(ro, completion_mask=torch.zeros_like(ro.completion_mask))
    for shared in (False, True):
        m.zero_grad()
        lp,H = token_logps(m, none, shared_prefix=shared, entropy=True)
        (lp.sum()+H.sum()).backward()
        assert_tensor(lp, torch.zeros(lp.shape))
        assert (grads(m)==0).all()

FAMILIES = dict(qwen2=(Qwen2Config, Qwen2ForCausalLM), qwen3=(Qwen3Config, Qwen3ForCausalLM),
                llama=(LlamaConfig, LlamaForCausalLM))

@pytest.mark.parametrize('family,heads,more', [
    ('qwen2', (4,2), {}), ('qwen2', (4,4), {}), ('qwen2', (4,1), {}),
    ('qwen3', (4,2), dict(head_dim=16)), ('qwen3', (4,1), dict(head_dim=8)),
    ('llama', (4,4), {}), ('llama', (4,1), dict(head_dim=16))])
@pytest.mark.parametrize('dtype,eps', [(torch.float64, 1e-6), (torch.float32, 1e-4)])
def test_packed_in_several_pages_values_and_gradients_are_those_of_the_plain_road(family, heads, more, dtype,
                                                                                 eps):
    torch.manual_seed(1)
    size = dict(intermediate_size=48, num_hidden_layers=3, num_attention_heads=heads[0],
                num_key_value_heads=heads[1], tie_word_embeddings=True)|more
    config,model = FAMILIES[family]
    m = model(config(**SIZES|size)).to(dtype)
    with torch.no_grad():
        for p in m.parameters(): p.mul_(2).add_(torch.randn(p.shape, dtype=p.dtype)*.1)
    ro = batch(B=10, G=7, P=5, T=12, seed=6)
    assert fast_path_blocker(m)==''
    def go(shared): return with_grad(m, lambda: token_logps(m, ro, .8, shared_prefix=shared, entropy=True),
                                     ro.completion_mask.shape)
    (a,H,g),(b,K,f) = go(True),go(False)
    largest = max(1., b.abs().max().item())   # nats: these weights are far from a trained model's
    for x,y in ((a, b), (H, K)): assert_tensor(x/largest, y/largest, 1e-5)
    near(g, f, eps)

@pytest.mark.parametrize('family', FAMILIES)
def test_packed_log_probs_keep_no_copy_of_the_weights_until_backward(family):
    config,of = FAMILIES[family]
    m = of(config(**SIZES|dict(intermediate_size=1024, tie_word_embeddings=True)))
    own,kept = {p.untyped_storage().data_ptr() for p in m.parameters()},{}
    def keep(x):
        at = x.untyped_storage()
        if at.data_ptr() not in own: kept[at.data_ptr()] = at.nbytes()
        return x
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = token_logps(m, batch(B=1, G=1, P=2, T=2), shared_prefix=True)
    assert out.requires_grad and sum(kept.values())<.3*sum(p.nbytes for p in m.parameters())

def test_packed_a_large_model_gives_freed_memory_back_during_backward(monkeypatch):
    m,ro,calls = model.__wrapped__(),batch(),[]
    embed = m.model.embed_tokens.weight
    monkeypatch.setattr(fast_path, 'trim_heap', lambda: calls.append(embed.grad is None))
    token_logps(m, ro, shared_prefix=True).sum().backward()
    assert calls==[]   # a small one does not
    m.zero_grad()
    monkeypatch.setattr(fast_path, 'TRIM_HEAP_MIN_PARAMS', 1000)
    with torch.no_grad(): token_logps(m, ro, shared_prefix=True)
    assert calls==[]
    token_logps(m, ro, shared_prefix=True).sum().backward()
    assert calls==[True]   # of two blocks the first, before the embedding's gradient is there

def test_packed_frozen_weights_get_no_gradient_and_the_others_get_theirs():
    def found(frozen):
        m = model.__wrapped__()
        for name,p in m.named_parameters(): p.requires_grad_(not name.endswith(frozen))
        token_logps(m, batch(), shared_prefix=True).sum().backward()
        return {name:p.grad for name,p in m.named_parameters()}
    whole = found(('nothing',))
    for frozen in ('up_proj.weight', 'k_proj.weight'), ('layernorm.weight', 'q_proj.bias'), ('_proj.weight',):
        part = found(frozen)
        assert {k for k,g in part.items() if g is None}=={k for k in part if k.endswith(frozen)}
        for k,g in part.items():
            if g is not None: assert torch.equal(g, whole[k]), k

def test_packed_no_token_is_computed_twice_and_no_padding(monkeypatch):
    m,ro,seen = model(),batch(B=10, G=7, T=12),[]
    run = fast_path.FusedDecoder.run
    def watched(self, ids, *a, **k): return seen.append(len(ids)) or run(self, ids, *a, **k)
    monkeypatch.setattr(fast_path.FusedDecoder, 'run', watched)
    token_logps(m, ro, shared_prefix=True)
    assert seen==[int(ro.prompt_mask.sum()+ro.completion_mask[...,1:].sum())]

def test_a_model_that_cannot_be_packed_takes_the_plain_road_with_the_same_numbers():
    from peft import LoraConfig, get_peft_model
    def make(**kw): return Qwen2ForCausalLM(Qwen2Config(**SIZES, **kw)).eval()
    hooked,watched,checked = make(),make(),make()
    hooked.model.layers[0].mlp.register_forward_hook(lambda m, i, o: o*2)
    watched.model.layers[1].register_full_backward_hook(lambda *a: None)
    checked.gradient_checkpointing_enable()
    ro = batch()
    window = make(use_sliding_window=True, sliding_window=4, max_window_layers=1)
    lora = get_peft_model(make(), LoraConfig(target_modules=['q_proj'])).eval()
    others = make(hidden_act='gelu'),window,make(attention_dropout=.1),lora
    for m in (hooked, watched, checked, *others):
        assert fast_path_blocker(m)
        with torch.no_grad(): assert_tensor(token_logps(m, ro, shared_prefix=True), alone(m, ro)[0], 2e-5)
    assert not fast_path_blocker(make()) and fast_path_blocker(make().bfloat16())
    with torch.autocast('cpu', dtype=torch.bfloat16): assert fast_path_blocker(make())

def test_a_mask_with_holes_is_not_packed():
    m,ro = model(),batch(seed=2)
    ro = replace(ro, completion_mask=ro.completion_mask & (torch.arange(5)!=2))
    assert_tensor(token_logps(m, ro, shared_prefix=True), token_logps(m, ro), 2e-5)

def test_a_bfloat16_model_gives_float32_logps_near_the_float32_ones():
    import copy
    m,ro = model(),batch()
    h = copy.deepcopy(m).bfloat16()
    a,b = token_logps(m, ro),token_logps(h, ro)
    assert b.dtype==torch.float32 and (a-b).abs().max()<.3
    b.sum().backward()
    assert [p for p in h.parameters() if p.grad.dtype!=torch.bfloat16]==[]

def test_logits_of_few_digits_are_summed_in_float32():
    z,ids = torch.randn(40, 50, generator=gen()).bfloat16(),torch.arange(40)
    got = selective_log_softmax(z, ids)
    assert got.dtype==torch.float32
    assert_tensor(got, z.float().log_softmax(-1)[ids, ids], 1e-5)

@torch.no_grad()
def test_a_head_with_a_bias_is_asked_at_the_temperature_too():
    import copy
    m,ro = copy.deepcopy(model()),batch()
    m.lm_head = torch.nn.Linear(32, 50)
    pairs = zip(token_logps(m, ro, .6, entropy=True), alone(m, ro, .6))
    for got,want in pairs: assert_tensor(got, want, 2e-5)

def test_a_lora_model_is_seen_through_its_wrapper():
    import copy
    from peft import LoraConfig, get_peft_model
    base,ro = copy.deepcopy(model()),batch()
    adapters = LoraConfig(r=2, target_modules=['q_proj','v_proj'], init_lora_weights=False)
    m = get_peft_model(base, adapters).eval()
    lp = token_logps(m, ro)
    assert_tensor(lp, alone(m, ro)[0], 2e-5)
    assert (lp-token_logps(model(), ro)).abs().max()>1e-4
    lp.sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum()>0 for n,p in m.named_parameters() if 'lora' in n)

# ---- blocks

def pair(dtype=torch.float64, n=7, D=5, V=11, seed=0):
    g = gen(seed)
    h,W = (torch.randn(k, D, generator=g, dtype=dtype).requires_grad_() for k in (n, V))
    return h,W,torch.randint(0, V, (n,), generator=g)

@pytest.mark.parametrize('chunk', [1,3,7,50,None])
@pytest.mark.parametrize('temperature', [1.,.3,2.])
def test_blocks_have_the_values_and_gradients_of_the_plain_formula(chunk, temperature):
    h,W,ids = pair()
    w,u = torch.randn(2, 7, generator=gen(1), dtype=torch.float64)
    lp,H = chunked_logps(h, W, ids, temperature, chunk, entropy=True)
    lp0,H0 = selective_log_softmax(h@W.T, ids, temperature),token_entropy(h@W.T, temperature)
    assert_tensor(lp, lp0, 1e-12)
    assert_tensor(H, H0, 1e-12)
    def grad(loss): return torch.autograd.grad(loss, (h,W), retain_graph=True)
    for loss in (lambda lp, H: (lp*w).sum(), lambda lp, H: (H*u).sum(), lambda lp, H: (lp*w*H*u).sum()):
        for a,b in zip(grad(loss(lp, H)), grad(loss(lp0, H0))): assert_tensor(a, b, 1e-11)

class Biggest(TorchDispatchMode):
    n = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for o in out if isinstance(out, (tuple,list)) else [out]:
            if isinstance(o, torch.Tensor): self.n = max(self.n, o.numel())
        return out

def test_no_tensor_of_all_logits_ever_stands():
    h,W,ids = pair(torch.float32, n=400, D=4, V=300)
    with Biggest() as m:
        lp,H = chunked_logps(h, W, ids, 1., 16, True)
        (lp.sum()+H.sum()).backward()
    assert m.n<=2*16*300, m.n
    with Biggest() as m: selective_log_softmax(h@W.T, ids).sum().backward()
    assert m.n>=400*300   # the watch works

# ---- KL

theta,ref = torch.tensor([[2.,1.,0.,-1.], [.5,1.5,0.,.2]], dtype=torch.float64)
def kl(a, b): return (a.softmax(-1)*(a.log_softmax(-1)-b.log_softmax(-1))).sum(-1)
def grad(f, t=theta):
    t = t.clone().requires_grad_()
    return torch.autograd.grad(f(t), t)[0]
def mean_grad(kind, ratio=False):
    def f(t):
        lp = t.log_softmax(-1)
        k = kl_estimate(lp, ref.log_softmax(-1), kind)
        return (lp.detach().exp()*(k*(lp-lp.detach()).exp() if ratio else k)).sum()
    return grad(f)

def test_the_means_of_k1_and_k3_are_the_kl_and_that_of_k2_is_not():
    for s in range(5):
        a,b = torch.randn(2, 6, generator=gen(s), dtype=torch.float64)
        p,q,right = a.log_softmax(0),b.log_softmax(0),kl(a, b)
        m = {k:(p.exp()*kl_estimate(p, q, k)).sum() for k in ('k1','k2','k3')}
        assert_tensor(m['k1'], right, 1e-12)
        assert_tensor(m['k3'], right, 1e-12)
        assert abs(m['k2']-right)>1e-3

def test_mean_gradients_zero_for_k1_right_for_k2_the_other_divergence_for_k3():
    right,other = grad(lambda t: kl(t, ref)),grad(lambda t: kl(ref, t))
    assert (right-other).abs().max()>1e-2
    assert_tensor(mean_grad('k1'), torch.zeros(4), 1e-12)
    assert_tensor(mean_grad('k2'), right, 1e-12)
    assert_tensor(mean_grad('k3'), other, 1e-12)
    for k in ('k1', 'k3'): assert_tensor(mean_grad(k, True), right, 1e-12)

def test_estimates_by_hand_and_never_negative():
    lp,rf = torch.tensor([-1.,-2.]),torch.tensor([-2.,-1.])
    assert_tensor(kl_estimate(lp, rf, 'k1'), [1.,-1.])
    assert_tensor(kl_estimate(lp, rf, 'k2'), [.5,.5])
    assert_tensor(kl_estimate(lp, rf), [math.exp(-1), math.e-2])
    d = torch.logspace(-8, 1, 200)
    d = torch.cat([-d, d])
    assert (kl_estimate(-d, torch.zeros_like(d))>=0).all()
    small = kl_estimate(torch.full((1,), -1e-4), torch.zeros(1))
    assert abs(small.item()/5e-9-1)<1e-3

@pytest.mark.parametrize('kind', ['k1','k2','k3'])
def test_kl_gradients_agree_with_finite_differences(kind):
    lp,rf = (-torch.rand(2,3,4, generator=gen(s), dtype=torch.float64) for s in (0,1))
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, rf, kind), (lp.requires_grad_(),))

ones,none = torch.ones,torch.zeros(2).long()
WRONG = {
    '(..., V)': lambda: selective_log_softmax(ones(2,3), torch.zeros(3).long()),
    '`temperature` is 0': lambda: selective_log_softmax(ones(2,3), none, 0),
    '`temperature` is nan': lambda: selective_log_softmax(ones(2,3), none, float('nan')),
    '`chunk` is 0': lambda: chunked_logps(ones(2,3), ones(5,3), none, chunk=0),
    '`temperature` is -1.0': lambda: chunked_logps(ones(2,3), ones(5,3), none, -1.),
    'shape': lambda: kl_estimate(ones(2), ones(3)),
    "'abs'": lambda: kl_estimate(ones(2), ones(2), 'abs'),
    'swap': lambda: kl_estimate(ones(2), ones(2).requires_grad_()),
    'on the left': lambda: token_logps(model(), replace(batch(), prompt_mask=batch().prompt_mask.flip(1))),
    'pad on the left': lambda: token_logps(model(), replace(batch(), prompt_mask=torch.tensor([True,False]*3)
        .flip(0).expand(3, -1)), shared_prefix=True),
    '`temperature` is 0.0': lambda: token_logps(model(), batch(), 0.)}

@pytest.mark.parametrize('says', WRONG)
def test_wrong_input_is_named(says):
    with pytest.raises(ValueError) as e: WRONG[says]()
    assert says in str(e.value)
