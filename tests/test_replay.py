"The replay buffer and its strategy, by value, against slow models and exact sums."
import itertools, math, random, weakref
from dataclasses import replace
from types import SimpleNamespace
import pytest, torch
from grpo_nb.parts.groups import ReplayCounts, reward_std
from grpo_nb.parts.tensors import test_tensor as assert_tensor
from grpo_nb.generation import Rollouts
from grpo_nb.replay import Replay, ReplayBuffer, pack_groups, insert_stored
from grpo_nb.variants.strategy import prompt_keys

from made_groups import DEAD0, DEAD1, MIXED, batch, content

# ---- the defects of the reference, on ours -------------------------------------------------------

def test_d1_each_dead_group_of_a_mixed_batch_is_replaced_and_each_living_one_stored():
    m = Replay(8)
    m.process_batch(batch([MIXED], seed=1))
    x = batch([MIXED, DEAD0, [1.,1,0,1]], seed=2)
    t = m.process_batch(x, step=1)
    assert [o['outcome'] for o in t.records]==['trained','replaced','trained']
    assert len(m.buffer)==3 and t.batch.replayed.tolist()==[False, True, False]
    for b in (0, 2): assert content(t.batch, b)==content(x, b)
    scores = sorted(e.score for e in m.buffer)
    assert scores==pytest.approx([1.5, 1.5, 1.5], abs=1e-3)   # one group each, not the batch's sum

def test_d3_a_dead_batch_before_anything_is_stored_is_kept_or_masked_and_counted():
    x = batch([DEAD0, DEAD1])
    for when,in_loss in (('keep', [True, True]), ('mask', [False, False])):
        t = Replay(8, unreplaced=when).process_batch(x)
        assert (t.in_loss.tolist() == in_loss and t.metrics['replay/unreplaced'] == 2
                and t.metrics['replay/replaced'] == 0)
        assert_tensor(t.batch.completion_ids, x.completion_ids)
    assert ReplayBuffer(4).sample(3)==[] and ReplayBuffer(4).sample(0)==[]

def test_d4_equal_scores_never_compare_what_is_stored():
    b = ReplayBuffer(3)
    for i in range(50): b.add([1., 1.], [dict(x=torch.tensor([i, 1])), dict(x=torch.tensor([i, 2]))])
    assert sorted(e.data['x'][0].item() for e in b)==[48, 49, 49]   # of equals the newest stay

def test_d6_a_buffer_of_size_0_changes_nothing():
    b = ReplayBuffer(0)
    assert b.add([1., 2.], ['a', 'b'])==[None, None] and len(b)==0 and b.sample(2)==[]
    m = Replay(0)
    for s in range(3):
        x = batch([MIXED, DEAD0], seed=s)
        t = m.process_batch(x, step=s)
        for k,v in x.tensors().items(): assert torch.equal(v, getattr(t.batch, k))
        assert t.in_loss.all() and not t.force_ratio_one.any() and [o for o in t.records
            if o['id'] is not None]==[]

@pytest.mark.parametrize('value', [.1, .3, .7, 1/3, 1e3+.1])
@pytest.mark.parametrize('G', [3, 4, 7, 8, 16])
def test_d8_equal_fractional_rewards_are_dead_and_never_stored(value, G):
    m = Replay(8)
    x = batch([[value]*G])
    x.advantages = (x.rewards - x.rewards.mean(1, keepdim=True)) / (
        x.rewards.std(1, keepdim=True) + 1e-8
    )  # a trainer's noise
    t = m.process_batch(x)
    assert len(m.buffer)==0 and t.records[0]['outcome']=='kept'

# ---- draws ---------------------------------------------------------------------------------------

def inclusion(w, n):
    out = [0.]*len(w)
    for order in itertools.permutations(range(len(w)), n):
        left,p = sum(w),1.
        for i in order: p,left = p*w[i]/left,left-w[i]
        for i in order: out[i] += p
    return out

@pytest.mark.parametrize(
    'w,n',
    [([1, 2, 4], 1), ([1, 2, 4], 2), ([1, 1, 1, 100], 3), ([0.5, 3, 1, 1, 2], 3), ([5, 5, 5, 5, 5, 5], 4)],
)
def test_draws_without_replacement_have_the_exact_probabilities(w, n):
    b,N = ReplayBuffer(len(w), seed=3),6000
    b.add(w, list(range(len(w))))
    got = torch.zeros(len(w))
    for _ in range(N):
        s = b.sample(n)
        assert len(set(s))==n
        for i in s: got[i] += 1/N
    want = torch.tensor(inclusion(w, n))
    assert ((got-want).abs() < 4.5*(want*(1-want)/N).sqrt()+1e-9).all()

