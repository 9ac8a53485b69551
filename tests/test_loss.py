"The loss by independent roads: plain Python loops, finite differences, by hand, and what must not change it."
import math
import pytest, torch
from grpo_nb.parts.tensors import test_tensor as assert_tensor
from grpo_nb.parts.registry import LOSSES, register
from grpo_nb.loss import aggregate_token_loss, clipped_objective, policy_loss
from grpo_nb.parts.loss_settings import LossSettings, OffPolicyCorrection, loss_traits
from grpo_nb.parts.loss_inputs import LossInputs
from grpo_nb.parts.loss_metrics import loss_metrics
from grpo_nb.run.config import TrainConfig
from grpo_nb.variants.token_terms import compare_losses
from loss_calls import loss_of, metrics_of, terms_of

LOSS_TYPES = [*LOSSES]

pytestmark = pytest.mark.filterwarnings("ignore:.*luspo")
LEVELS = ('token','sequence')
BY_TOKENS = ('dapo','cispo','vespo')   # divide by `num_items`

def batch(seed, B=2, G=3, T=6, drift=.5, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    rand = lambda *s: torch.randn(*s, generator=g, dtype=dtype)
    mask = torch.arange(T)<torch.randint(1, T+1, (B, G, 1), generator=g)
    mask[0,0] = True
    logps = -3*rand(B, G, T).abs()-.05
    near = lambda: logps+drift*rand(B, G, T)
    return dict(logps=logps, old_logps=near(), ref_logps=near(), advantages=rand(B, G), mask=mask)

def go(d, **kw):
    "The loss of a batch and its gradient for each token's log-prob."
    p = d['logps'].clone().requires_grad_()
    loss = loss_of(**(d|dict(logps=p)), **kw)
    return loss.detach(),torch.autograd.grad(loss, p)[0]

@pytest.mark.parametrize('loss_type', [o for o in LOSS_TYPES if o not in ('cispo','vespo')])
def test_gradient_equals_finite_differences(loss_type):
    for seed,level in enumerate(LEVELS):
        d = batch(seed, T=4)
        p = d.pop('logps').requires_grad_()
        same = dict(loss_type=loss_type, importance_sampling_level=level, max_completion_length=7)
        masked = dict(beta=.1, use_bias_correction_kl=False, off_policy_mask_threshold=.2)
        for kw in (dict(epsilon_high=.3), dict(delta=1.4, beta=.1), masked):
            assert torch.autograd.gradcheck(lambda x: loss_of(x, **d, **same, **kw), p)

def test_the_clips_four_corners_and_its_inside():
    r,A = torch.tensor([1.5,.5,1.5,.5,1.1]),torch.tensor([1.,1.,-1.,-1.,1.])
    assert_tensor(clipped_objective(r, A, .2), [1.2,.5,-1.5,-.8,1.1])
    r = r.requires_grad_()
    g, = torch.autograd.grad(clipped_objective(r, A, .2).sum(), r)
    assert_tensor(g, [0.,1.,-1.,0.,1.])   # past the edge in the direction that pays: no gradient
    assert_tensor(clipped_objective(r, A, .2, epsilon_high=.6), [1.5,.5,-1.5,-.8,1.1])
    far,A = torch.tensor([1.5,9.,9.]),torch.tensor([-1.,-1.,1.])
    assert_tensor(clipped_objective(far, A, .2, delta=4.), [-1.5,-4.,1.2])

@pytest.mark.parametrize('loss_type', LOSS_TYPES)
@pytest.mark.parametrize('level', LEVELS)
def test_padding_row_order_and_garbage_in_the_padding_change_nothing(loss_type, level):
    d = batch(2)
    kw = dict(loss_type=loss_type, importance_sampling_level=level, beta=.1, max_completion_length=9,
        off_policy_mask_threshold=.3)
    def run(d):
        p = d['logps'].clone().requires_grad_()
        loss = loss_of(**(d|dict(logps=p)), **kw)
        return loss.detach(),torch.autograd.grad(loss, p)[0]
    loss,g = run(d)
    assert (g[~d['mask']]==0).all() and (g[d['mask']]!=0).any()
    wide = {k:(v if k=='advantages' else torch.nn.functional.pad(v, (0, 3))) for k,v in d.items()}
    for junk in (0., 5., float('nan'), float('-inf'), float('inf')):
        dirty = {k:(v.masked_fill(~wide['mask'], junk) if k.endswith('logps') else v) for k,v in wide.items()}
        l2,g2 = run(dirty)
        assert_tensor(l2, loss, eps=1e-12); assert_tensor(g2[...,:6], g, eps=1e-12)
        assert (g2[...,6:]==0).all()
    order,rows = torch.tensor([1,0]),torch.tensor([2,0,1])
    l3,g3 = run({k:v[order][:,rows] for k,v in d.items()})
    assert_tensor(l3, loss, eps=1e-12); assert_tensor(g3, g[order][:,rows], eps=1e-12)

@pytest.mark.parametrize('loss_type', [o for o in LOSS_TYPES if o!='bnpo'])
def test_a_split_into_unequal_parts_changes_nothing_when_the_whole_is_named(loss_type):
    d = batch(4, B=5)
    H = torch.rand(d['mask'].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kw = dict(loss_type=loss_type, beta=.1, max_completion_length=9)
    if loss_type in BY_TOKENS: kw['entropy_coef'] = .1
    whole = dict(num_items=int(d['mask'].sum())) if loss_type in BY_TOKENS else dict(num_rows=15)
    p = d['logps'].clone().requires_grad_()
    want = loss_of(**(d|dict(logps=p)), entropy=H, **kw)
    full = d|dict(logps=p, entropy=H)
    def part(s): return loss_of(**{k:v[s] for k,v in full.items()}, **kw, **whole)
    parts = [part(slice(0,1)), part(slice(1,5))]
    assert_tensor(sum(parts), want, eps=1e-12)
    assert_tensor(torch.autograd.grad(sum(parts), p)[0], torch.autograd.grad(want, p)[0], eps=1e-12)

@pytest.mark.parametrize('loss_type', LOSS_TYPES)
def test_a_wholly_masked_group_gives_neither_nan_nor_gradient(loss_type):
    for level in LEVELS:
        d = batch(0)
        d['mask'][1] = False
        d['advantages'][1] = float('nan')
        d['old_logps'][1] = float('-inf')
        kw = dict(loss_type=loss_type, importance_sampling_level=level, max_completion_length=9)
        loss,g = go(d, beta=.1, off_policy_mask_threshold=.1, **kw)
        assert loss.isfinite() and g.isfinite().all() and (g[1]==0).all() and (g[0]!=0).any()
        terms = terms_of(*(d[k] for k in ('logps','old_logps','advantages','mask')), LossSettings(**kw))
        assert (terms['term'][1]==0).all() and (terms['term'][0]!=0).any()
        d['logps'] = d['logps'].detach().masked_fill(~d['mask'], float('nan'))
        terms = terms_of(*(d[k] for k in ('logps','old_logps','advantages','mask')), LossSettings(**kw))
        assert terms['share'].isfinite().all() and abs(terms['share'].sum()-1)<1e-6
        d['mask'][:] = False
        loss,g = go(d, **kw)
        assert loss==0 and (g==0).all()
        assert [v for v in metrics_of(**d, **kw).values() if not math.isfinite(v)]==[]

def test_a_dead_group_pulls_only_through_the_kl_term():
    d = batch(2) | dict(advantages=torch.zeros(2, 3, dtype=torch.float64))
    for loss_type in LOSS_TYPES:
        g = [go(d, loss_type=loss_type, beta=b, max_completion_length=9)[1] for b in (0., .1)]
        assert (g[0]==0).all() and (g[1]!=0).any()

def test_no_gradient_reaches_old_reference_or_advantages():
    d = {k:(v.clone().requires_grad_() if v.is_floating_point() else v) for k,v in batch(0).items()}
    loss_of(**d, beta=.1).backward()
    assert d['logps'].grad is not None
    assert [k for k in ('old_logps','ref_logps','advantages') if d[k].grad is not None]==[]

@pytest.mark.parametrize('change,says', [
    (dict(logps=torch.zeros(3, 6)), 'B, G, T'),
    (dict(mask=torch.ones(2, 3, 6)), 'mask.bool()'),
    (dict(old_logps=torch.zeros(2, 3, 5)), '`old_logps` has shape'),
    (dict(advantages=torch.zeros(6)), 'one per completion'),
    (dict(advantages=torch.zeros(2, 3, 1)), 'one per token'),
    (dict(loss_type='ppo'), 'choose one of bnpo'),
    (dict(loss_type='dr_grpo'), 'max_completion_length'),
    (dict(beta=.1, ref_logps=None), '`ref_logps` is None'),
    (dict(importance_sampling_level='word'), "'token' or 'sequence'"),
    (dict(entropy_coef=.1), 'need `entropy`'),
    (dict(top_entropy_quantile=.5), 'need `entropy`'),
    (dict(epsilon=-.1), '`epsilon`'),
    (dict(delta=0.), '`delta`'),
    (dict(top_entropy_quantile=0., entropy=torch.ones(2, 3, 6)), '`top_entropy_quantile`')])
def test_what_does_not_fit_is_named(change, says):
    with pytest.raises(ValueError) as e: loss_of(**(batch(0)|change))
    assert says in str(e.value)
    if set(change) & {'logps','mask','old_logps','advantages'}:   # metrics are of the same
        with pytest.raises(ValueError) as e: metrics_of(**(batch(0)|change))
        assert says in str(e.value)

def test_aggregate_ignores_what_is_masked_even_nan():
    x,m = torch.tensor([[[1.,float('nan')],[2.,3.]]]),torch.tensor([[[True,False],[True,True]]])
    want = dict(grpo=1.75, sapo=1.75, dapo=2., bnpo=2., cispo=2., vespo=2., luspo=3., dr_grpo=.75)
    for k,v in want.items():
        assert_tensor(aggregate_token_loss(x, m, k, max_completion_length=4), torch.tensor(v))

# ---- corrections: their values are the road's ----
@pytest.mark.parametrize('make,says', [(lambda: OffPolicyCorrection(weight='half'), 'needs one of token'),
    (lambda: OffPolicyCorrection(clip='hard'), 'needs one of ppo'),
    (lambda: OffPolicyCorrection(max_drift=-1.), '`max_drift` is -1.0'),
    (lambda: OffPolicyCorrection(weight='truncated', weight_cap=None), '`weight_cap` is None, needs 0'),
    (lambda: loss_of(**batch(0), correction=OffPolicyCorrection(weight='decoupled')),
    'ask the model once more')])
def test_what_a_correction_lacks_is_named(make, says):
    with pytest.raises(ValueError) as e: make()
    assert says in str(e.value)

# ---- a loss of one's own ----
def test_a_registered_loss_is_known_and_gets_the_settings_it_names():
    @register(LOSSES, 'mine')
    def own_loss(logps, old_logps, A, mask, width=1.): return width*A*logps
    try:
        d = batch(0)
        del d['ref_logps']
        for name in ('mine', own_loss):
            for by,n in ((None, d['mask'].sum()), ('dr_grpo', 6*9)):
                g = go(d, loss_type=name, width=3., aggregation=by, max_completion_length=9)[1]
                assert_tensor(g, -3*d['advantages'][...,None]*d['mask']/n, eps=1e-12)
        assert metrics_of(**d, loss_type='mine')['clip_ratio/region_mean']==0
        with pytest.raises(ValueError, match='wdith'): loss_of(**d, loss_type='mine', wdith=3.)
        with pytest.raises(ValueError, match='mine'): loss_of(**d, loss_type='yours')
    finally: del LOSSES['mine']

def test_what_a_loss_is_registered_with_is_read_everywhere():
    torch.manual_seed(0)
    x = LossInputs(torch.randn(2, 3, 4)-2, torch.randn(2, 3, 4)-2, torch.randn(2, 3),
        torch.arange(4)<torch.tensor([[1, 2, 4], [3, 1, 2]])[...,None])
    def squash(ratio, A, width=1.): return (ratio*width).tanh()*A
    try:
        register(LOSSES, 'squash', divisor='grpo', clips=True, zero_without_advantage=True)(squash)
        for width in (1., 3.):
            s = LossSettings('squash', loss_kwargs=dict(width=width))
            out = policy_loss(x, s)
            ratio,A = (x.logps-x.old_logps).exp(),x.advantages[...,None]
            each = -(ratio*width).tanh()*A*x.mask
            want = (each.sum(-1)/x.mask.sum(-1)).mean()   # by completions, as 'grpo'
            assert out.loss.item()==pytest.approx(want.item(), rel=1e-5)
        clipped = (((ratio>1.2)&(A>0))|((ratio<.8)&(A<0)))&x.mask
        assert torch.equal(out.clip_mask&x.mask, clipped) and clipped.any()
        assert 'squash' in compare_losses(x, LossSettings('dapo'))
        TrainConfig(loss_type='squash', loss_kwargs='width=3', skip_zero_advantage=True, aggregation='squash')
    finally: del LOSSES['squash']
    register(LOSSES, 'squash')(squash)   # says nothing of itself
    try:
        assert policy_loss(x, LossSettings('squash')).loss.item()==pytest.approx(
            (-(ratio).tanh()*A*x.mask).sum().item()/x.mask.sum().item(), rel=1e-5)
        assert not policy_loss(x, LossSettings('squash')).clip_mask.any()
        with pytest.raises(ValueError, match='zero_without_advantage'):
            TrainConfig(loss_type='squash', skip_zero_advantage=True)
    finally: del LOSSES['squash']
    with pytest.raises(ValueError, match="no aggregation 'squahs'"): TrainConfig(aggregation='squahs')

def test_a_loss_may_have_a_divisor_of_its_own():
    def by_root(per_token, mask, rows, tokens):
        return (per_token.sum(-1)/mask.sum(-1).clamp(min=1)**.5).sum()/rows
    def plain(logps, A): return A*logps
    g = torch.Generator().manual_seed(0)
    logps,A = -torch.rand(2, 3, 4, generator=g),torch.randn(2, 3, generator=g)
    mask = torch.rand(2, 3, 4, generator=g)<.7
    want = 0.
    for b in range(2):
        for i in range(3):
            n = int(mask[b,i].sum())
            if n: want -= sum((A[b,i]*logps[b,i][mask[b,i]]).tolist())/n**.5/6
    try:
        register('loss', 'rooted', divisor=by_root)(plain)
        register('loss', 'lost', divisor='root')(lambda logps, A: A*logps)
        x = LossInputs(logps, logps, A, mask)
        assert policy_loss(x, LossSettings('rooted')).loss.item()==pytest.approx(want, abs=1e-6)
        assert TrainConfig(loss_type='rooted').loss_type=='rooted'
        with pytest.raises(ValueError, match="no divisor 'root'"): TrainConfig(loss_type='lost')
    finally:
        for k in ('rooted','lost'): LOSSES.pop(k, None)

@pytest.mark.parametrize('name', ['sapo','vespo','cispo'])
def test_a_loss_given_as_its_function_is_the_registered_one(name):
    g = torch.Generator().manual_seed(0)
    logps,old = (-torch.rand(2, 3, 4, generator=g) for _ in range(2))
    x = LossInputs(logps, old, torch.randn(2, 3, generator=g), torch.rand(2, 3, 4, generator=g)<.7)
    options = dict(epsilon_high=5.) if name=='cispo' else {}
    by_name,by_function = (policy_loss(x, LossSettings(o, **options)) for o in (name, LOSSES[name]))
    assert torch.equal(by_name.loss, by_function.loss)
    assert loss_metrics(by_name)==loss_metrics(by_function)
    if name=='cispo':
        with pytest.raises(ValueError, match='epsilon_high'): TrainConfig(loss_type=LOSSES[name])
    else: assert TrainConfig(loss_type=LOSSES[name], **options).loss_type==name

def test_the_function_of_several_losses_has_what_they_share():
    shared = [loss_traits(k) for k,f in LOSSES.items() if f is clipped_objective]
    assert len(shared)>1 and loss_traits(clipped_objective)==shared[0]|dict(divisor='dapo')
