"Wrong input to the trainer from scratch: named before any work, with what was seen and what is needed."
import pytest, torch
from datasets import Dataset
from grpo_nb.tiny_qwen import make_tokenizer, tiny_model
from grpo_nb.trainer import TrainConfig, train

torch.set_num_threads(1)
rows = Dataset.from_dict(dict(prompt=[f'{a}+{b}=' for a in range(4) for b in range(4)], answer=['1']*16))
def reward(completions, **kwargs): return [0.]*len(completions)
def go(model=None, tokenizer=None, dataset=rows): return train(model or tiny_model(0), tokenizer or make_tokenizer(), dataset, reward, TrainConfig(num_generations=4, generation_batch_size=16, max_steps=1))

@pytest.mark.parametrize('bad', [dict(num_generations='4'), dict(num_generations=2.), dict(max_steps=None), dict(learning_rate='1e-3'), dict(top_p=None), dict(epsilon='x'), dict(replay_buffer_size='64'), dict(seed=None), dict(warmup_steps=2.5)], ids=str)
def test_what_is_no_number_is_named(bad):
    with pytest.raises(ValueError, match=f'`{next(iter(bad))}` is .*, needs a (whole )?number'): TrainConfig(**bad)

def test_settings_that_may_be_none_may_be_none(): TrainConfig(epsilon_high=None, min_p=None, delta=None)

@pytest.mark.parametrize('message', [dict(content='1'), dict(role='user')], ids=str)
def test_a_message_without_role_or_content_is_shown(message):
    with pytest.raises(ValueError, match='row 0 has the prompt .* every message needs'): go(dataset=Dataset.from_dict(dict(prompt=[[message]]*16)))

def test_a_prompt_that_is_a_number_is_shown():
    with pytest.raises(ValueError, match='row 0 has the prompt 1'): go(dataset=Dataset.from_dict(dict(prompt=list(range(1, 17)))))

def test_a_column_that_rewards_get_anyway_is_refused():
    with pytest.raises(ValueError, match='column `completions`'): go(dataset=rows.add_column('completions', ['x']*16))

@pytest.mark.parametrize('what', [dict(model='tiny'), dict(tokenizer='tiny')], ids=str)
def test_a_name_is_no_model_and_no_tokenizer(what):
    with pytest.raises(ValueError, match=f"`{next(iter(what))}` is 'tiny'"): go(**what)
