"The strategies for dead groups, by value."
import math, statistics
import pytest, torch
from grpo_nb.advantages import group_advantages
from grpo_nb.parts.groups import dead_groups
from grpo_nb.parts.tensors import test_tensor as assert_tensor
from grpo_nb.parts.registry import STRATEGIES, resolve
from grpo_nb.variants.strategies import (
    GFPO, NGRPO, DuplicateLive, DynamicSampling, RLZVP, AR3PO, GRESO, SNRFilter, VirtualMaxReward)
from grpo_nb.replay import Replay
from grpo_nb.run.config import TrainConfig
from grpo_nb.variants.strategy import Keep, Mask, DeadGroupStrategy

from made_groups import DEAD0, DEAD1, MIXED, batch, content

# ---- strategies -------------------------------------------------------------------------------------

def test_every_method_has_its_name_and_starts_from_it():
    assert set(STRATEGIES) == {'keep', 'mask', 'replay', 'dynamic', 'skip', 'virtual_max', 'entropy',
                            'same_prompt', 'variance', 'copies', 'newest', 'ngrpo', 'gfpo'}
    for n in STRATEGIES:
        m = resolve(STRATEGIES, n)(**(dict(num_remains_in_group=4) if n=='gfpo' else {}))
        assert m.name==n and m.select_prompts([1, 2], 0)==[True, True]
        x = batch([MIXED, [1.,1,0,0]])
        t = m.process_batch(x) # all alive: each group is trained on
        assert (t.in_loss.all() and [o['outcome'] for o in t.records] == ['trained'] * 2
                and t.metrics['replay/dead'] == 0 and t.metrics['replay/live_after'] == 1)
        assert set(t.records[0])>={'outcome', 'score', 'id', 'replacement'}
        m2 = resolve(STRATEGIES, n)(); m2.load_state_dict(m.state_dict())

def test_keep_and_mask_by_value():
    x = batch([MIXED, DEAD0, DEAD1])
    k,m = Keep().process_batch(x),Mask().process_batch(x)
    assert (k.batch is x and m.batch is x and k.in_loss.tolist() == [True] * 3
            and m.in_loss.tolist() == [True, False, False])
    assert ([o['outcome'] for o in m.records] == ['trained', 'masked', 'masked']
            and k.metrics['replay/unreplaced'] == 2
            and m.metrics['replay/live_after'] == pytest.approx(1 / 3))

def test_replay_fills_what_it_can_and_says_what_it_did():
    m = Replay(8, seed=1)
    old = batch([MIXED], seed=1, step=3, keys=[42])
    m.process_batch(old, step=3)
    x = batch([DEAD0, DEAD1], seed=2, step=10, keys=[5, 6])
    t = m.process_batch(x, step=10) # two dead, one stored: drawn with replacement
    assert [o['outcome'] for o in t.records]==['replaced']*2
    assert [o['replacement']['uses'] for o in t.records]==[1, 2]
    r = t.records[0]['replacement']
    assert (r['id'], r['step'], r['age'], r['draw_prob'], r['prompt_key'])==(0, 3, 7, 1., 42)
    assert (t.batch.prompt_key.tolist() == [42, 42] and t.batch.step.tolist() == [3, 3]
            and t.metrics['replay/unique_prompts'] == 1 and t.metrics['replay/age_mean'] == 7)
    once = Replay(8, max_uses=1, unreplaced='mask')
    once.process_batch(old, step=3)
    t = once.process_batch(x, step=10)
    assert ([o['outcome'] for o in t.records] == ['replaced', 'masked']
            and t.in_loss.tolist() == [True, False] and t.metrics['replay/unreplaced'] == 1)

def test_uncorrected_replay_asks_for_ratio_1_of_all_that_is_replayed():
    "Of stored groups beside fresh ones too, not of those alone that stand in for dead ones."
    m = Replay(64, force_ratio_one=True, stored_per_fresh=1)
    for s in range(4):
        n = m.num_groups_to_sample(4, s)
        t = m.process_batch(batch([MIXED, DEAD0, MIXED, MIXED][:n], seed=s, step=s), step=s, size=4)
        assert t.force_ratio_one.tolist()==t.batch.replayed.tolist()==[False]+[s>0]*3

