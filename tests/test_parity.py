"Our loss beside TRL's own `GRPOTrainer._compute_loss`: the same tensors in, loss, gradients and metrics out."
import itertools
from collections import defaultdict
from functools import partial
from inspect import signature
from types import SimpleNamespace as NS
import pytest, torch
pytest.importorskip('trl')
from accelerate import Accelerator
from trl import GRPOConfig, GRPOTrainer
from grpo_nb.parts.registry import LOSSES
from grpo_nb.parts.loss_settings import LossSettings
from loss_calls import loss_of, metrics_of

LOSS_TYPES = [*LOSSES]

pytestmark = pytest.mark.filterwarnings("ignore:.*luspo")
EPS = 1e-6
TRLS = set(GRPOConfig.__dataclass_fields__)
DEFAULTS = {k:p.default for f in (LossSettings, *LOSSES.values()) for k,p in signature(f).parameters.items()
    if p.default is not p.empty}   # a new setting of a loss is known here at once

SET = '''loss_type beta importance_sampling_level max_completion_length off_policy_mask_threshold
    top_entropy_quantile entropy_coef'''.split()   # read from the trainer itself; the rest from its `args`
OFF = dict(aux_loss_enabled=False, use_vllm=False, vllm_importance_sampling_correction=False,
    use_adaptive_entropy=False)

def trl_loss(logps, old_logps, advantages, mask, num_items=None, ref_logps=None, entropy=None, accumulate=1,
        steps_per_generation=1, **kw):
    "TRL's loss and metrics of these log-probs: its real code on an object with only the settings it reads."
    kw = {**DEFAULTS, **kw}
    N,T = mask.flatten(0, -2).shape
    flat = lambda o: None if o is None else o.reshape(N, T)
    H = torch.zeros(N, T) if entropy is None else flat(entropy)
    high = kw['epsilon'] if kw['epsilon_high'] is None else kw['epsilon_high']
    args = {k:v for k,v in kw.items() if k in TRLS} | dict(steps_per_generation=steps_per_generation)
    me = NS(**{k: kw[k] for k in SET}, **OFF, args=NS(**args), epsilon_low=kw['epsilon'], epsilon_high=high,
            _entropy_bonus_enabled=kw['entropy_coef'] != 0, model=NS(training=True),
            accelerator=Accelerator(cpu=True), current_gradient_accumulation_steps=accumulate,
            _metrics={'train': defaultdict(list)}, get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
            get_gamma_weights=GRPOTrainer.get_gamma_weights,
            _get_per_token_logps_and_entropies=lambda *a, **k: (flat(logps), H, None))
    me.get_high_entropy_mask = partial(GRPOTrainer.get_high_entropy_mask, me)
    m,i = flat(mask).long(),torch.zeros(N, 1, dtype=torch.long)
    n = m.sum() if num_items is None else torch.as_tensor(num_items)
    inputs = dict(prompt_ids=i, prompt_mask=i+1, completion_ids=0*m, completion_mask=m, num_items_in_batch=n,
        advantages=advantages.reshape(N) if advantages.ndim==2 else flat(advantages))
    if old_logps is not None: inputs['old_per_token_logps'] = flat(old_logps)
    if ref_logps is not None: inputs['ref_per_token_logps'] = flat(ref_logps)
    loss = GRPOTrainer._compute_loss(me, None, inputs)
    return loss,{k:v[-1] for k,v in me._metrics['train'].items()}

def batch(seed, B=3, G=4, T=7, drift=.4):
    "Random log-probs with padding: 0 where masked, as both sides store them."
    g = torch.Generator().manual_seed(seed)
    mask = torch.arange(T)<torch.randint(1, T+1, (B, G, 1), generator=g)
    mask[0,0] = True
    logps = -3*torch.rand(B, G, T, generator=g)*mask
    old,ref = ((logps+drift*torch.randn(B, G, T, generator=g)).clamp(max=0)*mask for _ in range(2))
    A,H = torch.randn(B, G, generator=g),3*torch.rand(B, G, T, generator=g)
    A[1] = 0   # a dead group among them
    return NS(logps=logps, old=old, ref=ref, A=A, mask=mask, H=H)

def both(d, old=True, ref=False, entropy=False, trl=None, ours=None, A=None, **kw):
    "(ours, theirs): each a dict of loss, gradient with respect to log-probs and to entropy."
    out = []
    for f,more in ((loss_of, ours or {}), (lambda *a, **k: trl_loss(*a, **k)[0], trl or {})):
        p,H = d.logps.clone().requires_grad_(),d.H.clone().requires_grad_()
        more = more | (dict(ref_logps=d.ref) if ref else {}) | (dict(entropy=H) if entropy else {})
        loss = f(p, d.old if old else None, d.A if A is None else A, d.mask, **kw, **more)
        g = torch.autograd.grad(loss, [p, H], allow_unused=True, materialize_grads=True)
        out.append(dict(loss=loss.detach(), logps=g[0], entropy=g[1]))
    return out

def assert_same(a, b, eps=EPS):
    for k in a:
        assert a[k].shape==b[k].shape
        scale = max(1., b[k].abs().max().item())
        assert (a[k]-b[k]).abs().max()<=eps*scale, f'{k} differs by {(a[k]-b[k]).abs().max().item():.2g}'

