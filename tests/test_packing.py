"Groups packed, put back, saved and drawn: what must hold whatever the groups are."
import torch
from hypothesis import Phase, given, settings, strategies as st
from grpo_nb.parts.groups import StoredGroup, insert_stored, pack_groups
from grpo_nb.replay import ReplayBuffer
from grpo_nb.run.checkpoints import load_state, save_state
from made_groups import batch

torch.set_num_threads(1)
DRAWN = settings(max_examples=60, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
OPTIONS = [dict(), dict(age_limit=2), dict(max_uses=1), dict(priority='uniform', age_decay=3.),
    dict(priority='recency', max_uses=2)]

@st.composite
def batches(draw, G=None):
    "Groups of the course with rewards, some of them with a reference, token advantages or a masked row"
    G,seed,n = G or draw(st.integers(2, 5)),draw(st.integers(0, 999)),draw(st.integers(1, 4))
    width = st.integers(1, 6)
    x = batch(torch.rand(n, G, generator=torch.Generator().manual_seed(seed)), P=draw(width), T=draw(width),
        seed=seed, ref=draw(st.booleans()), extra=(draw(st.integers(0, 3)), draw(st.integers(0, 3))))
    if draw(st.booleans()): x.completion_mask[0,0] = False
    for k in ('completion_ids','old_logps','ref_logps'):
        if getattr(x, k) is not None: getattr(x, k).mul_(x.completion_mask)
    if draw(st.booleans()):
        g = torch.Generator().manual_seed(seed)
        x.advantages = x.advantages[...,None]*torch.rand(x.old_logps.shape, generator=g)*x.completion_mask
    return x

def same(a, b, but=()):
    for k,v in a.tensors().items():
        w = b.tensors()[k]
        if k not in but: assert v.dtype==w.dtype and torch.equal(v, w), (k, v, w)

@DRAWN
@given(batches(), st.data())
def test_packing_and_back_gives_the_same_groups(x, data):
    at = data.draw(st.permutations(range(len(x))))[:data.draw(st.integers(1, len(x)))]
    back = x.unpack(pack_groups(x, at))
    same(x[at].strip_padding(), back, but=('replayed',))
    assert back.replayed.all()
    mask = torch.tensor([i in at for i in range(len(x))])
    same(x[mask].strip_padding(), x.unpack(pack_groups(x, mask)), but=('replayed',))

def alone(x, i): return x[[i]].strip_padding()

@DRAWN
@given(batches(G=3), batches(G=3), st.data())
def test_a_stored_group_that_comes_in_touches_no_other(x, new, data):
    if x.ref_logps is None: new.ref_logps = None
    if x.ref_logps is not None and new.ref_logps is None: return
    n = min(len(x), len(new))
    at,packs = data.draw(st.permutations(range(len(x))))[:n],pack_groups(new)
    entries = [StoredGroup(o, 1.) for o in packs]
    out = insert_stored(x, torch.tensor(at), entries[:n], entries[n:])
    assert len(out)==len(x)+len(new)-n
    came = {**dict(zip(at, range(n))), **{len(x)+i:n+i for i in range(len(new)-n)}}
    by_token = out.advantages.ndim==3
    for b in range(len(out)):
        was = alone(new, came[b]) if b in came else alone(x, b)
        if by_token and was.advantages.ndim==2: was.advantages = was.advantages[...,None]*was.completion_mask
        same(was, alone(out, b), but=('replayed',))
        assert bool(out.replayed[b])==(b in came)

@DRAWN
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=8),
    st.sampled_from(OPTIONS), st.integers(0, 99))
def test_a_saved_buffer_goes_on_as_the_one_it_was_saved_from(tmp_path_factory, plan, options, seed):
    "Each entry of the plan: groups added, groups drawn, steps until the next"
    def make(): return ReplayBuffer(4, seed=seed, **options)
    x,b,step = batch(torch.rand(3, 4), seed=seed),make(),0
    def go(b, added, drawn, step):
        got = [(e.id, e.uses, e.age, e.draw_prob) for e in b.sample_entries(drawn, step)]
        return got+b.add([.5+i for i in range(added)], pack_groups(x, [*range(added)]), step, [*range(added)])
    for i,(added,drawn,steps) in enumerate(plan):
        go(b, added, drawn, step)
        step += steps
        path = tmp_path_factory.getbasetemp()/f'buffer{i}.pt'
        save_state(path, b.state_dict())
        other = make()
        other.load_state_dict(load_state(path))
        again = tmp_path_factory.getbasetemp()/f'again{i}.pt'
        save_state(again, other.state_dict())
        assert str(load_state(again))==str(load_state(path))
        assert go(other, 2, 2, step)==go(b, 2, 2, step)
        step += 1
