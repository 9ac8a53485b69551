"Combinations of options go through both trainers and their records, beside a plain loop over answers."
import pytest, torch
from hypothesis import HealthCheck, Phase, given, reject, settings, strategies as st
import road
from plain_loop import Ambiguous

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings('ignore')
LOSSES = 'grpo','dr_grpo','dapo','bnpo','cispo','sapo','luspo','vespo'
WEIGHTS,CLIPS = ['token','none','truncated','sequence'],['ppo','none','dapo','two_sided']

# ---- what is drawn --------------------------------------------------------------------------------------
def rare(usual, *rest): return st.sampled_from([usual]*len(rest)+list(rest))   # half of the time the usual

def corrections(weights, **more):
    return rare(None, 1, 1).flatmap(lambda o: st.none() if o is None else st.fixed_dictionaries(dict(
        weight=st.sampled_from(weights), clip=st.sampled_from(CLIPS), weight_cap=st.sampled_from([1.05, 2.]),
        max_drift=rare(None, .05, .3), **more)))

COMMON = dict(loss=st.sampled_from(LOSSES), level=st.sampled_from(['token','sequence']),
    epsilon=st.sampled_from([.2, .05]), epsilon_high=rare(None, .1, .4), delta=rare(None, 1.1, 1.5),
    beta=rare(0., .05, .3), entropy_coef=rare(0., .02), quantile=rare(1., .4, .75), temperature=rare(1., .7),
    mask_truncated=st.booleans(), scale=st.sampled_from(['group','batch','none']),
    aggregation=st.sampled_from(['sum_then_normalize','normalize_then_sum']),
    rewards=st.sampled_from(['one','two','measured']), unreplaced=st.sampled_from(['keep','mask']),
    stored_per_fresh=rare(0, 1), parts=st.sampled_from([1, 2]), passes=rare(1, 2), max_grad_norm=rare(0., .1),
    off_policy=rare(None, .02), lr=st.sampled_from([3e-3, 1e-2, 3e-2]), seed=st.integers(0, 50),
    ends=st.sampled_from([1., 1.5]), batches=st.just(3))
MOMENT = dict(max_moment=rare(None, .01))
CHAPTERS = st.fixed_dictionaries(COMMON|dict(corrected=rare(True, False), shared_prefix=st.booleans(),
    strategy=rare('replay', 'gfpo', 'mask'),
    top_k=rare(0, 12), top_p=rare(1., .6, .9), min_p=rare(None, .1, .4),
    correction=corrections([*WEIGHTS, 'decoupled'], **MOMENT),
    replay_correction=corrections([*WEIGHTS, 'decoupled'], **MOMENT)))
ON_TRL = st.fixed_dictionaries(COMMON|dict(bias_kl=st.booleans(), accumulate=rare(1, 2),
    tools=rare(False, True), problems=rare(None, 1, 2),
    adaptive=rare(None, 2., 3.), resume=st.just(False), other_rate=st.just(False), pad=rare(False, True),
    top_k=rare(0, 12), top_p=rare(1., .6, .9), min_p=rare(None, .1, .4),
    replay_correction=corrections(WEIGHTS)))

def allowed(case, trl):
    """The case with what no trainer takes mended: CISPO needs a cap, GFPO normalizes sums, a correction on
    TRL forbids some things."""
    if case['loss']=='cispo': case = case|dict(epsilon_high=1+(case['epsilon_high'] or .2))
    if not trl and case['strategy']=='gfpo': case = case|dict(aggregation='sum_then_normalize')
    c = case['replay_correction'] or {}
    moved = (c.get('weight','token'), c.get('clip','ppo'))!=('token','ppo')
    if not trl or not moved and c.get('max_drift') is None: return case
    case = case|dict(off_policy=None)
    if moved and case['beta']: case['bias_kl'] = False
    if case['loss']=='vespo': case['replay_correction'] = None
    return case

# ---- pairs of options that hypothesis seldom draws together ----------------------------------------------
USUAL = dict(loss='dapo', level='token', epsilon=.2, epsilon_high=None, delta=None, beta=0., entropy_coef=0.,
    quantile=1., temperature=1., mask_truncated=False, scale='group', aggregation='sum_then_normalize',
    rewards='one', unreplaced='keep', stored_per_fresh=0, parts=2, passes=1, max_grad_norm=0.,
    off_policy=None, lr=1e-2, seed=3, ends=1.5, batches=3, corrected=True, shared_prefix=True,
    strategy='replay', correction=None, replay_correction=None, bias_kl=True, accumulate=1, tools=False,
    adaptive=None, resume=False, other_rate=False, pad=False, problems=None, top_k=0, top_p=1., min_p=None)
