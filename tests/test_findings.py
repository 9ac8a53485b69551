"The rules: each fault found where it is, silence where there is none, a verdict by value; all on stored runs"
import itertools, math
import numpy as np
import pytest
from dataclasses import fields
from grpo_nb.cli import _notes
from grpo_nb.see.findings import (RULES, Finding, Look, curves_read, find, in_words, rise,
    _rolling, _since, _trend)
from grpo_nb.see.verdict import verdict, warnings_now
from grpo_nb.see.readers import history_rows
from notebook_code import defined_in
from bench_doctors import NAMED
from grpo_nb.see.readers import diagnose
from grpo_nb.see.readers import open_run
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
    assert len(HEALTHY)>=20 and of(name)==[] and warnings_now(history_rows(stored(name)))==[]
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
        'solved': dict(frac_reward_zero_std=lambda x: min(.95, 2*x), reward=lambda x: min(1., .1+2*x)),
        'not-a-number': dict(loss=lambda x: math.nan if x>.7 else .1),
        'reward-collapse': dict(reward=lambda x: .2+.5*x if x<.7 else .02,
                                entropy=lambda x: .5 if x<.7 else 5.5),
        'generalisation-gap': dict(reward=lambda x: .2+.6*x, eval_reward=lambda x: .2+.05*x),
        'sampler-disagrees': {'sampling__mismatch_kl': lambda x: .3*x, 'reward': flat},
        'failing-tools': {'tools__failure_frequency': lambda x: .8*x, 'reward': flat},
        'one-reward-drowns': {'rewards__length/mean': lambda x: 20 + 9 * x, 'rewards__length/std': 8.0,
                              'rewards__right/mean': flat, 'rewards__right/std': 0.4}}

@pytest.mark.parametrize('name', MADE)
def test_a_curve_with_this_fault_is_told_so_with_its_step(name):
    cols = {k.replace('__','/',1):v for k,v in MADE[name].items()}
    got = find(rows(**cols))
    assert name in got.names or name in {n for f in got for n in f.follows}
    f = next((f for f in got if f.name==name), None)
    if name in ('entropy-collapse','kl-blow-up','truncated','held-out-falls','gradient-spikes','not-a-number',
            'reward-collapse','sampler-disagrees','failing-tools'):
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
    run = open_run(make(tmp_path/'r'))
    got = find(history_rows(run), run.rows, run.settings)
    told = {n for f in got for n in (f.name, *f.follows)}
    if label is None: assert not any(f.fault for f in got)
    else: assert told & set(NAMED[label]['grpo_nb'].split())

def test_the_other_doctors_own_faults(tmp_path):
    "Their simulators, where they are installed; seeds that no rule was tried on; through files"
    pytest.importorskip('rl_doctor'), pytest.importorskip('rlprobe')
    from bench_doctors import probed, simulated, written
    seen = [(label, diagnose(written(tmp_path/f'files-{i}', rows, groups, settings)))
        for i,(_,_,label,rows,groups,settings,_) in enumerate((*simulated(), *probed(tmp_path)))
        if label is None or 'grpo_nb' in NAMED[label]]
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
    short = find(rows(80, reward=lambda x: .2+.6*x, **{'eval/accuracy':lambda x: .2+.01*x}))
    assert short.names==['hacked-by-form']

def test_the_same_reward_held_out_shows_a_gap_and_no_hack():
    "It would rise, too, if the reward were hacked; a gap needs its interval, and one that closes is none"
    of = lambda end: find(rows(80, reward=lambda x: .2+.4*x, eval_reward=lambda x: .3+(end-.3)*x)).names
    assert of(.31)==of(.33)==['generalisation-gap'] and of(.45)==of(.6)==[]
    assert 'hacked-by-form' not in of(.38)

def test_a_reward_that_collapses_is_told_with_or_without_its_entropy():
    x = np.linspace(0, 1, 300)
    down = 1/(1+np.exp(-40*(x-.7)))
    m = (.2+.5/(1+np.exp(-8*(x-.4))))*(1-down)+.02*down+np.random.default_rng(0).normal(0, .02, 300)
    bare = [dict(step=i, reward=float(v)) for i,v in enumerate(m)]
    full = [o|dict(entropy=.5+5*d, grad_norm=.4, frac_reward_zero_std=.3+.6*d) for o,d in zip(bare, down)]
    for r in (bare, full):
        f = find(r)[0]
        assert f.name=='reward-collapse' and 150<f.step<220
        assert verdict(r).learned is False and 'go back to the checkpoint' in verdict(r).advice
    assert '0.5 to 5.' in find(full)[0].evidence

