"The rules: each fault found where it is, silence where there is none, a verdict by value; all on stored runs"
import itertools, math
import numpy as np
import pytest
from grpo_nb.see.findings import (
    RULES, Finding, Look, beforehand, difference, find, live, rise, rolling, verdict)
from grpo_nb.see.view import history_rows
from bench_doctors import NAMED
from grpo_nb.see.logs import read_log
from published_runs import PUBLISHED
from stored_runs import HEALTHY, NAMES, stored

def of(name):
    r = stored(name)
    return find(history_rows(r), r.rows, r.settings)

FAULTS = {'all-truncated': 'all-truncated', 'no-chat-template': 'no-chat-template',
          'no-end-token': 'no-end-token', 'reward-never-fires': 'reward-never-fires',
          'all-equal': 'all-equal', 'too-cold': 'all-equal', 'float-noise': 'float-noise',
          'kl-only-pull': 'kl-only-pull', 'ratio-always-1': 'ratio-always-1',
          'learning-rate-too-small': 'learning-rate-too-small',
          'learning-rate-too-large': 'learning-rate-too-large', 'replay-too-old': 'replay-too-old',
          'hacked-by-length': 'hacked-by-length', 'hacked-by-length-alone': 'hacked-by-length',
          'hacked-by-form': 'hacked-by-form', 'hacked-by-form-seen': 'hacked-by-form'}

@pytest.mark.parametrize('name,finds', FAULTS.items())
def test_a_run_with_this_fault_is_told_so(name, finds):
    got = of(name)
    assert finds in got.names and got[0].fault
    f = got[got.names.index(finds)]
    assert (f.evidence and f.remedy and any(c.isdigit() for c in f.evidence)
            and f.sure in ('certain', 'likely', 'possible'))

@pytest.mark.parametrize('name', HEALTHY)
def test_a_healthy_run_gets_no_finding(name):
    assert len(HEALTHY)>=20 and of(name)==[] and live(history_rows(stored(name)))==[]
    assert verdict(history_rows(stored(name))).learned is not False

def test_one_cause_gives_one_finding():
    only = ('all-truncated no-chat-template no-end-token float-noise kl-only-pull ratio-always-1 '
            'learning-rate-too-small learning-rate-too-large')
    for name in only.split(): assert of(name).names==[name]
    assert of('on-policy').names==['loss-0-is-fine'] and not of('on-policy')[0].fault
    assert {'all-equal', 'reward-never-fires'} <= set(of('all-truncated')[0].follows) and 'all-equal' in str(
        of('all-truncated')
    )

# ---- what the stored runs do not hold, made by hand: curves as other tools log them

def rows(n=60, **cols):
    "Rows from functions of 0..1 (the way through the run)"
    rng = np.random.default_rng(0)
    out = []
    for i in range(n):
        base = {'step': i, 'reward': 0.3 + 0.004 * i + 0.02 * rng.standard_normal(),
                'frac_reward_zero_std': 0.3, 'entropy': 1.0 - 0.004 * i,
                'grad_norm': 0.5 + 0.05 * rng.random(), 'kl': 0.01 + 0.0005 * i,
                'completions/clipped_ratio': 0.02}
        out.append(base|{k.replace('__','/'):f(i/(n-1)) if callable(f) else f for k,f in cols.items()})
    return out

flat = lambda x: .35+.01*math.sin(50*x)
MADE = {'entropy-collapse': dict(entropy=lambda x: 1.2 * math.exp(-6 * x), reward=flat),
        'kl-blow-up': dict(kl=lambda x: 0.02 if x < 0.6 else 4 * (x - 0.6) * 10, reward=flat),
        'truncated': dict(completions__clipped_ratio=lambda x: 0.05 + 0.6 * x, reward=flat),
        'thin-signal': dict(frac_reward_zero_std=lambda x: 0.5 + 0.25 * x,
                            reward=lambda x: 0.12 + 0.01 * math.sin(50 * x)),
        'held-out-falls': dict(eval_reward=lambda x: 0.5 - 0.8 * (x - 0.4) ** 2),
        'gradient-spikes': dict(grad_norm=lambda x: 40.0 if round(59 * x) in (20, 33, 47) else 0.5),
        'plateau': dict(reward=lambda x: min(0.45, 0.2 + x) + 0.005 * math.sin(70 * x)),
        'start-at-zero': dict(reward=lambda x: 0.01 if round(59 * x) in (30, 41) else 0.0,
                              frac_reward_zero_std=lambda x: 0.98 if round(59 * x) in (30, 41) else 1.0),
        'few-groups-replayed': {'replay__buffer_size': 4.0, 'replay__replaced': 8.0, 'replay__dead': 8.0,
                                'replay__live_before': 0.0, 'frac_reward_zero_std': 1.0, 'reward': 0.5},
        'no-gradient': dict(grad_norm=lambda x: 0.0 if round(59 * x) % 2 else 0.5, reward_std=.3),
        'one-reward-drowns': {'rewards__length/mean': lambda x: 20 + 9 * x, 'rewards__length/std': 8.0,
                              'rewards__right/mean': flat, 'rewards__right/std': 0.4}}

