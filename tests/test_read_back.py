"Drawn logs and rollouts, in every format that is read: what comes back, beside what was drawn"
import csv, gzip, io, json, math, tempfile
from collections import Counter
from pathlib import Path
import pandas as pd, pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from grpo_nb.run.reading import merge_by_step, read_run
from grpo_nb.run.record import GROUP_FIELDS
from grpo_nb.see.readers import open_run
from grpo_nb.see.readers.names import COLUMN_ALIASES, INVERTED_ALIASES, METRIC_ALIASES

DRAWN = settings(max_examples=120, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck))

def as_csv(rows, sep=','):
    f,names = io.StringIO(newline=''),list(dict.fromkeys(k for o in rows for k in o))
    w = csv.DictWriter(f, names, delimiter=sep)
    w.writeheader()
    w.writerows(rows)
    return f.getvalue()
def as_wandb(rows):
    names = list(dict.fromkeys(k for o in rows for k in o))
    return json.dumps(dict(columns=names, data=[[o.get(k) for k in names] for o in rows]))
def as_lines(rows): return ''.join(json.dumps(o)+'\n' for o in rows)
def as_verl(rows):
    return '\n'.join('(pid=7) '+' - '.join(f'{k}:np.float64({v})' if i and isinstance(v,
        float) else f'{k}:{v}'
        for i,(k,v) in enumerate(o.items())) for o in rows)

def number(x):
    "A finite number, or None"
    try: x = float(x)
    except (TypeError, ValueError): return None
    return x if math.isfinite(x) else None

# ---- logs ---------------------------------------------------------------------------------------
def alias(name): return st.sampled_from([name, *METRIC_ALIASES[name], *INVERTED_ALIASES.get(name, ())])
CURVES = ['loss','kl','grad_norm','learning_rate','frac_reward_zero_std','completions/mean_length',
    'completions/clipped_ratio']
def on_console(text):
    "As transformers prints a log: after each progress bar a dict without its step, and bars of other work"
    def printed(rows):
        out = ['Loading checkpoint shards: 100%|#####| 4/4 [00:01<00:00,  2.10it/s]']
        for o in rows:
            (_,step),*row = o.items()
            out.append(f'\r 3%|#  | {step}/99 [00:01<00:09]{text(dict(row))}')
            out.append('Evaluating: 50%|##   | 3/6 [00:01<00:01,  2.0it/s]')
        return '\n'.join(out)
    return printed
def wrapped(o): return repr(o).replace(', ', ',\n ')
def in_strings(o): return repr({k:f'{v:.10g}' if isinstance(v, float) else v for k,v in o.items()})
def in_numpy(o):
    shown = {k:f'np.float64({v!r})' if isinstance(v, float) else repr(v) for k,v in o.items()}
    return '{'+', '.join(f'{k!r}: {v}' for k,v in shown.items())+'}'
def as_swift(rows):
    return '\n'.join(repr({'global_step/max_steps':f'{step}/99'}|dict(row))
        for (_,step),*row in (o.items() for o in rows))
def in_notebook(rows, sep='\t'):
    "As a table reads when copied: six digits, blanks around a slash, a word for what was not logged"
    def shown(x): return 'No log' if x is None else f'{x:.6f}' if isinstance(x, float) else x
    names = list(dict.fromkeys(k for o in rows for k in [*o][1:]))
    cells = [['Step', *(k.replace('/', ' / ') for k in names)]]
    cells += [[str(next(iter(o.values()))), *(shown(o.get(k)) for k in names)] for o in rows]
    return ''.join(sep.join(o)+'\n' for o in cells)
def as_verls_file(rows):
    return as_lines([dict(step=o['step'], data={k:v for k,v in o.items() if k!='step'}) for o in rows])
CONSOLE = {'trl.log':on_console(repr), 'json.log':on_console(lambda o: 'INFO trainer '+json.dumps(o)),
    'wrapped.txt':on_console(wrapped), 'strings.log':on_console(in_strings), 'numpy.out':on_console(in_numpy)}
