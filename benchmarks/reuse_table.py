"""What reuse gained in the study, by the share of a plain step that is sampling: writes the small table that
the page of the study shows, `python benchmarks/reuse_table.py`. Half a minute; `tests/test_reuse.py` holds it
to the rows."""
import sys
from functools import cache
from pathlib import Path
import numpy as np, pandas as pd
from grpo_nb.parts.stats import mean_ci
from grpo_nb.studies.stacked import FAMILIES
from grpo_nb.studies.replay_study import chosen, numbers, registration, span_of, tries
from grpo_nb.studies.study import read_rows
sys.path.append(str(Path(__file__).resolve().parents[1]/'tests'))   # their helpers
from notebook_code import defined_in

AT,PAGE = Path(__file__).parent.parent,defined_in('studies/reuse_results')
WAYS = dict(plain='none', replay_default='default', mu2='passes 2', mu3='passes 3', stored3='stored 2',
    mu6='passes 6', stored6='stored 5')
SHARES = 0., .25, .5, .6, .7, .75, .8, .9, 1.

def task(cell): return FAMILIES[cell].after or cell

def gains(values):
    "Way minus plain GRPO, mean over tasks and half-width: values is cell -> arm -> score"
    d = pd.DataFrame(values).T
    by_task = d.sub(d.plain, axis=0).groupby(task).mean()
    return {a:mean_ci(by_task[a]) for a in d}

@cache
def scores(g):
    """Kind of rate -> cell -> arm -> score at equal cost, where sampling is a share g of a plain step.
    'kept' is plain GRPO's best, for each seed chosen on the seeds of the other half, and 'doubled' twice that
    """
    plan = registration(AT/'nbs/studies/registration_reuse.qmd')
    df = read_rows(AT/'nbs/studies/rows/reuse_study.csv', ('registered',))
    df,seeds = df[df.arm.isin(WAYS)],plan['seeds']['main']
    span = {c:span_of(c, tries(df, seeds), plan) for c in plan['definitions']['families']}
    def share(arm):
        o = plan['definitions']['arms'][arm]
        cost = g+(1-g)*o['passes']*o['parts']*8/o['fresh']   # of a batch, in plain GRPO's
        return 1/cost if cost>1 else 2   # 2: the whole run
    seen = numbers(df, plan, share)
    def untuned(c, a): return np.mean([v for l in span[c] for v in seen[c][a,l].values()])
    def tuned(c, a): return PAGE.best_of(seen[c], [a], seeds)
    def kept(c, a, times=1):
        best = chosen(seen[c], ['plain'], seeds)
        def near(l): return next(k for arm,k in seen[c] if arm==a and abs(k/l-1)<1e-6)
        return np.mean([seen[c][a,near(times*l)][s] for s,(_,l) in best.items()])
    kinds = dict(kept=kept, doubled=lambda c, a: kept(c, a, 2), tuned=tuned, untuned=untuned)
    return {k:{c:{a:f(c, a) for a in WAYS} for c in seen} for k,f in kinds.items()}

def table(shares=SHARES):
    "A row per share, kind of rate and way; regret is what the best way of each cell has more, on average"
    out = []
    for g in shares:
        for rate,values in scores(g).items():
            gain = gains(values)
            for a,way in WAYS.items():
                d,h = gain[a]
                lost = PAGE.regret(dict.fromkeys(values, a), values)
                out.append(dict(g=g, rate=rate, way=way, gain=d, half=h, regret=lost))
    return pd.DataFrame(out).round(3)

if __name__=='__main__': table().to_csv(AT/'nbs'/'results'/'reuse_gains.csv', index=False)
