"""What reuse gained in the study, by the share of a plain step that is sampling: writes the small table that
`diagnose` reads, `python tests/reuse_table.py`. Half a minute; `tests/test_reuse.py` holds it to the rows."""
from pathlib import Path
import numpy as np, pandas as pd
from grpo_nb.parts.core import mean_ci
from grpo_nb.research.families import FAMILIES
from grpo_nb.research.replay_study import best_of, numbers, registration, span_of, tries
from grpo_nb.research.study import read_rows

AT = Path(__file__).parent.parent
WAYS = dict(plain='none', replay_default='default', mu2='passes 2', mu3='passes 3', stored3='stored 2',
    mu6='passes 6', stored6='stored 5')
SHARES = .5, .6, .7, .8, .9, 1.

def gains(values):
    "Way minus plain GRPO, mean over tasks and half-width: values is cell -> arm -> score"
    d = pd.DataFrame(values).T
    task = d.sub(d.plain, axis=0).groupby(lambda c: FAMILIES[c].after or c).mean()
    return {a:mean_ci(task[a]) for a in WAYS if a!='plain'}

def table(shares=SHARES):
    "A row per share of sampling, kind of rate, and way"
    plan = registration(AT/'nbs/project/registration_reuse.qmd')
    df = read_rows(AT/'nbs/results/reuse_study.csv', ('registered',))
    df,seeds,out = df[df.arm.isin(WAYS)],plan['seeds']['main'],[]
    span = {c:span_of(c, tries(df, seeds), plan) for c in plan['definitions']['families']}
    for g in shares:
        def share(arm):
            o = plan['definitions']['arms'][arm]
            cost = g+(1-g)*o['passes']*o['parts']*8/o['fresh']   # of a batch, in plain GRPO's
            return 1/cost if cost>1 else 2   # 2: the whole run
        seen = numbers(df, plan, share)
        def untuned(c, a): return np.mean([v for l in span[c] for v in seen[c][a,l].values()])
        def tuned(c, a): return best_of(seen[c], [a], seeds)
        for rate,f in (('untuned', untuned), ('tuned', tuned)):
            for a,(d,h) in gains({c:{a:f(c, a) for a in WAYS} for c in seen}).items():
                out.append(dict(g=g, rate=rate, way=WAYS[a], gain=round(d, 3), half=round(h, 3)))
    return pd.DataFrame(out)

if __name__=='__main__': table().to_csv(AT/'grpo_nb'/'assets'/'doctor'/'reuse.csv', index=False)
