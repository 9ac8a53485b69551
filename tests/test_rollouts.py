"Other people's rollouts and logs, made on the spot in each project's layout"
import json, math
import numpy as np, pandas as pd, pytest
from grpo_nb.see.readers import diagnose
from grpo_nb.inspector import inspector_html
from grpo_nb.see.readers import open_run
from grpo_nb.see.readers.groups import rows_to_groups
from grpo_nb.see.readers.names import find_columns
from made_histories import trackio
from view_pages import Opened


def lines(path, rows, end=''):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(json.dumps(o)+'\n' for o in rows)+end)

def check(path, steps=(1, 2), reward=(1., 0., 1., 0.), columns=None):
    run = open_run(path, columns)
    assert run.steps==list(steps) and len(run.rows)==2*len(steps)
    for s in steps:
        g = run.by_step[s]
        assert [o['rewards'] for o in g] == [pytest.approx(list(reward)), [0.0] * 4] and g[0]['completions'][
            :2
        ] == ['two', 'three']
        assert '1 + 1' in g[0]['prompt']
    o = Opened(inspector_html(run))
    assert o.state().tolist()==[[1, 3]]*len(steps)
    return run

def samples(s, text=lambda t: t, prompt=lambda t: t):
    "Two prompts of four: one living, one all wrong"
    for i,(q,r) in enumerate([('1 + 1', 1.), ('1 + 1', 0.), ('1 + 1', 1.), ('1 + 1', 0.)]+[('2 + 5', 0.)]*4):
        yield s,i,prompt(f'{q} ='),text(['two','three','two','nine'][i%4]),r

def test_trls_completions(tmp_path):
    (tmp_path/'completions').mkdir()
    for k,s in ((1, 1), (2, 1), (3, 2)):   # the second file logs the first generation once more
        df = pd.DataFrame([dict(step=s if k != 2 else 9, prompt=q, completion=t, right=r, short=0.0,
                                advantage=(r - 0.5) * (i < 4)) for _, i, q, t, r in samples(s)])
        if s==2: df['completion'] = [t+'' for t in df['completion']]; df.loc[7, 'completion'] = 'other'
        df.to_parquet(tmp_path/'completions'/f'completions_{k:05d}.parquet')
    with pytest.raises(ValueError, match=r'single rewards right, short and no total.*--reward right\+short'):
        open_run(tmp_path)
    run = check(tmp_path, columns=dict(reward='right+short'))
    assert run.rows[0]['rewards_by_func']['right']==[1., 0., 1., 0.]
    again, = run.notes
    assert again=='1 of 3 tables repeat the prompts and completions of the one before, and are left out.'

def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(ValueError, match='no folder'): open_run(tmp_path/'none')
    with pytest.raises(ValueError, match='holds no record'): open_run(tmp_path)
    lines(tmp_path/'a'/'1.jsonl', [dict(input='q', output='x', score=1.)])
    with pytest.raises(ValueError, match='has no groups.*1 completions without'): open_run(tmp_path/'a')
    (tmp_path/'b').mkdir(); (tmp_path/'b'/'1.parquet').write_bytes(b'no parquet')
    with pytest.raises(ValueError, match='could not be read'): open_run(tmp_path/'b')
    with pytest.raises(ValueError, match='no such columns'): find_columns(['a'], dict(reward='b'))
    with pytest.raises(ValueError, match='`columns` names'): find_columns(['a'], dict(colour='a'))

# ---- trackio and OpenRLHF, as their documentation says they write

def test_a_trackio_project_gives_the_newest_runs_metrics_and_completions(tmp_path):
    table = lambda s: [dict(step=str(s), prompt=q, completion=t if i<2 else f'{t} {s}', right=r,
                            advantage=(r-.5)*(i<4)) for s,i,q,t,r in samples(s)]
    calls = [o for s in (1, 2) for o in ({'train/reward':.25, 'train/kl':math.nan if s==1 else .1,
        'train/global_step':s}, dict(completions=table(s)))]
    f = trackio(tmp_path/'p.db', dict(older=[dict(reward=9.)], newer=calls))
    run = check(f)
    assert any("2 runs; this is 'newer'" in n for n in run.notes)
    h = open_run(f).history
    assert h['step'].tolist()==[1, 2] and h['reward'].tolist()==[.25, .25] and h['kl'].dropna().tolist()==[.1]
    assert open_run(tmp_path).steps==[1, 2]

