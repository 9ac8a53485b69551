"""B and C of the study of reuse, counted again from its CSVs without a line of the package

    python tests/studies/recount_reuse.py

Roads: spans and areas at the best rate, task by task. Slopes: sums of products, and what another predictor
leaves. Regrets: every threshold tried in a plain loop, areas cut where the tokens end.
"""
import csv, json, sys
from functools import cache
from pathlib import Path
from scipy.stats import t
sys.path.insert(0, str(Path(__file__).parent))
from recount_study import (
    by_the_other_half, mean_on_the_way, mixed, open_table, registered, runs_of, spread, stepwise)

HERE = Path(__file__).parents[2]/'nbs'/'studies'
TABLE,LOOK = (HERE/'rows'/f'reuse_study{k}.csv' for k in ('', '_look'))
PAGE = HERE/'registration_reuse.qmd'
ROADS = [('mu3','plain'), ('mu6','mu3'), ('big3','plain'), ('big6','big3'), ('stored3','plain'),
    ('stored6','stored3')]
FREE = ['plain','mu2','mu3','big3']

@cache
def runs_in(table, *seeds): return runs_of(table, seeds)   # the stored table is read once

def task_of(plan): return {c:f['after'] or c for c,f in plan['definitions']['families'].items()}

def five_rates(runs, cell, plan):
    "The cell's rates: plain GRPO's best and two rungs to each side, inside the ladder"
    ladder,n = plan['ladder'],len(plan['seeds']['main'])
    mean = {l:sum(o.values())/n for l,o in runs[cell]['plain'].items() if len(o)==n}
    at = ladder.index(max(mean, key=lambda l: (mean[l], -l)))
    at = max(2, min(at, len(ladder)-3))
    return ladder[at-2:at+3]

def by_task(numbers, plan):
    "(arm, cell, seed) -> number; the same by task, mean of its starts"
    task,out = task_of(plan),{}
    for (a,c,s),v in numbers.items(): out.setdefault((a, task[c], s), []).append(v)
    return {k:sum(v)/len(v) for k,v in out.items()}

def recount_roads(table=TABLE, page=PAGE):
    "C: measure -> (arm -> mean over tasks, (arm, baseline) -> (difference, half its 95 % interval))"
    plan = registered(page)
    seeds,runs = plan['seeds']['main'],runs_in(table, *plan['seeds']['main'])
    span,best = {},{}
    for c,arms in runs.items():
        five = five_rates(runs, c, plan)
        for a in arms:
            for s in seeds: span[a,c,s] = sum(arms[a][l][s] for l in five)/5
            for s,(_,l) in by_the_other_half(arms, [a], seeds).items(): best[a,c,s] = arms[a][l][s]
    out = {}
    for name,numbers in (('span', span), ('best', best)):
        d = by_task(numbers, plan)
        tasks = sorted(set(task_of(plan).values()))
        def mean(a): return sum(d[a,k,s] for k in tasks for s in seeds)/len(tasks)/len(seeds)
        def apart(a, b):
            m,error = mixed({k:[d[a,k,s]-d[b,k,s] for s in seeds] for k in tasks})
            return m,t.ppf(.975, len(tasks)-1)*error
        out[name] = {a:mean(a) for a in plan['arms']['main']},{(a, b):apart(a, b) for a,b in ROADS}
    return out

def recount_looks(look=LOOK):
    "cell -> (fall of pass@16, share of groups without a right answer)"
    out = {}
    with open_table(look) as f:
        for o in csv.DictReader(f):
            curve = json.loads(o['curve'])
            fall = curve[0]['several']-curve[-1]['several']
            out.setdefault(o['regime'], []).append((fall, float(o['wrong'])))
    return {c:tuple(sum(v)/len(v) for v in zip(*rows)) for c,rows in out.items()}

def recount_gains(table=TABLE, page=PAGE):
    "cell -> gain of stored groups at 3 and at 6 updates over the best without a buffer"
    plan = registered(page)
    seeds,out = plan['seeds']['main'],{}
    for c,arms in runs_in(table, *seeds).items():
        def mean(which):
            return sum(arms[a][l][s] for s,(a,l) in by_the_other_half(arms, which, seeds).items())/len(seeds)
        out[c] = mean(['stored3'])-mean(FREE),mean(['stored6'])-mean([*FREE,'mu6','big6'])
    return out

def straight(x, y):
    "Slope of the least-squares line: products over squares, both from the mean"
    a,b = sum(x)/len(x),sum(y)/len(y)
    return sum((p-a)*(q-b) for p,q in zip(x, y))/sum((p-a)**2 for p in x)

def what_is_left(y, z):
    "y without its straight line on z"
    k,a,b = straight(z, y),sum(y)/len(y),sum(z)/len(z)
    return [p-a-k*(q-b) for p,q in zip(y, z)]

