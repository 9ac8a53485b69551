"Advantages against TRL's own code, against slow loops, and at the corners: nan, dead groups, wrong input."
import functools, itertools, math, tempfile
import pytest, torch
from grpo_nb.parts.tensors import test_tensor as assert_tensor
from grpo_nb.advantages import group_advantages, multi_reward_advantages
from grpo_nb.variants.losses import constant_advantages, rloo_advantages, maxrl_advantages, rft_advantages
from grpo_nb.parts.groups import dead_groups, dead_reason, expected_dead_frac

nan = float('nan')
gen = lambda seed=0: torch.Generator().manual_seed(seed)

@functools.lru_cache
def trl_trainer():
    "A real GRPOTrainer on a tiny Qwen2; the tests give it rewards and read the advantages it computes."
    import trl_tiny
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(output_dir=tempfile.mkdtemp(prefix='run'), per_device_train_batch_size=4,
                      num_generations=4, max_completion_length=4, report_to='none', use_cpu=True,
                      bf16=False, gradient_checkpointing=False)
    t = GRPOTrainer(model=trl_tiny.folder(), reward_funcs=trl_tiny.n_red, args=args,
                    train_dataset=trl_tiny.data(), processing_class=trl_tiny.tokenizer())
    t._generate = lambda prompts: ([[2, 3] for _ in prompts], [[4, 1] for _ in prompts], None,
                                   ['x'] * len(prompts), None, {}, None, None)
    t.model.train()
    return t

def trl_advantages(rewards_per_func, weights=None, aggregation='sum_then_normalize', scale='group'):
    "What TRL makes of (B, G, F) rewards, through its own `_generate_and_score_completions`."
    t = trl_trainer()
    B,G,F = rewards_per_func.shape
    t.num_generations,t.scale_rewards,t.multi_objective_aggregation = G,scale,aggregation
    t.reward_funcs,t.reward_func_names = t.reward_funcs[:1]*F,[f'f{i}' for i in range(F)]
    t.reward_weights = torch.ones(F) if weights is None else torch.as_tensor(weights, dtype=torch.float32)
    t._calculate_rewards = lambda *a: rewards_per_func.reshape(B*G, F)
    return t._generate_and_score_completions([dict(prompt='one two')]*(B*G))['advantages'].view(B, G)

def draw(B, G, F=1, seed=0, holes=0.):
    g = gen(seed)
    r = torch.randint(0, 5, (B,G,F), generator=g)/4 + torch.randint(0, 2, (B,G,F), generator=g)
    return r.masked_fill(torch.rand(B,G,F, generator=g)<holes, nan)

@pytest.mark.parametrize('scale', ['group','batch','none'])
@pytest.mark.parametrize('G', [2,3,4,8,16,64])
def test_group_advantages_are_those_of_trl(G, scale):
    for seed,holes in ((0,0.), (1,.2), (2,.6)):
        r = draw(5, G, seed=seed, holes=holes)
        r[1],r[2] = 1.,0.                       # one group all right, one all wrong
        r[3] = nan                              # one without any reward
        assert_tensor(group_advantages(r[...,0], scale), trl_advantages(r, scale=scale))

@pytest.mark.parametrize('aggregation', ['sum_then_normalize','normalize_then_sum'])
@pytest.mark.parametrize('G,F', [(2,1),(4,2),(8,3),(64,2)])
def test_several_rewards_are_put_together_as_trl_does(G, F, aggregation):
    for seed,holes in ((0,0.), (1,.2), (2,.5)):
        r = draw(6, G, F, seed=seed, holes=holes)
        r[1], r[2], r[3, 0] = (
            1.0,
            torch.arange(F).float(),
            nan,
        )  # all right; constant, each function its own; one completion without any
        w = torch.rand(F, generator=gen(seed))+.5
        for scale in ('group','batch','none'):
            got,want = multi_reward_advantages(r, w, aggregation, scale),trl_advantages(r, w, aggregation,
                scale)
            assert (got[1:3] == 0).all() and want[
                1:3
            ].abs().max() < 1e-2  # ours exactly 0, TRL's the rounding error of a mean
            want[1:3] = 0
            assert_tensor(got, want, eps=2e-6)