def test_a_database_that_is_no_project_says_what_is_needed(tmp_path):
    (tmp_path/'x.db').write_bytes(b'SQLite format 3\0'+b'\7'*4000)
    with pytest.raises(ValueError, match='table `metrics`'): open_run(tmp_path/'x.db')

def test_openrlhfs_scalars_are_read_under_trls_names(tmp_path):
    names = dict(policy_loss='loss', reward='reward', response_length='completions/mean_length', kl='kl',
        actor_grad_norm='grad_norm', actor_lr='learning_rate', entropy_loss='entropy',
        truncated='completions/clipped_ratio', group_reward_std='reward_std')
    rows = [{'train/global_step':s}|{f'train/{k}':i+s/10 for i,k in enumerate(names)} for s in range(1, 5)]
    lines(tmp_path/'metrics.jsonl', rows+[{'eval/global_step':4, 'eval/eval_math_pass1':.5}])
    h = open_run(tmp_path).history
    for i,ours in enumerate(names.values()):
        assert h[ours].dropna().tolist()==pytest.approx([i+s/10 for s in range(1, 5)])
    assert h['eval/eval_math_pass1'].dropna().tolist()==[.5]

# ---- several launches
def events(folder, rows):
    "Event files of tensorboard, one for each call."
    SummaryWriter = pytest.importorskip('torch.utils.tensorboard').SummaryWriter
    with SummaryWriter(str(folder)) as w:
        for step,reward in rows: w.add_scalar('train/reward', reward, step)

def test_a_resumed_run_of_two_event_files_says_what_the_second_says(tmp_path):
    events(tmp_path, [(1, .1), (2, .2), (3, .3)])
    at = next(tmp_path.glob('events*'))
    at.rename(at.with_name('events.out.tfevents.0000000001.here'))
    events(tmp_path, [(2, .6), (3, .7), (4, .8)])
    run = open_run(tmp_path)
    assert run.history['reward'].tolist()==pytest.approx([.1, .6, .7, .8])
    assert any('steps from 2 on were logged again after step 3, by a resumed run' in o for o in run.notes)

@pytest.mark.parametrize('n', [1, 2, 6, 7, 9])
def test_launches_of_tensorboard_are_counted_and_six_of_them_named(n, tmp_path):
    for i in range(n): events(tmp_path/f'launch{i}', [(2*i, .5), (2*i+1, .5)])
    for i in range(n):
        at = next((tmp_path/f'launch{i}').glob('events*'))
        at.rename(at.with_name(f'events.out.tfevents.{i+1:010}.here'))
    run = open_run(tmp_path)
    assert run.history['step'].tolist()==[*range(2*n)] and run.history['reward'].tolist()==[.5]*2*n
    named = ', '.join(f'launch{i} (steps {2*i} to {2*i+1})' for i in range(min(n, 6)))
    assert run.notes==([f"{n} event files: {named}{' …'*(n>6)}."] if n>1 else [])

def test_held_out_sets_and_training_in_one_event_file_lose_no_step(tmp_path):
    "TRL writes both sets as `eval/reward`, and a file of events is read tag by tag"
    SummaryWriter = pytest.importorskip('torch.utils.tensorboard').SummaryWriter
    with SummaryWriter(str(tmp_path)) as w:
        for step in range(20):
            w.add_scalar('train/reward', step/8, step)
            for name,x in (('easy', .75), ('hard', .25)) if step in (5, 10) else ():
                w.add_scalar(f'eval/{name}_loss', .5, step)
                w.add_scalar('eval/reward', x, step)
    run = open_run(tmp_path)
    assert run.history['reward'].tolist()==[i/8 for i in range(20)]
    for name in ('easy','hard'): assert run.history[f'eval/{name}_loss'].dropna().tolist()==[.5]*2
    assert run.notes==['eval/reward: several values at 2 of the steps, of which the last is read.']

def test_rewards_that_differ_by_rounding_alone_are_a_dead_group_of_a_foreign_table(tmp_path):
    rows = [dict(prompt=p, completion=c, reward=r)
        for p,c,r in (('a','1',.1+.2), ('a','2',.3), ('b','1',0.), ('b','2',1.))]
    (tmp_path/'rollouts.jsonl').write_text(''.join(json.dumps(o)+'\n' for o in rows))
    got = open_run(tmp_path/'rollouts.jsonl').rows
    assert [(o['dead'], o['dead_reason']) for o in got]==[(True, 'float-noise'), (False, None)]

