"""Every threshold of the doctor from both sides: a run just below it and a run just above get different
answers, and with another threshold these answers change"""
import inspect, math
import numpy as np
import pytest
from hypothesis import Phase, example, given, settings, strategies as st
from grpo_nb.see import findings as F
from grpo_nb.see.findings import FINDING_RULES, RunColumns

def look(n=0, settings=None, groups=(), **cols):
    "A run of `n` rows with these columns alone: a number, a list, or a function of 0..1"
    x = np.linspace(0, 1, n)
    get = lambda v: [v(o) for o in x] if callable(v) else list(v) if np.ndim(v) else [v]*n
    cols = {k.replace('__','/'):get(v) for k,v in cols.items()}
    return RunColumns(
        [dict(step=i)|{k:float(v[i]) for k,v in cols.items() if v[i] is not None} for i in range(n)],
        list(groups), settings or {})

def line(a, b): return lambda x: a+(b-a)*x
def jump(n, a, b, at=None): return [a]*(n//2 if at is None else at)+[b]*(n-(n//2 if at is None else at))
def last(n, k, a, b): return [a]*(n-k)+[b]*k
def wave(n, a, b, s): return [v+s*(-1)**i for i,v in enumerate(jump(n, a, b))]

BARE = dict(data=dict(prompt_format='text', chat_template=True, eos_token_id=1, eos_in_template=True))
NO_END = dict(data=dict(prompt_format='conversational', eos_token_id=None))
TWO,ONE = dict(steps_per_generation=2),dict(steps_per_generation=1)
CLIP,DEAD,AGE = 'completions__clipped_ratio','frac_reward_zero_std','replay__age_mean'
UP = line(.1, .4)
FALLS = jump(24, .8, .1)
KL = lambda usual, end, n=40: last(n, n//4, usual, end)

def pair(*rewards, **kw): return dict(step=0, group=0, rewards=list(rewards), dead=False)|kw
def noise(d, tiny=1, of=1): return [pair(1., 1.+d)]*tiny+[pair(0., 1.)]*(of-tiny)
def uses(*n): return [pair(0., 0., replacement=dict(id=i, step=0)) for i,k in enumerate(n) for _ in range(k)]
def few(n, stored, back):
    "`n` rows in which nothing lives, and of `stored` groups so many come back"
    return look(n, replay__buffer_size=stored, replay__replaced=back, replay__dead=8, replay__live_before=0)
def evals(v, n=40):
    "Evaluations, spread over `n` rows"
    out,every = [None]*n,n//len(v)
    for i,x in enumerate(v): out[i*every] = x
    return out
def gap(rise, gain):
    return look(80, reward=line(.2, .2+gain), eval_reward=evals(list(np.linspace(.3, .3+rise, 8)), 80))
def held_out(rise, at=.3, n=8, gain=.6):
    return look(80, reward=line(.2, .2+gain), eval__accuracy=evals(list(np.linspace(at, at+rise, n)), 80))
def linked(c, values=6, n=8):
    "Groups whose rewards and lengths correlate with `c`"
    a,b = np.array([-1., 1., -1., 1.]),np.array([-1., -1., 1., 1.])
    scale = np.arange(1, n+1) if values>n else np.resize(np.arange(1, values//2+1), n)
    long = c*a+(1-c*c)**.5*b
    return [dict(step=i, rewards=list(10+s*a), n_tokens=list(100+s*long)) for i,s in enumerate(scale)]
FIFTH = [dict(step=9, rewards=[10.]*4, n_tokens=[100]*4)]
def forms(share, n=100):
    k = round(share*n)
    return [dict(step=0, prompt=f'{i}', completions=['same'] if i<k else [f'own {i}']) for i in range(n)]
# (rule, threshold): (the run below, the run above, which of the two it speaks of)
below,above = False,True
EDGES = {
    ('not-a-number','rows'): (look(9, loss=.1), look(9, loss=[.1]*8+[math.nan]), above),
    ('not-a-number','reward_rows'):
        (look(9, reward=last(9, 2, .1, math.nan)), look(9, reward=last(9, 3, .1, math.nan)), above),
    ('no-chat-template','cut'):
        (look(9, BARE, **{CLIP:.49}, reward=.5), look(9, BARE, **{CLIP:.51}, reward=.5), above),
    ('no-end-token','share'): (look(9, NO_END, **{CLIP:.89}), look(9, NO_END, **{CLIP:.91}), above),
    ('all-truncated','share'): (look(9, **{CLIP:.89}), look(9, **{CLIP:.91}), above),
    ('truncated','rows'): (look(3, **{CLIP:.5}), look(4, **{CLIP:.5}), above),
    ('truncated','share'): (look(9, **{CLIP:.29}), look(9, **{CLIP:.31}), above),
    ('truncated','falls'): (look(9, **{CLIP:jump(9, .55, .46)}), look(9, **{CLIP:jump(9, .55, .44)}), below),
    ('reward-never-fires','rows'): (look(2, reward=0.), look(3, reward=0.), above),
    ('all-equal','rows'): (look(2, **{DEAD:1.}), look(3, **{DEAD:1.}), above),
    ('all-equal','share'): (look(9, **{DEAD:.89}), look(9, **{DEAD:.91}), above),
    ('start-at-zero','rows'): (look(4, reward=0.), look(5, reward=0.), above),
    ('start-at-zero','share'): (look(20, reward=.0195), look(20, reward=.0205), below),
    ('start-at-zero','dead'):
        (look(20, reward=.001, **{DEAD:.89}), look(20, reward=.001, **{DEAD:.91}), above),
    ('start-at-zero','found'):
        (look(20, reward=last(20, 5, 0., .095)), look(20, reward=last(20, 5, 0., .105)), below),
    ('thin-signal','rows'): (look(19, reward=.3, **{DEAD:.7}), look(20, reward=.3, **{DEAD:.7}), above),
    ('thin-signal','dead'): (look(20, reward=.3, **{DEAD:.59}), look(20, reward=.3, **{DEAD:.61}), above),
    ('thin-signal','filled'):
        tuple(look(20, reward=.3, replay__live_after=v, **{DEAD:.7}) for v in (.69, .71))+(below,),
    ('thin-signal','long'): (look(99, reward=UP, **{DEAD:.7}), look(100, reward=UP, **{DEAD:.7}), above),
    ('thin-signal','dead_long'):
        (look(100, reward=UP, **{DEAD:.64}), look(100, reward=UP, **{DEAD:.66}), above),
    ('float-noise','relative'): (look(groups=noise(.9e-5)), look(groups=noise(1.1e-5)), below),
    ('float-noise','share'): (look(groups=noise(1e-7, 1, 11)), look(groups=noise(1e-7, 1, 9)), above),
    ('float-noise','std'): tuple(look(4, reward_std=v, **{DEAD:.5}) for v in (.9e-6, 1.1e-6))+(below,),
    ('float-noise','alive'): tuple(look(4, reward_std=1e-9, **{DEAD:v}) for v in (.89, .91))+(below,),
    ('kl-only-pull','dead'): tuple(look(8, kl=.1, **{DEAD:v}) for v in (.79, .81))+(above,),
    ('kl-only-pull','kl'): tuple(look(8, kl=v, **{DEAD:.9}) for v in (.9e-4, 1.1e-4))+(above,),
    ('ratio-always-1','updates'): (look(8, ONE, ratio_max=1., **{DEAD:0.}),
        look(8, TWO, ratio_max=1., **{DEAD:0.}), above),
    ('ratio-always-1','rows'): (look(2, TWO, ratio_max=1., **{DEAD:0.}),
        look(3, TWO, ratio_max=1., **{DEAD:0.}), above),
    ('ratio-always-1','living'):
        tuple(look(8, TWO, ratio_max=1., **{DEAD:1-v}) for v in (.048, .052))+(above,),
    ('learning-rate-too-large','rows'):
        tuple(look(n, reward=.5, clip_ratio__region_mean=.4) for n in (5, 6))+(above,),
    ('learning-rate-too-large','fresh'):
        tuple(look(9, reward=.5, clip_ratio__region_mean=v) for v in (.24, .26))+(above,),
    ('learning-rate-too-large','young'):
        tuple(look(9, reward=.5, replay__clip_frac=v, **{AGE:1.}) for v in (.34, .36))+(above,),
    ('learning-rate-too-large','lively'):
        tuple(look(24, reward=FALLS, clip_ratio__region_mean=v) for v in (.048, .052))+(above,),
    ('reward-collapse','rows'): (look(11, reward=jump(11, .8, .1)), look(12, reward=jump(12, .8, .1)), above),
    ('reward-collapse','share'):
        (look(24, reward=jump(24, .8, .41)), look(24, reward=jump(24, .8, .39)), above),
    ('reward-collapse','sigmas'):
        (look(64, reward=wave(64, 1., .4, .23)), look(64, reward=wave(64, 1., .4, .19)), above),
    ('learning-rate-too-small','rows'):
        tuple(look(n, reward=.5, learning_rate=1e-9) for n in (5, 6))+(above,),
    ('learning-rate-too-small','living'):
        tuple(look(9, reward=.5, learning_rate=1e-9, **{DEAD:1-v}) for v in (.19, .21))+(above,),
    ('learning-rate-too-small','still'):
        tuple(look(9, TWO, reward=.5, ratio_max=v) for v in (1.019, 1.021))+(below,),
    ('learning-rate-too-small','way'):
        tuple(look(11, reward=.5, learning_rate=v) for v in (.95e-7, 1.05e-7))+(below,),
    ('no-gradient','rows'): (look(3, grad_norm=0.), look(4, grad_norm=0.), above),
    ('no-gradient','share'): tuple(look(100, grad_norm=last(100, k, 1., 0.)) for k in (24, 26))+(above,),
    ('replay-too-old','rows'): tuple(look(n, replay__ess_tokens=.4, **{AGE:9.}) for n in (4, 5))+(above,),
    ('replay-too-old','ess'): tuple(look(9, replay__ess_tokens=v, **{AGE:9.}) for v in (.49, .51))+(below,),
    ('replay-too-old','clip'): tuple(look(9, replay__clip_frac=v, **{AGE:9.}) for v in (.29, .31))+(above,),
    ('sampler-disagrees','rows'): tuple(look(n, sampling__mismatch_kl=1.) for n in (3, 4))+(above,),
    ('sampler-disagrees','nats'):
        tuple(look(9, **{'sampling/sampling_logp_difference/mean':v}) for v in (.095, .105))+(above,),
    ('sampler-disagrees','kl'): tuple(look(9, sampling__mismatch_kl=v) for v in (.048, .052))+(above,),
    ('failing-tools','rows'): tuple(look(n, tools__failure_frequency=.5) for n in (3, 4))+(above,),
    ('failing-tools','share'): tuple(look(9, tools__failure_frequency=v) for v in (.29, .31))+(above,),
    ('few-groups-replayed','busiest'):
        (look(groups=uses(20, 20, 20, 9, 1)), look(groups=uses(20, 20, 20, 10, 1)), above),
    ('few-groups-replayed','share'):
        tuple(look(groups=uses(10, 10, 10, 10, *[1]*k)) for k in (39, 41))+(below,),
    ('few-groups-replayed','each'):
        (look(groups=uses(11, 11, 11, 9)), look(groups=uses(11, 11, 11, 10)), above),
    ('few-groups-replayed','times'): (few(13, 4, 3), few(10, 4, 4), above),
    ('few-groups-replayed','places'): (few(19, 1, 1), few(20, 1, 1), above),
    ('held-out-falls','share'):
        tuple(look(40, reward=UP, eval__acc=evals([.5, .5, .5, v])) for v in (.465, .455))+(above,),
    ('held-out-falls','least'):
        tuple(look(40, reward=UP, eval__acc=evals([.1, .1, .1, v])) for v in (.081, .079))+(above,),
    ('generalisation-gap','share'): (gap(.076, .4), gap(.08, .4), below),
    ('generalisation-gap','gap'): (gap(0., .13), gap(0., .137), above),
    ('one-reward-drowns','share'):
        tuple(look(9, rewards__a__mean=1., rewards__b__mean=1., rewards__a__std=10.,
        rewards__b__std=v) for v in (.99, 1.02))+(below,),
    ('entropy-collapse','rows'): tuple(look(n, entropy=jump(n, 1., .01, 3)) for n in (7, 8))+(above,),
    ('entropy-collapse','share'): tuple(look(8, entropy=jump(8, 1., v)) for v in (.195, .205))+(below,),
    ('kl-blow-up','rows'): (look(7, kl=last(7, 2, .01, 3.)), look(8, kl=last(8, 2, .01, 3.)), above),
    ('kl-blow-up','least'): (look(40, kl=KL(.01, .49)), look(40, kl=KL(.01, .51)), above),
    ('kl-blow-up','times'): (look(40, kl=KL(.2, .98)), look(40, kl=KL(.2, 1.02)), above),
    ('kl-blow-up','pays'): tuple(look(40, reward=UP, kl=KL(.01, v)) for v in (.98, 1.02))+(above,),
    ('kl-blow-up','pays_times'): tuple(look(40, reward=UP, kl=KL(.09, v)) for v in (1.78, 1.82))+(above,),
    ('gradient-spikes','rows'): tuple(look(n, grad_norm=last(n, 2, 1., 50.)) for n in (19, 20))+(above,),
    ('gradient-spikes','times'): tuple(look(40, grad_norm=last(40, 2, 1., v)) for v in (9.8, 10.2))+(above,),
    ('gradient-spikes','fewest'): tuple(look(40, grad_norm=last(40, k, 1., 50.)) for k in (1, 2))+(above,),
    ('gradient-spikes','most'): tuple(look(100, grad_norm=last(100, k, 1., 50.)) for k in (20, 21))+(below,),
    ('plateau','rows'): (look(39, reward=.4), look(40, reward=.4), above),
    ('plateau','matters'):
        tuple(look(100, reward=[.2]*40+list(np.linspace(.2, .2+v, 60))) for v in (.049, .051))+(below,),
    ('plateau','top'): (look(40, reward=.79), look(40, reward=.81), below),
    ('plateau','rises'):
        tuple(look(80, reward=.4, eval__acc=evals([.2]*6+[.2+v]*2, 80)) for v in (.029, .031))+(below,),
    ('loss-0-is-fine','rows'): (look(2, loss=0., grad_norm=1.), look(3, loss=0., grad_norm=1.), above),
    ('loss-0-is-fine','loss'): tuple(look(9, loss=v, grad_norm=1.) for v in (.98e-4, 1.02e-4))+(below,),
    ('loss-0-is-fine','grad'): tuple(look(9, loss=0., grad_norm=v) for v in (.98e-3, 1.02e-3))+(above,),
}
ASK = {('float-noise','alive'): lambda f: f.fault}   # what counts as speaking, where it isn't a finding

# helpers of several rules: (below, above, which one speaks), each with the arguments it is called with
HELPERS = {
    (F.drop_from_peak,'share'): (([.8]*12+[.41]*12,), ([.8]*12+[.39]*12,), above),
    (F.drop_from_peak,'sigmas'): ((wave(64, 1., .4, .23),), (wave(64, 1., .4, .19),), above),
    (F.drop_from_peak,'parts'): (([1.]*7+[0.]*57,), ([1.]*8+[0.]*56,), above),
    (F._solved,'dead'):
        tuple((look(20, reward=line(.1, .5), **{DEAD:jump(20, .1, v)}),) for v in (.89, .91))+(above,),
    (F._solved,'dead_long'):
        tuple((look(100, reward=jump(100, .1, 1.), **{DEAD:jump(100, .1, v)}),) for v in (.64, .66))+(above,),
    (F._solved,'long'):
        tuple((look(n, reward=jump(n, .1, 1.), **{DEAD:jump(n, .1, .7)}),) for n in (99, 100))+(above,),
    (F._solved,'alive'):
        tuple((look(20, reward=line(.1, .5), **{DEAD:jump(20, v, .95)}),) for v in (.69, .71))+(below,),
    (F._solved,'top'):
        tuple((look(20, reward=[.1]*10+[.5]*5+[v]*5, **{DEAD:jump(20, .1, .95)}),)
            for v in (.445, .455))+(above,),
    (F._young_clip,'age'): tuple((look(9, replay__clip_frac=.5, **{AGE:v}),) for v in (1.45, 1.55))+(below,),
    (F._others_fell,'share'):
        tuple((look(24, rewards__a__mean=jump(24, 1., v)),) for v in (.61, .59))+(above,),
    (F._others_fell,'least'):
        tuple((look(24, rewards__a__mean=jump(24, v, 0.)),) for v in (.0195, .0205))+(above,),
    (F._held_gains,'evals'): ((held_out(.1, n=5),), (held_out(.1, n=6),), above),
    (F._held_gains,'rows'):
        tuple((look(n, reward=UP, eval__acc=evals([.1]*6, 36)+[None]*(n-36)),) for n in (39, 40))+(above,),
    (F._others_stood,'gain'): ((held_out(0., gain=.13), 1.), (held_out(0., gain=.16), 1.), above),
    (F._others_stood,'stands'): ((held_out(.052), 1.), (held_out(.055), 1.), below),
    (F._others_stood,'top'): ((held_out(0., at=.89), 1.), (held_out(0., at=.91), 1.), below),
    (F._others_stood,'rows'): tuple((look(n, rewards__form__mean=line(0, 1),
        rewards__right__mean=[.1]*(n//4)+[.3]*(n-n//4)), 1.) for n in (39, 40))+(above,),
    (F._others_stood,'climbs'): tuple((look(80, rewards__form__mean=[1.]+[0.]*59+[v]*20,
        rewards__right__mean=[.1]*20+[.3]*60), 1.) for v in (.24, .26))+(above,),
    (F._stopped,'rose'):
        tuple((np.array([.3]*10+[.3+v]*10), np.full(20, .3+v)) for v in (.049, .051))+(above,),
    (F._stopped,'still'):
        tuple((np.array([.1]*10+[.4]*10), np.array([.4]*15+[.4+v]*5)) for v in (.0198, .0208))+(below,),
    (F._stopped,'top'): tuple((np.array([.1]*10+[v]*10), np.full(20, v)) for v in (.79, .81))+(below,),
    (F._hack,'rows'):
        tuple((look(n, reward=line(0, 1), rewards__a__mean=jump(n, 1., 0.)),) for n in (5, 6))+(above,),
    (F._hack,'best'):
        tuple((look(40, reward=[.1]*10+[1.]*20+[v]*10, rewards__a__mean=jump(40, 1., 0.)),)
            for v in (.89, .91))+(above,),
    (F._paid_by_length,'close'): ((linked(.945), 1.6), (linked(.955), 1.6), above),
    (F._paid_by_length,'far'): ((linked(.795), 2.1), (linked(.805), 2.1), above),
    (F._paid_by_length,'values'): ((linked(1., 4), 2.1), (linked(1., 4)+FIFTH, 2.1), above),
    (F._paid_by_length,'longer'): ((linked(.99), 1.49), (linked(.99), 1.51), above),
    (F._paid_by_length,'much_longer'): ((linked(.9), 1.99), (linked(.9), 2.01), above),
    (F._paid_by_length,'shorter'): ((linked(-.99), .66), (linked(-.99), .68), below),
    (F._one_form,'share'): ((forms(.4),), (forms(.41),), above),
    (RunColumns.stopped_at,'times'):
        tuple((look(n, reward=.1, loss=[.1]*5+[None]*(n-5)), 'loss') for n in (7, 8))+(above,),
}
HELP = {(F.drop_from_peak,'parts'): lambda f: f[0]>.99,
    (RunColumns.stopped_at,'times'): lambda f: f is not None}

# which part of a run counts, and which mean of it: columns that are not constant
def turns(a, b, n=20): return [a,b]*(n//2)
def halves(a, b, n=20): return [a]*(n//2)+[b]*(n//2)
MEANS = [   # (rule, run, does it speak?)
    ('all-truncated', look(20, **{CLIP:turns(.86, .98)}), True),
    ('all-truncated', look(20, **{CLIP:turns(.8, .98)}), False),
    ('all-truncated', look(20, **{CLIP:halves(.85, 1.)}), False),   # it learned not to end
    ('all-truncated', look(20, **{CLIP:halves(1., .7)}), False),
    ('all-truncated', look(20, **{CLIP:halves(1., .85)}), True),
    ('all-equal', look(20, **{DEAD:turns(.86, .98)}), True),
    ('all-equal', look(20, **{DEAD:turns(.8, .98)}), False),
    ('all-equal', look(20, **{DEAD:halves(.2, .92)}), True),
    ('all-equal', look(20, **{DEAD:halves(1., .85)}), False),
    ('kl-only-pull', look(20, kl=turns(0., 3e-4), **{DEAD:turns(.7, .95)}), True),
    ('kl-only-pull', look(20, kl=turns(0., 1.5e-4), **{DEAD:turns(.7, .95)}), False),
    ('kl-only-pull', look(20, kl=.1, **{DEAD:turns(.6, .95)}), False),
    ('kl-only-pull', look(20, kl=halves(0., 2e-4), **{DEAD:halves(.2, .9)}), True),
    ('kl-only-pull', look(20, kl=halves(1., 0.), **{DEAD:.9}), False),
    ('start-at-zero', look(20, reward=turns(0., .03), **{DEAD:turns(.87, .97)}), True),
    ('start-at-zero', look(20, reward=turns(0., .05), **{DEAD:.95}), False),
    ('start-at-zero', look(20, reward=.01, **{DEAD:turns(.75, .97)}), False),
    ('start-at-zero', look(20, reward=.01, **{DEAD:last(20, 15, .95, .1)}), True),
    ('start-at-zero', look(20, {}, [pair(0., 8.)], reward=.12), True),   # of 8
    ('start-at-zero', look(20, {}, [pair(0., 8.)], reward=last(20, 5, .12, .9)), False),
    ('thin-signal', look(60, reward=.3, **{DEAD:last(60, 6, .1, .65)}), True),
    ('thin-signal', look(60, reward=.3, **{DEAD:last(60, 6, .9, .55)}), False),
    ('thin-signal', look(20, reward=.3, **{DEAD:turns(.5, .75)}), True),
    ('thin-signal', look(20, reward=.3, replay__live_after=turns(.5, .85), **{DEAD:.7}), True),
    ('thin-signal', look(20, reward=.3, replay__live_after=turns(.6, .9), **{DEAD:.7}), False),
    ('replay-too-old', look(20, replay__ess_tokens=turns(.3, .6), **{AGE:9.}), True),
    ('replay-too-old', look(20, replay__ess_tokens=turns(.45, .65), **{AGE:9.}), False),
    ('replay-too-old', look(20, replay__clip_frac=turns(.25, .38), **{AGE:9.}), True),
    ('replay-too-old', look(20, replay__clip_frac=turns(.2, .38), **{AGE:9.}), False),
    ('learning-rate-too-small', look(20, TWO, reward=.5, ratio_max=turns(1., 1.03)), False),
    ('learning-rate-too-small', look(20, TWO, reward=.5, ratio_max=turns(1., 1.01)), True),
    ('no-gradient', look(20, grad_norm=turns(0., 1.), reward_std=last(20, 18, .5, 0.)), False),
    ('no-gradient', look(20, grad_norm=turns(0., 1.), reward_std=last(20, 8, .5, 0.)), True),
    ('float-noise', look(8, reward_std=[1e-9]*5+[.3]*3, **{DEAD:.5}), True),
    ('float-noise', look(8, reward_std=[1e-9]*4+[.3]*4, **{DEAD:.5}), False),
    ('float-noise', look(groups=[pair(1000., 1000.005)]), True),      # of 1,000
    ('float-noise', look(groups=[pair(-1000., -1000.005)]), True),
    ('float-noise', look(groups=[pair(.1, .1+5e-6)]), True),
    ('float-noise', look(groups=[pair(1., 1.005)]), False),
    ('gradient-spikes', look(40, grad_norm=last(40, 2, .5, 8.)), True),
    ('gradient-spikes', look(40, grad_norm=last(40, 2, 2., 8.)), False),
    ('plateau', look(80, {}, [pair(0., 8.)], reward=turns(2., 2.2, 80)), True),    # of 8
    ('plateau', look(80, {}, [pair(0., 8.)], reward=last(80, 20, 2., 7.)), False),
    ('plateau', look(80, reward=turns(.38, .42, 80), eval__acc=evals([.1]*4+[.3]*4, 80)), True),
    ('loss-0-is-fine', look(9, loss=turns(0., 2e-4, 10)[:9], grad_norm=1.), False),
    ('loss-0-is-fine', look(9, loss=0., grad_norm=[1e-5]*3+[1.]*6), True),
    ('loss-0-is-fine', look(9, loss=0., grad_norm=[1e-5]*6+[1.]*3), False),
]
@pytest.mark.parametrize('i', range(len(MEANS)), ids=lambda i: f'{MEANS[i][0]}-{i}')
def test_what_part_of_a_run_counts_and_which_mean(i):
    name,run,speaks = MEANS[i]
    assert (FINDING_RULES[name](run) is not None)==speaks

@pytest.mark.parametrize('name,settings', [('all-truncated', None), ('no-end-token', NO_END),
    ('no-chat-template', BARE)])
def test_a_single_row_tells_what_needs_no_course(name, settings):
    rule = FINDING_RULES[name]
    for share in (0., 1.): assert (rule(look(1, settings, **{CLIP:share})) is not None)==(share==1.)

def test_a_batch_is_the_usual_step_between_rows():
    "A pause in the log is no batch: the median counts"
    steps = [0, 1, 2, 3, 4, 60, 61, 62, 63]
    def run(age):
        replay = {'replay/age_mean':age, 'replay/clip_frac':.5}
        return RunColumns([dict(step=s, reward=.5)|replay for s in steps])
    rule = FINDING_RULES['learning-rate-too-large']
    assert rule(run(1.)) and not rule(run(5.))

@pytest.mark.parametrize('one,remedy', [(.4, 1), (.5, 2)])
def test_which_of_two_deaths_it_is_by_the_trainers_count(one, remedy):
    "Of .92 dead, more or less than half are one text; single batches differ"
    run = look(20, frac_one_text=turns(one-.2, one+.2), **{DEAD:turns(.86, .98)})
    assert FINDING_RULES['all-equal'](run).remedy==FINDING_RULES['all-equal'].remedies[remedy]

@pytest.mark.parametrize('same,remedy', [(2, 1), (3, 2)])
def test_which_of_two_deaths_it_is_by_the_texts_of_its_last_step(same, remedy):
    groups = [dict(step=s, group=g, dead=True, rewards=[0.]*2,
        completions=['a']*2 if s==0 or g<same else ['a','b']) for s in range(2) for g in range(4)]
    rule = FINDING_RULES['all-equal']
    assert rule(look(9, groups=groups, **{DEAD:1.})).remedy==rule.remedies[remedy]

def does_fire(case, f, args, **kw):
    "Does it speak? A threshold that makes it stumble changes the answer, too."
    try: out = FINDING_RULES[f](*args, **kw) if isinstance(f, str) else f(*args, **kw)
    except (IndexError, ValueError): return None
    return bool(out) and bool((ASK|HELP).get(case, bool)(out)) if out is not None else False

ALL = {k:((a,), (b,), c) for k,(a,b,c) in EDGES.items()}|HELPERS

def limits(f):
    "Thresholds of a rule or of a helper, by name"
    rows = dict(rows=FINDING_RULES[f].rows) if isinstance(f, str) and FINDING_RULES[f].rows>1 else {}
    params = inspect.signature(FINDING_RULES[f].test if isinstance(f, str) else f).parameters
    return {k:p.default for k,p in params.items() if p.default is not p.empty}|rows

def called(case): return f"{case[0] if isinstance(case[0], str) else case[0].__name__}-{case[1]}"

@pytest.mark.parametrize('case', ALL, ids=called)
def test_each_threshold_from_both_sides(case):
    f,name = case
    *runs,speaks = ALL[case]
    array = lambda o: np.array(o) if isinstance(o, list) and o and isinstance(o[0], float) else o
    runs = [tuple(map(array, r)) for r in runs]
    fired = [does_fire(case, f, r) for r in runs]
    assert fired==([False, True] if speaks else [True, False])
    was = limits(f)[name]
    others = (was-1, was+1) if isinstance(was, int) else (was/1.2, was*1.2)
    changed = [[does_fire(case, f, r, **{name:v}) for r in runs]!=fired for v in others]
    assert all(changed) if isinstance(was, int) else any(changed), 'another threshold decides here'

# ---- two rules over drawn histories, beside plain loops

DRAWN = settings(max_examples=150, derandomize=True, deadline=None, database=None,
    phases=[Phase.explicit, Phase.generate])
def eighths(most, **size): return st.lists(st.integers(0, most).map(lambda k: k/8), **size)
def mean(x): return sum(x)/len(x)
def quarters(x): return mean(x[:max(2, len(x)//4)]),mean(x[-max(2, len(x)//4):])

def falls_by_hand(m, seen):
    "(best, its row, end, reward then, reward now) of a held-out measure logged at `seen`, [(row, value)]"
    x = [v for _,v in seen]
    if len(x)<3 or len(m)<6: return None
    tops = x if len(x)<5 else [-1]+[(a+b)/2 for a,b in zip(x, x[1:])]   # pairs, where there are enough
    i = tops.index(max(tops))
    top,end = tops[i],x[-1] if len(x)<5 else (x[-2]+x[-1])/2
    noise = 2*mean([abs(b-a) for a,b in zip(x[:i], x[1:i+1])])/len(x)**.5 if i else 0.
    if i>=len(x)-2 or top-end<=max(.08*top, noise, .02): return None
    row = seen[i][0]
    then,now = mean([v for _,v in sorted((abs(k-row), v) for k,v in enumerate(m))[:5]]),mean(m[-5:])
    return None if now<then else (top, row, end, then, now)

@DRAWN
@given(st.integers(5, 24).flatmap(lambda n: st.tuples(st.just(n), eighths(8, min_size=2, max_size=7),
    st.integers(1, 3), st.sampled_from([0., 1/8, 1/16]))))
def test_a_held_out_measure_falls_where_a_plain_loop_sees_it_fall(case):
    n,x,every,up = case
    rows = [i*every for i in range(len(x)) if i*every<n]
    m = [up*i for i in range(n)]
    seen = [*zip(rows, x)]
    at = dict(seen)
    run = RunColumns([dict(step=3*i, reward=m[i])|({'eval/acc':at[i]} if i in at else {}) for i in range(n)])
    got,want = FINDING_RULES['held-out-falls'](run),falls_by_hand(m, seen)
    if want is None: assert got is None
    else:
        top,row,end,then,now = want
        evidence_start = f'eval/acc {top:.3g} at its best (step {3*row}), {end:.3g} at the end'
        assert got.step==3*row and got.evidence==f'{evidence_start}; reward {then:.3g} then, {now:.3g} now'

def solved_by_hand(z, m, top):
    if len(z)<3 or len(m)<4 or z[0]>=.7: return False
    first,last = quarters(m)
    if max(m)<=0 or last<.9*max(m) or last<=first: return False
    late = mean(z[len(z)//2:])
    return late>=.9 or len(z)>=100 and late>=.65 and (top is None or last>=.9*top)

@DRAWN
@given(eighths(8, min_size=1, max_size=5), eighths(9, min_size=1, max_size=5),
    st.sampled_from([1, 1, 1, 20, 25, 30]), st.booleans())
@example([0., 1.], [1/8, 2/8, 7/8, 1.], 1, True)   # the fewest that tell, and one less
@example([0., 1., 1.], [1/8, 2/8, 7/8, 1.], 1, True)
@example([0., 1., 1.], [1/8, 7/8, 1.], 1, True)
def test_groups_die_of_success_where_a_plain_loop_says_so(z, m, times, dies):
    "Each value stands for `times` rows; where it `dies`, reward rises, and all groups die after the first"
    if dies: z,m = z[:1]+[1.]*(len(z)-1),sorted(m)
    z,m = [v for v in z for _ in range(times)],[v for v in m for _ in range(times)]
    n = max(len(z), len(m))
    cols = {DEAD:z, 'reward':m}
    rows = [dict(step=i)|{k:v[i] for k,v in cols.items() if i<len(v)} for i in range(n)]
    top = 1. if max(m)<=1 else None   # a reward above 1 has a ceiling that nobody knows
    assert (FINDING_RULES['solved'](RunColumns(rows)) is not None)==solved_by_hand(z, m, top)
