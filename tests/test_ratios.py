"One quantity, one definition: each by an independent road, and each disagreement that once was, by value."
import itertools, math, warnings
import pytest, torch
from grpo_nb.parts.tensors import test_tensor as assert_tensor
from grpo_nb.generation import Rollouts
from grpo_nb.parts.registry import LOSSES
from grpo_nb.parts.loss_settings import CLIP_KINDS, LossSettings, OffPolicyCorrection, parse_correction
from grpo_nb.parts.loss_inputs import LossInputs, correct_groups, prepare_loss_inputs
from grpo_nb.parts.groups import (
    dead_groups, group_scores, reward_range, reward_std, group_reward_std)
from grpo_nb.parts.corrections import apply_correction, warn_unless_clipped
from grpo_nb.parts.ratios import (
    ClipRange, ppo_clip_mask, importance_ratio, merge_sums, ratio_row, ratio_sums)
from loss_calls import loss_of

LOSS_TYPES = [*LOSSES]

NAN = math.nan

def batch(seed, B=3, G=4, T=6, far=.5):
    "Log-ratios, advantages (B, G, 1) and a mask with padding."
    g = torch.Generator().manual_seed(seed)
    mask = torch.arange(T)<torch.randint(1, T+1, (B, G, 1), generator=g)
    x = far*torch.randn(B, G, T, generator=g, dtype=torch.float64)
    A = torch.randn(B, G, 1, generator=g, dtype=torch.float64)
    return x,A,mask

def tokens_of(x, mask):
    "The real entries of each answer, as nested lists."
    rows = zip(x.flatten(0, 1).tolist(), mask.flatten(0, 1).tolist())
    return [[v for v,m in zip(o, k) if m] for o,k in rows]

# ---- clipped: where the loss itself has no gradient ----
@pytest.mark.parametrize('level', ['token','sequence'])
@pytest.mark.parametrize('loss_type', LOSS_TYPES)
@pytest.mark.filterwarnings('ignore:.*luspo')
def test_clipped_is_where_the_loss_has_no_gradient(loss_type, level):
    for seed,delta in itertools.product(range(3), (None, 1.1, 1.6)):
        if delta and loss_type in ('cispo','sapo','vespo'): continue
        x,A,mask = batch(seed)
        p = torch.zeros_like(x).requires_grad_()
        kw = dict(epsilon=.15, epsilon_high=1.2 if loss_type=='cispo' else .3, delta=delta)
        loss = loss_of(p, p.detach()-x, A[...,0], mask, loss_type, importance_sampling_level=level,
            max_completion_length=9, **kw)
        g, = torch.autograd.grad(loss, p)
        ratio = importance_ratio(p.detach(), p.detach()-x, mask, level)
        clips = loss_type in ('grpo','dr_grpo','dapo','bnpo','luspo')
        clipped = ppo_clip_mask(ratio, A, ClipRange(**kw, enabled=clips)).expand_as(mask)
        assert (g==0)[mask].equal(clipped[mask])
        assert clipped[mask].any() or loss_type in ('cispo','sapo','vespo') or level=='sequence'

@pytest.mark.parametrize('A', [1., -1.])
@pytest.mark.parametrize('low,high,delta', [(.2, .2, None), (.1, .3, None), (.2, .2, 2.), (.2, .4, 1.1)])
def test_a_token_on_a_corner_of_the_clip_is_not_clipped_whatever_autograd_says(low, high, delta, A):
    "Clipped is where the objective is flat on both sides; torch 2.15 gives a corner another slope than 2.13."
    def objective(r): return min(min(r, delta or math.inf)*A, min(max(r, 1-low), 1+high)*A)
    corners = [1-low, 1+high, *([delta] if delta else [])]
    for r in (*corners, *(o+d for o in corners for d in (-.05, .05)), 1., 3.7):
        flat = all(objective(r+h)==objective(r) for h in (-1e-6, 1e-6))
        kw = dict(epsilon=low, epsilon_high=high, delta=delta)
        ratio = torch.tensor(r, dtype=torch.float64)
        assert ppo_clip_mask(ratio, torch.tensor(A), ClipRange(**kw)).item()==flat, (r, flat)