LOGS = CONSOLE|{'jsonl':as_lines, 'json':json.dumps, 'csv':as_csv, 'tsv':lambda rows: as_csv(rows, '\t'),
    'table.json':as_wandb, 'verl.log':as_verl, 'data.jsonl':as_verls_file, 'parquet':None,
    'swift.log':as_swift, 'notebook.tsv':in_notebook, 'notebook.csv':lambda rows: in_notebook(rows, ','),
    'state.json':lambda rows: json.dumps(dict(epoch=1, log_history=rows, other=[dict(a=1)]))}
EVAL = 'eval_reward'

@st.composite
def logs(draw):
    "(rows under others' names, kind of file, {our name: values} of each step, texts by our name)"
    kind = draw(st.sampled_from([*LOGS]))
    ours = ['reward', *draw(st.lists(st.sampled_from(CURVES), unique=True, max_size=3))]
    names = {k:draw(alias(k).filter(lambda o: kind!='verl.log' or ' ' not in o)) for k in ours}
    if kind.startswith('notebook'): names['loss'] = 'Training Loss'
    before = '' if kind.startswith('notebook') else draw(st.sampled_from(['', '', 'train/']))
    step = draw(alias('step').filter(lambda o: o!='global_step/max_steps'))
    if kind in ('verl.log','data.jsonl'): step = 'step'
    at,rows,want,texts = draw(st.integers(int(kind in CONSOLE), 3)),[],{},Counter()   # a bar begins at 1
    odd = [None] if kind in ('parquet','verl.log') else [None, None, 'high', '-']
    for i in range(draw(st.integers(2, 6))):
        row,mine = {step:at},{}
        for ours,theirs in names.items():
            x = draw(st.integers(-8, 8))/8 if i and ours!='reward' else .25*i
            if ours!='reward' and i and draw(st.integers(0, 4))==0: x = draw(st.sampled_from(odd))
            if x is None and (kind=='verl.log' or draw(st.booleans())): continue
            row[before+theirs] = x
            if isinstance(x, str) and x!='-': texts[ours] += 1
            if number(x) is not None: mine[ours] = 1-x if theirs in INVERTED_ALIASES.get(ours, ()) else x
        if draw(st.integers(0, 3))==0: row[EVAL] = mine[EVAL] = .5+i/8
        rows.append(row)
        want[at] = mine
        at += draw(st.integers(1, 3))
    return rows,kind,want,texts

@DRAWN
@given(logs())
def test_a_log_comes_back_from_every_format_under_our_names(case):
    rows,kind,want,texts = case
    with tempfile.TemporaryDirectory() as d:
        f = Path(d)/f'log.{kind}'
        if kind=='parquet': pd.DataFrame(rows).to_parquet(f)
        else: f.write_text(LOGS[kind](rows))
        run = open_run(f)
    h = run.history
    assert h['step'].tolist()==[*want] and run.rows==[] and run.name in f.name
    names = {k for o in want.values() for k in o}
    for k in names: assert [number(x) for x in h[k]]==[o.get(k) for o in want.values()], k
    assert not {*h} & {*METRIC_ALIASES, EVAL}-names-{'step'}
    expected = [f'{k}: {n} values are not numbers and are left out, such as' for k,n in texts.items()]
    assert len(run.notes)==len(expected) and all(any(s in o for o in run.notes) for s in expected), run.notes

# ---- rollouts -----------------------------------------------------------------------------------
TABLES = {'jsonl':as_lines, 'json':json.dumps, 'csv':as_csv, 'tsv':lambda rows: as_csv(rows, '\t'),
    'table.json':as_wandb}
SAID = {'yes':'yes', 'x\ny':'x\ny', '':''}
RICH = SAID|{json.dumps(o):(o, text) for o,text in (([dict(role='assistant', content='deep')], 'deep'),
    (dict(role='assistant', content='flat'), 'flat'), (7, '7'), (None, ''))}

