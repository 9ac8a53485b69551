"The bake-off: rows that repeat, studies that resume, failures that stay alone, intervals by hand"
import json, re, sys
from pathlib import Path
from types import ModuleType
from unittest.mock import patch
import pandas as pd, pytest, torch
from grpo_nb.studies import study as bo
from grpo_nb.studies.study import (
    ARMS, REGIMES, bakeoff, study_stamp, make_job, make_jobs, run_job)
from grpo_nb.parts.registry import ADVANTAGES, STRATEGIES, PRIORITIES
from grpo_nb.replay import Replay
from grpo_nb.studies.study import (
    KEY, rerun_rows as made_again, read_rows, run_study)
from notebook_code import defined_in

CHAPTER = defined_in('catalogue/bakeoff')

TINY = dict(regime='spell_backward middling', max_tokens=500, n_problems=10, num_samples=2, points=1)
CSV = Path(__file__).parent.parent/'nbs'/'results'/'bakeoff.csv'

@pytest.fixture(autouse=True)
def one_thread():
    n = torch.get_num_threads(); torch.set_num_threads(1); yield; torch.set_num_threads(n)

def same(a, b):
    return all(a[k] == b[k] or (a[k] != a[k] and b[k] != b[k]) for k in a if k != 'cpu_s')  # nan equals nan


@pytest.mark.studies
def test_a_run_repeats_to_the_last_digit_and_another_seed_differs():
    a,b,c = (run_job(make_job('replay', seed=s, **TINY)) for s in (0, 0, 1))
    assert same(a, b) and not same(a, c|dict(seed=0))
    assert a['tokens']>=500 and a['steps']>0 and a['error']==''
    assert {k:a[k] for k in KEY}=={k:make_job('replay', seed=0, **TINY)[k] for k in KEY}

NB = json.loads((CSV.parents[1]/'variants'/'strategy.ipynb').read_text(encoding='utf-8'))
CODE = '\n'.join(''.join(c['source']) for c in NB['cells'] if c['cell_type']=='code')

@pytest.mark.studies
def test_one_command_gives_the_chapters_own_strategy_its_row(tmp_path, capsys, monkeypatch):
    source = re.search(r"'my_strategy\.py'\)\.write_text\('''\n(.+?)''',", CODE, re.S)[1]
    assert len([o for o in source.splitlines() if o.strip()])<=20
    f = tmp_path/'mine.py'; f.write_text(source)
    monkeypatch.setattr(bo, 'SMALL', {k:v for k,v in TINY.items() if k!='regime'})
    from grpo_nb.cli import main
    monkeypatch.chdir(tmp_path)
    main(['bakeoff', '--out', 'a.csv', '--arms', 'none', '--strategy', 'mine.py:BatchBaseline', '--small',
          '--processes', '1', '--disable_tqdm'])
    out,df = capsys.readouterr().out,read_rows('a.csv').set_index(['arm','seed'])
    assert 'spell_backward middling' in out and 'mine.py:BatchBaseline' in out and 'undecided' in out
    assert (
        (df.error == '').all()
        and df.loc[('mine.py:BatchBaseline', 0), 'live'] == 1
        and df.loc[('none', 0), 'live'] < 1
    )  # its dead groups speak
    for bad in (dict(arms='nobody'), dict(regimes='nowhere'), dict(strategy='mine.py:Yours')):
        with pytest.raises(ValueError): bakeoff('b.csv', **bad)
    assert not Path('b.csv').exists()

@pytest.mark.studies
def test_a_run_asks_the_chapters_own_priority_and_advantages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = re.search(r"'mine\.py'\)\.write_text\('''\n(.+?)''',", CODE, re.S)[1]
    notes = re.sub(r'^(def (\w+).*)$', r"\1\n    open('\2.asked', 'a').close()", source, flags=re.M)
    Path('mine.py').write_text(notes, encoding='utf-8')
    with patch.dict(PRIORITIES), patch.dict(ADVANTAGES):   # a file's functions are registered by its name
        for arm,asked in dict(HARD='hardest_first', MEDIAN='from_median').items():
            assert not Path(f'{asked}.asked').exists()
            run_job(make_job(f'mine.py:{arm}', seed=3, **TINY))
            assert Path(f'{asked}.asked').exists()

# ---- what is a reader's own

OWN = """
from grpo_nb.studies.study import Arm, Regime
from grpo_nb.variants.strategy import Keep
class Same(Keep):
    def __init__(self, say=''): self.say = say
SHORT = Regime('chain_sum', dict(min_terms=2, max_terms=3, max_digits=1), 64)
LOST = Regime('no such task', {})
TWICE = Arm('mu.py:Same', settings=dict(num_iterations=2, loss='dr_grpo'))
"""

