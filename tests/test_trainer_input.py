"Wrong input to the trainer from scratch: named before any work, with what was seen and what is needed."
import warnings
from pathlib import Path
import pytest, torch
from datasets import Dataset, DatasetDict
from grpo_nb.replay import Replay
from grpo_nb.variants.strategies import AR3PO, GFPO
from grpo_nb.variants.strategy import Keep
from grpo_nb.tiny_qwen import load_model, make_tokenizer, tiny_model
from grpo_nb.trainer import TrainConfig, train

torch.set_num_threads(1)
rows = Dataset.from_dict(dict(prompt=[f'{a}+{b}=' for a in range(4) for b in range(4)], answer=['1']*16))
def reward(completions, **kwargs): return [0.]*len(completions)

# ---- settings and arguments

def small(**kw):
    return TrainConfig(**(dict(num_generations=4, generation_batch_size=16, max_steps=4,
                               max_completion_length=4, disable_tqdm=True) | kw))
def length(completions, **kwargs): return [float(len(o)) for o in completions]
def run(args=None, dataset=rows, rewards=length, model=None, tokenizer=None, **kw):
    return train(model or tiny_model(0), tokenizer or make_tokenizer(), dataset, rewards,
                 small() if args is None else args, **kw)
def test_a_path_is_as_good_as_a_text(tmp_path):
    assert TrainConfig(output_dir=tmp_path).output_dir==str(tmp_path)
    run(small(output_dir=tmp_path))
    assert (run(small(output_dir=tmp_path, max_steps=8),
                resume_from_checkpoint=tmp_path / 'checkpoint-4').step == 8)

