"The paragraph on reuse: its table against the study's rows, g by hand in every record, a line in a verdict"
import csv, gzip, json
from collections import defaultdict
from importlib.resources import files
import numpy as np
import pytest
from grpo_nb.see.findings import RunColumns
from grpo_nb.see.readers import open_run
from grpo_nb.see.verdict import interpolated_gain, reuse_advice, sampling_share, verdict
from grpo_nb.cli import diagnose as diagnose_command
from grpo_nb.see.readers import history_rows
from stored_runs import HEALTHY, stored
from reuse_table import AT, table

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

UPDATES = dict(plain=1, replay_default=1, mu2=2, mu3=3, stored3=3, mu6=6, stored6=6)

@pytest.fixture(scope='module')
def runs():
    "(cell, arm, rate) -> seed -> curve, of the study's rows"
    out = defaultdict(dict)
    for o in csv.DictReader(gzip.open(AT/'nbs/studies/rows/reuse_study.csv.gz', 'rt', encoding='utf-8')):
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