@st.composite
def tables(draw):
    "(rows under others' names, kind of file, our names, which of them there are, groups, bad rewards)"
    kind = draw(st.sampled_from([*TABLES]))
    text = kind in ('csv','tsv')
    more = ['step','group','advantage','length','cut','singles']
    has = [k for k in more if draw(st.booleans())]
    known = ['prompt','completion','reward', *(k for k in has if k!='singles')]
    at = {k:draw(st.sampled_from([o for o in COLUMN_ALIASES[k] if o not in ('messages','text')]))
        for k in known}
    if 'length' in has: at['length'] = 'n_tokens'   # others are metrics too
    groups,rows,count = [],[],0
    for s in draw(st.lists(st.integers(0, 9), unique=True, min_size=1, max_size=3)) if 'step' in has else [0]:
        for g in range(draw(st.integers(1, 3))):
            o = dict(step=s, prompt=f'q{g}', key=f'id{g}' if 'group' in has else f'q{g}')
            for i in range(draw(st.integers(1, 4))):
                count += 1
                r = draw(st.sampled_from([0., 1., 1., -1., 2.5, None, 'bad', '1.0']))
                A = draw(st.sampled_from([.5, -.5, 0., 0., 7e-5]))
                A = None if draw(st.integers(0, 9))==0 else A
                given,said = draw(st.sampled_from([(k, k) for k in SAID] if text else
                    [v if isinstance(v, tuple) else (v, v) for v in RICH.values()]))
                n,cut = draw(st.integers(0, 5)),draw(st.booleans())
                row = {at['prompt']:o['prompt'], at['completion']:given, at['reward']:r}
                if 'step' in has: row[at['step']] = draw(st.sampled_from([s, str(s),
                    float(s)])) if not text else s
                if 'group' in has: row[at['group']] = o['key']
                if 'advantage' in has: row[at['advantage']] = A
                if 'length' in has: row[at['length']] = draw(st.sampled_from([n, str(n)]))
                if 'cut' in has: row[at['cut']] = draw(st.sampled_from([cut, str(cut).lower(), int(cut)]))
                if 'singles' in has: row['rewards/a'] = count/4
                rows.append((draw(st.integers(0, 99)), row))
                for k,v in dict(completions=said, rewards=number(r), advantages=A, n_tokens=n, truncated=cut,
                        by_func=count/4, row=row).items(): o.setdefault(k, []).append(v)
            groups.append(o)
    if draw(st.booleans()): rows.sort(key=lambda o: o[0])   # answers of several groups between one another
    rows = [o for _,o in rows]
    place = {id(o):i for i,o in enumerate(rows)}
    for o in groups:
        order = sorted(range(len(o['row'])), key=lambda i: place[id(o['row'][i])])
        o['first'] = min(place[id(r)] for r in o['row'])
        for k in ('completions','rewards','advantages','n_tokens','truncated','by_func','row'):
            o[k] = [o[k][i] for i in order]
    groups.sort(key=lambda o: (o['step'], o['first']))
    bad = sum(r[at['reward']]=='bad' for r in rows)
    return rows,kind,at,has,groups,bad

def is_dead(o, has):
    r = [x for x in o['rewards'] if x is not None]
    equal = len(r)<2 or max(r)-min(r)<=1e-6
    if 'advantage' not in has or None in o['advantages']: return equal
    return max(map(abs, o['advantages']))<=(1e-3 if equal else 1e-6)

def reason(o, whole, has):
    "Why a group is dead, on the scale of the file's own rewards; None for a living one"
    if not is_dead(o, has): return None
    r = [x for x in o['rewards'] if x is not None]
    if len(r)<2: return 'unscored'
    seen = [x for g in whole for x in g['rewards'] if x is not None]
    wrong,right = (min(seen), max(seen)) if min(seen)<max(seen) else (min(0., *seen), max(1., *seen))
    if max(r)>min(r): return 'equal'   # by their advantages
    return 'all-wrong' if r[0]==wrong else 'all-right' if r[0]==right else 'equal'