def test_the_stated_probability_of_a_draw_is_that_of_its_weight_among_those_left():
    w,b = [1., 2., 4., .5],ReplayBuffer(4, seed=1)
    b.add(w, list(range(4)))
    for _ in range(50):
        left = dict(enumerate(w))
        for e in b.sample_entries(4):
            assert e.draw_prob==pytest.approx(left[e.data]/sum(left.values()))
            del left[e.data]

def test_a_uniform_number_on_a_border_takes_the_group_above_it():
    for w,number,want in (([1., 1.], 0., 0), ([1., 1.], .5, 1), ([1., 0., 1.], .5, 2)):
        b = ReplayBuffer(3)
        b.add(w, list(range(len(w))))
        b.rng = SimpleNamespace(random=lambda: number)
        assert b.sample_entries(1)[0].data==want

def test_a_group_that_outweighs_all_others_does_not_stall_the_draw():
    b = ReplayBuffer(1000)
    b.add([1e99]+[1e-9]*999, list(range(1000)))
    assert len(set(b.sample(1000)))==1000

def test_age_decay_gives_the_probabilities_of_weights_taken_anew_each_step():
    tau,b = 4.,ReplayBuffer(3, age_decay=4., seed=1)
    for s,t in ((4., 0), (2., 5), (1., 9)): b.add([s], [t], step=t)
    w = {t:s*math.exp(-(10-t)/tau) for s,t in ((4., 0), (2., 5), (1., 9))}
    got = [b.sample(1, step=10)[0] for _ in range(6000)]
    for t in w: assert abs(got.count(t)/6000-w[t]/sum(w.values()))<.03

def test_age_decay_survives_a_million_steps():
    b = ReplayBuffer(8, age_decay=2.)
    for t in range(0, 1_000_000, 997): b.add([1.], [t], step=t)
    assert len(b)==8 and b.sample(1, step=1_000_000)==[t]

def test_a_priority_sees_age_uses_draws_prompt_and_rewards():
    seen = []
    def half_solved(entries, now):
        seen.append([(e.data, now, e.age, e.uses, e.drawn, e.prompt_key, e.rewards) for e in entries])
        return [.25-(sum(e.rewards)/len(e.rewards)-.5)**2 for e in entries]
    b = ReplayBuffer(2, priority=half_solved)
    b.add([1., 1.], 'ab', step=3, keys=[7, 8], rewards=[[1., 0.], [.99, 1.]])
    seen.clear()
    assert [e.data for e in b.sample_entries(1, step=5)]==['a'] and b.priority=='half_solved'
    assert seen[0]==[('a', 5, 2, 0, 0, 7, [1., 0.]), ('b', 5, 2, 0, 0, 8, [.99, 1.])]
    seen.clear()
    b.add([1.], 'c', step=6, keys=[9], rewards=[[0., 1.]])   # one too many: that of least weight leaves
    assert seen[0]==[('a', 6, 3, 1, 0, 7, [1., 0.]), ('b', 6, 3, 0, 0, 8, [.99, 1.]),
        ('c', 6, 0, 0, 0, 9, [0., 1.])] and [e.data for e in b]==['a','c']
    seen.clear()
    b.sample_entries(3) # more than there are: what was drawn comes again
    assert [sum(o[4] for o in call) for call in seen]==[0, 0, 1, 2, 0]   # before and after it: is one gone?
    other = ReplayBuffer(2, priority=half_solved)
    other.load_state_dict(b.state_dict())
    assert [e.rewards for e in other]==[[1., 0.], [0., 1.]]

@pytest.mark.parametrize('bad', [[1.], [1., -1.], [1., math.nan], [1., math.inf], None])
def test_weights_that_are_none_are_refused_by_the_name_of_their_priority(bad):
    def own_priority(entries, now): return bad
    b = ReplayBuffer(2, priority=own_priority)
    says = "the priority 'own_priority' returned .* for 2 entries: return a finite"
    with pytest.raises(ValueError, match=says):
        b.add([1., 1.], 'ab')