HELD = dict(weight='truncated', clip='none', weight_cap=1.05)
BOTH = [dict(replay_correction=HELD, loss='luspo', level='sequence', passes=2, stored_per_fresh=1),
    dict(replay_correction=HELD, loss='cispo', scale='batch'),
    dict(replay_correction=dict(weight='sequence', clip='two_sided', weight_cap=1.05), delta=1.1, lr=3e-2),
    dict(replay_correction=dict(weight='none'), loss='grpo', entropy_coef=.02, quantile=.75,
        mask_truncated=True, beta=.05),
    dict(replay_correction=dict(clip='dapo', max_drift=.05), aggregation='normalize_then_sum', rewards='two',
        unreplaced='mask', stored_per_fresh=1),
    dict(aggregation='normalize_then_sum', loss='sapo', rewards='measured'),
    dict(loss='vespo', rewards='measured', parts=1)]
AGAINST = dict(aggregation='normalize_then_sum', loss='dr_grpo', rewards='two', lr=3e-3)   # equal in sum
RARE = dict(chapters=[*BOTH, AGAINST, dict(strategy='gfpo', loss='bnpo', scale='none', rewards='two'),
    dict(strategy='mask', rewards='measured', correction=dict(max_drift=.3, max_moment=.01), passes=2,
        lr=3e-2),
    dict(correction=dict(clip='dapo'), replay_correction=dict(weight='decoupled'), passes=2, lr=3e-2),
    dict(shared_prefix=False, corrected=False, off_policy=.02, loss='grpo'),
    dict(top_p=.7, min_p=.3, temperature=.7, strategy='gfpo'), dict(top_k=9, top_p=.5, loss='grpo'),
    dict(entropy_coef=.02, quantile=.4, parts=1, passes=2, loss='bnpo')],
    on_trl=[*BOTH, AGAINST|dict(seed=8), dict(tools=True, accumulate=2, passes=2, beta=.05, loss='grpo'),
    dict(replay_correction=dict(max_drift=.05), adaptive=3.1, accumulate=2, loss='bnpo', quantile=.75,
        seed=8),
    dict(beta=.3, tools=True, accumulate=2, seed=4), dict(resume=True, adaptive=3.5),
    dict(resume=True, adaptive=2.5, quantile=.75, beta=.05, seed=4),
    dict(resume=True, other_rate=True, entropy_coef=.02, quantile=.75, pad=True),
    AGAINST|dict(stored_per_fresh=1, top_p=.7, min_p=.3, pad=True), dict(problems=1, stored_per_fresh=1),
    dict(problems=1, resume=True, beta=.05),
    # one token of the batch counts, half of one for each step
    dict(loss='vespo', mask_truncated=True, tools=True, unreplaced='mask', ends=1., temperature=.7, beta=.05,
        rewards='two', seed=21, batches=1)])

def walk(who, case):
    "One case, compared number by number: ratios, losses and gradients of each group are hundreds."
    before = road.compared
    getattr(road, who)(allowed(case, who=='on_trl'))
    assert road.compared-before>=100*case['batches']

@pytest.mark.parametrize('who,case', [(who, o) for who,cases in RARE.items() for o in cases],
    ids=lambda o: o if isinstance(o, str) else '-'.join(o))
def test_a_rare_pair_of_options_is_the_plain_loop(who, case):
    seeds = 0
    for seed in range(3, 10):
        try: walk(who, dict(USUAL, seed=seed)|case)
        except Ambiguous: continue
        seeds += 1
        break
    assert seeds==1, 'every seed has a number on an edge'   # `walk` demands that numbers were compared

@pytest.mark.parametrize('who,few', [('chapters', 8), ('on_trl', 5)])
def test_a_run_and_its_record_are_the_plain_loop(who, few, pytestconfig):
    @settings(max_examples=200 if pytestconfig.getoption('--slow') else few, derandomize=True, deadline=None,
        database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(dict(chapters=CHAPTERS, on_trl=ON_TRL)[who])
    def travel(case):
        try: walk(who, case)
        except Ambiguous: reject()   # float32 may see it otherwise
    before = road.compared
    travel()
    assert road.compared>=before+100*few   # a hundred numbers an example, at the least
