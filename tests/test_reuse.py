"The paragraph on reuse: its table against the study's rows, g by hand in every record, a line in a verdict"
import csv, json, lzma, tomllib
from collections import defaultdict
from functools import cache
from importlib.resources import files
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from grpo_nb.see.findings import RunColumns
from grpo_nb.see.readers import open_run
from grpo_nb.see.verdict import interpolated_gain, reuse_advice, sampling_share, verdict
from grpo_nb.cli import diagnose as diagnose_command
from grpo_nb.see.readers import history_rows
from stored_runs import HEALTHY, stored
from reuse_table import AT, table

@cache
def shipped():
    text = (files('grpo_nb')/'assets/doctor/reuse.csv').read_text()
    return list(csv.DictReader(text.splitlines()))

def test_the_shipped_table_is_that_of_the_rows():
    some = [o for o in shipped() if float(o['g']) in (.8, 1.)]
    got = table((.8, 1.)).to_dict('records')
    assert len(some)==len(got)==56
    numbers = 'gain','half','regret'
    for a,b in zip(some, got):
        assert (float(a['g']), a['rate'], a['way'])==(b['g'], b['rate'], b['way'])
        assert [float(a[k]) for k in numbers]==pytest.approx([b[k] for k in numbers], abs=1e-9)

TABLE = tomllib.loads((files('grpo_nb')/'assets'/'doctor'/'names.toml').read_text(encoding='utf-8'))
UPDATES = dict(plain=1, replay_default=1, mu2=2, mu3=3, stored3=3, mu6=6, stored6=6)

@pytest.fixture(scope='module')
def runs():
    "(cell, arm, rate) -> seed -> curve, of the study's rows"
    out = defaultdict(dict)
    for o in csv.DictReader(lzma.open(AT/'nbs/studies/rows/reuse_study.csv.xz', 'rt', encoding='utf-8')):
        if o['error']=='' and o['arm'] in UPDATES:
            out[o['regime'],o['arm'],float(o['learning_rate'])][o['seed']] = json.loads(o['curve'])
    return out

@pytest.fixture(scope='module')
def score():
    "The mean of a curve until so many tokens: trapezes"
    def of(curve, until):
        x,y = zip(*((p['tokens'], p['pass1']) for p in curve))
        at = [t for t in x if t<until]+[until]
        v = np.interp(at, x, y)
        return sum((b-a)*(p+q)/2 for a,b,p,q in zip(at, at[1:], v, v[1:]))/until
    return of

@pytest.fixture(scope='module')
def counted(runs, score):
    "g -> cell -> arm -> mean over five rates and eight seeds"
    def mean(o, share=None):
        budget = 60_000 if min(c[-1]['tokens'] for c in o.values())>50_000 else 40_000
        return np.mean([score(c, c[-1]['tokens'] if share is None else budget*share) for c in o.values()])
    five = {}
    for c in sorted({k[0] for k in runs}):
        rates = sorted({l for r,a,l in runs if r==c and a=='plain' and len(runs[r,a,l])==8})
        plain = {l:mean(runs[c,'plain',l]) for l in rates}
        best = max(plain, key=plain.get)
        five[c] = [l for l in rates if best/4.5<l<best*4.5]
    def of(c, a, g):
        cost = g+(1-g)*UPDATES[a]
        return np.mean([mean(runs[c,a,l], 1/cost if cost>1 else None) for l in five[c]])
    return lambda g: {c:{a:of(c, a, g) for a in UPDATES} for c in five}

def test_one_of_its_gains_by_other_code(counted):
    "Stored groups against plain GRPO at g = .8, mean over five rates, with Student's 2.3646"
    gain = defaultdict(list)
    for c,o in counted(.8).items(): gain[c.removesuffix('_sparse')].append(o['stored3']-o['plain'])
    task = [np.mean(v) for v in gain.values()]
    half = 2.3646*np.std(task, ddof=1)/len(task)**.5
    assert len(task)==8
    assert interpolated_gain(.8, 'untuned')['stored 2'][:2]==pytest.approx((np.mean(task), half), abs=.0015)

@pytest.mark.parametrize('g', [.5, .75, .9])
def test_its_regrets_by_other_code(counted, g):
    "What the best of seven ways has more, mean over 16 cells"
    cells,at = counted(g),interpolated_gain(g, 'untuned')
    name = dict(plain='none', replay_default='default', mu2='passes 2', stored3='stored 2')
    lost = {n:np.mean([max(o.values())-o[a] for o in cells.values()]) for a,n in name.items()}
    assert {k:at[k][2] for k in lost}==pytest.approx(lost, abs=.0015) and len(cells)==16

