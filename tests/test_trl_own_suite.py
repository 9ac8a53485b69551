"""What TRL's own tests ask of the replay trainer and of `GRPOTrainer`, asked of ours:
on batches that a trainer trains on, where the reference's tests hand squares to its inner methods."""

import pytest, torch
from datasets import Dataset
from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferTrainer
import trl_tiny as T
from trl_tiny import Scripted

torch.set_num_threads(1)
G = 2
LIVE,ALSO,DEAD = [0.,1.],[1.,5.],[1.,1.]

@pytest.fixture(autouse=True)
def quiet(monkeypatch): monkeypatch.setenv('TRL_EXPERIMENTAL_SILENCE', '1')

# -- the table of completions -----------------------------------------------------------------------
@pytest.mark.parametrize('parts,scope', [(False,'local'),(False,'sharded'),(True,'local')])
def test_replayed_rows_of_the_table_have_the_form_of_their_neighbours(parts, scope):
    """A column with text in some rows and messages in others can't be written:
    the run died at the first replacement."""
    say = lambda p: [dict(role='user', content=[dict(type='text', text=p)] if parts else p)]
    ds = Dataset.from_dict(dict(prompt=[say(p) for p in T.PROMPTS]))
    t = T.trainer(Scripted([LIVE,ALSO,DEAD,LIVE], G), num_generations=G, per_device_train_batch_size=2*G,
        max_steps=2, dataset=ds, log_completions=True, num_completions_to_print=0, replay_scope=scope)
    t.train()
    form = lambda o: 'text' if isinstance(o, str) else type(o[-1]['content']).__name__   # older TRL logs text
    assert len({form(p) for p in t._logs['prompt']})==len({form(c) for c in t._logs['completion']})==1

def test_a_column_with_a_name_of_trls_own_is_refused():
    with pytest.raises(ValueError, match="column `completions`.*rename"):
        T.trainer(dataset=T.data(completions=['x']*17))

def test_a_token_that_the_model_does_not_know_is_named():
    tok = T.tokenizer()
    tok.add_tokens(['zebra'])
    with pytest.raises(ValueError, match='token 29, the model knows 0 to 28'):
        GRPOWithReplayBufferTrainer(model=T.folder(), reward_funcs=T.n_red, args=T.config(),
            train_dataset=Dataset.from_dict(dict(prompt=['one zebra']*17)), processing_class=tok)

def test_a_prompt_of_which_the_tokenizer_makes_nothing_is_named():
    "As where a tokenizer's class doesn't fit its files: it knows one letter, and has no token for others."
    from tokenizers import models
    tok = T.tokenizer()
    tok.backend_tokenizer.model = models.BPE(vocab={'o':0}, merges=[])
    with pytest.raises(ValueError, match="makes no token of the prompt 'red': use the tokenizer that"):
        GRPOWithReplayBufferTrainer(model=T.folder(), reward_funcs=T.n_red, args=T.config(),
            train_dataset=Dataset.from_dict(dict(prompt=['o']*16+['red'])), processing_class=tok)

def test_a_stream_that_ends_before_the_first_step_is_an_error():
    t = T.trainer(dataset=T.data(2).to_iterable_dataset(), per_device_train_batch_size=16)
    with pytest.raises(ValueError,
            match='ended before its first step: .* the 4 prompts of one generation batch'):
        t.train()

@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    "Runs with a checkpoint after each of two steps: `whole` between batches, `mid` within one."
    d = tmp_path_factory.mktemp('saved')
    for name,kw in (('whole', {}), ('mid', dict(steps_per_generation=2, max_steps=3))):
        T.trainer(**(dict(max_steps=2, save_strategy='steps', save_steps=1,
            output_dir=str(d/name))|kw)).train()
    return d

@pytest.mark.parametrize('name,kw,said',
    [('whole', dict(num_generations=2), 'groups of 4, this run makes groups of 2'),
        ('mid', dict(steps_per_generation=4), 'steps_per_generation=2, this run has 4')],
        ids=['group','batch'])
def test_a_resume_with_another_layout_says_which_setting_differs(saved, name, kw, said):
    t = T.trainer(max_steps=4, output_dir=str(saved/name), **kw)
    with pytest.raises(ValueError, match=said): t.train(resume_from_checkpoint=True)

@pytest.mark.parametrize('none', [{}, dict(reward_funcs=None), dict(reward_funcs=[])], ids=str)
def test_a_trainer_without_any_reward_is_told_so_by_trl(none):
    with pytest.raises(ValueError, match='reward'):
        GRPOWithReplayBufferTrainer(model=T.folder(), args=T.config(), train_dataset=T.data(),
            processing_class=T.tokenizer(), **none)