def test_a_group_that_weighs_nothing_is_gone_at_once_and_for_good():
    given_up = set()
    def rule(entries, now): return [float(e.prompt_key not in given_up and max(e.rewards)>0) for e in entries]
    b = ReplayBuffer(8, priority=rule, seed=1)
    ids = b.add([1.]*3, 'abc', keys=[1, 2, 3], rewards=[[1., 0.], [0., 0.], [0., 1.]])
    assert ids==[0, None, 2] and [e.data for e in b]==['a','c']
    given_up.add(1)
    assert b.sample(4)==['c']*4 and [e.data for e in b]==['c']
    given_up.clear()
    assert b.sample(1)==['c'] and len(b)==1   # what was gone does not come back
    given_up.add(3)
    assert b.sample(2)==[] and len(b)==0 and b.add([1.], 'd', keys=[4], rewards=[[1.]])==[3]
    m = Replay(8, priority=rule)
    given_up.clear()
    m.buffer.add([1.]*4, 'abcd', keys=[1, 1, 2, 2], rewards=[[1.]]*4)
    given_up.add(1)
    assert m.num_groups_to_sample(4, 1)==4 and [e.data for e in m.buffer]==['c','d']

def test_rules_around_a_priority_are_the_options_of_the_buffer():
    from grpo_nb.replay import decay_with_age, limit_age, limit_uses, score_priority
    def futures(b):
        out = []
        for t in range(40):
            b.add([1.+t%3, .5], [t, -t], step=t)
            out.append((b.sample(3, step=t), sorted(e.id for e in b)))
        return out
    for options,f in ((dict(age_limit=4), limit_age(score_priority, 4)),
            (dict(max_uses=2), limit_uses(score_priority, 2)),
            (dict(age_decay=3.), decay_with_age(score_priority, 3.)),
            (dict(age_limit=4, max_uses=2, age_decay=3.),
                limit_uses(limit_age(decay_with_age(score_priority, 3.), 4), 2))):
        assert futures(ReplayBuffer(6, seed=2, **options))==futures(ReplayBuffer(6, f, seed=2))!=futures(
            ReplayBuffer(6, seed=2))

def test_the_same_prompt_comes_first_and_any_other_after_it():
    b = ReplayBuffer(8, seed=0)
    b.add([1., 1., 50.], ['a7', 'b7', 'c9'], keys=[7, 7, 9])
    for _ in range(20):
        x = b.sample(3, keys=[7, 7, 7])
        assert set(x[:2])=={'a7', 'b7'} and x[2]=='c9'
        assert b.sample(1, keys=[9])==['c9']
    got = [b.sample(1, keys=[None])[0] for _ in range(500)]
    assert got.count('c9')>440
    b.add([60.]*8, list('ABCDEFGH'), keys=range(8))
    assert {e.prompt_key for e in b}==set(range(8))   # nothing is remembered of what has left

# ---- what stays ----------------------------------------------------------------------------------

def test_a_prompt_may_have_the_key_0_and_below_it_none():
    x = batch([MIXED]*3)
    x.prompt_key = torch.tensor([0, -1, 3])
    assert prompt_keys(x)==[0, None, 3]

class ListModel:
    "The rules, slowly: what stays."
    def __init__(self, max_size, priority, age_limit, age_decay, max_uses):
        (self.max_size, self.priority, self.age_limit, self.age_decay, self.max_uses, self.items, self.n,
         self.now) = max_size, priority, age_limit, age_decay, max_uses, [], 0, 0
    def old(self):
        if self.age_limit is not None:
            self.items = [o for o in self.items if self.now - o['step'] <= self.age_limit]
    def worth(self, o):
        if self.priority == 'recency' or self.priority == 'uniform' and self.age_decay is None:
            return (0, o['id'])
        if self.priority=='uniform': return (o['step'], o['id'])
        if self.age_decay is None: return (o['score'], o['id'])
        return ((math.log(o['score']) if o['score'] else -math.inf)+o['step']/self.age_decay, o['id'])
    def add(self, scores, data, step):
        self.now = max(self.now, step)
        for s,d in zip(scores, data):
            self.items.append(dict(score=s, data=d, step=step, id=self.n, uses=0))
            self.n += 1
        self.old()
        while len(self.items)>self.max_size: self.items.remove(min(self.items, key=self.worth))
    def used(self, ids):
        for o in self.items: o['uses'] += ids.count(o['id'])
        if self.max_uses: self.items = [o for o in self.items if o['uses']<self.max_uses]

