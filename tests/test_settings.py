"""A setting that cannot work, through two doors: `TrainConfig` and TRL's config. Each names the setting, what
it was and what it needs, before any work."""
import math
from dataclasses import fields
import pytest
import trl_tiny as T
from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferConfig
from grpo_nb.trainer import TrainConfig

TABLE = [   # (setting, value, what it needs)
    ('num_generations', 1, 'at least 2: .*nothing to be compared'),
    ('num_generations', 2.5, 'a whole number'),
    ('num_generations', '4', 'a whole number'),
    ('generation_batch_size', 0, ''),
    ('generation_batch_size', 30, 'a multiple of num_generations'),
    ('steps_per_generation', 0, ''),
    ('steps_per_generation', 3, 'a divisor of 16, the number of groups'),
    ('num_iterations', 0, '1 or more'),
    ('max_steps', 0, '1 or more'),
    ('weight_decay', math.nan, ''),
    ('entropy_coef', math.nan, 'number'),
    ('max_steps', None, 'a whole number'),
    ('max_completion_length', 0, '1 or more'),
    ('learning_rate', 1e4, '0 to 1: AdamW moves'),
    ('learning_rate', math.nan, '0 to 1'),
    ('learning_rate', 'fast', 'a number'),
    ('temperature', 0., 'more than 0'),
    ('top_p', 0., 'a share above 0'),
    ('top_p', 2., 'a share above 0'),
    ('top_k', -1, '0 or more'),
    ('min_p', 2., 'a share from 0 to 1'),
    ('epsilon', -.1, '0 or more'),
    ('epsilon', 'x', 'a number'),
    ('epsilon_high', -1., 'None, or 0 or more'),
    ('delta', 0., 'more than 0'),
    ('beta', -1., '0 or more'),
    ('top_entropy_quantile', 0., 'a share'),
    ('off_policy_mask_threshold', -1., 'None, or 0 or more'),
    ('max_grad_norm', -1., '0 or more'),
    ('warmup_steps', 2.5, 'a whole number'),
    ('warmup_steps', -1, '0 or more'),
    ('loss_type', 'ppo', 'loss_type`? .*dapo'),
    ('replay_priority', 'nope', "replay_priority`? 'nope'.*recency"),
    ('loss_type', 'cispo', "`epsilon_high` .* a cap of the ratio"),
    ('scale_rewards', 'std', 'group.*batch.*none'),
    ('importance_sampling_level', 'word', 'one of token, sequence'),
    ('lr_scheduler_type', 'wsd', 'one of constant, linear, cosine'),
    ('reward_weights', 1., 'a list with a number for each reward function'),
    ('reward_weights', ['a'], 'a list with a number'),
    ('reward_weights', [math.nan], 'a list with a number'),
    ('shared_prefix', 'no', 'True or False'),
    ('disable_tqdm', 2, 'True or False'),
    ('output_dir', 5, 'the path of a folder'),
    ('seed', -1, 'a whole number from 0'),
    ('seed', 12345678901234567890, 'a whole number from 0'),
    ('save_steps', -1, '0 or more'),
    ('dead_tolerance', -1., '0 or more'),
    ('replay_buffer_size', -1, '0 or more'),
    ('replay_buffer_size', True, 'a whole number'),
    ('replay_age_decay', 'fast', 'a number'),
    ('replay_max_uses', 1.5, 'a whole number'),
    ('replay_same_prompt_first', 'yes', 'True or False')]

# What TRL's own code says of it, in its own words, or takes
TRLS_OWN = '''generation_batch_size max_steps top_k min_p epsilon_high delta top_entropy_quantile seed
    off_policy_mask_threshold max_grad_norm warmup_steps save_steps output_dir
    lr_scheduler_type disable_tqdm importance_sampling_level'''.split()

def taken_by(config): return {f.name for f in fields(config) if f.init}

def rows(config, *without):
    own = taken_by(config)
    return [o for o in TABLE if o[0] in own and o[0] not in without and o[:2] not in without]

