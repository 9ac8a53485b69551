"The rules: each fault found where it is, silence where there is none, a verdict by value; all on stored runs"
import math, re, tomllib
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings, strategies as st
from grpo_nb.cli import _notes
from grpo_nb.see.findings import (
    FINDING_RULES, Finding, Findings, RunColumns, diagnose_rows, read_asset)
from grpo_nb.see.verdict import verdict, warnings_now
from grpo_nb.see.readers.history import history_rows
from made_histories import rows
from bench_doctors import NAMED
from grpo_nb.see.readers import open_run
from published_runs import PUBLISHED
from stored_runs import HEALTHY, stored

def of(name):
    r = stored(name)
    return diagnose_rows(history_rows(r), r.rows, r.settings)

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
            and f.confidence in ('certain', 'likely', 'possible'))

@pytest.mark.parametrize('name', HEALTHY)
def test_a_healthy_run_gets_no_finding(name):
    assert len(HEALTHY)>=20 and of(name)==[] and warnings_now(history_rows(stored(name)))==[]
    assert verdict(history_rows(stored(name))).learned is not False

def test_one_cause_gives_one_finding():
    only = ('all-truncated no-chat-template no-end-token float-noise kl-only-pull ratio-always-1 '
            'learning-rate-too-small learning-rate-too-large')
    for name in only.split(): assert of(name).names==[name]
    assert of('on-policy').names==['loss-0-is-fine'] and not of('on-policy')[0].fault
    found = of('all-truncated')
    assert {'all-equal', 'reward-never-fires'}<=set(found[0].caused_here) and 'all-equal' in str(found)

@pytest.mark.parametrize('fault', ['learning-rate-too-large','reward-collapse'])
@pytest.mark.parametrize('dead,more,shorter', [(None, {}, False), (.24, {}, False), (.25, {}, True),
    (1., {}, True), (.6, dict(lr_factor=.5), False)])
def test_with_many_dead_groups_a_rate_that_is_too_high_leads_to_the_shorter_step(fault, dead, more, shorter):
    clipped = .5 if fault=='learning-rate-too-large' else 0.
    known = {} if dead is None else dict(frac_reward_zero_std=dead)
    rows = [{'step':i, 'reward':.6 if i<20 else .1, 'clip_ratio/region_mean':clipped}|known|more
        for i in range(40)]
    f = next(o for o in diagnose_rows(rows, settings=dict(trainer='grpo_nb')) if o.name==fault)
    assert 'divide learning_rate by 3' in f.remedy
    assert ('scale_lr_by_alive' in f.remedy, 'studies/dead_groups.html' in f.remedy)==(shorter, shorter)

# ---- what the stored runs do not hold, made by hand: curves as other tools log them

def test_a_healthy_curve_is_left_alone():
    assert diagnose_rows(rows())==[]
    assert (
        diagnose_rows(
        rows(entropy=lambda x: 1.2 * math.exp(-4 * x), reward=lambda x: 0.3 + 0.68 * x**0.5)) == []
    )  # sure, and solved
    assert (
        diagnose_rows(
        rows(frac_reward_zero_std=lambda x: 0.3 + 0.55 * x, reward=lambda x: 0.3 + 0.65 * x)) == []
    )  # dead because all right
    assert diagnose_rows(rows(eval_reward=lambda x: .3+.4*x))==[]

@pytest.mark.parametrize('name', PUBLISHED)
def test_runs_whose_numbers_were_published(name, tmp_path):
    "Each is read from the file that its tool writes; a sound one gets no fault"
    label,make,_ = PUBLISHED[name]
    run = open_run(make(tmp_path/'r'))
    got = diagnose_rows(history_rows(run), run.rows, run.settings)
    names = {n for f in got for n in (f.name, *f.caused_here)}
    if label is None: assert not any(f.fault for f in got)
    else: assert names & set(NAMED[label]['grpo_nb'].split())

def test_the_same_reward_held_out_shows_a_gap_and_no_hack():
    "It would rise, too, if the reward were hacked; a gap needs its interval, and one that closes is none"
    of = lambda end: diagnose_rows(
        rows(80, reward=lambda x: .2+.4*x, eval_reward=lambda x: .3+(end-.3)*x)).names
    assert of(.31)==of(.33)==['generalisation-gap'] and of(.45)==of(.6)==[]
    assert 'hacked-by-form' not in of(.38)

def test_a_plateau_is_seen_where_the_noise_lets_it_be_seen():
    hit = 0
    for seed in range(40):
        m = .45+np.random.default_rng(seed).normal(0, .05, 400)
        hit += 'plateau' in diagnose_rows([dict(step=i, reward=float(v)) for i,v in enumerate(m)]).names
    assert hit>=36

# ---- cliff or collapse

# ---- what a finding rests on, and what it tells to do

def test_a_finding_carries_the_rows_it_rests_on():
    steep = rows(kl=lambda x: .02 if x<.6 else 4*(x-.6)*10, reward=.35)
    f = next(f for f in diagnose_rows(steep) if f.name=='kl-blow-up')
    assert [o['step'] for o in f.rows]==[float(i) for i in range(int(f.step), 60)]
    assert set(f.rows[0])=={'step','kl','reward'} and f.rows[-1]['kl']==pytest.approx(16)
    import json
    assert json.loads(json.dumps(diagnose_rows(rows(loss=lambda x: math.nan)).plain))[0]['rows'][0][
        'loss']=='nan'

def test_a_gradient_of_zero_is_explained_by_dead_groups_where_they_are_logged():
    none = dict(grad_norm=lambda x: 0. if round(59*x)%2 else .5)
    assert 'no-gradient' in diagnose_rows(rows(**none)).names
    dead = dict(none, frac_reward_zero_std=lambda x: 1. if round(59*x)%2 else .2)
    assert 'no-gradient' not in diagnose_rows(rows(**dead)).names