def mean(x): return sum(x)/len(x) if x else None

@DRAWN
@given(tables())
def test_rollouts_come_back_from_every_format_as_the_groups_they_were(case):
    rows,kind,at,has,groups,bad = case
    whole = [o for o in groups if len(o['rewards'])>1]
    alone = len(groups)-len(whole)
    with tempfile.TemporaryDirectory() as d:
        f = Path(d)/'of'/'my'/'own'/f'batch.{kind}'   # numbers in a path may be its step
        f.parent.mkdir(parents=True)
        f.write_text(TABLES[kind](rows))
        if not whole:
            with pytest.raises(ValueError, match=f'has no groups.*left out {alone} completions'): open_run(f)
            return
        run = open_run(f)
    numbers = Counter()
    assert len(run.rows)==len(whole)
    for got,o in zip(run.rows, whole):
        want = dict(step=o['step'], group=numbers[o['step']], prompt=o['prompt'], prompt_key=o['key'],
            completions=o['completions'], rewards=o['rewards'], n_tokens=o['n_tokens']
                if 'length' in has else None,
            truncated=o['truncated'] if 'cut' in has else None, dead=is_dead(o, has),
            advantages=None if 'advantage' not in has or None in o['advantages'] else o['advantages'],
            rewards_by_func=dict([('rewards/a', o['by_func'])]) if 'singles' in has else None)
        numbers[o['step']] += 1
        assert {k:got[k] for k in want}==want and got['advantages_before']==got['advantages']
        assert got['dead_reason']==reason(o, whole, has)
    assert_history(run.history, whole, has)
    sizes = Counter(len(o['rewards']) for o in whole)
    usual = sizes.most_common(1)[0][1]
    expected = {'completions without a group':alone, 'values are not numbers':bad,
        'groups do not have the':usual<len(whole)<=2*usual}
    for words,n in expected.items(): assert any(words in o for o in run.notes)==bool(n), (words, run.notes)
    if bad: assert any(o.startswith(f"reward: {bad} values") for o in run.notes)
    if alone: assert f'left out {alone} completions without a group to be compared with.' in run.notes

def assert_history(h, whole, has):
    "A row of means for each step"
    steps = sorted({o['step'] for o in whole})
    assert h['step'].tolist()==steps
    for i,s in enumerate(steps):
        own = [o for o in whole if o['step']==s]
        want = {'reward':mean([x for o in own for x in o['rewards'] if x is not None]),
            'frac_reward_zero_std':mean([float(is_dead(o, has)) for o in own])}
        if 'length' in has: want['completions/mean_length'] = mean([x for o in own for x in o['n_tokens']])
        if 'cut' in has: want['completions/clipped_ratio'] = mean([float(x) for o in own
            for x in o['truncated']])
        for k,x in want.items():
            if k in h: assert number(h[k].iloc[i])==(None if x is None else pytest.approx(x)), k
            else: assert x is None, k
        assert ('completions/mean_length' in h, 'completions/clipped_ratio' in h)==('length' in has,
            'cut' in has)

# ---- our own record -----------------------------------------------------------------------------
def damage(draw, o):
    "(what is wrong with the row now, in the words of its note)"
    several = [k for k in ('rewards','n_tokens','truncated') if k in o and len(o['completions'])>1]
    odd = dict(step=[None, '1', 2., True, 2**53, -2**53], rewards=[3, 'x'], n_tokens=[dict(a=1)],
        tokens=['x'], replacement=['x', [1]], rewards_by_func=[[1.]], terms=[[1]])
    k = draw(st.sampled_from([*odd, *several]))
    if k in several and draw(st.booleans()):
        o[k] = o[k][:-1]
        return f'not as many `{k}` as `completions`' if o[k] else ''
    o[k] = draw(st.sampled_from(odd.get(k, [7])))
    return {'step':'no whole number as `step`'}.get(k, f'no list as `{k}`' if k in ('rewards','n_tokens',
        'tokens',
        'truncated') else f'no names and values as `{k}`')

