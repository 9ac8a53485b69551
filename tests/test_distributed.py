"""One buffer over many processes: the plan, the exchange in threads and in two real processes, agreement,
another number of processes."""

import datetime, re, subprocess, sys
import pytest, torch
from hypothesis import Phase, given, settings, strategies as st
from grpo_nb.on_trl.distributed import (
    ProcessGroup, ShardedBuffer, RowFormat, group_slices, plan_transfers, reshard)
from grpo_nb.on_trl.ranks import assert_same_on_all_ranks
from grpo_nb.replay import ReplayBuffer
from another import elsewhere
from bench_swap import PAGE
from threads import in_threads

WIRE,made_batch,made_rows,made_sampled = PAGE.WIRE,PAGE.made_batch,PAGE.made_rows,PAGE.made_sampled
replay_alone,replay_rank,same_replay = PAGE.replay_alone,PAGE.replay_rank,PAGE.same_replay
replay_bytes = PAGE.replay_bytes

def held_rows(buf, id):
    "How many rows of a stored group lie on this rank."
    data = next(e.data for e in buf.index if e.id==id)
    return len(data['advantages']) if 'prompt_ids' in data else 0

def made(n, groups, G, seed=0, **kw):
    rng = torch.Generator().manual_seed(seed)
    return [made_batch(rng, groups, G, **kw) for _ in range(n)]

