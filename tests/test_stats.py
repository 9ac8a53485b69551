"Intervals, paired differences, Holm's rule and the mixed model, each against another road"
import math
import numpy as np, pandas as pd, pytest, torch
from grpo_nb.parts.stats import paired_difference, paired_share_ci
from grpo_nb.studies.claims import holm, random_effects_mean

def test_only_common_seeds_count_and_one_decides_nothing():
    o = paired_difference(pd.Series({0:.5, 1:.7}), pd.Series({1:.5, 2:.9}))
    assert math.isclose(o['diff'], .2) and o['verdict']=='undecided' and o['n']==1

def test_p_is_that_of_the_paired_t_test():
    from scipy.stats import ttest_rel
    x,y = pd.Series([.5,.6,.72,.4]),pd.Series([.4,.5,.6,.35])
    assert math.isclose(paired_difference(x, y)['p'], ttest_rel(x, y).pvalue)
    assert paired_difference(x, x)['p']==1
    same = paired_difference(pd.Series([.5, .75]), pd.Series([.25, .5]))   # t is infinite
    assert (same['p'], same['verdict'])==(0, 'better')

def test_holm_is_the_step_down_rule_by_a_slow_loop():
    g = torch.Generator().manual_seed(0)
    for n in (1, 2, 7):
        p = (torch.rand(n, generator=g)**3).tolist()
        def slow(i):   # the largest of (how many are not smaller) * p among all that are not larger
            return min(1., max(sum(q>=o for q in p)*o for o in p if o<=p[i]))
        assert all(math.isclose(a, slow(i)) for i,a in enumerate(holm(p)))
    assert holm([.01,.04,.03])==[.03,.06,.06] and holm([])==[]
    assert holm([.9, .8])==[1., 1.]   # no p-value is above 1

def dense(groups):
    "REML of the same model with whole covariance matrices and a grid: (mean, se, tau, sigma)"
    y = np.concatenate(list(groups.values()))
    Z = np.concatenate([np.eye(len(groups))[[i]*len(o)] for i,o in enumerate(groups.values())])
    X,best = np.ones((len(y), 1)),None
    for tau in np.linspace(0, 2, 401):
        for sigma in np.linspace(.5, 1.5, 101):
            V = tau**2*Z@Z.T+sigma**2*np.eye(len(y))
            W = np.linalg.inv(V)
            info = (X.T@W@X)[0, 0]
            m = (X.T@W@y)[0]/info
            r = y-m
            l = np.linalg.slogdet(V)[1]+math.log(info)+r@W@r
            if best is None or l<best[0]: best = (l, m, info**-.5, tau, sigma)
    return best[1:]

def test_random_effect_is_reml_by_whole_matrices_also_where_groups_differ_in_size():
    g = np.random.default_rng(1)
    groups = {k:.3+u+g.normal(size=n) for k,u,n in (('a',.8,3), ('b',-.6,9), ('c',.1,5), ('d',.5,6))}
    o,(m,se,tau,sigma) = random_effects_mean(groups),dense(groups)
    assert abs(o['tau']-tau)<.01 and abs(o['sigma']-sigma)<.011
    assert abs(o['mean']-m)<2e-3 and abs(o['half']/3.18245-se)<3e-3 and o['groups']==4 and o['n']==23

def test_its_interval_holds_the_truth_in_95_of_100_worlds():
    g = np.random.default_rng(0)
    hit = 0
    for _ in range(400):
        o = random_effects_mean({k:.1+g.normal()*.2+g.normal(size=6)*.3 for k in range(5)})
        hit += abs(o['mean']-.1)<=o['half']
    assert .925<=hit/400<=.985

def test_regimes_that_do_not_differ_give_the_plain_mean():
    o = random_effects_mean(dict(a=[1,2,3], b=[1.5,2,2.5]))
    assert o['tau']==0 and o['mean']==2
    for bad in (dict(a=[1,2]), dict(a=[1.], b=[2.]), dict(a=[1,2], b=[])):
        with pytest.raises(ValueError, match='two regimes'): random_effects_mean(bad)

def test_the_interval_of_a_paired_difference_of_shares_is_the_published_one():
    # airway hyper-responsiveness of 21 children, in Fagerland, Lydersen and Laake 2014, table III
    assert paired_share_ci(1, 7, 21)==pytest.approx((-.517, -.026), abs=6e-4)

@pytest.mark.parametrize('gained,lost,n', [(1, 7, 21), (0, 0, 40), (0, 0, 1), (12, 2, 50), (30, 0, 30),
    (0, 9, 9), (0, 3, 25), (440, 0, 500)])
def test_the_ends_of_that_interval_are_1_96_standard_errors_from_what_was_seen(gained, lost, n):
    "The likeliest table with a given difference is looked for by trying, and the error is that of this table"
    def errors_apart(d):
        q = np.linspace(max(0, -d), min(1, (1-d)/2), 400_001)[1:-1]   # share of lost problems
        like = (gained*np.log(q+d) if gained else 0)+(lost*np.log(q) if lost else 0)
        rest = n-gained-lost
        like = like+(rest*np.log(np.maximum(1-2*q-d, 1e-300)) if rest else 0)
        best = q[np.argmax(like)]
        return (gained-lost-n*d)/(n*(2*best+d-d*d))**.5
    low,high = paired_share_ci(gained, lost, n)
    assert -1<=low<high<=1 and (paired_share_ci(lost, gained, n))==pytest.approx((-high, -low))
    if low>-1: assert errors_apart(low)==pytest.approx(1.96, abs=.01)
    if high<1: assert errors_apart(high)==pytest.approx(-1.96, abs=.01)
    if gained==lost==0: assert high==pytest.approx(1.96**2/(n+1.96**2), abs=1e-4)   # solved by hand
    for bad in ((-1, 0, 5), (3, 3, 5), (0, 0, 0)):
        with pytest.raises(ValueError, match='gained and'): paired_share_ci(*bad)
