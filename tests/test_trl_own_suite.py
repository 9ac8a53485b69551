"""What TRL's own tests ask of the replay trainer and of `GRPOTrainer`, asked of ours:
on batches that a trainer trains on, where the reference's tests hand squares to its inner methods."""

import csv, os, subprocess
import pytest, torch
from datasets import Dataset, DatasetDict
from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferTrainer, ReplayBuffer
from grpo_nb.on_trl.rows import TrlRows
from grpo_nb.parts.groups import pack_groups
import trl_tiny as T
from another import elsewhere
from trl_tiny import Scripted

torch.set_num_threads(1)
G = 2
LIVE,ALSO,DEAD = [0.,1.],[1.,5.],[1.,1.]

# -- the buffer -------------------------------------------------------------------------------------
def stored(scores, size=5):
    b = ReplayBuffer(max_size=size)
    b.add(scores, [dict(id=i) for i in range(1, len(scores)+1)])
    return b

@pytest.mark.parametrize('scores,lowest', [([.5,.8,.3,.9,.7], .3), ([.5,.8,.3,.9,.7,.6,.4], .5)])
def test_the_five_best_are_kept(scores, lowest):
    b = stored(scores)
    assert len(b)==5 and sorted(e.score for e in b)==sorted(scores)[-5:] and min(e.score for e in b)==lowest

def test_three_different_ones_are_drawn():
    b = stored([.5,.8,.3,.9,.7])
    got = b.sample(3)
    assert len(got)==3 and len({o['id'] for o in got})==3 and all(o in [e.data for e in b] for o in got)

# -- what becomes of a batch ------------------------------------------------------------------------
SHORT,OTHER = [[5,6,1],[7,8,1]],[[9,10,1],[11,12,1]]   # completions of a group, 1 ends them
LONG = [[9,10,11,12,1],[13,14,15,16,1]]
FIRST = [([20,21], SHORT),([22,23], OTHER)]   # (prompt, completions) of each group

def two_batches(second, rewards, first=FIRST, **kw):
    """Train on the two living groups `first`, then on `second` with `rewards`;
    the trainer, both batches and the buffer's size after each."""
    plan = iter([first,second])
    def rollout(prompts, trainer):
        batch = next(plan)
        return dict(prompt_ids=[p for p,cs in batch for _ in cs],
            completion_ids=[c for _,cs in batch for c in cs],
            logprobs=[[-1.]*len(c) for _,cs in batch for c in cs])
    t = T.trainer(Scripted([LIVE,ALSO,*rewards], G), num_generations=G, per_device_train_batch_size=2*G,
        max_steps=2, max_completion_length=8, rollout_func=rollout, replay_buffer_size=5, **kw)
    got,sizes,old = T.spy(t),[],t.training_step
    def step(*a, **k):
        out = old(*a, **k)
        sizes.append(len(t.replay_buffer))
        return out
    t.training_step = step
    t.train()
    return t,got,sizes

def groups(b, n=2):
    "(prompt, completions) of each group without padding."
    ids = lambda k,i: b[f'{k}_ids'][i][b[f'{k}_mask'][i].bool()].tolist()
    return [(ids('prompt', g*G), [ids('completion', g*G+i) for i in range(G)]) for g in range(n)]

NEW = [([13,14], [[15,16,1],[17,18,1]]),([13,15], [[16,15,1],[18,17,1]])]

@pytest.fixture(autouse=True)
def quiet(monkeypatch): monkeypatch.setenv('TRL_EXPERIMENTAL_SILENCE', '1')

def test_a_shorter_group_takes_the_width_of_the_batch_and_is_padded_outside():
    t,got,sizes = two_batches([([13], LONG),([13,14,15], LONG)], [DEAD,LIVE])
    b = got[1]
    assert b['prompt_ids'].shape[1]==3 and b['completion_ids'].shape[1]==5 and sizes==[2,3]
    assert groups(b)[0] in FIRST and b['prompt_mask'][:G].tolist()==[[0,1,
        1]]*G and b['completion_mask'][:G].tolist()==[[1,1,1,0,0]]*G
    assert ([13,14,15], LONG) in [(e.data['prompt_ids'].tolist(),
        [c.tolist() for c in e.data['completion_ids'].split(e.data['lengths'].tolist())])
        for e in t.replay_buffer]

