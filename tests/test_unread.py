"What is not read is named, and of what is not in the record nothing is said: one rule for every reader"
import json, random
import pytest
from grpo_nb.see.findings import diagnose_rows
from grpo_nb.see.readers import diagnose, judge_run, open_run

def log(n, reward, first=1): return [dict(step=i, reward=reward, loss=reward/10) for i in range(first, n+1)]
LONG,SHORT = log(40, .8),log(20, .2)
def csv(rows):
    names = list(dict.fromkeys(k for o in rows for k in o))
    return '\n'.join([','.join(names), *(','.join(str(o.get(k, '')) for k in names) for o in rows)])
def lines(rows): return ''.join(json.dumps(o)+'\n' for o in rows)
def wide(a, b, name='{} - train/{}'):
    rows = {i:dict(Step=i) for i in range(1, 41)}
    for run,o in (('sun-1', a), ('sea-2', b)):
        for r in o: rows[r['step']] |= {name.format(run, k):r[k] for k in ('reward','loss')}
    return csv(rows.values())
def bars(rows, total):
    logged = [dict(reward=o['reward'], loss=o['loss']) for o in rows]
    return ''.join(f" 9%|#  | {o['step']}/{total} [00:10<01:00]\n{x}\n" for o,x in zip(rows, logged))
def epochs(rows, total): return '\n'.join(str(dict(reward=o['reward'], epoch=o['step']/total)) for o in rows)
def verl(rows):
    return '\n'.join(f"step:{o['step']} - critic/rewards/mean:{o['reward']} - actor/lr:1e-6" for o in rows)
def named(key, a, b): return [o|{key:'a'} for o in a]+[o|{key:'b'} for o in b]
GO_ON = log(60, .2, 31)   # from a checkpoint at step 30

# name: (file, text, the rewards that are read, what the note says)
TWO_RUNS = {
    'wide':('t.csv', wide(LONG, SHORT),
        [.8]*40, "2 runs, 'sun-1' (40 rows), 'sea-2' (20 rows): this is 'sun-1'"),
    'wide, of one length':('t.csv', wide(LONG, log(40, .2)),
        [.2]*40, "this is 'sea-2', and the others are not read"),
    'by row':('t.csv', csv(named('Run', LONG, SHORT)), [.8]*40, "holds 2 runs, 'a' (40 rows), 'b' (20 rows)"),
    'run_id':('t.jsonl', lines(named('run_id', SHORT, LONG)), [.8]*40, "this is 'b'"),
    'unnamed':('t.csv', csv(LONG+SHORT), [.2]*20, 'begin again at 1 after step 40: 40 rows before'),
    'unnamed, side by side':('t.csv', csv([o for p in zip(SHORT, LONG) for o in p]),
        [.8]*20, 'several values at 20 of'),
    'one header':('t.csv', csv(SHORT).replace('loss', 'reward', 1),
        [.02]*20, 'columns of one name, reward, the last'),
    'two names':('t.jsonl', lines([o|{'critic/score/mean':.5} for o in SHORT]),
        [.2]*20, "'critic/score/mean' is not read"),
    'console':('t.log', bars(LONG, 40)+bars(SHORT, 60), [.2]*20, 'begin again at 1 after step 40'),
    'console, resumed':('t.log', bars(LONG, 60)+bars(GO_ON, 60),
        [.8]*30+[.2]*30, 'logged again after step 40, by a resumed'),
    'console without bars':('t.log', epochs(LONG, 80)+epochs(SHORT, 60), [.2]*20, 'begin again at 1'),
    'verl, resumed':('t.log', verl(LONG)+'\n'+verl(GO_ON), [.8]*30+[.2]*30, 'by a resumed run'),
    'both':('t.log', verl(SHORT)+'\n'+bars(LONG, 40), [.2]*20, '40 lines as TRL prints them')}

@pytest.mark.parametrize('name', TWO_RUNS)
def test_of_two_runs_in_one_file_one_is_read_and_the_other_named(name, tmp_path):
    file,text,rewards,note = TWO_RUNS[name]
    (tmp_path/file).write_text(text)
    run = open_run(tmp_path/file)
    assert run.history['reward'].dropna().tolist()==pytest.approx(rewards)
    assert any(note in o for o in run.notes) and len(run.notes)==1, run.notes

