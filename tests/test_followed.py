"Each setting of advantages is followed under each strategy, or refused with it."
import functools, itertools
import pytest, torch
from grpo_nb.parts.registry import STRATEGIES
from grpo_nb.tiny_qwen import tiny_model
from grpo_nb.trainer import train
from small_run import DATA, TOK, cfg

def longer(completions, **kw): return [float(len(o)) for o in completions]

@functools.cache
def weights(strategy, **settings):
    "After two batches with two rewards."
    count = itertools.count(1)
    def drawn(completions, **kw):   # no two answers of a batch are equal, but in its first group
        k = next(count)
        return [0.]*4+[(i*k)%7+i/9 for i in range(len(completions)-4)]
    model = tiny_model(0)
    steps = dict(max_steps=4, steps_per_generation=2, num_iterations=1)
    train(model, TOK, DATA, [drawn, longer], cfg(strategy=strategy, **steps|settings), print_verdict=False)
    return torch.cat([p.detach().flatten() for p in model.parameters()])

@pytest.mark.parametrize('setting', [dict(advantages='leave_one_out'), dict(scale_rewards='none'),
    dict(multi_objective_aggregation='normalize_then_sum')], ids=lambda o: [*o][0])
@pytest.mark.parametrize('strategy', [*STRATEGIES])
def test_a_setting_of_advantages_is_followed_or_refused(strategy, setting):
    try: other = weights(strategy, **setting)
    except ValueError as e:
        assert all(o in str(e) for o in (*setting, strategy))
        return
    assert not torch.equal(other, weights(strategy))
