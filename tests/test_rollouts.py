"Other people's rollouts and logs, made on the spot in each project's layout"
import json, math
from pathlib import Path
import numpy as np, pandas as pd, pytest
from grpo_nb.see.readers import diagnose
from grpo_nb.inspector import inspector_html
from grpo_nb.run.record import Recorder, group_rows
from grpo_nb.see.readers import as_history, filter_note, find_columns, groups_of, open_run, our_name
from view_pages import Opened

def lines(path, rows, end=''):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(json.dumps(o)+'\n' for o in rows)+end)

def check(path, steps=(1, 2), reward=(1., 0., 1., 0.)):
    run = open_run(path)
    assert run.steps==list(steps) and len(run.rows)==2*len(steps)
    for s in steps:
        g = run.by_step[s]
        assert [o['rewards'] for o in g] == [pytest.approx(list(reward)), [0.0] * 4] and g[0]['completions'][
            :2
        ] == ['two', 'three']
        assert '1 + 1' in g[0]['prompt']
    o = Opened(inspector_html(path))
    assert o.state().tolist()==[[1, 3]]*len(steps)
    return run

def samples(s, text=lambda t: t, prompt=lambda t: t):
    "Two prompts of four: one living, one all wrong"
    for i,(q,r) in enumerate([('1 + 1', 1.), ('1 + 1', 0.), ('1 + 1', 1.), ('1 + 1', 0.)]+[('2 + 5', 0.)]*4):
        yield s,i,prompt(f'{q} ='),text(['two','three','two','nine'][i%4]),r

def test_verls_dump(tmp_path):
    for s in (2, 1):
        lines(tmp_path / f'{s}.jsonl',
              [dict(input=q, output=t, gts='2', score=r, step=s, acc=r) for _, i, q, t, r in samples(s)],
              end='{"input": "1')
    run = check(tmp_path)
    assert run.rows[0]['rewards_by_func'] == {'acc': [1.0, 0.0, 1.0, 0.0]} and any('could not be read' in n
        for n in run.notes)
    assert run.history['reward'].tolist() == [0.25, 0.25] and run.history[
        'frac_reward_zero_std'
    ].tolist() == [0.5, 0.5]

def test_prime_rls_rollouts(tmp_path):
    chat = lambda role: lambda t: [dict(role=role, content=t)]
    for s in (1, 2):
        lines(tmp_path / 'rollouts' / f'step_{s}' / 'train_rollouts.jsonl',
              [dict(example_id=i // 4, prompt=q, completion=t, reward=r, advantage=r - 0.5, task='sum',
                    is_truncated=False) for _, i, q, t, r in samples(s, chat('assistant'), chat('user'))])
    run = check(tmp_path/'rollouts')
    assert run.rows[0]['advantages']==[.5, -.5, .5, -.5] and run.rows[0]['truncated']==[False]*4

def test_trls_completions(tmp_path):
    (tmp_path/'completions').mkdir()
    for k,s in ((1, 1), (2, 1), (3, 2)):   # the second file logs the first generation once more
        df = pd.DataFrame([dict(step=s if k != 2 else 9, prompt=q, completion=t, right=r, short=0.0,
                                advantage=r - 0.5) for _, i, q, t, r in samples(s)])
        if s==2: df['completion'] = [t+'' for t in df['completion']]; df.loc[7, 'completion'] = 'other'
        df.to_parquet(tmp_path/'completions'/f'completions_{k:05d}.parquet')
    run = check(tmp_path)
    assert run.rows[0]['rewards_by_func']['right']==[1., 0., 1., 0.]

@pytest.mark.parametrize('ext', ['jsonl','json','csv','parquet'])
def test_a_plain_table_with_columns_named(tmp_path, ext):
    df = pd.DataFrame([dict(q=q, a=t, points=r, when=s) for s in (1, 2) for _,i,q,t,r in samples(s)])
    f = tmp_path/f'mine.{ext}'
    dict(jsonl=lambda: df.to_json(f, orient='records', lines=True),
         json=lambda: df.to_json(f, orient='records'), csv=lambda: df.to_csv(f),
         parquet=lambda: df.to_parquet(f))[ext]()
    with pytest.raises(ValueError, match='no column for prompt, completion, reward'): open_run(f)
    run = open_run(f, columns=dict(prompt='q', completion='a', reward='points', step='when'))
    assert run.steps==[1, 2] and run.rows[0]['rewards']==[1., 0., 1., 0.]