def needs(name, says): return says if '`' in says else f'`{name}` is .*, needs .*{says}'

@pytest.mark.parametrize('name,value,says', rows(TrainConfig), ids=str)
def test_train_config(name, value, says):
    with pytest.raises(ValueError, match=f'(?s){needs(name, says)}'): TrainConfig(**{name:value})

@pytest.mark.parametrize('name,value,says', ids=str,
    argvalues=rows(GRPOWithReplayBufferConfig, *TRLS_OWN, ('steps_per_generation', 3), ('loss_type', 'cispo'),
        ('reward_weights', 1.)))
def test_trls_config(name, value, says):
    with pytest.raises(ValueError, match=f'(?s){needs(name, says)}'): T.config(**{name:value})

def test_a_loss_of_ones_own_is_refused_on_trl_with_the_way_out():
    for name in ('tanh', 'mine.py:tanh'):
        seen = f"`loss_type` is '{name}', needs one of TRL's: grpo.*grpo_nb train"
        with pytest.raises(ValueError, match=seen): T.config(loss_type=name)

TOGETHER = [
    (dict(skip_zero_advantage=True, beta=.1), '`beta` .0.1. needs them: set beta to 0'),
    (dict(skip_zero_advantage=True, entropy_coef=.1), 'set entropy_coef to 0'),
    (dict(skip_zero_advantage=True, top_entropy_quantile=.5), 'set top_entropy_quantile to 1'),
    (dict(skip_zero_advantage=True, loss_type=lambda A: A), 'set loss_type to one registered with'),
    (dict(skip_zero_advantage=True, replay_correction='max_moment=.04'), 'without max_moment')]

@pytest.mark.parametrize('settings,says', TOGETHER, ids=range(len(TOGETHER)))
def test_two_settings_that_exclude_each_other(settings, says):
    with pytest.raises(ValueError, match=says): TrainConfig(**settings)

def test_what_may_be_none_may_be_none():
    assert TrainConfig(epsilon_high=None, min_p=None, delta=None)==TrainConfig()

MINE = """from grpo_nb.replay import Replay
def loss(logps, A): return {k}*logps*A
def advantages(rewards): return rewards*{k}
def priority(entries, now): return [{k}. for e in entries]
class Own(Replay): name = 'own{k}'
def task(n, seed=0, split='train'): return [dict(prompt='{k}')]*n
"""

def test_a_file_is_read_anew_for_every_run(tmp_path, monkeypatch, tables):
    "It may have been edited since the last one, or another folder may have one of the same name."
    from grpo_nb.parts.registry import ADVANTAGES, LOSSES, PRIORITIES, STRATEGIES, resolve
    from grpo_nb.parts.datasets import make_problems
    names = dict(loss_type='mine.py:loss', advantages='mine.py:advantages', strategy='mine.py:Own',
        replay_priority='mine.py:priority')
    for k in (1, 22, 333):
        folder = tmp_path/str(k)
        folder.mkdir()
        monkeypatch.chdir(folder)
        (folder/'mine.py').write_text(MINE.format(k=k))
        TrainConfig(**names)
        loss,advantages = resolve(LOSSES, 'mine.py:loss'),resolve(ADVANTAGES, 'mine.py:advantages')
        priority,strategy = resolve(PRIORITIES, 'mine.py:priority'),resolve(STRATEGIES, 'mine.py:Own')
        assert (loss(logps=1, A=1), advantages(1), priority([0], 0), strategy.name)==(k, k, [k], f'own{k}')
        assert make_problems('mine.py:task', 1)['prompt']==[str(k)]
        T.config(replay_priority='mine.py:priority')
    (folder/'mine.py').write_text(MINE.format(k=4444))
    assert resolve(LOSSES, 'mine.py:loss')(logps=1, A=1)==333   # not in the middle of a run
    T.config(replay_priority='mine.py:priority')
    assert resolve(PRIORITIES, 'mine.py:priority')([0], 0)==[4444.]
