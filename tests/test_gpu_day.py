"The GPU day's bookkeeping with made measurements, its pieces by hand, and a rehearsal of all of it"

import signal
import pandas as pd
import pytest
import torch
import gpu_day as D
from bench_speed import Bench, row
from gpu_day import gpu_day
from one_rank import rank

pytestmark = pytest.mark.weekly   # a benchmark of ours

def day(monkeypatch, **measurements):
    "A day of these functions; returns the names in the order in which they were begun."
    begun = []
    def put(name, f):
        def rows(o):
            begun.append(name)
            yield from f(o)
        rows.seconds = 30
        return rows
    monkeypatch.setattr(D, 'DAY', {k:put(k, f) for k,f in measurements.items()})
    return begun

def one(o): yield row('', 'time', 'ours', value=1/3, unit='s', note='small')
def full(o):
    yield row('', 'time', 'ours', value=2., unit='s')
    raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 GiB')

def rows(path, *columns):
    df = pd.read_csv(path, dtype=object)[list(columns)].fillna('')
    return list(df.itertuples(index=False, name=None))

def go(path, **kw): return gpu_day(tiny=True, out=str(path), disable_tqdm=True, **kw)

def test_an_out_of_memory_is_a_row_and_the_day_goes_on(monkeypatch, tmp_path):
    begun = day(monkeypatch, big=full, small=one)
    go(tmp_path/'day.csv')
    assert begun==['big','small']
    got = rows(tmp_path/'day.csv', 'name', 'case', 'status', 'value')
    assert [o[:3] for o in got]==[('big','time','measured'), ('big','all','failed'), ('big','all','done'),
        ('small','time','measured'), ('small','all','done')]
    assert float(got[0][3])==2 and got[1][3]==''
    errors = [o for o, in rows(tmp_path/'day.csv', 'error') if o]
    assert len(errors)==1 and 'OutOfMemoryError' in errors[0] and '20.00 GiB' in errors[0]

def test_a_day_that_was_stopped_goes_on_and_repeats_no_row(monkeypatch, tmp_path):
    def stopped(o):
        yield from one(o)
        raise KeyboardInterrupt
    path = tmp_path/'day.csv'
    day(monkeypatch, a=one, b=stopped, c=one)
    with pytest.raises(KeyboardInterrupt): go(path)
    assert rows(path, 'name', 'status')==[('a','measured'), ('a','done'), ('b','measured')]
    begun = day(monkeypatch, a=one, b=one, c=one)
    go(path)
    assert begun==['b','c']
    assert rows(path, 'name', 'status')==[(k, s) for k in 'abc' for s in ('measured','done')]
    text = path.read_text()
    go(path)
    assert begun==['b','c'] and path.read_text()==text

# --- pieces

@pytest.mark.processes
@pytest.mark.weekly
def test_every_rank_returns_and_one_that_fails_is_named(monkeypatch):
    "Two on a CPU, one for each card where there are any"
    before = [signal.getsignal(k) for k in (signal.SIGTERM,signal.SIGINT)]
    assert D._on_ranks(Bench(quick=True), rank)==[1, 2]
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 1)
    with pytest.raises(Exception, match='no such thing on cuda'):
        D._on_ranks(Bench(quick=True, device='cuda'), rank, 0)
    assert [signal.getsignal(k) for k in (signal.SIGTERM,signal.SIGINT)]==before

# --- the rehearsal

@pytest.mark.weekly
def test_the_first_quarter_of_an_hour_is_rehearsed(tmp_path):
    df = go(tmp_path/'day.csv', only='full-run,card,smoke,step-05b,study')
    assert not df.status.eq('failed').any(), list(df.error.dropna())
    at = {(o['name'],o.case,o.arm):o.value for _,o in df.iterrows()}
    curve = df[(df['name']=='full-run')&(df.case=='reward')]
    assert curve.x.tolist()==list(range(1, 7)) and curve.value.between(0, 1).all()
    assert at['full-run','groups replaced','replay']>0
    assert all(at['smoke','finite losses',k]==6 for k in ('GRPOTrainer','replay off','replay','resumed'))
    assert at['smoke','weights apart','GRPOTrainer and replay off']==0
    assert at['smoke','weights apart','replay and resumed']==0 and at['smoke','groups replaced','replay']>0
    assert at['step-05b','groups replaced in a step','replay']==1
    steps = df[(df.name=='step-05b')&df.case.str.startswith('step')]
    assert (steps.value>0).all() and set(steps.arm)=={'GRPOTrainer','replay'}
    d = at['study','pass@1, difference','stored_clip']
    assert d==pytest.approx(at['study','pass@1','stored_clip']-at['study','pass@1','plain'], abs=1e-4)

@pytest.mark.slow
def test_the_whole_day_is_rehearsed(tmp_path):
    df = go(tmp_path/'day.csv')
    assert set(df[df.status=='done'].name)==set(D.DAY) and not df.status.eq('failed').any(), list(df.error)
    at = {(o['name'],o.case,o.arm):o.value for _,o in df.iterrows()}
    assert at['trainers','losses apart','fsdp2 and ddp']<1e-5 and at['trainers','groups replaced','fsdp2']>0
    assert at['nccl','broadcast','broadcast']>0
    assert 'not in the cache' in ' '.join(df.error.dropna()) or ('real-qwen','pass@1','before') in at