@pytest.mark.parametrize('seed', range(40))
def test_random_operations_keep_what_a_plain_list_keeps(seed):
    rng = random.Random(seed)
    opts = dict(priority=rng.choice(['score', 'score', 'uniform', 'recency']),
                age_limit=rng.choice([None, None, 0, 3, 10]), age_decay=rng.choice([None, 0.7, 5.0]),
                max_uses=rng.choice([None, None, 1, 3]))
    size = rng.choice([0, 1, 2, 5, 17, 70, 300])
    fast,slow,step = ReplayBuffer(size, seed=seed, **opts),ListModel(size, **opts),0
    for i in range(150):
        step += rng.choice([0, 0, 1, 1, 2])
        if rng.random()<.6:
            k = rng.randint(0, 12)
            s = [rng.choice([0., 1., 1., 2., 3.5, rng.random()]) for _ in range(k)]
            at = max(0, step-rng.choice([0, 0, 0, 2]))
            ids = fast.add(s, list(range(k)), step=at)
            slow.add(s, list(range(k)), at)
            assert [e.id for e in sorted(fast, key=lambda e: e.id)] == [o['id'] for o in slow.items]
            assert [j for j in ids if not ((j is None) or j<slow.n)]==[]
        else:
            n = rng.randint(0, 20)
            slow.now = max(slow.now, step); slow.old()
            drawn = fast.sample_entries(n, step=step)
            if n<=len(slow.items): assert len({e.id for e in drawn})==n==len(drawn)
            slow.used([e.id for e in drawn])
        assert {(e.id, e.score, e.step, e.uses) for e in fast} == {
            (o['id'], o['score'], o['step'], o['uses']) for o in slow.items
        }
    if rng.random()<.5:
        other = ReplayBuffer(size, **opts); other.load_state_dict(fast.state_dict())
        _same_future(fast, other, step, rng)

def _same_future(a, b, step, rng):
    for t in range(step, step+30):
        s = [rng.choice([0., 1., 2., rng.random()]) for _ in range(3)]
        for o in (a, b): o.add(s, [t, -t, 2*t], step=t)
        n = rng.randint(0, 9)
        assert [(e.id, e.draw_prob, e.uses, e.age) for e in a.sample_entries(n, step=t)] == [
            (e.id, e.draw_prob, e.uses, e.age)
            for e in b.sample_entries(n, step=t)]
        assert [e.id for e in a]==[e.id for e in b]

# ---- state ---------------------------------------------------------------------------------------

def test_a_state_of_other_options_is_refused():
    with pytest.raises(ValueError, match='max_size=4'):
        ReplayBuffer(5).load_state_dict(ReplayBuffer(4).state_dict())

def test_the_buffer_uses_no_random_numbers_but_its_own():
    torch.manual_seed(0); random.seed(0)
    b = ReplayBuffer(4, seed=1); b.add([1., 2.], 'ab'); b.sample(2)
    got = torch.rand(1).item(),random.random()
    torch.manual_seed(0); random.seed(0)
    assert got==(torch.rand(1).item(), random.random())

# ---- bad input -----------------------------------------------------------------------------------

@pytest.mark.parametrize('score', [float('nan'), float('inf'), -1., -1e-9, 1e300])
def test_a_bad_score_is_refused_and_nothing_is_stored(score):
    b = ReplayBuffer(4); b.add([1.], ['a'])
    with pytest.raises(ValueError, match='score 1'): b.add([1., score], ['b', 'c'])
    assert [e.data for e in b]==['a']
    full = ReplayBuffer(2); full.add([8., 9.], 'ab')   # where no score of this batch would come in
    with pytest.raises(ValueError, match='score 1'): full.add([1., score], ['b', 'c'])
    assert (full.add([1.0, torch.tensor(2.0)], 'cd') == [None] * 2 and full.add([], []) == []
            and sorted(e.data for e in full) == ['a', 'b'])

@pytest.mark.parametrize(
    'kw,word',
    [
        (dict(max_size=-1), 'max_size'),
        (dict(max_size=2.5), 'max_size'),
        (dict(max_size=True), 'max_size'),
        (dict(max_size=4, priority='best'), 'priority'),
        (dict(max_size=4, age_limit=-1), 'age_limit'),
        (dict(max_size=4, age_decay=0), 'age_decay'),
        (dict(max_size=4, max_uses=0), 'max_uses'),
    ],
)
def test_bad_options_are_named(kw, word):
    with pytest.raises(ValueError, match=word): ReplayBuffer(**kw)

def test_lists_of_unequal_length_are_refused():
    b = ReplayBuffer(4)
    with pytest.raises(ValueError, match='2 scores for 1'): b.add([1., 2.], ['a'])
    with pytest.raises(ValueError, match='1 keys for 2'): b.add([1., 2.], ['a', 'b'], keys=[1])
    with pytest.raises(ValueError, match='1 keys'): b.sample_entries(2, keys=[1])
    with pytest.raises(ValueError, match='unreplaced'): Replay(unreplaced='drop')

