"The benchmark's arithmetic by hand, its counts against torch's own, fast parts against readable ones"
import lzma
from pathlib import Path
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
import bench_speed as S
from bench_speed import *
from grpo_nb.parts.tensors import test_tensor as assert_tensor
from grpo_nb.generation import generate
from slow_loop import generate_loop
from grpo_nb.logps import token_logps
from grpo_nb.tiny_qwen import encode_prompts
from grpo_nb.trainer import train_batch

ROOT = Path(__file__).parent.parent
CSV = ROOT/'nbs/results/speed.csv.xz'
SMALL = dict(size='0.1M', B=2, G=4, T=6)
pytestmark = pytest.mark.weekly   # a benchmark of ours

# --- arithmetic

def test_arms_take_turns_and_warm_up_rounds_do_not_count():
    order = []
    seen = in_turn(dict(a=lambda: order.append('a'), b=lambda: order.append('b') or 3), rounds=2, warmup=1)
    assert order==list('ababab') and len(seen['a'])==len(seen['b'])==2
    assert [o[2] for o in seen['a']]==[1, 1] and [o[2] for o in seen['b']]==[3, 3]

def test_clocks_are_read_only_after_the_accelerator_has_finished():
    log = []
    in_turn(dict(a=lambda: log.append('work')), rounds=1, warmup=0, sync=lambda: log.append('wait'))
    assert log==['wait','work','wait']

@pytest.mark.parametrize('kw',
                         [dict(arms={}), dict(arms=dict(a=int), rounds=0), dict(arms=dict(a=int), warmup=-1)])
def test_a_race_without_arms_or_rounds_is_refused(kw):
    with pytest.raises(ValueError, match='at least one arm'): in_turn(**kw)

def test_the_spread_is_median_and_quartiles():
    assert spread([1, 2, 3, 4, 100])==(3, 2, 4)
    assert spread([7])==(7, 7, 7)
    with pytest.raises(ValueError, match='nothing was measured'): spread([])

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

def test_a_row_takes_known_columns_only():
    with pytest.raises(ValueError, match="no columns \\['colour'\\]"): row('a', 'b', 'c', colour=1)

# --- counts

def counted(f):
    with flop_counter() as n: f()
    return n.get_total_flops()

def test_products_that_torch_does_not_count_are_counted_too():
    a,b,c = torch.randn(4, 3),torch.randn(3, 5),torch.zeros(4, 5)
    x,y,z = torch.randn(2, 4, 3),torch.randn(2, 3, 5),torch.zeros(2, 4, 5)
    with FlopCounterMode(display=False) as torchs: c.addmm_(a, b); z.baddbmm_(x, y)
    assert torchs.get_total_flops()==0
    assert counted(lambda: (c.addmm_(a, b), torch.mm(a, b, out=c)))==2*2*4*3*5
    assert counted(lambda: z.baddbmm_(x, y))==2*2*4*3*5

def test_attention_counts_two_products_forward_and_five_backward():
    q,out = torch.randn(2, 3, 7, 4, requires_grad=True),[]
    def forward():
        out.append(torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True))
    assert counted(forward)==2*2*6*7*7*4
    assert counted(lambda: out[0].sum().backward())==5*2*6*7*7*4

def test_a_count_leaves_torchs_own_registry_alone():
    from torch.utils.flop_counter import flop_registry
    flop_counter()
    assert torch.ops.aten.addmm_ not in flop_registry

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

def test_the_best_rate_is_that_of_the_fastest_size(monkeypatch):
    class Timer:
        def __init__(self, stmt, globals, timer, num_threads): self.n = len(globals['a'])
        def blocked_autorange(self, min_run_time):
            return type('Times', (), dict(times=[3., 2.] if self.n==20 else [4.]))
    monkeypatch.setattr(S, 'Timer', Timer)
    assert matrix_rate((10, 20))==2*20**3/2

def test_peak_memory_is_the_most_at_one_time():
    n = 250_000
    assert peak_bytes(lambda: [torch.ones(n).sum() for _ in range(3)])==pytest.approx(4*n, rel=.01)
    assert peak_bytes(lambda: torch.ones(n)+torch.ones(n))==pytest.approx(3*4*n, rel=.01)
    assert peak_bytes(lambda: None)==0

# --- the work

