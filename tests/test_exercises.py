"""The exercises of the course: each stub is not yet done, each solution right, and each checker refuses at
least ten wrong answers: those that a student would give, with a sentence that says why, and those that would
slip through a careless comparison (nan, nothing, a constant, the right numbers changed a little)"""

import heapq, itertools, json, math, random, re
from types import SimpleNamespace
from collections import Counter
from pathlib import Path
import numpy as np
import pandas as pd
import pytest, torch
from scipy.stats import t as student
from transformers import Qwen2Config, Qwen2ForCausalLM
from grpo_nb.advantages import group_advantages
from grpo_nb.what_if import what_if
from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferTrainer
from grpo_nb.kl import kl_estimate
from grpo_nb.loss import policy_loss
from grpo_nb.parts.loss_settings import LossSettings
from grpo_nb.parts.loss_inputs import LossInputs
from grpo_nb.parts.groups import dead_groups
from grpo_nb.parts.sampling import filter_logits
from grpo_nb.parts.stats import mean_ci
from grpo_nb.studies.study import REGIMES
from grpo_nb.studies.study import read_rows
from grpo_nb.run.reading import read_run
from grpo_nb.parts.batch_plan import batch_plan
from grpo_nb.parts.datasets import chain_sum
from grpo_nb.tasks import completion_text
from grpo_nb.teach.classroom import attempt, same
from grpo_nb.teach.hunts import check_hunt
from grpo_nb.tiny_qwen import tiny_config

ROOT = Path(__file__).parent.parent

def cells_of(chapter):
    "Sources of a chapter's code cells, without their directives, and whether each is a solution"
    named = re.compile(rf'(\d+[a-z]?_)?{chapter}')   # a page of `research` may have the same name
    for file in sorted(f for f in ROOT.glob('nbs/**/*.ipynb') if named.fullmatch(f.stem)):
        for c in json.loads(file.read_text(encoding='utf-8'))['cells']:
            src = ''.join(c['source'])
            if c['cell_type']=='code':
                yield re.sub(r'^#\|.*\n', '', src, flags=re.M), 'code-summary: Solution' in src

def exercise(chapter, name, *begins, **names):
    "The cells of a chapter that begin so, run with these names; and the function's solution"
    names = dict(torch=torch, math=math, attempt=attempt, same=same)|names
    cells = list(cells_of(chapter))
    for o in begins: exec(next(s for s,solved in cells if s.startswith(o) and not solved), names)
    solution = next(s for s,solved in cells if solved and re.search(rf'def {name}\w*\(', s))
    return names, re.split(r'^(?:test_|assert )', solution, flags=re.M)[0]

def each(x, f):
    "`f` of every number in a list, a tuple or a dict of numbers"
    if isinstance(x, dict): return {k:each(v, f) for k,v in x.items()}
    if isinstance(x, (list, tuple)): return type(x)(each(o, f) for o in x)
    if isinstance(x, bool): x = float(x)
    return x if x is None or isinstance(x, str) else f(x)

def raises(*args, **kwargs): raise ZeroDivisionError('division by zero')
CARELESS = [raises, lambda *a, **k: None, lambda *a, **k: 'right', lambda *a, **k: [],
    lambda *a, **k: math.nan]
CHANGED = [lambda x: x*math.nan, lambda x: x*0, lambda x: -x, lambda x: 2*x, lambda x: x+.01]

def verdict(ns, check, f):
    try: return ns[check](f)
    except Exception as e: return f'it raises {type(e).__name__}'

def agreed(ns, name, check, solution, wrong, changed=CHANGED, right='right'):
    "True where the stub is not yet done, the solution right, and none of ten wrong answers and more is"
    assert ns[check](ns[name]).startswith('not yet')
    exec(solution, ns)
    f = ns[name]
    assert ns[check](f)==right
    for o in wrong: assert ns[check](o).startswith('not yet: '), o
    others = CARELESS+[lambda *a, c=c, **k: each(f(*a, **k), c) for c in changed]
    assert len(wrong)>=3 and len(wrong)+len(others)>=10
    for i,o in enumerate(others): assert verdict(ns, check, o)!=right, i
    return True

def test_what_did_the_group_say():
    ns,solution = exercise('grpo_on_one_screen', 'two_advantages', 'def two_advantages')
    def of(k, G, ddof=1, root=.5):
        r = (torch.arange(G)<k).double()
        spread = r.var(correction=ddof).item()**root
        return [(x-r.mean()).item()/spread if 0<k<G else 0. for x in (1., 0.)]
    assert agreed(ns, 'two_advantages', 'check_advantages', solution, [
        lambda k, G: of(k, G, ddof=0), lambda k, G: of(k, G, root=0), lambda k, G: of(k, G, root=1),
        lambda k, G: of(k, G)[::-1], lambda k, G: of(k, G) if k not in (0, G) else (1, -1)])

@pytest.fixture
def in_doubles():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)

def test_the_best_baseline_of_all(in_doubles):
    reward,pi = torch.tensor([0., 1., .5]),torch.ones(3)/3
    ns,solution = exercise('from_reward_to_gradient', 'best_baseline', 'def best_baseline', reward=reward,
        pi=pi)
    def weighted(p, r, w): return (w*r).sum()/w.sum()
    def squares(p): return ((torch.eye(len(p))-p)**2).sum(1)
    assert agreed(ns, 'best_baseline', 'check_best', solution.split('test_eq')[0], [
        lambda p, r: p@r, lambda p, r: r.mean(), lambda p, r: r.max(), lambda p, r: math.nan,
        lambda p, r: weighted(p, r, squares(p)), lambda p, r: weighted(p, r, p*squares(p)**.5)])