def test_other_files_of_a_folder_are_named(tmp_path):
    (tmp_path/'a.csv').write_text(csv(LONG))
    for name in ('b.log', 'eval.jsonl', 'deep/c.log'):
        (tmp_path/name).parent.mkdir(exist_ok=True)
        (tmp_path/name).write_text('{"step": 1, "acc": 0.5}\n')
    notes = open_run(tmp_path).notes
    assert notes==['3 files of the folder are not read: b.log, deep/c.log, eval.jsonl.']
    state = tmp_path/'trl'
    state.mkdir()
    (state/'trainer_state.json').write_text(json.dumps(dict(log_history=LONG)))
    assert open_run(state).notes==[]
    (state/'eval.csv').write_text('step,acc\n1,.5\n')
    assert open_run(state).notes==['1 files of the folder are not read: eval.csv.']

# ---- evaluations among training

def test_rows_of_an_evaluation_are_left_out_and_counted(tmp_path):
    for key,value in (('split','val'), ('phase','Eval'), ('is_eval',True)):
        rows = [o for r in LONG for o in [r]+[dict(step=r['step'], reward=.1)|{key:value}]*(r['step']%10==0)]
        (tmp_path/'t.jsonl').write_text(lines(rows))
        run = open_run(tmp_path/'t.jsonl')
        assert run.history['reward'].tolist()==[.8]*40
        assert run.notes==['t.jsonl: 4 of 44 rows are of an evaluation and left out.']

def test_each_held_out_set_is_a_curve_of_its_own(tmp_path):
    "As TRL logs them: its columns are `eval_…` for every set, transformers' are named after the set"
    def row(step, name, x): return {'step':step, f'eval_{name}_loss':.1, f'eval_{name}_runtime':1.,
        'eval_reward':x, 'eval_rewards/judge/mean':x}
    rows = LONG+[row(s, k, x+s/100) for s in (10, 20) for k,x in (('easy', .9), ('hard', .1))]
    wandb = [{k.replace('eval_', 'eval/', 1):v for k,v in o.items()} for o in rows]
    (tmp_path/'trainer_state.json').write_text(json.dumps(dict(log_history=rows)))
    (tmp_path/'run.log').write_text('\n'.join(str(o) for o in rows))
    (tmp_path/'wandb.csv').write_text(csv(wandb))
    for file,sep in (('trainer_state.json','_'), ('run.log','_'), ('wandb.csv','/')):
        h = open_run(tmp_path/file).history
        assert h[f'eval{sep}easy_reward'].dropna().tolist()==pytest.approx([1., 1.1])
        assert h[f'eval{sep}hard_rewards/judge/mean'].dropna().tolist()==pytest.approx([.2, .3])
    one = dict(step=10, eval_loss=.1, eval_runtime=1., eval_reward=.4)
    (tmp_path/'run.log').write_text('\n'.join(str(o) for o in [*LONG, one]))
    assert open_run(tmp_path/'run.log').history['eval_reward'].dropna().tolist()==[.4]

def test_the_mean_of_a_run_is_no_loss_of_its_last_step(tmp_path):
    end = dict(train_runtime=3.1, train_loss=.777, epoch=1.)
    (tmp_path/'t.log').write_text(bars(LONG, 40)+str(end))
    (tmp_path/'t.jsonl').write_text(lines([*LONG, {f'train/{k}':v for k,v in end.items()}|dict(step=40)]))
    (tmp_path/'only.jsonl').write_text(lines([dict(step=i, train_loss=.1*i) for i in range(4)]))
    for file in ('t.log','t.jsonl'):
        run = open_run(tmp_path/file)
        assert run.history['loss'].tolist()[-1]==pytest.approx(.08) and run.notes==[]
    assert open_run(tmp_path/'only.jsonl').history['loss'].tolist()==pytest.approx([0., .1, .2, .3])

# ---- rollouts