def test_a_longer_group_widens_the_batch():
    _,got,_ = two_batches(NEW, [DEAD,LIVE], first=[([20,21,22,23], LONG),([22,23,20,21], LONG)])
    b = got[1]
    assert b['prompt_ids'].shape[1]==4 and b['completion_ids'].shape[1]==5
    assert groups(b)[1]==NEW[1] and b['prompt_mask'][G:].tolist()==[[0,0,1,1]]*G and (b['completion_ids'][G:,
        3:]==T.tokenizer().pad_token_id).all()

# -- the trainer ------------------------------------------------------------------------------------
@pytest.mark.parametrize('kind', ['none','dataset','dataset_dict','dict'])
@pytest.mark.parametrize('scale', ['batch','group'])
def test_evaluation_sets_are_taken_in_every_form(kind, scale):
    ds = T.data(4)
    ev = dict(none=None, dataset=ds, dataset_dict=DatasetDict(a=ds, b=ds), dict=dict(a=ds, b=ds))[kind]
    t = T.trainer(eval_dataset=ev, scale_rewards=scale)
    if kind=='none': assert t.eval_dataset is None
    elif kind=='dataset': assert t.eval_dataset is ev
    else: assert set(t.eval_dataset)=={'a','b'}

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

def test_rows_without_a_prompt_are_described_where_environments_write_the_prompts():
    from grpo_nb.run.record import dataset_info
    tok = T.tokenizer()
    of = lambda d: {k:dataset_info(tok, d)[k] for k in ('n_prompts','prompt_format')}
    assert of(Dataset.from_dict(dict(environment=['counter']*3)))==dict(n_prompts=3, prompt_format=None)
    assert of(T.data(3))==dict(n_prompts=3, prompt_format='text') and of(T.data(3,
        chat=True))==dict(n_prompts=3, prompt_format='conversational')
    assert of(None)==dict(n_prompts=None, prompt_format=None)

def test_a_slice_of_rows_of_the_batch_comes_without_padding():
    left,right = torch.tensor([[0,1],[1,1]]),torch.tensor([[1,1,0],[1,0,0]])
    b = dict(prompt_ids=torch.tensor([[0,5],[6,7]]), prompt_mask=left, advantages=torch.tensor([1.,-1.]),
        completion_ids=torch.tensor([[8,9,0],[4,0,0]]), completion_mask=right)
    both,last = pack_groups(TrlRows.from_trl(b), [slice(0, 2), slice(1, 2)])
    assert both['prompt_ids'].tolist()==[5,6,7] and both['completion_ids'].tolist()==[8,9,4]
    assert last['completion_ids'].tolist()==[4]

# -- TRL's file itself ----------------------------------------------------------------------------
@pytest.fixture
def second_in_a_fork(monkeypatch):
    "TRL's own run by its command; the one with ours in a fork of this process, which has the imports"
    command = subprocess.run
    def run(words, env, **kw):
        if env['TRL_SUITE']=='stock': return command(words, env=env, **kw)
        def pytest_there():
            os.environ.update(env)
            pytest.main(words[words.index('pytest')+1:])
        elsewhere(pytest_there).join()
    monkeypatch.setattr(subprocess, 'run', run)

@pytest.mark.weekly
def test_the_harness_puts_our_class_in_the_place_of_theirs_and_says_what_differs(tmp_path, capsys,
        second_in_a_fork):
    from trl_suite import main
    f = tmp_path/'test_theirs.py'
    f.write_text('from trl import GRPOConfig, GRPOTrainer\n\n'
        'def test_same(): assert issubclass(GRPOConfig, object) and GRPOTrainer.__name__\n\n'
        'def test_other(): assert GRPOTrainer.__name__=="GRPOTrainer"\n')
    stock,ours = main(f, out=tmp_path/'out.csv', of='v0')
    fates = lambda o: [what for what,_ in o.values()]
    assert fates(stock)==['passed','passed'] and fates(ours)==['passed','failed']
    rows = list(csv.DictReader(open(tmp_path/'out.csv', encoding='utf-8', newline='')))
    assert [(o['stock'],o['ours'],o['tests_of']) for o in rows]==[('passed','passed','v0'),
        ('passed','failed','v0')] and not rows[0]['said'] and 'AssertionError' in rows[1]['said']
    said = capsys.readouterr().out
    assert ('2 tests. GRPOTrainer: 2 passed' in said
        and 'test_other: passed with theirs, failed with ours' in said)
