"""The runner of comparisons: rows that resume, failures that stay alone, names of a notebook in workers,
tables"""

import json, math, os
import pandas as pd, pytest
import grpo_nb.studies.study as st
from grpo_nb.run.signals import Stopped, check_stop, note_stop
from grpo_nb.studies.study import (
    mean_over_tokens, at_equal, compare, over_regimes, paired_table, read_rows, run_study,
    source_hash)
from another import fork

HERE = dict(version='1', torch='2', machine='m', weights='w')

def toy(job):
    arm, = {o['arm'] for o in st.as_list(job)}
    if arm=='bad': raise RuntimeError('my mistake')
    if arm=='dies': os._exit(9)
    if arm=='stops':
        note_stop('SIGTERM', 3, 'a', whole=False)
        check_stop(measures=True)
    return [o|dict(pass1=o['seed']/10) for o in st.as_list(job)]

def jobs(*arms, seed=0):
    "One run of each arm; with a list of seeds a stack of each"
    def one(a, s): return dict(regime='r', arm=a, seed=s, learning_rate=1e-4, settings='{}')
    return [[one(a, s) for s in seed] if isinstance(seed, list) else one(a, seed) for a in arms]

def go(what, path, run=toy, **kw): return run_study(run, what, path, HERE, disable_tqdm=True, **kw)

def test_a_study_resumes_without_running_again(tmp_path):
    ran = []
    def run(job): ran.append(job['arm']); return toy(job)
    go(jobs('a'), tmp_path/'a.csv', run)
    first = (tmp_path/'a.csv').read_text().splitlines()[1]
    df = go(jobs('a','b'), tmp_path/'a.csv', run)
    assert ran==['a','b'] and len(df)==2 and first in (tmp_path/'a.csv').read_text().splitlines()

def test_a_stack_makes_a_row_per_seed_and_runs_only_those_that_miss(tmp_path):
    ran = []
    def run(job): ran.append([o['seed'] for o in job]); return toy(job)
    go(jobs('a', seed=[0, 2]), tmp_path/'a.csv', run)
    df = go(jobs('a', seed=[0, 1, 2, 3]), tmp_path/'a.csv', run)
    assert ran==[[0, 2], [1, 3]] and df.pass1.tolist()==[0, .1, .2, .3]

def test_a_run_that_raises_is_named_with_its_seed_and_stops_nobody(tmp_path):
    df = go(jobs('bad','a', seed=3), tmp_path/'a.csv').set_index('arm')
    assert df.error['a']=='' and df.error['bad']=='RuntimeError: my mistake' and df.seed['bad']==3
    again = go(
        jobs('bad', seed=3), tmp_path / 'a.csv', lambda job: job | dict(pass1=1.0)
    )  # it is tried again, the old row goes
    assert len(again)==2 and (again.error=='').all()

@pytest.mark.processes
def test_a_process_that_dies_leaves_the_others_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(st, 'get_context', lambda how: fork)   # else each worker imports torch
    df = go(jobs('dies','a','b','c'), tmp_path/'a.csv', processes=2).set_index('arm')
    assert 'killed' in df.error['dies'] and df.error['c']==''
    assert set(df.error)<={'', df.error['dies']}   # a neighbour may go with it
    df = go(jobs('a'), tmp_path/'a.csv').set_index('arm')
    assert df.error['a']=='' and df.pass1['a']==0

@pytest.mark.processes
@pytest.mark.weekly
def test_a_worker_that_a_signal_stopped_ends_the_study(tmp_path):
    with pytest.raises(Stopped) as e: go(jobs('stops','a'), tmp_path/'a.csv', processes=2)
    assert e.value.code==143 and 'at step 3' in str(e.value)

def test_a_changed_source_is_run_again(tmp_path):
    f = tmp_path/'mine.py'
    seen = []
    for text in ('a = 1', 'a = 1', 'a = 2'):
        f.write_text(text)
        go([o | dict(source=source_hash(f'{f}:a')) for o in jobs('a')], tmp_path / 'a.csv',
           lambda j: (seen.append(1), toy(j))[1])
    assert len(seen)==2 and len(read_rows(tmp_path/'a.csv'))==1

def test_a_full_disk_loses_no_earlier_row(tmp_path, monkeypatch):
    go(jobs('a','b'), tmp_path/'a.csv')
    def full(self, *args, **kw): raise OSError(28, 'No space left on device')
    monkeypatch.setattr(pd.DataFrame, 'to_csv', full)
    with pytest.raises(OSError, match='No space'): go(jobs('c'), tmp_path/'a.csv')
    assert len(read_rows(tmp_path/'a.csv'))==2   # what was there is there

