"The record of a run: written whole, read at any moment, small."
import itertools, json, math, pathlib, tempfile
from pathlib import Path
import numpy as np, pytest, torch
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from grpo_nb.run.reading import read_run
from grpo_nb.run.record import (
    GROUP_FIELDS, RATIO_EDGES, Recorder, as_text, dataset_info, group_rows, ratio_hists, to_jsonable,
    to_jsonl, token_fields)
from another import elsewhere

def rows_of(step, B=4, G=3, **kw):
    return group_rows(step, [f'q{b}' for b in range(B)], [f'a{b}{g}' for b in range(B) for g in range(G)],
                      torch.arange(B * G).view(B, G).float(), **kw)

@pytest.fixture
def run(tmp_path):
    rec = Recorder(tmp_path/'run', settings=dict(seed=0))
    for s in range(1, 6):
        rec.log(dict(step=s, loss=.5, reward=s/10)); rec.write_groups(s, rows_of(s))
    return tmp_path/'run'

def test_what_is_written_comes_back(run):
    r = read_run(run)
    assert r.history.step.tolist()==[1,2,3,4,5] and r.history.reward.tolist()==[.1,.2,.3,.4,.5]
    assert list(r.groups.columns)==GROUP_FIELDS and len(r.groups)==20 and r.steps==[1,2,3,4,5]
    row = r.groups[(r.groups.step==3)&(r.groups.group==2)].iloc[0]
    assert row.prompt=='q2' and row.completions==['a20','a21','a22'] and row.rewards==[6.,7.,8.]
    assert r.settings['seed']==0 and r.settings['versions']['torch'] and r.notes==[] and r.name=='run'

def test_every_float32_comes_back_to_the_last_bit():
    x = torch.cat([torch.rand(5000), torch.randn(5000)*1e-20, torch.randn(5000)*1e20])
    assert torch.tensor(json.loads(json.dumps(to_jsonable(x)))).equal(x)

@pytest.mark.parametrize('text', ['a\nb\r\n\u2028c', 'ja 好 🎉 \x00\x1b', '\ud800 lone surrogate',
    'x'*200_000])
def test_any_text_is_one_line_and_comes_back(tmp_path, text):
    rec = Recorder(tmp_path); rec.write_groups(1, group_rows(1, ['q'], [text, 'b'], [[1., 0.]]))
    assert (tmp_path/'groups.jsonl').read_bytes().count(b'\n')==1
    got = read_run(tmp_path).groups.iloc[0].completions[0]
    assert got==text or '\ud800' in text and 'lone surrogate' in got

def test_a_new_record_moves_an_old_one_aside_and_leaves_its_checkpoints(run):
    (run/'checkpoint-3').mkdir(); Recorder(run).summary(seed=1)
    Recorder(run).log(dict(step=1))
    r = read_run(run)
    assert len(r.groups) == 0 and len(r.history) == 1 and r.summary == {} and (run / 'checkpoint-3').is_dir()
    assert len(read_run(run/'earlier-1').history)==5
    assert json.loads((run/'earlier-2'/'summary.json').read_text())['seed']==1

def test_a_folder_is_made_with_those_above_it(tmp_path):
    r = Recorder(tmp_path/'of'/'all', settings={})
    assert (tmp_path/'of'/'all'/'settings.json').exists()
    r.close()

def test_groups_may_differ_in_size_and_one_may_hold_nothing():
    for first,last in (([], ['a', 'b']), (['a', 'b'], []), (['a'], ['b', 'c'])):
        rows = group_rows(1, ['p', 'q'], [first, last], [[1.]*len(first), [0.]*len(last)],
            n_tokens=[[3]*len(first), [4]*len(last)])
        assert [o['completions'] for o in rows]==[first, last]
        assert [o['rewards'] for o in rows]==[[1.]*len(first), [0.]*len(last)]
        assert [o['n_tokens'] for o in rows]==[[3]*len(first), [4]*len(last)]

