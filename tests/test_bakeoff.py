"The bake-off: rows that repeat, studies that resume, failures that stay alone, intervals by hand"
import json, math
from pathlib import Path
import pandas as pd, pytest, torch
from grpo_nb import bakeoff as bo
from grpo_nb.bakeoff import ARMS, KEY, REGIMES, STAMP, at_equal, bakeoff, compare, difference, read_study, run_one, stamp, study, verdict

TINY = dict(regime='spell_backward middling', max_tokens=1500, n_problems=10, num_samples=2, points=1)
CSV = Path(__file__).parent.parent/'nbs'/'results'/'bakeoff.csv'

@pytest.fixture(autouse=True)
def one_thread():
    n = torch.get_num_threads(); torch.set_num_threads(1); yield; torch.set_num_threads(n)

def same(a, b): return all(a[k]==b[k] or (a[k]!=a[k] and b[k]!=b[k]) for k in a if k!='cpu_s')   # nan equals nan

def test_a_run_repeats_to_the_last_digit_and_another_seed_differs():
    a,b,c = (run_one('replay', seed=s, **TINY) for s in (0, 0, 1))
    assert same(a, b) and not same(a, c|dict(seed=0))
    assert a['tokens']>=1500 and a['steps']>0 and a['error']=='' and {k:a[k] for k in STAMP}==stamp()

