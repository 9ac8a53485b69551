"""Records as other frameworks write them today, in their own folders: read whole, read damaged, and what is
left out said. The shapes are from their writers' code and documentation."""
import gzip, json, random, shutil, sqlite3
from contextlib import closing
from pathlib import Path
import pytest
from grpo_nb.see.readers import diagnose
from grpo_nb.inspector import inspector_html
from grpo_nb.see.readers import open_run
from view_pages import Opened

def lines(rows): return ''.join(json.dumps(o)+'\n' for o in rows)
def put(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(lines(rows))

CALL = dict(id='c1', type='function', name='add', arguments='{"a": 1}')   # flat, as verifiers writes it
SHOWN = [dict(role='system', content='Be short.'), dict(role='user', content='1+1='),   # a solved example
    dict(role='assistant', content='2')]
def conversation(g, i, by='tool'): return [
    *SHOWN, dict(role='user', content=f'{g}+1='),
    dict(role='assistant', content='', tool_calls=[CALL]), dict(role=by, content='2'),
    dict(role='assistant', content=f'answer {i}')]
def samples(): return [(s, g, i, float(i%2==g)) for s in (1, 2) for g in (0, 1) for i in range(4)]

def episode(s, g, i, r, marked=False):
    "Marked, its nodes say what was sampled, and a later turn of the user begins no new prompt."
    rewards = dict(right=dict(score=r, weight=1.), form=dict(score=1., weight=.2), judge=None)
    nodes = [dict(message=m) for m in conversation(g, i, 'user' if marked else 'tool')]
    if marked: nodes = [o|dict(sampled=k in (4, 6)) for k,o in enumerate(nodes)]
    trace = dict(id=f't{s}{g}{i}', task=dict(key=f'sums/{g}', hash='x'), rewards=rewards, nodes=nodes)
    return dict(id=f'e{s}{g}{i}', env=dict(id='sums'), task={}, group=dict(id=f'g{s}{g}'), ok=True, errors=[],
        run=dict(id='r', work=dict(type='train', step=s)), traces=[trace])

def prime(d):
    for s in (1, 2):
        rows = [episode(*o, marked=True) for o in samples() if o[0]==s]
        put(d/f'rollouts/step_{s}/train/all/traces.jsonl', rows)
        put(d/f'rollouts/step_{s}/train/effective/traces.jsonl', rows[:4])   # the same once more
        put(d/f'rollouts/step_{s}/eval/all/traces.jsonl', rows)
    return d/'rollouts'

def verifiers(d):
    put(d/'traces.jsonl', [episode(*o) for o in samples()])
    return d/'traces.jsonl'

def tinker(d):
    for s in (1, 2):
        rows = []
        for _,g,i,r in (o for o in samples() if o[0]==s):
            turns = conversation(g, i, 'user')
            trace = dict(prompt=dict(messages=turns[:4]), completion=dict(messages=turns[4:]))
            step = dict(step_idx=0, ob_len=9, ac_len=5+i, reward=r, episode_done=True, metrics={}, logs={},
                stop_reason='length' if i==3 else 'stop', trace=trace)
            rows.append(dict(schema_version=1, split='train', iteration=s, group_idx=g, traj_idx=i, tags=[],
                sampling_client_step=s, total_reward=r+.2, final_reward=.2, trajectory_metrics={},
                steps=[step], final_ob_len=20))
        put(d/f'iteration_{s:06d}/train_rollout_summaries.jsonl', rows)
        put(d/f'iteration_{s:06d}/eval_test_rollout_summaries.jsonl', rows)
    return d

def nemo(d):
    "A batch of one at a time, as its logger iterates, so each value stands in a list"
    for s in (1, 2):
        rows = [dict(content=[[f'{g}+1=', f'answer {i}']], rewards=[r+.2], input_lengths=[9], idx=k,
            advantages=[[0., 0., r-.5, r-.5]], generation_logprobs=[[0., 0., -1., -1.]])
            for k,(_,g,i,r) in enumerate(o for o in samples() if o[0]==s)]
        put(d/f'exp_001/train_data_step{s}.jsonl', rows)
    return d/'exp_001'

def trackio(d):
    file = d/'p.db'
    file.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(file)) as db:
        db.execute('create table metrics (id integer primary key, run_name text, step integer, metrics text)')
        db.execute('create table traces (id text, run_name text, step integer, messages text, metadata text)')
        for n,(s,g,i,r) in enumerate(samples()):
            about = dict(reward=r+.2, advantage=r-.5, group_id=10*s+g, completion_tokens=5)
            db.execute('insert into metrics values (?,?,?,?)', (n, 'run', s, json.dumps(dict(loss=.1))))
            db.execute('insert into traces values (?,?,?,?,?)',
                (f'{n}', 'run', s, json.dumps(conversation(g, i)), json.dumps(about)))
        db.commit()
    return file