@pytest.mark.parametrize('where', ['trainer_state.json', 'checkpoint-10/trainer_state.json'])
def test_a_trl_folder_gives_history_without_groups(tmp_path, where):
    for f in ('checkpoint-9/trainer_state.json', where):
        (tmp_path/f).parent.mkdir(exist_ok=True)
        n = 10 if f==where else 9
        log = [dict(step=s, reward=.1, frac_reward_zero_std=.5) for s in range(1, n+1)]
        (tmp_path/f).write_text(json.dumps(dict(log_history=log+[dict(step=n, train_runtime=3.)])))
    for o in (tmp_path, (tmp_path/where) if where=='trainer_state.json' else tmp_path):
        r = read_run(o)
        assert len(r.history) == 10 and len(r.groups) == 0 and r.history.train_runtime.tolist()[-1] == 3

@pytest.mark.parametrize('kw,say', [(dict(rewards=torch.zeros(3)), '`rewards` has 3 entries'),
    (dict(n_tokens=torch.zeros(5)), '`n_tokens` has 5'), (dict(prize=1), 'prize')])
def test_wrong_shapes_are_refused(kw, say):
    with pytest.raises(ValueError, match=say):
        group_rows(1, ['p', 'q'], list('abcd'), **(dict(rewards=torch.zeros(4)) | kw))

def test_a_newcomer_known_by_id_gets_its_text_from_where_it_was_born(tmp_path):
    rec = Recorder(tmp_path)
    rec.write_groups(1,
        group_rows(1, ['born'], ['x','y'], [[1., 0.]], id=[4], advantages=[[.7, -.7]], prompt_key=[11]))
    new = lambda **k: dict(outcome='replaced', replacement=dict(step=1, age=2, **k))
    rec.write_groups(3, group_rows(3, ['a', 'b', 'c'], list('abcdef'), torch.zeros(3, 2),
                             records=[new(id=4), new(id=99),
                                      new(id=4, prompt='own', completions=['u', 'v'])]))
    R = [o['replacement'] for o in read_run(tmp_path).groups.query('step==3').to_dict('records')]
    assert (R[0]['prompt'] == 'born' and R[0]['completions'] == ['x', 'y'] and R[0]['rewards'] == [1, 0]
            and R[0]['advantages'] == [0.7, -0.7] and R[0]['prompt_key'] == 11 and R[0]['age'] == 2)
    assert R[1]['prompt'] is None and R[1]['age']==2 and R[2]['prompt']=='own' and R[2]['rewards']==[1,0]

def test_ratio_histogram_equals_a_loop():
    g = torch.Generator().manual_seed(0)
    ratio,mask = (torch.randn(3, 4, 9, generator=g)*.5).exp(),torch.rand(3, 4, 9, generator=g)<.7
    ratio[0,0,:3] = torch.tensor([0., 1e9, 1.])
    ratio[1].view(-1)[:14],mask[1] = torch.tensor(RATIO_EDGES[1:-1]),True   # on an edge: in the bin above it
    assert RATIO_EDGES==sorted(RATIO_EDGES) and (RATIO_EDGES[0], RATIO_EDGES[-1])==(1/4, 4)
    for b,h in enumerate(ratio_hists(ratio, mask)):
        want = [0]*15
        for x in ratio[b][mask[b]].tolist():
            want[sum(x >= e for e in torch.tensor(h['edges'][1:-1]).tolist())] += 1
        assert h['counts']==want and len(h['edges'])==16 and sum(want)==int(mask[b].sum())

@pytest.mark.processes
def test_reading_while_another_process_writes(tmp_path):
    "Rows are written whole: a reader beside the writer never sees a damaged one."
    def write():
        rec = Recorder(tmp_path)
        for s in range(1, 151):
            rec.log(dict(step=s))
            rec.write_groups(s, group_rows(s, ['q']*16, ['x'*300]*128, [0.]*128))
    p,seen = elsewhere(write),[0]
    while p.is_alive():
        p.join(.1)
        if (tmp_path/'groups.jsonl').exists():
            r = read_run(tmp_path); seen.append(len(r.groups)); assert r.notes==[]
    assert p.exitcode==0 and len(read_run(tmp_path).groups)==16*150 and seen==sorted(seen)

# ---- a bounded record, and going on with it

@pytest.mark.parametrize('step', [-1, 0, 3, 5, 9])
def test_a_cut_keeps_what_stands_before_byte_for_byte(step, tmp_path):
    from grpo_nb.run.record import _cut
    f = tmp_path/'a.jsonl'
    rows = [to_jsonl(dict(step=s, text='x'*(7*s%23), more=[s])) for s in (0, 1, 1, 2, 3, 3, 5, 6)]
    f.write_bytes(b''.join(rows)+b'{"step": 7, "half')
    _cut(f, step)
    assert f.read_bytes()==b''.join(o for o in rows if json.loads(o)['step']<=step)