@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bo, 'SMALL', {k:v for k,v in TINY.items() if k!='regime'})
    Path('mu.py').write_text(OWN, encoding='utf-8')
    def go(**kw):
        bakeoff('a.csv', small=True, processes=kw.pop('processes', 1), disable_tqdm=True, **kw)
        return read_rows('a.csv')
    return go

@pytest.mark.studies
def test_arm_regime_and_options_come_from_a_file_and_an_unknown_task_is_a_row(small, capsys):
    df = small(arms='none,mu.py:TWICE', regimes='mu.py:SHORT,mu.py:LOST', strategy='mu.py:Same',
        options='{"say": "hi"}', seeds=1).set_index(['arm','regime'])
    good,out = df.xs('mu.py:SHORT', level=1),capsys.readouterr().out
    assert (good.error=='').all() and set(good.index)=={'none','mu.py:TWICE','mu.py:Same'}
    assert good.steps['mu.py:TWICE']==2*good.steps['none']
    assert good.pass1['mu.py:Same']==good.pass1['none']
    assert '"method_say": "hi"' in good.settings['mu.py:Same']
    lost = df.xs('mu.py:LOST', level=1)
    assert lost.error.str.contains('no such task').all() and out.count('failed: ')==3
    for bad in (dict(arms='mu.py:NONE'), dict(regimes='mu.py:NONE'), dict(regimes='none.py:NONE')):
        with pytest.raises(ValueError): bakeoff('b.csv', **bad)

@pytest.mark.studies
def test_a_changed_file_cell_or_entry_gives_another_hash(small, monkeypatch):
    of = lambda arm='mu.py:TWICE', regime='mu.py:SHORT': bo.source_digest(arm, regime)
    first = of()
    Path('mu.py').write_text(OWN.replace('num_iterations=2', 'num_iterations=3'), encoding='utf-8')
    assert first and of()!=first and bo.source_digest('replay', 'chain_sum easy')==''
    monkeypatch.setitem(ARMS, 'mine', bo.Arm('keep', settings=dict(num_iterations=2)))
    monkeypatch.setitem(REGIMES, 'own', bo.Regime('chain_sum', {}))
    mine,both = bo.source_digest('mine', 'chain_sum easy'),bo.source_digest('mine', 'own')
    monkeypatch.setitem(ARMS, 'mine', bo.Arm('keep', settings=dict(num_iterations=3)))
    assert mine and mine in both and mine!=both and bo.source_digest('mine', 'chain_sum easy')!=mine
    monkeypatch.setitem(REGIMES, 'chain_sum easy', bo.Regime('chain_sum', {}))   # ours, overwritten
    assert bo.source_digest('replay', 'chain_sum easy')

@pytest.mark.studies
def test_the_rate_is_tuned_on_other_seeds_and_the_best_is_compared(small, capsys):
    df = small(arms='none', strategy='mu.py:Same', learning_rates='1e-9,4e-4')
    own = df[df.arm=='mu.py:Same']
    tries = own[own.seed>=100]
    assert set(tries.seed)=={100, 101} and set(tries.learning_rate)=={1e-9, 4e-4}
    best = tries.groupby('learning_rate').area.mean().idxmax()
    assert set(own[own.seed<100].learning_rate)=={best}
    assert f'learning rate {best:g}' in capsys.readouterr().out

@pytest.mark.processes
@pytest.mark.studies
def test_what_a_notebook_registers_runs_in_another_process(tmp_path, monkeypatch, capsys):
    "Arm, regime, strategy, priority and what runs them exist only in the parent's __main__"
    code = """
if __name__=='__main__':
    from grpo_nb.studies.study import ARMS, REGIMES, Arm, Regime, bakeoff
    import grpo_nb.studies.study as bo
    from grpo_nb.parts.registry import STRATEGIES, PRIORITIES
    from grpo_nb.replay import Replay
    def oldest(entries, now): return [float(e is entries[0]) for e in entries]
    PRIORITIES['oldest'] = oldest
    class Mine(Replay): name = 'mine'
    STRATEGIES['mine'],ARMS['mine'] = Mine,Arm(Mine, dict(priority='oldest'))
    REGIMES['short'] = Regime('chain_sum', dict(min_terms=2, max_terms=3, max_digits=1), 64)
    bo.SMALL = dict(max_tokens=300, n_problems=10, num_samples=2, points=1)
    def run(job):
        from grpo_nb.parts.registry import STRATEGIES
        from grpo_nb.studies.study import run_job
        return run_job(job)|dict(found=float(STRATEGIES['mine'].name=='mine'))
    bo.run_job = run
    bakeoff('a.csv', arms='mine', regimes='short', seeds=1, small=True, disable_tqdm=True)
"""
    main,f = ModuleType('__main__'),tmp_path/'nb.py'
    main.__file__ = str(f)
    f.write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, '__main__', main)
    for k in ('SMALL','run_job'): monkeypatch.setattr(bo, k, getattr(bo, k))   # what it overwrites comes back
    with patch.dict(ARMS), patch.dict(REGIMES), patch.dict(STRATEGIES), patch.dict(PRIORITIES):
        exec(compile(code, f, 'exec'), main.__dict__)
    df = read_rows('a.csv')
    assert (df.error=='').all() and len(df)==1 and 'mine' not in ARMS, str(df.error.tolist())
    assert all(df.source!='') and 'short' in capsys.readouterr().out and all(df.found==1)