def rollouts(reward=lambda i: float(i%2), **more):
    return [dict(step=s, prompt=f'{g}', completion=f'{i}', reward=reward(i))|more
        for s in (1, 2) for g in range(3) for i in range(4)]

ROLLOUTS = {
    'two runs':(rollouts(run='a')+rollouts(lambda i: 0., run='b'), "this is 'b'", 0.),
    'an evaluation':(rollouts()+[o|dict(split='test', reward=9.) for o in rollouts()[::4]],
        '6 of 30 rows are of an evaluation', .5),
    'metrics':(rollouts()+[dict(step=1, loss=.1)], '1 of 25 rows have no completion', .5),
    'two rewards':([o|dict(score=3.) for o in rollouts()], 'columns that are not read: score.', .5),
    'other columns':([o|dict(gts='4', format_reward=1.) for o in rollouts()],
        'columns that are not read: gts, format_reward.', .5),
    "columns with a reader's own names":(rollouts(rewards_by_func=[.5, .5], reward_weights=[1., 2.]),
        'columns that are not read: rewards_by_func, reward_weights.', .5),
    'advantages in words':(rollouts(advantage='high'), "advantage: 24 values are not numbers", .5),
    'lengths in words':(rollouts(n_tokens='12 tokens'), "length: 24 values are not numbers", .5),
    'flags in words':(rollouts(truncated='cut'), 'cut: 24 values are not true or false', .5)}

@pytest.mark.parametrize('name', ROLLOUTS)
def test_rows_that_are_no_rollouts_of_the_run_are_left_out(name, tmp_path):
    rows,note,mean = ROLLOUTS[name]
    (tmp_path/'t.jsonl').write_text(lines(rows))
    run = open_run(tmp_path/'t.jsonl')
    assert [len(o['rewards']) for o in run.rows]==[4]*6 and run.history['reward'].tolist()==[mean]*2
    assert note in run.notes[0] and len(run.notes)==1, run.notes

def test_steps_in_words_are_named_with_the_steps_that_stand_for_them(tmp_path):
    words = {1:'1,000', 2:'2,000'}
    (tmp_path/'t.jsonl').write_text(lines([o|dict(step=words[o['step']]) for o in rollouts()]))
    (tmp_path/'log.csv').write_text(csv([o|dict(step=f"{o['step']}k") for o in SHORT]))
    for file,n,text in (('t.jsonl', 24, '1,000'), ('log.csv', 20, '1k')):
        assert open_run(tmp_path/file).notes==[f'step: {n} values are not numbers and are left out, such as '
            f'{text!r}; these rows get a step by their place.']

def test_single_rewards_of_a_sum_in_words_are_named(tmp_path):
    rows = [o|dict(right='yes' if o['completion']=='0' else 1., form=0.) for o in rollouts()]
    (tmp_path/'t.jsonl').write_text(lines(rows))
    notes = open_run(tmp_path/'t.jsonl', dict(reward='right+form')).notes
    assert notes==["right: 6 values are not numbers and are left out, such as 'yes'.",
        'columns that are not read: reward.']

def test_a_note_on_many_files_is_there_once(tmp_path):
    for s in range(3): (tmp_path/f'{s}.jsonl').write_text(lines([o|dict(step=s, gts='4') for o in rollouts()
        if o['step']==1]))
    assert open_run(tmp_path).notes==['columns that are not read: gts (the same for 3 files).']

def test_groups_of_several_files_keep_apart_and_are_named(tmp_path):
    for name,x in (('a', 0.), ('b', 1.)):
        (tmp_path/f'{name}.jsonl').write_text(lines(rollouts(lambda i: x*(i%2))))
    run = open_run(tmp_path)
    assert [(o['step'], o['group']) for o in run.rows]==[
        (s, g) for a in (0, 3) for s in (1, 2) for g in range(a, a+3)]
    assert run.notes==['6 groups of one step and prompt are in several files, as of several runs (a.jsonl, '
        'b.jsonl): they are read as one run.']

# ---- no verdict from columns that are not there