@pytest.mark.parametrize('name', MADE)
def test_a_curve_with_this_fault_is_told_so_with_its_step(name):
    cols = {k.replace('__','/',1):v for k,v in MADE[name].items()}
    got = find(rows(**cols))
    assert name in got.names or name in {n for f in got for n in f.follows}
    f = next((f for f in got if f.name==name), None)
    if name in ('entropy-collapse','kl-blow-up','truncated','held-out-falls','gradient-spikes'):
        assert f.step is not None and 0<f.step<59

def test_a_healthy_curve_is_left_alone():
    assert find(rows())==[]
    assert (
        find(rows(entropy=lambda x: 1.2 * math.exp(-4 * x), reward=lambda x: 0.3 + 0.68 * x**0.5)) == []
    )  # sure, and solved
    assert (
        find(rows(frac_reward_zero_std=lambda x: 0.3 + 0.55 * x, reward=lambda x: 0.3 + 0.65 * x)) == []
    )  # dead because all right
    assert find(rows(eval_reward=lambda x: .3+.4*x))==[]

@pytest.mark.parametrize('name', PUBLISHED)
def test_runs_whose_numbers_were_published(name, tmp_path):
    "Each is read from the file that its tool writes; a sound one gets no fault"
    label,make,_ = PUBLISHED[name]
    run = read_log(make(tmp_path/'r'))
    got = find(history_rows(run), run.rows, run.settings)
    told = {n for f in got for n in (f.name, *f.follows)}
    if label is None: assert not any(f.fault for f in got)
    else: assert told & set(NAMED[label]['grpo_nb'].split())

def test_the_other_doctors_own_faults(tmp_path):
    "Their simulators, where they are installed; seeds that no rule was tried on"
    pytest.importorskip('rl_doctor'), pytest.importorskip('rlprobe')
    from bench_doctors import probed, simulated
    seen = [(label, find(rows, groups, settings)) for _,_,label,rows,groups,settings,_ in
        (*simulated(), *probed(tmp_path)) if label is None or 'grpo_nb' in NAMED[label]]
    hit = [bool({n for f in got for n in (f.name, *f.follows)} & set(NAMED[label]['grpo_nb'].split()))
        for label,got in seen if label]
    assert np.mean(hit)>10/12 and all(got==[] for label,got in seen if label is None)

def test_a_long_run_of_dead_groups_is_told_apart():
    "Nothing left to teach, or too little to learn from; a short one is left alone"
    far = dict(frac_reward_zero_std=lambda x: .1+.7*min(1, 2*x))
    top = dict(reward=lambda x: .4+.6*min(1, 2*x))
    assert find(rows(120, **far, **top)).names==['solved'] and not find(rows(120, **far, **top))[0].fault
    thin = find(rows(120, **far, reward=lambda x: .1+.2*x))
    assert thin.names==['thin-signal'] and thin[0].sure=='possible'
    assert find(rows(60, **far, reward=lambda x: .1+.2*x, kl=0.))==[]

def test_a_held_out_score_that_stands_still_is_seen():
    follows = dict(reward=lambda x: .2+.6*x, completions__mean_length=lambda x: 300*(1+2*x))
    assert find(rows(80, **follows, eval_reward=lambda x: .2+.5*x))==[]
    got = find(rows(80, **follows, eval_reward=lambda x: .2+.01*x))
    assert got.names==['hacked-by-length'] and 'only 0.2' in got[0].evidence and got[0].sure=='possible'
    short = find(rows(80, reward=lambda x: .2+.6*x, eval_reward=lambda x: .2+.01*x))
    assert short.names==['hacked-by-form']

def test_a_gradient_of_zero_is_explained_by_dead_groups_where_they_are_logged():
    none = dict(grad_norm=lambda x: 0. if round(59*x)%2 else .5)
    assert 'no-gradient' in find(rows(**none)).names
    dead = dict(none, frac_reward_zero_std=lambda x: 1. if round(59*x)%2 else .2)
    assert 'no-gradient' not in find(rows(**dead)).names

def test_every_rule_is_needed_by_some_run():
    found = {n for name in NAMES for f in of(name) for n in (f.name, *f.follows)}
    found |= {n for v in MADE.values()
              for f in find(rows(**{k.replace('__', '/', 1): o for k, o in v.items()}))
              for n in (f.name, *f.follows)}
    alike = {'hacked':{'hacked-by-length','hacked-by-form'}}
    assert [k for k in RULES if not (alike.get(k, {k}) & found)]==[]

# ---- numbers

def test_welch_and_running_means_by_another_road():
    from scipy.stats import ttest_ind
    rng = np.random.default_rng(1)
    for n,m in ((3, 9), (20, 5), (8, 8)):
        a,b = rng.normal(0, 1, n),rng.normal(.5, 3, m)
        ci = ttest_ind(b, a, equal_var=False).confidence_interval()
        assert difference(a, b)==pytest.approx(((ci.low+ci.high)/2, (ci.high-ci.low)/2))
    x = rng.random(30)
    assert rolling(x, 7)==pytest.approx([x[max(0, i-6):i+1].mean() for i in range(30)])
    assert rise(np.arange(16.))[0]==12