def test_stored_groups_beside_fresh_ones_are_of_any_prompt():
    "`same_prompt_first` is for the dead group alone: the others are those that come without it."
    def drawn(first, seed):
        m = Replay(64, stored_per_fresh=2, same_prompt_first=first, seed=seed)
        for s in range(6):
            x = batch([MIXED]*2, seed=s, step=s)
            x.prompt_key = torch.tensor([1, 10+s])
            m.process_batch(x, step=s)
        assert m.num_groups_to_sample(6, 6)==2
        x = batch([MIXED, DEAD0], seed=6, step=6)
        x.prompt_key = torch.tensor([8, 1])
        t = m.process_batch(x, step=6, size=6)
        return t.records[1]['replacement']['prompt_key'],[o['replacement']['id'] for o in t.records[2:]]
    keys = []
    for seed in range(8):
        (own,a),(any_,b) = drawn(True, seed),drawn(False, seed)
        assert a==b and len(set(a))==4
        keys.append((own, any_))
    assert {o for o,_ in keys}=={1} and {o for _,o in keys}!={1}

def test_replay_wants_reference_log_probs_in_all_batches_or_in_none():
    m = Replay(8); m.process_batch(batch([MIXED]))
    with pytest.raises(ValueError, match='ref_logps'): m.process_batch(batch([DEAD0], ref=True, seed=1))
    m = Replay(8); old = batch([MIXED], ref=True); m.process_batch(old)
    t = m.process_batch(batch([DEAD0], ref=True, seed=1), step=1)
    assert_tensor(t.batch.ref_logps, old.strip_padding().ref_logps)

def test_dynamic_sampling_asks_for_what_is_missing_until_it_is_full():
    asked, stock = ([], [batch([DEAD0, MIXED, DEAD1], seed=7), batch([MIXED, DEAD0], seed=8),
                         batch([DEAD0], seed=9), batch([MIXED], seed=10)])
    def more(n): asked.append(n); return stock[len(asked)-1]
    x = batch([DEAD0, MIXED, DEAD1, DEAD0])
    t = DynamicSampling(max_rounds=5).process_batch(x, sample_more=more)
    assert (asked == [3, 2, 1, 1] and not dead_groups(t.batch.rewards).any()
            and content(t.batch, 1) == content(x, 1))
    assert content(t.batch, 0)==content(stock[0], 1) and content(t.batch, 3)==content(stock[3], 0)
    assert (t.metrics['replay/rounds'] == 4 and t.metrics['replay/extra_groups'] == 7
            and not t.batch.replayed.any())
    asked.clear()
    t = DynamicSampling(max_rounds=1, unreplaced='mask').process_batch(x, sample_more=more)
    assert [o['outcome'] for o in t.records] == [
        'resampled',
        'trained',
        'masked',
        'masked',
    ] and t.in_loss.tolist() == [True, True, False, False]
    with pytest.raises(ValueError, match='sample_more'): DynamicSampling().process_batch(x)

def test_skip_prompts_samples_a_dead_prompt_with_p_to_the_power_of_its_dead_past():
    m = GRESO(explore=.6, step_size=0.)
    for s in range(2): m.process_batch(batch([DEAD0, DEAD1, MIXED], keys=[1, 2, 3], seed=s))
    m.p_explore['easy'] = .2
    got = torch.tensor([m.select_prompts([1, 2, 3, 4], 0) for _ in range(5000)]).float().mean(0)
    assert_tensor(got, [.36, .04, 1., 1.], eps=.03)
    m.process_batch(batch([MIXED], keys=[1]))
    assert [i for i in range(50) if not m.select_prompts([1], 0)[0]]==[] # alive again: always sampled

def test_skip_prompts_moves_its_probabilities_towards_the_wanted_shares():
    m = GRESO(explore=.5, step_size=.1)
    m.process_batch(batch([DEAD0, DEAD0, MIXED, MIXED])) # half all-wrong: too many; no all-right: too few
    assert m.p_explore==pytest.approx(dict(easy=.6, hard=.4))
    a,b = m,GRESO(); b.load_state_dict(a.state_dict())
    keys = list(range(20))
    assert [a.select_prompts(keys, 0) for _ in range(5)]==[b.select_prompts(keys, 0) for _ in range(5)]