def test_all_equal_fractions_get_exactly_zero_where_trl_leaves_noise():
    worst = 0
    for v,G in itertools.product((.1,.2,.3,.6,.7,.9), (3,5,6,7,8,12)):
        r = torch.full((2,G,1), v)
        assert ((group_advantages(r[..., 0]) == 0).all() and (multi_reward_advantages(r) == 0).all()
                and dead_groups(r[..., 0]).all())
        worst = max(worst, trl_advantages(r).abs().max().item())
    assert 1e-6<worst<1e-2   # there is something to be protected from
    mixed = torch.stack([torch.full((7,2), .1), draw(1, 7, 2)[0]])
    assert (multi_reward_advantages(mixed, aggregation='normalize_then_sum')[0]==0).all()

def test_dead_means_max_minus_min_within_the_tolerance():
    r = torch.tensor([[0.3] * 8, [0.3] * 7 + [0.3 + 1e-7], [0.0] * 7 + [1.0], [nan] * 8, [nan] * 7 + [1.0],
                      [nan] * 6 + [0.0, 1.0], [0.5] * 7 + [0.50001]])
    assert dead_groups(r).tolist()==[True,True,False,True,True,False,False]
    assert dead_groups(r, tol=0).tolist()==[True,False,False,True,True,False,False]
    assert dead_groups(r, tol=1e-4).tolist()==[True,True,False,True,True,False,True]
    assert (r[0].std()>0) and dead_groups(r)[0]   # the deviation would call it alive

def test_with_several_functions_a_group_is_dead_only_under_all_of_them():
    r = torch.stack([torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 5.0], [1.0, 5.0]]),
                     torch.full((2, 2), nan)])
    assert dead_groups(r).tolist()==[False,True,True] and dead_groups(r[:2].sum(2)).tolist()==[True,True]

def test_each_reason_for_a_dead_group_is_named():
    r = torch.tensor([[0.]*3, [1.]*3, [.5]*3, [.7,.7,.7+1e-7], [nan,nan,1.], [0.,1.,1.], [nan,0.,0.]])
    assert dead_reason(r)==['all-wrong','all-right','equal','float-noise','unscored',None,'all-wrong']

@pytest.mark.parametrize('p,G,want', [(.5, 8, .0078), (.1, 8, .43), (.01, 8, .92), (.1, 16, .19)])
def test_the_waste_arithmetic(p, G, want):
    assert abs(expected_dead_frac(p, G)-want)<.006
    draws = (torch.rand(20000, G, generator=gen())<p).float()
    assert abs(dead_groups(draws).float().mean().item()-expected_dead_frac(p, G))<.015

@pytest.mark.parametrize(
    'call,says',
    [
        (lambda: group_advantages(torch.ones(4, 1)), 'G >= 2'),
        (lambda: group_advantages(torch.ones(4)), 'B, G'),
        (lambda: group_advantages(torch.ones(1, 2, 3)), 'B, G'),
        (lambda: group_advantages(torch.tensor([[1.0, float('inf')]])), '1 of 2 rewards are infinite'),
        (lambda: group_advantages(torch.tensor([[1e30, 0.0]])), 'overflow'),
        (lambda: group_advantages(torch.ones(2, 2), 'std'), "'std'"),
        (lambda: dead_groups(torch.ones(2, 2), -1e-6), 'tol'),
        (lambda: dead_groups(torch.ones(2, 2), nan), 'tol'),
        (lambda: dead_groups(torch.ones(2, 1)), 'G >= 2'),
        (lambda: multi_reward_advantages(torch.ones(2, 2)), 'B, G, F'),
        (lambda: multi_reward_advantages(torch.ones(2, 2, 3), [1.0, 2.0]), '3 reward functions'),
        (lambda: multi_reward_advantages(torch.ones(2, 2, 1), aggregation='sum'), "'sum'"),
        (lambda: multi_reward_advantages(torch.ones(2, 2, 1), aggregation='normalize_then_sum', scale='x'),
        "'x'"),
    ],
)
def test_wrong_input_is_named(call, says):
    with pytest.raises(ValueError, match=None) as e: call()
    assert says in str(e.value)

# --- advantages by name

def test_an_advantage_of_ones_own_gets_the_settings_that_it_names():
    seen = {}
    def plain(rewards): return rewards-rewards.median(1, keepdim=True).values
    def scaled(rewards, scale): seen['scale'] = scale; return plain(rewards)
    r = torch.tensor([[1., 0., 0.], [3., 1., 2.]])
    want = [[1., 0., 0.], [1., -1., 0.]]
    assert_tensor(multi_reward_advantages(r[...,None], advantages=plain), want)
    assert_tensor(multi_reward_advantages(r[...,None], scale='batch', advantages=scaled), want)
    assert seen=={'scale': 'batch'}