def test_a_row_depends_on_the_source_of_ones_own_strategy_and_not_on_the_packages():
    class Mine(Replay): name = 'mine'
    with patch.dict(ARMS, mine=bo.Arm(Mine), shipped=bo.Arm(Replay)):
        own,shipped = (bo.source_digest(o, 'chain_sum easy') for o in ('mine','shipped'))
        assert own==f"{bo.source_hash(ARMS['mine'])}+{bo.source_hash(Mine)}" and bo.source_hash(Mine)
        assert shipped==bo.source_hash(ARMS['shipped'])

@pytest.mark.studies
def test_lessons_move_the_start_and_shipped_weights_stay():
    base,easy = bo._weights('chain_sum', '{}', 0),bo._weights('chain_sum', '{}', 2)
    from grpo_nb.tiny_qwen import load_model
    assert [k for k,v in load_model('tiny')[0].state_dict().items() if not torch.equal(base[k], v)]==[]
    assert not torch.equal(base['model.norm.weight'], easy['model.norm.weight'])

def stored(tmp_path, **changed):
    run_study(run_job, [make_job('none', seed=0, **TINY)], tmp_path/'a.csv', study_stamp(), disable_tqdm=True)
    pd.read_csv(tmp_path / 'a.csv', dtype=str,
                keep_default_na=False).assign(**changed).to_csv(tmp_path / 'a.csv', index=False)
    return tmp_path/'a.csv'

@pytest.mark.studies
def test_rows_run_again_are_equal_here_and_a_changed_one_is_named(tmp_path, capsys):
    assert made_again(stored(tmp_path), run_job, study_stamp(), 1)[['same_machine','equal']].all(axis=None)
    f = stored(tmp_path, pass1='0.9999')
    capsys.readouterr()
    with pytest.raises(ValueError, match='came out differently'): bakeoff(str(f), repeat=1)
    assert re.search(r'spell_backward middling .* True +False 0.9999', capsys.readouterr().out)

@pytest.mark.studies
def test_on_another_machine_another_number_is_no_fault(tmp_path, capsys):
    bakeoff(str(stored(tmp_path, machine='an abacus', pass1='0.9999')), repeat=1)
    assert 'False' in capsys.readouterr().out

# ---- what is stored

ALL = [CSV, CSV.with_name('bakeoff_lr.csv'), CSV.with_name('bakeoff_sensitivity.csv'),
       CSV.with_name('bakeoff_small.csv'), CSV.with_name('bakeoff_one_rate.csv')]

@pytest.mark.parametrize('path', ALL, ids=lambda p: p.stem)
def test_each_stored_study_is_one_study(path):
    df = read_rows(path)
    assert ((df.error == '').all() and set(df.arm) <= set(ARMS) and set(df.regime) <= set(REGIMES)
            and not df.duplicated(KEY).any())
    assert (
        df.area.between(0, 1).all() and (df.groupby(['regime', 'seed']).pass1_before.nunique() == 1).all()
    )  # arms of a seed start alike
    assert 'bakeoff_small' in path.name or all(t>=REGIMES[r].max_tokens for r,t in zip(df.regime, df.tokens))

def test_stored_studies_hold_what_their_plans_ask_for():
    have = lambda path: {tuple(o) for o in read_rows(path)[KEY].itertuples(index=False, name=None)}
    for path,jobs in ((CSV, make_jobs(8)), (ALL[1], CHAPTER.rate_jobs()), (ALL[2], CHAPTER.setting_jobs(6))):
        assert not {bo._key(o) for o in jobs}-have(path), path.name

@pytest.fixture(scope='module')
def again(tmp_path_factory):
    f = tmp_path_factory.mktemp('small')/'a.csv'
    bakeoff(str(f), small=True, processes=1, disable_tqdm=True)
    return read_rows(f)

@pytest.mark.studies
def test_a_small_study_gives_the_committed_rows(again):
    old = read_rows(ALL[3])
    assert old[KEY].equals(again[KEY])
    if {k:old[k][0] for k in study_stamp()}==study_stamp(): # same machine: to the last digit
        for a,b in zip(again.to_dict('records'), old.to_dict('records')): assert same(a, b)
    else:  # another: last bits move, and what is sampled with them
        for k, tol in dict(pass1_before=0.1, pass1=0.3, tokens=2000, steps=16).items():
            assert ((again[k] - old[k]).abs() <= tol).all(), k
