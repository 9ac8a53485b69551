"The study of reuse: stacks of several rates and starts, the shipped buffer, a ladder of rates, foreign rows"
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
import numpy as np, pandas as pd, pytest, torch
import grpo_nb.studies.replay_study as rs
import grpo_nb.studies.stacked as sr
import grpo_nb.studies.starts as starts
from grpo_nb.replay import Replay
from grpo_nb.studies.replay_study import (
    USES, at_best, chosen, next_jobs, numbers, own_spans, run_rounds, run_stack, span_of, spans, to_try,
    tries, with_given)
from grpo_nb.studies.stacked import FAMILIES, SHAPE, BatchUse, Runs, to_tensors
from grpo_nb.studies.study import as_list, over_regimes, read_rows, run_study, stamp, table_file
from made_study import bare, one_thread, untaught, words   # noqa: F401  fixtures
from notebook_code import defined_in

pytestmark = pytest.mark.studies

PAGE_OF,ROOM = defined_in('studies/reuse_results'),defined_in('studies/stacked', 'grpo_nb.studies.stacked')
CHAPTER = defined_in('14_replay_study')
best_of,looks,regret,regrets,slope,threshold,with_half = (getattr(PAGE_OF, k) for k in
    ('best_of','looks','regret','regrets','slope','threshold','with_half'))

def stacked(arm, **settings):
    o = dict(budget=700, points=2)|settings
    runs = zip(['adding','adding_sparse']*2, [3, 3, 4, 4], [1e-3, 1e-4, 2e-3, 1e-3])
    return [dict(regime=r, arm=arm, seed=s, source='', learning_rate=l, settings=json.dumps(o))
        for r,s,l in runs]

@pytest.mark.parametrize('arm', ['plain','replay_default','big3','stored3','stored6_moment'])
def test_a_stack_of_several_rates_and_starts_is_the_same_runs_made_alone(untaught, arm):
    job = stacked(arm)
    company = bare(run_stack(job, 'cpu'))
    alone = [bare(run_stack(o, 'cpu'))[0] for o in job]
    assert company==alone
    assert len({o['curve'] for o in company})==4

def test_steps_per_batch_of_the_new_arms(untaught):
    for arm,n in dict(replay_default=1, big3=9, stored3=3, mu6=6, big6=36, stored6=6).items():
        o = run_stack(stacked(arm, budget=600)[0], 'cpu')[0]
        assert o['steps']==n*o['batches'], arm

def test_measures_of_many_runs_at_once_are_those_of_one_after_another(untaught, monkeypatch):
    "On a GPU all runs that are due are measured by one pass"
    r = Runs(BatchUse(fresh=2), ['adding','adding_sparse','adding'], [3, 4, 5], [1e-3]*3)
    one = torch.cat([r.measure([i], 4) for i in range(3)])
    assert torch.equal(r.measure(range(3), 4), one) and torch.equal(r._right([0, 1, 2], 4), one)
    right = torch.tensor([[[1, 0], [0, 0]]]).bool()
    monkeypatch.setattr(sr, 'right_answers', lambda m, test, seeds, n: right)
    assert r.measure([1], 2).tolist()==[[.25, .5]]

@pytest.mark.parametrize('arm,seeds', [(USES['replay_default'], (3, 4)), (BatchUse(method='replay'), (0, 0))])
def test_a_batch_with_replay_is_what_the_shipped_method_makes_of_it(untaught, monkeypatch, arm, seeds):
    "Batch by batch beside `Replay.process_batch`, one for each run; by priority its seed is the run's"
    from grpo_nb.generation import Rollouts
    seen = []
    monkeypatch.setattr(Runs, 'train', lambda self, groups, there: seen.append((groups, there)))
    r,shipped = Runs(arm, 'adding', [3, 4], [1e-3]*2),[Replay(seed=s) for s in seeds]
    kept = sr.assemble
    def both(arm, fresh, dead, shelf, chance):
        for s,method in enumerate(shipped):
            g = {k:v[s] for k,v in fresh.items()}
            seen.append(method.process_batch(Rollouts(g['ids'], g['mask'], g['out'], g['real'], g['old'],
                rewards=g['r'], advantages=g['A'][...,0]), dead[s]))
        return kept(arm, fresh, dead, shelf, chance)
    monkeypatch.setattr(sr, 'assemble', both)
    for _ in range(12): r.batch()
    replaced = [0, 0]
    for *outs,(groups,there) in zip(seen[::3], seen[1::3], seen[2::3]):
        assert there.all()
        for s,out in enumerate(outs):
            b = out.batch.pad_to(groups['ids'].shape[-1], groups['out'].shape[-1])   # the stack's widths
            assert torch.equal(b.completion_ids, groups['out'][s])
            assert torch.equal(b.prompt_ids, groups['ids'][s])
            assert torch.equal(b.advantages, groups['A'][s,...,0])
            assert torch.equal(b.old_logps, groups['old'][s])
            replaced[s] += sum(o['replacement'] is not None for o in out.records)
    assert min(replaced)>10

def test_a_stack_may_have_several_regimes_and_rates_and_what_is_missing_stays_together(tmp_path):
    def one(r, s, l): return dict(regime=r, arm='x', seed=s, learning_rate=l, settings='{}', source='')
    job = [one('a', 1, .1), one('b', 1, .2), one('a', 2, .3)]
    asked = []
    def run(job):
        asked.append(job)
        return [o|dict(pass1=.5) for o in as_list(job) if o['seed']<9]
    run_study(run, [job[:1]], tmp_path/'t.csv', stamp(), disable_tqdm=True)
    df = run_study(run, [job], tmp_path/'t.csv', stamp(), disable_tqdm=True)
    assert asked[1]==job[1:] and len(df)==3
    late = run_study(run, [[one('a', 9, .1)]], tmp_path/'t.csv', stamp(), disable_tqdm=True)
    assert len(late)==3   # no row: it had no time left

LADDER = [1., 2., 4., 8., 16., 32., 64.]
PLAN = dict(ladder=LADDER, rates=[2., 4., 8.], points=8, seeds=dict(main=[1, 2], look=[7, 8, 9]),
    measure='span', arms=dict(main=['plain','mu3','stored3']), claims=[['stored3','mu3']],
    predictions={'stored3 - mu3':'+'}, definitions=dict(families={k:dict(after=FAMILIES[k].after) for k in
        ('adding','adding_sparse','sorting','sorting_sparse')}))

def worth(cell, arm, seed, rate):
    "A made area: best at 4 (16 in sparse cells), another height for each cell, arm and seed"
    best = 4. if 'sparse' not in cell else 16.
    if arm=='stored3': best *= 8
    height = .5+.1*('sorting' in cell)+.05*seed+.03*(arm=='stored3')*(1+('sparse' in cell))
    return height-.02*abs(np.log2(rate/best))