@pytest.mark.parametrize('g,rate,times', [(1., 'kept', 1), (.75, 'kept', 1), (1., 'doubled', 2),
    (.25, 'doubled', 2)])
def test_its_gains_at_a_kept_rate_by_other_code(runs, score, g, rate, times):
    "For each half of the seeds, plain GRPO's best rate on the other half, kept or doubled"
    gain = defaultdict(lambda: defaultdict(list))
    for cell in sorted({k[0] for k in runs}):
        rates = [l for c,a,l in runs if (c, a)==(cell, 'plain') and len(runs[c,a,l])==8]
        seeds = sorted(runs[cell,'plain',rates[0]])
        halves = seeds[:4],seeds[4:]
        def of(a, l, s, share=None):
            curve = runs[cell,a,l][s]
            budget = 60_000 if curve[-1]['tokens']>50_000 else 40_000
            end = curve[-1]['tokens']
            return score(curve, end if share is None else min(budget*share, end))
        for mine,others in (halves, halves[::-1]):
            best = max(rates, key=lambda l: sum(of('plain', l, s) for s in others))
            for a in UPDATES:
                near = min((l for c,b,l in runs if (c, b)==(cell, a)), key=lambda l: abs(l-times*best))
                cost = g+(1-g)*UPDATES[a]
                share = 1/cost if cost>1 else None
                gain[a][cell.removesuffix('_sparse')] += [of(a, near, s, share)
                    -of('plain', min(rates, key=lambda l: abs(l-times*best)), s) for s in mine]
    way = dict(replay_default='default', mu2='passes 2', mu3='passes 3', stored3='stored 2', mu6='passes 6')
    for a,name in way.items():
        task = [np.mean(v) for v in gain[a].values()]
        half = 2.3646*np.std(task, ddof=1)/len(task)**.5
        assert interpolated_gain(g, rate)[name][:2]==pytest.approx((np.mean(task), half), abs=.0015), name

def test_the_page_of_the_study_shows_the_regrets_that_the_doctor_tells():
    page = json.loads((AT/'nbs/studies/reuse_results.ipynb').read_text())
    shown = [o for c in page['cells'] if 'study_gains()' in ''.join(c['source']) for o in c['outputs']]
    told,kept = (''.join(o['data']['text/plain']) for o in shown)
    for name,way in (('default','default'), ('two passes','passes 2'), ('six passes','passes 6')):
        line = next(o for o in kept.split('\n') if o.startswith(name))
        assert line.split()[-6:]==[o for rate in ('kept','doubled')
            for o in '{:+.3f} ± {:.3f}'.format(*interpolated_gain(1., rate)[way][:2]).split()]
    for g in (.5, .75, .9):
        for rate in ('untuned','tuned'):
            row = [f"{interpolated_gain(g, rate)[k][2]:.3f}"
                for k in ('default','stored 2','none','passes 2')]
            line = next(o for o in told.split('\n') if o.startswith(f'{rate}, g = {g:g}'))
            assert line.split()[-4:]==row

def test_what_the_page_of_the_study_says_stands_in_it():
    page = (AT/'nbs/studies/reuse_results.ipynb').read_text()
    for rate,way,words in (('untuned','default','+0.065 ± 0.019'), ('tuned','default','+0.019 ± 0.015'),
            ('untuned','stored 2','+0.099 ± 0.035'), ('tuned','passes 3','+0.035 ± 0.014')):
        assert '{:+.3f} ± {:.3f}'.format(*interpolated_gain(1., rate)[way][:2])==words and words in page

ROW = dict(reward=.4, frac_reward_zero_std=.3)
def run(n=8, **more): return [ROW|dict(step=i)|more for i in range(n)]

def test_g_by_hand_in_each_kind_of_record():
    "Ours is timed by batch, TRL's by step; passes and stored groups are taken out"
    trl = lambda **k: dict(trainer='trl', args=dict(steps_per_generation=2, gradient_accumulation_steps=1)|k)
    ours = lambda **k: dict(trainer='grpo_nb', args=dict(steps_per_generation=4)|k)
    of = lambda s, **k: sampling_share(RunColumns(run(**k), settings=s))
    assert of(ours(), generation_time=3., step_time=4.)==pytest.approx(.75)
    assert of(ours(num_iterations=2), generation_time=3., step_time=5.)==pytest.approx(.75)
    assert of(trl(), generation_time=3., step_time=2.)==pytest.approx(.75)
    assert of(trl(replay_stored_per_fresh=2), generation_time=3., step_time=3.)==pytest.approx(.75)
    times = enumerate([(9., 99.), (3., 6.), (5., 10.)])
    timed = [ROW|dict(step=i, generation_time=s, batch_time=b) for i,(s,b) in times]
    assert sampling_share(RunColumns(timed))==pytest.approx(8/16) # the first batch warms up
    assert of({}, generation_time=3., batch_time=4.)==pytest.approx(.75)
    assert of({}, generation_time=3., step_time=4.) is None   # how many steps a batch has, nobody says
    assert of(ours(), generation_time=0., step_time=4.) is None
    assert of(ours(), step_time=4.) is None and of(ours(), generation_time=5., step_time=4.) is None