RISES = [(80, .45, .6, .1), (120, .3, .5, .09), (150, .2, .45, .08), (300, .3, .6, .06), (300, .3, .5, .1)]
@pytest.mark.parametrize('n,a,b,sd', RISES)
def test_a_straight_rise_is_no_plateau(n, a, b, sd):
    for seed in range(40):
        m = np.clip(np.linspace(a, b, n)+np.random.default_rng(seed).normal(0, sd, n), 0, 1)
        assert 'plateau' not in find([dict(step=i, reward=float(v)) for i,v in enumerate(m)]).names

def test_a_plateau_is_seen_where_the_noise_lets_it_be_seen():
    hit = 0
    for seed in range(40):
        m = .45+np.random.default_rng(seed).normal(0, .05, 400)
        hit += 'plateau' in find([dict(step=i, reward=float(v)) for i,v in enumerate(m)]).names
    assert hit>=36

# ---- cliff or collapse

def dead_run(text):
    "20 steps of four dead groups, whose texts `text(step, group, place)` gives"
    r = [dict(step=i, reward=.3, frac_reward_zero_std=1.) for i in range(20)]
    return r,[dict(step=i, group=g, prompt=f'{g}', completions=[text(i, g, j) for j in range(4)],
        rewards=[.3]*4, dead=True) for i in range(20) for g in range(4)]

def test_one_text_and_many_texts_of_one_reward_need_opposite_remedies():
    cliff,collapse = find(*dead_run(lambda i, g, j: f'{i} {j}'))[0],find(*dead_run(lambda i, g, j: 'same'))[0]
    assert cliff.name==collapse.name=='all-equal' and cliff.groups[0]==(15, 0) and len(cliff.groups)==20
    assert '0 of the 20 dead groups recorded last are one text' in cliff.evidence
    assert 'grade it' in cliff.remedy
    assert '20 of the 20' in collapse.evidence and 'raise temperature' in collapse.remedy
    for n in (1, 2, 3, 5):   # of few steps on record, the last
        few = find(*[o[:k] for o,k in zip(dead_run(lambda *a: 'same'), (20, 4*n))])[0]
        assert few.groups==[(n-1, g) for g in range(4)]
    alone = find(dead_run(lambda *a: '')[0])[0]
    assert 'grade the reward' in alone.remedy and 'raise temperature' in alone.remedy and not alone.groups

# ---- what a finding rests on, and what it tells to do

def test_a_finding_carries_the_rows_it_rests_on():
    f = next(f for f in find(rows(kl=MADE['kl-blow-up']['kl'], reward=flat)) if f.name=='kl-blow-up')
    assert [o['step'] for o in f.rows]==[float(i) for i in range(int(f.step), 60)]
    assert set(f.rows[0])=={'step','kl','reward'} and f.rows[-1]['kl']==pytest.approx(16)
    import json
    assert json.loads(json.dumps(find(rows(loss=lambda x: math.nan)).plain))[0]['rows'][0]['loss']=='nan'

def test_every_setting_that_a_remedy_names_is_one_of_its_trainer():
    import re
    from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferConfig
    from grpo_nb.replay import ReplayBuffer
    from grpo_nb.trainer import TrainConfig
    from inspect import signature
    no_settings = {'requires_grad','eos_token','frac_reward_zero_std','region_mean','clip_ratio',
        'normalize_then_sum','im_end'}
    dead = [dict(step=i, reward=0., frac_reward_zero_std=1.) for i in range(12)]
    few = {'replay/dead':8., 'replay/live_before':0., 'replay/replaced':8., 'replay/buffer_size':4.}
    runs = dead,[o|few for o in dead],[o|dict(reward=.5) for o in dead]
    for trainer,config in ((None, GRPOWithReplayBufferConfig), ('grpo_nb', TrainConfig)):
        known = {f.name for f in fields(config)}|no_settings
        if trainer: known |= set(signature(ReplayBuffer.__init__).parameters)
        told = [in_words(o, trainer) for rule in RULES.values() for o in rule.remedies]
        told += [f.remedy for r in runs for f in warnings_now(r, trainer=trainer)]
        named = {k for o in told for k in re.findall(r'[a-z]+(?:_[a-z0-9]+)+', o)}
        assert len(told)>=len(RULES)+3 and len(named)>20 and named-known==set(), named-known
    assert 'Replay(age_decay=…)' in in_words(RULES['replay-too-old'].remedies[0], 'grpo_nb')