# ---- the verdict

def share(p, n=500, right=None): return {'pass@1':p, 'ci':(p-.04, p+.04)}|({'right':right} if right else {})

@pytest.mark.parametrize('a,b,learned', [(.4, .9, True), (.9, .4, False), (.5, .52, None)])
def test_held_out_measurements_decide(a, b, learned):
    v = verdict([], share(a), share(b))
    assert v.learned is learned and f'{a:.1%}' in v.sentence and f'{b:.1%}' in v.sentence

def test_the_same_problems_before_and_after_are_paired():
    right = [0]*50+[1]*50
    better = [0]*40+[1]*60
    d = np.subtract(better, right)
    v = verdict([], share(.5, right=right), share(.6, right=better))
    assert v.learned is True and f'{100*1.96*d.std()/10:.1f}' in v.sentence

def test_a_reward_that_is_no_share_keeps_its_unit():
    one = lambda m: {'rewards':{'close':dict(mean=m, low=m-1, high=m+1, n=200, judged=200)}}
    v = verdict([], one(-29.5), one(-20.))
    assert v.learned and 'close went from −29.5 to −20 (+9.5' in v.sentence and '%' not in v.sentence

def test_what_nobody_judged_is_left_out():
    none = {'rewards':{'close':dict(mean=None, low=None, high=None, n=200, judged=0)}}
    assert verdict([], none, none).learned is None

def test_two_rewards_that_part_ways_are_undecided():
    two = lambda a, b: {'rewards': {'a': dict(mean=a, low=a - 0.01, high=a + 0.01),
                                    'b': dict(mean=b, low=b - 0.01, high=b + 0.01)}}
    assert verdict([], two(.1, .9), two(.5, .5)).learned is None

def test_nothing_was_learned_where_every_group_was_dead():
    v = verdict([{'step': i, 'reward': 0.0, 'frac_reward_zero_std': 1.0, 'replay/dead': 8.0,
                  'num_tokens': 100.0 * (i + 1)} for i in range(100)])
    assert (v.learned is False and 'all 800 groups were dead' in v.sentence
            and '10,000 tokens' in v.sentence and v.cause and v.advice)
    v = verdict(history_rows(stored('all-truncated')), settings=stored('all-truncated').settings)
    assert v.learned is False and 'cut off' in v.cause and 'max_completion_length' in v.advice

def test_a_hacked_run_has_not_learned():
    r = stored('hacked-by-length-alone')
    v = verdict(history_rows(r), groups=r.rows, settings=r.settings)
    assert v.learned is None and 'longer' in v.sentence

@pytest.mark.parametrize('n', [0, 1, 2, 3])
def test_few_rows_are_undecided(n):
    assert verdict(rows(60)[:n]).learned is None and find(rows(60)[:n])==[] and live(rows(60)[:n])==[]

# ---- while it goes on, and before

def test_live_speaks_after_ten_batches_and_not_before():
    dead = [{'step':i, 'reward':.5, 'frac_reward_zero_std':1.} for i in range(40)]
    assert live(dead[:9])==[] and [f.name for f in live(dead[:10])]==['no-living-group']
    assert [f.name for f in live([o|dict(reward=0.) for o in dead[:10]])]==['start-at-zero']
    assert live(dead+[dict(step=40, reward=.5, frac_reward_zero_std=.9)])==[]

def test_four_groups_and_106_uses_are_seen():
    r = [{'step': i, 'reward': 0.0, 'frac_reward_zero_std': 1.0, 'replay/dead': 8.0,
          'replay/live_before': 0.0, 'replay/replaced': 7.6, 'replay/buffer_size': 4.0} for i in range(14)]
    f = next(o for o in live(r) if o.name=='few-groups-replayed')
    assert '4 stored groups were replayed 106 times' in f.says
    groups = [dict(step=i, group=g, rewards=[0.0, 0.0], replacement=dict(id=(i + g) % 4, step=0))
              for i in range(14) for g in range(8)]
    assert 'few-groups-replayed' in find(r, groups).names

def test_numbers_of_the_wrong_kind_are_passed_over():
    odd = [dict(step=i, reward='oh', loss=None, kl=math.nan, entropy=[1], grad_norm=True) for i in range(20)]
    assert find(odd)==[] and verdict(odd).learned is None and live(odd)==[]

def test_what_can_be_seen_before_the_run():
    names = lambda *a, **k: [o.name for o in beforehand(*a, **k)]
    assert names('2+2=', True, ['accuracy_reward'])==['no-chat-template','tags-not-asked-for']
    assert names('2+2=', False, ['mine'])==[] and names('2+2=', False, ['accuracy_reward'], taught=True)==[]
    assert names([dict(role='user', content='Answer in <answer> tags')], True, ['accuracy_reward'])==[]