def test_a_home_folder_is_written_as_in_a_shell(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.setenv('USERPROFILE', str(tmp_path))   # its name on Windows
    assert Path(TrainConfig(output_dir='~/runs/a').output_dir)==tmp_path/'runs'/'a'
    assert TrainConfig(output_dir='runs/a~').output_dir=='runs/a~'

@pytest.mark.parametrize(
    'kw,says',
    [
        (dict(strategy='relay'), "no strategy 'relay'"),
        (dict(rewards=[]), 'no reward functions'),
        (dict(rewards=[torch.nn.Linear(1, 1)]), '`Linear`.* is a model, and rewards are functions here'),
        (dict(rewards=['org/reward-model']), 'is a model, and rewards are functions here'),
        (dict(dataset=['1+1='] * 16), "no column `prompt`"),
        (dict(dataset=rows.to_dict()), 'the dataset is a dict, needs .*list of dicts.*`Dataset.from_dict`'),
        (dict(dataset=iter(rows)), 'the dataset is a .*, needs .*stream by `list`'),
        (dict(dataset=rows.to_iterable_dataset()), 'the dataset is a IterableDataset, needs'),
        (dict(dataset=DatasetDict(train=rows)), r"the dataset is a DatasetDict, needs .*ds\['train'\]"),
        (dict(dataset=rows.to_pandas()), 'the dataset is a DataFrame, needs'),
        (dict(eval_dataset=iter(rows), eval_steps=2), '`eval_dataset`: the dataset is a .*, needs'),
        (dict(strategy=Replay(8), replay_buffer_size=0), "`replay_buffer_size` is 0, strategy 'replay'"),
        (dict(strategy=GFPO(scale='none')), "`scale_rewards` is 'group', but strategy 'gfpo' .* 'none'"),
        (dict(strategy=AR3PO(), scale_rewards='none'), "`scale_rewards` is 'none', .* 'group'"),
        (dict(strategy='same_prompt', advantages='maxrl'), "`advantages` is 'maxrl', .* 'grpo'"),
        (dict(strategy='ngrpo', scale_rewards='batch'), "`scale_rewards` is 'batch', .*'ngrpo'.* 'group'"),
        (dict(strategy='gfpo', multi_objective_aggregation='normalize_then_sum'), "'gfpo'.*'sum_then_norm"),
        (dict(dataset=[dict(prompt='1')] * 15 + [dict(text='1')]), 'row 15 has the prompt None'),
        (dict(dataset=[dict(prompt=[dict(role='user', content=[dict(type='text', text='1')])])] * 16),
            "row 0: a message has its `content` in parts.*one text"),
        (dict(rewards=lambda completions: [1.]), r'takes no `answer`.*\*\*kwargs'),
        (dict(rewards=lambda completions, target, **kw: [1.]), 'asks for `target`, and no column'),
    ],
    ids=lambda o: o if isinstance(o, str) else '-'.join(o),   # no address of a function: workers' names agree
)
def test_arguments_that_cannot_work_are_named_before_any_completion(kw, says, monkeypatch):
    monkeypatch.setattr('grpo_nb.evaluation.generate', lambda *a, **k: pytest.fail('sampled'))
    with pytest.raises(ValueError, match=says): run(**kw)

def test_problems_that_nothing_measures_are_warned_about_and_one_is_enough():
    with pytest.warns(UserWarning, match='`eval_steps` is 0'): run(eval_dataset=rows)
    with pytest.raises(ValueError, match='holds the sets easy, hard, and this trainer measures one'):
        run(small(eval_steps=4), eval_dataset=dict(easy=rows, hard=rows))
    row = run(small(eval_steps=4), eval_dataset=rows.select([0])).history[0]
    assert row['eval/rewards/length/mean']>=0 and 'eval/pass@1' not in row

# ---- going on with something else

def resumed(tmp_path, **kw):
    run(small(output_dir=str(tmp_path))) if not (tmp_path/'checkpoint-4').exists() else None
    return run(small(output_dir=str(tmp_path), max_steps=8), resume_from_checkpoint=True, **kw)

OTHER = dict(more=(rows.add_item(dict(prompt='9+9=', answer='1')), '16 rows then, 17 now'),
             other=(Dataset.from_dict(dict(prompt=[f'{a}-{b}=' for a in range(4) for b in range(4)],
                                           answer=['1'] * 16)), 'another order, in `prompt`'),
             answers=(rows.map(lambda o: dict(answer='2')), 'in `answer`'),
             more_columns=(rows.add_column('note', ['x']*16), 'in `note`'),
             order=(rows.select(range(15, -1, -1)), 'another order'))
@pytest.mark.parametrize('name', OTHER)
def test_a_run_does_not_go_on_with_other_data(name, tmp_path):
    data,says = OTHER[name]
    with pytest.raises(ValueError, match=says) as e: resumed(tmp_path, dataset=data)
    assert 'load_model(' in str(e.value)
    m,tok = load_model(str(tmp_path/'checkpoint-4'))          # the way that the message names
    assert train(m, tok, data, length, small(output_dir=str(tmp_path/'anew'))).step==4

def test_a_run_does_not_go_on_with_another_method(tmp_path):
    with pytest.raises(ValueError, match='strategy: replay then, keep now'):
        resumed(tmp_path, strategy=Keep())
    with pytest.raises(ValueError, match='strategy: replay then, mask now'):
        resumed(tmp_path, strategy='mask')

def test_other_rewards_and_a_learning_rate_that_jumps_are_warned_about(tmp_path):
    def other(completions, **kwargs): return length(completions)

    with pytest.warns(UserWarning,
                      match="trained on the rewards .'length'., this run uses .'other'."):
        resumed(tmp_path, rewards=other)
    run(small(output_dir=str(tmp_path/'b'), lr_scheduler_type='linear'))
    with pytest.warns(UserWarning, match='max_steps: 4 then, 8 now.*jumps'):
        run(small(output_dir=str(tmp_path / 'b'), lr_scheduler_type='linear', max_steps=8),
            resume_from_checkpoint=True)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        resumed(tmp_path / 'c')  # a constant one doesn't jump

# ---- rewards that say nothing

def test_a_run_whose_completions_nobody_judges_ends_after_eight_batches():
    asked = []
    def nothing(completions, **kwargs): asked.append(1); return [None]*len(completions)

    with pytest.warns(UserWarning), pytest.raises(ValueError, match='in the first 8 batches'):
        run(small(max_steps=99), rewards=nothing)
    assert len(asked)==8
    def late(completions, **kwargs): asked.append(1); return [1. if len(asked)==3 else None]*len(completions)
    asked.clear()
    with pytest.warns(UserWarning):
        assert (
            run(small(max_steps=60), rewards=late).step == 60
        )  # a judge that is out for a while stops nothing