def test_how_many_siblings(in_doubles):
    reward = torch.tensor([0., 1., .5])
    ns,solution = exercise('from_reward_to_gradient', 'groups_of', 'def groups_of', reward=reward,
        tensor=torch.tensor)
    def groups(G, lr, seeds=range(20), updates=30, whole=False, scaled=False, summed=False):
        ends = []
        for seed in seeds:
            theta,g = torch.zeros(3),torch.Generator().manual_seed(seed)
            for _ in range(updates):
                p = theta.softmax(0)
                r = reward[o := torch.multinomial(p, 16, replacement=True, generator=g).view(-1, G)]
                A = r-(r.mean() if whole else r.mean(1, keepdim=True))
                if scaled: A = A/(r.std(1, keepdim=True)+1e-4)
                push = A[...,None]*(torch.eye(3)[o]-p)
                theta = theta+lr*(push.sum((0, 1)) if summed else push.mean((0, 1)))
            ends.append(theta.softmax(0)[1].item())
        return ends
    def exact(G, lr):   # no sampling at all
        theta = torch.zeros(3)
        for _ in range(30):
            p = theta.softmax(0)
            theta = theta+lr*(G-1)/G*p*(reward-p@reward)
        return [theta.softmax(0)[1].item()]*20
    solution = re.split(r'^(?:test_eq|def mean_and)', solution, flags=re.M)[0]
    assert agreed(ns, 'groups_of', 'check_groups', solution, [exact,
        lambda G, lr: groups(G, lr, [0])*20, lambda G, lr: groups(G, lr, [0, 1])*10,
        lambda G, lr: groups(G, lr, updates=29), lambda G, lr: groups(G, lr, updates=32),
        lambda G, lr: groups(G, lr, range(19)), lambda G, lr: groups(G, lr, whole=True),
        lambda G, lr: groups(G, lr, scaled=True), lambda G, lr: groups(G, lr, summed=True),
        lambda G, lr: groups(G, .5)])

def test_a_reward_of_your_own():
    ns,solution = exercise('tasks', 'short_reward', 'def short_reward', completion_text=completion_text)
    assert agreed(ns, 'short_reward', 'check_short', solution, [
        lambda prompts, completions, limit=40, **kw: [float(len(c)<=limit) for c in completions],
        lambda prompts, completions, limit=40, **kw: [min(1., 2-len(c)/limit) for c in completions],
        lambda prompts, completions, limit=40, **kw: [min(1., max(0., 2-len(c)/limit)) for c in completions],
        lambda prompts, completions, limit=40: [1.]*len(completions),
        lambda prompts, completions, limit=40, **kw:                         # forgets that 40 is a setting
            [min(1., max(0., 2-len(o if isinstance(o, str) else o[-1]['content'])/40)) for o in completions]])

def test_count_the_weights():
    ns,solution = exercise('tiny_qwen', 'count_weights', 'def count_weights', 'def check_count',
        tiny_config=tiny_config, Qwen2Config=Qwen2Config, Qwen2ForCausalLM=Qwen2ForCausalLM)
    def count(c, kv=True, norms=2, tied=1):
        d = c.hidden_size
        k = d//c.num_attention_heads*c.num_key_value_heads if kv else d
        block = (d*d+d)+2*(d*k+k)+d*d+3*d*c.intermediate_size+norms*d
        return c.num_hidden_layers*block+d+tied*c.vocab_size*d
    wrong = [lambda c: count(c, kv=False), lambda c: count(c, norms=1), lambda c: count(c, tied=2)]
    assert agreed(ns, 'count_weights', 'check_count', solution, wrong)
    assert 'count them once' in ns['check_count'](wrong[2]) and 'fewer heads' in ns['check_count'](wrong[0])

def test_top_p_by_hand():
    ns,solution = exercise('sampling', 'my_top_p', 'def my_top_p', filter_logits=filter_logits)
    def walk(p, k, beyond=False, up=False):
        kept,total = [],0.
        for i in sorted(range(len(p)), key=lambda i: p[i] if up else -p[i]):
            if beyond and total+p[i]>k: break
            kept.append(i)
            total += p[i]
            if total>=k: break
        return kept
    assert agreed(ns, 'my_top_p', 'check_top_p', solution, [
        lambda p, k: walk(p, k, beyond=True),                # stops one too early
        lambda p, k: walk(p, k, up=True),                    # from the least likely up
        lambda p, k: [i for i,o in enumerate(p) if o>=k]])   # those likelier than top_p

def test_how_hot():
    ns,solution = exercise('generation', 'my_heat', 'def my_heat', 'def check_heat')
    assert agreed(ns, 'my_heat', 'check_heat', solution, [
        lambda p, tau: p/tau, lambda p, tau: p**(1/tau), lambda p, tau: p**tau/(p**tau+(1-p)**tau)])

