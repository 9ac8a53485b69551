"""The exercises of the course: each stub is not yet done, each solution right, and each checker refuses at
least three wrong answers that a student would give, and says why"""

import itertools, json, math, random, re
from collections import Counter
from pathlib import Path
import numpy as np
import pandas as pd
import pytest, torch
from scipy.stats import t as student
from transformers import Qwen2Config, Qwen2ForCausalLM
from grpo_nb.advantages import group_advantages
from grpo_nb.what_if import what_if
from grpo_nb.kl import kl_estimate
from grpo_nb.loss import clipped_objective, policy_loss
from grpo_nb.parts.loss_inputs import LossInputs, LossSettings
from grpo_nb.parts.groups import dead_groups
from grpo_nb.parts.sampling import filter_logits
from grpo_nb.parts.stats import mean_ci
from grpo_nb.studies.study import REGIMES
from grpo_nb.studies.study import read_rows
from grpo_nb.run.reading import read_run
from grpo_nb.parts.batch_plan import batch_plan
from grpo_nb.tasks import completion_text
from grpo_nb.teach.classroom import attempt, same
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

def agreed(ns, name, check, solution, wrong):
    "True where the stub is not yet done, the solution right, and each wrong answer neither"
    assert ns[check](ns[name]).startswith('not yet')
    exec(solution, ns)
    assert ns[check](ns[name])=='right'
    assert len(wrong)>=3
    for o in wrong: assert ns[check](o).startswith('not yet: '), o
    return True

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
        kept,held = [],0.
        for i in sorted(range(len(p)), key=lambda i: p[i] if up else -p[i]):
            if beyond and held+p[i]>k: break
            kept.append(i)
            held += p[i]
            if held>=k: break
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

def test_the_mended_test():
    ns,solution = exercise('float_noise', 'alive_and_unseen', 'def mended', 'def alive_and_unseen',
        at=[], missed=None, dead_groups=dead_groups)
    assert agreed(ns, 'alive_and_unseen', 'check_unseen', solution, [
        lambda: torch.full((1, 8), .3),              # dead
        lambda: torch.tensor([[1e-7, 2e-7]]),        # within the tolerance
        lambda: torch.tensor([[1., 1.001]]),         # seen by both
        lambda: torch.tensor([1000., 1000.0005]),    # no group
        lambda: torch.tensor([[1000., 1000.0005]], dtype=torch.float64),
        lambda: torch.tensor([[torch.nan, 1.]])])

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

@pytest.mark.parametrize('picked', [
    dict(clip='b', split='a'), dict(clip='b', split='b'), dict(clip='a', split='a')])
def test_the_hunts_of_the_loss(picked):
    ns = dict(torch=torch, policy_loss=policy_loss, clipped_objective=clipped_objective,
        LossInputs=LossInputs, corners=torch.tensor([1.5,.5,1.5,.5]), signs=torch.tensor([1.,1.,-1.,-1.]))
    cells = [s for s,solved in cells_of('loss')]
    for o in ('def clip_a', 'def part(p, A, m', 'answers_to_hunts', 'def check_hunts'):
        exec(next(s for s in cells if s.startswith(o)), ns)
    m = torch.arange(6)<torch.tensor([[[6],[6]],[[1],[2]]])
    p,A = torch.full((2,2,6), -1.).requires_grad_(),torch.tensor([[1.,-1.],[1.,-1.]])
    ns |= dict(m3=m, p3=p, A3=A)
    right = dict(clip='a', split='b')
    assert set(ns['check_hunts'](ns['answers_to_hunts']).values())=={'not yet'}
    assert set(ns['check_hunts'](right).values())=={'right'}
    assert {k:v=='right' for k,v in ns['check_hunts'](picked).items()}=={k:picked[k]==right[k] for k in right}

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
        lambda s, p, r, b: s-(p-r).sum(), lambda s, p, r, b: s-b*(p-r)[-1]])

def test_which_rows_may_be_stored():
    ns,solution = exercise('grpo_with_replay_buffer', 'may_store', 'def may_store', 'def check_may_store')
    assert agreed(ns, 'may_store', 'check_may_store', solution, [
        lambda dead, replayed: not dead, lambda dead, replayed: not replayed,
        lambda dead, replayed: dead==replayed, lambda dead, replayed: True])

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
