"An evaluation beside plain loops, whatever its rewards have said and however it is cut into batches"
import itertools, math, statistics
import pytest, torch
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from scipy.stats import t as student
from grpo_nb.evaluation import evaluate, reward_summary
from grpo_nb.tiny_qwen import load_model

torch.set_num_threads(1)
DRAWN = settings(max_examples=40, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck))
NONE = [None, math.nan]

def summary(r):
    "Of lists of rewards, None where a completion was not judged: what `reward_summary` should say"
    of = [[x for x in o if x is not None] for o in r]
    per = [sum(o)/len(o) for o in of if o]
    if not per: return dict(has_rewards=False, mean=None, low=None, high=None, n=0, binary=False)
    n,mean = len(per),sum(per)/len(per)
    binary = all(x in (0, 1) for o in of for x in o)
    same = max(per)-min(per)<1e-12
    half = math.inf if n==1 else 0. if same else student.ppf(.975, n-1)*statistics.stdev(per)/n**.5
    low,high = mean-half,mean+half
    if binary and (len(r[0])==1 or same and n>1):   # Wilson's
        z = student.ppf(.975, 10**9)
        middle,width = mean+z*z/2/n,z*math.sqrt(mean*(1-mean)/n+z*z/4/n/n)
        low,high = (middle-width)/(1+z*z/n),(middle+width)/(1+z*z/n)
    if binary: low,high = max(0., low),min(1., high)
    return dict(has_rewards=True, mean=mean, low=low, high=high, n=n, binary=binary)

def assert_same(got, want):
    assert {k:got[k] for k in ('has_rewards','n','binary')}=={k:want[k] for k in ('has_rewards','n','binary')}
    for k in ('mean','low','high'):
        if want[k] is None: assert got[k] is None
        else: assert got[k]==pytest.approx(want[k], abs=1e-6)

@st.composite
def judgements(draw, values):
    "Problems of S samples each, some of them not judged"
    P,S = draw(st.integers(1, 7)),draw(st.integers(1, 3))
    some = st.sampled_from(draw(st.sampled_from(values))+([None] if draw(st.booleans()) else []))
    if draw(st.integers(0, 3))==0: return [[draw(some)]*S for _ in range(P)]
    if draw(st.integers(0, 3))==0: return [[draw(some) for _ in range(S)]]*P   # all problems agree
    return [[draw(some) for _ in range(S)] for _ in range(P)]

@DRAWN
@given(judgements([[0., 1.], [0., 0., 1.], [1.], [0.], [.25, .75], [-1., 2.], [0., 1., .5], [1., 2.]]))
def test_a_reward_is_summed_up_as_by_hand(r):
    x = torch.tensor([[math.nan if v is None else v for v in o] for o in r])
    assert_same(reward_summary(x), summary(r))

@pytest.fixture(scope='module')
def tiny(): return load_model('tiny')

@DRAWN
@given(st.data())
def test_an_evaluation_is_what_its_rewards_said_in_their_order(tiny, data):
    r = data.draw(judgements([[0., 1.], [0., 1.], [1.], [0., .5]]))
    other = data.draw(judgements([[-1., 3.]]))
    P,S = len(r),len(r[0])
    k,batch_size = data.draw(st.none() | st.integers(1, S)),data.draw(st.integers(1, P+1))
    seen = dict(prompts=[], texts=[], i=[])
    count = itertools.count()
    def right(completions, prompts, i, log_metric, **kw):
        places = [divmod(next(count), S) for _ in completions]
        for name,v in dict(prompts=prompts, texts=completions, i=i).items(): seen[name] += v
        log_metric('asked', len(completions))
        values = [r[p][s] for p,s in places]
        return [NONE[len(seen['i'])%2] if x is None else x for x in values]
    def half(i, **kw): return [other[p%len(other)][0] if p%2 else None for p in i]
    rows = [dict(prompt=f'{i}+{i}=', i=i) for i in range(P)]
    single = data.draw(st.booleans())
    e = evaluate(*tiny, rows, right if single else [right, half], num_samples=S, k=k, max_completion_length=3,
        batch_size=batch_size)
    assert seen['i']==[i for i in range(P) for _ in range(S)] and seen['prompts']==[f'{i}+{i}='
        for i in seen['i']]
    assert e['texts']==seen['texts'][::S] and e['n_problems']==P
    sizes = [min(batch_size, P-i)*S for i in range(0, P, batch_size)]
    assert e['metrics']==dict(asked=pytest.approx(sum(sizes)/len(sizes)))
    assert [*e['rewards']]==['right'] if single else [*e['rewards']]==['right','half']
    want = summary(r)
    assert_same(e['rewards']['right'], want)
    if not single:
        assert_same(e['rewards']['half'], summary([[other[p%len(other)][0] if p%2 else None]*S
            for p in range(P)]))
    shares = {'pass@1','ci','num_correct'}|({f'pass@{k}'} if k else set())
    if not want['binary']:
        assert not shares & {*e}
        return
    judged = [[x for x in o if x is not None] for o in r]
    assert e['num_correct']==[sum(o) if o else None for o in judged]
    reward = e['rewards']['right']
    assert e['pass@1']==pytest.approx(reward['mean']) and e['ci']==(reward['low'], reward['high'])
    if not k: return
    if k==1: assert e['pass@1']==pytest.approx(want['mean'])
    draws = [[any(o) for o in itertools.combinations(own, min(k, len(own)))] for own in judged if own]
    assert e[f'pass@{k}']==pytest.approx(sum(sum(o)/len(o) for o in draws)/len(draws))

def test_a_seed_gives_the_same_answers_and_the_best_token_needs_none(tiny):
    rows = [dict(prompt=f'{i}+1=') for i in range(6)]
    def texts(**kw): return evaluate(*tiny, rows, lambda completions, **kw: [0.]*len(completions),
        **kw)['texts']
    assert texts(seed=1)==texts(seed=1)!=texts(seed=2) and texts(temperature=0.,
        seed=1)==texts(temperature=0.)
    short = texts(max_completion_length=1)
    assert all(len(tiny[1](o)['input_ids'])<=1 for o in short)

def test_a_graded_reward_has_no_pass_at_k_and_says_so(tiny):
    def graded(completions, **kw): return [.5]*len(completions)
    with pytest.warns(UserWarning, match="no pass@2: the rewards of 'graded' are not 0 or 1 alone"):
        evaluate(*tiny, [dict(prompt='1+1=')], graded, num_samples=2, k=2, max_completion_length=3)

def test_more_answers_than_are_sampled_can_not_be_asked_for():
    with pytest.raises(ValueError, match='pass@8 needs 8 samples of a problem: `num_samples` is 1'):
        evaluate(None, None, [], [], k=8)
