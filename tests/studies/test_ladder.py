"The ladder's table and claims beside a count by other code"
import json
from pathlib import Path
import numpy as np, pandas as pd, pytest
from scipy.stats import t, ttest_rel
from grpo_nb.studies.study import table_file
from grpo_nb.studies.ladder import at_common_rate, at_own_rate, is_complete, ladder_claims, ladder_table
from grpo_nb.studies.replay_study import planned, registration

PLAN = registration(Path(__file__).parents[2]/'nbs'/'studies'/'registration_ladder.qmd')

@pytest.fixture(scope='module')
def rows():
    "A complete table: each arm best at a rate of its own, and noise of each run"
    rng,out = np.random.default_rng(0),[]
    arms,rates = PLAN['arms']['main'],PLAN['rates']['sorting']
    for o in [o for job in planned(PLAN, 'main') for o in job]:
        far = abs(rates.index(o['learning_rate'])-arms.index(o['arm'])%5)
        area = round(.4+.01*arms.index(o['arm'])-.02*far+.02*rng.normal(), 5)
        curve = [dict(tokens=k, pass1=area) for k in (0, 30_000)]
        out.append(o|dict(error='', area=area, curve=json.dumps(curve), pass1=area, dead=.5, ess=1.))
    return pd.DataFrame(out)

def by_hand(rows, arm):
    "Seed -> area at the rate that is best on the other four seeds"
    seeds = PLAN['seeds']['main']
    area = {(o.learning_rate, o.seed):o.area for o in rows[rows.arm==arm].itertuples()}
    def best(some): return max(PLAN['rates']['sorting'], key=lambda r: sum(area[r, s] for s in some))
    of = {s:best(seeds[4:] if s in seeds[:4] else seeds[:4]) for s in seeds}
    return np.array([area[of[s], s] for s in seeds])

def test_an_arm_counts_at_the_rate_that_the_other_half_of_the_seeds_chose(rows):
    own = at_own_rate(rows, PLAN)
    for arm in PLAN['arms']['main']: assert own[arm].tolist()==pytest.approx(by_hand(rows, arm).tolist())

def test_the_claims_are_paired_t_tests_with_holms_correction_beside_what_was_published(rows):
    got,p = ladder_claims(rows, PLAN),[]
    common = at_common_rate(rows, PLAN)
    for (a,b),o in zip(PLAN['claims'], got.itertuples()):
        x,y = by_hand(rows, a),by_hand(rows, b)
        p.append(ttest_rel(x, y).pvalue)
        assert o.diff==pytest.approx((x-y).mean())
        assert o.diff_ci==pytest.approx(t.ppf(.975, 7)*(x-y).std(ddof=1)/8**.5)
        known = PLAN['published'].get(f'{a} - {b}')
        if known is None: assert o.published==o.same_sign==''
        else:
            assert o.same_sign==(o.diff*known[0]>0)
            assert o.same_sign_at_one_rate==((common[a]-common[b]).mean()*known[0]>0)
    order,worst = np.argsort(p),0.
    for k,i in enumerate(order):
        worst = max(worst, min(1, (len(p)-k)*p[i]))
        assert got.holm.iloc[i]==pytest.approx(worst)
        assert got.says.iloc[i]==('undecided' if worst>=.05 else '+' if got['diff'].iloc[i]>0 else '-')
    assert len(got)==13 and len(PLAN['published'])==10

def test_nothing_is_said_of_an_arm_before_every_row_is_there(rows):
    assert is_complete(rows, PLAN) and len(ladder_table(rows, PLAN))==12
    failed = rows.assign(error=['']*479+['it fails'])
    for part in (rows[1:], failed):
        assert not is_complete(part, PLAN)
        assert len(ladder_table(part, PLAN))==len(ladder_claims(part, PLAN))==0
    assert not is_complete(rows, PLAN, 'again')

def test_the_second_look_is_what_its_rows_give():
    "Three paired differences on the replication's seeds, from the stored rows, counted without the package"
    studies = Path(__file__).parents[2]/'nbs'/'studies'
    page = (studies/'registration_ladder_confirm.qmd').read_text(encoding='utf-8')
    plan = json.loads(page.split('```json')[1].split('```')[0])
    rates,seeds = PLAN['rates']['sorting'],PLAN['seeds']['again']
    def table(name):
        d = pd.read_csv(table_file(studies/'rows'/f'{name}.csv'), keep_default_na=False)
        return d[d.seed.isin(seeds) & (d.error=='')]
    old,new = table('ladder'),table('ladder_look')
    assert len(old)==480 and len(new)==80 and not set(old.arm) & set(new.arm)
    rows = [o for o in [*old.itertuples(), *new.itertuples()] if o.arm in plan['arms']]
    def mean_over_tokens(curve):   # trapezoids
        steps = list(zip(curve, curve[1:]))
        whole = sum((b['tokens']-a['tokens'])*(a['pass1']+b['pass1'])/2 for a,b in steps)
        return whole/curve[-1]['tokens']
    area = {(o.arm, o.learning_rate, o.seed):mean_over_tokens(json.loads(o.curve)) for o in rows}
    assert len(area)==len(rows)==160 and len(seeds)==8
    def of(arm):   # at the rate that is best on the other four seeds
        out = []
        for i,s in enumerate(seeds):
            others = seeds[4:] if i<4 else seeds[:4]
            best = max(rates, key=lambda r: sum(area[arm, r, o] for o in others))
            out.append(area[arm, best, s])
        return np.array(out)
    d = np.array([of(a)-of(b) for a,b in plan['claims']])
    half = t.ppf(.975, 7)*d.std(1, ddof=1)/8**.5
    p = 2*t.sf(abs(d.mean(1))/(d.std(1, ddof=1)/8**.5), 7)
    order,holm = np.argsort(p),np.empty(3)
    worst = 0.
    for k,i in enumerate(order): worst = holm[i] = max(worst, min(1, (3-k)*p[i]))
    cells = json.loads((studies/'ladder.ipynb').read_text(encoding='utf-8'))['cells']
    cell = next(c for c in cells if 'registration_ladder_confirm.qmd' in ''.join(c['source'])
        and c['cell_type']=='code')
    lines = ''.join(cell['outputs'][0]['data']['text/plain']).split('\n')[1:]
    told = {o.split('  ')[0]:[float(x) for x in o.split()[3:7]] for o in lines}
    want = np.stack([d.mean(1), half, p, holm], 1).round(4)
    for (a,b),row in zip(plan['claims'], want):
        assert told[f'{a} - {b}']==pytest.approx(row.tolist(), abs=1.01e-4)   # the page rounds each area
    assert (holm<.05).all() and (d.mean(1)>0).all()