def test_the_model_has_about_the_weights_of_its_name():
    for k in ('0.1M','0.3M','1M','3M'):
        n = sum(p.numel() for p in bench_model(k)[0].parameters())
        assert n==pytest.approx(float(k[:-1])*1e6, rel=.08), k

@pytest.mark.parametrize('p', [.01, .03])
def test_completions_end_by_chance_in_every_context(p):
    m,tok = bench_model('0.3M', p_end=p)
    q = m(torch.randint(256, (8, 40),
                        generator=torch.Generator().manual_seed(1))).logits.softmax(-1)[...,tok.eos_token_id]
    assert p/2<q.min() and q.max()<2*p

@pytest.mark.parametrize('kw,says',
    [(dict(size='8B'), '`size`'), (dict(dtype='float8'), "`dtype` is 'float8'"),
     (dict(attention='flash_attention_9'), '`attention`'), (dict(device='tpu'), '`device`')])
def test_what_the_model_cannot_be_is_named(kw, says):
    with pytest.raises(ValueError, match=says): bench_model(**kw)

@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU here')
def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(ValueError, match='no GPU'): bench_model(device='cuda')

def test_work_that_never_ends_has_full_length_and_work_that_ends_has_not():
    w = Work(**SMALL|dict(T=24), ends=False)
    n = train_batch(w.ours()).sampled.completion_mask.sum(-1)
    assert (n==24).all()
    n = train_batch(Work(**SMALL|dict(B=8, T=24)).ours()).sampled.completion_mask.sum(-1)
    assert n.float().mean()<22 and n.unique().numel()>3

@pytest.mark.parametrize('fast', [True, False])
def test_fast_generation_draws_what_the_readable_loop_draws_on_the_benchmarks_own_work(fast):
    w = Work(**SMALL|dict(size='0.3M', T=16))
    m,tok = w.model()
    ids,mask = encode_prompts(tok, list(w.problems()['prompt']))
    kw = dict(eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id)
    g = lambda: torch.Generator().manual_seed(3)
    a,b = generate(m, ids, mask, w.G, w.T, generator=g(), fast=fast,
                   **kw),generate_loop(m, ids, mask, w.G, w.T, generator=g(), **kw)
    assert_tensor(a.completion_ids, b.completion_ids, eps=0)
    assert_tensor(a.old_logps, b.old_logps, eps=2e-5)
    assert_tensor(token_logps(m, a).detach(), a.old_logps, eps=2e-5)
    assert not a.completion_mask.all()

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

def test_an_error_in_trls_trainer_is_raised_by_the_call(paced):
    p,_ = paced
    def broken(*args, **kwargs): raise KeyError('spilt')
    p.trainer.training_step = broken
    with pytest.raises(KeyError, match='spilt'): p(); p()

def test_both_trainers_get_the_same_weights_prompts_and_reward(tmp_path):
    w = Work(**SMALL)
    s,t = w.ours(),trl_trainer(w, tmp_path)
    for a,b in zip(s.model.parameters(), t.model.parameters()): assert_tensor(a, b, eps=0)
    assert s.dataset['prompt'][:4]==t.train_dataset['prompt'][:4]
    assert s.reward_funcs==[some_answers]==t.reward_funcs
    a = t.args
    assert (a.num_generations, a.max_completion_length, a.per_device_train_batch_size, a.learning_rate,
            a.beta)==(w.G, w.T, w.B*w.G, s.args.learning_rate, s.args.beta)
    assert (a.loss_type, a.scale_rewards, a.epsilon, a.temperature, a.max_grad_norm, a.weight_decay,
        a.adam_beta2)==(s.args.loss_type, s.args.scale_rewards, s.args.epsilon, s.args.temperature,
                        s.args.max_grad_norm, s.args.weight_decay, .999)

# --- what fails

def test_a_part_that_fails_for_want_of_disk_leaves_its_reason(monkeypatch):
    def full(o): raise OSError(28, 'No space left on device'); yield
    monkeypatch.setitem(S.PARTS, 'buffer', full)
    r, = S._measure('buffer', Bench(), '7')
    assert r['status']=='failed' and 'No space left' in r['note'] and r['run']=='7' and r['value'] is None