@pytest.mark.parametrize('sampled,batch', [('timing_s/gen','timing_s/step'),
    ('timing/train/generation','timing/train/total_step_time'), ('perf/rollout_time','perf/step_time')])
def test_logs_of_others_are_read(sampled, batch, tmp_path, capsys):
    rows = [{'step':i, 'critic/rewards/mean':.3+.02*i, sampled:27., batch:30.} for i in range(12)]
    (tmp_path/'m.jsonl').write_text(''.join(json.dumps(o)+'\n' for o in rows))
    assert sampling_share(RunColumns(history_rows(open_run(tmp_path/'m.jsonl'))))==pytest.approx(.9)
    diagnose_command(str(tmp_path/'m.jsonl'))
    assert 'reuse' not in capsys.readouterr().out   # research that nobody asked for
    diagnose_command(str(tmp_path/'m.jsonl'), reuse=True)
    out = capsys.readouterr().out
    assert 'reuse: sampling takes 90% of a step' in out and 'post hoc' in out
    assert 'replay_' not in out and 'num_iterations' not in out   # settings that this trainer has not

def timed(g, dead=.3, trainer='grpo_nb', **args):
    "A run of which sampling takes a share `g` of a step with one pass"
    rows = run(12, generation_time=10*g, step_time=10., frac_reward_zero_std=dead)
    return reuse_advice(rows, settings=dict(trainer=trainer, args=args))

def shown(text, way):
    "The numbers in the line of a way: kept, doubled, each at its best"
    line = next(o.strip() for o in text.split('\n') if o.strip().startswith(way))
    return [float(o.replace('−', '-')) for o in line[len(way):].split() if o!='±']

@pytest.mark.parametrize('g', [.1, .38, .6, .94])
def test_each_way_is_shown_with_what_the_study_measured_at_this_share(g):
    text = timed(g)
    ways = {'dead groups replaced':'default', 'two stored groups beside each fresh one':'stored 2',
        'two passes over each batch':'passes 2', 'three passes over each batch':'passes 3'}
    for words,way in ways.items():
        want = [x for rate in ('kept','doubled','tuned') for x in interpolated_gain(g, rate)[way][:2]]
        assert shown(text, words)==pytest.approx(want, abs=.00051)
    assert max(map(len, text.split('\n')))<=100

def test_what_the_registered_study_found_is_told_beside_it():
    page = json.loads((AT/'nbs/studies/practice_results.ipynb').read_text())
    shown = ''.join(''.join(o['data']['text/plain']) for c in page['cells'] for o in c.get('outputs', [])
        if 'text/plain' in o.get('data', {}))
    for times,name in ((1, 'kept'), (2, 'doubled')):
        claim = f'replay_default at {times} − plain at {times}'
        line = next(o for o in shown.split('\n') if o.startswith(claim))
        assert f"{name} {' '.join(line.split()[7:10])}" in timed(.5), line

def test_no_way_is_advised_that_lost_at_the_rate_one_has():
    "Near 1 as well, where passes win at a lower rate only; stored groups from where they are ahead"
    for g in (.2, .5, .8, .9, .97, 1.-1e-9):
        text = timed(g)
        gain,half,_ = interpolated_gain(g, 'kept')['stored 2']
        assert ('or keep two stored groups' in text)==(gain>half)
        assert 'need a lower learning_rate: half of it' in text and 'replace dead groups:' in text
        assert interpolated_gain(g, 'kept')['passes 2'][0]<interpolated_gain(g, 'kept')['passes 2'][1]
    assert 'or keep two stored' in timed(1.-1e-9) and 'or keep two stored' not in timed(.9)
    assert 'replay_correction="weight=none"' in timed(.99)
    assert 'replay_weight="none"' in timed(.99, trainer='trl', steps_per_generation=1)

def test_nothing_is_promised_where_nothing_lives():
    text = timed(.9, dead=1.)
    assert 'every group was dead' in text and '±' not in text
    assert 'few groups are dead' in timed(.9, dead=.01)