@pytest.mark.parametrize('k', ['version','torch','weights'])
def test_rows_from_elsewhere_are_refused_but_another_machine_may_stand_beside(tmp_path, k):
    row = jobs('none')[0]|dict(pass1=.5, curve='[]', error='')|HERE
    pd.DataFrame([row, row|{'seed':1, k:'other'}]).to_csv(tmp_path/'mixed.csv', index=False)
    pd.DataFrame([row|{k:'other'}]).to_csv(tmp_path/'old.csv', index=False)
    with pytest.raises(ValueError, match=f'mixes rows of {k}'): read_rows(tmp_path/'mixed.csv')
    with pytest.raises(ValueError, match=f'made with {k}'): go([], tmp_path/'old.csv')
    pd.DataFrame([row, row|dict(seed=1, machine='other')]).to_csv(tmp_path/'two.csv', index=False)
    assert len(read_rows(tmp_path/'two.csv'))==2

def rows(**arms):
    def at(p): return json.dumps([dict(tokens=0, steps=0, pass1=0.), dict(tokens=100, steps=10, pass1=p)])

    return pd.DataFrame([dict(regime='r', arm=a, seed=s, pass1=p, error='', live=1.0, age=None, ess=None,
                              steps=10, curve=at(p), cpu_s='[0,1]') for a, x in arms.items()
                         for s, p in enumerate(x)])

def test_paired_intervals_are_those_by_hand():
    t = compare(rows(none=[.4,.5,.6,.3], a=[.5,.6,.72,.4], b=[.3,.45,.5,.25], c=[.5,.4,.6,.3]), 'r')
    d = [.1,.1,.12,.1]
    m = sum(d)/4
    sd = (sum((x-m)**2 for x in d)/3)**.5
    assert math.isclose(t['diff']['a'], m) and math.isclose(t.diff_ci['a'], 3.18244630528*sd/2, rel_tol=1e-6)
    assert t.verdict[['a','b','c']].tolist()==['better','worse','undecided'] and t.index[0]=='a'
    assert math.isclose(t['mean']['none'], .45) and t.seeds['a']==4

def test_a_pair_is_taken_within_a_machine():
    d = pd.concat([rows(none=[0.4, 0.5], a=[0.5, 0.7]).assign(machine='one'),
                   rows(none=[0.9], a=[0.9]).assign(machine='two')])
    t = compare(d, 'r')
    assert t.seeds['a']==3 and math.isclose(t['diff']['a'], .1)

def test_two_rows_for_a_seed_and_unknown_regimes_are_refused():
    d = rows(none=[.4,.5])
    with pytest.raises(ValueError, match='several rows'): compare(pd.concat([d, d]), 'r')
    with pytest.raises(ValueError, match="there are \\['r'\\]"): compare(d, 'q')

def test_several_regimes_are_averaged_within_a_seed():
    d = pd.concat([rows(none=[.4,.5], a=[.5,.7]), rows(none=[.2,.2], a=[.2,.1]).assign(regime='q')])
    assert math.isclose(compare(d, ['r','q'])['diff']['a'], (.1+.2+0-.1)/4)
    o = over_regimes(d, [('a','none')], 'pass1').iloc[0]
    assert math.isclose(o['diff'], .05) and o.regimes==2 and o.n==4 and o.p==o.holm

def test_equal_steps_reads_the_curve_where_the_most_frugal_run_ended():
    d = rows(none=[.4], a=[.8])
    d.loc[d.arm == 'a', 'curve'] = json.dumps([dict(tokens=0, steps=0, pass1=0.0),
                                               dict(tokens=100, steps=20, pass1=0.8)])
    assert at_equal(d, 'steps').pass1.tolist()==[.4,.4] and at_equal(d, 'tokens').pass1.tolist()==[.4,.8]

def test_area_is_the_mean_height_up_to_the_budget():
    c = [dict(tokens=0, pass1=.2), dict(tokens=50, pass1=.6), dict(tokens=150, pass1=1.)]
    assert (mean_over_tokens(c) == round((50 * 0.4 + 100 * 0.8) / 150, 5)
            and mean_over_tokens(c, 100) == round((50 * 0.4 + 50 * 0.7) / 100, 5)
            and mean_over_tokens(c, 50) == 0.4)

def test_holm_says_what_survives_all_pairs():
    d = rows(none=[.4,.5,.6,.3,.4], sure=[.5,.6,.701,.4,.501], barely=[.46,.58,.62,.36,.41])
    many = pd.concat([d]+[d[d.arm!='sure'].assign(regime=f'r{i}') for i in range(9)])
    p = paired_table(d).set_index('arm').p
    assert p['sure']<.001 and .02<p['barely']<.03
    def better(df):
        o = paired_table(df).query("regime=='r'")
        return {a:(v, h<.05) for a,v,h in zip(o.arm, o.verdict, o.holm)}
    assert better(d)==dict(sure=('better', True), barely=('better', True))
    assert better(many)==dict(sure=('better', True), barely=('better', False)) and len(paired_table(many))==11
    assert len(paired_table(d, at_least=6))==0