def test_a_log_alone_does_not_say_that_rewards_differ():
    "The deviation of equal rewards is not 0 in float32 either"
    f = find([dict(step=i, reward=.1, reward_std=1.5e-9, frac_reward_zero_std=.5) for i in range(8)])
    told = next(o for o in f if o.name=='float-noise')
    assert told.says.startswith('the deviation within groups is rounding alone') and 'differ' not in told.says

def test_since_is_the_first_step_of_the_last_stretch():
    s = np.array([3., 7., 9., 20.])
    for bad,want in (('1111', 3.), ('0111', 7.), ('1011', 9.), ('0001', 20.), ('1110', None)):
        assert _since(s, np.array([o=='1' for o in bad]))==want
    first = lambda n: next(f.step for f in find(rows(**MADE[n])) if f.name==n)
    assert first('not-a-number')==42   # 42/59 is the first above .7
    assert first('failing-tools')==25  # (20+…+25)/6/59*.8 is the first .3

def test_the_middle_of_a_gap_is_no_silence():
    "A column that is logged every fifth row; one that stops; one that was never there"
    r = [dict(step=i, reward=.3+.01*(i%2))|(dict(loss=.1) if i%5==0 else {}) for i in range(60)]
    assert 'not-a-number' not in find(r).names
    f = find([o if o['step']<30 else {k:v for k,v in o.items() if k!='loss'} for o in r])[0]
    assert f.name=='not-a-number' and f.step==26 and f.sure=='likely'

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
    assert [k for k in RULES if k not in found]==[]

# ---- numbers