def test_the_record_of_another_run_is_not_gone_on_with(run):
    Recorder(run, settings=dict(seed=0), run='one', resume_step=5)
    assert read_run(run).setting('run')=='one' and len(read_run(run).history)==5
    Recorder(run, settings=dict(seed=0), run='one', resume_step=3)
    assert len(read_run(run).history)==3
    Recorder(run, settings=dict(seed=0), run='two', resume_step=3).log(dict(step=4))
    assert len(read_run(run).history)==1 and read_run(run).setting('run')=='two'
    assert len(read_run(run/'earlier-1').history)==3

def test_a_record_without_a_limit_of_its_own_or_a_last_step_may_have_100_mb(tmp_path):
    rec = Recorder(tmp_path)
    assert rec.size==0
    rec.size = 99_999_999
    assert rec.records_step(1)
    rec.size += 1
    assert not rec.records_step(1) and not rec.records_step(10**6)

def test_a_token_is_shown_with_the_space_that_the_one_before_it_asks_for():
    class Words:
        def decode(self, ids): return ' '.join('abcd'[i] for i in ids)
    got = token_fields(Words(), [dict(ids=[0, 1, 2, 3, 1]), dict(ids=[3])], 2)
    assert got==dict(tokens=[[['a',' b',' c',' d',' b'], ['d']]])

# ---- drawn records: what goes in, field by field beside what comes back

DRAWN = settings(max_examples=60, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck))
TEXTS = st.text(st.characters(exclude_categories=['Cs']), max_size=5)
NINE = st.floats(-1e30, 1e30).map(lambda x: float('%.9g'%x))
LEAVES = st.one_of(
    (st.sampled_from([None, True, False]) | st.integers(-2**60, 2**60) | TEXTS | NINE).map(lambda x: (x, x)),
    st.sampled_from([math.nan, math.inf, -math.inf]).map(lambda x: (x, None)),
    st.integers(0, 9).flatmap(lambda x: st.sampled_from([torch.tensor(x), np.int64(x), np.array(x)])
        .map(lambda o: (o, x))),
    st.lists(NINE, max_size=3).map(lambda x: (np.array(x, dtype=float), x)),
    st.lists(st.booleans(), max_size=3).map(lambda x: (torch.tensor(x, dtype=torch.bool), x)),
    st.sampled_from([pathlib.PurePosixPath('a/b'), range]).map(lambda x: (x, str(x))))
def nest(some):
    "Lists, tuples and dicts of (value, what JSON should hold)"
    several = st.lists(some, max_size=3)
    return st.one_of(several.map(lambda o: ([a for a,_ in o], [b for _,b in o])),
        several.map(lambda o: (tuple(a for a,_ in o), [b for _,b in o])),
        st.dictionaries(TEXTS | st.integers(0, 5), some, max_size=3).map(lambda d: (
            {k:a for k,(a,_) in d.items()}, {str(k):b for k,(_,b) in d.items()})))

@DRAWN
@given(st.recursive(LEAVES, nest, max_leaves=8), st.recursive(LEAVES, nest, max_leaves=8))
def test_any_value_comes_back_from_a_line_as_json_can_hold_it(one, two):
    (a,want),(b,more) = one,two
    line = to_jsonl(dict(a=a, b=b))
    assert repr(to_jsonable(a))==repr(want) and line.count(b'\n')==1
    assert repr(json.loads(line, parse_constant=pytest.fail))==repr(dict(a=want, b=more))

CALLS = st.fixed_dictionaries(dict(name=st.just('add')), optional=dict(arguments=st.just('1')))
@st.composite
def messages(draw):
    "(a message, what a reader sees of it)"
    value = draw(st.sampled_from(['yes', '', None, 7, ['so ', dict(type='text', text='it is')],
        [dict(type='image')], [dict(type='image', text='')], []]))
    shown = {7:'7'}.get(value, value or '') if not isinstance(value, list) else \
        {0:'', 2:'so it is'}.get(len(value), '<image>')
    m = dict(content=value) if value is not None or draw(st.booleans()) else {}
    calls = draw(st.none() | st.lists(CALLS, max_size=2))
    lines = [shown] if shown else []
    for c in calls or (): lines.append(f"→ add({c.get('arguments', '')})")
    if calls is not None: m['tool_calls'] = [dict(function=c) if draw(st.booleans()) else c for c in calls]
    if (role := draw(st.sampled_from([None, 'user', 'tool']))): m['role'] = role
    return m,role or '?','\n'.join(lines)