def made_run(job):
    def curve(o): return json.dumps([dict(tokens=t, pass1=worth(o['regime'], o['arm'], o['seed'],
        o['learning_rate'])) for t in (0, 100)])
    return [o|dict(curve=curve(o), pass1=.5) for o in as_list(job)]

def test_tries_go_on_at_either_end_and_stop_at_the_ladders():
    assert to_try({4.:.3, 8.:.1}, [4., 8.], LADDER)==[2.] and to_try({4.:.1, 8.:.3}, [4., 8.], LADDER)==[16.]
    assert to_try({4.:.3}, [4.], LADDER)==[2., 8.] and to_try({1.:.3, 2.:.1}, [2.], LADDER)==[]
    assert to_try({4.:.3}, [2., 4.], LADDER)==[2.]

def test_a_sparse_start_goes_on_from_the_dense_one(tmp_path, monkeypatch):
    from dataclasses import replace
    short = replace(FAMILIES['sorting_sparse'], lesson=(100, 2, 1e-3))
    monkeypatch.setitem(FAMILIES, 'sorting_sparse', short)
    where = starts.start_path
    def here(k, size): return tmp_path/k if 'sparse' in k else where(k, size)
    monkeypatch.setattr(starts, 'start_path', here)
    monkeypatch.setitem(ROOM.teach.__globals__, 'start_path', here)
    ROOM.teach('sorting_sparse')
    d = to_tensors(sr.problems('sorting_sparse', 'lesson', 100), 'sorting_sparse')
    dense = sr.start_weights('sorting', '0.2M')
    want = ROOM.lesson(d, 2, SHAPE, 1e-3, theta=dense).half().float()
    got = sr.start_weights('sorting_sparse', '0.2M')
    assert torch.equal(got, want) and not torch.equal(got, dense)
    assert (got-dense).abs().max()<.01   # two small steps away

def test_rounds_find_the_range_and_go_on_beyond_the_ends_and_nowhere_else(tmp_path):
    asked = []
    def run(job):
        asked.append(job)
        return made_run(job)
    df = run_rounds(run, lambda d: next_jobs(d, PLAN, stack=100), path=tmp_path/'t.csv', stamp=stamp(),
        disable_tqdm=True)
    tried = df.groupby(['regime','arm']).learning_rate.agg(lambda o: sorted(set(o)))
    assert tried['adding','plain']==[1., 2., 4., 8., 16.]   # beyond its first three
    assert tried['adding_sparse','plain']==[2., 4., 8., 16., 32., 64.]
    assert tried['adding','mu3']==[1., 2., 4., 8., 16.]
    assert tried['adding','stored3']==[1., 2., 4., 8., 16., 32., 64.]   # around its best, 32
    assert tried['adding_sparse','stored3']==[4., 8., 16., 32., 64.]   # the ladder ends where it is best
    for o in asked:
        assert len({FAMILIES[k['regime']].after or k['regime'] for k in o})==1   # equal widths in a stack
        assert len({k['arm'] for k in o})==1
    first = [o[0]['arm'] for o in asked]
    assert first.index('mu3')>max(i for i,o in enumerate(asked[:4]) if o[0]['arm']=='plain')
    assert not next_jobs(df, PLAN)
    counts = Counter(zip(df.regime, df.arm, df.learning_rate, df.seed))
    assert max(counts.values())==1 and {s for *_,s in counts}=={1, 2}
    looks = next_jobs(df, PLAN, 'look', stack=2)
    assert {(k['regime'], k['learning_rate']) for o in looks for k in o}=={('adding', 4.),
        ('adding_sparse', 16.), ('sorting', 4.), ('sorting_sparse', 16.)}
    assert all(json.loads(k['settings'])['budget']==15000 and k['arm']=='mu3' for o in looks for k in o)
    assert sorted({k['seed'] for o in looks for k in o})==[7, 8, 9]

def test_a_span_is_the_mean_over_five_rates_and_two_starts(tmp_path):
    df = run_rounds(made_run, lambda d: next_jobs(d, PLAN, stack=100), path=tmp_path/'t.csv', stamp=stamp(),
        disable_tqdm=True)
    got = spans(df, PLAN).set_index(['regime','arm','seed']).span
    five = {'adding':[1., 2., 4., 8., 16.], 'adding_sparse':[4., 8., 16., 32., 64.]}
    for arm in ('plain','mu3','stored3'):
        for s in (1, 2):
            by_hand = [worth(c, arm, s, l) for c,rungs in five.items() for l in rungs]
            assert got['adding',arm,s]==pytest.approx(sum(by_hand)/10, abs=1e-5)
    assert len(got)==2*3*2 and len(spans(df, PLAN, 'cell'))==4*3*2
    less = df[~((df.regime=='adding')&(df.arm=='mu3')&(df.learning_rate==8.)&(df.seed==2))]
    assert ('adding','mu3',2) not in spans(less, PLAN).set_index(['regime','arm','seed']).index
    assert len(spans(less, PLAN))==11
    assert 'main table: 7 of 8 spans; no differences before all are there'==rs.say(less, PLAN)
    def by_hand(task):
        cells = ('', five['adding']), ('_sparse', five['adding_sparse'])
        def one(c, l): return worth(task+c, 'stored3', 1, l)-worth(task+c, 'mu3', 1, l)
        return np.mean([one(c, l) for c,o in cells for l in o])
    d = rs.claims(rs.tables(df, PLAN)['main table'][0], PLAN)
    assert d['diff'][0]==pytest.approx((by_hand('adding')+by_hand('sorting'))/2, abs=2e-5)
    assert d.regimes[0]==2 and d.n[0]==4 and rs.say(df, PLAN).startswith('main table\n')

def test_a_span_of_ones_own_lies_around_an_arms_own_best_rate(tmp_path):
    "`stored3` is best three rungs higher; an arm that is not done has none"
    plan = PLAN|dict(measure='own_span')
    df = run_rounds(made_run, lambda d: next_jobs(d, plan, stack=100), path=tmp_path/'t.csv', stamp=stamp(),
        disable_tqdm=True)
    got = own_spans(df, plan, 'cell').set_index(['regime','arm','seed']).own_span
    for (c,a,s),v in got.items():
        best = {'adding':4., 'sorting':4.}.get(c, 16.)*(8. if a=='stored3' else 1.)
        rungs = [l for l in (best/2, best, 2*best) if l<=64] if best<=64 else [32., 64.]
        assert v==pytest.approx(np.mean([worth(c, a, s, l) for l in rungs]), abs=2e-5), (c, a, s)
    assert len(got)==4*3*2
    some = df[~((df.regime=='adding')&(df.arm=='mu3')&(df.learning_rate==16.))]   # not beside its best
    assert ('adding','mu3',1) not in own_spans(some, plan, 'cell').set_index(['regime','arm','seed']).index
    assert len(rs.tables(df, plan)['main table'][0])==8 and 'own_span' in rs.tables(df, plan)['main table'][0]

