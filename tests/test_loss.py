"The loss by independent roads: plain Python loops, finite differences, by hand, and what must not change it."
import itertools, json, math
from pathlib import Path
import pytest, torch
from grpo_nb.parts.tensors import test_tensor as assert_tensor
from grpo_nb.parts.registry import LOSSES
from grpo_nb.variants.losses import cispo, sapo, vespo
from grpo_nb.loss import aggregate_token_loss, clipped_objective
from grpo_nb.parts.registry import LOSSES
from grpo_nb.parts.corrections import off_policy_mask
from grpo_nb.parts.loss_inputs import high_entropy_mask
from grpo_nb.parts.loss_inputs import LossSettings
from grpo_nb.parts.loss_inputs import OffPolicyCorrection
from grpo_nb.parts.ratios import ppo_clip_mask, importance_ratio
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

def uniform(d, seed=0):
    "Random entropies for a batch."
    return torch.rand(d['mask'].shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

def loop_loss(logps, old_logps, advantages, mask, loss_type, level, ref_logps=None, beta=0., lo=.2, hi=.2,
        delta=None, max_len=None, bias=True):
    "The definition, one number after another: no tensor operation."
    rows = []
    for b,i in itertools.product(range(len(mask)), range(len(mask[0]))):
        A = advantages[b][i]
        A = A if isinstance(A, list) else [A]*len(mask[b][i])
        p,o,A = ([x for x,m in zip(v, mask[b][i]) if m] for v in (logps[b][i], old_logps[b][i], A))
        q = [v for v,m in zip(ref_logps[b][i], mask[b][i]) if m] if beta else p
        n = len(p)
        d = [x-y for x,y in zip(p, o)]
        ratio = [math.exp(sum(d)/n)]*n if level=='sequence' else [math.exp(x) for x in d]
        W,row = math.exp(sum(d)),[]
        for t in range(n):
            r,a = ratio[t],A[t]
            if loss_type=='cispo': obj = min(r, hi)*a*p[t]
            elif loss_type=='sapo':
                tau = 1. if a>0 else 1.05
                obj = a*4/tau/(1+math.exp(-tau*(r-1)))
            elif loss_type=='vespo':
                k,lam = (2.,3.) if a>=0 else (3.,2.)
                obj = W**k*math.exp(lam*(1-W))*a*p[t]
            else:
                c = 1-lo if r<1-lo else 1+hi if r>1+hi else r
                u = r if delta is None or r<delta else delta
                obj = u*a if u*a<c*a else c*a
            kl = math.exp(q[t]-p[t])-(q[t]-p[t])-1
            row.append(-obj+beta*kl*(r if bias else 1))
        rows.append(row)
    n = sum(map(len, rows))
    if loss_type in ('grpo','sapo'): return sum(sum(r)/len(r) for r in rows)/len(rows)
    if loss_type=='luspo': return sum(map(sum, rows))/len(rows)
    if loss_type=='dr_grpo': return sum(map(sum, rows))/(len(rows)*max_len)
    return sum(map(sum, rows))/n

LOOP_SETTINGS = (   # of the loop, and of ours
    ({}, {}),
    (dict(lo=.1, hi=.3, delta=1.5), dict(epsilon=.1, epsilon_high=.3, delta=1.5)),
    (dict(beta=.2), dict(beta=.2)),
    (dict(beta=.2, bias=False), dict(beta=.2, use_bias_correction_kl=False)))

@pytest.mark.parametrize('loss_type', LOSS_TYPES)
def test_value_equals_a_plain_loop(loss_type):
    for seed,level in itertools.product(range(4), LEVELS):
        d = batch(seed, B=1+seed%2, G=2+seed, T=3+seed)
        L = {k:v.tolist() for k,v in d.items()}
        for kw,ours in LOOP_SETTINGS:
            more = dict(loss_type=loss_type, importance_sampling_level=level, max_completion_length=9)
            got = loss_of(**d, **more, **ours)
            want = loop_loss(**L, loss_type=loss_type, level=level, max_len=9, **kw)
            assert got.shape==() and abs(got.item()-want)<1e-10

def test_value_equals_the_loop_with_one_advantage_a_token():
    for loss_type in LOSS_TYPES:
        if loss_type=='vespo': continue   # its weight has one sign a completion
        g = torch.Generator().manual_seed(1)
        d = batch(3) | dict(advantages=torch.randn(2, 3, 6, dtype=torch.float64, generator=g))
        got = loss_of(**d, loss_type=loss_type, max_completion_length=9)
        L = {k:v.tolist() for k,v in d.items()}
        assert abs(got.item()-loop_loss(**L, loss_type=loss_type, level='token', max_len=9))<1e-10

@pytest.mark.parametrize('loss_type', [o for o in LOSS_TYPES if o not in ('cispo','vespo')])
def test_gradient_equals_finite_differences(loss_type):
    for seed,level in enumerate(LEVELS):
        d = batch(seed, T=4)
        p = d.pop('logps').requires_grad_()
        same = dict(loss_type=loss_type, importance_sampling_level=level, max_completion_length=7)
        masked = dict(beta=.1, use_bias_correction_kl=False, off_policy_mask_threshold=.2)
        for kw in (dict(epsilon_high=.3), dict(delta=1.4, beta=.1), masked):
            assert torch.autograd.gradcheck(lambda x: loss_of(x, **d, **same, **kw), p)

def test_gradient_of_cispo_and_vespo_equals_finite_differences_with_the_weight_held():
    for seed in range(3):
        d = batch(seed)
        p,A,m = d['logps'].clone().requires_grad_(),d['advantages'][...,None],d['mask']
        ratio = (d['logps']-d['old_logps']).exp()
        W = ((d['logps']-d['old_logps'])*m).sum(-1, keepdim=True).exp()
        k,lam = torch.where(A>=0, 2., 3.),torch.where(A>=0, 3., 2.)
        weights = dict(cispo=torch.where(ratio>1.5, 1.5, ratio), vespo=W**k*(lam*(1-W)).exp())
        for loss_type,w in weights.items():
            fixed = lambda x: -(w*A*x*m).sum()/m.sum()
            assert torch.autograd.gradcheck(fixed, p)
            g = go(d, loss_type=loss_type, epsilon_high=1.5)[1]
            want, = torch.autograd.grad(fixed(p), p)
            assert_tensor(g, want, eps=1e-12)

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
def test_on_policy_the_gradient_is_minus_advantage_times_the_tokens_weight(loss_type):
    d = batch(1)
    m = d['mask']
    kw = dict(epsilon_high=5.) if loss_type=='cispo' else {}
    lens = m.sum(-1, keepdim=True).double()
    by_type = {'grpo':1/lens/6, 'sapo':1/lens/6, 'luspo':1/6, 'dr_grpo':1/6/7}
    weight = by_type.get(loss_type, 1/m.sum().double())
    for old in (None, d['logps']):
        g = go(d|dict(old_logps=old), loss_type=loss_type, max_completion_length=7, **kw)[1]
        assert_tensor(g, (-d['advantages'][...,None]*weight*m), eps=1e-12)

def test_on_policy_the_loss_is_minus_the_mean_advantage_and_the_gradient_is_not_zero():
    p = torch.full((1, 4, 2), -1.).requires_grad_()
    loss = loss_of(p, None, torch.tensor([[1.,1.,-1.,-1.]]), torch.ones(1, 4, 2, dtype=torch.bool))
    assert_tensor(loss, torch.tensor(0.))
    g, = torch.autograd.grad(loss, p)
    assert_tensor(g[0,:,0], [-.125,-.125,.125,.125])

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

def test_bnpo_depends_on_the_split_and_that_is_what_its_name_says():
    d = batch(4, B=4)
    want = loss_of(**d, loss_type='bnpo')
    n = int(d['mask'].sum())
    def part(b, **kw): return loss_of(**{k:v[b:b+1] for k,v in d.items()}, **kw)
    parts = [part(b, loss_type='bnpo', num_items=n)/4 for b in range(4)]
    assert abs(sum(parts)-want)>1e-3
    for b in range(4): assert_tensor(parts[b]*4, part(b, loss_type='dapo'), eps=1e-12)

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
        told = terms_of(*(d[k] for k in ('logps','old_logps','advantages','mask')), LossSettings(**kw))
        assert (told['term'][1]==0).all() and (told['term'][0]!=0).any()
        d['logps'] = d['logps'].detach().masked_fill(~d['mask'], float('nan'))
        told = terms_of(*(d[k] for k in ('logps','old_logps','advantages','mask')), LossSettings(**kw))
        assert told['share'].isfinite().all() and abs(told['share'].sum()-1)<1e-6
        d['mask'][:] = False
        loss,g = go(d, **kw)
        assert loss==0 and (g==0).all()
        assert [v for v in metrics_of(**d, **kw).values() if not math.isfinite(v)]==[]

@pytest.mark.parametrize('loss_type', LOSS_TYPES)
def test_every_token_up_to_the_last_true_one_has_a_gradient_on_policy(loss_type):
    d = batch(7)
    g = go(d|dict(old_logps=None), loss_type=loss_type, max_completion_length=6)[1]
    assert ((g!=0)==d['mask']).all()

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

def test_sequence_ratio_is_the_geometric_mean_and_vespos_is_the_product():
    r = torch.tensor([[[2.,.5,4.,99.]]])
    m = torch.tensor([[[True,True,True,False]]])
    zero = torch.zeros_like(r)
    assert_tensor(importance_ratio(r.log(), zero, m, 'sequence'), [[[4**(1/3)]]])
    assert_tensor(importance_ratio(r.log(), zero, m), [[[2.,.5,4.,1.]]])
    one,A = torch.ones_like(r),torch.ones(1, 1, 1)   # with log-probs of 1, weight times advantage is left
    assert_tensor(vespo(one, one-r.log(), A, m), 4.**2*math.exp(3*(1-4))*one)
    assert_tensor(vespo(one, one-r.log(), -A, m), -4.**3*math.exp(2*(1-4))*one)
    assert_tensor(vespo(one, one, A, m), one)

def test_sapo_has_slope_one_at_ratio_one_and_fades_on_both_sides():
    for A in (1., -1.):
        r = torch.tensor([.01,1.,4.], dtype=torch.float64).view(1, 3, 1).requires_grad_()
        obj = sapo(r, torch.full((1, 3, 1), A, dtype=torch.float64), 2., 3.)
        g = torch.autograd.grad(obj.sum(), r)[0].flatten()
        assert abs(g[1]-A)<1e-12 and g[0].abs()<.6 and g[2].abs()<.02

def test_cispo_keeps_a_gradient_where_the_clip_has_none():
    p = torch.tensor([[[-.1]]]).requires_grad_()
    old,A,m = p.detach()-2,torch.ones(1, 1),torch.ones(1, 1, 1, dtype=torch.bool)
    assert torch.autograd.grad(loss_of(p, old, A, m, 'dapo'), p)[0]==0
    assert_tensor(torch.autograd.grad(loss_of(p, old, A, m, 'cispo', epsilon_high=5.), p)[0], [[[-5.]]])
    p = torch.full((1, 2, 1), -.5)
    ratio = torch.tensor([2.,9.]).view(1, 2, 1)
    assert_tensor(cispo(p, ratio, -torch.ones(1, 2, 1), epsilon_high=5.).flatten(), [1.,2.5])

def test_off_policy_mask_drops_only_bad_and_drifted_completions():
    lr = torch.tensor([[[-1.,-1.],[-1.,-1.],[0.,-.2],[1.,1.]]])
    A,m = torch.tensor([[[1.],[-1.],[-1.],[-1.]]]),torch.ones(1, 4, 2, dtype=torch.bool)
    assert off_policy_mask(lr, A, m, .5).flatten().tolist()==[True,False,True,True]

def test_high_entropy_mask_keeps_the_share_asked_for():
    H = torch.arange(10.).view(1, 1, 10)
    m = torch.ones(1, 1, 10, dtype=torch.bool)
    assert high_entropy_mask(H, m, .2).flatten().tolist()==[False]*8+[True]*2
    m[...,5:] = False
    assert high_entropy_mask(H, m, .4).flatten().tolist()==[False]*3+[True]*2+[False]*5
    assert high_entropy_mask(H, m, 1.).equal(m)
    assert not high_entropy_mask(H, m&False, .5).any()

def test_top_entropy_takes_the_policy_term_from_the_other_tokens_and_leaves_them_the_kl():
    d = batch(1)
    H = uniform(d)
    keep = high_entropy_mask(H, d['mask'], .4)
    rest = d['mask']&~keep
    g = [go(d|dict(old_logps=None), entropy=H, top_entropy_quantile=.4, beta=b)[1] for b in (0., .1)]
    assert keep.any() and rest.any()
    assert (g[0][keep]!=0).all() and (g[0][rest]==0).all() and (g[1][rest]!=0).all()

@pytest.mark.parametrize('loss_type', ['bnpo','dapo','grpo','dr_grpo'])
def test_top_entropy_leaves_other_tokens_in_the_denominator_and_their_value_out(loss_type):
    "As arXiv 2506.01939 has it, one token after another: an indicator times the term, over all tokens"
    d,q = batch(1),.4
    H = uniform(d)
    B,G,T = d['mask'].shape
    real = [o for o in itertools.product(range(B), range(G), range(T)) if d['mask'][o]]
    entropies = sorted(H[o].item() for o in real)
    place = (1-q)*(len(real)-1)
    below,above = entropies[math.floor(place)],entropies[math.ceil(place)]
    threshold = below+(place-math.floor(place))*(above-below)
    loss,grad = 0.,torch.zeros(B, G, T, dtype=torch.float64)
    for b,g,t in real:
        if H[b,g,t]<threshold: continue
        over = dict(grpo=B*G*int(d['mask'][b,g].sum()), dr_grpo=B*G*T).get(loss_type, len(real))
        A,ratio = d['advantages'][b,g].item(),math.exp(d['logps'][b,g,t]-d['old_logps'][b,g,t])
        clipped = min(max(ratio, .8), 1.2)
        loss -= min(ratio*A, clipped*A)/over
        if ratio*A<=clipped*A: grad[b,g,t] = -ratio*A/over
    got = go(d, entropy=H, loss_type=loss_type, top_entropy_quantile=q, max_completion_length=T)
    assert got[0].item()==pytest.approx(loss, rel=1e-12) and torch.allclose(got[1], grad, rtol=1e-12, atol=0)
    assert 0<(grad!=0).sum()<len(real)*q+1

def test_entropy_bonus_adds_minus_coef_times_mean_entropy():
    d = batch(1)
    H = torch.rand(d['mask'].shape, dtype=torch.float64).requires_grad_()
    a,b = loss_of(**d, entropy=H, entropy_coef=.3),loss_of(**d)
    assert_tensor(b-a, .3*H[d['mask']].mean())
    assert_tensor(torch.autograd.grad(a, H)[0], -.3*d['mask'].double()/d['mask'].sum())

def test_metrics_by_hand():
    ratio = torch.tensor([[[1.5,.5],[1.5,.5],[.5,9.]]])
    m = torch.tensor([[[True,True],[True,True],[True,False]]])
    A = torch.tensor([[1.,-1.,-1.]])
    H = torch.tensor([[[1.,2.],[3.,4.],[5.,torch.nan]]])
    got = metrics_of(ratio.log(), torch.zeros_like(ratio), A, m, ref_logps=ratio.log(), entropy=H)
    clip = {'clip_ratio/high_mean':.2, 'clip_ratio/low_mean':.4, 'clip_ratio/region_mean':.6}
    want = {'ratio_mean':.9, 'ratio_max':1.5, 'kl':0., 'entropy':3.} | clip
    for k,v in want.items(): assert abs(got[k]-v)<1e-6, k
    w = [.75,.75,.5]
    assert abs(got['ess_answers']-sum(w)**2/sum(x*x for x in w)/3)<1e-6
    assert [v for v in got.values() if type(v) is not float]==[]
    x = torch.tensor([[[2000.],[0.]]])
    far = metrics_of(x, 0*x, torch.ones(1, 2), x>=0)
    assert abs(far['ess_answers']-.5)<1e-6   # one completion carries everything
    assert metrics_of(ratio.log(), None, torch.ones(1, 3), m)['ess_answers']==1.

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

def test_luspo_with_token_ratios_warns():
    with pytest.warns(UserWarning, match='sequence'): loss_of(**batch(0), loss_type='luspo')

def test_aggregate_ignores_what_is_masked_even_nan():
    x,m = torch.tensor([[[1.,float('nan')],[2.,3.]]]),torch.tensor([[[True,False],[True,True]]])
    want = dict(grpo=1.75, sapo=1.75, dapo=2., bnpo=2., cispo=2., vespo=2., luspo=3., dr_grpo=.75)
    for k,v in want.items():
        assert_tensor(aggregate_token_loss(x, m, k, max_completion_length=4), torch.tensor(v))

@pytest.mark.parametrize('kind', ['dapo','cispo','vespo'])
def test_aggregate_divides_by_the_items_it_is_given_even_by_less_than_one(kind):
    "One token that counts in a batch of two steps is half a token of each, as TRL takes it."
    x,m = torch.tensor([[[3., 1.]]]),torch.tensor([[[True, False]]])
    assert aggregate_token_loss(x, m, kind, num_items=.5).item()==6.
    assert aggregate_token_loss(x, m, kind, num_items=torch.tensor(4.)).item()==.75
    assert aggregate_token_loss(x, m&False, kind).item()==0.

# ---- corrections: weight, clip and filter, each combination beside a plain loop ----
FILTERS = dict(none={}, drift=dict(max_drift=.25), moment=dict(max_moment=.15))
FAR = math.inf
CLIP_EDGES = dict(ppo=(.2,.3,FAR), none=(FAR,FAR,FAR), dapo=(.2,.3,FAR), two_sided=(.2,.3,4.))

def past(seed, B=4, G=3, T=4):
    "Groups of an older policy: lists for the loop, tensors for the loss."
    d = batch(seed, B, G, T, drift=.7)
    del d['ref_logps']
    g = torch.Generator().manual_seed(seed+100)
    d['prox_logps'] = d['old_logps']+.4*torch.randn(B, G, T, generator=g, dtype=torch.float64)
    return d

def answers_of(d, key):
    "(group, answer) -> its real entries."
    return {(b,i):[v for v,m in zip(d[key][b][i], d['mask'][b][i]) if m]
        for b,i in itertools.product(range(len(d['mask'])), range(len(d['mask'][0])))}

def loop_keep(x, d, c):
    "Which answers, and which tokens, the filters leave in."
    stay = {k:True for k in x}
    for (b,i),o in x.items():
        if c.max_drift is not None and abs(sum(o)/len(o))>c.max_drift: stay[b,i] = False
    tokens = sorted((v*v, k, t) for k,o in x.items() if stay[k] for t,v in enumerate(o))
    if c.max_moment is None: return {(k,t) for _,k,t in tokens}
    while tokens and sum(v for v,_,_ in tokens)/len(tokens)>c.max_moment: tokens.pop()
    return {(k,t) for _,k,t in tokens}

def loop_corrected(d, c, level, without=()):
    "(loss under 'dapo', {(answer, token): gradient}) but for some answers, one number after another."
    p,old,prox = (answers_of(d, k) for k in ('logps','old_logps','prox_logps'))
    centre = prox if c.weight=='decoupled' else old
    x = {k:[a-b for a,b in zip(p[k], old[k])] for k in p}
    keep,N = loop_keep(x, d, c),sum(map(len, p.values()))
    lo,hi,cap = CLIP_EDGES[c.clip]
    total,grad = 0.,{}
    for k,o in p.items():
        A = d['advantages'][k[0]][k[1]]
        near,before = ([a-b for a,b in zip(u, v)] for u,v in ((o, centre[k]), (centre[k], old[k])))
        if level=='sequence': near,before = ([sum(v)/len(v)]*len(v) for v in (near, before))
        for t in range(len(o)):
            r,part = math.exp(near[t]),min(math.exp(before[t]), c.weight_cap)
            W = dict(token=r, none=1., truncated=min(r, c.weight_cap), decoupled=r*part,
                sequence=min(math.exp(sum(x[k])), c.weight_cap))[c.weight]
            silent = r>1+hi if A>0 else r<1-lo or r>max(cap, 1+hi)
            if (k,t) not in keep or k in without: continue
            grad[k,t] = 0. if silent else -W*A/N
            own = c.clip=='ppo' and c.weight in ('token','decoupled')   # the clip's edge is its value
            edge = 1+hi if A>0 else 1-lo
            part = part if c.weight=='decoupled' else 1.
            total -= (edge*part*A if silent else W*A) if own else 0. if silent else W*A
    return total/N,grad

@pytest.mark.parametrize('clip', CLIP_EDGES)
@pytest.mark.parametrize('weight', ['token','none','truncated','sequence','decoupled'])
def test_every_correction_equals_a_plain_loop_in_value_and_gradient(weight, clip):
    silenced = left_out = 0
    for (name,kw),level,seed in itertools.product(FILTERS.items(), LEVELS, range(2)):
        if name=='moment' and level=='sequence': continue   # a filter of tokens
        c,d = OffPolicyCorrection(weight=weight, clip=clip, weight_cap=1.5, **kw),past(seed)
        want,grad = loop_corrected({k:v.tolist() for k,v in d.items()}, c, level)
        p = d['logps'].clone().requires_grad_()
        got = loss_of(**(d|dict(logps=p)), correction=c, epsilon_high=.3, importance_sampling_level=level)
        g, = torch.autograd.grad(got, p)
        assert abs(got.item()-want)<1e-12, (name, level)
        full = torch.zeros_like(g)
        n = d['mask'].long().cumsum(-1)-1
        for ((b,i),t),v in grad.items(): full[b,i,(n[b,i]==t)&d['mask'][b,i]] = v
        assert_tensor(g, full, eps=1e-12)
        silenced += sum(v==0 for v in grad.values())
        left_out += int(d['mask'].sum())-len(grad)
    assert left_out>0 and (silenced>0 or clip=='none')

def loop_kl(d, level):
    "(mean KL of the tokens, {(answer, token): gradient}), each token weighed by its ratio to the sampler's."
    p,old,ref = (answers_of(d, k) for k in ('logps','old_logps','ref_logps'))
    N = sum(map(len, p.values()))
    total,grad = 0.,{}
    for k,o in p.items():
        far = [a-b for a,b in zip(o, old[k])]
        W = [math.exp(sum(far)/len(far) if level=='sequence' else v) for v in far]
        kl = [math.exp(q-v)-(q-v)-1 for q,v in zip(ref[k], o)]
        total += sum(w*v for w,v in zip(W, kl))
        for t in range(len(o)):
            moved = sum(kl)/len(kl) if level=='sequence' else kl[t]   # the weight has a gradient too
            grad[k,t] = W[t]*(1-math.exp(ref[k][t]-o[t])+moved)/N
    return total/N,grad

@pytest.mark.parametrize('level', LEVELS)
@pytest.mark.parametrize('weight', ['token','none','truncated','sequence','decoupled'])
def test_kl_weight_and_off_policy_mask_look_at_the_sampler_whatever_the_correction(weight, level):
    for seed,(beta,limit) in itertools.product(range(3), ((.3, None), (0., .15), (.3, .15))):
        c,d = OffPolicyCorrection(weight=weight, weight_cap=1.5),past(seed)
        d['ref_logps'] = d['logps']+.6*uniform(d, seed)-.3
        L = {k:v.tolist() for k,v in d.items()}
        p,old = answers_of(L, 'logps'),answers_of(L, 'old_logps')
        far = [k for k in p if L['advantages'][k[0]][k[1]]<0
            and sum(b-a for a,b in zip(p[k], old[k]))/len(p[k])>(limit or math.inf)]
        assert bool(far)==(limit is not None)
        want,grad = loop_corrected(L, c, level, far)
        kl,slope = loop_kl(L, level)
        at = d['mask'].nonzero().tolist()
        place = [((b,i), sum(L['mask'][b][i][:t])) for b,i,t in at]
        got,g = go(d, correction=c, epsilon_high=.3, importance_sampling_level=level, beta=beta,
            off_policy_mask_threshold=limit)
        assert abs(got.item()-want-beta*kl)<1e-12
        assert_tensor(g[d['mask']], torch.tensor([grad.get(k, 0.)+beta*slope[k] for k in place],
            dtype=torch.float64), eps=1e-12)

@pytest.mark.parametrize('loss_type', LOSS_TYPES)
def test_the_default_correction_is_the_loss_as_it_was_to_the_bit(loss_type):
    for level in LEVELS:
        d = batch(3)
        kw = dict(loss_type=loss_type, importance_sampling_level=level, max_completion_length=9, beta=.1)
        def run(**more):
            p = d['logps'].clone().requires_grad_()
            loss = loss_of(**(d|dict(logps=p)), **kw, **more)
            return loss.detach(),torch.autograd.grad(loss, p)[0]
        a = run()
        b = run(correction=OffPolicyCorrection(), replay_correction=OffPolicyCorrection(),
            replayed=torch.tensor([True,False]))
        assert a[0].equal(b[0]) and a[1].equal(b[1])

def test_fresh_and_replayed_groups_are_corrected_apart():
    d = past(0)
    kw = dict(correction=OffPolicyCorrection(weight='none', clip='none'),
        replay_correction=OffPolicyCorrection(weight='truncated', clip='none', weight_cap=1.1))
    replayed = torch.tensor([False,True,True,False])
    def grad(**kw):
        p = d['logps'].clone().requires_grad_()
        return torch.autograd.grad(loss_of(**(d|dict(logps=p)), epsilon_high=.3, **kw), p)[0]
    both = grad(replayed=replayed, **kw)
    for c,rows in ((kw['correction'], ~replayed), (kw['replay_correction'], replayed)):
        assert_tensor(both[rows], grad(correction=c)[rows], eps=1e-12)
    only = grad(replayed=replayed, replay_correction=kw['replay_correction'])
    assert_tensor(only[~replayed], grad()[~replayed], eps=1e-12)   # None: the loss as it is
    plain = grad()
    assert [b for b in range(4) if not ((both[b]-plain[b]).abs().max()>1e-3)]==[]

def test_truncated_weights_without_a_clip_have_the_gradient_of_cispo():
    d = past(1)
    c = OffPolicyCorrection(weight='truncated', clip='none', weight_cap=1.5)
    assert_tensor(go(d, correction=c)[1], go(d, loss_type='cispo', epsilon_high=1.5)[1], eps=1e-12)

def test_a_correction_works_under_every_loss_type():
    "No weight and no clip: REINFORCE, whatever held the token before."
    d = past(2)
    c = OffPolicyCorrection(weight='none', clip='none')
    for loss_type in LOSS_TYPES:
        cap = 5. if loss_type=='cispo' else None
        kw = dict(loss_type=loss_type, max_completion_length=4, epsilon_high=cap)
        assert_tensor(go(d, correction=c, **kw)[1], go(d|dict(old_logps=None), **kw)[1], eps=1e-12)

@pytest.mark.parametrize('make,says', [(lambda: OffPolicyCorrection(weight='half'), 'needs one of token'),
    (lambda: OffPolicyCorrection(clip='hard'), 'needs one of ppo'),
    (lambda: OffPolicyCorrection(max_drift=-1.), '`max_drift` is -1.0'),
    (lambda: loss_of(**batch(0), correction=OffPolicyCorrection(weight='decoupled')),
    'ask the model once more')])
def test_what_a_correction_lacks_is_named(make, says):
    with pytest.raises(ValueError) as e: make()
    assert says in str(e.value)

def test_a_run_corrects_replayed_groups_as_all_others_unless_told_otherwise():
    from grpo_nb.run.config import make_loss_settings
    from grpo_nb.trainer import TrainConfig
    def of(**kw):
        s = make_loss_settings(TrainConfig(beta=.1, **kw))
        assert (s.beta, s.epsilon, s.max_completion_length, s.aggregation)==(.1, .2, 48, None)
        return s.correction,s.replay_correction
    none,drift = OffPolicyCorrection(clip='none'),OffPolicyCorrection(max_drift=.5)
    assert of()==(None, None) and of(correction='clip=none')==(none, none)
    assert of(replay_correction='max_drift=.5')==(None, drift)
    assert of(correction='clip=none', replay_correction='max_drift=.5')==(none, drift)

def test_the_clip_a_correction_applies_is_the_one_it_reports():
    "What `clipped` says of it is where the corrected loss has no gradient."
    for weight,clip in itertools.product(('token','none','truncated'), CLIP_EDGES):
        c,d = OffPolicyCorrection(weight=weight, clip=clip),past(0)
        p = d['logps'].clone().requires_grad_()
        g, = torch.autograd.grad(loss_of(**(d|dict(logps=p)), correction=c), p)
        ratio = importance_ratio(d['logps'], d['old_logps'], d['mask'])
        held = ppo_clip_mask(ratio, d['advantages'][...,None], c.clip_range())
        assert (g==0)[d['mask']].equal(held[d['mask']])

# ---- a loss of one's own ----
def test_a_registered_loss_is_known_and_gets_the_settings_it_names():
    from grpo_nb.parts.registry import register
    @register(LOSSES, 'mine')
    def mine(logps, old_logps, A, mask, width=1.): return width*A*logps
    try:
        d = batch(0)
        del d['ref_logps']
        for name in ('mine', mine):
            for by,n in ((None, d['mask'].sum()), ('dr_grpo', 6*9)):
                g = go(d, loss_type=name, width=3., aggregation=by, max_completion_length=9)[1]
                assert_tensor(g, -3*d['advantages'][...,None]*d['mask']/n, eps=1e-12)
        assert metrics_of(**d, loss_type='mine')['clip_ratio/region_mean']==0
        with pytest.raises(TypeError, match='wdith'): loss_of(**d, loss_type='mine', wdith=3.)
        with pytest.raises(ValueError, match='mine'): loss_of(**d, loss_type='yours')
    finally: del LOSSES['mine']

# ---- the chapter's exercises, run against the package instead of the chapter's own cells ----
@pytest.fixture(scope='module')
def chapter():
    import grpo_nb.loss as package, grpo_nb.see.widgets as widgets
    nb = json.loads((Path(__file__).parent.parent/'nbs/10_loss.ipynb').read_text())
    ns,explore = dict(vars(package)),widgets.explore
    widgets.explore = lambda *a, **k: None
    try:
        for c in nb['cells']:
            src = ''.join(c['source'])
            if c['cell_type']!='code': continue
            if src.startswith('#| export'): ns |= {k:getattr(package, k) for k in package.__all__}
            else: exec(src, ns)   # earlier versions of the function among them
    finally: widgets.explore = explore
    return ns

def test_the_stubs_are_unsolved_and_the_solutions_right(chapter):
    n = chapter
    assert n['check_my_loss'](n['my_loss']).startswith('not yet')
    assert set(n['check_hunts'](n['answers_to_hunts']).values())=={'not yet'}
    assert n['check_my_loss'](n['my_loss_solution'])=='right'
    assert set(n['check_hunts'](n['solutions_to_hunts']).values())=={'right'}

def test_the_checkers_see_a_wrong_answer(chapter):
    n = chapter
    assert 'wanted' in n['check_my_loss'](lambda *a: 7.)
    hints = n['check_hunts'](dict(clip='b', split='a'))
    assert 'corners' in hints['clip'] and 'divided' in hints['split']
    def wrong(lp, old, A, m, eps):
        "All tokens alike: 'dapo', not 'grpo'."
        terms = []
        for b,i,t in itertools.product(range(len(m)), range(len(m[0])), range(len(m[0][0]))):
            r,a = math.exp(lp[b][i][t]-old[b][i][t]),A[b][i]
            if m[b][i][t]: terms.append(min(r*a, min(max(r, 1-eps), 1+eps)*a))
        return -sum(terms)/len(terms)
    assert 'all tokens weigh the same' in n['check_my_loss'](wrong)

def test_what_a_loss_is_registered_with_is_read_everywhere():
    from grpo_nb.loss import policy_loss
    from grpo_nb.parts.loss_inputs import LossInputs
    from grpo_nb.parts.registry import register
    from grpo_nb.run.config import TrainConfig
    from grpo_nb.variants.token_terms import compare_losses
    torch.manual_seed(0)
    x = LossInputs(torch.randn(2, 3, 4)-2, torch.randn(2, 3, 4)-2, torch.randn(2, 3),
        torch.arange(4)<torch.tensor([[1, 2, 4], [3, 1, 2]])[...,None])
    def squash(ratio, A, width=1.): return (ratio*width).tanh()*A
    try:
        register(LOSSES, 'squash', divisor='grpo', clips=True, zero_without_advantage=True)(squash)
        for width in (1., 3.):
            s = LossSettings('squash', extra=dict(width=width))
            out = policy_loss(x, s)
            ratio,A = (x.logps-x.old_logps).exp(),x.advantages[...,None]
            each = -(ratio*width).tanh()*A*x.mask
            want = (each.sum(-1)/x.mask.sum(-1)).mean()   # by completions, as 'grpo'
            assert out.loss.item()==pytest.approx(want.item(), rel=1e-5)
        held = (((ratio>1.2)&(A>0))|((ratio<.8)&(A<0)))&x.mask
        assert torch.equal(out.clip_mask&x.mask, held) and held.any()
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