@DRAWN
@given(st.lists(messages(), max_size=3))
def test_a_conversation_is_shown_line_by_line(some):
    want = some[0][2] if len(some)==1 else '\n'.join(f'{role}: {text}' for _,role,text in some)
    assert as_text([m for m,_,_ in some])==want

BY_GROUP = dict(prompt_key='B', dead='B', dead_reason='B', score='B', id='B', clip_frac='B', ratio_hist='B',
    n_tokens='BG', truncated='BG', advantages_before='BG', advantages='BG', tokens='BGT', ratios='BGT')
@st.composite
def batches(draw):
    "(arguments of `group_rows`, the rows that it should give), each row put together by hand"
    B,G = draw(st.integers(1, 3)),draw(st.integers(1, 3))
    count = itertools.count(draw(st.integers(1, 9)))
    def value(k):
        i = next(count)
        odd = dict(dead=bool(i%2), truncated=bool(i%2), dead_reason=f'r{i}', ratio_hist=dict(counts=[i]))
        return odd.get(k, i/4)
    def form(x, k=None):   # nested or flat, lists or tensors
        if G>1 and draw(st.booleans()): x = [o for g in x for o in g]
        number = k not in ('tokens','ratios','completions')
        return torch.tensor(x) if number and draw(st.booleans()) else x
    names = '''step group prompt_key prompt completions n_tokens truncated rewards rewards_by_func
        advantages_before advantages dead dead_reason outcome score id replacement ratio_hist clip_frac
        grad_norm'''.split()
    rows = [dict.fromkeys(names)|dict(step=5, group=b, prompt=f'q{b}') for b in range(B)]
    chat = draw(st.booleans())
    def message(x): return [dict(role='user', content=x)] if chat else x
    texts = [[f'a{next(count)}' for _ in range(G)] for _ in range(B)]
    rewards = [[value('') for _ in range(G)] for _ in range(B)]
    kw = dict(step=5, prompts=[message(f'q{b}') for b in range(B)], rewards=form(rewards),
        completions=form([[message(o) for o in g] for g in texts], 'completions'))
    for row,t,r in zip(rows, texts, rewards): row |= dict(completions=t, rewards=r, rewards_by_func={})
    for k in draw(st.sets(st.sampled_from([*BY_GROUP]))):
        width = BY_GROUP[k]
        if width=='B':
            x = [value(k) for _ in range(B)]
            kw[k] = x
        else:
            x = [[[value(k)]*j if width=='BGT' else value(k) for j in range(G)] for _ in range(B)]
            kw[k] = form(x, k) if width=='BG' else x
        if draw(st.integers(0, 5))==0: x = kw[k] = None
        for b,row in enumerate(rows): row[k] = x and x[b]
    for name in draw(st.sets(st.sampled_from(['f','g']))):
        x = [[value('') for _ in range(G)] for _ in range(B)]
        kw.setdefault('rewards_by_func', {})[name] = form(x)
        for row,o in zip(rows, x): row['rewards_by_func'][name] = o
    if draw(st.booleans()):
        x = [value('') for _ in range(B*G)]
        kw['extra'] = dict(note=x)
        for b,row in enumerate(rows): row['extra'] = dict(note=x[b*G:b*G+G])
    if draw(st.booleans()):   # what a strategy says wins; what is known of the tokens is of the newcomer
        kw['records'] = [dict(outcome='replaced', replacement=dict(id=b)) if b%2
            else dict(outcome='kept', score=torch.tensor(.5)) for b in range(B)]
        for b,row in enumerate(rows):
            row |= dict(outcome='replaced', replacement=dict(id=b)) if b%2 else dict(outcome='kept', score=.5)
            if b%2 and row.get('ratios'): row['replacement']['ratios'] = row.pop('ratios')
    return kw,rows