def test_a_study_resumes_without_running_again(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(bo, 'run_one', lambda **k: (ran.append(k['arm']), run_one(**k))[1])
    jobs = [dict(arm=a, seed=0, **TINY) for a in ('none','mask')]
    study(jobs[:1], tmp_path/'a.csv', 1, True); first = (tmp_path/'a.csv').read_text().splitlines()[1]
    df = study(jobs, tmp_path/'a.csv', 1, True)
    assert ran==['none','mask'] and len(df)==2
    assert first in (tmp_path/'a.csv').read_text().splitlines()

def test_a_method_that_raises_is_named_with_its_seed_and_stops_nobody(tmp_path, capsys):
    f = tmp_path/'bad.py'
    f.write_text('from grpo_nb.replay import Method\nclass Bad(Method):\n    def treat(self, *a, **k): raise RuntimeError("my mistake")\n')
    jobs = [dict(arm=a, seed=3, **TINY) for a in (f'{f}:Bad', 'none')]
    df = study(jobs, tmp_path/'a.csv', 1, True).set_index('arm')
    assert df.error['none']=='' and df.error[f'{f}:Bad']=='RuntimeError: my mistake' and df.seed[f'{f}:Bad']==3
    good = f.read_text().replace('raise RuntimeError("my mistake")', 'return super().treat(*a, **k)')
    f.write_text(good)
    import sys; sys.modules.pop('bad', None)
    again = study(jobs, tmp_path/'a.csv', 1, True)   # a failed run is tried again, and its old row goes
    assert len(again)==2 and (again.error=='').all()
    assert math.isclose(*again.pass1)                # it does what plain GRPO does

def test_a_process_that_dies_leaves_the_others_alone(tmp_path):
    f = tmp_path/'dies.py'
    f.write_text('import os\nfrom grpo_nb.replay import Method\nclass Dies(Method):\n    def treat(self, *a, **k): os._exit(9)\n')
    df = study([dict(arm=f'{f}:Dies', seed=0, **TINY)], tmp_path/'a.csv', 2, True)
    assert 'killed' in df.error[0]

@pytest.mark.parametrize('k', STAMP)
def test_rows_from_elsewhere_are_refused(tmp_path, k):
    row = dict(regime='r', arm='none', seed=0, learning_rate=1e-4, settings='{}', pass1=.5, curve='[]', error='')|stamp()
    pd.DataFrame([row, row|{'seed':1, k:'other'}]).to_csv(tmp_path/'mixed.csv', index=False)
    pd.DataFrame([row|{k:'other'}]).to_csv(tmp_path/'old.csv', index=False)
    with pytest.raises(ValueError, match=f'mixes rows of {k}'): read_study(tmp_path/'mixed.csv')
    with pytest.raises(ValueError, match=f'made with {k}'): study([], tmp_path/'old.csv', 1, True)

def rows(**arms):
    at = lambda p: json.dumps([dict(tokens=0, steps=0, pass1=0.), dict(tokens=100, steps=10, pass1=p)])
    return pd.DataFrame([dict(regime='r', arm=a, seed=s, pass1=p, error='', live=1., age=None, ess=None, steps=10, curve=at(p), cpu_s='[0,1]') for a,x in arms.items() for s,p in enumerate(x)])

def test_paired_intervals_are_those_by_hand():
    t = compare(rows(none=[.4,.5,.6,.3], a=[.5,.6,.72,.4], b=[.3,.45,.5,.25], c=[.5,.4,.6,.3]), 'r')
    d = [.1,.1,.12,.1]; m = sum(d)/4; sd = (sum((x-m)**2 for x in d)/3)**.5
    assert math.isclose(t['diff']['a'], m) and math.isclose(t.diff_ci['a'], 3.18244630528*sd/2, rel_tol=1e-6)
    assert t.verdict[['a','b','c']].tolist()==['better','worse','undecided'] and t.index[0]=='a'
    assert math.isclose(t['mean']['none'], .45) and t.seeds['a']==4

def test_only_common_seeds_count_and_one_decides_nothing():
    o = difference(pd.Series({0:.5, 1:.7}), pd.Series({1:.5, 2:.9}))
    assert math.isclose(o['diff'], .2) and o['verdict']=='undecided'

def test_two_rows_for_a_seed_and_unknown_regimes_are_refused():
    d = rows(none=[.4,.5])
    with pytest.raises(ValueError, match='several rows'): compare(pd.concat([d, d]), 'r')
    with pytest.raises(ValueError, match="there are \\['r'\\]"): compare(d, 'q')

def test_several_regimes_are_averaged_within_a_seed():
    d = pd.concat([rows(none=[.4,.5], a=[.5,.7]), rows(none=[.2,.2], a=[.2,.1]).assign(regime='q')])
    assert math.isclose(compare(d, ['r','q'])['diff']['a'], (.1+.2+0-.1)/4)

def test_equal_steps_reads_the_curve_where_the_most_frugal_run_ended():
    d = rows(none=[.4], a=[.8])
    d.loc[d.arm=='a', 'curve'] = json.dumps([dict(tokens=0, steps=0, pass1=0.), dict(tokens=100, steps=20, pass1=.8)])
    assert at_equal(d, 'steps').pass1.tolist()==[.4,.4] and at_equal(d, 'tokens').pass1.tolist()==[.4,.8]

def test_one_command_gives_a_readers_method_its_row(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bo, 'SMALL', {k:v for k,v in TINY.items() if k!='regime'})
    f = tmp_path/'mine.py'
    f.write_text('from grpo_nb.replay import Method\nclass Mine(Method): name = "mine"\n')
    bakeoff(str(tmp_path/'a.csv'), arms='none', method=f'{f}:Mine', small=True, processes=1, disable_tqdm=True)
    out = capsys.readouterr().out
    assert 'spell_backward middling' in out and f'{f}:Mine' in out and 'undecided' in out
    for bad in (dict(arms='nobody'), dict(regimes='nowhere'), dict(method=f'{f}:Yours')):
        with pytest.raises(ValueError): bakeoff(str(tmp_path/'b.csv'), **bad)
    assert not (tmp_path/'b.csv').exists()

def test_the_stored_study_is_one_study():
    df = read_study(CSV)
    assert (df.error=='').all() and set(df.arm)<=set(ARMS) and set(df.regime)<=set(REGIMES) and not df.duplicated(KEY).any()
    assert (df.tokens>=12_000).all() and df.area.between(0, 1).all()
    before = df.groupby(['regime','seed']).pass1_before.nunique()
    assert (before==1).all()   # arms of a seed start alike
    assert len(verdict(df))>=1

def test_the_verdict_in_the_text_is_that_of_the_stored_study():
    t = compare(read_study(CSV), 'spell_backward sparse', metric='area')
    for a,d,h,v in (('mu2',.18,.10,'better'),('dynamic',-.13,.10,'worse'),('replay_uncorrected',-.22,.18,'worse'),('replay',.01,.08,'undecided'),('replay_fresh',.02,.07,'undecided')):
        assert t.seeds[a]==8 and abs(t['diff'][a]-d)<=.006 and abs(t.diff_ci[a]-h)<=.006 and t.verdict[a]==v

def test_a_stored_row_comes_out_again_on_the_same_machine():
    df = read_study(CSV)
    if {k:df[k][0] for k in STAMP}!=stamp(): pytest.skip('the study was made by another version or machine')
    row = df[df.arm=='replay'].iloc[0].to_dict()
    new = {k:float('nan') if v is None else v for k,v in run_one(row['arm'], row['regime'], row['seed'], row['learning_rate']).items()}
    assert same(new, row)