def cut_short(draw, lists):
    "A list for each answer, one of which has a token more or is gone"
    i,out = draw(st.integers(0, len(lists)-1)),[[*o] for o in lists]
    if draw(st.booleans()) and len(lists)>1: del out[i]
    else: out[i].append(out[i][-1])
    return out

@st.composite
def records(draw):
    "(lines of groups.jsonl, the rows to come back, notes as {words: number of groups})"
    lines,want,notes,born,place = [],[],Counter(),{},0
    for s in range(1, draw(st.integers(2, 5))):
        for g in draw(st.permutations(range(draw(st.integers(1, 3))))):
            G = draw(st.integers(1, 3))
            T = [draw(st.integers(1, 3)) for _ in range(G)]
            place += 1
            texts = [['t']*n for n in T]
            number = [[place+i/8]*n for i,n in enumerate(T)]
            o = dict(step=s, group=g, prompt=f'q{place}', prompt_key=place, completions=[f'{place}.{i}'
                for i in range(G)],
                rewards=[place+i/4 for i in range(G)], advantages=draw(st.sampled_from([None, [place/2]*G])),
                    n_tokens=T,
                truncated=[False]*G, dead=False, outcome='trained')
            for k in sorted(draw(st.sets(st.sampled_from(['n_tokens','truncated','dead'])))): del o[k]
            if draw(st.booleans()): o |= dict(tokens=texts)
            if draw(st.booleans()): o |= dict(logps=number)
            if draw(st.integers(0, 4))==0: o |= dict(logps=[[]
                for _ in T])   # of a group that was not trained on
            source = draw(st.sampled_from([None, *born])) if born else None
            terms = dict(tokens=texts, policy=number, by=dict(dapo=dict(weight=[.5]*G, term=number, clip=[[]
                for _ in T])))
            wrong = ''
            if source is not None:
                b = born[source]
                o |= dict(outcome=draw(st.sampled_from(['replaced','stored'])), replacement=dict(id=source,
                    step=b['step'],
                    age=s-b['step']))
                if draw(st.booleans()): o['replacement']['ratios'] = [[1.]*len(x) for x in b.get('tokens')
                    or [[1]]*len(b['completions'])]
                if o['outcome']=='stored': o |= dict(prompt='', completions=[], rewards=[], advantages=[],
                    n_tokens=[],
                    truncated=[], tokens=None, logps=None)
            elif draw(st.booleans()):
                o['terms'] = terms
            elif draw(st.booleans()): o['id'] = place
            if source is None and draw(st.integers(0, 4))==0: wrong = damage(draw, o)
            elif source is None and draw(st.integers(0, 3))==0:
                k = draw(st.sampled_from(['tokens','logps','ratios']))
                o |= dict(tokens=texts, logps=number)
                o[k] = cut_short(draw, number)
                wrong = f'not as many `{k}` as `completions`'
                if len(o[k])==G: wrong = 'token lists of unequal length'
            lines.append(o)
            if wrong:
                notes[wrong] += 1
                continue
            back = dict(o)
            if source is not None:
                full = {k:b.get(k) for k in ('prompt','completions','rewards','advantages','prompt_key')}
                back['replacement'] = full|back['replacement']
                if o['outcome']=='stored':
                    back |= {k:full[k] or ('' if k=='prompt' else []) for k in ('prompt','completions',
                        'rewards','advantages')}
            if back.get('id') is not None: born[place] = back
            want.append(back)
    return lines,want,notes