SETTINGS = dict(plain={}, on_policy=dict(old=False), wide=dict(epsilon=.1, epsilon_high=.28),
                delta=dict(delta=1.5), low_delta=dict(delta=1.1), kl=dict(beta=.04, ref=True),
                kl_uncorrected=dict(beta=.04, ref=True, use_bias_correction_kl=False),
                kl_on_policy=dict(beta=.5, ref=True, old=False),
                off_policy_mask=dict(off_policy_mask_threshold=.05),
                top_entropy=dict(top_entropy_quantile=.3, entropy=True),
                entropy_bonus=dict(entropy_coef=.1, entropy=True),
                everything=dict(epsilon_high=.3, delta=1.6, beta=.1, ref=True, off_policy_mask_threshold=.1,
                                top_entropy_quantile=.6, entropy_coef=.05, entropy=True))

@pytest.mark.parametrize('level', ['token','sequence'])
@pytest.mark.parametrize('loss_type', LOSS_TYPES)
def test_loss_and_gradients_equal_trls_for_every_setting(loss_type, level):
    for (name,kw),seed in itertools.product(SETTINGS.items(), range(3)):
        more = dict(loss_type=loss_type, importance_sampling_level=level, max_completion_length=9)
        assert_same(*both(batch(seed), **more, **kw))

@pytest.mark.parametrize('loss_type', LOSS_TYPES)
def test_equal_trls_with_one_advantage_a_token_and_a_wholly_masked_row(loss_type):
    d = batch(5)
    d.mask[2,1] = False
    for o in (d.logps, d.old, d.ref): o[2,1] = 0
    assert_same(*both(d, loss_type=loss_type, max_completion_length=9, beta=.1, ref=True))
    A = torch.randn(d.mask.shape, generator=torch.Generator().manual_seed(0))
    assert_same(*both(d, loss_type=loss_type, max_completion_length=9, A=A))

def test_equal_trls_with_other_shapes_of_the_soft_gates():
    for seed in range(3):
        assert_same(*both(batch(seed), loss_type='sapo', sapo_temperature_pos=.7, sapo_temperature_neg=2.))
        gate = dict(vespo_k_pos=1., vespo_lambda_pos=.5, vespo_k_neg=2., vespo_lambda_neg=4.)
        assert_same(*both(batch(seed), loss_type='vespo', **gate))
        assert_same(*both(batch(seed, drift=4.), loss_type='vespo'))   # far beyond the clamps
        assert_same(*both(batch(seed), loss_type='cispo', epsilon_high=5.))

@pytest.mark.parametrize('loss_type', LOSS_TYPES)
def test_parts_of_a_step_equal_trls_micro_batches(loss_type):
    d = batch(1, B=4)
    for accumulate,spg in ((1,4),(2,4),(4,4)):   # micro-batches an optimizer step, micro-batches a generation
        for b in range(4):
            part = NS(**{k:v[b:b+1] for k,v in vars(d).items()})
            n = int(d.mask.sum())
            by_tokens = loss_type in ('dapo','cispo','vespo')
            ours = dict(num_items=n*accumulate/spg) if by_tokens else dict(num_rows=4*accumulate)
            trls = dict(num_items=n, accumulate=accumulate, steps_per_generation=spg)
            kw = dict(loss_type=loss_type, max_completion_length=9, beta=.1)
            a,t = both(part, ref=True, trl=trls, ours=ours, **kw)
            if loss_type=='bnpo': a = {k:v/accumulate for k,v in a.items()}   # a mean of the micro-batch
            assert_same(a, t)

@pytest.mark.parametrize('loss_type', LOSS_TYPES)
def test_metrics_equal_trls(loss_type):
    for level,seed in itertools.product(['token','sequence'], range(3)):
        d = batch(seed)
        kw = dict(loss_type=loss_type, importance_sampling_level=level, epsilon_high=.25, ref_logps=d.ref)
        got = metrics_of(d.logps, d.old, d.A, d.mask, max_completion_length=9, **kw)
        more = dict(beta=.1, use_bias_correction_kl=False, max_completion_length=9)
        want = trl_loss(d.logps, d.old, d.A, d.mask, **more, **kw)[1]
        pairs = {k:k for k in want if k.startswith('clip_ratio') and k.endswith('mean')} | {'kl':'kl'}
        if loss_type=='cispo': pairs['cispo_clip_ratio'] = 'cispo_clip_ratio'
        for a,b in pairs.items(): assert abs(got[a]-want[b])<1e-6, (a, got[a], want[b])


def test_trl_still_has_the_names_our_tests_rely_on():
    import inspect
    src = inspect.getsource(GRPOTrainer._compute_loss)
    for o in LOSS_TYPES: assert f'"{o}"' in src and o in LOSSES
    defaults = {k:f.default for k,f in GRPOConfig.__dataclass_fields__.items()}
    takes = [p for f in (LossSettings, *LOSSES.values()) for p in inspect.signature(f).parameters.items()]
    ours = {k:p.default for k,p in takes if k in defaults and k!='max_completion_length'}
    assert len(ours)>=16
    assert {k:defaults[k] for k in ours}==ours