def test_virtual_max_by_hand():
    t = VirtualMaxReward(best=1., eps=0.).process_batch(batch([DEAD0, MIXED, DEAD1, [.5]*4]))
    sd = lambda x: (sum((o-sum(x)/len(x))**2 for o in x)/(len(x)-1))**.5
    want = [[(r - sum(row + [1.0]) / 5) / sd(row + [1.0]) for r in row] if row != DEAD1 else [0.0] * 4
            for row in (DEAD0, MIXED, DEAD1, [0.5] * 4)]
    assert_tensor(t.batch.advantages, want, eps=1e-5)
    assert (t.metrics['replay/unreplaced'] == 1 and t.metrics['replay/live_after'] == 0.75
            and [o['outcome'] for o in t.records] == ['trained', 'trained', 'kept', 'trained'])

def test_entropy_shaped_by_hand():
    x = batch([DEAD0, DEAD1, MIXED], T=5, seed=3)
    H = torch.rand(x.old_logps.shape, generator=torch.Generator().manual_seed(1))
    A = RLZVP(alpha=.2).process_batch(x, logps_fn=lambda o: (None, H)).batch.advantages
    for g in range(4):
        h = [H[0,g,t].item() for t in range(5) if x.completion_mask[0,g,t]]
        assert_tensor(A[0,g][x.completion_mask[0,g]], [-.2*(max(h)-o) for o in h], eps=1e-6)
        assert_tensor(A[1, g], 0.2 * H[1, g] * x.completion_mask[1, g])
        assert_tensor(A[2, g], x.advantages[2, g] * x.completion_mask[2, g])
    with pytest.raises(ValueError, match='`logps_fn`'): RLZVP().process_batch(x)
    with pytest.raises(ValueError, match='no strategy'): resolve(STRATEGIES, 'resample')

def test_same_prompt_mends_an_all_wrong_group_with_its_own_better_answer():
    m = AR3PO()
    first = batch([[0.,1,0,0], DEAD1], T=8, seed=1, keys=[5, 6])
    m.process_batch(first, step=2)
    x = batch([DEAD0, DEAD0, DEAD1, DEAD0], T=2, seed=2, keys=[5, 7, 6, -1])
    t = m.process_batch(x, step=9)
    assert [o['outcome'] for o in t.records]==['replaced', 'kept', 'kept', 'kept']
    assert_tensor(t.batch.rewards[0], [0.0, 0, 0, 1])
    assert_tensor(t.batch.advantages[0], group_advantages(torch.tensor([[0.0, 0, 0, 1]]))[0])
    old,new = content(first, 0)[1][1],content(t.batch, 0)[1]
    assert new[3]==old and new[:3]==content(x, 0)[1][:3]
    assert t.batch.replayed.tolist()==[True, False, False, False] and t.records[0]['replacement']['age']==7
    b = AR3PO(); b.load_state_dict(m.state_dict())
    assert_tensor(b.process_batch(x, step=11).batch.completion_ids,
        m.process_batch(x, step=11).batch.completion_ids)
    small = AR3PO(max_prompts=2)
    small.process_batch(batch([MIXED]*4, keys=[1, 2, 3, 4])); assert list(small.best)==[3, 4]

@pytest.mark.parametrize('scale,spread', [('group', 1.5), ('none', 1-1e-4)])
def test_an_improved_group_has_advantages_in_the_runs_own_units(scale, spread):
    m = resolve(STRATEGIES, 'same_prompt').from_settings(TrainConfig(scale_rewards=scale))
    m.process_batch(batch([[0.,3,0,0], MIXED], T=8, seed=1, keys=[5, 6]), step=2)
    t = m.process_batch(batch([DEAD0, [0.,6,0,0]], T=2, seed=2, keys=[5, 7]), step=9)
    assert_tensor(t.batch.advantages[0], [o/(spread+1e-4) for o in (-.75,-.75,-.75,2.25)])

def test_a_measure_needs_a_number_for_each_answer():
    with pytest.raises(ValueError, match=r'`measure` returned shape \(4,\) for rewards of \(4, 4\)'):
        GFPO(2, lambda rewards, lengths: rewards.mean(1)).process_batch(batch([MIXED]*4))

def test_an_improved_group_is_divided_by_the_deviation_of_its_batch():
    m = resolve(STRATEGIES, 'same_prompt').from_settings(TrainConfig(scale_rewards='batch'))
    m.process_batch(batch([[0.,3,0,0], MIXED], T=8, seed=1, keys=[5, 6]), step=2)
    t = m.process_batch(batch([DEAD0, [0.,6,0,0]], T=2, seed=2, keys=[5, 7]), step=9)
    spread = statistics.stdev([0.,0,0,3,0,6,0,0])+1e-4
    assert_tensor(t.batch.advantages, [[o/spread for o in row] for row in
        ((-.75,-.75,-.75,2.25), (-1.5,4.5,-1.5,-1.5))])