def test_a_number_in_a_text():
    ns,solution = exercise('rewards', 'my_reward', 'def my_reward', 'def check_reward')
    assert agreed(ns, 'my_reward', 'check_reward', solution, [
        lambda completions, answer, **kw: [float(a in c) for c,a in zip(completions, answer)],
        lambda completions, answer, **kw: [float(c.endswith(a)) for c,a in zip(completions, answer)],
        lambda completions, answer, **kw: [float((re.findall(r'\d+', c) or [''])[-1]==a)
                                           for c,a in zip(completions, answer)],
        lambda completions, answer, **kw: [float(a in found) if (found := re.findall(r'-?\d+', c)) else None
                                           for c,a in zip(completions, answer)],   # any of its numbers
        lambda completions, answer, **kw: [float(o[-1]=='5') if (o := re.findall(r'-?\d+', c)) else None
                                           for c in completions],               # of one answer only
        lambda completions, answer, **kw: [float(o[-1]==a) if (o := re.findall(r'[-\d]+', c)) else None
                                           for c,a in zip(completions, answer)],   # a lone hyphen
        lambda completions, answer, **kw: [1.]])

def test_two_hundred_answers():
    ns,solution = exercise('evaluation', 'my_deviation', 'rates = [.05')
    def parts(rates):
        mean = sum(rates)/len(rates)
        return sum((p-mean)**2 for p in rates)/len(rates), sum(p*(1-p) for p in rates)/len(rates), mean
    assert agreed(ns, 'my_deviation', 'check_deviation', solution, [
        lambda r, n, k: (parts(r)[2]*(1-parts(r)[2])/(n*k))**.5,    # takes samples for problems
        lambda r, n, k: (parts(r)[0]+parts(r)[1]/k)/n,              # the variance
        lambda r, n, k: (parts(r)[0]/n)**.5,                        # forgets what is drawn for each
        lambda r, n, k: ((parts(r)[0]+parts(r)[1])/(n*k))**.5])

def test_the_odd_one_out():
    ns,solution = exercise('advantages', 'my_lone', 'def my_lone', 'def check_lone',
        group_advantages=group_advantages)
    assert agreed(ns, 'my_lone', 'check_lone', solution, [
        lambda G: 1-1/G, lambda G: (G-1)**.5, lambda G: -1/G**.5, lambda G: 1.5])
    says = {'without the division':lambda G: 1-1/G, 'divides by G-1':lambda G: (G-1)**.5,
        'wanted':lambda G: G-1}
    for words,f in says.items(): assert words in ns['check_lone'](f)

def test_the_mended_test():
    ns,solution = exercise('float_noise', 'alive_and_unseen', 'def mended', 'def alive_and_unseen',
        at=[], missed=None, dead_groups=dead_groups)
    assert agreed(ns, 'alive_and_unseen', 'check_unseen', solution, [
        lambda: torch.full((1, 8), .3),              # dead
        lambda: torch.tensor([[1e-7, 2e-7]]),        # within the tolerance
        lambda: torch.tensor([[1., 1.001]]),         # seen by both
        lambda: torch.tensor([1000., 1000.0005]),    # no group
        lambda: torch.tensor([[1000., 1000.0005]], dtype=torch.float64),
        lambda: torch.tensor([[torch.nan, 1.]])], changed=[])

def test_the_gradient_of_a_log_prob():
    ns,solution = exercise('logps', 'my_score', 'def my_score')
    one = lambda z, i: torch.eye(len(z))[i]
    assert agreed(ns, 'my_score', 'check_score', solution, [
        lambda z, i: one(z, i)*(1-z.softmax(0)), lambda z, i: z.softmax(0)-one(z, i),
        lambda z, i: z.softmax(0)[i]*(one(z, i)-z.softmax(0)), lambda z, i: -z.softmax(0)])

def test_two_policies_of_two_tokens():
    ns,solution = exercise('kl', 'my_bias', 'def my_bias', kl_estimate=kl_estimate)
    def k2(p, q, w): return (w*math.log(q/p)**2+(1-w)*math.log((1-q)/(1-p))**2)/2
    def kl(p, q): return p*math.log(p/q)+(1-p)*math.log((1-p)/(1-q))
    wrong = [lambda p, q: k2(p, q, p), lambda p, q: k2(p, q, q)-kl(p, q), lambda p, q: 2*k2(p, q, p)-kl(p, q),
        lambda p, q: k2(p, q, p)-kl(q, p), lambda p, q: kl(p, q)-k2(p, q, p)]
    assert agreed(ns, 'my_bias', 'check_bias', solution, wrong)

def test_the_loss_as_a_loop():
    ns,solution = exercise('loss', 'my_loss', 'def my_loss', 'def check_my_loss', itertools=itertools,
        policy_loss=policy_loss, LossInputs=LossInputs, LossSettings=LossSettings)
    def tokens(lp, old, A, m, eps, b, i, f=min):
        for p,o,real in zip(lp[b][i], old[b][i], m[b][i]):
            r = math.exp(p-o)
            if real: yield f(r*A[b][i], min(max(r, 1-eps), 1+eps)*A[b][i])
    def rows(lp, old, A, m, eps, f=min):
        return [list(tokens(lp, old, A, m, eps, b, i, f)) for b in range(len(m)) for i in range(len(m[0]))]
    def means(rows): return -sum(sum(o)/len(o) for o in rows)/len(rows)
    solution = solution.replace('my_loss_solution', 'my_loss')
    def unmasked(m): return [[[True]*len(t) for t in o] for o in m]
    wrong = {
        lambda *o: -sum(map(sum, rows(*o)))/sum(map(len, rows(*o))):'all tokens weigh the same',   # 'dapo'
        lambda *o: -means(rows(*o)):'the other sign',
        lambda *o: means(rows(*o[:3], unmasked(o[3]), o[4])):'the padding counts',
        lambda *o: means(rows(*o[:4], 1e9)):'nothing is clipped',
        lambda *o: means(rows(*o[:4], .2)):'only an example of `epsilon`',
        lambda *o: means(rows(*o, f=max)):'wanted',                              # the larger of the two terms
        lambda *o: means([[sum(r)/len(o[3][0][0])] for r in rows(*o)]):'wanted'} # divided by the padded width
    assert agreed(ns, 'my_loss', 'check_my_loss', solution, wrong)
    for f,says in wrong.items(): assert says in ns['check_my_loss'](f)

