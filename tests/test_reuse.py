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