def test_welch_and_running_means_by_another_road():
    from scipy.stats import ttest_ind
    rng = np.random.default_rng(1)
    for n in (8, 14, 45):
        x = rng.normal(np.linspace(0, .5, n), np.linspace(1, 3, n))
        q = max(2, n//4)
        ci = ttest_ind(x[-q:], x[:q], equal_var=False).confidence_interval()
        assert rise(x)==pytest.approx(((ci.low+ci.high)/2, (ci.high-ci.low)/2))
    x = rng.random(30)
    from scipy.stats import linregress
    line = linregress(np.arange(30), x)
    ci = 29*line.slope-np.array([0., 29*line.stderr*2.0484071])   # Student's 97.5 % at 28 degrees
    assert _trend(x)==pytest.approx((ci[0], ci[0]-ci[1]))
    assert _rolling(x, 7)==pytest.approx([x[max(0, i-6):i+1].mean() for i in range(30)])
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
    assert verdict(rows(60)[:n]).learned is None and find(rows(60)[:n])==[] and warnings_now(rows(60)[:n])==[]

# ---- while it goes on, and before

def test_live_speaks_after_ten_batches_and_not_before():
    dead = [{'step':i, 'reward':.5, 'frac_reward_zero_std':1.} for i in range(40)]
    assert warnings_now(dead[:9])==[] and [f.name for f in warnings_now(dead[:10])]==['no-living-group']
    assert [f.name for f in warnings_now([o|dict(reward=0.) for o in dead[:10]])]==['start-at-zero']
    assert warnings_now(dead+[dict(step=40, reward=.5, frac_reward_zero_std=.9)])==[]

def test_four_groups_and_106_uses_are_seen():
    r = [{'step': i, 'reward': 0.0, 'frac_reward_zero_std': 1.0, 'replay/dead': 8.0,
          'replay/live_before': 0.0, 'replay/replaced': 7.6, 'replay/buffer_size': 4.0} for i in range(14)]
    f = next(o for o in warnings_now(r) if o.name=='few-groups-replayed')
    assert '4 stored groups were replayed 106 times' in f.says
    groups = [dict(step=i, group=g, rewards=[0.0, 0.0], replacement=dict(id=(i + g) % 4, step=0))
              for i in range(14) for g in range(8)]
    assert 'few-groups-replayed' in find(r, groups).names

def test_numbers_of_the_wrong_kind_are_passed_over():
    odd = [dict(step=i, reward='oh', loss=None, kl=math.nan, entropy=[1], grad_norm=True) for i in range(20)]
    assert find(odd)==[] and verdict(odd).learned is None and warnings_now(odd)==[]

def test_what_can_be_seen_before_the_run():
    from types import SimpleNamespace
    def told(prompt, template, default):
        lines = ' '.join(_notes(prompt, SimpleNamespace(chat_template=template), default))
        return 'chat template' in lines,'don\'t ask for it' in lines
    assert told('2+2=', True, True)==(True, True) and told('2+2=', False, False)==(False, False)
    assert told([dict(role='user', content='Answer in <answer> tags')], True, True)==(False, False)

def bare(reward, clipped): return [dict(step=i, reward=r, **{'completions/clipped_ratio':clipped,
    'completions/mean_length':8.}) for i,r in enumerate(reward)]
ASKED = dict(data=dict(prompt_format='text', chat_template=True, eos_token_id=1, eos_in_template=True))

@pytest.mark.parametrize('reward,clipped,blamed', [
    ([-30+i for i in range(16)], .1, False),       # TL;DR's own recipe: never above 0, and it learns
    ([-30+i for i in range(16)], 1., False),
    ([-20-i%3 for i in range(16)], .1, False),     # nor does it learn, but answers end
    ([.1+.03*i for i in range(16)], 1., False),    # it learns, within eight tokens
    ([.1+.01*(i%3) for i in range(16)], 1., True), # no answer ends, and nothing is learned
    ([0.]*16, .1, True), ([-1.]*16, .1, True),     # no answer is told from another
])
def test_bare_text_is_blamed_only_where_nothing_is_learned(reward, clipped, blamed):
    assert ('no-chat-template' in find(bare(reward, clipped), settings=ASKED).names)==blamed

# ---- the figure of a finding

def test_a_findings_figure_has_its_curves_and_its_window():
    r = rows(kl=MADE['kl-blow-up']['kl'], reward=flat)
    f = next(o for o in find(r) if o.name=='kl-blow-up')
    got = curves_read(f, r)
    assert got[0]['label']=='kl' and got[0]['since']==f.step and len(got)<=3
    assert got[0]['value']==[o['kl'] for o in r] and got[0]['step']==list(range(60))
    axes = defined_in('16_diagnose').draw_finding(f, r).axes
    assert [a.get_title(loc='left') or a.get_ylabel() for a in axes] and len(axes)==len(got)
    assert all(len(a.lines[0].get_xdata())==60 and a.patches for a in axes)

def test_the_reports_findings_bring_their_figures(tmp_path):
    import json
    from grpo_nb.run.record import read_run
    from grpo_nb.see.view import _told_verdict
    broken = rows(loss=lambda x: .1 if x<.5 else math.nan)
    (tmp_path/'history.jsonl').write_text('\n'.join(map(json.dumps, broken)))
    told = next(o for o in _told_verdict(read_run(tmp_path))[1] if 'stopped being a number' in o['says'])
    assert told['step']==30 and 'loss' in [c['label'] for c in told['curves']]

# ---- the benchmark

def test_the_stored_scores_are_todays_on_part_of_the_benchmark(tmp_path):
    "Three trainers' broken and healthy runs, held back: the table's rows again, and its goals"
    import doctor_bench as D, pandas as pd
    t = pd.read_csv(D.AT_HELD.parents[2]/'nbs'/'results'/'doctor_bench.csv').fillna('')
    t = t[(t.doctor=='grpo_nb')&(t.split=='held')]
    for o in D.broken('held', tmp_path):
        if o['run'].split(':')[0] not in ('nemo','verl','prime'): continue
        was = t[(t.run==o['run'])&(t.hand==o['hand'])].iloc[0]
        now = D.judged(o|dict(split='held'), 'grpo_nb', D.ours)
        assert (now['named'], now['warnings'])==(was.named, was.warnings), o['run']
    bad = t[(t.fault!='')&~t.fault.isin(('value function','repetition','KL by position','slower'))]
    good = t[t.fault=='']
    assert bad.named.mean()>=.85 and (good.warnings>0).mean()<=.05 and len(good)>=30
    assert bad[bad.fault=='not a number'].named.all()
    tasks = {o.rsplit('-', 1)[0] for o in good[good.hand=='tasks'].run}
    assert tasks==set('adding sorting filtering reversing converting spiralling counting combining'.split())
    for o in D.tasks('held', tmp_path):
        assert D.judged(o|dict(split='held'), 'grpo_nb', D.ours)['warnings']==0

def test_what_only_a_follower_explains_is_told_by_itself(monkeypatch):
    "a explains b, b explains c: with b folded into a, nothing would speak of c."
    def told(name, *explains): return lambda look: Finding(name, '', '', '', explains=explains)
    monkeypatch.setattr('grpo_nb.see.findings.RULES', dict(c=told('c'), b=told('b', 'c'), a=told('a', 'b')))
    found = {o.name:o.follows for o in find([dict(step=0)])}
    assert found==dict(a=('b',), c=())