def test_a_gradient_of_zero_is_a_certain_fault_where_living_groups_are_logged_and_likely_where_not():
    all_ = rows(grad_norm=lambda x: 0. if round(59*x)%2 else .5, frac_reward_zero_std=.2, reward_std=.3)
    for but,sure in (('reward_std', 'certain'), ('frac_reward_zero_std', 'certain'),
                     ('reward_std frac_reward_zero_std', 'likely')):
        r = [{k:v for k,v in o.items() if k not in but.split()} for o in all_]
        f = next(o for o in diagnose_rows(r) if o.name=='no-gradient')
        assert f.confidence==sure and ('does not reach the weights' in f.message)==(sure=='certain'), (but, f)

# ---- the verdict

def test_noise_without_advantages_on_record_has_none():
    noise = [dict(step=i, group=0, rewards=[.1, .1+2e-8], dead=False) for i in range(4)]
    for A,said in ((None, '0.0e+00'), ([-.7, .5], '7.0e-01')):
        rewards = [dict(step=i, reward=.1) for i in range(4)]
        found = diagnose_rows(rewards, [o|dict(advantages_before=A) for o in noise])
        f = next(o for o in found if o.name=='float-noise')
        assert f.evidence.endswith(f'4 of them count as living; their largest advantage is {said}')

# ---- while it goes on, and before

@pytest.mark.parametrize('samples_every,passes,accumulation,logs_every',
    [(1, 1, 1, 1), (1, 1, 1, 10), (4, 1, 4, 10), (8, 1, 4, 3), (8, 2, 4, 1), (1, 1, 4, 2), (6, 1, 4, 1)])