def test_a_log_without_a_reward_has_no_verdict_until_it_is_named(tmp_path):
    rows = [dict(step=i, my_score=max(0., .6-.02*i), lr=1e-6, grad_norm=.3) for i in range(40)]
    (tmp_path/'t.csv').write_text(csv(rows))
    found = diagnose(tmp_path/'t.csv')
    assert found==[] and str(found).startswith('no verdict\n') and 'said of it: reward, zero-v' in str(found)
    v = judge_run(tmp_path/'t.csv')[0]
    assert v.learned is None and v.sentence=='No verdict: the record holds no reward.'
    for how in (dict(metrics=dict(reward='my_score')), dict(columns=dict(reward='my_score'))):
        assert diagnose(open_run(tmp_path/'t.csv', **how)).names==['reward-collapse']

def test_what_a_record_lacks_is_said_and_no_rule_fills_it_in(tmp_path):
    (tmp_path/'t.csv').write_text(csv([dict(step=i, reward=.3+.01*i) for i in range(20)]))
    lines = str(diagnose(tmp_path/'t.csv')).splitlines()
    assert lines==['nothing wrong to be seen in this record',
        'not in this record, so nothing is said of it: zero-variance groups, lengths of answers, loss and '
        'gradient']
    # the ratio is 1 and the buffer busy: whether groups lived is not in the record
    rows = [{'step':i, 'reward':.3, 'clip_ratio/ratio_max':1., 'ratio_max':1., 'replay/buffer_size':2.,
        'replay/replaced':9.} for i in range(30)]
    settings = dict(steps_per_generation=4)
    certain = {'ratio-always-1','few-groups-replayed'}
    assert not certain & {*diagnose_rows(rows, settings=settings).names}
    known = {'frac_reward_zero_std':.5, 'replay/dead':9., 'replay/live_before':.01}
    assert certain<={*diagnose_rows([o|known for o in rows], settings=settings).names}

def test_names_of_open_instruct_are_known(tmp_path):
    rows = [{'_step':i, 'scores':max(0., .6-.02*i), 'val/stop_rate':.02, 'val/sequence_lengths':900,
        'lr':1e-6, 'loss/policy_avg':.1} for i in range(1, 40)]
    (tmp_path/'t.csv').write_text(csv(rows))
    found = diagnose(tmp_path/'t.csv')
    assert found.names==['all-truncated'] and 'reward-collapse' in found[0].caused_here
    assert open_run(tmp_path/'t.csv').history['completions/clipped_ratio'].tolist()==pytest.approx([.98]*39)

# ---- files as Windows writes them

@pytest.mark.parametrize('encoding', ['utf-8-sig','utf-16'])
def test_marks_and_encodings_of_windows(encoding, tmp_path):
    def put(name, text):
        (tmp_path/name).parent.mkdir(exist_ok=True)
        (tmp_path/name).write_bytes(text.replace('\n', '\r\n').encode(encoding))
        return tmp_path/name
    logs = [put('t.csv', csv(LONG)), put('t.jsonl', lines(LONG)), put('t.log', bars(LONG, 40)),
        put('t.json', json.dumps(LONG)), put('o/history.jsonl', lines(LONG)).parent,
        put('s/trainer_state.json', json.dumps(dict(log_history=LONG))).parent]
    for f in logs:
        assert open_run(f).history['reward'].tolist()==[.8]*40 and open_run(f).notes==[], f
    assert [len(o['rewards']) for o in open_run(put('r.jsonl', lines(rollouts()))).rows]==[4]*6

# ---- damaged tables

def test_commas_in_a_cell_are_no_separators(tmp_path):
    (tmp_path/'t.tsv').write_text('step\treward\tname\n1\t.5\ta,b,c,d,e,f\n')
    assert open_run(tmp_path/'t.tsv').history['reward'].tolist()==[.5]

# ---- text without a telling name

@pytest.mark.parametrize('head', ['step,reward', 'my column,Another,loss', 'prompt,completion,score'])
def test_a_table_is_known_by_a_metric_or_by_two_columns_of_rollouts(head):
    from grpo_nb.see.readers.table import _kind
    assert _kind(f'{head}\n1,2,3\n', 'a text')=='.csv'
    for other in ('reward', 'prompt,of,mine', 'a,b,c'):
        with pytest.raises(ValueError, match='a text has no metrics that we know'): _kind(other, 'a text')