def recount_slope(x, y, task, beside=None):
    "cell -> number, twice; slope and half its 95 % interval, leaving out one task at a time"
    def fit(cells):
        p,q = [x[c] for c in cells],[y[c] for c in cells]
        if beside: p = what_is_left(p, [beside[c] for c in cells])
        return straight(p, q)
    tasks = sorted({task[c] for c in x})
    left = [fit([c for c in x if task[c]!=k]) for k in tasks]
    mean,n = sum(left)/len(left),len(left)
    return fit(list(x)),t.ppf(.975, n-1)*((n-1)/n*sum((o-mean)**2 for o in left))**.5

def until(curve, tokens):
    "Mean pass@1 until so many tokens"
    kept = [o for o in curve if o['tokens']<tokens]
    after = [o for o in curve if o['tokens']>=tokens]
    if not after: return mean_on_the_way(curve)
    a,b = kept[-1],after[0]
    at = a['pass1']+(tokens-a['tokens'])/(b['tokens']-a['tokens'])*(b['pass1']-a['pass1'])
    return mean_on_the_way([*kept, dict(tokens=tokens, pass1=at)])

def recount_regrets(x, g, table=TABLE, page=PAGE):
    "threshold, then the mean regret in the cells to confirm of the rule, always, never, mu2"
    plan = registered(page)
    seeds,three,value = plan['seeds']['main'],('plain','mu2','stored3'),{}
    updates = dict(plain=1, mu2=2, stored3=3)
    areas = {}
    with open_table(table) as f:
        for o in csv.DictReader(f):
            if o['arm'] not in three: continue
            budget = plan['definitions']['families'][o['regime']]['budget']
            tokens = budget/(g+(1-g)*updates[o['arm']])
            at = areas.setdefault(o['regime'], {}).setdefault(o['arm'], {})
            number = until(json.loads(o['curve']), tokens)
            at.setdefault(float(o['learning_rate']), {})[int(o['seed'])] = number
    for c,arms in areas.items():
        value[c] = {a:sum(arms[a][l][s] for s,(_,l) in by_the_other_half(arms, [a], seeds).items())/len(seeds)
            for a in three}
    def lost(c, a): return max(value[c].values())-value[c][a]
    def rule(cells, mark): return sum(lost(c, 'stored3' if x[c]>=mark else 'mu2') for c in cells)/len(cells)
    first,second = plan['discover'],plan['confirm']
    seen = sorted({x[c] for c in first})
    marks = [seen[0]-1]+[(a+b)/2 for a,b in zip(seen, seen[1:])]+[seen[-1]+1]
    losses = [rule(first, m) for m in marks]
    equal = [m for m,o in zip(marks, losses) if o<min(losses)+1e-9]
    mark = equal[(len(equal)-1)//2]
    constant = [sum(lost(c, a) for c in second)/len(second) for a in ('stored3','plain','mu2')]
    return [mark, rule(second, mark), *constant]

def recount_why(table, page, rank=None, cells=None):
    """The contrasts of the experiments that ask why: name -> (difference, half its interval, p, Holm's p)

    `rank`: the first or the second rate of each cell only; `cells`: only these; None: runs are missing.
    """
    plan = registered(page)
    seeds,runs,number = plan['seeds']['main'],runs_of(table, plan['seeds']['main']),{}
    for arm in plan['arms']['main']:
        for s in seeds:
            each = [runs.get(c, {}).get(arm, {}).get(l, {}).get(s) for c in cells or plan['rates']
                for l in (plan['rates'][c] if rank is None else [plan['rates'][c][rank]])]
            if None in each: return None
            number[arm,s] = sum(each)/len(each)
    out = {}
    for name,weights in plan['contrasts'].items():
        d = [sum(w*number[a,s] for a,w in weights.items()) for s in seeds]
        mean,error = sum(d)/len(d),spread(d)
        out[name] = mean,t.ppf(.975, len(d)-1)*error,2*t.sf(abs(mean)/error, len(d)-1)
    return {k:(*o, h) for (k,o),h in zip(out.items(), stepwise([o[2] for o in out.values()]))}

if __name__=='__main__':
    plan = registered(PAGE)
    for name,(means,apart) in recount_roads().items():
        print(name, *(f'{a} {v:.3f}' for a,v in means.items()))
        for (a,b),(m,h) in apart.items(): print(f'  {a} - {b} {m:+.3f} ± {h:.3f}')
    seen,gains = recount_looks(),recount_gains()
    fall,wrong = ({c:o[i] for c,o in seen.items()} for i in (0, 1))
    for i,u in enumerate((3, 6)):
        y = {c:o[i] for c,o in gains.items()}
        for name,x,other in (('fall', fall, wrong), ('wrong', wrong, fall)):
            both = recount_slope(x, y, task_of(plan)),recount_slope(x, y, task_of(plan), other)
            print(f'{u} updates, gain on {name}:', *('%+.3f ± %.3f' % o for o in both))
    for name,x in (('fall', fall), ('wrong', wrong)):
        for g in (.5, .75, .9): print(name, g, *(f'{o:.3f}' for o in recount_regrets(x, g)))