# ---- rows of a history ----
def kish(w): return sum(w)**2/sum(o*o for o in w)/len(w)

@pytest.mark.parametrize('level', ['token','sequence'])
def test_a_row_over_minibatches_is_that_of_all_tokens_together(level):
    x,A,mask = batch(5, B=6)
    parts = [ratio_sums(x[i:j], A[i:j], mask[i:j], level) for i,j in ((0,1),(1,4),(4,6))]
    parts.append(ratio_sums(x, A, mask&False, level))   # a part in which nothing was replayed
    row = ratio_row(merge_sums(parts))
    ratio = importance_ratio(x, 0*x, mask, level)
    m = mask if level=='token' else mask.any(-1, keepdim=True)
    want = dict(ratio_mean=ratio[m].mean().item(), ratio_max=ratio[m].max().item(),
        clip_frac=ppo_clip_mask(ratio, A)[m].float().mean().item())
    rows = tokens_of(x, mask)
    want |= dict(ess_tokens=kish([math.exp(v) for o in rows for v in o]),
        ess_answers=kish([math.exp(sum(o)) for o in rows if o]))
    assert row.keys()==want.keys()
    for k,v in want.items(): assert row[k]==pytest.approx(v, rel=1e-4), k

# ---- rewards ----

def test_what_is_missing_is_left_out_and_never_counts_as_zero():
    r = torch.tensor([[1.,0.,NAN,NAN],[1.,NAN,NAN,NAN],[NAN]*4])
    assert_tensor(group_reward_std(r), [math.sqrt(.5),NAN,NAN])
    assert reward_std(r)==pytest.approx(math.sqrt(.5)) and reward_std(r[1:])==0
    assert dead_groups(r).tolist()==[False,True,True]
    assert_tensor(reward_range(r), [1.,0.,-math.inf])
    A = torch.tensor([[.5**.5,-.5**.5,0.,0.],[0.]*4,[0.]*4])
    assert_tensor(group_scores(A, r), [1.,0.,0.])   # 0.71 where None counted as 0

def test_the_score_of_token_advantages_does_not_see_the_padding():
    r = torch.tensor([[1.,0.,1.,0.]])
    A = torch.tensor([[1.,-1.,1.,-1.]])
    want = group_scores(A, r)
    for width in (6, 60):
        mask = torch.arange(width)<torch.tensor([[[2],[5],[3],[6]]])
        assert_tensor(group_scores(A[...,None].expand(1, 4, width), r, mask), want)
        assert_tensor(group_scores(A[...,None]*mask, r, mask), want)
    with pytest.raises(ValueError, match='completion_mask'): group_scores(A[...,None], r)
    with pytest.raises(ValueError, match='need shapes'): group_scores(A, r[:,:2])

# ---- Rollouts ----
def test_a_batch_refuses_advantages_of_another_shape():
    ids,mask = torch.zeros(2, 3, 4, dtype=torch.int64),torch.ones(2, 3, 4, dtype=torch.bool)
    make = lambda A: Rollouts(ids[:,0], mask[:,0], ids, mask, mask.float(), advantages=A)
    for good in (None, torch.zeros(2, 3), torch.zeros(2, 3, 4)): make(good)
    for bad in ((2,), (6,), (2, 3, 1), (3, 2), (2, 4)):
        with pytest.raises(ValueError, match='one per completion'): make(torch.zeros(bad))

# ---- corrections (their losses are in test_loss) ----
def test_the_clips_of_a_correction_have_the_edges_of_their_papers():
    cispo = ClipRange(enabled=False)
    assert OffPolicyCorrection().clip_range(cispo)==cispo # the loss as it is
    assert OffPolicyCorrection(clip='dapo').clip_range(cispo)==ClipRange(.2, epsilon_high=.28)
    assert OffPolicyCorrection(clip='two_sided').clip_range(cispo)==ClipRange(.2, delta=4.)
    assert OffPolicyCorrection(weight='truncated').clip_range(cispo)==ClipRange(.2) # PPO's, whatever the loss
    rho = torch.tensor([1.25, 1.29, 3.9, 4.1])
    clipped = lambda A, **kw: ppo_clip_mask(rho, torch.tensor(A),
        OffPolicyCorrection(**kw).clip_range()).tolist()
    assert clipped(1., clip='dapo')==[False,True,True,True] and clipped(1.)==[True]*4
    assert clipped(-1., clip='two_sided')==[False,False,False,True] and not any(clipped(-1.))
    assert not any(clipped(1., clip='none'))