def test_the_rows_before_a_failure_stay(monkeypatch):
    def half(o):
        yield S.row('buffer', 'a', 'ours', value=1., unit='s')
        raise MemoryError('no more')
    monkeypatch.setitem(S.PARTS, 'buffer', half)
    rows = S._measure('buffer', Bench(), '7')
    assert [(r['case'],r['status']) for r in rows]==[('a','measured'),('all','failed')]

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
    mine = bench(only='step', out=out, disable_tqdm=True)
    assert set(mine['run'])=={'2'} and not mine['quick'].any()
    df = read_bench(out)
    assert list(df.columns)==S.COLUMNS and df[['run','part']].values.tolist()==[['before','buffer'],
        ['before','step'], ['1','growth'], ['2','step']]
    assert df['threads'].tolist()==[1]*4
    assert df['machine'].notna().all()
    assert df['torch'].iloc[0]==torch.__version__
    assert df['value'].eq(1.5).all()

def test_all_parts_run_when_none_is_named(tmp_path, quickly):
    bench(quick=True, out=str(tmp_path/'s.csv'), disable_tqdm=True)
    assert quickly==list(S.PARTS)

def test_threads_are_as_before_behind_the_benchmark(tmp_path, quickly, monkeypatch):
    was = torch.get_num_threads()
    seen = []
    monkeypatch.setitem(S.PARTS, 'step', lambda o: seen.append(torch.get_num_threads()) or [])
    bench(only='step', threads=was+1, out=str(tmp_path/'s.csv'), disable_tqdm=True)
    assert seen==[was+1] and torch.get_num_threads()==was

@pytest.mark.parametrize('kw,says',
    [(dict(only='steps'), "no part 'steps'"), (dict(rounds=0), 'rounds=0'), (dict(threads=0), 'threads=0')])
def test_bad_options_are_named(kw, says, tmp_path, quickly):
    with pytest.raises(ValueError, match=says): bench(out=str(tmp_path/'s.csv'), disable_tqdm=True, **kw)
    assert quickly==[]

def test_a_csv_of_someone_else_is_not_touched(tmp_path, quickly):
    f = tmp_path/'s.csv'
    f.write_text('a,b\n1,2\n')
    with pytest.raises(ValueError, match='not written by `grpo_nb bench`'):
        bench(only='step', out=str(f), disable_tqdm=True)
    assert f.read_text()=='a,b\n1,2\n'

@pytest.mark.slow
def test_a_quick_run_of_the_cheap_parts_measures(tmp_path, capsys):
    mine = bench(only='buffer', quick=True, out=str(tmp_path/'s.csv'), disable_tqdm=True)
    assert set(mine['part'])=={'buffer'} and mine['value'].notna().all()
    assert (mine['status']!='failed').all()
    assert set(mine[mine['part']=='buffer']['x'])=={64, 1000}
    assert 'seconds are processor time' in capsys.readouterr().out

# --- the committed table

@pytest.mark.skipif(not CSV.exists(), reason='no committed runs')
class TestCommitted:
    df = read_bench(CSV) if CSV.exists() else None

    def test_three_runs_on_different_occasions_by_label(self):
        runs = [r for r in self.df['run'].unique() if r.isdigit()]
        assert len(runs)>=3 and not self.df['quick'].any()
        assert len({self.df[self.df['run']==r]['when'].iloc[0] for r in runs})==len(runs)
        for r in runs: assert {'step','generation','growth'}<=set(self.df[self.df['run']==r]['part']), r
        assert set(S.PARTS)<=set(self.df['part'])

    def test_every_row_says_where_it_was_made_and_numbers_are_sound(self):
        d = self.df
        for c in 'run part case arm status device machine cores threads when torch transformers trl'.split():
            assert d[c].notna().all(), c
        m = d[d['status']=='measured']
        assert (m['value']>=0).sum()>=len(m)-3 and m['value'].notna().all() and (d['threads']==1).all()
        assert (m['ratio'].dropna()>0).all() and d['status'].isin(['measured', 'planned', 'fitted', 'not run',
            'failed']).all()
        assert d[d['status']=='not run']['value'].isna().all()
        assert d[d['status']!='measured'].query("status=='not run'")['note'].notna().all()

    def test_the_csv_names_no_path_of_a_machine(self):
        text = lzma.open(CSV, 'rt', encoding='utf-8').read()
        assert not [o for o in ('/work','/root','/tmp','/home') if o in text]