def traces(d):
    "Of trackio, as lines and without the ids of groups"
    put(d/'traces.jsonl', [dict(messages=conversation(g, i), metadata=dict(reward=r+.2), step=s)
        for s,g,i,r in samples()])
    return d/'traces.jsonl'

MAKERS = dict(prime=prime, verifiers=verifiers, tinker=tinker, nemo=nemo, trackio=trackio, traces=traces)

@pytest.mark.parametrize('kind', MAKERS)
def test_records_of_others_become_groups(kind, tmp_path):
    run = open_run(MAKERS[kind](tmp_path))
    assert run.steps==[1, 2] and len(run.rows)==4
    unread = dict(prime='4 files of the folder are not read: step_1/eval/all', tinker='2 files of').get(kind)
    assert [o.startswith(unread) for o in run.notes]==[True] if unread else run.notes==[]
    for o in run.rows:
        g = int(o['prompt'].rsplit('+', 1)[0][-1])
        assert o['rewards']==pytest.approx([float(i%2==g)+.2 for i in range(4)])
        ends = [t.splitlines()[-1].split(': ')[-1] for t in o['completions']]
        assert ends==[f'answer {i}' for i in range(4)]
        if kind!='nemo':   # which keeps no turns
            by = 'user' if kind in ('prime','tinker') else 'tool'
            turns = ['assistant: → add({"a": 1})', f'{by}: 2', 'assistant: answer 0']
            assert o['completions'][0].splitlines()==turns
            asked = ['system: Be short.', 'user: 1+1=', 'assistant: 2', f'user: {g}+1=']
            assert o['prompt'].splitlines()==asked
        else: assert (o['prompt'], o['completions'])==(f'{g}+1=', [f'answer {i}' for i in range(4)])
        if kind=='tinker': assert o['n_tokens']==[5, 6, 7, 8] and o['truncated']==[False]*3+[True]
        if kind in ('nemo','trackio'): assert o['advantages']==[float(i%2==g)-.5 for i in range(4)]
        if kind=='prime': assert o['rewards_by_func']['right']==[float(i%2==g) for i in range(4)]
    assert inspector_html(run)

@pytest.mark.parametrize('damage', ['half a line', 'words', 'another shape'])
@pytest.mark.parametrize('kind', ['prime','verifiers','tinker','nemo'])
def test_a_damaged_record_is_read_as_far_as_it_goes(kind, damage, tmp_path):
    place = MAKERS[kind](tmp_path)
    names = 'traces.jsonl','train_rollout_summaries.jsonl','train_data_step1.jsonl'
    f = place if place.is_file() else sorted(o for o in place.rglob('*.jsonl') if o.name in names
        and 'eval' not in str(o) and 'effective' not in str(o))[0]
    text = f.read_text()
    if damage=='half a line': f.write_text(text[:-30])
    if damage=='words':
        for was in ('"score": 1.0', '"total_reward": 1.2', '"rewards": [1.2]'):
            text = text.replace(was, was.replace('1.0', '"high"').replace('1.2', '"high"'), 1)
        f.write_text(text)
    odd = dict(traces=3, group={}),dict(steps=None, group_idx=1),dict(content='text', rewards=[1.])
    if damage=='another shape': f.write_text(text+lines([*odd, dict(traces=[], group={})]))
    run = open_run(place)
    assert len(run.rows)==4 and run.steps==[1, 2]
    note = {'half a line':'could not be read', 'words':'', 'another shape':'left out'}[damage]
    assert any(note in n for n in run.notes)
    if damage=='words' and kind in ('tinker','nemo'):
        assert any("reward: 1 values are not numbers and are left out" in n for n in run.notes)
        assert sum(x is None for o in run.rows for x in o['rewards'])==1
    if damage=='another shape':
        assert sum(int(n.split()[2]) for n in run.notes if n.startswith('left out'))==4