@DRAWN
@given(batches())
def test_each_row_is_what_one_puts_together_by_hand(case):
    kw,rows = case
    got = group_rows(**kw)
    assert got==rows and json.loads(json.dumps(got, allow_nan=False))==got

@st.composite
def writings(draw):
    "Limits of a recorder, and what it is to write and to go on with"
    steps = st.integers(0, 9)
    ops = st.one_of(st.tuples(st.just('log'), steps), st.tuples(st.just('groups'), steps),
        st.tuples(st.just('resume'), st.none() | steps))
    return dict(every=draw(st.sampled_from([1, 1, 2, 3])), max_mb=draw(st.sampled_from([None, .0005, .002])),
        last_step=draw(st.sampled_from([None, 4, 9]))),draw(st.lists(ops, min_size=4, max_size=14))

@DRAWN
@given(writings())
def test_a_folder_holds_what_was_written_within_its_limits_and_not_cut(case):
    "Beside lists of rows, which a limit keeps short and a resume cuts at its end"
    limits,ops = case
    with tempfile.TemporaryDirectory() as d:
        rec,history,groups = Recorder(d, **limits),[],[]
        def cut(rows, step):
            while rows and json.loads(rows[-1])['step']>step: rows.pop()
        for i,(op,step) in enumerate(ops):
            if op=='resume':
                rec.close()
                rec = Recorder(d, resume_step=step, **limits)
                for rows in (history, groups): rows.clear() if step is None else cut(rows, step)
            elif op=='log':
                rec.log(dict(step=step, x=i/8))
                history.append(f'{{"step": {step}, "x": {i/8}}}\n'.encode())
            else:
                size = sum(map(len, groups))
                most = math.inf if limits['max_mb'] is None else 1e6*limits['max_mb']
                if limits['last_step']: most *= min(1, (step+1)/limits['last_step'])
                group_dicts = [dict(step=step, group=g, text='x'*40) for g in range(2)]
                open_ = step%limits['every']==0 and size<most
                assert rec.records_step(step)==open_
                rec.write_groups(step, group_dicts)
                if open_: groups += [json.dumps(o).encode()+b'\n' for o in group_dicts]
            for name,rows in (('history',history), ('groups',groups)):
                f = Path(d)/f'{name}.jsonl'
                assert (f.read_bytes() if f.exists() else b'')==b''.join(rows)
        rec.close()

@pytest.mark.parametrize('name,text,ours', [
    ('settings.json','{"versions": {}}',True), ('settings.json','{}',False), ('settings.json','[]',False),
    ('summary.json','not json',False), ('history.jsonl','',True), ('history.jsonl','{"step": 1}\n',True),
    ('groups.jsonl','{"question": "x"}\n{"step": 1}\n',False), ('groups.jsonl','FOLDER',False)])
def test_files_of_others_are_not_moved_aside(name, text, ours, tmp_path):
    f = tmp_path/name
    f.mkdir() if text=='FOLDER' else f.write_text(text)
    (tmp_path/'earlier-1').mkdir()
    if not ours:
        with pytest.raises(ValueError, match=f'holds {name}, which no run of ours wrote'): Recorder(tmp_path)
        assert f.exists() and not (tmp_path/'earlier-2').exists()
    else:
        Recorder(tmp_path).close()
        assert (tmp_path/'earlier-2'/name).read_text()==text and not f.exists()

@DRAWN
@given(st.data())
def test_what_settings_say_of_prompts_and_end_tokens(data):
    pick = lambda *o: data.draw(st.sampled_from(o))
    eos,template = pick(None, 5, 0),pick(None, '', '{{ turn }}<five>', '{{ turn }}<zero>')
    tokens = {0:'<zero>', 3:'<three>', 5:'<five>'}
    class Words:
        eos_token_id,eos_token,chat_template = eos,tokens.get(eos),template
        def decode(self, ids): return tokens[ids[0]]
    ends = pick([], [3], [0, 3], [5])
    prompts = pick(None, [], ['ask'], [[dict(role='user', content='ask')]]*2, [None])
    rows = iter(()) if prompts is None else [dict(prompt=o) if o else {} for o in prompts]
    first = prompts[0] if prompts else None
    kind = None if first is None else 'text' if first=='ask' else 'conversational'
    all_ends = ([] if eos is None else [eos])+ends
    assert dataset_info(Words(), rows, ends)==dict(n_prompts=len(prompts) if prompts is not None else None,
        prompt_format=kind, chat_template=bool(template), eos_token_id=all_ends[0] if all_ends else None,
        eos_token=tokens.get(eos), eos_in_template=any(tokens[i] in (template or '') for i in all_ends))