@DRAWN
@given(records(), st.data())
def test_a_record_comes_back_with_its_replacements_and_without_what_is_damaged(case, data):
    lines,want,notes = case
    text = [json.dumps(o) for o in lines]
    torn = data.draw(st.none() | st.integers(0, len(text)))
    if torn is not None: text.insert(torn, '{"step": 1, "gro')
    text = '\n'.join(text)+'\n'+data.draw(st.sampled_from(['', '{"step": 9, "ha', '\n']))
    with tempfile.TemporaryDirectory() as d:
        d = Path(d)
        raw = text.encode(data.draw(st.sampled_from(['utf-8','utf-8-sig','utf-16'])))
        packed = data.draw(st.booleans())
        (d/f"groups.jsonl{'.gz'*packed}").write_bytes(gzip.compress(raw) if packed else raw)
        run = read_run(d)
        assert run==run!=read_run(d) and len({run, run})==1   # a run is itself, whatever it holds
    for got,o in zip(run.rows, want, strict=True):
        assert {k:v for k,v in got.items() if v is not None}=={k:v if k!='replacement' else got[k] for k,
            v in o.items()
            if v is not None}
        if r := o.get('replacement'):
            assert {k:v for k,v in got['replacement'].items() if v is not None}=={k:v for k,v in r.items()
                if v is not None}
    expected = [] if torn is None else [f"groups.jsonl{'.gz'*packed}: line {torn+1} is damaged"]
    expected += [f'{n} of {len(lines)} groups have {why}' for why,n in notes.items()]
    assert len(run.notes)==len(expected), (run.notes, expected)
    assert all(any(s in o for o in run.notes) for s in expected), (run.notes, expected)
    assert run.steps==sorted({o['step'] for o in want})
    for s in run.steps: assert [o['group'] for o in run.by_step[s]]==sorted(o['group'] for o in want
        if o['step']==s)
    assert len(run.groups)==len(want) and {*GROUP_FIELDS}<={*run.groups.columns}

@DRAWN
@given(st.lists(st.tuples(st.none() | st.integers(0, 3) | st.sampled_from(['x', 2.5]), st.dictionaries(
    st.sampled_from('ab'), st.sampled_from([0., 1., math.nan])))), st.booleans())
def test_rows_of_one_step_are_one_row_and_the_later_value_counts(rows, there):
    "In order of steps; what has no number for a step stays behind the last one before it"
    rows = [o if step is None and not there else dict(step=step)|o for step,o in rows]
    out = []
    for o in rows:
        same = [x for x in out if x.get('step')==o.get('step')]
        if same: same[0].update(o)
        else: out.append(dict(o))
    last = -math.inf
    for o in out:
        if isinstance(o.get('step'), (int,float)): last = o['step']
        o['place'] = last
    out.sort(key=lambda o: o['place'])
    h = merge_by_step(rows)
    assert len(h)==len(out)
    for i,(got,o) in enumerate(zip(h.to_dict('records'), out)):
        for k in 'ab': assert number(got.get(k))==number(o.get(k))
        assert [*h.attrs['nan'].get(i, [])]==[k for k in o if k!='place' and o[k]!=o[k]]
        assert got['step']==o['step'] if o.get('step') is not None else got.get('step') in (None,
            ) or got['step']!=got['step']

# ---- folders and batches ------------------------------------------------------------------------
def batch(step, n=2): return [dict(prompt='q', completion=f'{step}.{i}', reward=float(i==step%n))
    for i in range(n)]
OTHERS = {'deep/other.csv':'a,b\n1,2\n', 'second.csv':'step,reward,loss\n1,9,9\n',
    'readme.txt':'step,reward\n1,9\n',
    'z.log':'nothing here', 'empty.tsv':'', 'torn.parquet':'no parquet', 'deep/run.db':'x',
    'odd.jsonl':as_lines([dict(prompt='q', completion='x')]*2)}   # no reward
SAYS = {'z.log':'z.log could not be read and is left out (z.log has no metrics that we know',
    'empty.tsv':'empty.tsv could not be read and is left out (empty.tsv is empty'}   # read as logs

@DRAWN
@given(st.sets(st.integers(0, 30), max_size=4), st.sampled_from(['{}.jsonl','step_{}.jsonl','out_{}_x.jsonl',
    'step-{}/train_rollouts.jsonl']), st.sampled_from([None,'metrics.jsonl','log.csv']),
        st.sets(st.sampled_from([*OTHERS])))