@pytest.mark.parametrize('damage', ['half a line', 'words', 'another shape'])
def test_a_damaged_project_of_trackio_is_read_as_far_as_it_goes(damage, tmp_path):
    file = trackio(tmp_path)
    where = 'metadata' if damage=='words' else 'messages'
    with closing(sqlite3.connect(file)) as db:
        text, = db.execute(f'select {where} from traces order by rowid limit 1').fetchone()
        text = {'half a line':text[:20], 'another shape':'3',
            'words':text.replace('"reward": ', '"reward": "high", "was": ')}[damage]
        db.execute(f'update traces set {where} = ? where rowid = (select min(rowid) from traces)', [text])
        db.commit()
    run = open_run(file)
    assert len(run.rows)==4 and run.steps==[1, 2]
    assert sum(x is not None for o in run.rows for x in o['rewards'])==15
    says = 'reward: 1 values are not numbers' if damage=='words' else 'p.db: 1 records could not be read'
    assert any(says in o for o in run.notes), run.notes

def test_what_a_project_of_trackio_holds_besides_is_counted(tmp_path):
    file = trackio(tmp_path)
    tables = dict(_type='trackio.table', _value=[dict(a=1)]),dict(_type='trackio.image', path='a.png')
    with closing(sqlite3.connect(file)) as db:
        logged = json.dumps(dict(zip('ab', tables)))
        db.execute('insert into metrics values (?,?,?,?)', (99, 'run', 2, logged))
        db.commit()
    run = open_run(file)
    assert len(run.rows)==4 and run.notes==['p.db: 2 logged objects have no completions and are not read.']