@pytest.mark.parametrize('check,right,wrong', [
    ('check_clip', ['a', (1.5, 1.)], [
        ['b', (1.5, 1.)], ['a', (1., 1.)], ['a', (1.5, 0.)], ['a', (math.nan, 1.)], ['a', 1.5]]),
    ('check_split', ['b', ([6, 6], [1, 2])], [
        ['a', ([6, 6], [1, 2])], ['b', ([3, 3], [3, 3])], ['b', ([6, 6], [1])], ['b', ([], [])], ['b', 5]])])
def test_the_hunts_of_the_loss(check, right, wrong):
    ns = dict(torch=torch, policy_loss=policy_loss, LossInputs=LossInputs, check_hunt=check_hunt)
    cells = [s for s,solved in cells_of('loss')]
    for o in ('def clip_loop', 'def clip_a', 'def part(p, A, m', 'def check_clip'):
        exec(next(s for s in cells if s.startswith(o)).split('\n\n[clip_loop')[0], ns)
    assert ns[check](None, None).startswith('not yet')
    assert ns[check](*right)=='right'
    for o in wrong: assert ns[check](*o).startswith('not yet: '), o

def test_two_draws():
    ns,solution = exercise('replay', 'my_inclusion', 'def exact_inclusion', 'def my_inclusion',
        'def check_inclusion', itertools=itertools, test_close=lambda *o, **k: None)
    def itself(w):   # the sum over the others includes the item
        p = w/w.sum()
        return p+p*(p/(1-p)).sum()
    assert agreed(ns, 'my_inclusion', 'check_inclusion', solution, [
        lambda w: 2*w/w.sum(), lambda w: 1-(1-w/w.sum())**2, lambda w: w/w.sum(),
        lambda w: torch.ones(len(w))*2/len(w), itself])
    assert 'leave it out' in ns['check_inclusion'](itself)

def test_what_pairing_buys():
    ns,solution = exercise('bakeoff', 'two_intervals', 'def two_intervals',
        results=read_rows(ROOT/'nbs/results/bakeoff.csv'), REGIMES=REGIMES, mean_ci=mean_ci, np=np,
        student=student)
    def half(v, q=None): return (q or student.ppf(.975, len(v)-1))*np.std(v, ddof=1)/len(v)**.5
    assert agreed(ns, 'two_intervals', 'check_intervals', solution, [
        lambda x, y: (half(np.subtract(x, y), 1.96), np.hypot(half(x, 1.96), half(y, 1.96))),
        lambda x, y: (half(np.subtract(x, y)), half(x)+half(y)),
        lambda x, y: (abs(half(x)-half(y)), np.hypot(half(x), half(y))),
        lambda x, y: (np.hypot(half(x), half(y)), half(np.subtract(x, y)))])

def test_the_alarm():
    ns,solution = exercise('reward_hacking', 'alarm', 'def alarm', 'def check_alarm')
    def m3(x, i): return sum(x[i-2:i+1])/3
    def first(f): return lambda p, w: next((i for i in range(3, len(p)) if f(p, w, i)), None)
    assert agreed(ns, 'alarm', 'check_alarm', solution, [
        first(lambda p, w, i: w[i]<.7*max(w[:i+1]) and p[i]>=max(p[:i+1])),             # single batches
        first(lambda p, w, i: m3(w, i)<.7*max(m3(w, j) for j in range(2, i+1))),        # forgets what is paid
        lambda p, w: ns['alarm'](p, w) and ns['alarm'](p, w)+1,                         # counts from one
        first(lambda p, w, i: m3(w, i)<.7*max(m3(w, j) for j in range(2, len(w)))       # looks ahead
            and m3(p, i)>=max(m3(p, j) for j in range(2, i+1))),
        lambda p, w: None])

def test_should_you():
    ns,solution = exercise('replay_study', 'tokens_left', 'def tokens_left')
    assert agreed(ns, 'tokens_left', 'check_tokens_left', solution, [
        lambda s, o, k: 1/k, lambda s, o, k: (s+k*o)/(s+o), lambda s, o, k: s/(s+k*o)])

def test_how_young_is_what_comes_in():
    ns,solution = exercise('what_if', 'ages', 'def ages', 'def check_ages', Counter=Counter,
        what_if=what_if, run=read_run(ROOT/'nbs/results/run_tiny'))
    def new(run): return [o for o in run.rows if o['replacement']]
    assert agreed(ns, 'ages', 'check_ages', solution, [
        lambda run: Counter(o['replacement']['step'] for o in new(run)),                # steps of birth
        lambda run: Counter(o['step'] for o in new(run)),                               # steps of coming in
        lambda run: Counter(o['step']-(o['replacement'] or o)['step'] for o in run.rows),
        lambda run: [o['replacement']['age'] for o in new(run)],                        # no dict
        lambda run: Counter(o['replacement']['uses'] for o in new(run))])