def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(ValueError, match='no folder'): open_run(tmp_path/'none')
    with pytest.raises(ValueError, match='holds no record'): open_run(tmp_path)
    lines(tmp_path/'a'/'1.jsonl', [dict(input='q', output='x', score=1.)])
    with pytest.raises(ValueError, match='has no groups.*1 completions stand alone'): open_run(tmp_path/'a')
    (tmp_path/'b').mkdir(); (tmp_path/'b'/'1.parquet').write_bytes(b'no parquet')
    with pytest.raises(ValueError, match='could not be read'): open_run(tmp_path/'b')
    with pytest.raises(ValueError, match='no such columns'): find_columns(['a'], dict(reward='b'))
    with pytest.raises(ValueError, match='`columns` names'): find_columns(['a'], dict(colour='a'))

def test_columns_of_the_wrong_type_and_hostile_text_are_shown(tmp_path):
    evil = '<script>alert(1)</script>'
    lines(tmp_path / '1.jsonl', [dict(input=evil, output=o, score=s)
                                 for o, s in ((3, '1.0'), (None, 'x'), ({'content': evil}, None),
                                              (['a'], 0))])
    run = open_run(tmp_path)
    assert run.rows[0]['rewards']==[1., None, None, 0.] and run.rows[0]['completions'][2]==evil
    assert evil not in inspector_html(run)

def test_their_filter_is_counted():
    assert filter_note([dict(rewards=[1., 1.]), dict(rewards=[0., 1.])])==''
    assert '1 of 2 dead groups' in filter_note([dict(rewards=[.1]*8), dict(rewards=[1.]*8)])
    said = filter_note([dict(rewards=[.1]*8), dict(rewards=[1.]*8), dict(rewards=[.1]*7+[.1+1e-8])])
    assert '2 of 3' in said and 'in 1 the rewards are equal and only their deviation is rounded' in said
    assert 'in 1 the rewards differ by rounding alone' in said

def test_our_own_folders_stay_ours(tmp_path):
    rec = Recorder(tmp_path)
    rec.log(dict(step=1, reward=0.5))
    rec.groups(1, group_rows(1, ['q'], ['a', 'b'], [[0.0, 1.0]]))
    assert open_run(tmp_path).rows[0]['prompt']=='q' and open_run(tmp_path).notes==[]

# ---- logs

CUT = [dict(step=i, reward=0., frac=1., clipped=1.) for i in range(12)]

def test_verls_metrics(tmp_path):
    lines(tmp_path / 'm.jsonl', [dict(step=o['step'],
                                      data={'critic/rewards/mean': o['reward'],
                                            'response_length/clip_ratio': o['clipped'], 'actor/lr': 1e-6})
                                 for o in CUT])
    assert diagnose(tmp_path/'m.jsonl').names==['all-truncated']

def test_a_csv_of_wandb(tmp_path):
    pd.DataFrame(
        {'Step': range(12), 'run 7 - train/reward': 0.0, 'run 7 - train/completions/clipped_ratio': 1.0}
    ).to_csv(tmp_path / 'export.csv')
    assert diagnose(tmp_path/'export.csv').names==['all-truncated']

def test_tensorboards_events(tmp_path):
    tb = pytest.importorskip('tensorboard.summary.writer.event_file_writer')
    from torch.utils.tensorboard import SummaryWriter
    w = SummaryWriter(str(tmp_path))
    for o in CUT:
        w.add_scalar('train/reward', o['reward'], o['step'])
        w.add_scalar('train/completions/clipped_ratio', 1., o['step'])
    w.close()
    assert diagnose(tmp_path).names==['all-truncated']

def test_trls_state_still_is(tmp_path):
    log = [{'step':o['step']+1, 'reward':0., 'completions/clipped_ratio':1., 'loss':0.} for o in CUT]
    (tmp_path/'trainer_state.json').write_text(json.dumps(dict(log_history=log)))
    assert diagnose(tmp_path/'trainer_state.json').names==['all-truncated']

def test_a_log_without_a_known_metric_says_what_it_found(tmp_path):
    (tmp_path/'a.csv').write_text('step,weather\n1,2\n')
    with pytest.raises(ValueError, match='no metric that we know.*weather'): open_run(tmp_path/'a.csv')
    with pytest.raises(ValueError, match='holds no record'):
        open_run((tmp_path/'empty').mkdir() or tmp_path/'empty')

NAMES = [('train/kl', 'kl'), ('actor/pg_clipfrac', 'clip_ratio/region_mean'), ('eval_reward', 'eval_reward'),
    ('val/test_score/gsm8k', 'eval/test_score/gsm8k'), ('response_length/mean', 'completions/mean_length'),
    ('rewards/right/mean', 'rewards/right/mean')]
@pytest.mark.parametrize('theirs,ours', NAMES)
def test_names(theirs, ours): assert our_name(theirs)==ours