def test_a_run_that_replaces_dead_groups_is_left_alone():
    rows = [o|{'replay/buffer_size':4.} for o in run(12)]
    assert 'nothing to change' in reuse_advice(rows) and verdict(rows).reuse==''
    for name in HEALTHY[:3]:
        r = stored(name)
        if 'plain' in name: continue
        assert 'Reuse' not in str(verdict(history_rows(r), groups=r.rows, settings=r.settings))

def test_a_verdict_has_a_line_for_dead_groups_that_nothing_replaces():
    line = str(verdict(run())).split('\n')[-1]
    assert line.startswith('Reuse: 30% of the groups were dead') and '--reuse' in line and len(line)<110
    for dead in (0., .04, 1.):
        assert 'Reuse' not in str(verdict([o|dict(frac_reward_zero_std=dead) for o in run()]))
    for rows in ([], [dict(step=i, reward=.4) for i in range(8)]): assert 'Reuse' not in str(verdict(rows))

def test_dead_groups_by_kind_and_coverage_are_told():
    groups = [dict(step=s, group=g, rewards=[1., float(s>5), 0.] if g else [0.]*3, dead=g==0,
        dead_reason='all-wrong',
        completions=['a','b','c'] if s%2 else ['a']*3) for s in range(12) for g in range(2)]
    told = reuse_advice(run(12), groups)
    assert '6 one text, 6 all wrong' in told and 'a right answer in 50% of the groups' in told
    unjudged = [dict(step=12, group=g, rewards=o) for g,o in enumerate([None, [], [1., None, 0.]])]
    assert 'a right answer in 50% of the groups' in reuse_advice(run(12), groups+unjudged)

# ---- the whole paragraph over drawn runs, beside one written apart from it

def gains_by_hand(g, rate, way):
    "Straight lines between the rows of the shipped table"
    x = sorted((float(o['g']), float(o['gain']), float(o['half'])) for o in shipped()
        if (o['rate'], o['way'])==(rate, way))
    if g<=x[0][0]: return x[0][1:]
    for a,b in zip(x, x[1:]):
        if g<=b[0]: return [p+(q-p)*(g-a[0])/(b[0]-a[0]) for p,q in zip(a[1:], b[1:])]
    return x[-1][1:]

