"The record of every registered claim: counted from rows by another way, and pages' numbers are its numbers"
import json, re
from pathlib import Path
import numpy as np, pandas as pd, pytest
from scipy.stats import t as student, ttest_1samp
from grpo_nb.studies.registered_claims import claim_text, read_claims
from grpo_nb.studies.replay_study import read_plan

pytestmark = pytest.mark.studies
NBS = Path(__file__).parents[2]/'nbs'
CLAIMS = read_claims(NBS/'studies'/'claims.csv')

def areas(table):
    "Task, seed, arm with its multiple -> area, by trapezoids of its own"
    df = pd.read_csv(NBS/'studies'/'rows'/f'{table}.csv.xz', keep_default_na=False)
    def area(text):
        x,y = np.array([[o['tokens'], o['pass1']] for o in json.loads(text)]).T
        return ((y[1:]+y[:-1])/2*np.diff(x)).sum()/x[-1]
    arm = df.arm+' at '+df.settings.map(lambda o: f"{json.loads(o)['multiple']:g}")
    return pd.Series([area(o) for o in df.curve], [df.regime, df.seed, arm])

def test_the_scaled_studys_claims_are_those_of_a_second_count():
    "With as many seeds in every task the random-effects mean is the mean of task means, a t over eight tasks"
    mean = areas('scaled_study').groupby(level=[0, 2]).mean().unstack()
    plan = read_plan(NBS/'studies'/'registration_scaled.qmd')
    p = {}
    for a,b in plan['claims']:
        d,o = mean[a]-mean[b],CLAIMS.loc[f'scaled: {a} - {b}']
        assert o.plan==plan['hash'] and o.estimate==pytest.approx(d.mean(), abs=2e-5)
        if d.std()/8**.5*student.ppf(.975, 7)>=.98*o.half:   # tasks differ by more than their noise
            assert o.half==pytest.approx(student.ppf(.975, 7)*d.std()/8**.5, rel=.02)
            assert o.p==pytest.approx(ttest_1samp(d, 0).pvalue, rel=.1)
        p[a, b] = o.p
    ranks = sorted(p, key=p.get)
    holm,worst = {},0.
    for k,key in enumerate(ranks): worst = holm[key] = max(worst, min(1., (len(ranks)-k)*p[key]))
    for (a,b),want in holm.items(): assert CLAIMS.holm[f'scaled: {a} - {b}']==pytest.approx(want, rel=1e-3)

def test_each_claim_of_a_page_is_there_once_and_its_verdict_follows_from_holm():
    assert CLAIMS.index.is_unique and (CLAIMS.half>0).all() and (CLAIMS.holm>=CLAIMS.p-1e-9).all()
    want = np.where(CLAIMS.holm>=.05, 'undecided', np.where(CLAIMS.estimate>0, 'above 0', 'below 0'))
    assert (CLAIMS.verdict==want).all()

@pytest.mark.parametrize('claim,text', [('scaled: replay_default at 2 - scaled at 2', '−1.1 ± 3.7'),
    ('scaled: replay_default at 1 - scaled at 1', '2.9 ± 1.5')])
def test_the_first_page_has_the_claims_numbers(claim, text):
    o = CLAIMS.loc[claim]
    mine = claim_text(pd.Series(dict(estimate=100*o.estimate, half=100*o.half)), 1)
    assert mine.replace('-', '−').removeprefix('+')==text
    assert text in re.sub(r'\s+', ' ', (NBS.parent/'README.md').read_text(encoding='utf-8'))

def test_the_first_page_has_the_means_of_the_rows():
    mean = 100*areas('scaled_study').groupby(level=2).mean()
    page = (NBS.parent/'README.md').read_text(encoding='utf-8')
    rows = dict(re.findall(r'^\| ([^|]+) \| ([\d.]+ \| [\d.]+ \| [\d.]+) \|$', page, re.M))
    arms = ('plain','replay_default','scaled','replay_scaled','plain_warmup')
    for (name,cells),arm in zip(rows.items(), arms, strict=True):
        one,two,four = (mean[f'{arm} at {k}'] for k in (1, 2, 4))
        assert cells==f'{one:.1f} | {two:.1f} | {four:.0f}', (name, arm)
