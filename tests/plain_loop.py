"""What a step of either trainer should compute, answer by answer in float64: the yardstick of the road.

Written apart from the package, which it does not import. An answer holds the tokens that count and no others.
"""
import math
from dataclasses import dataclass
import torch
from torch import Tensor

PPO = 'grpo','dr_grpo','dapo','bnpo','luspo'   # the losses with PPO's clip
EDGES = [.25,.5,.67,.8,.9,.95,.98,.99,1.01,1.02,1.05,1.1,1.2,1.5,2.,4.]   # of the recorded histogram

class Ambiguous(Exception): "A number lies so near to an edge that float32 may see it on the other side."

def away(x, edge, tol=3e-5):
    "`x`, or `Ambiguous` where it lies on the edge."
    if edge is not None and abs(x-edge)<tol: raise Ambiguous(f'{x} at {edge}')
    return x

@dataclass
class Answer:
    "One completion: vectors over the tokens that count, none where it is masked."
    logps:Tensor          # nats, float64; a leaf with gradient
    entropy:Tensor        # nats, the same
    old:Tensor            # nats, of the policy that sampled
    A:float|Tensor        # its advantage, or one for each token
    replayed:bool=False
    corrected:bool=True   # False: the loss takes its ratio as 1
    ref:Tensor=None       # nats, of the reference
    prox:Tensor=None      # nats, of the policy when the batch began
    group:int=0

    def __len__(self): return len(self.logps)
    @property
    def by_token(self): return isinstance(self.A, Tensor)
    def before(self): return self.old if self.corrected else self.logps.detach()   # as the loss sees it

# ---- rewards ---------------------------------------------------------------------------------------
def total(row, weights):
    "The weighted sum of one completion's rewards; None where nobody whose word has a weight judged it."
    judged = [(r, w) for r,w in zip(row, weights) if r is not None and w]
    return sum(r*w for r,w in judged) if judged else None

def mean(x):
    x = [o for o in x if o is not None]
    return sum(x)/len(x) if x else None

def deviation(x):
    x = [o for o in x if o is not None]
    return math.sqrt(sum((o-mean(x))**2 for o in x)/(len(x)-1)) if len(x)>1 else None

def flat(x):
    "Do these rewards of a group tell no two answers apart?"
    x = [o for o in x if o is not None]
    return len(x)<2 or max(x)-min(x)<=1e-6

def compare(groups, scale):
    "Advantages of groups of summed rewards."
    everything = deviation([r for g in groups for r in g])
    out = []
    for g in groups:
        by = 1. if scale=='none' else (everything if scale=='batch' else deviation(g)
            or 0.)+1e-4*(scale!='none')
        if scale=='batch': by = everything+1e-4
        out.append([0. if r is None or flat(g) else (r-mean(g))/by for r in g])
    return out

def advantages(groups, weights, aggregation, scale):
    "Advantages of groups of rows of rewards by function."
    sums = [[total(row, weights) for row in g] for g in groups]
    if aggregation=='sum_then_normalize': return compare(sums, scale)
    summed = []
    for g in groups:
        columns = [*zip(*g)]
        z = [[None if r is None else 0. if flat(c) else (r-mean(c))/(deviation(c)+1e-4) for r in c]
            for c in columns]
        summed.append([total(row, weights) for row in zip(*z)])
    by = deviation([r for g in summed for r in g])+1e-4
    return [[0. if r is None else (r-mean(g))/by for r in g] for g in summed]

def is_dead(group, weights, aggregation):
    "Does a group of rows of rewards by function teach nothing?"
    if aggregation=='sum_then_normalize': return flat([total(row, weights) for row in group])
    return all(flat(c) for c,w in zip(zip(*group), weights) if w)

def why_dead(sums):
    "The name of the kind of dead group."
    x = [o for o in sums if o is not None]
    if len(x)<2: return 'unscored'
    return 'all-wrong' if abs(mean(x))<=1e-6 else 'all-right' if abs(mean(x)-1)<=1e-6 else 'equal'

def score(A, sums): return sum(map(abs, A))*(deviation(sums) or 0.)

# ---- clip and correction ---------------------------------------------------------------------------
def changes(c): return bool(c) and (c.get('weight','token'),
    c.get('clip','ppo'))!=('token','ppo') or bool(c) and \
    any(c.get(k) is not None for k in ('max_drift','max_moment'))

def edges_of_clip(how, c):
    "(lower edge, upper edge, cap of a bad token's ratio), or None where nothing is clipped."
    low,high,delta = how['epsilon'],how.get('epsilon_high'),how.get('delta')
    own = how['loss'] in PPO
    if changes(c):
        kind,weight = c.get('clip','ppo'),c.get('weight','token')
        if kind=='none': return None
        if not (kind=='ppo' and weight in ('token','decoupled')):
            own = True
            if kind=='dapo' and high is None: high = .28
            if kind=='two_sided' and delta is None: delta = 4.
    return (1-low, 1+(low if high is None else high), delta) if own else None