def test_counts_on_trl_are_summed_over_batches_not_over_rows(samples_every, passes, accumulation, logs_every):
    "Its rows hold means over the batches since the last row: a loop over all backward passes counts them"
    rng = np.random.default_rng(0)
    rows,since,left,total,logged = [],[],[],[0, 0],[0, 0]
    for step in range(1, 41):
        for micro in range((step-1)*accumulation, step*accumulation):
            if micro%(samples_every*passes)==0:
                dead = int(rng.integers(1, 9))
                since.append(dead)
                left.append(dead//2)
                total = [total[0]+dead, total[1]+dead//2]
        if step%5==0: rows.append({'step':step, 'eval_reward':.5})
        if step%logs_every: continue
        means = {'replay/dead':mean(since), 'replay/unreplaced':mean(left), 'replay/buffer_size':8.,
            'replay/replaced':mean(since)-mean(left)} if since else {}
        rows.append(dict(step=step, loss=.1, reward=.5)|means)
        since,left,logged = [],[],total
    args = dict(steps_per_generation=samples_every, num_iterations=passes,
        gradient_accumulation_steps=accumulation, logging_steps=logs_every)
    told = verdict(rows, settings=dict(trainer='trl', args=args)).groups
    dead,left = logged
    assert told==f'{dead} dead, {dead-left} replaced, {left} unreplaced (the buffer had none for them)'
    assert RunColumns(rows).total('replay/dead')==pytest.approx(sum(o.get('replay/dead', 0) for o in rows))

def test_few_groups_are_counted_over_the_batches_of_twenty_rows_on_trl():
    "Two stored groups filled one place of each of 60 batches, of which a row holds three"
    row = {'reward': 0., 'frac_reward_zero_std': 1., 'replay/dead': 8., 'replay/live_before': 0.,
           'replay/replaced': 1., 'replay/buffer_size': 2.}
    on_trl = dict(trainer='trl', args=dict(steps_per_generation=2, gradient_accumulation_steps=1))
    rows = [row|dict(step=6*i) for i in range(1, 41)]
    for found in (diagnose_rows(rows[:20], settings=on_trl), diagnose_rows(rows[20:], settings=on_trl),
            warnings_now(rows, settings=on_trl)):   # of the last twenty rows
        says = next(o.evidence for o in found if o.name=='few-groups-replayed')
        assert '2 stored groups were replayed 60 times in 60 batches' in says

def test_what_can_be_seen_before_the_run():
    from types import SimpleNamespace
    def notes(prompt, template, default):
        lines = ' '.join(_notes(prompt, SimpleNamespace(chat_template=template), default))
        return 'chat template' in lines,'don\'t request these tags' in lines
    assert notes('2+2=', True, True)==(True, True) and notes('2+2=', False, False)==(False, False)
    assert notes([dict(role='user', content='Answer in <answer> tags')], True, True)==(False, False)

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
    assert ('no-chat-template' in diagnose_rows(bare(reward, clipped), settings=ASKED).names)==blamed

@pytest.mark.parametrize('clipped', [.1, 1.])
@pytest.mark.parametrize('reward,cause,says', [
    (math.nan, 'reward-never-fires', 'no reward function judged a single completion'),
    (None, 'reward-never-fires', 'no reward function judged a single completion'),
    (1., 'all-equal', 'its completions all got the same reward')])
def test_where_no_reward_differs_the_reward_is_named_and_not_the_prompt(reward, cause, says, clipped):
    rows = [o|dict(frac_reward_zero_std=1., num_tokens=9) for o in bare([reward]*8, clipped)]
    assert [o.name for o in diagnose_rows(rows, settings=ASKED).faults]==[cause]
    result = verdict(rows, settings=ASKED)
    assert result.learned is False and says in result.cause
    assert 'conversation' not in result.cause+result.advice

# ---- the benchmark

@pytest.mark.weekly
def test_the_stored_scores_are_todays_on_part_of_the_benchmark(tmp_path):
    "Three trainers' broken and healthy runs, held back: the table's rows again, and its goals"
    import doctor_bench as D, pandas as pd
    t = pd.read_csv(D.AT_HELD.parents[2]/'nbs'/'results'/'doctor_bench.csv.gz').fillna('')
    t = t[(t.doctor=='grpo_nb')&(t.split=='held')]
    for o in (*D.broken('held', tmp_path), *D.others('held', tmp_path)):
        if o['hand']=='broken' and o['run'].split(':')[0] not in ('nemo','verl','prime'): continue
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
    def finding(name, *explains): return lambda look: Finding(name, '', '', '', causes=explains)
    rules = dict(c=finding('c'), b=finding('b', 'c'), a=finding('a', 'b'))
    monkeypatch.setattr('grpo_nb.see.findings.FINDING_RULES', rules)
    found = {o.name:o.caused_here for o in diagnose_rows([dict(step=0)])}
    assert found==dict(a=('b',), c=())

# ---- every number that a finding states, by another road: plain loops over made logs with noise

N = 48
STEPS = [3*i+2 for i in range(N)]   # no step is its row's number
def mean(x): return sum(x)/len(x)
def noisy(a, b, sd=.02, seed=0, n=N, low=-math.inf, high=math.inf):
    "A straight line with noise, as plain floats"
    z = np.random.default_rng(seed).standard_normal(n)
    return [float(min(high, max(low, a+(b-a)*i/(n-1)+sd*z[i]))) for i in range(n)]
def log(**cols):
    "Rows of these columns, `__` for a slash; None is a gap"
    cols = {k.replace('__','/'):v if isinstance(v, list) else [v]*N for k,v in cols.items()}
    n = max(map(len, cols.values()))
    return [dict(step=STEPS[i] if n==N else i)|{k:v[i] for k,v in cols.items() if v[i] is not None}
        for i in range(n)]
def quarters(x):
    q = max(2, len(x)//4)
    return mean(x[:q]),mean(x[-q:])
def course(x, form, words='{}'):
    return words.format(' to '.join(dict.fromkeys(format(v, form) for v in quarters(x))))
def running(x, width): return [mean(x[max(0, i-width+1):i+1]) for i in range(len(x))]
def first_of_the_last_stretch(bad):
    at = len(bad)
    while at and bad[at-1]: at -= 1
    return STEPS[at]

DIES,GOES = noisy(.75, .95, .01, 1),noisy(.3, .34, .02, 2)
def dead_words(x): return course(x, '.0%', '{} of the groups dead')
def reward_words(x): return course(x, '.3g', 'mean reward {}')

def case_truncated():
    c,n = noisy(.1, .7, .03, 3, low=0., high=1.),noisy(40, 200, 9, 4)
    evidence = course(c, '.0%', '{} of the completions have no end token')
    rows = log(completions__clipped_ratio=c, completions__mean_length=n)
    return (rows, (), dict(max_completion_length=256),
        f"{evidence}; {course(n, '.3g', 'mean length {} tokens')}; max_completion_length is 256",
        first_of_the_last_stretch([x>.24 for x in running(c, N//10)]))
def case_reward_never_fires():
    rows = log(reward=GOES, rewards__form__mean=-.5, rewards__right__mean=GOES)
    return rows,(),{},f'form: -0.5 in all {N} rows',None
def case_not_a_number():
    loss = [math.nan if i in (20, 21, 40) else .1 for i in range(N)]
    norm = [math.inf if i in (17, 47) else .5 for i in range(N)]
    return (log(loss=loss, grad_norm=norm, reward=GOES), (), {},
        f'loss is no number in 3 of {N} rows; grad_norm is no number in 2 of {N} rows', STEPS[17])
def case_not_a_number_in_silence():
    "Logged every second row until row 20: silent since row 21, for more than three times its longest gap"
    loss = [.1 if i<=20 and i%2==0 else None for i in range(N)]
    return (log(loss=loss, reward=GOES), (), {},
        f'loss is not logged after step {STEPS[21]}, while the reward is: many trackers drop nan', STEPS[21])
def case_all_equal():
    "Texts of 5 recorded steps: the last is their last quarter; of its four dead groups one is one text"
    groups = [dict(step=s, group=g, dead=g<4, rewards=[0.]*3,
        completions=['a']*3 if g==0 or s<4 else ['a','b',f'{g}']) for s in range(5) for g in range(6)]
    z = noisy(.75, 1.1, .01, 1, high=1.)
    rows = log(frac_reward_zero_std=z, reward=GOES)
    evidence = '1 of the 4 dead groups recorded last are one text G times'
    return (rows, groups, {}, f'{evidence}; {dead_words(z)}; {reward_words(GOES)}',
        first_of_the_last_stretch([v>=.8 for v in z]))
def case_thin_signal():
    z,one = noisy(.5, .7, .02, 5),noisy(.2, .3, .02, 6)
    told = f'{mean(one[N//2:]):.0%} of all groups are one text G times in the second half'
    return (log(frac_reward_zero_std=z, reward=GOES, frac_one_text=one), (), {},
        f'{told}; {dead_words(z)}; {reward_words(GOES)}',
        first_of_the_last_stretch([x>.5 for x in running(z, 4)]))
def case_start_at_zero():
    m = [.03 if i in (3, 20, 33) else 0. for i in range(N)]
    return (log(reward=m, frac_reward_zero_std=.97), (), {},
        f'mean reward {.03/12:.3g} over the first 12 rows; the reward fired in 3 of {N} rows', STEPS[0])
def case_float_noise():
    "Spreads of 3e-7, 4e-7 and of 1; the second counts as living, and has advantages of up to .7"
    groups = [dict(step=1, group=i, rewards=[1., 1+d], dead=dead, advantages_before=[-A, A])
        for i,(d,dead,A) in enumerate([(3e-7, True, 0.), (4e-7, False, .7)]+[(1., False, 1.)]*2)]
    return (log(reward=GOES), groups, {}, '2 of 4 recorded groups spread by at most 4.0e-07; 1 of them count '
        'as living; their largest advantage is 7.0e-01', None)
def case_float_noise_in_a_log():
    std = [1e-8*(i%5) for i in range(N)]
    return (log(reward_std=std, frac_reward_zero_std=.5), (), {},
        f'the mean deviation within groups is {mean(std):.1e} and not 0', None)
def case_kl_only_pull():
    kl = noisy(.01, .03, .002, 7)
    return (log(frac_reward_zero_std=DIES, kl=kl), (), dict(beta=.04),
        f"{dead_words(DIES)}; {course(kl, '.3g', 'kl {} nats per token')}; beta is 0.04", None)
def case_ratio_always_1():
    return (log(ratio_max=[1.]*N, frac_reward_zero_std=DIES), (),
        dict(steps_per_generation=4, num_iterations=3, gradient_accumulation_steps=2),
        f'largest ratio 1 in {N} batches of 6 updates each, {1-mean(DIES):.0%} of the groups living', None)
def case_learning_rate_too_large():
    "Where something was replayed the share of the freshly sampled tokens counts, elsewhere that of all."
    c,lr = noisy(.4, .5, .02, 9),noisy(1e-3, 2e-3, 1e-5, 11)
    fresh = [.3+.001*i if i%3 else None for i in range(N)]
    new = mean([b if a is None else a for a,b in zip(fresh, c)])
    rows = log(reward=GOES, learning_rate=lr, clip_ratio__region_mean=c, clip_ratio__fresh_mean=fresh)
    return (rows, (), {}, f"{new:.0%} of freshly sampled tokens clipped; {reward_words(GOES)}; "
        +course(lr, '.1e', 'learning_rate {}'), None)
def case_learning_rate_too_large_without_replay():
    c = noisy(.2, .5, .05, 40)
    return (log(reward=GOES, clip_ratio__region_mean=c), (), {},
        f'{mean(c):.0%} of freshly sampled tokens clipped; {reward_words(GOES)}', None)
def case_learning_rate_too_large_for_young_groups():
    "Groups one batch old, so three steps, are those whose age is at most 4.5"
    age,clip = [3. if i%4 else 9. for i in range(N)],noisy(.4, .5, .02, 12)
    young = mean([c for a,c in zip(age, clip) if a<=4.5])
    rows = log(reward=GOES, replay__age_mean=age, replay__clip_frac=clip)
    evidence = f'{young:.0%} of the tokens of groups one batch old are clipped; {reward_words(GOES)}'
    return rows,(),{},evidence,None
def case_reward_collapse():
    m,e = noisy(.2, .8, .02, 13)[:36]+noisy(.1, .08, .02, 14)[:12],noisy(.5, 2., .1, 15)
    w = running(m, N//8)
    at = max(range(N//8-1, N), key=lambda i: w[i])
    told = f'mean reward {w[at]:.3g} at its best (step {STEPS[at]}), {mean(m[-6:]):.3g} at the end'
    told += f"; {course(e, '.3g', 'entropy {} nats per token')}"
    return log(reward=m, entropy=e),(),{},told,STEPS[at]
def case_learning_rate_too_small():
    lr,ratio = noisy(1e-9, 3e-9, 1e-10, 16),[1+1e-4*(i%7) for i in range(N)]
    way = mean(lr)*(STEPS[-1]-STEPS[0])
    told = f'{1-mean(GOES):.0%} of the groups live; every ratio within {6e-4:.1e} of 1'
    return (log(reward=GOES, frac_reward_zero_std=GOES, learning_rate=lr, ratio_max=ratio), (),
        dict(steps_per_generation=4), f'{told}; learning_rate {max(lr):.1e}, over all steps {way:.1e}', None)
def case_no_gradient():
    g = [0. if i%3==1 or i>40 else .5 for i in range(N)]
    told = f'{g.count(0.)/N:.0%} of {N} rows have grad_norm 0, {g[24:].count(0.)/24:.0%} in the second half'
    return log(grad_norm=g, reward_std=.3),(),{},told,STEPS[1]
def case_replay_too_old():
    age,ess,clip = noisy(5, 30, 1, 17),noisy(.6, .2, .02, 18),noisy(.1, .3, .01, 19)
    evidence = [course(age, '.0f', 'replayed groups {} steps old'),
        course(ess, '.0%', 'effective sample size {} of the tokens'),
        course(clip, '.0%', '{} of the replayed tokens clipped')]
    rows = log(replay__age_mean=age, replay__ess_tokens=ess, replay__clip_frac=clip)
    return rows,(),{},'; '.join(evidence),None
def case_sampler_disagrees():
    x = noisy(0., .3, .01, 20)
    told = course(x, '.2g', 'KL between sampler and trainer {} nats per token')
    return (log(sampling__mismatch_kl=x), (), {}, told,
        first_of_the_last_stretch([v>.05 for v in running(x, max(2, N//20))]))
def case_failing_tools():
    x = noisy(.1, .8, .02, 21)
    return (log(tools__failure_frequency=x), (), {}, course(x, '.0%', '{} of the calls fail'),
        first_of_the_last_stretch([v>=.3 for v in running(x, 4)]))
def case_few_groups_replayed():
    "Ids 0 to 3 came 12, 11, 10 and 10 times, four others twice"
    times = (12, 11, 10, 10, 2, 2, 2, 2)
    groups = [dict(step=1, rewards=[0., 1.], dead=True, replacement=dict(id=i)) for i,n in enumerate(times)
        for _ in range(n)]
    evidence = f'8 stored groups filled {sum(times)} places; the busiest 4 came 43 times'
    return log(reward=GOES),groups,{},evidence,None
def case_few_groups_replayed_without_groups():
    "In the last 20 batches 6 of 8 places were filled; a tenth of the fresh ones lives"
    rows = log(replay__buffer_size=[6.-(i<40) for i in range(N)], replay__replaced=6., replay__dead=7.2,
        replay__live_before=.02)
    live = 20*7.2*.02/.98
    told = f'6 stored groups were replayed 120 times in 20 batches, while {live:.0f} living ones came in'
    return rows,(),{},told,None
def linked(n_groups=6, seed=22):
    rng = np.random.default_rng(seed)
    return [dict(step=s, group=g, prompt=f'{s} {g}', dead=False, n_tokens=[int(v) for v in n],
        rewards=[float(v/100+.01*rng.standard_normal()) for v in n], completions=[f'{s} {g} {v}' for v in n])
        for s in range(8) for g in range(n_groups) for n in [rng.integers(20, 90, 8)]]
def case_hacked_by_length():
    m,n = noisy(.2, .9, .02, 23),noisy(40, 160, 3, 24)
    right = noisy(.5, .1, .01, 25)
    w = running(right, N//4)[N//4-1:]
    fell = f'right {max(w):.2g} at its best, {mean(right[-12:]):.2g} at the end'
    groups = [o for o in linked() if o['step']>=6]   # the last quarter of eight recorded steps
    r,k = ([v-mean(o[name]) for o in groups for v in o[name]] for name in ('rewards','n_tokens'))
    link = sum(a*b for a,b in zip(r, k))/(sum(a*a for a in r)*sum(b*b for b in k))**.5
    told = f"{fell}; within a group reward follows length (correlation {link:.2f}); {reward_words(m)}"
    return (log(reward=m, completions__mean_length=n, rewards__right__mean=right), linked(), {},
        f"{told}; {course(n, '.3g', 'mean length {} tokens')}", None)
def case_hacked_by_form():
    "Of 8 answers at each of two late steps 5 and 6 are one and the same"
    m = noisy(.2, .9, .02, 26)
    groups = [dict(step=s, group=g, prompt=f'{g}', dead=False, rewards=[0., 1.],
        completions=['the form' if 2*g+i<k else f'{s} {g} {i}' for i in range(2)])
        for s,k in zip(range(8), (0, 1, 0, 1, 0, 1, 5, 6)) for g in range(4)]
    evidence = f"{(5/8+6/8)/2:.0%} of the completions, whatever the prompt, read 'the form'"
    return log(reward=m),groups,{},f'{evidence}; {reward_words(m)}',None
def case_hacked_by_form_without_groups():
    "A reward that rises, while a held-out score stands still, and in the second half one function"
    m,form = noisy(.2, .9, .02, 41),noisy(.1, .95, .01, 42)
    right,seen = noisy(.1, .5, .01, 43)[::2]+noisy(.5, .5, .01, 44)[::2],noisy(.3, .31, .005, 45, n=12)
    held = [seen[i//4] if i%4==0 else None for i in range(N)]
    told = [f'eval/accuracy only {quarters(seen)[0]:.2g} to {quarters(seen)[1]:.2g}',
        f'right only {quarters(right[:24])[1]:.2g} to {quarters(right[24:])[1]:.2g}']
    rows = log(reward=m, rewards__form__mean=form, rewards__right__mean=right, eval__accuracy=held)
    return rows,(),{},f"{'; '.join(told)}; {reward_words(m)}",None
def case_held_out_falls():
    "Evaluated every sixth row, best as a pair at the third and fourth; the reward near there, and at the end"
    m,seen = noisy(.2, .8, .02, 27),[.3, .4, .56, .54, .5, .46, .4, .3]
    at = 3*6
    near = sorted(range(N), key=lambda i: abs(i-at))[:5]
    held = [seen[i//6] if i%6==0 else None for i in range(N)]
    return (log(reward=m, eval_reward=held), (), {},
        f'eval_reward {.55:.3g} at its best (step {STEPS[at]}), {.35:.3g} at the end; '
        f'reward {mean([m[i] for i in near]):.3g} then, {mean(m[-5:]):.3g} now', STEPS[at])
def case_generalisation_gap():
    "Its interval is Welch's, of the last quarter against the first"
    from scipy.stats import ttest_ind
    m,seen = noisy(.2, .8, .02, 28),noisy(.2, .24, .01, 29, n=12)
    held = [seen[i//4] if i%4==0 else None for i in range(N)]
    ci = ttest_ind(seen[-3:], seen[:3], equal_var=False).confidence_interval()
    a,b = quarters(seen)
    return (log(reward=m, eval_reward=held), (), {},
        f'eval_reward {a:.3g} to {b:.3g} ({b-a:+.2g} ± {(ci.high-ci.low)/2:.2g}); {reward_words(m)}', None)
def case_one_reward_drowns():
    "By the medians of the log, with weights"
    wide,slim = noisy(20, 25, 1, 30),noisy(.3, .5, .02, 31)
    middle = lambda x: sorted(x)[N//2-1]/2+sorted(x)[N//2]/2
    a,b = middle(wide),middle(slim)
    total = (.5*a)**2+(2*b)**2
    rows = log(rewards__long__mean=GOES, rewards__long__std=wide, rewards__right__mean=.3,
        rewards__right__std=slim)
    return (rows, (), dict(reward_weights=[.5, 2.]),
        f'long: deviation {a:.3g}, {(.5*a)**2/total:.1%} of the variance; '
        f'right: deviation {b:.3g}, {(2*b)**2/total:.1%} of the variance', None)
def case_one_reward_drowns_in_groups():
    "By the mean deviation within groups"
    rng = np.random.default_rng(32)
    def draw(wide): return [float(v) for v in wide*rng.random(4)]
    groups = [dict(step=s, rewards=[0., 1.], dead=False, rewards_by_func=dict(long=draw(90), right=draw(1)))
        for s in range(9)]
    def within(k):
        x = [o['rewards_by_func'][k] for o in groups]
        return mean([mean([(v-mean(g))**2 for v in g])**.5 for g in x])
    a,b = within('long'),within('right')
    return (log(reward=GOES), groups, {}, f'long: deviation {a:.3g}, {a*a/(a*a+b*b):.1%} of the variance; '
        f'right: deviation {b:.3g}, {b*b/(a*a+b*b):.1%} of the variance', None)
def case_entropy_collapse():
    e = [max(.01, 1.2*math.exp(-5*i/N)) for i in range(N)]
    evidence = course(e, '.3g', 'entropy {} nats per token')
    limit = 1.5*.2*quarters(e)[0]
    flat = noisy(.35, .35, .02, 33)
    return (log(entropy=e, reward=flat, frac_reward_zero_std=GOES), (), {},
        f'{evidence}; {dead_words(GOES)}; {reward_words(flat)}',
        first_of_the_last_stretch([v<limit for v in running(e, max(2, N//20))]))
def case_kl_blow_up():
    kl = noisy(.02, .03, .002, 34)[:36]+noisy(1., 4., .1, 35)[:12]
    usual = sorted(kl[N//8:N//2])
    usual = (usual[len(usual)//2]+usual[(len(usual)-1)//2])/2
    return (log(kl=kl, reward=.4), (), {}, f'kl {usual:.3g} nats per token in the first half, '
        f'{mean(kl[-12:]):.3g} in the last quarter, {max(kl):.3g} at most',
        first_of_the_last_stretch([v>max(3*usual, .3) for v in running(kl, max(2, N//20))]))
def case_gradient_spikes():
    g = noisy(.4, .6, .05, 36)
    for i,v in ((9, 30.), (20, 44.), (41, 25.)): g[i] = v
    x = sorted(g)
    usual = x[35]+.25*(x[36]-x[35])   # the upper quartile of 48
    return (log(grad_norm=g), (), {},
        f'3 of {N} rows above 10 times the usual {usual:.3g}; largest 44 at step {STEPS[20]}', STEPS[9])
def case_plateau():
    from scipy.stats import linregress
    m = noisy(.1, .4, .01, 37)[:19]+noisy(.4, .4, .01, 38)[:29]
    tail = m[2*N//5:]
    line = linregress(range(len(tail)), tail)
    d,half = ((len(tail)-1)*v for v in (line.slope, line.stderr*2.0518305))   # Student's, 27 degrees
    return (log(reward=m), (), {}, f'mean reward {mean(tail):.3g} over the last {len(tail)} rows, '
        f'its trend there {d:+.2g} ± {half:.2g}, of at most 1',
        first_of_the_last_stretch([abs(v-mean(tail))<=max(2*half, .05) for v in running(m, 4)]))
def case_loss_0_is_fine():
    loss,g = [1e-6*((i*7)%11-5) for i in range(N)],[.3+(i/40)**3 for i in range(N)]
    x = sorted(g)
    return (log(loss=loss, grad_norm=g), (), {},
        f'largest |loss| {5e-6:.1e}, median gradient norm {(x[23]+x[24])/2:.2g}', None)

STATED = {k.removeprefix('case_'):f for k,f in list(globals().items()) if k.startswith('case_')}
PLACES = dict(   # (step, group) of the groups that it names
    all_equal=[(4, g) for g in range(4)], float_noise=[(1, 0), (1, 1)],
    hacked_by_length=[(s, g) for s in (6, 7) for g in range(6)],
    hacked_by_form=[(s, g) for s in (6, 7) for g in range(4)])
@pytest.mark.parametrize('case', STATED)
def test_every_number_of_a_finding_by_another_road(case):
    rows,groups,settings,evidence,step = STATED[case]()
    name = re.sub('-(for|in|without)-.*', '', case.replace('_', '-'))
    f = FINDING_RULES[name](RunColumns(rows, groups, settings))
    assert f is not None and f.evidence==evidence and [*f.groups]==PLACES.get(case, [])
    if step is not None: assert f.step==step

# ---- the verdict over drawn measurements, logs and faults, beside one written apart from it

NUMBERS = st.floats(-9, 9).map(lambda x: round(x, 2))
SHARES = st.integers(0, 20).map(lambda k: k/20)

@st.composite
def interval(draw, mid):
    width = draw(st.sampled_from([None, 0., .02, .3]))
    return {} if width is None else dict(low=mid-width, high=mid+2*width)

@st.composite
def evaluation(draw):
    "What `evaluate` may leave, or what is none at all"
    if draw(st.integers(0, 9))==0: return draw(st.sampled_from([None, 3, {}, dict(rewards=[1.])]))
    out,p = {},draw(SHARES)
    if draw(st.integers(0, 3)):
        around = draw(interval(p))
        pairs = st.lists(st.integers(0, 1), min_size=4, max_size=4)
        pairs |= st.sampled_from([[2, 0, 1, 1], [1, 0], [], None])
        ci = dict(ci=(around['low'], around['high'])) if around and draw(st.booleans()) else around
        out |= {'pass@1':p, 'num_correct':draw(pairs)}|ci
    rewards = {}
    for name in draw(st.lists(st.sampled_from(['close','form','tags']), unique=True)):
        mean_ = draw(st.sampled_from([p, None]) | NUMBERS | SHARES)
        rewards[name] = dict(mean=mean_)|draw(interval(mean_ or 0.))
        rewards[name] |= draw(st.sampled_from([{}, dict(has_rewards=0), dict(has_rewards=5)]))
        if draw(st.integers(0, 9))==0: rewards[name] = mean_
    return out|(dict(rewards=rewards) if rewards or draw(st.booleans()) else {})

def measured(e):
    "Name -> (mean, low, high, right answers of each problem, is it a share?)"
    out = {}
    if not isinstance(e, dict): return out
    p = e.get('pass@1')
    if p is not None:
        low,high = e['ci'] if 'ci' in e else (e.get('low'), e.get('high'))
        out['held-out pass@1'] = p,low,high,e['num_correct'],True
    rewards = e.get('rewards')
    for name,o in rewards.items() if isinstance(rewards, dict) else ():
        if not isinstance(o, dict) or o['mean'] is None or o.get('has_rewards')==0: continue
        if p is not None and o['mean']==p: continue   # the same number under another name
        out[name] = o['mean'],o.get('low'),o.get('high'),None,False
    return out

def changed(a, b):
    "(difference, half-width or None) of two measurements"
    x,y = a[3],b[3]
    if x and y and len(x)==len(y) and max(x+y)<2:
        d = [q-p for p,q in zip(x, y)]
        return mean(d),longer_side(d.count(1), d.count(-1), len(d))
    if None in a[1:3] or None in b[1:3]: return b[0]-a[0],None
    return b[0]-a[0],((a[2]-a[1])**2+(b[2]-b[1])**2)**.5/2

def longer_side(gained, lost, n):
    "How far the ends of Tango's score interval are from the difference: each found by halving a step"
    def errors(d):   # 1.96 at an end: n·(difference - d) by its deviation if the difference is d
        A,B,C = 2*n,(2*n-gained+lost)*d-gained-lost,-lost*d*(1-d)
        q = (-B+(B*B-4*A*C)**.5)/(2*A) if B*B>4*A*C else max(0., -B/(2*A))
        var = n*(2*q+d*(1-d))
        return abs(gained-lost-n*d)/var**.5 if var>1e-15 else float('inf')
    seen,out = (gained-lost)/n,0.
    for side in (-1, 1):
        near,far = 0.,1-side*seen
        for _ in range(60):
            m = (near+far)/2
            near,far = (m, far) if errors(seen+side*m)<1.959964 else (near, m)
        out = max(out, near)
    return out

def in_words(name, a, b, d, half, share):
    if share:
        text = f'{name} went from {a:.1%} to {b:.1%} ({100*d:+.1f} points'
        return text+(')' if half is None else f' ± {100*half:.1f})')
    text = f'{name} went from {a:.3g} to {b:.3g} ({d:+.3g}'
    return text+(')' if half is None else f' ± {half:.2g})')

def seen_by_hand(rows, before, after):
    "[(words, rose, fell, has an interval)]"
    a,b = measured(before),measured(after)
    if common := [k for k in b if k in a]:
        seen = [(k, a[k][0], b[k][0], *changed(a[k], b[k]), a[k][4]) for k in common]
    else:
        x = [o['reward'] for o in rows if 'reward' in o]
        if len(x)<4: return []
        q = max(2, len(x)//4)
        d,half = mean(x[-q:])-mean(x[:q]),0.
        if len({*x[:q]})>1 or len({*x[-q:]})>1:
            from scipy.stats import ttest_ind
            ci = ttest_ind(x[-q:], x[:q], equal_var=False).confidence_interval()
            half = (ci.high-ci.low)/2
        seen = [('the mean reward of the batches', *quarters(x), d, half, False)]
    out = []
    for name,a,b,d,half,share in seen:
        sure = half is not None
        if sure and abs(abs(d)-half)<1e-9: reject()   # on the edge
        words = in_words(name, a, b, d, half, share).removeprefix(name).replace('-', '−')
        out.append((name+words, sure and d>half, sure and -d>half, sure))
    return out

SPEAKERS = ('hacked-by-form','hacked-by-length','held-out-falls','all-equal','learning-rate-too-small',
    'ratio-always-1','start-at-zero','reward-never-fires','gradient-spikes')
@st.composite
def findings(draw):
    return Findings([Finding(name, f'{name} says', 'numbers', f'against {name}', fault=draw(st.booleans()),
        causes=draw(st.sampled_from([(), ('plateau',)])))
        for name in draw(st.lists(st.sampled_from(SPEAKERS), max_size=2, unique=True))])

@st.composite
def logs(draw):
    "A few rows: reward, dead share and the counts of replay, of tokens"
    n = draw(st.integers(0, 13))
    rising = draw(st.sampled_from([0., .125, -.125]))   # and sums that are exact
    dead = draw(st.sampled_from(['all','few','some','none']))
    counts = draw(st.sampled_from(['all','half','none']))
    tokens,replaced,buffer,left = (draw(st.booleans()) for _ in range(4))
    rows = []
    for i in range(n):
        o = dict(step=i, reward=draw(st.sampled_from([.125, .25]))+rising*i)
        if dead!='none': o['frac_reward_zero_std'] = dict(all=1., few=(i%2)*.1, some=.125*(1+i%2))[dead]
        if counts=='all' or counts=='half' and i%2: o['replay/dead'] = 8.
        if tokens: o['num_tokens'] = 1000.*i+7
        if replaced and i==n-1: o['replay/replaced'] = 1.
        if left and i%2: o['replay/unreplaced'] = 3.
        if buffer: o['replay/buffer_size'] = 4.
        rows.append(o)
    return rows

def verdict_by_hand(rows, before, after, found):
    "(learned, text) by going through the cases one by one"
    seen,faults = seen_by_hand(rows, before, after),[o for o in found if o.fault]
    z = [o['frac_reward_zero_std'] for o in rows if 'frac_reward_zero_std' in o]
    rose,fell = any(o[1] for o in seen),any(o[2] for o in seen)
    words,sure = '; '.join(o[0] for o in seen),all(o[3] for o in seen)
    doubts = [o for o in faults if o.name in ('hacked-by-form','hacked-by-length','held-out-falls')]
    still = [o for o in faults if o.name in ('all-equal','learning-rate-too-small','ratio-always-1',
        'start-at-zero') or o.name=='reward-never-fires' and o.causes]
    all_dead,instead = len(z)>0 and min(z)==1.,''
    if all_dead and not rose:
        who = [o['replay/dead'] for o in rows if 'replay/dead' in o]
        tokens = [o['num_tokens'] for o in rows if 'num_tokens' in o]
        who = f'all {sum(who):.0f} groups were' if len(who)==len(rows) else \
            f'every group of {len(rows)} logged batches was'
        spent = f' ({tokens[-1]:,.0f} tokens spent)' if tokens else ''
        learned,text = False,f'It learned nothing: {who} dead, so no answer was better than another{spent}.'
        instead = 'look at the answers: `grpo_nb inspect FOLDER`'
    elif not seen: learned,text = None,'Undecided: too few batches to tell.'
    elif rose and not fell and (before or not doubts): learned,text,faults = True,f'It learned: {words}.',[]
    elif fell and not rose:
        learned,text = False,f'It got worse: {words}.'
        instead = 'lower learning_rate; read what the reward pays for'
    elif doubts: learned,text = None,f'Undecided: {words}, but {doubts[0].name} says.'
    elif rose: learned,text = None,f'Undecided, one rose and another fell: {words}.'
    elif still: learned,text = False,f'It did not learn, since {still[0].name} says: {words}.'
    else:
        why = 'the interval holds 0' if sure else 'there is no interval'
        learned,text = None,f'Undecided: {words}; {why}.'
        instead = 'train longer, or measure on more problems'
    lines = [text]
    buffered = any('replay/buffer_size' in o for o in rows)
    replaces = buffered or any(o.get('replay/replaced') for o in rows)
    counts = [[o[k] for o in rows if k in o] for k in ('replay/dead','replay/replaced','replay/unreplaced')]
    if replaces and all(counts) and sum(counts[0]):
        told = '{:.0f} dead, {:.0f} replaced, {:.0f} unreplaced'.format(*map(sum, counts))
        told += ' (the buffer had none for them)' if sum(counts[2]) and buffered else ''
        lines.append(f'Zero-variance groups: {told}')
    if faults: lines.append(f'Most likely cause: {faults[0].name} says (numbers)')
    if advice := f'against {faults[0].name}' if faults else instead: lines.append(f'What to do: {advice}')
    if z and .05<=mean(z) and not all_dead and not replaces:
        lines.append(f'Reuse: {mean(z):.0%} of the groups were dead and none was replaced. What they do to '
            'a step, and what a lower learning_rate, one that shrinks with the living groups '
            '(scale_lr_by_alive) and replay gave in our studies: '
            'https://grpo-nb.github.io/grpo_nb/studies/dead_groups.html')
    return learned,'\n'.join(lines)

DRAWN = settings(max_examples=200, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck))
AT_ONCE = tomllib.loads(read_asset('doctor/names.toml'))['at_once']

@pytest.mark.filterwarnings('ignore:Precision loss')   # of equal numbers, by scipy
@DRAWN
@given(logs(), evaluation(), evaluation(), findings(), st.sampled_from([True, False, False]))
def test_a_verdict_is_that_of_the_cases_gone_through_one_by_one(rows, before, after, found, alone):
    if alone: before = after = None
    v = verdict(rows, before, after, found=found)
    assert (v.learned, str(v))==verdict_by_hand(rows, before, after, found)

def warned_by_hand(rows):
    "(name, what was seen) of the last twenty rows, for dead groups alone"
    last = rows[-20:]
    if not rows or not (rows[-1].get('frac_reward_zero_std') or rows[-1].get('replay/replaced')): return []
    z,m = ([o[k] for o in last if k in o][-10:] for k in ('frac_reward_zero_std','reward'))
    if len(z)<10 or min(z)<1: return []
    nothing = len(rows)<=20 and len(m)>0 and max(m)==min(m)<=0
    told = f', mean reward {mean(m):.3g}' if m else ''
    return [('start-at-zero' if nothing else 'no-living-group', f'10 batches, all groups dead{told}')]

@DRAWN
@given(st.integers(0, 23), st.lists(st.sampled_from([1., 1., 1., 1., .9, None]), min_size=3, max_size=3),
    st.sampled_from([[0., 0.], [-1., -1.], [.5, .5], [-.5, 0.], [0., 1.], [None, None]]),
    st.sampled_from([{}, {'replay/replaced':1.}]))
def test_a_warning_is_of_the_last_ten_of_twenty_batches(n, dead, reward, more):
    "Dead all along but for the first, the middle or the last row; the reward changes at the middle"
    rows = []
    for i in range(n):
        z = dead[0] if i==0 else dead[1] if i==n//2 else dead[2] if i==n-1 else 1.
        told = dict(frac_reward_zero_std=z, reward=reward[i>n//2])|(more if i==n-1 else {})
        rows.append(dict(step=i)|{k:v for k,v in told.items() if v is not None})
    got = [o for o in warnings_now(rows) if o.name!='few-groups-replayed']
    assert [(o.name, o.evidence) for o in got]==warned_by_hand(rows)
    for o in got: assert [o.message, o.remedy]==AT_ONCE[o.name]

def test_what_has_no_shape_of_its_own_is_escaped_and_nothing_else():
    "Control characters but line break and tab, line separators, and marks of the direction of writing"
    import unicodedata
    from grpo_nb.parts.answers import escape_controls
    turns = {'LRE','RLE','LRO','RLO','PDF','LRI','RLI','FSI','PDI'}
    marks = {'LEFT-TO-RIGHT MARK','RIGHT-TO-LEFT MARK','ARABIC LETTER MARK'}
    def unseen(c):
        if c in '\n\t': return False
        return (unicodedata.category(c) in ('Cc','Zl','Zp') or unicodedata.bidirectional(c) in turns
            or unicodedata.name(c, '') in marks)
    for c in map(chr, range(0x3000)):
        want = f'\\x{ord(c):02x}' if ord(c)<256 else f'\\u{ord(c):04x}'
        if c=='\r': want = r'\r'
        assert escape_controls(f'a{c}b')==(f'a{want}b' if unseen(c) else f'a{c}b'), hex(ord(c))

def test_text_that_would_steer_a_terminal_is_shown_escaped():
    from grpo_nb.see.verdict import Verdict
    f = Finding('odd', 'says', 'an answer: \x1b[31mred\u202e\r', 'do')
    assert '\x1b' not in str(f) and r'an answer: \x1b[31mred\u202e\r' in str(f) and '\n    do:   do' in str(f)
    assert str(Verdict(None, 'a\x9bb', 'c\x07'))=='a\\x9bb\nMost likely cause: c\\x07'
