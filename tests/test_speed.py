"The benchmark's arithmetic by hand, its counts against torch's own, fast parts against readable ones"
import pytest
import torch
import bench_speed as S
from bench_speed import *
from grpo_nb.trainer import train_batch

SMALL = dict(size='0.1M', B=2, G=4, T=6)
pytestmark = pytest.mark.weekly   # a benchmark of ours

# --- arithmetic

def test_arms_take_turns_and_warm_up_rounds_do_not_count():
    order = []
    seen = in_turn(dict(a=lambda: order.append('a'), b=lambda: order.append('b') or 3), rounds=2, warmup=1)
    assert order==list('ababab') and len(seen['a'])==len(seen['b'])==2
    assert [o[2] for o in seen['a']]==[1, 1] and [o[2] for o in seen['b']]==[3, 3]

def test_a_speedup_pairs_the_rounds_and_counts_work():
    drifting = [1., 2., 4.]                       # the machine slows down by four; the ratio does not change
    base,arm = [(9., 3*t, 6) for t in drifting],[(9., t, 3) for t in drifting]
    assert speedup(base, arm)==pytest.approx((1.5, 1.5, 1.5))
    assert speedup(base, arm, 'wall')==pytest.approx((.5, .5, .5))
    with pytest.raises(ValueError, match='3 rounds against 2'): speedup(base, arm[:2])

def test_rows_of_a_comparison_say_how_many_times_faster():
    seen = dict(trl=[(8., 4., 2), (8., 6., 2), (8., 8., 2)], ours=[(2., 1., 1)]*3)
    a,b = compared('step', 'x', seen, 'trl')
    assert 'ratio' not in a and (a['value'], a['low'],
                                 a['high'])==(6, 5, 7) and a['cpu_s']==6 and a['wall_s']==8
    assert (b['ratio'], b['ratio_low'], b['ratio_high'],
            b['ratio_wall'])==(3, 2.5, 3.5, 2) and b['against']=='trl' and b['rounds']==3
    a,b = compared('generation', 'x', seen, 'trl', per='tokens')
    assert a['unit']=='tokens/s' and a['value']==pytest.approx(1/3) and b['value']==1
    a,b = compared('gpu', 'x', seen, 'trl', clock='wall')
    assert (a['value'], b['value'], b['ratio'])==(8, 2, 2)

# --- counts

def counted(f):
    with flop_counter() as n: f()
    return n.get_total_flops()

def test_attention_counts_two_products_forward_and_five_backward():
    q,out = torch.randn(2, 3, 7, 4, requires_grad=True),[]
    def forward():
        out.append(torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))
    assert counted(forward)==2*2*6*7*7*4
    assert counted(lambda: out[0].sum().backward())==5*2*6*7*7*4

@pytest.mark.parametrize('attention', ['sdpa','eager'])
def test_a_forward_pass_counts_every_weight_once_a_token_and_every_pair_twice(attention):
    m,_ = bench_model('0.3M', attention=attention)
    c,rows,n = m.config,5,9
    d = c.hidden_size//c.num_attention_heads
    kv = c.num_key_value_heads*d
    block = c.hidden_size*(2*c.hidden_size+2*kv+3*c.intermediate_size)
    pairs = 2*n*c.hidden_size
    ids = torch.randint(256, (rows, n))
    with torch.no_grad(): got = counted(lambda: m(ids))
    want = 2*rows*n*(c.num_hidden_layers*(block+pairs)+c.hidden_size*c.vocab_size)
    assert got==pytest.approx(want, rel=.001 if attention=='eager' else 0)

# --- TRL in turn with ours

@pytest.fixture
def paced(tmp_path):
    w = Work(**SMALL, beta=.04)
    p = Paced(trl_trainer(w, tmp_path))
    yield p,w
    if not p.over: p.close()

def test_trls_trainer_stands_still_between_calls_and_trains_in_them(paced):
    p,w = paced
    t = p.trainer
    weights = lambda: torch.cat([o.detach().flatten().clone() for o in t.model.parameters()])
    assert t.state.global_step==0 and t.ref_model is not None and not t.args.gradient_checkpointing
    before = weights()
    n = p()
    assert t.state.global_step==1 and w.B*w.G<=n<=w.B*w.G*w.T and not torch.equal(before, weights())
    p.counter = flop_counter()
    p()
    theirs,p.counter = p.counter.get_total_flops(),None
    p()
    assert t.state.global_step==3
    s = w.ours()
    ours = counted(lambda: train_batch(s))
    assert theirs>ours>counted(lambda: s.model(torch.zeros(w.B*w.G, 6, dtype=torch.int64)))
    p.close()
    assert not p.thread.is_alive()
    with pytest.raises(RuntimeError, match='come to its end'): p()

# --- one command

@pytest.fixture
def quickly(monkeypatch):
    "Parts that take no time"
    ran = []
    def part(name):
        def f(o):
            ran.append(name)
            o.say('a')
            yield row(name, 'a case', 'ours', x=64., value=1.5, unit='s', ratio=2.)
        return f
    for k in S.PARTS: monkeypatch.setitem(S.PARTS, k, part(k))
    return ran

def test_runs_are_added_to_the_table(tmp_path, quickly):
    out = str(tmp_path/'a'/'speed.csv')
    bench(only='buffer, step', quick=True, out=out, disable_tqdm=True)
    read_bench(out).replace(dict(run={'1':'before'})).to_csv(out, index=False)
    bench(only='growth', quick=True, out=out, disable_tqdm=True)
    assert quickly==['buffer','step','growth']
    rows = bench(only='step', out=out, disable_tqdm=True)
    assert set(rows['run'])=={'2'} and not rows['quick'].any()
    df = read_bench(out)
    assert list(df.columns)==S.COLUMNS and df[['run','part']].values.tolist()==[['before','buffer'],
        ['before','step'], ['1','growth'], ['2','step']]
    assert df['threads'].tolist()==[1]*4
    assert df['machine'].notna().all()
    assert df['torch'].iloc[0]==torch.__version__
    assert df['value'].eq(1.5).all()

@pytest.mark.slow
def test_a_quick_run_of_the_cheap_parts_measures(tmp_path, capsys):
    rows = bench(only='buffer', quick=True, out=str(tmp_path/'s.csv'), disable_tqdm=True)
    assert set(rows['part'])=={'buffer'} and rows['value'].notna().all()
    assert (rows['status']!='failed').all()
    assert set(rows[rows['part']=='buffer']['x'])=={64, 1000}
    assert 'seconds are processor time' in capsys.readouterr().out