# ---- fresh and stored ------------------------------------------------------------------------------

def test_stored_groups_fill_the_batch_as_far_as_the_buffer_can():
    m = Replay(64, stored_per_fresh=2, seed=3)
    seen = []
    for s in range(12):
        n = m.num_groups_to_sample(6, s)
        rewards = [MIXED, DEAD0, [1.,1,0,1], DEAD1, MIXED, [0.,1,0,1]]
        t = m.process_batch(batch(rewards[:n], seed=s, step=s), step=s, size=6)
        seen.append(n)
        assert len(t.batch)==len(t.in_loss)==len(t.records)==len(t.force_ratio_one)==6
        came = [o['replacement'] for o in t.records if o['replacement']]
        assert t.batch.replayed.tolist()==[o['replacement'] is not None for o in t.records]
        assert [o for o in came if not (o['step']<s)]==[]
        if s>3: assert len({o['id'] for o in came})==len(came)   # one hat: nobody is in the batch twice
        assert [o['outcome'] for o in t.records][n:]==['stored']*(6-n) and t.metrics['replay/stored']==6-n
        assert t.metrics['replay/dead']+t.metrics['replay/live_before']*n==n
        assert t.metrics['replay/live_after']==(6-t.metrics['replay/unreplaced'])/6
    assert seen==[6, 2, 2]+[2]*9   # the first batch stores four living groups, all that the second wants

def test_a_young_buffer_gives_what_it_has():
    m = Replay(64, stored_per_fresh=3)
    m.process_batch(batch([MIXED], seed=1))
    assert m.num_groups_to_sample(8, 1)==7 # six are wanted, one is there
    t = m.process_batch(batch([MIXED]*3+[DEAD0]*4, seed=2), step=1, size=8)   # 4 dead, 1 stored
    assert len(t.batch)==8 and t.batch.replayed.tolist()==[False]*3+[True]*5

def test_a_batch_that_cannot_be_shared_out_is_refused():
    with pytest.raises(ValueError, match='divisible by 4'):
        Replay(8, stored_per_fresh=3).num_groups_to_sample(6, 0)
    for bad in (-1, 1.5, True):
        with pytest.raises(ValueError, match='stored_per_fresh'): Replay(8, stored_per_fresh=bad)

def test_a_treat_that_takes_not_all_that_trainers_pass_is_refused_where_it_is_defined():
    with pytest.raises(TypeError, match='`Old.process_batch` needs .*more. as its last'):
        class Old(DeadGroupStrategy):
            def process_batch(self, batch, dead=None, step=0, sample_more=None, logps_fn=None): ...

# ---- controls and filters --------------------------------------------------------------------------

def test_copies_of_living_groups_fill_holes_and_the_rest_of_the_batch_in_turn():
    m = DuplicateLive(stored_per_fresh=1)
    x = batch([DEAD0, MIXED, [1.,1,0,1], DEAD1], seed=2, keys=[0, 1, 2, 3])
    assert m.num_groups_to_sample(8, 0)==4
    t = m.process_batch(x)
    assert t.batch.prompt_key.tolist()==[1, 1, 2, 2, 1, 2, 1, 2]
    assert [o['outcome'] for o in t.records]==['replaced', 'trained', 'trained', 'replaced']+['stored']*4
    assert not t.batch.replayed.any() and t.in_loss.all() and not t.force_ratio_one.any()
    assert t.metrics['replay/dead']==2 and t.metrics['replay/live_after']==1 and t.metrics['replay/stored']==4
    for b,k in enumerate(t.batch.prompt_key.tolist()): assert content(t.batch, b)==content(x, k)

@pytest.mark.parametrize('top_p', [.3, .5, .9, 1.])
@pytest.mark.parametrize('seed', range(3))
def test_the_variance_filter_keeps_the_fewest_groups_that_hold_the_share(top_p, seed):
    r = torch.rand(6, 4, generator=torch.Generator().manual_seed(seed))
    r[2] = .5
    keep = SNRFilter(top_p).process_batch(batch(r)).in_loss.tolist()
    var = sorted(((r[b].var().item() if b!=2 else 0., b) for b in range(6)), reverse=True)
    want,total = set(),0.
    for v,b in var:
        if total<top_p*sum(v for v,_ in var)-1e-9: want.add(b); total += v
    assert {b for b,k in enumerate(keep) if k}==want and not keep[2]