def holds(r, A, edges):
    "Does the clip leave a token of this ratio without a gradient?"
    if edges is None: return False
    low,high,cap = edges
    if 0<abs(A)<1e-6: raise Ambiguous(f'an advantage of {A}')
    for o in edges: away(r, o)
    if A>0: return r>high or cap is not None and r>cap
    return A<0 and (r<low or cap is not None and r>max(high, cap))

def correction_of(a, how): return how.get('stored') if a.replayed else how.get('fresh')

def level_of(x, how):
    "Log-ratios as the loss takes them: one for each token, or their mean for all."
    return x if how['level']=='token' else x.mean().expand(1)

def ratio(a, base, how): return level_of(a.logps-base, how).exp()

def seen_by_clip(a, how, old=None):
    "(ratios that the clip looks at, does it hold each): one for each unit, a token or the whole answer."
    c,old = correction_of(a, how),a.before() if old is None else old
    r = ratio(a, a.prox if changes(c) and c.get('weight')=='decoupled' else old, how).detach()
    A = a.A if a.by_token else torch.full((len(r),), a.A)
    r = r.expand(len(A))
    return r.tolist(),[holds(*o, edges_of_clip(how, c)) for o in zip(r.tolist(), A.tolist())]

def stays(answers, how):
    "For each answer a vector of True where the filters of its correction leave a token in."
    out = [torch.ones(len(a), dtype=torch.bool) for a in answers]
    for kind in (False, True):
        here = [i for i,a in enumerate(answers) if a.replayed==kind and len(a)]
        c = how.get('stored' if kind else 'fresh') or {}
        moved = {i:(answers[i].logps-answers[i].before()).detach() for i in here}
        if (far := c.get('max_drift')) is not None:
            for i in here: out[i] &= away(abs(moved[i].mean().item()), far)<=far
        if (limit := c.get('max_moment')) is not None:
            all_ = sorted((o*o, i, t) for i in here for t,o in enumerate(moved[i].tolist()) if out[i][t])
            keep,sum_ = set(),0.
            for n,(square,i,t) in enumerate(all_, 1):
                sum_ += square
                if away(sum_/n, limit, 1e-6)>limit: break
                keep.add((i, t))
            if 0<len(keep)<len(all_): away(all_[len(keep)-1][0], all_[len(keep)][0],
                1e-6)   # a tie at the cut
            for i in here: out[i] &= torch.tensor([(i, t) in keep for t in range(len(out[i]))])
    return out

# ---- the loss --------------------------------------------------------------------------------------
def objective(a, old, A, how):
    "What each token earns against `old`, with advantages `A` (n,)."
    kind,x = how['loss'],a.logps-old
    r = level_of(x, how).exp()
    if kind=='cispo':
        cap = how['epsilon'] if how.get('epsilon_high') is None else how['epsilon_high']
        return r.clamp(max=cap).detach()*A*a.logps
    if kind=='sapo':
        tau = torch.where(A>0, 1., 1.05).double()
        return 4/tau/(1+(-tau*(r-1)).exp())*A
    if kind=='vespo':
        w = min(max(x.detach().clamp(-20, 20).sum().item(), math.log(1e-8)), 20.)
        k,lam = torch.where(A>=0, 2., 3.).double(),torch.where(A>=0, 3., 2.).double()
        return (lam+k*w-lam*math.exp(w)).exp()*A*a.logps
    low,high,cap = edges_of_clip(how, None)
    top = r if cap is None else r.clamp(max=cap)
    return torch.minimum(top*A, r.clamp(low, high)*A)

def corrected(a, keep, how):
    "(log-probs to compare with, advantages of the tokens) that make the plain loss the corrected one."
    c,old,A = correction_of(a, how),a.before(),torch.as_tensor(a.A, dtype=torch.float64).expand(len(a))
    if not changes(c): return old,A
    weight,clip,cap = c.get('weight','token'),c.get('clip','ppo'),c.get('weight_cap',2.)
    centre = a.prox if weight=='decoupled' else old
    early = level_of(centre-old, how).exp().clamp(max=cap)
    if clip=='ppo' and weight=='token': return old,A*keep
    if clip=='ppo' and weight=='decoupled': return centre,A*early*keep
    r,whole = ratio(a, centre, how).detach(),math.exp(min((a.logps-old).sum().item(), 50.))
    by = dict(token=r, none=1., truncated=r.clamp(max=cap), sequence=min(whole, cap),
        decoupled=r*early)[weight]
    _,held = seen_by_clip(a, how)
    return a.logps.detach(),A*by*keep*~torch.tensor(held)

