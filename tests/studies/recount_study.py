"""The claims of the registered study, counted again from its CSV without a line of the package

    python tests/studies/recount_study.py [nbs/studies/rows/replay_study.csv [nbs/studies/registration.qmd]]

The mixed model is solved with whole covariance matrices, and everything else in plain loops.
"""
import csv, json, lzma, re, sys
from pathlib import Path
import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.stats import t

def mean_on_the_way(curve):
    "Mean pass@1 over the tokens spent, by trapezoids"
    total = 0
    for a,b in zip(curve, curve[1:]): total += (b['tokens']-a['tokens'])*(a['pass1']+b['pass1'])/2
    return round(total/curve[-1]['tokens'], 5)

def mixed(differences):
    "Mean, its standard error: y = m + family + noise, by restricted maximum likelihood"
    y = np.concatenate([np.array(o) for o in differences.values()])
    z = np.zeros((len(y), len(differences)))
    at = 0
    for j,o in enumerate(differences.values()):
        z[at:at+len(o),j] = 1
        at += len(o)
    one,same = np.ones(len(y)),z@z.T
    def solve(logs):
        noise,between = np.exp(logs)
        v = cho_factor(noise*np.eye(len(y))+between*same)
        ones = cho_solve(v, one)
        weight = one@ones
        mean = ones@y/weight
        rest = y-mean
        cost = 2*np.log(v[0].diagonal()).sum()+np.log(weight)+rest@cho_solve(v, rest)
        return cost,mean,weight**-.5
    tries = [minimize(lambda o: solve(o)[0], (np.log(y.var()), b), method='Nelder-Mead',
        options=dict(xatol=1e-8, fatol=1e-10, maxiter=4000)) for b in (-30, -12, -8, -4)]
    return solve(min(tries, key=lambda o: o.fun).x)[1:]

def spread(x):
    "Standard error of a mean"
    mean = sum(x)/len(x)
    return (sum((o-mean)**2 for o in x)/(len(x)-1)/len(x))**.5

def stepwise(ps):
    "Holm's p-values: the smallest times n, the next times n-1, and none below one before it"
    out,so_far = {},0.
    for rank,i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        so_far = max(so_far, min(1., (len(ps)-rank)*ps[i]))
        out[i] = so_far
    return [out[i] for i in range(len(ps))]

def open_table(path):
    "The text of a CSV that is at `path`, or compressed beside it"
    packed = Path(f'{path}.xz')
    if packed.exists(): return lzma.open(packed, 'rt', newline='', encoding='utf-8')
    return open(path, newline='', encoding='utf-8')

def registered(page):
    return json.loads(re.search(r'```json\n(.+?)\n```', Path(page).read_text(encoding='utf-8'), re.S)[1])

def recount(table, page, seeds=None):
    "(arm, baseline, difference, half its 95 % interval, p, Holm's p) per claim; None: runs are missing"
    plan = registered(page)
    seeds = plan['seeds'][seeds] if isinstance(seeds, str) else seeds
    runs = {}
    with open_table(table) as f:
        for o in csv.DictReader(f):
            if o['error'] or int(o['seed']) not in seeds: continue
            at = f" at {json.loads(o['settings'])['multiple']}" if 'multiples' in plan else ''
            key = o['regime'],o['arm']+at,int(o['seed'])
            assert key not in runs, f'two rows for {key}'
            runs[key] = mean_on_the_way(json.loads(o['curve']))
    out = []
    for arm,baseline in plan['claims']:
        families = plan['definitions']['families']
        try: d = {f:[runs[f,arm,s]-runs[f,baseline,s] for s in seeds] for f in families}
        except KeyError: return None
        if plan.get('by_family'):
            found = [(f' in {f}', sum(o)/len(o), spread(o), len(o)-1) for f,o in d.items()]
        else: found = [('', *mixed(d), len(d)-1)]
        for where,mean,error,free in found:
            half,p = t.ppf(.975, free)*error,2*t.sf(abs(mean)/error, free)
            out.append([arm, baseline+where, mean, half, p])
    return [(*o, p) for o,p in zip(out, stepwise([o[4] for o in out]))]

def up_to(curve, until):
    "The curve's points below `until` tokens, and one at it on the straight line between its neighbours"
    out = []
    for a,b in zip(curve, [*curve[1:], None]):
        if a['tokens']>=until: break
        out.append(a)
        if b is None: break
        if b['tokens']>=until:
            share = (until-a['tokens'])/(b['tokens']-a['tokens'])
            out.append(dict(tokens=until, pass1=a['pass1']+share*(b['pass1']-a['pass1'])))
    if out[-1]['tokens']<until: out.append(dict(tokens=until, pass1=out[-1]['pass1']))
    return out

def recount_real(table, page, part=None):
    "(difference, half its 95 % interval, p, Holm's p) per claim of the study; None: runs are missing"
    plan,runs = registered(page),{}
    of = plan|plan[part] if part else plan
    with open_table(table) as f:
        for o in csv.DictReader(f):
            if o['error'] or o['arm'] not in of['arms'] or o['regime'] not in of['tasks']: continue
            key = f"{o['arm']} at {float(o['learning_rate']):g}",o['regime'],int(o['seed'])
            assert key not in runs, f'two rows for {key}'
            curve = json.loads(o['curve'])
            runs[key] = mean_on_the_way(up_to(curve, plan['tokens']) if 'tokens' in plan else curve)
    if len(runs)<len(of['arms'])*len(plan['rates'])*len(of['tasks'])*len(plan['seeds']): return None
    out = []
    for a,b in of['claims']:
        d = [sum(runs[a,k,s]-runs[b,k,s] for k in of['tasks'])/len(of['tasks']) for s in plan['seeds']]
        mean,error,free = sum(d)/len(d),spread(d),len(d)-1
        out.append((mean, t.ppf(.975, free)*error, 2*t.sf(abs(mean)/error, free)))
    return [(*o, p) for o,p in zip(out, stepwise([o[2] for o in out]))]