def test_ngrpo_leaves_out_what_is_all_right():
    t = NGRPO().process_batch(batch([DEAD0, MIXED, DEAD1]))
    assert t.in_loss.tolist()==[True, True, False]
    assert_tensor(t.batch.advantages,
        VirtualMaxReward().process_batch(batch([DEAD0, MIXED, DEAD1])).batch.advantages)

# ---- the best of a group ---------------------------------------------------------------------------

MEASURES = dict(length=lambda r, n: -n, efficiency=lambda r, n: r/n)

def slow_gfpo(rewards, lengths, k, measure, scale):
    "One group, answer by answer: advantages of the k best among themselves, 0 for the others."
    worth = [MEASURES[measure](r, n) if r==r else -math.inf for r,n in zip(rewards, lengths)]
    kept = sorted(range(len(rewards)), key=lambda g: (-worth[g], g))[:k]
    kept = [g for g in kept if rewards[g]==rewards[g]]
    if len({rewards[g] for g in kept})<2: return [0.]*len(rewards)
    mean = sum(rewards[g] for g in kept)/len(kept)
    sd = (sum((rewards[g]-mean)**2 for g in kept)/(len(kept)-1))**.5
    by = sd+1e-4 if scale=='group' else 1.
    return [(r-mean)/by if g in kept else 0. for g,r in enumerate(rewards)]

@pytest.mark.parametrize('scale', ['group', 'none'])
@pytest.mark.parametrize('measure', MEASURES)
@pytest.mark.parametrize('k', [2, 3, 5, 8])
def test_gfpo_compares_the_best_of_each_group_with_each_other(k, measure, scale):
    for seed in range(6):
        r = torch.randint(-1, 3, (5, 8), generator=torch.Generator().manual_seed(seed)).float()
        r[4,1:3] = math.nan
        x = batch(r, T=9, seed=seed)
        t = GFPO(k, measure, scale).process_batch(x)
        n = x.completion_mask.sum(2).tolist()
        want = [slow_gfpo(a, b, k, measure, scale) for a,b in zip(r.tolist(), n)]
        assert_tensor(t.batch.advantages, want, eps=1e-5)
        alive = [any(row) for row in want]
        assert [o['outcome'] for o in t.records]==['trained' if a else 'kept' for a in alive]
        assert t.metrics['replay/unreplaced']==alive.count(False) and t.in_loss.all()
        assert t.batch.rewards.nansum()==r.nansum()   # what was earned stays in the record

@pytest.mark.parametrize('measure', MEASURES)
def test_gfpo_as_a_reward_gives_the_same_advantages_on_trls_trainer(measure):
    "On TRL's own trainer and on ours beside it: the hook's advantages, row by row, against the slow loop."
    from trl import GRPOConfig, GRPOTrainer
    from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferConfig, GRPOWithReplayBufferTrainer
    import trl_tiny
    for cls,conf in ((GRPOTrainer, GRPOConfig), (GRPOWithReplayBufferTrainer, GRPOWithReplayBufferConfig)):
        seen = []
        def mixed(completions, completion_ids, **kw):
            r = [float(sum(ids)%3) for ids in completion_ids]
            seen.append((r, [len(o) for o in completion_ids]))
            return r
        opts = dict(num_generations=8, per_device_train_batch_size=16, max_completion_length=9, max_steps=2)
        t = trl_tiny.trainer(GFPO(4, measure).reward(mixed, 8), cls=cls, args=trl_tiny.config(conf, **opts))
        got = trl_tiny.spy(t)
        t.train()
        assert len(got)==len(seen)==2 and any(len(set(n))>1 for _,n in seen)
        r,n = seen[0]   # of the first batch: it holds nothing from a buffer
        want = [a for g in (0, 8) for a in slow_gfpo(r[g:g+8], n[g:g+8], 4, measure, 'group')]
        assert_tensor(got[0]['advantages'], want, eps=1e-5)
        assert sum(a==0 for a in want)>=8 and any(want)