def test_only_replay_without_any_clip_is_warned_of():
    for clip in CLIP_KINDS:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter('always')
            warn_unless_clipped(clip, 'replay_clip')
        assert [str(o.message)[:13] for o in seen]==['`replay_clip`']*(clip=='none')

@pytest.mark.parametrize('level', ['answer', 'sequences', 'tokens', 'tok', ''])
def test_a_level_that_is_neither_is_refused_wherever_it_stands_in_the_alphabet(level):
    x = torch.zeros(1, 2, 3)
    with pytest.raises(ValueError, match=f"is {level!r}: choose 'token' or 'sequence'"):
        importance_ratio(x, x, x==0, level)

def test_a_moment_of_exactly_the_limit_stays():
    x = torch.tensor([[[0.,0.,.5],[.5,1.,1.]]])   # means of the squares: 0, 0, 1/12, 1/8, .3, .417
    from grpo_nb.parts.corrections import _moment_mask
    def stay(limit): return _moment_mask(x, torch.ones_like(x).bool(), limit).sum().item()
    assert [stay(o) for o in (0., .08, .125, .29)]==[2, 2, 4, 4]

def test_the_moment_of_replayed_tokens_does_not_see_the_fresh_ones():
    x,A,mask = batch(3, B=4)
    old,c = torch.zeros_like(x),OffPolicyCorrection(max_moment=.05)
    replayed = torch.tensor([False,True,True,False])
    x[~replayed] = 0.   # fresh tokens have ratio 1: counted in, they would let more of the others through
    given = prepare_loss_inputs(LossInputs(x, old, A[...,0], mask, replayed=replayed))
    ratio = importance_ratio(x, old, mask)
    clipped = ppo_clip_mask(ratio, given.advantages)
    got = correct_groups(given, ratio, clipped, LossSettings(replay_correction=c)).A.expand_as(x)
    alone = apply_correction(x[replayed], old[replayed], A[replayed], mask[replayed], c)[1]
    assert torch.equal(got[replayed], alone) and (alone==0)[mask[replayed]].any()
    assert torch.equal(got[~replayed], A[~replayed].expand_as(x[~replayed]))

@pytest.mark.parametrize('text,want', [('clip=none', OffPolicyCorrection(clip='none')), (None, None),
    ('weight=truncated, weight_cap=1.5,max_drift=8', OffPolicyCorrection('truncated', 1.5, max_drift=8)),
    (dict(max_drift=.2), OffPolicyCorrection(max_drift=.2)), (OffPolicyCorrection(), OffPolicyCorrection())])
def test_a_correction_is_read_from_words(text, want): assert parse_correction(text)==want

@pytest.mark.parametrize('text', ['weigth=none', 'none', 'clip=hard', 'max_drift=old', 3])
def test_words_that_make_no_correction_are_named(text):
    with pytest.raises(ValueError, match='`replay_correction` is .* needs words such as'):
        parse_correction(text, 'replay_correction')

def test_a_weight_is_capped_at_2_where_nothing_else_is_said():
    old,mask,A = torch.zeros(1, 1, 3),torch.ones(1, 1, 3, dtype=torch.bool),torch.ones(1, 1, 1)
    new = torch.tensor([[[.5, 1.9, 5.]]]).log()
    got = apply_correction(new, old, A, mask, OffPolicyCorrection(weight='truncated', clip='none'))[1]
    assert_tensor(got, torch.tensor([[[.5, 1.9, 2.]]]))
    got = apply_correction(new, old, A, mask, OffPolicyCorrection(weight='sequence', clip='none'))[1]
    assert_tensor(got, torch.full((1, 1, 3), 2.))