def test_the_weights_of_an_episodes_rewards_are_kept(tmp_path):
    "A wide reward of a small weight does not drown the other"
    rows = []
    for s,i in ((s, i) for s in range(8) for i in range(8)):
        rewards = dict(right=dict(score=float(i%2), weight=2.), tokens=dict(score=40.*(i//2), weight=.01))
        o = episode(s, 0, i, 0.)
        rows.append(o|dict(traces=[o['traces'][0]|dict(rewards=rewards)]))
    put(tmp_path/'traces.jsonl', rows)
    run = open_run(tmp_path/'traces.jsonl')
    assert run.setting('reward_weights')==[2., .01]
    assert run.rows[0]['rewards']==pytest.approx([2*(i%2)+.4*(i//2) for i in range(8)])
    assert 'one-reward-drowns' not in diagnose(run).names

def test_columns_of_other_names_are_options(tmp_path, capsys):
    from grpo_nb.cli import main
    rows = [dict(question=f'{g}', said=f'{i}', points=0., turn=s)
        for s in range(12) for g in (0, 1) for i in range(4)]
    put(tmp_path/'t.jsonl', rows)
    with pytest.raises(SystemExit): main(['inspect', str(tmp_path/'t.jsonl'), '--prompt', 'question'])
    message = capsys.readouterr().err
    assert 'no column for completion' in message and '--completion COLUMN' in message
    named = ['--prompt', 'question', '--completion', 'said', '--reward', 'points', '--step', 'turn']
    main(['inspect', str(tmp_path/'t.jsonl'), *named])
    assert (tmp_path/'inspector.html').exists()
    capsys.readouterr()
    main(['diagnose', str(tmp_path/'t.jsonl'), '--json', *named])
    assert [o['name'] for o in json.loads(capsys.readouterr().out)]==['reward-never-fires']

# ---- tokens, branches and limits of verifiers 0.4

def node(role, text, parent=None, ids=(), **kw):
    "A message of a trace; the log-probs of a sampled one are -.1, -.2, ..., its trainer's `apart` lower."
    n,sampled,apart = len(ids),bool(ids),kw.pop('apart', .05)
    logps = [-.1*(j+1) for j in range(n)]
    known = dict(logprobs=logps, trainer_logprobs=[x-apart for x in logps], entropies=[.3]*n,
        advantages=[kw.pop('A', 0.)]*n) if sampled else dict(logprobs=[])
    return dict(parent=parent, message=dict(role=role, content=text), sampled=sampled, semantic_parents=[],
        token_ids=[9, *ids], mask=[False]+[True]*n, **known)|kw

def with_nodes(d, nodes, steps=1, **trace):
    "Four answers to each of two questions in each step; `nodes(r, g)` makes a trace, of reward `r`."
    rows = []
    for s,g,i in ((s, g, i) for s in range(steps) for g in (0, 1) for i in range(4)):
        o = episode(s, g, i, r := float(i%2==g))
        more = {k:v(i) if callable(v) else v for k,v in trace.items()}
        rows.append(o|dict(traces=[o['traces'][0]|dict(nodes=nodes(r, g))|more]))
    put(d/'traces.jsonl', rows)
    return open_run(d/'traces.jsonl')

def chain(r, g, **kw):
    return [node('user', f'{g}+1='), node('assistant', 'let me see', 0, (5, 6), A=r-.5, **kw),
        node('tool', '2', 1), node('assistant', str(r), 2, (7,), A=r-.5, **kw)]

def test_what_a_trace_knows_of_its_tokens_is_read(tmp_path):
    run = with_nodes(tmp_path, chain)
    o = run.rows[0]
    assert o['tokens'][0]==['⟨5⟩','⟨6⟩','⟨7⟩'] and o['logps'][0]==[-.1, -.2, -.1]
    assert o['n_tokens']==[3]*4
    assert o['token_logps']['policy'][1]==pytest.approx([-.15, -.25, -.15])
    assert o['advantages']==[.5, -.5, .5, -.5]
    assert run.history['sampling/sampling_logp_difference/mean'].tolist()==pytest.approx([.05])
    assert run.history['entropy'].tolist()==pytest.approx([.3])
    assert 'completions/clipped_ratio' not in run.history   # it does not say what ended an answer
    assert inspector_html(run)

def test_a_sampler_that_disagrees_is_named_with_the_token(tmp_path):
    far = lambda r, g: chain(r, g, apart=.3 if r else .9)
    found = {f.name:f for f in diagnose(with_nodes(tmp_path, far, 12))}
    assert 'token 2, -0.2 nats by the sampler and -1.1 by the trainer' in found['sampler-disagrees'].evidence
    (tmp_path/'b').mkdir()
    assert 'sampler-disagrees' not in [f.name for f in diagnose(with_nodes(tmp_path/'b', chain, 12))]

@pytest.mark.parametrize('seed', range(30))
def test_a_batch_in_one_record_is_a_row_for_each_answer_or_named(seed):
    from grpo_nb.see.readers import table_rows
    rng = random.Random(seed)
    n = rng.randint(1, 3)
    o = dict(prompt=[f'q{i}' for i in range(n)], completion=[f'a{i}' for i in range(n)], step='7')
    names = rng.sample(['score','advantages','fluency'], rng.randint(0, 3))
    for k in names: o[k] = [i/4 for i in range(n+rng.choice([0, 0, 0, 1, -1]))]
    odd = [k for k in names if len(o[k])!=n]
    rows,notes = table_rows([dict(prompt='one', completion='text'), o])
    assert rows[0]==dict(prompt='one', completion='text')
    if odd:
        assert rows[1:]==[] and notes==[f'left out 1 of 2 records: a batch of {n} completions with '
            f'{len(o[odd[0]])} values of `{odd[0]}`.']
    else: assert rows[1:]==[{k:v if k=='step' else v[i] for k,v in o.items()} for i in range(n)] and notes==[]

@pytest.mark.parametrize('seed', range(40))
def test_an_answer_is_cut_off_if_a_limit_ended_its_last_call(seed):
    from grpo_nb.see.readers.verifiers import episode_rows
    rng = random.Random(seed)
    trace,calls = dict(nodes=chain(1., 0)),[]
    for _ in range(rng.randint(0, 3)):
        reason,failed = rng.choice([None, 'stop', 'length', 'length']),rng.random()<.2
        calls.append(dict(node=1, finish_reason=reason)|(dict(error=dict(type='E')) if failed else {}))
    ends = [o['finish_reason'] for o in calls if 'error' not in o and o['finish_reason']]
    if rng.random()<.7: trace['calls'] = calls
    else: ends = []
    if rng.random()<.5: trace['stop_condition'] = rng.choice([None, 'done', 'max_turns', 'max_total_tokens'])
    row, = episode_rows(dict(traces=[trace]))
    stop = trace.get('stop_condition') or ''
    if not ends and 'stop_condition' not in trace: assert 'is_truncated' not in row   # it does not say
    else: assert row['is_truncated']==(stop.startswith('max') or bool(ends) and ends[-1]=='length')

def test_traces_that_branch_and_lists_of_unequal_length_are_counted(tmp_path):
    forks = [*chain(0., 1)[:3], node('assistant', 'second', 0, (7,))],chain(0., 1)[1:]
    for k,nodes in enumerate(forks):
        (tmp_path/f'{k}').mkdir()
        run = with_nodes(tmp_path/f'{k}', lambda r, g: nodes if g else chain(r, g))
        assert len(run.rows)==1 and 'left out 4 of 8 records: a trace that branches.' in run.notes
    run = with_nodes(tmp_path, lambda r, g: chain(r, g, trainer_logprobs=[0.]*5) if g else chain(r, g))
    assert any(n.startswith('1 of 2 groups have token lists that are missing') for n in run.notes)
    assert [bool((o.get('token_logps') or {}).get('policy')) for o in run.rows]==[True, False]
    assert run.rows[1]['n_tokens']==[3]*4

# ---- files that the packages themselves wrote (`made_records.py` says how), and options of other names

OTHERS = Path(__file__).parent/'runs'/'others'
MADE = {'trackio-0.43':None, 'trl-async':[4, 5, 6, 7], 'verl-0.9':None, 'tinker-0.6':[5, 6, 7, 8]}

def made_by_them(name, d):
    "The file or folder, unpacked where it is a database."
    if (OTHERS/name).is_dir(): return shutil.copytree(OTHERS/name, d/name)
    (d/f'{name}.db').write_bytes(gzip.decompress((OTHERS/f'{name}.db.gz').read_bytes()))
    return d/f'{name}.db'

@pytest.mark.parametrize('name', MADE)
def test_what_a_package_wrote_is_read_as_it_meant_it(name, tmp_path):
    run = open_run(made_by_them(name, tmp_path))
    assert [(o['step'], o['group'], o['dead']) for o in run.rows]==[
        (s, g, g==2) for s in (1, 2) for g in range(3)]
    assert [o['rewards'] for o in run.rows[:3]]==[[0., 1., 0., 1.], [1., 0., 1., 0.], [0.]*4]
    if name!='tinker-0.6':   # it holds no texts
        assert run.rows[0]['completions']==[f'It is {i}.' for i in range(4)]
    assert run.rows[0]['n_tokens']==MADE[name]
    if name=='trl-async': assert run.rows[1]['advantages']==[.5, -.5, .5, -.5]
    assert Opened(inspector_html(run)).B==3

def test_two_runs_of_one_name_are_two(tmp_path):
    file = made_by_them('trackio-0.43', tmp_path)
    with closing(sqlite3.connect(file)) as db, db:
        for what in ('metrics', 'traces'):
            there = [o[1] for o in db.execute(f'pragma table_info({what})')]
            kept = [o for o in there if o not in ('id','run_id','log_id')]
            fresh = "'again'||id, 'again'" if what=='traces' else "null, 'again'"
            names = ', '.join(kept)
            db.execute(f'insert into {what} (id, run_id, {names}) select {fresh}, {names} from {what}')
    run = open_run(file)
    assert len(run.rows)==6 and [len(o['rewards']) for o in run.rows]==[4]*6
    assert any("holds 2 runs; this is 'run'. Not read: run." in o for o in run.notes)

def test_metrics_of_other_names_are_an_option(tmp_path, capsys):
    from grpo_nb.cli import main
    rows = [dict(step=s, my_score=0., other=.5, mystery=1e-6*s) for s in range(1, 30)]
    put(tmp_path/'log.jsonl', rows)
    with pytest.raises(ValueError, match='no metric that we know'): open_run(tmp_path/'log.jsonl')
    run = open_run(tmp_path/'log.jsonl', metrics=dict(reward='my_score', learning_rate='mystery'))
    assert run.history.reward.tolist()==[0.]*29 and run.history.learning_rate.iloc[-1]==pytest.approx(2.9e-5)
    main(['diagnose', str(tmp_path/'log.jsonl'), '--json', '--metrics', 'reward=my_score'])
    assert [o['name'] for o in json.loads(capsys.readouterr().out)]==['reward-never-fires']
    for odd,says in (('reward=nothing', "no metric 'nothing'"), ('score=my_score', "names 'score'"),
            ('reward', 'OURS=THEIRS')):
        with pytest.raises(SystemExit): main(['diagnose', str(tmp_path/'log.jsonl'), '--metrics', odd])
        assert says in capsys.readouterr().err

# ---- bad input: named and counted

def test_a_record_of_ours_that_cannot_be_read_is_refused_and_not_left_out(tmp_path):
    put(tmp_path/'metrics.jsonl', [dict(step=1, reward=1.)])
    (tmp_path/'groups.jsonl').write_text('{"step": 0, "group": 0, "rew')
    with pytest.raises(ValueError, match=r'groups\.jsonl: .* holds no record'): open_run(tmp_path)

def test_an_empty_file_is_called_empty_and_what_several_files_lack_is_said_once(tmp_path):
    (tmp_path/'t.jsonl').write_text('\n')
    with pytest.raises(ValueError, match='t.jsonl is empty'): open_run(tmp_path/'t.jsonl')
    at = tinker(tmp_path/'run')
    for f in at.rglob('train*.jsonl'): f.write_text(f.read_text()[:-9])
    notes = open_run(at).notes
    note = 'summaries.jsonl: 1 lines could not be read and are left out (the same for 2 files).'
    assert any(o.endswith(note) for o in notes)