def test_leave_one_out_is_the_slow_loop_nan_included():
    r = draw(20, 6, seed=3, holes=.3)[...,0]
    want = torch.zeros_like(r)
    for b,row in enumerate(r.tolist()):
        for g,x in enumerate(row):
            others = [o for k,o in enumerate(row) if k!=g and not math.isnan(o)]
            if not math.isnan(x) and others: want[b,g] = x-sum(others)/len(others)
    assert_tensor(rloo_advantages(r), want, 1e-5)
    assert (rloo_advantages(torch.full((2,7), .3))==0).all() # exactly

def std_weight(p, G):
    "What dividing by the deviation makes of a prompt's weight, K right answers of G at a time."
    ways = [math.comb(G, K)*p**K*(1-p)**(G-K)*math.sqrt(K*(G-K)*(G-1)/G) for K in range(1, G)]
    return sum(ways)/(G*p*(1-p))

@pytest.mark.parametrize('advantages, weight', [
    (functools.partial(group_advantages, eps=0), std_weight),
    (functools.partial(group_advantages, scale='none'), lambda p, G: (G-1)/G),
    (rloo_advantages, lambda p, G: 1),
    (constant_advantages, lambda p, G: 1),
    (functools.partial(constant_advantages, baseline=.2), lambda p, G: 1),
    (functools.partial(constant_advantages, baseline=0), lambda p, G: 1),
    (rft_advantages, lambda p, G: 1),
    (maxrl_advantages, lambda p, G: (1-(1-p)**(G-1))/p)])
@pytest.mark.parametrize('G', [2, 4])
def test_the_expected_update_is_a_weight_times_the_gradient_of_the_pass_rate(advantages, weight, G):
    "The exact sum over all groups of a policy with five answers, two of them right, is the derived weight."
    pi = torch.softmax(torch.tensor([.3, -1., .8, 0., -.4], dtype=torch.float64), 0)
    right = torch.tensor([1., 0., 0., 1., 0.], dtype=torch.float64)
    p = (pi*right).sum()
    groups = torch.tensor(list(itertools.product(range(5), repeat=G)))   # (5**G, G)
    score = torch.eye(5, dtype=torch.float64)-pi                         # of each answer, at the logits
    A = advantages(right[groups])
    update = (pi[groups].prod(1)[:,None]*(A[...,None]*score[groups]).mean(1)).sum(0)
    assert_tensor(update, weight(p.item(), G)*pi*(right-p), eps=1e-12)

def test_maxrl_is_the_slow_loop_and_what_trl_makes_of_rewards_over_their_mean():
    r = draw(20, 6, seed=4, holes=.3)
    r[0],r[1],r[2] = 0.,.3,nan                  # all wrong, all alike, none judged
    want = torch.zeros(20, 6)
    for b,row in enumerate(r[...,0].tolist()):
        known = [o for o in row if not math.isnan(o)]
        if not known or max(known)==min(known): continue
        mean = sum(known)/len(known)
        for g,x in enumerate(row):
            if not math.isnan(x): want[b,g] = (x-mean)/mean
    assert_tensor(maxrl_advantages(r[...,0]), want, 1e-5)
    assert (maxrl_advantages(torch.full((2,7), .3))==0).all()   # exactly
    over = r/r.nanmean(1, keepdim=True).clamp(min=1e-9)
    assert_tensor(trl_advantages(over, scale='none'), want, 1e-5)
    with pytest.raises(ValueError, match='a reward is -0.5: return rewards of 0 or more'):
        maxrl_advantages(torch.tensor([[1., -.5]]))

def test_a_constant_baseline_and_rft_keep_zero_variance_groups_and_give_nothing_without_a_reward():
    r = torch.tensor([[1., 1., nan], [0., 0., 0.], [nan, nan, nan], [.5, -2., 1.]])
    assert_tensor(constant_advantages(r), [[.5, .5, 0.], [-.5]*3, [0.]*3, [0., -2.5, .5]])
    assert_tensor(constant_advantages(r, 0.), r.nan_to_num(0))
    assert_tensor(rft_advantages(r), [[1., 1., 0.], [0.]*3, [0.]*3, [.5, 0., 1.]])