# ---- trackio and OpenRLHF, as their documentation says they write

def trackio(path, runs):
    "A project: {run: what each call of `log` was given}; tables as trackio packs them, nan as it spells it"
    from contextlib import closing
    import sqlite3
    def packed(o):
        if isinstance(o, list): return {'_type':'trackio.table', '_value':o}
        return 'NaN' if isinstance(o, float) and math.isnan(o) else o
    with closing(sqlite3.connect(path)) as db:
        db.execute('create table metrics (id integer primary key, run_id text, timestamp text, '
            'run_name text, step integer, metrics text, log_id text, space_id text)')
        for run,rows in runs.items():
            for i,o in enumerate(rows):
                said = json.dumps({k:packed(v) for k,v in o.items()})
                db.execute('insert into metrics (run_id, timestamp, run_name, step, metrics) '
                    'values (?,?,?,?,?)', (run, '', run, i, said))
        db.commit()
    return path

def test_a_trackio_project_gives_the_newest_runs_metrics_and_completions(tmp_path):
    table = lambda s: [dict(step=str(s), prompt=q, completion=t if i<2 else f'{t} {s}', right=r,
                            advantage=r-.5) for s,i,q,t,r in samples(s)]
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

# ---- several logs, or several values of a step: the last one counts ----
def test_of_several_values_in_a_step_the_last_one_counts():
    h = as_history([dict(step=1, reward=.1, kl=.5), dict(step=2, reward=.2), dict(step=1, reward=.9)])
    assert h.to_dict('records')==[dict(step=1, reward=.9, kl=.5), dict(step=2, reward=.2, kl=pytest.approx(
        math.nan, nan_ok=True))]

def events(folder, rows):
    "Event files of tensorboard, one for each call."
    SummaryWriter = pytest.importorskip('torch.utils.tensorboard').SummaryWriter
    with SummaryWriter(str(folder)) as w:
        for step,reward in rows: w.add_scalar('train/reward', reward, step)

def test_of_several_event_logs_the_last_folder_is_read(tmp_path):
    for day,reward in (('nov01', .1), ('nov02', .2), ('nov03', .7)):
        events(tmp_path/'logs'/day, [(1, reward), (2, reward+.1)])
    assert open_run(tmp_path).history['reward'].tolist()==pytest.approx([.7, .8])

def test_a_resumed_run_of_two_event_files_says_what_the_second_says(tmp_path):
    events(tmp_path, [(1, .1), (2, .2), (3, .3)])
    at = next(tmp_path.glob('events*'))
    at.rename(at.with_name('events.out.tfevents.0000000001.here'))
    events(tmp_path, [(2, .6), (3, .7), (4, .8)])
    assert open_run(tmp_path).history['reward'].tolist()==pytest.approx([.1, .6, .7, .8])

def test_two_answers_are_a_group_one_is_none_and_a_gap_in_the_advantages_leaves_them_out():
    rows = [dict(prompt=p, completion=c, reward=r, advantage=a)
        for p,c,r,a in (('a','1',0.,-1.), ('a','2',1.,1.), ('b','1',0.,-1.), ('b','2',1.,None),
            ('c','1',1.,0.))]
    groups,alone = groups_of(rows)
    assert [(o['prompt'], o['rewards'], o['advantages']) for o in groups]==[
        ('a', [0., 1.], [-1., 1.]), ('b', [0., 1.], None)] and alone==1

def test_rewards_that_differ_by_rounding_alone_are_a_dead_group_of_a_foreign_table(tmp_path):
    rows = [dict(prompt=p, completion=c, reward=r)
        for p,c,r in (('a','1',.1+.2), ('a','2',.3), ('b','1',0.), ('b','2',1.))]
    (tmp_path/'rollouts.jsonl').write_text(''.join(json.dumps(o)+'\n' for o in rows))
    got = open_run(tmp_path/'rollouts.jsonl').rows
    assert [(o['dead'], o['why']) for o in got]==[(True, 'float-noise'), (False, None)]

def test_all_wrong_and_all_right_are_the_ends_of_the_files_own_scale(tmp_path):
    both = dict(wrong=(-1., -1.), right=(2., 2.), mixed=(-1., 2.), half=(1., 1.), nothing=(0., 0.))
    rows = [dict(prompt=p, completion=f'{i}', reward=r) for p,o in both.items() for i,r in enumerate(o)]
    (tmp_path/'rollouts.jsonl').write_text(''.join(json.dumps(o)+'\n' for o in rows))
    got = {o['prompt']:o['why'] for o in open_run(tmp_path/'rollouts.jsonl').rows}
    assert got==dict(wrong='all-wrong', right='all-right', mixed=None, half='equal', nothing='equal')

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
