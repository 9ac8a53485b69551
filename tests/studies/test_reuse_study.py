"The study of reuse: stacks of several rates and starts, the shipped buffer, a ladder of rates, foreign rows"
import json
from collections import Counter
from pathlib import Path
import numpy as np, pandas as pd, pytest, torch
import grpo_nb.studies.replay_study as rs
import grpo_nb.studies.stacked as sr
import grpo_nb.studies.starts as starts
from grpo_nb.replay import Replay
from grpo_nb.studies.replay_study import (
    USES, next_jobs, run_rounds, run_stack, spans, to_try, with_given)
from grpo_nb.studies.stacked import FAMILIES, SHAPE, BatchUse, Runs, to_tensors
from grpo_nb.studies.study import as_list, over_regimes, read_rows, run_study, stamp
from made_study import bare, one_thread, untaught   # noqa: F401  fixtures
from notebook_code import defined_in

pytestmark = pytest.mark.studies

PAGE_OF,ROOM = defined_in('studies/reuse_results'),defined_in('studies/stacked', 'grpo_nb.studies.stacked')

def stacked(arm, **settings):
    o = dict(budget=700, points=2)|settings
    runs = zip(['adding','adding_sparse']*2, [3, 3, 4, 4], [1e-3, 1e-4, 2e-3, 1e-3])
    return [dict(regime=r, arm=arm, seed=s, source='', learning_rate=l, settings=json.dumps(o))
        for r,s,l in runs]

@pytest.mark.parametrize('arm', ['plain','mu3','replay_both','copies_clip','stored_weight','filter',
    'ngrpo','zvp','popo','stored_moment','left_out','default_no_clip','plain_warmup','default_warmup','scaled',
    'replay_scaled_after','resample','skip_dead','replay_default','big3','stored3','stored6_moment'])
def test_a_stack_of_several_rates_and_starts_is_the_same_runs_made_alone(untaught, arm):
    job = stacked(arm)
    company = bare(run_stack(job, 'cpu'))
    assert company==[bare(run_stack(o, 'cpu'))[0] for o in job]
    use = USES[arm]
    if not use.warmup and use.scale_lr=='none' and use.rounds==1:   # at so low a rate all end at once
        assert len({o['curve'] for o in company})==4
        assert len({o['batches'] for o in company})>1 or arm=='big3'   # one batch is its budget
    for o in company: assert o['tokens']>=700 and json.loads(o['curve'])[-1]['tokens']==o['tokens']

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

def test_the_look_is_the_mean_over_the_seeds_of_its_stored_rows(study):
    look,x = study[2],PAGE_OF.looks(study[2])
    for cell,rows in look.groupby('regime'):
        curves = [json.loads(o) for o in rows.curve]
        fall = [o[0]['several']-o[-1]['several'] for o in curves]
        assert (x.fall[cell], x.wrong[cell])==pytest.approx((sum(fall)/len(fall), rows.wrong.mean()))