def test_a_rule_of_your_own():
    ns,solution = exercise('look_at_a_run', 'collapsed', 'def collapsed', 'def check_collapsed', pd=pd,
        random=random)
    def ends(h, q): return h['entropy'][:q].mean(),h['entropy'][-q:].mean()
    assert agreed(ns, 'collapsed', 'check_collapsed', solution, [
        lambda h: 'entropy' in h and h['entropy'].iloc[-1]<.1*h['entropy'].iloc[0],   # single values
        lambda h: 'entropy' in h and h['entropy'].min()<.1,                           # of no first quarter
        lambda h: 'entropy' in h and (lambda a, b: b<.1*a)(*ends(h, len(h)//4)),      # a quarter of one row
        lambda h: (lambda a, b: b<.1*a)(*ends(h, max(2, len(h)//4)))])                # a history without it

def test_where_the_kl_goes():
    ns,solution = exercise('ppo_beside_grpo', 'ppo_return', 'def token_rewards', 'def ppo_return',
        'def check_return', kl_estimate=kl_estimate)
    assert agreed(ns, 'ppo_return', 'check_return', solution, [
        lambda s, p, r, b: s+b*(p-r).sum(), lambda s, p, r, b: s-b*(p-r).mean(),
        lambda s, p, r, b: s-(p-r).sum(), lambda s, p, r, b: s-b*(p-r)[-1],
        lambda s, p, r, b: 1-b*(p-r).sum(), lambda s, p, r, b: s-.1*(p-r).sum(),
        lambda s, p, r, b: -b*(p-r).sum()])

def test_the_moment_between_forward_and_loss():
    names = dict(Tensor=torch.Tensor, SimpleNamespace=SimpleNamespace,
        GRPOWithReplayBufferTrainer=GRPOWithReplayBufferTrainer)
    ns,solution = exercise('grpo_with_replay_buffer', 'fill', 'def fill', 'def by_the_trainer', **names)
    def filled(note=True, by_number=True, old=lambda x, lp: torch.where(x['replayed'][:,None],
            x['replay_old_logps'].to(lp.dtype), lp), noted_too=lambda x, lp: lp):
        def fill(noted, x, lp):
            if note: noted[x['replay_row'] if by_number else slice(len(lp))] = noted_too(x, lp)
            x['old_per_token_logps'] = old(x, lp)
        return fill
    def stored(x): return x['replay_old_logps']
    assert agreed(ns, 'fill', 'check_fill', solution, [
        filled(note=False), filled(by_number=False), filled(old=lambda x, lp: lp),
        filled(old=lambda x, lp: stored(x).float()), filled(old=lambda x, lp: None),
        filled(old=lambda x, lp: torch.where(x['replayed'][:,None], lp, stored(x).float())),
        filled(old=lambda x, lp: torch.where(x['replayed'][:,None], stored(x), lp)),   # another type
        filled(old=lambda x, lp: lp*math.nan), filled(noted_too=lambda x, lp: stored(x).float()),
        filled(noted_too=lambda x, lp: torch.where(x['replayed'][:,None], stored(x).float(), lp)),
        filled(noted_too=lambda x, lp: lp.exp())], changed=[])

def test_what_was_lost():
    cells = [s.replace("'results/", f"'{ROOT}/nbs/results/") for s,_ in cells_of('real_run')]
    rows = next(s for s in cells if 'EXPECTED = {' in s)
    names = dict(pd=pd, re=re, random=random, test_eq=lambda *o: None)
    exec(rows, names)
    ns,solution = exercise('real_run', 'lost_at', 'def lost_at(kept): ...', 'def lost_by', **names)
    def by(f):
        "`f` of the batches, and whether the answer was there, of each run and question that ends without it"
        def lost_at(kept):
            found = {}
            for run,of_run in kept.groupby(['beta', 'seed']):
                for q,o in of_run.sort_values('batch').groupby('question'):
                    there = o.is_kept.tolist()
                    if not there[-1]: found.setdefault(run, {})[q] = f(o.batch.tolist(), there)
            return found
        return lost_at
    assert agreed(ns, 'lost_at', 'check_lost', solution, [
        by(lambda batch, there: batch[there.index(False)]), by(lambda batch, there: batch[-1]),
        by(lambda batch, there: max(b for b,k in zip(batch, there) if k)),
        by(lambda batch, there: there.count(False)), by(lambda batch, there: batch.index(batch[-1])),
        lambda kept: ns['lost_by'](kept[kept.beta>0]), lambda kept: ns['lost_by'](kept, 'came back'),
        lambda kept: {run:[*v] for run,v in ns['lost_by'](kept).items()}], changed=[])

@pytest.fixture(scope='module')
def put_together():
    "The names of the trainer's exercise, with a third batch that is trained once for each answer"
    from grpo_nb import trainer
    from grpo_nb.parts.groups import group_scores, insert_stored
    from grpo_nb.evaluation import sample_completions
    from grpo_nb.logps import token_logps
    from grpo_nb.parts.datasets import chain_sum
    from grpo_nb.rewards import decode_completions, score_completions
    from grpo_nb.tasks import accuracy_reward
    from grpo_nb.tiny_qwen import load_model
    more = vars(trainer) | dict(group_scores=group_scores, insert_stored=insert_stored, load_model=load_model,
        dead_groups=dead_groups, group_advantages=group_advantages, sample_completions=sample_completions,
        token_logps=token_logps, decode_completions=decode_completions, score_completions=score_completions,
        policy_loss=policy_loss, LossInputs=LossInputs, accuracy_reward=accuracy_reward,
        tok=load_model('tiny')[1], ds=chain_sum(256, seed=1))
    ns,solution = exercise('trainer', 'my_batch', 'def sample(s)', 'def my_batch', 'def third_batch', **more)
    trained = {}
    def third_batch(f, train=ns['third_batch']):
        if isinstance(f, tuple): return f   # what such a function would have done
        key = f.__closure__[0].cell_contents if f.__name__=='train_it' else f
        return trained[key] if key in trained else trained.setdefault(key, train(f))
    ns['third_batch'] = third_batch
    return ns,solution

def test_put_the_step_together(put_together):
    ns,solution = put_together
    assert ns['check_batch'](ns['my_batch'])=='not yet'
    exec(solution, ns)
    assert ns['check_batch'](ns['my_batch'])=='right'
    for name,says in ns['MISTAKES'].items():
        assert ns['check_batch'](ns['batch_with'](name))==f'not yet: {says}'
    losses,births = ns['third_batch'](ns['real_batch'])
    wrong = [(losses[:1], births), (losses, births[:-6]), (losses, births+births[-2:]), ([], births),
        (losses[::-1], births), (losses*2, births)]
    wrong += [(each(losses, f), births) for f in (*CHANGED[:4], lambda x: x+1e-3)]
    for o in wrong: assert ns['check_batch'](o).startswith('not yet: '), o

def test_a_roof():
    ns = dict()
    for o in ('def roof', 'def check_roof'): exec(next(s for s,_ in cells_of('speed') if s.startswith(o)), ns)
    def roof(n, k, m, rate, bandwidth): return max(2*n*k*m/rate, 4*(n*k+k*m+n*m)/bandwidth)
    assert ns['check_roof'](ns['roof'])=='not yet' and ns['check_roof'](roof).startswith('right')
    for f in (lambda n, k, m, r, b: 2*n*k*m/r, lambda n, k, m, r, b: 4*(n*k+k*m+n*m)/b,
            lambda n, k, m, r, b: 2*n*k*m/r+4*(n*k+k*m+n*m)/b, lambda *o: roof(*o[:3], 1e11, 1e10),
            lambda n, k, m, r, b: max(n*k*m/r, 4*(n*k+k*m+n*m)/b), lambda *o: roof(*o[:4], 4*o[4]),
            lambda n, k, m, r, b: min(2*n*k*m/r, 4*(n*k+k*m+n*m)/b), lambda *o: math.nan, lambda *o: 0.,
            lambda n, k, m, r, b: max(2*n*k*m/r, 4*(n*k+k*m)/b), lambda n, k, m, r, b: roof(n, k, m, b, r)):
        assert ns['check_roof'](f)=='not yet'

def test_does_it_straddle():
    from grpo_nb.on_trl.distributed import group_slices
    ns = dict(group_slices=group_slices)
    exec(next(s for s,_ in cells_of('distributed') if s.startswith('def straddles')), ns)
    def right(rows, G, world): return rows%G!=0 and world>1
    assert ns['check_straddles'](ns['straddles'])=='not yet' and ns['check_straddles'](right)=='solved'
    for f in (lambda r, G, w: r%G==0, lambda r, G, w: w>1, lambda r, G, w: r*w%G!=0, lambda r, G, w: r<G,
            lambda r, G, w: False, lambda r, G, w: True, lambda r, G, w: G%r!=0, lambda r, G, w: math.nan,
            lambda r, G, w: r//G!=0, lambda r, G, w: not right(r, G, w)):
        assert ns['check_straddles'](f)=='not yet'

def test_a_share_of_mixed_prompts():
    ns,solution = exercise('batch', 'my_dead', 'def my_dead', 'def check_dead',
        hard_and_easy=[.01, .02, .05, .95, .99])
    def of(p, G): return p**G+(1-p)**G
    assert agreed(ns, 'my_dead', 'check_dead', solution, [
        lambda rates, G: of(sum(rates)/len(rates), G), lambda rates, G: sum(p**G for p in rates)/len(rates),
        lambda rates, G: sum((1-p)**G for p in rates)/len(rates),
        lambda rates, G: sum(of(p, G) for p in rates)])

def test_the_largest_legal_batch():
    ns,solution = exercise('batch', 'most_rows', 'def most_rows', 'def check_most_rows',
        batch_plan=batch_plan)
    assert agreed(ns, 'most_rows', 'check_most_rows', solution, [
        lambda G: 40, lambda G: 40-G, lambda G: (40//G+1)*G, lambda G: 40//G, lambda G: 40//8*8])

# --- chapter 18

def test_who_has_a_group():
    ns,solution = exercise('full_run', 'holders', 'def holders(', 'def holders_by_row')
    def between(first, last): return lambda g, G, rows: list(range(first(g, G, rows), last(g, G, rows)+1))
    def first(g, G, rows): return g*G//rows
    def last(g, G, rows): return (g*G+G-1)//rows
    assert agreed(ns, 'holders', 'check_holders', solution, [
        lambda g, G, rows: [g*G//rows], between(first, lambda g, G, rows: (g*G+G)//rows),
        between(first, lambda g, G, rows: g*G//rows+1), between(lambda g, G, rows: g, last),
        lambda g, G, rows: [first(g, G, rows), last(g, G, rows)], lambda g, G, rows: [g%8],
        lambda g, G, rows: set(range(first(g, G, rows), last(g, G, rows)+1)), between(last, last)],
        changed=[lambda x: 2*x+1, lambda x: x+1, lambda x: -x-1, lambda x: 0])

def test_the_buffer_on_four_processes():
    ns,solution = exercise('full_run', 'dealt', 'def dealt(', 'def dealt_in_turn', random=random)
    assert agreed(ns, 'dealt', 'check_dealt', solution, [
        lambda ids, W: [sorted(i for i in ids if i%W==r) for r in range(W)],
        lambda ids, W: [sorted(ids)[r*len(ids)//W:(r+1)*len(ids)//W] for r in range(W)],
        lambda ids, W: [ids[r::W] for r in range(W)], lambda ids, W: [sorted(ids)]*W,
        lambda ids, W: [sorted(ids)]+[[]]*(W-1), lambda ids, W: [sorted(ids)[::-1][r::W] for r in range(W)],
        lambda ids, W: [sorted(ids)[r::W] for r in range(W-1)]],
        changed=[lambda x: x+1, lambda x: -x, lambda x: 0])

def test_memory_with_lora():
    from transformers import AutoConfig, AutoModelForCausalLM
    import plan
    shapes = json.loads((ROOT/'benchmarks/shapes.json').read_text())
    ns,solution = exercise('full_run', 'lora_gb', 'def lora_gb(', 'def adapters_by_layer',
        AutoConfig=AutoConfig, AutoModelForCausalLM=AutoModelForCausalLM, count_weights=plan.count_weights,
        shapes=shapes)
    def layer(c, r, inner=3, narrow=True, square=2):
        h,f = c.hidden_size,c.intermediate_size
        k = h*c.num_key_value_heads//c.num_attention_heads if narrow else h
        return r*(square*2*h+2*(h+k)+inner*(h+f))
    def of(states=16, frozen=4, layers=True, cut=True, **how):
        def gb(c, n, r, W):
            a = layer(c, r, **how)*(c.num_hidden_layers if layers else 1)
            return (frozen*n+states*a)/(W if cut else 1)/1e9
        return gb
    assert agreed(ns, 'lora_gb', 'check_lora', solution, [of(frozen=0), of(frozen=16), of(states=4),
        of(layers=False), of(cut=False), of(inner=0), of(inner=2), of(narrow=False), of(square=1),
        of(frozen=2), of(states=12)])

# the hunts: the letter of the wrong version, and an example on which it is wrong

LONG = [5, 6, 1, 0]
HUNTS = {
    'tasks': ('check_judges', [('<answer>14</answer>', '4')], [
        [('<answer>13</answer>', '13')], [('13', '13 ')], [('<answer>4</answer>', '14')],
        [('a', 'b', 'c')], [5]]),
    'generation': ('check_masks', ['a', (LONG, 1)], [
        ['b', (LONG, 1)], ['A', (LONG, 1)], ['a', ([5, 6, 7], 1)], ['a', ([], 1)], ['a', (LONG,)]]),
    'rewards': ('check_repeats', ['a', (['13', '3'], 2)], [
        ['b', (['13', '3'], 2)], ['a', (['13'], 4)], ['a', (['3', '3'], 4)], ['a', (['13', '3'], 0)],
        ['a', (['13', '3'],)]]),
    'advantages': ('check_versions', ['b', ([1, 0, 0, 0], 2)], [
        ['a', ([1, 0, 0, 0], 2)], ['b', ([1, 1, 1, 1], 2)], ['b', ([1, 0, 0, 1], 4)],
        ['b', ([1, 0, 0], 2)], ['b', ([math.nan]*4, 2)], ['b', None]]),
    'logps': ('check_reading', ['b', ([[[0., 5.], [0., 0.]]], [[0, 1]], 1)], [
        ['a', ([[[0., 5.], [0., 0.]]], [[0, 1]], 1)], ['b', ([[[0., 0.], [0., 0.]]], [[0, 1]], 1)],
        ['b', ([[[0., math.nan], [0., 0.]]], [[0, 1]], 1)], ['b', ([[[0., 5.], [0., 0.]]], [[0, 2]], 1)],
        ['b', ([[[0., 5.]]], [[0]], 1)]]),
    'kl': ('check_penalties', ['a', ([[.1, 0.]], [[1, 0]])], [
        ['b', ([[.1, 0.]], [[1, 0]])], ['a', ([[.1, .2]], [[1, 1]])], ['a', ([[.1, 0.]], [[0, 0]])],
        ['a', ([[math.nan, 0.]], [[1, 0]])], ['a', .1]]),
    'ppo_beside_grpo': ('check_places', ['b', ([1.], [[1, 1, 0]])], [
        ['a', ([1.], [[1, 1, 0]])], ['b', ([1.], [[1, 1, 1]])], ['b', ([0.], [[1, 1, 0]])],
        ['b', ([math.nan], [[1, 1, 0]])], ['b', ([1.], [[0, 0, 0]])], ['b', ([1.],)]]),
    'storage': ('check_buffers', ['b', ([(0, 4.)]+[(t, 1.) for t in range(1, 12)], 1)], [
        ['a', ([(0, 4.)]+[(t, 1.) for t in range(1, 12)], 1)], ['b', ([(0, 4.), (1, 1.)], 2)],
        ['b', ([(0, 0.), (1, 1.)], 1)], ['b', ([(0, math.nan), (1, 1.)], 1)], ['b', (16,)]]),
    'batch': ('check_plans', ['a', ([.01, .99], 8)], [
        ['b', ([.01, .99], 8)], ['a', ([.3, .3], 8)], ['a', ([0., 1.], 1)], ['a', ([math.nan, .5], 8)],
        ['a', .5]]),
    'reward_hacking': ('check_judge', ['a', ' '.join(map(str, range(21)))], [
        ['b', ' '.join(map(str, range(21)))], ['a', '7'], ['a', '<answer>7</answer>'], ['a', ''],
        ['a', 7]])}

@pytest.mark.parametrize('chapter', HUNTS)
def test_a_hunt_asks_for_an_example(chapter):
    from grpo_nb.parts.tensors import masked_mean
    from grpo_nb.logps import selective_log_softmax
    from grpo_nb.tasks import accuracy_reward, extract_answer
    from grpo_nb.parts.groups import expected_dead_frac
    check,right,wrong = HUNTS[chapter]
    ns = dict(torch=torch, math=math, heapq=heapq, random=random, check_hunt=check_hunt,
        masked_mean=masked_mean,
        selective_log_softmax=selective_log_softmax, accuracy_reward=accuracy_reward,
        extract_answer=extract_answer, completion_text=completion_text, group_advantages=group_advantages,
        expected_dead_frac=expected_dead_frac, chain_sum=chain_sum, test_eq=lambda *o: None)
    cells = [s for s,solved in cells_of(chapter) if not solved]
    at = next(i for i,s in enumerate(cells) if f'def {check}(' in s)
    stub = r'^(wrong,(example|text)|my_example) = None'
    versions = next(s for s in reversed(cells[:at]) if re.search(stub, s, re.M))
    exec(versions, ns)
    exec(cells[at], ns)
    stub = [None]*len(right)
    assert ns[check](*stub).startswith('not yet')
    assert ns[check](*right)=='right'
    for o in wrong: assert ns[check](*o).startswith('not yet: '), o

def test_a_batch_that_right_padding_leaves_alone():
    import transformers
    from grpo_nb.tiny_qwen import load_model
    transformers.logging.set_verbosity_error()
    model,tokenizer = load_model('tiny')
    ns = dict(re=re, torch=torch, attempt=attempt, model=model, tokenizer=tokenizer)
    cells = [s for s,solved in cells_of('tiny_qwen') if not solved]
    exec(re.search(r'def as_text.*?\n\n', next(s for s in cells if 'def as_text(' in s), re.S)[0], ns)
    for o in ('@torch.no_grad()\ndef p_think(prompts, side)', 'def check_sums'):
        exec(next(s for s in cells if s.startswith(o)), ns)
    check = ns['check_sums']
    assert check(['1 + 2 + 3 =', '4 + 5 + 6 =']).startswith('right')
    wrong = [None, [], ['1 + 2 ='], ['1 + 2 =', '1 + 2 ='], ['1 + 2 =', '4 + 5 + 6 + 7 ='],
        ['1 + 2', '4 + 5'], '1 + 2 =', 5, ['1 + 2 + 3 =', '4 + 5 + 6 =', '1 + 1 + 1 ='], ['', ' '],
        ['1 + 2 + 3 + 4 + 5 =', '6 - 2 + 3 ='], ['what?', 'who ='], [None, None]]
    for o in wrong: assert check(o).startswith('not yet: '), o

def test_which_curve_is_the_log_ratio():
    ns = dict(torch=torch, same=same, attempt=attempt, kl_estimate=kl_estimate,
        theta=torch.tensor([2., 1., 0., -1.]), ref=torch.tensor([.5, 1.5, 0., 0.]))
    cells = [s for s,solved in cells_of('kl') if not solved]
    for o in ('def mean_gradient', 'def check_curve'): exec(next(s for s in cells if s.startswith(o)), ns)
    check,k2,k3 = ns['check_curve'],*(ns['mean_gradient'](k) for k in ('k2', 'k3'))
    assert check('B', [0, 0, 0, 0])=='right' and check(None, None).startswith('not yet')
    wrong = [('A', [0]*4), ('C', [0]*4), ('B', k2), ('B', k3), ('B', None), (None, [0]*4), ('B', 0),
        ('B', [0]*3), ('b', [0]*4), ('B', [math.nan]*4), ('B', [.01, 0, 0, 0]), ('k1', [0]*4)]
    for o in wrong: assert check(*o).startswith('not yet: '), o

def test_a_cap_of_1():
    worth = {1.:[.68, .62, .42, .60], 2.:[.66, .69, .51, .59]}
    ns = dict(same=same, attempt=attempt, mean_ci=mean_ci, student=student,
        capped=lambda cap, seed: dict(worth=worth[cap][seed]))
    exec(next(s for s,_ in cells_of('off_policy_lab') if s.startswith('def check_cap')), ns)
    gap = [a-b for a,b in zip(worth[1.], worth[2.])]
    mean,half = mean_ci(gap)
    sd,check = float(np.std(gap, ddof=1)),ns['check_cap']
    assert check(mean, half, 'undecided')=='right' and check(None, None, None).startswith('not yet')
    says = {(-mean, half, 'undecided'):'cap 1 minus', (gap[0], half, 'undecided'):'seed 0 alone',
        (mean, sd, 'undecided'):'standard deviation', (mean, sd/2, 'undecided'):'standard error',
        (mean, 1.96*sd/2, 'undecided'):'3.18', (mean, half, 'worse'):'the interval',
        (mean, half, 'better'):'the interval',
        (mean, half, None):'a word', (mean, math.nan, 'undecided'):'nan',
        (2*mean, half, 'undecided'):'wanted', (mean, half, 'Undecided'):'the interval',
        ('x', half, 'undecided'):'no tensor'}
    for o,why in says.items(): assert check(*o).startswith('not yet: ') and why in check(*o), o