def plain_loss(answers, how, num_items=None, rows=None):
    """The loss of a minibatch of answers, and what each token adds: (loss, tokens of each answer, weights).

    `num_items` are the tokens of a step, `rows` its completions, where this is a part of it.
    """
    counted = [a for a in answers if len(a)]
    n = sum(map(len, counted))
    keep = stays(answers, how)
    open_ = most_open(answers, how)
    out = []
    for a,k,q in zip(answers, keep, open_):
        if not len(a):
            out.append(a.logps)
            continue
        old,A = corrected(a, k, how)
        o = objective(a, old, A, how)
        if (far := how.get('off_policy')) is not None:
            raw = torch.as_tensor(a.A, dtype=torch.float64).expand(len(a))
            o = o*((raw>=0) | (away((a.before()-a.logps).mean().item(), far)<=far))
        o = -o*q
        if how.get('beta'):
            d = a.ref-a.logps
            o = o+how['beta']*(d.exp()-d-1)*(ratio(a, a.before(), how) if how.get('bias_kl', True) else 1)
        out.append(o.expand(len(a)))
    rows = len(answers) if rows is None else rows
    kind = how['loss']
    if kind in ('grpo','sapo'): weights = [1/rows/max(1, len(a)) for a in answers]
    elif kind=='luspo': weights = [1/rows]*len(answers)
    elif kind=='dr_grpo': weights = [1/rows/how['max_len']]*len(answers)
    else: weights = [1/(max(1, n) if num_items is None or kind=='bnpo' else num_items)]*len(answers)
    return sum(w*o.sum() for w,o in zip(weights, out)),out,weights

def most_open(answers, how):
    "For each answer a vector of True for the share of all tokens whose entropy is highest."
    q = how.get('quantile', 1.)
    if q==1: return [torch.ones(len(a), dtype=torch.bool) for a in answers]
    H = sorted(h for a in answers for h in a.entropy.tolist())
    if not H: return [torch.zeros(0, dtype=torch.bool) for a in answers]
    at = (1-q)*(len(H)-1)
    low = math.floor(at+1e-9)
    edge = H[low]+(at-low)*(H[min(low+1, len(H)-1)]-H[low]) if at-low>1e-9 else H[low]
    if any(1e-6<abs(h-edge)<1e-4 for h in H): raise Ambiguous('entropies that are all but equal')
    if sum(abs(h-edge)<=1e-6 for h in H)>1: raise Ambiguous('equal entropies at the edge')   # of one context
    return [a.entropy.detach()>=edge-1e-6 for a in answers]

def bonus(answers, how):
    "Mean entropy of the tokens that count in the loss."
    all_ = [a.entropy[q] for a,q in zip(answers, most_open(answers, how)) if len(a)]
    n = sum(map(len, all_))
    return sum(o.sum() for o in all_)/max(1, n),n

# ---- what is logged --------------------------------------------------------------------------------
def ratio_numbers(answers, how, sampled=False):
    "`ratio_mean` and so on of the answers that count; `sampled`: against the sampler in any case."
    some,units,held,tokens,whole = [a for a in answers if len(a)],[],[],[],[]
    if not some: return {}
    for a in some:
        old = a.old if sampled else a.before()
        x = (a.logps-old).detach()
        r = level_of(x, how).exp()
        flags = seen_by_clip(a, how, old)[1]
        units += r.expand(len(flags)).tolist()
        held += flags
        tokens += x.exp().tolist()
        whole.append(math.exp(x.sum().item()))
    def kish(w): return sum(w)**2/sum(o*o for o in w)/len(w)
    return dict(ratio_mean=mean(units), ratio_max=max(units), clip_frac=mean(map(float, held)),
        ess_tokens=kish(tokens), ess_answers=kish(whole))

def clip_numbers(answers, how):
    "Shares that the clip holds below and above ratio 1, and both."
    pairs = [o for a in answers if len(a) for o in zip(*seen_by_clip(a, how))]
    n = max(1, len(pairs))
    low,high = (sum(h and (r<1)==below for r,h in pairs)/n for below in (True, False))
    return dict(low=low, high=high, region=low+high)

def capped(a, how):
    "Units of an answer whose weight CISPO caps, where the advantage is above 0 and no correction weighs."
    c = correction_of(a, how)
    free = not changes(c) or (c.get('clip','ppo')=='ppo' and c.get('weight','token') in ('token','decoupled'))
    cap = how['epsilon'] if how.get('epsilon_high') is None else how['epsilon_high']
    r,_ = seen_by_clip(a, how)
    A = a.A.tolist() if a.by_token else [a.A]*len(r)
    return [free and away(x, cap)>cap and g>0 for x,g in zip(r, A)]

def histogram(values):
    "How many lie in each of the recorded bins; the outer ones are open."
    counts = [0]*(len(EDGES)-1)
    for v in values:
        for o in EDGES: away(v, o, 1e-5)
        counts[sum(v>=o for o in EDGES[1:-1])] += 1
    return counts