def test_in_a_csv_false_is_false_and_half_a_last_line_is_no_nan(tmp_path):
    "A CSV has no words for True and False but these, and one that grows ends in the middle of a row"
    head = 'prompt,completion,reward,truncated,n_tokens\n'
    (tmp_path/'r.csv').write_text(head+'q,007,1,False,3\nq,12,0,True,2\nq,x,1,0,1\nq,y,0,1,\n')
    got = open_run(tmp_path/'r.csv').rows[0]
    assert got['truncated']==[False, True, False, True] and got['n_tokens']==[3, 2, 1, 0]
    assert got['completions']==['007','12','x','y'] and got['rewards']==[1., 0., 1., 0.]
    log = 'step,reward,loss\n'+''.join(f'{i},{.3+.01*i},.1\n' for i in range(9))
    (tmp_path/'m.csv').write_text(log+'9,.4')
    assert diagnose(tmp_path/'m.csv')==[]

# ---- which groups, of rollouts that do not say it plainly

G = 8
def answers(seed=1):
    "(step, prompt, place, reward) of four steps of three groups: all right, mixed, all wrong"
    rng = np.random.default_rng(seed)
    return [(s, p, i, 1. if p==0 else float(i==3 or rng.random()<.5)*(i!=4) if p==1 else 0.)
        for s in range(1, 5) for p in range(3) for i in range(G)]
def asked(s, p): return f'What is {p}+{s}?'
def centred(r, p): return (r-.5)*(p==1)   # an advantage, up to a factor
def batches(**columns):
    rows = []
    for s in range(1, 5):
        batch = [o for o in answers() if o[0]==s]
        rows.append({k:[f(*o) for o in batch] for k,f in columns.items()})
    return rows
def wandb_table(rows): return json.dumps(dict(columns=list(rows[0]), data=[list(o.values()) for o in rows]))

def verl_v1(d):
    lines(d/'1.jsonl', [dict(input=asked(s, p), output=f'answer {i}', score=r, step=s,
        uid=f'{s}{p}ab-1c_{i}_0') for s,p,i,r in answers()])
def verl_v1_one_prompt(d):   # which the ids tell apart, and nothing else could
    lines(d/'1.jsonl', [dict(input='What?', output=f'answer {i}', score=r, step=s, uid=f'{s}{p}ab-1c_{i}_0')
        for s,p,i,r in sorted(answers(), key=lambda o: (o[0], o[2]))])
def other_ids(d):   # one for each answer, and they say no more
    lines(d/'1.jsonl', [dict(input=asked(s, p), output=f'answer {i}', score=r, step=s, uid=f'{s:x}{p:x}{i:x}')
        for s,p,i,r in answers()])
def wandb_parts(d):
    rows = [dict(step=s, prompt=asked(s, p), completion=f'answer {i}', form=.5, right=r,
        advantage=centred(r, p)) for s,p,i,r in answers()]
    (d/'3.table.json').write_text(wandb_table(rows))
def wandb_one(d):
    rows = [dict(step=f'{s}', prompt=asked(s, p), completion=f'answer {i}', reward=r)
        for s,p,i,r in answers()]
    (d/'4.table.json').write_text(wandb_table(rows))
def wandb_folder(d):   # a table for each step, deep in the folder of a run
    at = d/'run-1'/'files'/'media'/'table'
    at.mkdir(parents=True)
    for s in range(1, 5):
        rows = [dict(step=s, prompt=asked(s, p), completion=f'answer {i}', right=r, advantage=centred(r, p))
            for s_,p,i,r in answers() if s_==s]
        (at/f'completions_{s}_0f3c.table.json').write_text(wandb_table(rows))
def swift(d):
    lines(d/'completions.jsonl', batches(step=lambda s, *_: str(s), prompt=lambda s, p, *_: asked(s, p),
        completion=lambda s, p, i, r: f'answer {i}', MathAccuracy=lambda s, p, i, r: r,
        advantages=lambda s, p, i, r: centred(r, p)))
    lines(d/'logging.jsonl', [{'global_step/max_steps':f'{s}/4', 'reward':.25*s} for s in range(1, 5)])
def swift_older(d):
    lines(d/'completions.jsonl', batches(step=lambda s, *_: str(s), reward=lambda s, p, i, r: r,
        messages=lambda s, p, *_: [dict(role='user', content=asked(s, p))],
        completion=lambda s, p, i, r: f'answer {i}'))

