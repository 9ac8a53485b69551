"The table of the study's gains against its rows, and the page that shows it"
import csv, json, lzma
from collections import defaultdict
from functools import cache
import numpy as np
import pytest
from reuse_table import AT, table

@cache
def shipped():
    text = (AT/'nbs/results/reuse_gains.csv').read_text()
    return list(csv.DictReader(text.splitlines()))

def test_the_shipped_table_is_that_of_the_rows():
    some = [o for o in shipped() if float(o['g']) in (.8, 1.)]
    got = table((.8, 1.)).to_dict('records')
    assert len(some)==len(got)==56
    numbers = 'gain','half','regret'
    for a,b in zip(some, got):
        assert (float(a['g']), a['rate'], a['way'])==(b['g'], b['rate'], b['way'])
        assert [float(a[k]) for k in numbers]==pytest.approx([b[k] for k in numbers], abs=1e-9)

def gains_at(g, rate):
    "way -> (gain, half-width, regret) in the table"
    return {o['way']:tuple(float(o[k]) for k in ('gain','half','regret'))
        for o in shipped() if (float(o['g']), o['rate'])==(g, rate)}

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
    assert gains_at(.8, 'untuned')['stored 2'][:2]==pytest.approx((np.mean(task), half), abs=.0015)

@pytest.mark.parametrize('g', [.5, .75, .9])
def test_its_regrets_by_other_code(counted, g):
    "What the best of seven ways has more, mean over 16 cells"
    cells,at = counted(g),gains_at(g, 'untuned')
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
        assert gains_at(g, rate)[name][:2]==pytest.approx((np.mean(task), half), abs=.0015), name

def test_the_page_of_the_study_shows_the_regrets_that_the_doctor_tells():
    page = json.loads((AT/'nbs/studies/reuse_results.ipynb').read_text())
    shown = [o for c in page['cells'] if 'study_gains()' in ''.join(c['source']) for o in c['outputs']]
    told,kept = (''.join(o['data']['text/plain']) for o in shown)
    for name,way in (('default','default'), ('two passes','passes 2'), ('six passes','passes 6')):
        line = next(o for o in kept.split('\n') if o.startswith(name))
        assert line.split()[-6:]==[o for rate in ('kept','doubled')
            for o in '{:+.3f} ± {:.3f}'.format(*gains_at(1., rate)[way][:2]).split()]
    for g in (.5, .75, .9):
        for rate in ('untuned','tuned'):
            row = [f"{gains_at(g, rate)[k][2]:.3f}"
                for k in ('default','stored 2','none','passes 2')]
            line = next(o for o in told.split('\n') if o.startswith(f'{rate}, g = {g:g}'))
            assert line.split()[-4:]==row

ROW = dict(reward=.4, frac_reward_zero_std=.3)
def run(n=8, **more): return [ROW|dict(step=i)|more for i in range(n)]