def test_arms_of_an_earlier_study_are_taken_from_its_table_and_from_no_other(tmp_path):
    old = PLAN|dict(arms=dict(main=['plain','mu3']))
    first = dict(path=tmp_path/'old.csv', stamp=stamp(registered='abc'), disable_tqdm=True)
    run_rounds(made_run, lambda d: next_jobs(d, old, stack=100), **first)
    given = dict(table='old', arms=['plain'], registered='abc')
    plan = PLAN|dict(arms=dict(main=['stored3']), claims=[['stored3','plain']], given=given,
        predictions={'stored3 - plain':'+'})
    asked = []
    def run(job):
        asked.extend(o['arm'] for o in as_list(job))
        return made_run(job)
    own = run_rounds(run, lambda d: next_jobs(with_given(d, plan, tmp_path), plan, stack=100),
        path=tmp_path/'new.csv', stamp=stamp(registered='def'), disable_tqdm=True)
    assert set(asked)==set(own.arm)=={'stored3'}
    both = with_given(own, plan, tmp_path)
    assert set(both.arm)=={'stored3','plain'}   # passes were not asked for
    rows,need = rs.tables(both, plan)['main table']
    whole = run_rounds(made_run, lambda d: next_jobs(d, PLAN, stack=100), path=tmp_path/'t.csv',
        stamp=stamp(), disable_tqdm=True)
    assert len(rows)==need and rs.claims(rows, plan)['diff'][0]==pytest.approx(
        over_regimes(spans(whole, PLAN), [('stored3','plain')], 'span')['diff'][0])
    with pytest.raises(ValueError, match=r"registered as \['abc'\], the plan needs xyz"):
        with_given(own, plan|dict(given=given|dict(registered='xyz')), tmp_path)