DUMPS = (verl_v1, verl_v1_one_prompt, other_ids, wandb_parts, wandb_one, wandb_folder, swift,
    swift_older)
@pytest.mark.parametrize('make', DUMPS, ids=lambda f: f.__name__)
def test_groups_are_found_in_newer_dumps(make, tmp_path):
    make(tmp_path)
    run = open_run(tmp_path, dict(reward='form+right') if make is wandb_parts else None)
    assert run.steps==[1, 2, 3, 4] and [len(o['rewards']) for o in run.rows]==[G]*12
    for s in run.steps:
        of = {(o['dead'], np.mean(o['rewards'])) for o in run.by_step[s]}
        base = .5 if make is wandb_parts else 0.
        assert {(True, base), (True, 1+base)}<of and sum(not d for d,_ in of)==1
        living, = (o for o in run.by_step[s] if not o['dead'])
        assert living['rewards']==[base+r for t,p,_,r in answers() if (t, p)==(s, 1)]
        assert living['completions']==[f'answer {i}' for i in range(G)]
    if make is swift: assert run.history['reward'].tolist()==[.25, .5, .75, 1.]
    if make is wandb_parts: assert set(run.rows[0]['rewards_by_func'])=={'form','right'}

# ---- single rewards, and tables without a total

def trl_folder(d, **columns):
    "An output folder of TRL with two tables of completions; the second group of each is dead"
    (d/'completions').mkdir()
    for s in (1, 2):
        rows = [dict(step=s, prompt=f'{g}', completion=f'{s} {i}')|{k:f(g, i) for k,f in columns.items()}
            |dict(advantage=(-1.)**i*(g==0)) for g in range(2) for i in range(4)]
        pd.DataFrame(rows).to_parquet(d/f'completions/completions_0000{s}.parquet')
    log = [dict(step=s, reward=.5, loss=.1) for s in range(1, 5)]
    (d/'trainer_state.json').write_text(json.dumps(dict(log_history=log)))
    return d

def test_one_reward_function_is_the_reward_even_by_that_name_and_a_sum_is_asked_for(tmp_path):
    run = open_run(trl_folder(tmp_path, reward=lambda g, i: float(i%2) if g==0 else 1.))
    assert [o['rewards'] for o in run.rows]==[[0., 1., 0., 1.], [1.]*4]*2
    assert [o['dead'] for o in run.rows]==[False, True]*2 and run.notes==[]
    (tmp_path/'two').mkdir()
    both = trl_folder(tmp_path/'two', right=lambda g, i: float(i%2), form=lambda g, i: .5*i)
    run = open_run(both)
    assert run.rows==[] and len(run.history)==4 and any('--reward right+form' in o for o in run.notes)
    assert open_run(both, dict(reward='right+form')).rows[0]['rewards']==[0., 1.5, 1., 2.5]
    one = open_run(both, dict(reward='form')).rows[0]
    assert one['rewards']==[0., .5, 1., 1.5] and one['rewards_by_func'] is None

def test_a_reward_that_only_the_rollouts_have_stands_beside_what_the_log_has(tmp_path):
    "Both know the length, each in its own way: the log's counts, and its steps are no second launch"
    log = [{'step':s, 'response_length/mean':9., 'actor/pg_loss':.1} for s in (1, 2, 3)]
    lines(tmp_path/'metrics.jsonl', log)
    for s in (1, 2, 3):
        lines(tmp_path/f'{s}.jsonl', [dict(input='q', output=f'{i}', score=float(i<s), step=s,
            response_length=8) for i in range(4)])
    run = open_run(tmp_path)
    assert run.history['reward'].tolist()==[.25, .5, .75] and len(run.rows)==3
    assert run.history['completions/mean_length'].tolist()==[9.]*3 and run.notes==[]

def test_a_group_has_its_first_prompt_and_its_number_within_the_step():
    rows = [dict(step=s, group_id=g, prompt=f'{g} for the {i}th time', completion='a', reward=float(i))
        for s in (2, 1) for g in 'abc' for i in range(2)]
    groups,_,_ = rows_to_groups(rows)
    assert [(o['step'], o['group'], o['prompt']) for o in groups]==[
        (s, i, f'{g} for the 0th time') for s in (1, 2) for i,g in enumerate('abc')]