def test_of_a_folder_every_file_is_read_or_named(steps, name, log, others):
    with tempfile.TemporaryDirectory() as d:
        d = Path(d)/'run'
        d.mkdir()
        files = {name.format(s):as_lines(batch(s)) for s in steps}|{k:OTHERS[k] for k in others}
        curve = [dict(step=s, reward=s/8, loss=.5) for s in range(3)]
        if log: files[log] = as_csv(curve) if log.endswith('csv') else as_lines(curve)
        for k,text in files.items():
            (d/k).parent.mkdir(parents=True, exist_ok=True)
            (d/k).write_text(text)
        second = 'second.csv' in others and not log
        odd = 'odd.jsonl' in others and not (steps and '/' in name)   # a table among the others
        if not steps and not log and not second:
            says = 'holds no record.*no column for reward' if odd else 'holds no record'
            with pytest.raises(ValueError, match=says): open_run(d)
            return
        run = open_run(d)
    assert [(o['step'], o['group'], o['rewards'], o['completions']) for o in run.rows]==[
        (s, 0, [float(s%2==0), float(s%2==1)], [f'{s}.0', f'{s}.1']) for s in sorted(steps)]
    want = [o['reward'] for o in curve] if log else [9.] if second else [.5]*len(steps)
    assert run.history['reward'].tolist()==want
    named = {k for k in others if k in SAYS}
    for k in named: assert any(o.startswith(SAYS[k]) for o in run.notes), (k, run.notes)
    torn = 'torn.parquet' in others and not steps and not odd   # a table, where there is no better one
    left = sorted(k for k in others-named-{'readme.txt'} if not (k=='second.csv' and second)
        and not (torn and k=='torn.parquet') and not (odd and k=='odd.jsonl'))
    why = 'odd.jsonl is not read as rollouts: no column for reward' if steps else \
        'the rollouts are not read: no column for reward'
    assert any(o.startswith(why) for o in run.notes)==odd, run.notes
    unread = [o for o in run.notes if 'files of the folder are not read' in o]
    names = ', '.join(left[:4])+', …'*(len(left)>4)
    assert unread==[f'{len(left)} files of the folder are not read: {names}.']*bool(left)
    assert len(run.notes)==len(named)+bool(left)+torn+odd, run.notes

# ---- a table of ragged rows ---------------------------------------------------------------------
@DRAWN
@given(st.sampled_from([',','\t']), st.lists(st.sampled_from(['step','reward','loss']), min_size=2,
    max_size=4),
    st.lists(st.lists(st.sampled_from(['1','.5','','a "b"','two\nlines']), max_size=5), max_size=5),
        st.booleans())
def test_a_table_of_ragged_rows_is_read_as_far_as_its_header_goes(sep, header, rows, blank):
    from grpo_nb.see.readers.table import read_table
    rows = [o for o in rows if any(o) or len(o)>1]
    f = io.StringIO(newline='')
    csv.writer(f, delimiter=sep).writerows([header, *rows])
    with tempfile.TemporaryDirectory() as d:
        at = Path(d)/'t.csv'
        at.write_text('\n'*blank+f.getvalue(), newline='')
        if not rows:
            with pytest.raises(ValueError, match='t.csv has a header and no rows'): read_table(at)
            return
        got,notes = read_table(at)
    want = [dict(zip(header, [x or None for x in o]+[None]*len(header))) for o in rows]
    assert got==want
    odd = sum(len(o)<len(header) or any(o[len(header):]) for o in rows)
    twice = list(dict.fromkeys(k for k in header if header.count(k)>1))
    expected = [f't.csv: {odd} rows are shorter or longer than the header']*bool(odd)
    expected += [f't.csv: of the columns of one name, {", ".join(twice)}, the last is read']*bool(twice)
    assert len(notes)==len(expected), (notes, expected)
    assert all(o.startswith(s) for o,s in zip(notes, expected)), (notes, expected)