# ---- storage -------------------------------------------------------------------------------------

def test_storing_does_not_keep_the_batch_alive():
    x = batch([MIXED, MIXED, [1.]*4], P=9, T=9)
    x.old_logps.requires_grad_()
    r = Replay(8)
    tensors = [weakref.ref(v) for v in x.tensors().values()]
    r.process_batch(x)
    kept = [{k:v.clone() for k,v in e.data.items() if isinstance(v, torch.Tensor)} for e in r.buffer]
    for v in x.tensors().values(): v.detach().zero_()
    for e,was in zip(r.buffer, kept):
        for k,v in was.items():
            assert_tensor(e.data[k], v)
            assert e.data[k].untyped_storage().nbytes()==v.nbytes and not e.data[k].requires_grad
    del x, v
    assert len(kept)==2 and not any(ref() is not None for ref in tensors)

def described(x):
    "A batch of groups as plain values: what each holds, and what is none of its own"
    own = [content(x, b) for b in range(len(x))]
    aside = [(x.prompt_key[b].item(), x.step[b].item(), x.replayed[b].item()) for b in range(len(x))]
    return [*zip(own, aside)]

@pytest.mark.parametrize('seed', range(12))
def test_groups_that_are_put_joined_and_cut_are_those_of_plain_lists(seed):
    "Whatever the padding was, of the result none is left but where a batch was as wide before"
    rng = random.Random(seed)
    def some(n, at):
        r = torch.rand(n, 3, generator=torch.Generator().manual_seed(100*seed+at))
        return batch(r, P=rng.randint(1, 6), T=rng.randint(1, 6), seed=100*seed+at, step=at,
            extra=(rng.randint(0, 2), rng.randint(0, 2)))
    def widths(x): return x.prompt_ids.shape[1],x.completion_ids.shape[2]
    def needed(x): return max(len(o[0][0]) for o in x),max(len(i) for o in x for i,_ in o[0][1])
    def pads(x): return x.prompt_ids[~x.prompt_mask].tolist()+x.completion_ids[~x.completion_mask].tolist()
    x,new = replace(some(5, 1), pad_id=7),some(2, 2)
    at = rng.sample(range(5), 2)
    want = described(x)
    for i,o in zip(at, described(new)): want[i] = o
    for places in (at, torch.tensor(at), torch.tensor([i in at for i in range(5)])):
        if torch.is_tensor(places) and places.dtype==torch.bool:
            want = described(x)
            for i,o in zip(sorted(at), described(new)): want[i] = o
        put = x.replace_groups(places, new)
        assert described(put)==want and widths(put)==needed(want)
    both = Rollouts.concat([x, new])
    assert described(both)==described(x)+described(new)
    assert widths(both)==tuple(map(max, widths(x), widths(new)))
    wide = x.pad_to(widths(x)[0]+2, widths(x)[1]+1)
    assert described(wide)==described(x) and widths(wide)==(widths(x)[0]+2, widths(x)[1]+1)
    assert pads(wide)[:2]==[7, 7] and pads(wide)[-1]==7 and wide.old_logps[..., -1].eq(0).all()
    snug = wide.strip_padding()
    assert described(snug)==described(x) and widths(snug)==needed(described(x))
    for idx,rows in ((3, [3]), ([4, 0], [4, 0]), (slice(1, 4), [1, 2, 3]), (torch.tensor([2, 2]), [2, 2]),
            (torch.tensor([True]*2+[False]*3), [0, 1])):
        assert described(x[idx])==[described(x)[i] for i in rows]
    some = [0, 1][:1+seed%2]   # the first comes into the batch, the second behind it
    drawn = [SimpleNamespace(data=o) for o in pack_groups(new, some)]
    want,fresh = described(x),[(o, (k, s, True)) for o,(k,s,_) in described(new)]
    want[at[0]] = fresh[0]
    assert described(insert_stored(x, torch.tensor(at[:1]), drawn[:1], drawn[1:]))==want+fresh[1:len(some)]