def test_parts_take_every_group_of_a_batch_once(untaught, monkeypatch):
    seen,step = [],sr.factor
    monkeypatch.setattr(sr, 'factor',
        lambda lp, old, A, *more: seen.append(A[0,:,0,0].tolist()) or step(lp, old, A, *more))
    for arm,n in dict(parts2=2, parts4=4).items():
        seen.clear()
        r = Runs(USES[arm], 'adding', [3], [1e-3])
        r.batch()
        assert r.opt.t==[n] and n==len(seen) and {len(o) for o in seen}=={8//n}

@pytest.fixture
def empty_handed(monkeypatch):
    def forget():
        for o in (sr._asked, sr.start): o.cache_clear()
    monkeypatch.setattr(sr, 'HELD', {})
    forget()
    yield
    forget()

def test_problems_from_a_file_are_the_gyms_and_the_gym_is_not_asked(tmp_path, monkeypatch, empty_handed):
    rows = [('1+2', '', '3'), ('4+5', '', '9')]
    monkeypatch.setattr(sr, 'problems', lambda family, split, n: rows)
    sr.hold_problems(tmp_path/'p.safetensors', ['adding_sparse','adding'])
    sr._asked.cache_clear()
    monkeypatch.setattr(sr, 'problems', None)
    got = sr._asked('adding')['train']
    want = to_tensors(rows, 'adding')
    for k in ('ids','mask','answer'): assert got[k].dtype==want[k].dtype and torch.equal(got[k], want[k])
    with pytest.raises(ValueError, match='has no problems of sorting: give the path of a new file'):
        sr.hold_problems(tmp_path/'p.safetensors', ['sorting_sparse'])

SMALL = dict(table='small', measure='span', points=1, reach=1.1, budget=64, ladder=LADDER, rates=[4e-5, 8e-5],
    seeds=dict(main=[500, 501], look=[1500]), arms=dict(main=['plain','mu3']), claims=[['mu3','plain']],
    predictions={'mu3 - plain':'+'})

def page_of(tmp_path, **more):
    "A small registration of two cells"
    plan = SMALL|dict(ladder=[1e-5*2**k for k in range(5)], definitions=rs.definitions(['plain','mu3'],
        ['adding','sorting']))|more
    (tmp_path/'p.qmd').write_text(f'```json\n{json.dumps(plan)}\n```')
    return tmp_path/'p.qmd'

def test_the_command_needs_neither_gym_nor_datasets_nor_trl_and_goes_on_where_it_stopped(tmp_path, capsys,
        empty_handed):
    """First in a process that can import none of them, as on a machine that has only torch and the usual
    packages; then here"""
    import subprocess, sys
    page,held = page_of(tmp_path),tmp_path/'problems.safetensors'
    sr.hold_problems(held, ['adding','sorting'])
    for o in sr.HELD.values(): o['test'] = {k:v[:20] for k,v in o['test'].items()}   # measuring takes longest
    with held.open('wb') as f: torch.save(sr.HELD, f)
    sr._asked.cache_clear()
    gone = 'reasoning_gym datasets trl transformers accelerate ipywidgets anywidget math_verify dill IPython'
    options = dict(what='main', folder=str(tmp_path), page=str(page), stack=16, device='cpu',
        problems=str(held), disable_tqdm=True)
    def run(**more):
        capsys.readouterr()
        rs.replay_study(**options|more)
        return capsys.readouterr().out
    assert 'main table: 0 of 8 spans' in run(minutes=1e-9) and not (tmp_path/'small.csv').exists()
    code = f"""import sys
for o in {gone.split()}: sys.modules[o] = None
from grpo_nb.studies.replay_study import replay_study
replay_study(**{options})"""
    said = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout
    d = read_rows(tmp_path/'small.csv', ('registered',))
    assert 'holm' in said and len(d)==2*2*5*2 and set(d.error)=={''}
    before = (tmp_path/'small.csv').read_bytes()
    run()
    assert (tmp_path/'small.csv').read_bytes()==before
    run(what='look')
    look = read_rows(tmp_path/'small_look.csv', ('registered',))
    assert len(look)==2 and set(look.regime)=={'adding','sorting'} and set(look.seed)=={1500}
    assert set(look.arm)=={'mu3'} and look.wrong.between(0, 1).all()
    first,last = (json.loads(look.curve[0])[k] for k in (0, -1))
    assert first['pass1']<first['several']<=1 and last['tokens']>=16

def test_other_code_counts_the_same_claims_of_spans(tmp_path):
    "On made rows of eight tasks, with noise; from the CSV, without a line of the package"
    from recount_study import recount_spans
    rng = np.random.default_rng(3)
    cells = [c for k in ('adding','sorting','filtering','reversing') for c in (k, f'{k}_sparse')]
    claims = [['stored3','mu3'], ['stored3','plain']]
    plan = PLAN|dict(claims=claims, predictions={f'{a} - {b}':'+' for a,b in claims},
        definitions=dict(families={c:dict(after=FAMILIES[c].after) for c in cells}))
    lift = {c:.05*rng.normal() for c in cells}
    def noisy(o):
        p = worth(o['regime'], o['arm'], o['seed'], o['learning_rate'])+.02*rng.normal()
        p += lift[o['regime']]*(o['arm']=='stored3')
        curve = [dict(tokens=k, pass1=p*q) for k,q in ((0, .5), (60, 1.), (104, 1.1))]
        return o|dict(pass1=.5, curve=json.dumps(curve))
    def run(job): return [noisy(o) for o in as_list(job)]
    df = run_rounds(run, lambda d: next_jobs(d, plan, stack=500), path=tmp_path/'t.csv', stamp=stamp(),
        disable_tqdm=True)
    (tmp_path/'p.qmd').write_text(f'```json\n{json.dumps(plan)}\n```')
    theirs = recount_spans(tmp_path/'t.csv', tmp_path/'p.qmd')
    rows,need = rs.tables(df, plan)['main table']
    assert len(rows)==need==3*4*2
    for o,t in zip(rs.claims(rows, plan).itertuples(), theirs, strict=True):
        assert [o.arm, o.baseline]==[*t[:2]] and [o.diff, o.half, o.p, o.holm]==pytest.approx(t[2:], abs=2e-5)
    less = pd.read_csv(tmp_path/'t.csv', dtype=str, keep_default_na=False)
    less[(less.arm!='mu3')|(less.seed!='2')].to_csv(tmp_path/'less.csv', index=False)
    assert recount_spans(tmp_path/'less.csv', tmp_path/'p.qmd') is None
    assert len(rs.tables(read_rows(tmp_path/'less.csv'), plan)['main table'][0])<need

def test_other_code_counts_the_same_claims_of_spans_of_ones_own(tmp_path):
    "The stored rows of the study of reuse under another plan, in two tables: two arms as if they were new"
    from recount_study import recount_own
    old = rs.registration('nbs/studies/registration_reuse.qmd')
    claims = [['mu2','plain'], ['stored3','mu2'], ['replay_default','mu2']]
    plan = old|dict(measure='own_span', claims=claims, predictions={f'{a} - {b}':'+' for a,b in claims},
        arms=dict(main=['mu2']), given=dict(table='reuse_study', registered=old['hash'],
            arms=['plain','stored3','replay_default']))
    (tmp_path/'p.qmd').write_text(f'```json\n{json.dumps(plan)}\n```')
    table = 'nbs/studies/rows/reuse_study.csv'
    whole = pd.read_csv(table_file(table), dtype=str, keep_default_na=False)
    whole[whole.arm=='mu2'].to_csv(tmp_path/'new.csv', index=False)
    every = with_given(read_rows(tmp_path/'new.csv'), plan, 'nbs/studies/rows')
    rows,need = rs.tables(every, plan)['main table']
    assert len(rows)==need
    theirs = recount_own([table], tmp_path/'p.qmd')
    for o,t in zip(rs.claims(rows, plan).itertuples(), theirs, strict=True):
        assert [o.arm, o.baseline]==[*t[:2]] and [o.diff, o.half, o.p, o.holm]==pytest.approx(t[2:], abs=2e-5)
    assert theirs[0][2]>.03   # the second pass is worth something at a rate of its own

def test_other_code_counts_the_same_claims_of_steps_without_reuse():
    from recount_study import recount_own
    page = 'nbs/studies/registration_parts.qmd'
    ours,theirs = (f'nbs/studies/rows/{k}_study.csv' for k in ('parts','reuse'))
    plan = rs.registration(page)
    rows,need = rs.tables(with_given(read_rows(ours), plan, 'nbs/studies/rows'), plan)['main table']
    assert len(rows)==need==5*8*8
    for o,t in zip(rs.claims(rows, plan).itertuples(), recount_own([ours, theirs], page), strict=True):
        assert [o.arm, o.baseline]==[*t[:2]] and [o.diff, o.half, o.p, o.holm]==pytest.approx(t[2:], abs=2e-5)

def test_the_plan_of_parts_asks_for_new_rows_only_and_tells_nothing_before_they_are_there():
    plan = rs.registration('nbs/studies/registration_parts.qmd')
    rows = with_given(pd.DataFrame(columns=['regime','arm','seed','learning_rate','error','area']), plan,
        'nbs/studies/rows')
    jobs = next_jobs(rows, plan, stack=8)
    assert {o['arm'] for j in jobs for o in j}=={'parts2','parts4'} and sum(map(len, jobs))==1280
    assert rs.say(rows, plan)=='main table: 256 of 320 spans; no differences before all are there'

def test_the_best_is_counted_on_seeds_it_was_not_chosen_on_and_at_its_share_of_the_tokens():
    curve = json.dumps([dict(tokens=0, pass1=.2), dict(tokens=50, pass1=.4), dict(tokens=110, pass1=1.)])
    def rows(arm, rate, *ends):
        def c(e): return json.dumps([dict(tokens=0, pass1=e), dict(tokens=100, pass1=e)])
        return [dict(regime='adding', arm=arm, seed=s, learning_rate=rate, error='', curve=c(e))
            for s,e in zip((1, 2, 3, 4), ends)]
    df = pd.DataFrame([*rows('a', 1., .1, .2, .9, .8), *rows('a', 2., .3, .3, .2, .2),
        *rows('b', 1., .5, .5, .5, .4),
        dict(regime='adding', arm='c', seed=1, learning_rate=1., error='', curve=curve)])
    plan = dict(budget=100, seeds=dict(main=[1, 2, 3, 4]))
    got = numbers(df, plan)['adding']
    assert set(got)=={('a', 1.), ('a', 2.), ('b', 1.)}   # of c three seeds are missing
    first = (.2+.2)/2        # seeds 1 and 2 choose rate 2
    second = (.1+.2)/2       # 3 and 4 choose rate 1
    assert best_of(got, ['a'], [1, 2, 3, 4])==pytest.approx((first+second)/2)
    assert best_of(got, ['a','b'], [1, 2, 3, 4])==pytest.approx((.45+.15)/2)
    one = dict(budget=100, seeds=dict(main=[1]))
    def cut(share): return numbers(df, one, lambda arm: share)['adding']['c', 1.][1]
    assert cut(1/4)==pytest.approx((.2+.3)/2) and cut(1/2)==pytest.approx(.3)
    assert cut(2)==pytest.approx((50*.3+60*.7)/110, abs=1e-5)   # no further than the run went

def test_the_slopes_interval_leaves_out_one_task_at_a_time():
    cells = ['adding','adding_sparse','sorting','filtering','filtering_sparse']
    x,y = dict(zip(cells, (0., 1., 2., 3., 5.))),dict(zip(cells, (.1, .3, .2, .9, 1.)))
    def fit(keep):
        a,b = np.array([x[c] for c in keep]),np.array([y[c] for c in keep])
        return ((a-a.mean())*(b-b.mean())).sum()/((a-a.mean())**2).sum()
    without = [fit(cells[2:]), fit([c for c in cells if c!='sorting']), fit(cells[:3])]
    mean = sum(without)/3
    error = (2/3*sum((o-mean)**2 for o in without))**.5
    got = slope(x, y)
    assert got['slope']==pytest.approx(fit(cells)) and got['tasks']==3
    assert got['half']==pytest.approx(4.30265*error, rel=1e-5)

def test_the_threshold_is_the_best_of_all_in_the_cells_it_is_chosen_on():
    rng = np.random.default_rng(5)
    for _ in range(50):
        x = dict(enumerate(rng.integers(0, 6, 8).astype(float)))
        value = {c:dict(zip(('plain','mu2','stored3'), rng.random(3))) for c in x}
        def arm(c, m): return 'stored3' if x[c]>=m else 'mu2'
        def lost(m): return np.mean([max(v.values())-v[arm(c, m)] for c,v in value.items()])
        m = threshold(x, value)
        assert lost(m)==pytest.approx(min(lost(k) for k in np.arange(-1, 7, .5)))
        assert regret({c:arm(c, m) for c in x}, value)==pytest.approx(lost(m))

def test_beside_another_predictor_a_slope_is_that_of_what_the_other_leaves():
    rng = np.random.default_rng(1)
    cells = ['adding','adding_sparse','sorting','filtering','filtering_sparse','reversing']
    x,z = (dict(zip(cells, rng.random(6))) for _ in range(2))
    y = {c:.3+2*x[c]-.7*z[c] for c in cells}
    both,alone = slope(x, y, beside=z),slope(x, y)
    assert both['slope']==pytest.approx(2) and both['half']<1e-6 and abs(alone['slope']-2)>.01

def flat(cell, arm, rate, *levels):
    "A row per seed 1, 2, ...; each stays at its level"
    def curve(v): return json.dumps([dict(tokens=0, pass1=v), dict(tokens=100, pass1=v)])
    return [dict(regime=cell, arm=arm, seed=s, learning_rate=rate, error='', curve=curve(v))
        for s,v in enumerate(levels, 1)]

def test_each_seed_takes_what_is_best_on_the_other_half():
    rows = [*flat('adding', 'a', 1., .1, .2, .9, .8), *flat('adding', 'a', 2., .3, .3, .2, .2),
        *flat('adding', 'b', 1., .5, .5, .5, .4), *flat('adding_sparse', 'a', 1., .1, .1, .1, .1),
        *flat('adding_sparse', 'b', 1., .0, .0, .0, .2)]
    plan = dict(budget=100, seeds=dict(main=[1, 2, 3, 4]), definitions=dict(families=dict.fromkeys(
        ('adding','adding_sparse'))))
    got = numbers(pd.DataFrame(rows), plan)['adding']
    assert chosen(got, ['a'], [1, 2, 3, 4])=={1:('a', 1.), 2:('a', 1.), 3:('a', 2.), 4:('a', 2.)}
    d = at_best(pd.DataFrame(rows), plan, dict(any=['a','b']), 'cell').set_index(['regime','seed']).best
    assert d['adding'].tolist()==[.1, .2, .5, .4]          # 3 and 4 choose a at 1, 1 and 2 choose b
    assert d['adding_sparse'].tolist()==[.1, .1, .1, .1]   # 3 and 4 tie: the first one; 1 and 2 choose a
    task = at_best(pd.DataFrame(rows), plan, dict(any=['a','b']))
    assert set(task.regime)=={'adding'} and task.best.tolist()==pytest.approx([.1, .15, .3, .25])

def test_a_fall_is_before_minus_after_and_a_mean_over_seeds():
    def row(cell, seed, a, b, wrong, error=''): return dict(regime=cell, seed=seed, wrong=wrong, error=error,
        curve=json.dumps([dict(tokens=k, pass1=.1, several=v) for k,v in ((0, a), (9, b))]))
    d = pd.DataFrame([row('adding', 1, .9, .8, .2), row('adding', 2, .8, .4, .4),
        row('sorting', 1, .5, .7, .1), row('sorting', 2, .5, .5, .9, 'lost')])
    got = looks(d)
    assert got.fall.tolist()==pytest.approx([.25, -.2]) and got.wrong.tolist()==pytest.approx([.3, .1])

def test_the_rule_is_made_in_one_half_of_the_cells_and_judged_in_the_other():
    "At g = .5 two updates get 2/3 of the tokens and three get half: curves that rise by 1 over all of them"
    rise = [dict(tokens=k, pass1=k/100) for k in (0, 100)]
    def rows(cell, arm, lift): return [dict(regime=cell, arm=arm, seed=s, learning_rate=1., error='',
        curve=json.dumps([o|dict(pass1=o['pass1']+lift) for o in rise])) for s in (1, 2)]
    lifts = dict(adding=(0., .2, .1), sorting=(0., .1, .3), filtering=(.2, .1, .2), reversing=(0., .0, .5))
    three = 'plain','mu2','stored3'
    df = pd.DataFrame([o for c,v in lifts.items() for a,l in zip(three, v) for o in rows(c, a, l)])
    arms = {a:dict(fresh=8, passes=p, parts=q) for a,p,q in (('plain',1,1), ('mu2',2,1), ('stored3',1,3))}
    plan = dict(budget=100, seeds=dict(main=[1, 2]), definitions=dict(arms=arms),
        discover=['adding','sorting'], confirm=['filtering','reversing'])
    at = dict(plain=.5, mu2=1/3, stored3=1/4)   # mean of k/100 over the first 1, 2/3 and 1/2 of the tokens
    worth_ = {c:{a:at[a]+l for a,l in zip(three, v)} for c,v in lifts.items()}
    def lost(c, a): return max(worth_[c].values())-worth_[c][a]
    got = regrets(df, plan, dict(adding=.1, sorting=.3, filtering=.0, reversing=.9), .5)
    assert got['threshold']==pytest.approx(.2)   # between mu2's cell and the one of stored groups
    assert got['rule']==pytest.approx((lost('filtering', 'mu2')+lost('reversing', 'stored3'))/2, abs=2e-5)
    for k,a in dict(always='stored3', never='plain', mu2='mu2').items():
        assert got[k]==pytest.approx((lost('filtering', a)+lost('reversing', a))/2, abs=2e-5)

def test_half_of_the_tokens_against_the_best_end_seed_by_seed():
    def curve(e): return json.dumps([dict(tokens=0, pass1=.2), dict(tokens=100, pass1=e)])
    def rows(arm, rate, ends): return [dict(regime='adding', arm=arm, seed=s, learning_rate=rate, error='',
        curve=curve(e)) for s,e in enumerate(ends, 1)]
    plan = dict(budget=80, seeds=dict(main=[1, 2, 3, 4]), definitions=dict(families=dict(adding=None)))
    df = pd.DataFrame([*rows('s', 1., (.6, .6, .8, .4)), *rows('x', 1., (.5, .4, .3, .3)),
        *rows('y', 1., (.1, .1, .1, .6)), *rows('y', 2., (.4, .4, .45, .45))])
    got = with_half(df, plan, 's', ['x','y']).loc['adding']
    half = [.2+.4*(e-.2) for e in (.6, .6, .8, .4)]   # 40 of 100 tokens
    ends = [.4, .4, .3, .3]   # 3 and 4 choose y at 2 for 1 and 2; those choose x
    assert got['diff']==pytest.approx(np.mean(np.subtract(half, ends))) and got.n==4

ROOT = Path(__file__).parents[2]
PAGE = ROOT/'nbs'/'studies'/'registration_reuse.qmd'

@pytest.fixture(scope='module')
def study():
    "Plan, table and look, as they are stored"
    plan = rs.registration(PAGE)
    same = 'registered',
    return plan,*(read_rows(ROOT/'nbs'/'studies'/'rows'/f'reuse_study{k}.csv', same) for k in ('','_look'))

def test_the_stored_table_is_whole_and_other_code_counts_its_claims(study):
    from recount_study import recount_spans
    plan,df,look = study
    assert len(df)==7696 and len(look)==128 and set(df.error)|set(look.error)=={''}
    assert set(df.registered)|set(look.registered)=={plan['hash']} and not next_jobs(df, plan)
    rows,need = rs.tables(df, plan)['main table']
    assert len(rows)==need
    theirs = recount_spans(ROOT/'nbs'/'studies'/'rows'/'reuse_study.csv', PAGE)
    for o,t in zip(rs.claims(rows, plan).itertuples(), theirs, strict=True):
        assert [o.arm, o.baseline]==[*t[:2]] and [o.diff, o.half, o.p, o.holm]==pytest.approx(t[2:], abs=2e-5)

def test_other_code_counts_the_same_gains_and_halves_in_the_stored_rows(study):
    from recount_study import recount_reuse
    plan,df,_ = study
    theirs = recount_reuse(ROOT/'nbs'/'studies'/'rows'/'reuse_study.csv', PAGE)
    sets = dict(stored3=['stored3'], stored6=['stored6'], free3=FREE, free6=[*FREE,'mu6','big6'])
    cell = at_best(df, plan, sets, 'cell').groupby(['regime','arm']).best.mean().unstack()
    half = with_half(df, plan, 'stored6', sets['free6'])['diff']
    assert set(theirs)==set(cell.index)
    for c,t in theirs.items():
        ours = cell.stored3[c]-cell.free3[c],cell.stored6[c]-cell.free6[c],half[c]
        assert [*map(float, ours)]==pytest.approx(t, abs=2e-5), c

def test_other_code_counts_the_same_roads(study):
    "C: means over tasks of span and of area at the best rate, and each step up with its interval"
    from recount_reuse import ROADS, recount_roads
    plan,df,_ = study
    theirs = recount_roads()
    best = at_best(df, plan, {a:[a] for a in plan['arms']['main']})
    for name,d in (('span', spans(df, plan)), ('best', best)):
        means,apart = theirs[name]
        assert d.groupby('arm')[name].mean().to_dict()==pytest.approx(means, abs=2e-5)
        ours = over_regimes(d, ROADS, name)
        for o in ours.itertuples():
            assert (o.diff, o.half)==pytest.approx(apart[o.arm, o.baseline], abs=2e-5), (o.arm, o.baseline)

def test_other_code_counts_the_same_slopes_and_regrets(study):
    "B: both predictors, alone and beside the other; the rule at three costs, with both of them"
    from recount_reuse import recount_gains, recount_looks, recount_regrets, recount_slope, task_of
    plan,df,look = study
    seen,gains,x = recount_looks(),recount_gains(),looks(look)
    for c,(fall,wrong) in seen.items(): assert (x.fall[c], x.wrong[c])==pytest.approx((fall, wrong), abs=1e-9)
    both = {k:{c:o[i] for c,o in seen.items()} for i,k in enumerate(('fall','wrong'))}
    for i in (0, 1):
        y = {c:o[i] for c,o in gains.items()}
        for k,other in (('fall','wrong'), ('wrong','fall')):
            for beside in (None, both[other]):
                o = slope(both[k], y, beside)
                want = recount_slope(both[k], y, task_of(plan), beside)
                assert (o['slope'], o['half'])==pytest.approx(want)
    for k,v in both.items():
        for g in (.5, .75, .9):
            assert [*regrets(df, plan, v, g).values()]==pytest.approx(recount_regrets(v, g), abs=2e-5), (k, g)

FREE = ['plain','mu2','mu3','big3']
BY_TASK = [('stored3','mu3'), ('stored3','big3'), ('stored6','mu6'), ('stored6','big6'),
    ('replay_default','plain'), ('mu6','mu3'), ('big6','big3'), ('stored6','stored3')]

@pytest.fixture(scope='module')
def counted(study):
    "Per pair of arms its difference of spans and at the best rates, as pages write them; gains by cell"
    plan,df,look = study
    sets = {a:[a] for a in plan['arms']['main']}|dict(free3=FREE, free6=[*FREE,'mu6','big6'])
    free = [('stored3','free3'), ('stored6','free6')]
    def said(d, some, metric):
        o = over_regimes(d, some, metric)
        texts = [v.replace('-', '−') if v[0]=='-' else v for v in rs.texts(o['diff'], o.half)]
        return dict(zip(some, texts))
    cell = at_best(df, plan, sets, 'cell').groupby(['regime','arm']).best.mean().unstack()
    return dict(span=said(spans(df, plan), BY_TASK, 'span'),
        best=said(at_best(df, plan, sets), BY_TASK+free, 'best'),
        gain={3:(cell.stored3-cell.free3).to_dict(), 6:(cell.stored6-cell.free6).to_dict()})

@pytest.mark.parametrize('page', ['nbs/studies/first_study.ipynb','nbs/practise/replay_settings.qmd'])
def test_the_pages_of_replay_say_what_reuse_gives(counted, page):
    rows = [o for o in words(page).splitlines() if o.startswith('|')]
    carried = BY_TASK[:5] if 'settings' not in page else [BY_TASK[k] for k in (4, 0, 2)]
    for k in carried: assert sum(f"| {counted['span'][k]} | {counted['best'][k]} |" in o for o in rows)==1, k

PAGES = ['nbs/14_replay_study.ipynb','nbs/practise/replay_settings.qmd','nbs/studies/reuse_results.ipynb']

def shown(page):
    "The text of a page, and what its cells print."
    text = words(page)
    if page.endswith('.ipynb'):
        cells = json.loads((ROOT/page).read_text(encoding='utf-8'))['cells']
        out = [o.get('data', {}).get('text/plain', '') for c in cells for o in c.get('outputs', [])]
        text += ''.join(''.join(o) for o in out)
    return text

def test_whoever_speaks_of_replay_quotes_the_same_numbers(counted):
    k = BY_TASK[4]
    for page in PAGES: assert counted['span'][k] in words(page) and counted['best'][k] in shown(page), page

@pytest.fixture(scope='module')
def kept(study):
    "Every way minus plain GRPO at plain GRPO's best rate, and at twice that rate, as the chapter has it"
    return {times:CHAPTER.switched(study[1], study[0], times) for times in (1, 2)}

def test_other_code_counts_the_same_at_the_rate_one_has(study, kept):
    "Each half of the seeds at the rate that was best for plain GRPO on the other half"
    plan,df,_ = study
    a = df[df.error==''].set_index(['regime','arm','learning_rate','seed']).area
    halves,gains = (range(500, 504), range(504, 508)),{}
    for times in (1, 2):
        for cell in plan['definitions']['families']:
            plain = a[cell,'plain'].unstack('seed')
            for mine,others in (halves, halves[::-1]):
                rate = plain[list(others)].mean(axis=1).idxmax()
                at = a.index.get_level_values('learning_rate')
                near = a[(abs(at/rate/times-1)<1e-6)]
                for arm in CHAPTER.SWITCHES:
                    one,two = (near.xs(k, level='arm')[cell].droplevel('learning_rate')[list(mine)]
                        for k in (arm, 'plain'))
                    gains.setdefault((times, arm), {}).setdefault(cell, []).extend(one-two)
    for (times,arm),by_cell in gains.items():
        row = kept[times].loc[arm]
        mean = {c:sum(v)/8 for c,v in by_cell.items()}
        assert row['cells above']==f'{sum(v>0 for v in mean.values())} of 16'
        assert float(row['minus plain GRPO'].split()[0])==pytest.approx(sum(mean.values())/16, abs=6e-4)

def said(row): return row.replace('-', '−')

@pytest.mark.parametrize('page', PAGES[:2])
def test_pages_say_what_replay_gives_at_the_rate_one_has(kept, page):
    for times in (1, 2): assert said(kept[times].loc['replay_default','minus plain GRPO']) in shown(page)
    if 'settings' not in page: return
    for arm,row in kept[1].iterrows():
        if arm=='mu6': continue
        cells = f"{said(row.iloc[0])} | {row['cells above']} | {said(kept[2].loc[arm].iloc[0])} |"
        assert cells in words(page), arm

@pytest.fixture(scope='module')
def at_rate(study):
    "Mean area of every way at plain GRPO's best rate of the other seeds, and at twice that rate"
    rows = {times:CHAPTER.at_kept_rate(study[1], study[0], times) for times in (1, 2)}
    return {times:d.groupby('arm').area.mean() for times,d in rows.items()}

def test_the_live_page_says_what_the_rows_say(kept, at_rate):
    text = ' '.join(words('grpo_nb/assets/live/live.html').split())
    gain,_,half = kept[1].loc['replay_default'].iloc[0].split()
    gain,half = (f'{100*float(o):.1f}' for o in (gain, half))
    says = f'{gain} more right answers in 100, averaged over a run (± {half})'
    assert says in text
    lost = 1-at_rate[2]/at_rate[1]
    told = f'plain GRPO loses {lost.plain:.0%} of its right answers, with replay {lost.replay_default:.0%}'
    assert told.replace('%', ' %') in text
    practice = shown('nbs/studies/practice_results.ipynb')
    for times in (1, 2):   # the registered study's claims, whatever they are
        name = f'replay_default at {times} − plain at {times}'
        claim = next(o for o in practice.split('\n') if o.startswith(name))
        gain,half = (f'{100*float(o):.1f}' for o in (claim.split()[7], claim.split()[9]))
        assert f'{gain} ± {half}' in text

def test_the_chapter_says_what_is_lost_at_twice_the_rate(at_rate):
    text = words(PAGES[0])
    for arm,name in (('plain', 'plain GRPO loses'), ('replay_default', 'the default')):
        one,two = (at_rate[k][arm] for k in (1, 2))
        said = f'{name} {1-two/one:.0%}'.replace('%', ' %')
        assert said in text
        assert f'{one:.2f} to {two:.2f}'.replace('0.', '.') in text[text.index(said):][:100]

def test_pages_say_where_the_gain_comes_from(study):
    plan,df,_ = study
    chapter,page,settings = (words(o) for o in (PAGES[0], PAGES[2], PAGES[1]))
    d = PAGE_OF.by_rate(df, plan)
    lead = d['area'].replay_default-d['area'].plain
    assert len(lead)==16*5*8
    high = lead.groupby('rate').mean()[['2','4']].sum()/5/lead.mean()
    assert all(f'{high:.0%}'.replace('%', ' %') in o for o in (page, settings))
    assert high>.9 and 'nearly all of it](studies/reuse_results' in chapter
    assert abs((lead*d['broke'].plain).sum()/lead.sum()-2/3)<.02 and 'two thirds from runs' in page
    own = PAGE_OF.own_range(df, plan, ['plain','replay_default'])
    assert PAGE_OF.one_text(own, ('replay_default','plain'), 'own') in shown(PAGES[2])
    two = at_best(df, plan, {a:[a] for a in ('mu2','replay_default')})
    two = PAGE_OF.one_text(two, ('replay_default','mu2'), 'best')
    assert two in shown(PAGES[0]) and f'default − two passes {said(two)}' in settings

def test_pages_and_warning_say_what_replay_without_the_clip_gave(study):
    from grpo_nb.parts.corrections import warn_unless_clipped
    popo = read_rows(ROOT/'nbs'/'studies'/'rows'/'replay_study_methods_rates.csv', ('registered',))
    one,two = (PAGE_OF.minus_plain(d, a, 4e-4) for d,a in ((popo, 'popo'), (study[1], 'replay')))
    told = [o[k] for o in (one, two) for k in ('adding','filtering')]
    assert all(o[0]=='-' for o in told[:2]) and all(o[0]=='+' for o in told[2:])
    with pytest.warns(UserWarning) as seen: warn_unless_clipped('none', 'replay_clip')
    for text in (str(seen[0].message), words(PAGES[1]), words(PAGES[2])):
        assert all(o[1:] in text for o in told)

def test_other_pages_say_what_reuse_gives(counted):
    book,limits = words('nbs/studies/first_study.ipynb'),words('nbs/project/limitations.qmd')
    default,three = ('replay_default','plain'),('stored3','mu3')
    for page,k in ((book, default), (limits, three)):
        assert counted['span'][k] in page and counted['best'][k] in page
    settings = words('nbs/practise/replay_settings.qmd')
    every = [v for o in counted['gain'].values() for v in o.values()]
    assert f'up to +{max(every):.2f}'.replace('0.', '.') in settings
    assert f'down to −{-min(every):.2f}'.replace('0.', '.') in settings

def test_the_page_of_results_says_what_the_rows_say(study, counted):
    plan,df,look = study
    page = words('nbs/studies/reuse_results.ipynb')
    for k in BY_TASK[4:]: assert counted['span'][k] in page, k
    for k in (*BY_TASK[:3:2], BY_TASK[4], ('stored3','free3'), ('stored6','free6')):
        assert counted['best'][k] in page, k
    rows,_ = rs.tables(df, plan)['main table']
    four = rs.claims(rows, plan)
    assert set(four.says)=={'above 0'} and (four['diff']-four.half>.05).all() and four.half.min()>.03
    assert four[four.says!=four.predicted][['arm','baseline']].values.tolist()==[['stored3','big3']]
    assert f"by {four['diff'].min():.2f} to {four['diff'].max():.2f} of mean".replace('0.', '.') in page
    plain = over_regimes(spans(df, plan), [('stored6','plain'), ('stored3','plain')], 'span')['diff']
    assert 'of plain GRPO by {:.2f} to {:.2f}:'.format(*plain).replace('0.', '.') in page
    more = [(s, c) for s in ('stored3','stored6') for c in ('plain','mu2')]
    d = over_regimes(spans(df, plan), more, 'span')
    low = [f'{o:.3f}'.replace('0.', '.') for o in d['diff']-d.half]
    assert 'begins at {} and {}, with six at {} and {}: there the goal is met'.format(*low) in page
    half = with_half(df, plan, 'stored6', [*FREE,'mu6','big6'])
    assert (half['diff']>=0).sum()==3 and half.verdict.value_counts().to_dict()==dict(worse=10, undecided=6)
    assert 'In 3 of 16 cells by its mean, in none by its interval, and in 10 it is decided short' in page
    x,gain = looks(look),counted['gain']
    one = slope(x.fall.to_dict(), gain[3])
    assert f"{one['slope']:+.3f} ± {one['half']:.3f}" in page
    both = [slope(x[k].to_dict(), gain[u]) for k in ('fall','wrong') for u in (3, 6)]
    assert all(abs(o['slope'])<o['half'] for o in both)   # "No."

def test_no_early_number_tells_as_the_page_says(study):
    plan,df,look = study
    x = looks(look)
    def below(k, g):
        o = regrets(df, plan, x[k].to_dict(), g)
        return {c for c in ('always','never','mu2') if o['rule']<o[c]},o
    fall = {g:below('fall', g) for g in (.5, .75, .9)}
    assert [o[0] for o in fall.values()]==[{'always'}, {'always'}, {'always','never','mu2'}]
    assert .0005<fall[.9][1]['always']-fall[.9][1]['rule']<.0015   # "by .001"
    wrong = {g:below('wrong', g) for g in fall}
    assert [len(o[0])==3 for o in wrong.values()]==[False, True, True]
    assert wrong[.5][1]['rule']==wrong[.5][1]['mu2'] and fall[.5][1]['never']<.005
    assert max(('always','never','mu2'), key=fall[.9][1].get)=='never'

def test_at_the_lowest_rate_passes_are_ahead_as_the_first_page_says(study):
    plan,df,_ = study
    done = tries(df, plan['seeds']['main'])
    five = {c:span_of(c, done, plan) for c in plan['definitions']['families']}
    def mean(arm, k): return np.mean([done[c,arm][o[k]] for c,o in five.items()])
    assert mean('mu3', 0)>mean('stored3', 0) and mean('mu6', 0)>mean('stored6', 0)
    assert mean('mu3', 4)<.02 and mean('mu6', 4)<.02 and mean('stored3', 4)>.2 and mean('stored6', 4)>.15
    said = words('nbs/studies/first_study.ipynb')
    assert "At a quarter of plain GRPO's best rate passes are ahead." in said

def test_a_processor_gives_what_the_table_has_as_the_page_says(study):
    plan,df,_ = study
    cpu = read_rows(ROOT/'nbs'/'studies'/'rows'/'reuse_study_cpu.csv', ('registered',))
    assert len(cpu)==32 and set(cpu.registered)=={plan['hash']} and set(cpu.machine)!=set(df.machine)
    page = words('nbs/studies/reuse_results.ipynb')
    for (c,arm),d in cpu.groupby(['regime','arm']):
        there = df[(df.regime==c)&(df.arm==arm)&(df.learning_rate==d.learning_rate.iloc[0])]
        apart = d.set_index('seed').area-there.set_index('seed').area
        assert len(apart)==8
        mean,half = apart.mean(),2.36462*apart.std()/8**.5
        assert abs(mean)<half   # none is decided
        if arm=='plain': assert abs(mean)<.003
        else: assert f'{mean:+.3f} ± {half:.3f}'.replace('-', '−') in page

# ---- the cliff, drawn

def test_the_cliff_is_what_its_weights_give(tmp_path, monkeypatch):
    "A small one: its roads by least squares in the plane's own basis, its accuracies a model at a time"
    names,walked = PAGE_OF.write_cliff.__globals__,[]
    arms = {k:BatchUse(fresh=2, passes=p) for k,p in (('plain GRPO', 1), ('three passes', 3))}
    def kept(rate):
        walked.append(PAGE_OF.roads(rate))
        return walked[-1]
    three = SimpleNamespace(linspace=lambda low, high, n: torch.linspace(low, high, 3), stack=torch.stack)
    for k,v in dict(ROADS=arms, SEED=500, BATCHES=2, EVERY=1, roads=kept, torch=three).items():
        monkeypatch.setitem(names, k, v)
    PAGE_OF.write_cliff(tmp_path/'cliff.csv', best=1e-3)
    df = pd.read_csv(tmp_path/'cliff.csv')
    (best,_),(roads,runs) = walked
    start = roads['plain GRPO'][0][0].double()
    ends = [o.double()-start for o in (best['plain GRPO'][-1][0], roads['three passes'][-1][0])]
    base = torch.linalg.qr(torch.stack(ends, 1))
    axes = base.Q*base.R.diagonal().sign()
    assert df[df.what=='good end'].x.item()==pytest.approx(ends[0].norm().item(), abs=1e-4)
    for name,road in roads.items():
        seen = df[df.what==name]
        assert seen.batch.tolist()==[0, 1, 2] and seen.right.tolist()==pytest.approx([o for _,o in road])
        moved = torch.stack([o.double()-start for o,_ in road])
        at = torch.linalg.lstsq(axes, moved.T).solution.T
        assert np.allclose(seen[['x','y']], at, atol=1e-4)
        left = (moved-at@axes.T).norm(dim=1)/moved.norm(dim=1).clamp(min=1e-12)
        assert np.allclose(seen.in_plane, (1-left**2).sqrt(), atol=2e-3)
    assert abs(df[(df.what=='three passes')&(df.batch==2)].in_plane.item()-1)<1e-3   # it spans the plane
    plane = df[df.what=='plane']
    assert len(plane)==9 and plane.right.nunique()>1
    for o in plane.itertuples():
        point = (start+axes@torch.tensor([o.x, o.y], dtype=torch.float64)).float()
        right = sr.right_answers(sr.Stack(runs.m.shape, point[None]), runs.test, [500])
        assert right.float().mean().item()==pytest.approx(o.right, abs=.02)