@pytest.mark.parametrize('world', [3, 8, 64])
@pytest.mark.parametrize('G,rows', [(4,4), (4,8), (4,6), (8,3), (16,12), (5,7)])
def test_every_row_of_every_place_is_served_once(world, G, rows):
    n_groups = world*rows//G
    if not n_groups: return
    g = torch.Generator().manual_seed(world*rows)
    sources = [dict(prompt_len=int(torch.randint(1, 9, (), generator=g)),
        lengths=torch.randint(0, 9, (G,), generator=g),
        pieces=group_slices(int(torch.randint(n_groups, (), generator=g)), G, rows)) for _ in range(n_groups)]
    plan = plan_transfers(sources, list(range(n_groups)), rows, WIRE)
    seen = torch.zeros(n_groups*G, dtype=torch.int64)
    for m in plan:
        seen[m.place*G+m.lo:m.place*G+m.hi] += 1
        # goes to who has that row
        assert [i for i in range(m.lo, m.hi) if (m.place*G+i)//rows!=m.dst]==[]
        # comes from who made it
        assert [m.src]*(m.hi-m.lo)==[r for r,a,b in sources[m.at]['pieces'] for i in range(m.lo, m.hi)
            if a<=i<b]
        assert m.words==sources[m.at]['prompt_len']+2*int(sources[m.at]['lengths'][m.lo:m.hi].sum())+m.hi-m.lo
    assert (seen==1).all()

def test_what_the_wire_packs_it_unpacks_bit_for_bit():
    w = RowFormat(completion_ids=None, old_logps=None, tool_mask=None, advantages=0, rewards=3, row_id=-1,
        pair=-4)
    lens = torch.tensor([2,0,3], dtype=torch.int32)
    p = dict(prompt_ids=torch.tensor([1,2], dtype=torch.int32), lengths=lens,
        completion_ids=torch.arange(5, dtype=torch.int32),
        old_logps=torch.tensor([-1.,float('nan'),-0.,1e-42,-3.]),
        tool_mask=torch.ones(5, dtype=torch.int32), advantages=torch.randn(3), rewards=torch.randn(3, 3),
        row_id=torch.tensor([1<<40, -1, 3]), pair=torch.arange(6).view(3, 2)+(1<<33))
    where = dict(prompt_len=2, lengths=lens)
    for lo,hi in ((0,3), (1,3), (0,1), (1,2)):
        words = torch.cat(w.parts(p, lo, hi))
        assert len(words)==sum(w.sizes(where, lo, hi))
        q = w.unpack(words, where, lo, hi)
        a,b = int(lens[:lo].sum()),int(lens[:hi].sum())
        for k in q:
            want = p[k] if k=='prompt_ids' else p[k][a:b] if k in w and w[k] is None else p[k][lo:hi]
            assert q[k].dtype==want.dtype and q[k].shape==want.shape and torch.equal(q[k].view(torch.int32),
                want.contiguous().view(torch.int32))
    with pytest.raises(ValueError, match='tool_mask'):
        w.parts({k:v for k,v in p.items() if k!='tool_mask'}, 0, 1)

OPTIONS = [dict(), dict(age_limit=2), dict(max_uses=1), dict(priority='uniform', age_decay=3.),
    dict(priority='recency', max_uses=2)]

@settings(max_examples=25, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
@given(st.sampled_from([1, 2, 3, 4, 6, 8]), st.sampled_from(OPTIONS), st.integers(1, 9), st.integers(0, 999))
def test_the_shared_buffer_draws_as_one_that_sees_all_rows(world, options, size, seed):
    "Also where groups of four straddle, as on 8 processes with 3 rows each"
    batches = made(5, 6, 4, seed=seed)
    alone = replay_alone(batches, 4, ReplayBuffer(size, seed=seed, **options))
    def of_rank(r): return replay_rank(batches, 4, ReplayBuffer(size, seed=seed, **options))
    out = [of_rank(0)] if world==1 else in_threads(world, of_rank)
    same_replay(alone, [o for _,o in out], 4)
    for b,_ in out:
        assert b.ranks.calls==2*len(batches)                               # whatever there was to say
    kept = {e.id:sum(held_rows(b, e.id) for b,_ in out) for e in out[0][0].index}
    assert set(kept.values())<={4}                                         # each row exactly once

@pytest.mark.parametrize('what,word', [('random','random numbers'), ('rewards','rewards'),
    ('history','history'), ('step','the step')])
def test_ranks_that_disagree_stop_all_and_say_on_what(what, word):
    batches,messages = made(4, 6, 4),[]
    def f(rank):
        buf,_ = replay_rank(batches[:2], 4, ReplayBuffer(8))
        b,start = dict(batches[2]),2
        if rank==1:
            if what=='random': buf.index.rng.random()
            if what=='rewards': b['rewards'] = b['rewards']+1e-6
            if what=='history': buf.crc += 1
            if what=='step': start = 3
        try: replay_rank([b], 4, buf=buf, start=start)
        except RuntimeError as e: messages.append(str(e))
    in_threads(3, f)
    assert len(messages)==3 and [o for o in messages if not (word in o and 'ranks [1] differ' in o)]==[]

@pytest.mark.parametrize('old,new', [(2,1), (1,3), (8,2), (2,3), (3,8), (2,2)])
def test_a_buffer_goes_on_with_another_number_of_processes(old, new):
    batches = made(8, 6, 4, seed=old)
    alone = replay_alone(batches, 4, ReplayBuffer(8))
    run = lambda world, f: [f(0)] if world==1 else in_threads(world, f)
    parts = run(old, lambda r: replay_rank(batches[:4], 4, ReplayBuffer(8))[0].state_dict())
    def go_on(rank):
        buf,_ = replay_rank([], 4, ReplayBuffer(8))
        buf.load_state_dict(parts[rank] if old==new else reshard(parts, rank, new))
        assert buf.crc==parts[0]['crc']!=0
        return replay_rank(batches[4:], 4, buf=buf, start=4)[1]
    assert same_replay(alone[4:], run(new, go_on), 4)>0

def test_parts_of_a_buffer_that_do_not_belong_together_are_refused():
    batches = made(3, 6, 4)
    parts = in_threads(2, lambda r: replay_rank(batches, 4, ReplayBuffer(8))[0].state_dict())
    with pytest.raises(ValueError, match='1 parts of a buffer of 2'): reshard(parts[:1], 0, 1)
    with pytest.raises(ValueError, match='different moments'):
        reshard([parts[0], parts[1]|dict(crc=0)], 0, 1)
    with pytest.raises(ValueError, match='of 2 processes, here are 1'):
        replay_rank([], 4, ReplayBuffer(8))[0].load_state_dict(parts[0])

def test_rows_still_awaited_are_left_out_when_redistributed():
    b, = made(1, 4, 4, p_dead=0.)
    buf,_ = replay_rank([], 4, ReplayBuffer(8))
    s = buf.draw(made_sampled(b, 0, 1, 0))
    g,(i,lo,hi) = next(iter(s.to_store.items()))
    buf.commit(i, made_rows(b, g*4+lo, g*4+hi, 4))
    state = reshard([buf.state_dict()], 0, 1)
    assert state['index']['ids'].tolist()==[i] and 'prompt_ids' in state['index']['data'][0]
    with pytest.raises(RuntimeError, match='holds none of its rows'): 
        for step in range(1, 9):
            buf.draw(made_sampled(b|dict(dead=[True]*4, rewards=torch.zeros(16)), 0, 1, step))

def took(buf, step, fits=None, **change):
    "One step of four groups, living but for `change`."
    b, = made(1, 4, 4, seed=step, p_dead=0.)
    s = made_sampled(b, 0, 1, step)
    for k,v in change.items(): setattr(s, k, v)
    t = buf.draw(s, fits) if fits else buf.draw(s)
    for g,(i,lo,hi) in t.to_store.items(): buf.commit(i, made_rows(b, g*4+lo, g*4+hi, 4))
    return t

DEAD2 = dict(dead=[True,True,False,False])

def test_rows_leave_with_their_group_whether_it_was_asked_for_or_came_for_a_dead_one():
    buf = ShardedBuffer(ReplayBuffer(8, max_uses=1), WIRE, 4)
    took(buf, 0)
    t = took(buf, 1, unsampled=(0,), **DEAD2)
    assert t.slots==[0, 1] and not {e.id for e in t.drawn} & {e.id for e in buf.index}
    assert [held_rows(buf, e.id) for e in buf.index]==[4]*4

@pytest.mark.processes
def test_two_real_processes_exchange_the_same_rows(tmp_path):
    import torch.distributed as dist
    batches = made(6, 5, 4, seed=5)                               # 10 rows each: group 2 straddles
    def work(rank):
        dist.init_process_group('gloo', f'file://{tmp_path}/met', datetime.timedelta(seconds=300), 2, rank)
        buf,out = replay_rank(batches, 4, ReplayBuffer(8))
        torch.save((buf.state_dict(), out, buf.ranks.calls), tmp_path/f'out{rank}')
        dist.destroy_process_group()
    both = [elsewhere(work, r) for r in (0, 1)]
    for p in both: p.join(120)
    assert [p.exitcode for p in both]==[0, 0]
    parts = [torch.load(tmp_path/f'out{i}', weights_only=False) for i in (0, 1)]
    assert same_replay(replay_alone(batches, 4, ReplayBuffer(8)), [o for _,o,_ in parts], 4)>0
    assert parts[0][2]==parts[1][2]==12

# -- guards ------------------------------------------------------------------------------------------

def test_ranks_with_other_settings_stop_all_and_say_which():
    messages = []
    def f(rank):
        try: assert_same_on_all_ranks(dict(beta=.04, lr=[1,2][rank==1], f=object())
            | (dict(extra=1) if rank==2 else {}))
        except ValueError as e: messages.append(str(e))
    in_threads(3, f)
    assert len(messages)==3 and len(set(messages))==1
    # an address is no setting
    assert ('`lr` is 1 on ranks 0, 2 and 2 on rank 1' in messages[0]
        and '`extra` is not given on ranks 0, 1 and 1 on rank 2' in messages[0] and 'beta' not in messages[0]
        and 'object' not in messages[0])

def test_ranks_with_equal_settings_pass_and_send_only_a_checksum():
    def f(rank):
        r,sent = ProcessGroup(),[]
        gather = r.gather
        r.gather = lambda x: gather(sent.append(len(x)) or x)
        assert_same_on_all_ranks(dict(beta=.04, f=object()), r)
        return r.calls,sent
    assert in_threads(3, f)==[(1, [1])]*3

FAULTS = """
import sys, time
import torch.distributed as dist
from grpo_nb.on_trl.ranks import wait_for_all_ranks
rank = int(sys.argv[1])
dist.init_process_group('gloo', f'file://{sys.argv[2]}/met', rank=rank, world_size=3)
wait_for_all_ranks('the first rewards', 120.)
if rank==1: time.sleep(20)   # its judge never answers
try: wait_for_all_ranks("reward function 'judge'", 2.)
except RuntimeError as e: print(e, *e.__notes__)
"""

@pytest.mark.processes
def test_a_rank_that_hangs_in_its_rewards_is_named(tmp_path):
    words = [sys.executable, '-c', FAULTS]
    ps = [subprocess.Popen([*words, str(r), str(tmp_path)], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.DEVNULL) for r in range(3)]
    first = ps[0].communicate(timeout=120)[0]
    for p in ps[1:]: p.kill()
    assert re.search(r'[Rr]anks? 1\b.*failed to pass monitoredBarrier', first), first
    assert "rank 0 waited for all ranks after reward function 'judge'" in first