def told_of(x): return ' to '.join(dict.fromkeys(f'{sum(o)/len(o):.0%}' for o in (x[:max(2, len(x)//4)],
    x[-max(2, len(x)//4):])))

def paragraph_by_hand(rows, groups, settings):
    args,trainer = settings.get('args', {}),settings.get('trainer')
    words = TABLE['reuse']
    # the share of sampling in a step with one pass over its batch; the first batch warms up
    def late(name): return [o[name] for o in rows if name in o][1:]
    s,batch = late('generation_time') or late('rollout_time'),late('batch_time')
    if not batch:
        steps = args.get('steps_per_generation')
        passes = args.get('num_iterations', 1)
        steps_of_a_batch = steps*passes//args.get('gradient_accumulation_steps', 1) if steps else 0
        batch = [(1 if trainer=='grpo_nb' else steps_of_a_batch)*o for o in late('step_time')]
    g = None
    if s and batch and 0<sum(s)/len(s)<sum(batch)/len(batch):
        s,batch = sum(s)/len(s),sum(batch)/len(batch)
        done = args.get('num_iterations', 1)*(1+args.get('replay_stored_per_fresh', 0))
        g = s/(s+(batch-s)/done)
    lines = [f'sampling takes {g:.0%} of a step with one pass over its batch' if g else words['no_seconds']]
    z = [o['frac_reward_zero_std'] for o in rows if 'frac_reward_zero_std' in o]
    if z: lines.append(f'seen: {told_of(z)} of the groups dead')
    judged = [o for o in groups if o['rewards'] and None not in o['rewards']]
    top = max((x for o in groups for x in o['rewards'] if x is not None), default=0)
    if len(judged)>=8 and top:
        right = [float(max(o['rewards'])>=.999*top) for o in judged]
        lines.append(f'seen: a right answer in {told_of(right)} of the groups')
        kinds = {}
        for o in judged:
            if not o['dead']: continue
            same = len(o['completions'])>1 and o['completions'][0] and len({*o['completions']})==1
            kind = 'one text' if same else (o['dead_reason'] or 'equal').replace('-', ' ')
            kinds[kind] = kinds.get(kind, 0)+1
        first = [*kinds]   # as often: as they came
        told = [f'{kinds[k]} {k}' for k in sorted(kinds, key=lambda k: (-kinds[k], first.index(k)))]
        if told: lines.append(f"seen: dead groups on record: {', '.join(told)}")
    ess = [o['replay/ess_answers'] for o in rows if 'replay/ess_answers' in o]
    if ess: lines.append(f'seen: effective sample size {told_of(ess)} of the replayed answers')
    if z and min(z)==1: return '\n    '.join([*lines, f"do:   {words['all_dead']}"])
    dead = sum(z)/len(z) if z else 1.
    replaces = any('replay/'+k in o for o in rows for k in ('buffer_size','age_mean','ess','ess_answers'))
    replaces = replaces or any(o.get('replay/replaced') for o in rows)
    do = [words['few'] if dead<.05 else words['does'] if replaces else words['replace']]
    ours = trainer in ('grpo_nb','trl')
    if dead>=.05 and not ours: do.append(words['elsewhere'])
    if g is not None:
        gain,half = gains_by_hand(g, 'kept', 'stored 2')
        if gain>half:
            do.append(words['stored'])
            own = 'replay_correction="weight=none"' if trainer=='grpo_nb' else 'replay_weight="none"'
            if ours: do.append(f'(replay_stored_per_fresh=2, {own}, replay_buffer_size=256)')
        do.append(words['passes'] if ours else words['passes_elsewhere'])
    lines += [f'do:   {do[0]}', *[f'      {o}' for o in do[1:]], words['table']]
    lines.append(f"{words['rates']:<44}{'kept':<18}{'doubled':<18}each at its best")
    for way,name in TABLE['ways'].items():
        if g is None and way!='default': continue   # a pass more costs what nobody measured here
        cells = ['{:+.3f} ± {:.3f}'.format(*gains_by_hand(g or 0., rate, way)).replace('-', '−')
            for rate in ('kept','doubled','tuned')]
        lines.append(f'  {name:<42}{cells[0]:<18}{cells[1]:<18}{cells[2]}')
    return '\n    '.join([*lines, words['again'], f"sure: {words['sure']}"])

@st.composite
def runs_to_advise(draw):
    n,trainer = draw(st.integers(1, 9)),draw(st.sampled_from([None, 'grpo_nb', 'trl', 'verl']))
    args = draw(st.fixed_dictionaries({}, optional=dict(steps_per_generation=st.sampled_from([2, 4]),
        gradient_accumulation_steps=st.just(2), num_iterations=st.sampled_from([1, 3]),
        replay_stored_per_fresh=st.sampled_from([1, 2]))))
    signs = st.sampled_from(['replay/ess_answers','replay/buffer_size','replay/age_mean','replay/ess',
        'replay/replaced'])
    sampled = st.sampled_from([[], ['generation_time'], ['rollout_time'], ['rollout_time','generation_time']])
    whole = st.sampled_from([[], ['step_time'], ['step_time'], ['batch_time'], ['step_time','batch_time']])
    some = {*draw(sampled), *draw(whole), *draw(st.just([]) | st.sets(signs))}
    dead = draw(st.sampled_from([None, [1.], [0., .09], [0., .1], [0., .125], [.25, .5], [.75, 1.]]))
    sampling = draw(st.sampled_from([0., 1., 4.]))
    each = dict(generation_time=sampling, rollout_time=2., batch_time=4., step_time=5.)
    rows = []
    for i in range(n):
        slow = 1+i%2/8 if i else 3.   # the first batch warms up
        o = dict(step=i)|{k:each[k]*slow if k in each else .5+i%2/16 for k in some}
        if 'replay/replaced' in some: o['replay/replaced'] = float(i==n-1)
        if dead: o['frac_reward_zero_std'] = dead[i%len(dead)]
        rows.append(o)
    top = draw(st.sampled_from([0., 1., 4.]))
    def group(i):
        rewards = draw(st.sampled_from([[0., top], [top/2, top], [0., 0.], [top*.9985, 0.], [None, top], []]))
        return dict(step=i, group=0, rewards=rewards, dead=draw(st.booleans()),
            dead_reason=draw(st.sampled_from([None, 'all-wrong', 'all-right'])),
            completions=draw(st.sampled_from([['a', 'a'], ['a', 'b'], ['', ''], ['a']])))
    groups = [group(i) for i in range(draw(st.sampled_from([0, 7, 8, 9, 13])))]
    return rows,groups,dict(trainer=trainer, args=args)

@settings(max_examples=100, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck))
@given(runs_to_advise())
def test_the_paragraph_is_the_one_written_line_by_line(run):
    assert reuse_advice(*run)==paragraph_by_hand(*run)