def test_an_evaluation_gives_a_row_of_what_was_judged():
    from grpo_nb.run.history import eval_row
    of = lambda m, n: dict(mean=m, low=m-1, high=m+1, has_rewards=n, std=9.)
    e = {'pass@1':.5, 'ci':(.4, .7), 'rewards':dict(a=of(2., 3), b=of(3., 0)), 'metrics':dict(length=7.)}
    want = {'eval/pass@1':.5, 'eval/low':.4, 'eval/high':.7, 'eval/length':7.,
        'eval/rewards/a/mean':2., 'eval/rewards/a/low':1., 'eval/rewards/a/high':3.}
    assert eval_row(e)==want
    assert eval_row(dict(rewards=e['rewards']))=={k:v for k,v in want.items() if '/a/' in k}

# -- numbers of single tokens ---------------------------------------------------------------------
LISTS = dict(prompt='q', completions=['a b', 'c'], rewards=[1., 0.], n_tokens=[2, 1],
    tokens=[['a',' b'], ['c']], logps=[[-1., -2.], [-3.]], ratios=[[1., 1.1], [.9]])

@pytest.mark.parametrize('change, fault', [
    (dict(), ''), (dict(logps=[[], []]), ''),                  # of a group that was not trained on
    (dict(ratios=[[], []], logps=[[-1., -2.], []]), ''),       # a masked answer
    (dict(logps=[[-1., None], [-3.]]), ''),                    # a tool wrote its second token
    (dict(ratios=None, n_tokens=None), ''),
    (dict(logps=[[-1.], [-3.]], ratios=[[1.], [.9]]), 'token lists of unequal length'),
    (dict(logps=[[-1., -2., -3.], [-3.]], ratios=None), 'token lists of unequal length'),
    (dict(tokens=None, ratios=[[1.], [.9]]), 'token lists of unequal length'),
    (dict(ratios=[[1., 1.1]]), 'not as many `ratios` as `completions`'),
    (dict(ratios=[1., .9]), 'no list for each answer in `ratios`')])
def test_a_group_whose_token_lists_do_not_fit_is_left_out_with_a_note(change, fault, tmp_path):
    rows = dict(step=1, group=0)|LISTS|change,dict(step=1, group=1)|LISTS
    (tmp_path/'groups.jsonl').write_bytes(b''.join(map(to_jsonl, rows)))
    run = read_run(tmp_path)
    names = 'tokens','logps','ratios'
    want = [{k:o.get(k) for k in names} for o in rows][bool(fault):]
    assert [{k:o[k] for k in names} for o in [dict.fromkeys(names)|o for o in run.rows]]==want
    assert run.notes==[f'groups.jsonl: 1 of 2 groups have {fault}, and are left out.']*bool(fault)

def test_a_record_that_ended_before_its_first_row_is_of_no_run(tmp_path):
    for rows in (0, 1):
        rec = Recorder(tmp_path/f'{rows}', settings=dict(seed=0))
        (tmp_path/f'{rows}'/'checkpoint-1').mkdir()   # an empty folder is nothing of a run
        for s in range(rows): rec.log(dict(step=s))
        rec.close()
        assert (tmp_path/f'{rows}'/'settings.json').exists()==bool(rows)
    (tmp_path/'theirs').mkdir()
    (tmp_path/'theirs'/'settings.json').write_text('{"versions": {}}')
    Recorder(tmp_path/'theirs', resume_step=1).close()   # which wrote none
    assert (tmp_path/'theirs'/'settings.json').exists()

@pytest.mark.skipif(not Path('/proc/self/fd').exists(), reason='descriptors are listed by Linux')
def test_a_folder_that_is_given_back_keeps_no_descriptor_open(tmp_path):
    def open_here(): return [o for o in Path('/proc/self/fd').iterdir() if o.resolve()==tmp_path.resolve()]
    for _ in range(3):
        rec = Recorder(tmp_path)
        assert len(open_here())==1
        rec.close()
        assert open_here()==[]