def runs_of(table, seeds):
    "cell -> arm -> rate -> seed -> mean on the way"
    out = {}
    with open_table(table) as f:
        for o in csv.DictReader(f):
            if o['error'] or int(o['seed']) not in seeds: continue
            at = out.setdefault(o['regime'], {}).setdefault(o['arm'], {})
            at = at.setdefault(float(o['learning_rate']), {})
            assert int(o['seed']) not in at, 'two rows of one run'
            at[int(o['seed'])] = mean_on_the_way(json.loads(o['curve']))
    return out

def spans_by_hand(table, plan, cells):
    "(arm, task, seed) -> means over five rates around plain GRPO's best, one per cell; None: some missing"
    seeds,ladder,families = plan['seeds']['main'],plan['ladder'],plan['definitions']['families']
    runs,spans = runs_of(table, seeds),{}
    for cell in cells:
        whole = {l:sum(o.values())/len(o) for l,o in runs[cell]['plain'].items() if len(o)==len(seeds)}
        centre = max(whole, key=lambda l: (whole[l], -l))
        at = min([ladder.index(centre), len(ladder)-3] if ladder.index(centre)>1 else [2])
        for arm in {a for c in plan['claims'] for a in c}:
            for s in seeds:
                five = [runs[cell].get(arm, {}).get(l, {}).get(s) for l in ladder[at-2:at+3]]
                if None in five: return None
                spans.setdefault((arm, families[cell]['after'] or cell, s), []).append(sum(five)/5)
    return spans

def claims_over_tasks(plan, values):
    "Each registered difference, the task as the random effect; `values` by (arm, task, seed), one per start."
    mean,out = {k:sum(o)/len(o) for k,o in values.items()},[]
    for arm,baseline in plan['claims']:
        d = {}
        for a,task,s in mean:
            if a==arm: d.setdefault(task, []).append(mean[arm,task,s]-mean[baseline,task,s])
        m,error = mixed(d)
        free = len(d)-1
        out.append([arm, baseline, m, t.ppf(.975, free)*error, 2*t.sf(abs(m)/error, free)])
    return [(*o, p) for o,p in zip(out, stepwise([o[4] for o in out]))]

def recount_spans(table, page):
    "The same of a page with a ladder of rates, whose measure is the mean over five of them, task by task"
    plan = registered(page)
    spans = spans_by_hand(table, plan, plan['definitions']['families'])
    if spans is None: return None
    return claims_over_tasks(plan, spans)

def recount_own(tables, page):
    "The same where the measure lies around each arm's best rate; rows of several tables; None: some missing"
    plan = registered(page)
    ladder,seeds,n = plan['ladder'],plan['seeds']['main'],len(plan['seeds']['main'])
    runs = {}
    for table in tables:
        for cell,arms in runs_of(table, seeds).items():
            for arm,rates in arms.items(): runs.setdefault(cell, {}).setdefault(arm, {}).update(rates)
    own = {}
    for cell,f in plan['definitions']['families'].items():
        for arm in {a for c in plan['claims'] for a in c}:
            mean = {l:sum(o.values())/n for l,o in runs.get(cell, {}).get(arm, {}).items() if len(o)==n}
            if not mean: return None
            at = ladder.index(max(mean, key=lambda l: (mean[l], -l)))
            near = [ladder[k] for k in (at-1, at, at+1) if 0<=k<len(ladder)]
            if any(l not in mean for l in near): return None
            for s in seeds:
                v = sum(runs[cell][arm][l][s] for l in near)/len(near)
                own.setdefault((arm, f['after'] or cell, s), []).append(v)
    return claims_over_tasks(plan, own)

def recount_cells(table, page, cells=None):
    "(cell, claim) -> difference, half its interval, p, Holm's p among all that were registered"
    plan = registered(page)
    seeds,every = plan['seeds']['main'],plan['definitions']['families']
    cells,out = list(every) if cells is None else cells,{}
    spans = spans_by_hand(table, plan, cells)
    for cell in cells:
        for arm,baseline in plan['claims']:
            d = [spans[arm,cell,s][0]-spans[baseline,cell,s][0] for s in seeds]
            mean,error,free = sum(d)/len(d),spread(d),len(d)-1
            half,p = t.ppf(.975, free)*error,2*t.sf(abs(mean)/error, free)
            out[cell,f'{arm} - {baseline}'] = mean,half,p
    others = [1.]*(len(every)*len(plan['claims'])-len(out))
    return {k:(*o, p) for (k,o),p in zip(out.items(), stepwise([o[2] for o in out.values()]+others))}

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
    usual = 'nbs/studies/rows/replay_study.csv','nbs/studies/registration.qmd'
    table,page = *sys.argv[1:],*usual[len(sys.argv)-1:]
    for name in ('main','again'):
        if name not in registered(page)['seeds']: continue
        for o in recount(table, page, name) or [f'{name}: not all runs are there']:
            line = '{:14} - {:24} {:+.4f} ± {:.4f}   p {:.4f}   Holm {:.4f}'
            print(o if isinstance(o, str) else f'{name:6}'+line.format(*o))