# ---- how much is named
def test_a_column_that_names_each_completion_names_no_runs():
    from grpo_nb.see.readers.table import only_one_run
    rows = [dict(run_id=f'{i}', prompt='3 + 4 =', reward=i%2) for i in range(8)]
    assert only_one_run(rows, 'a.csv', log=False)==(rows, [])
    two = [o|dict(run_id=o['run_id'] if i else '1') for i,o in enumerate(rows)]   # two of one run
    assert len(only_one_run(two, 'a.csv', log=False)[0])==2

@pytest.mark.parametrize('seed', range(24))
def test_the_longest_of_several_runs_is_read_and_six_are_named(seed):
    from grpo_nb.see.readers.table import only_one_run
    rng = random.Random(seed)
    sizes = {f'r{i}':rng.randint(1, 4) for i in range(rng.randint(1, 9))}
    rows = [dict(step=i, reward=i/4, seed=3)|dict(run=k) for k,n in sizes.items() for i in range(n)]
    rng.shuffle(rows)
    rows.append(dict(step=0, reward=9.))   # of no run
    order = list(dict.fromkeys(o['run'] for o in rows if 'run' in o))
    got,notes = only_one_run(rows, 'a.csv', log=True)
    if len(sizes)<2: return_all = (rows, [])
    else:
        longest = max(sizes.values())
        own = [k for k in order if sizes[k]==longest][-1]
        named = ', '.join(f'{k!r} ({sizes[k]} rows)' for k in order[:6])+' …'*(len(order)>6)
        return_all = [o for o in rows
            if o.get('run')==own],[f'a.csv holds {len(order)} runs, {named}: this is '
            f'{own!r}, and the others are not read.']
    assert (got, notes)==return_all

@pytest.mark.parametrize('seed', range(24))
def test_the_last_of_several_values_at_a_step_is_read_and_five_metrics_are_named(seed):
    from grpo_nb.see.readers.history import join_launches
    rng = random.Random(seed)
    names = rng.sample(['reward','loss','kl','entropy','grad_norm','learning_rate','eval_a','eval_b'],
        rng.randint(1, 8))
    rows,several = [],{}
    for step in range(rng.randint(1, 4)):
        rows.append(dict(step=step)|{k:.5 for k in names})
        for k in names:
            if rng.random()<.4:
                x = rng.choice([.5, .75])   # the same value again is none of several
                rows.append({'step':step, k:x})
                if x!=.5: several.setdefault(k, set()).add(step)
    run,notes = join_launches(rows)
    assert run==rows
    listed = ', '.join([*several][:5])+', …'*(len(several)>5)
    n = max(map(len, several.values()), default=0)
    assert notes==([f'{listed}: several values at {n} of the steps, of which the last is read.']
        if several else [])

@pytest.mark.parametrize('seed', range(24))
def test_launches_are_cut_where_training_is_logged_again(seed):
    "A run that goes on from where it was, and another that begins anew"
    from grpo_nb.see.readers.history import join_launches
    rng = random.Random(seed)
    rows,want,said,last = [],[],[],None
    for launch in range(rng.randint(1, 4)):
        first = 1 if last is None else rng.randint(1, last)
        n = rng.randint(first if last is None else 1, 6)
        new = [dict(step=first+i, reward=launch+i/8) for i in range(n)]
        rows += new
        if last is not None and first<last:
            if first>want[0]['step']:
                want = [o for o in want if o['step']<first]
                said.append(f'steps from {first} on were logged again after step {last}, by a resumed')
            else:
                said.append(f'the steps begin again at {first} after step {last}: {len(want)} rows before')
                want = []
        elif last is not None: return   # several values at one step
        want = want+new
        last = max(o['step'] for o in want)
    got,notes = join_launches(rows)
    assert got==want and len(notes)==len(said) and all(o.startswith(s) for o,s in zip(notes, said))