def test_packed_groups_are_int32_float32_cpu_and_in_memory_of_their_own():
    x = batch([MIXED, MIXED], P=9, T=9)
    for g in pack_groups(x):
        for k,v in g.items():
            if isinstance(v, torch.Tensor):
                assert (v.dtype == (torch.int32
                                    if k in ('prompt_ids', 'completion_ids', 'lengths') else torch.float32)
                        and v._base is None and v.untyped_storage().nbytes() == v.numel() * 4)
    before = [o.clone() for o in g.values() if isinstance(o, torch.Tensor)]
    for v in x.tensors().values(): v.zero_()
    for a,b in zip(before, [o for o in g.values() if isinstance(o, torch.Tensor)]): assert_tensor(a, b)

def test_a_packed_group_keeps_no_other_alive():
    "Three groups cut from one array would lie behind each other in it."
    x = batch([MIXED]*3, P=40, T=40)
    for k in ('prompt_ids','completion_ids','old_logps'):
        a,b,c = (o[k] for o in pack_groups(x))
        ends = [o.data_ptr()+o.numel()*4 for o in (a, b)]
        assert ends!=[b.data_ptr(), c.data_ptr()], k

def test_a_mask_with_a_hole_and_groups_of_two_sizes_are_refused():
    x = batch([MIXED]); x.completion_mask[0,0] = torch.tensor([1,0,1,0,0,0]).bool()
    with pytest.raises(ValueError, match='hole'): pack_groups(x)
    with pytest.raises(ValueError, match=r'\[3, 4\]'):
        batch([MIXED]).unpack([pack_groups(batch([MIXED]), [0])[0], pack_groups(batch([MIXED[:3]]), [0])[0]])

def test_a_stored_group_takes_at_most_a_fifth_more_than_its_tokens_and_log_probs():
    G,T,P = 16,1024,64
    o = torch.ones(1, G, T)
    x = Rollouts(torch.ones(1, P).long(), torch.ones(1, P).bool(), o.long(), o.bool(), -o, torch.rand(1, G),
                 torch.rand(1, G), -o)
    b = ReplayBuffer(64)
    b.add([1.]*64, [pack_groups(x, [0])[0] for _ in range(64)])
    assert b.nbytes<=1.01*64*(P+G*T*3)*4 and b.nbytes==64*(P+G*T*3+3*G)*4

def test_what_has_left_in_a_step_is_known_until_the_next():
    b = ReplayBuffer(2, age_limit=3)
    assert b.add([1., 2., .5], ['a', 'b', 'c'], 0)==[0, 1, None] and b.evicted==[]   # c never came in
    b.add([3.], ['d'], 0)
    assert b.evicted==[0]
    b.evict_expired(0)
    assert b.evicted==[0]
    b.add([9.], ['e'], 1)
    assert b.evicted==[1]
    b.evict_expired(4)
    assert b.evicted==[3] and [e.data for e in b]==['e']
    m = Replay(1)
    m.process_batch(batch([MIXED]), step=0)
    records = m.process_batch(batch([MIXED, DEAD0], seed=1), step=1).records
    assert records[0]['evicted']==[0] and 'evicted' not in records[1]

def test_what_is_stored_has_its_id_in_the_record_and_a_group_without_a_counted_token_is_not_stored():
    m,x = Replay(8),batch([MIXED, [1.,1,0,0], DEAD0])
    counted = torch.ones(3, 4).bool()
    counted[0] = False
    out = m.process_batch(x, counted=counted)
    assert [o['id'] for o in out.records]==[None, 0, None] and [e.prompt_key for e in m.buffer]==[1]
    assert [o['id'] for o in m.process_batch(x, step=1).records]==[1, 2, None]
    assert [e.id for e in m.buffer]==[0, 1, 2]

def test_recency_begins_each_draw_with_the_newest():
    b = ReplayBuffer(4, 'recency')
    b.add([1.]*3, ['a','b','c'], 0)
    for _ in range(2): assert b.sample(5)==['c','b','a','c','b']

def test_ages_of_two_processes_of_which_one_drew_nothing():
    usual = dict(fresh=1, dead=0, replaced=0, unreplaced=0, live=1, trained=1, unique_prompts=1)
    old = SimpleNamespace(age=0, uses=1)
    both = ReplayCounts.of([old], **usual)+ReplayCounts.of([], **usual)
    assert both.metrics()['age_max']==0 and 'age_max' not in ReplayCounts.of([], **usual).metrics()

def test_the_mean_deviation_is_that_of_groups_with_two_rewards():
    nan = math.nan
    assert reward_std(torch.tensor([[1., 0.], [nan, 1.]]))==pytest.approx(.5**.5)
    assert reward_std(torch.tensor([[nan, 0.], [nan, nan]]))==0
