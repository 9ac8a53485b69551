"What goes wrong in practice, and what is said about it; and what we rely on in TRL."
import contextlib, functools, math, re
import pytest, torch
from datasets import Dataset
from trl import GRPOTrainer
import trl_tiny as T
from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferTrainer
from grpo_nb.on_trl import trl_api
from grpo_nb.on_trl.base import RunOnTRL
from grpo_nb.on_trl.checks import check_images
from trl_tiny import Scripted

torch.set_num_threads(1)

def assert_fails(reward, error, match, **kw):
    t = T.trainer(reward, **kw)
    with pytest.raises(error, match=match) as e: t.train()
    return e.value

# -- rewards --------------------------------------------------------------------------------------
def test_a_reward_that_raises_is_named_with_the_columns_it_had():
    def accuracy(completions, **kw): return kw['answer']
    e = assert_fails(accuracy, KeyError, 'answer', dataset=T.data(solution=['x']*17))
    assert "reward function 'accuracy' at step 0" in e.__notes__[0] and "['solution']" in e.__notes__[0]

def test_an_async_reward_that_raises_is_named():
    async def judge(completions, **kw): raise ConnectionError('no answer')
    e = assert_fails(judge, ConnectionError, 'no answer')
    assert any("'judge'" in o for o in e.__notes__)

@pytest.mark.parametrize('out,said,kind', [(.5, '0.5', 'sync'), (None, 'None', 'async'),
    (['a','b','c','d'], "'a' .*for completion 0", 'object')])
def test_what_is_not_a_list_of_numbers_is_named(out, said, kind):
    if kind=='sync':
        def f(**kw): return out
    elif kind=='async':
        async def f(**kw): return out
    else:
        class F:
            __name__ = 'f'
            def __call__(self, **kw): return out
        f = F()
    assert_fails(f, ValueError, f"reward function 'f' returned .*{said}.*return a list of 4 numbers")

def test_rewards_that_overflow_stop_the_run():
    assert_fails(Scripted([[0., 1., math.inf, 0.]], 4), ValueError, "'scripted' returned .* for completion 2")

def test_a_reward_that_changes_torch_changes_no_run():
    "Seeded by it, both batches would be sampled with the same numbers; without gradients nothing is learned"
    def run(change):
        def even(completions, completion_ids, **kw):
            change()
            seen.append(completion_ids)
            return [float(len(o)%2==0) for o in completions]
        seen = []
        t = T.trainer(even, max_steps=3, learning_rate=1e-2)
        t.train()
        return seen,T.weights(t)
    def careless():
        torch.manual_seed(0)
    with pytest.warns(UserWarning, match="function 'even' has seeded torch's"): got,weights = run(careless)
    want,others = run(lambda: None)
    assert got==want and len({str(o) for o in got})==3 and T.same(weights, others)

def test_a_run_whose_completions_nobody_judges_ends_after_eight_batches():
    s = Scripted([[None]*4], 4)
    assert_fails(s, ValueError,
        r"no reward function has judged .* first 8 generation batches \(\['scripted'\]\)", max_steps=20)
    assert s.i==8

def test_an_empty_prompt_is_refused_with_its_row():
    with pytest.raises(ValueError, match='row 2 has the prompt'):
        T.trainer(dataset=Dataset.from_dict(dict(prompt=['one','two','','red'])))

def test_in_a_stream_an_empty_prompt_is_refused_when_it_comes():
    t = T.trainer(dataset=Dataset.from_dict(dict(prompt=['one','','two'])).to_iterable_dataset(),
        shuffle_dataset=False)
    with pytest.raises(ValueError, match='of the batch'): t.train()

class Seen(Exception): "The model was asked for."

@pytest.mark.parametrize('kind', ['table','stream','hub name'])
def test_images_for_a_model_that_reads_text_are_refused_before_anything_is_loaded(kind, monkeypatch):
    import trl.trainer.grpo_trainer as M
    def load(*a, **k): raise Seen
    monkeypatch.setattr(M, 'create_model_from_path', load)
    def make(**columns):
        ds = Dataset.from_dict(dict(prompt=T.PROMPTS[:4])|columns)
        ds = ds.to_iterable_dataset() if kind=='stream' else ds
        own = dict(model=T.folder(), processing_class=None) if kind=='hub name' else dict(model=T.model(),
            processing_class=T.tokenizer())
        return GRPOWithReplayBufferTrainer(reward_funcs=T.n_red, args=T.config(), train_dataset=ds, **own)
    for name,pixels in (('image', ['a']*4), ('images', [['a','b']]*4)):
        with pytest.raises(ValueError, match=f"has .'{name}'., and the model reads text only"):
            make(**{name:pixels})
    with pytest.raises(Seen) if kind=='hub name' else contextlib.nullcontext(): make()
    if kind=='table': make(image=[None]*4)   # none at all is what TRL takes too

def test_a_model_that_sees_is_given_its_images(monkeypatch):
    from types import SimpleNamespace
    see = lambda **kw: check_images({'prompt','image'}, kw)
    sighted = SimpleNamespace(config=SimpleNamespace(vision_config=1))
    see(model=sighted, train_dataset=None)
    with pytest.raises(ValueError, match='text only'):
        see(model=sighted, train_dataset=None, processing_class=T.tokenizer())

def test_a_prompt_that_leaves_too_little_room_is_said(caplog):
    T.trainer(dataset=Dataset.from_dict(dict(prompt=['one','red '*125])))
    assert 'exceed the 128 tokens' in caplog.text

# -- the model, by its own forward pass -----------------------------------------------------------
def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(0)
    m = GPT2LMHeadModel(GPT2Config(vocab_size=len(T.tokenizer()), n_embd=16, n_layer=2, n_head=2,
        n_positions=64, bos_token_id=None, eos_token_id=1, pad_token_id=0))
    m.generation_config.eos_token_id,m.generation_config.pad_token_id = 1,0
    return m

def half_flat(prompts, **kw): return [float(len(p)%3>0)*(i%2) for i,p in enumerate(prompts)]

def replays(model, **kw):
    t = T.trainer(half_flat, model_=model, per_device_train_batch_size=8, max_steps=6, learning_rate=1e-12,
        **kw)
    t.train()
    return [o['replay/ratio_mean'] for o in t.state.log_history if o.get('replay/replaced')]

def test_a_model_that_counts_its_padding_is_given_positions(caplog):
    "With weights that do not move every ratio is 1, wherever a stored group comes back"
    ratios = replays(gpt2(), disable_dropout=True)
    assert ratios and max(abs(r-1) for r in ratios)<1e-5
    assert 'absolute positions' in caplog.text and 'dropout' not in caplog.text

def test_a_model_with_dropout_is_said_to_have_noise_in_its_ratios(caplog):
    assert max(abs(r-1) for r in replays(gpt2()))>1e-3 and 'set `disable_dropout=True`' in caplog.text

def test_a_model_that_reads_its_padding_is_refused_for_replay_only():
    m = T.model()
    whole = m.model.forward
    def forward(*a, attention_mask=None, position_ids=None, **kw): return whole(*a, **kw)
    m.model.forward = forward
    with pytest.raises(ValueError, match='Qwen2ForCausalLM gives an answer other log-probs where padding'):
        replays(m)
    assert replays(m, replay_buffer_size=0)==[]

@pytest.mark.parametrize('off', [0, .1])
def test_logits_that_the_trainer_does_not_know_are_said(off, caplog, monkeypatch):
    was = GRPOTrainer._get_per_token_logps_and_entropies
    def other(self, *a, **kw):
        logps,*more = was(self, *a, **kw)
        return logps*(1+off),*more
    monkeypatch.setattr(GRPOTrainer, '_get_per_token_logps_and_entropies', other)
    replays(T.model())
    assert ("nats a token from those of Qwen2ForCausalLM's own logits" in caplog.text)==bool(off)

@pytest.mark.parametrize('wrap,inside', [(lambda m: torch.compile(m, backend='eager'), '_orig_mod'),
    (torch.nn.DataParallel, 'module')])
def test_a_model_in_a_wrapper_is_refused_since_its_checkpoints_would_not_load(wrap, inside):
    with pytest.raises(ValueError, match=f'give the one inside it, `model.{inside}`'):
        GRPOWithReplayBufferTrainer(wrap(T.model()), T.n_red, T.config(), T.data(),
            processing_class=T.tokenizer())

@pytest.mark.weekly
def test_trl_compiles_a_model_whose_checkpoints_load():
    from pathlib import Path
    from transformers import Qwen2ForCausalLM
    t = T.trainer(max_steps=1, save_strategy='steps', save_steps=1, torch_compile=True,
        torch_compile_backend='eager')
    t.train()
    back = Qwen2ForCausalLM.from_pretrained(Path(t.args.output_dir)/'checkpoint-1')
    assert T.same(dict(back.named_parameters()), dict(t.accelerator.unwrap_model(t.model).named_parameters()))

# -- weights --------------------------------------------------------------------------------------
def test_weights_that_break_on_the_way_end_the_run():
    from transformers import TrainerCallback
    class Break(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kw):
            with torch.no_grad(): model.model.norm.weight.fill_(math.nan)
    t = T.trainer(callbacks=[Break()])
    with pytest.raises(RuntimeError, match='nan'): t.train()
    assert t.state.global_step==1

def test_a_loss_that_is_not_finite_stops_the_run(monkeypatch):
    old = GRPOTrainer._compute_loss
    def nan_loss(self, model, inputs): return old(self, model, inputs)*math.nan
    monkeypatch.setattr(GRPOTrainer, '_compute_loss', nan_loss)
    assert_fails(T.n_red, ValueError, 'the loss is nan at step 0')

# -- what we rely on ------------------------------------------------------------------------------
def test_every_private_method_that_we_override_is_in_the_table_of_the_seam():
    classes = (GRPOWithReplayBufferTrainer, RunOnTRL)
    ours = {k for c in classes for k in vars(c) if k.startswith('_') and not k.startswith('__')
        and callable(getattr(GRPOTrainer, k, None))}
    assert len(ours)>10 and ours<={k for _,_,names in trl_api._PRIVATE_NAMES for k in names}

KEYS = {'prompt_ids','prompt_mask','completion_ids','completion_mask','advantages','num_items_in_batch'}
@pytest.mark.parametrize('opts,more', [({}, set()), (dict(beta=.1), {'ref_per_token_logps'}),
    (dict(num_iterations=2), {'old_per_token_logps'})])
def test_trl_still_returns_the_keys_we_edit(opts, more):
    t = T.trainer(replay_buffer_size=0, record_groups_every=0, **opts)
    got = T.spy(t); t.train()
    b = got[0]
    assert set(b)==KEYS|more, f'gone: {(KEYS|more)-set(b)}, new: {set(b)-KEYS-more}'
    assert next(iter(b))=='prompt_ids' and b['advantages'].shape==(4,) and b['num_items_in_batch'].ndim==0
    B,C = b['completion_ids'].shape
    for k in more|{'completion_mask'}: assert b[k].shape==(B, C)
    for k in more: assert (b[k][~b['completion_mask'].bool()]==0).all(), f'{k} is not 0 in the padding'

def test_trl_reads_no_key_of_the_batch_that_we_do_not_know():
    "The keys the loss asks for, by a dict that notes them."
    asked = set()
    class Note(dict):
        def __getitem__(self, k): asked.add(k); return super().__getitem__(k)
        def get(self, k, d=None): asked.add(k); return super().get(k, d)
        def __contains__(self, k): asked.add(k); return super().__contains__(k)
    class Old(GRPOTrainer):
        def _compute_loss(self, model, inputs): return super()._compute_loss(model, Note(inputs))
    from trl import GRPOConfig
    for kw in (dict(beta=.1), dict(loss_type='vespo'), dict(off_policy_mask_threshold=.5)):
        T.trainer(cls=Old, args=T.config(GRPOConfig, **kw)).train()
    from grpo_nb.on_trl.rows import PROMPT_COMPLETION_COLUMNS, IMAGE_COLUMNS, PER_TOKEN_COLUMNS
    known = KEYS|set(PER_TOKEN_COLUMNS)|set(PROMPT_COMPLETION_COLUMNS)|IMAGE_COLUMNS
    assert not asked - known, (
        f'the loss reads {sorted(asked - known)}: a stored group must carry them'
    )

@pytest.mark.parametrize('package,home,name', [(p, h, k)
    for p,h,names in trl_api._PRIVATE_NAMES for k in names])
def test_a_trl_that_renames_what_we_build_on_is_refused_by_name(package, home, name, monkeypatch):
    "Today's code would otherwise run on as plain GRPO, or fail later with another message."
    for o in getattr(home, '__mro__', [home]):
        if name in vars(o): monkeypatch.delattr(o, name)
    says = rf'^{package} \d.* moved `\w+\.{name}`: use {package} [\d.]+ to [\d.]+$'
    with pytest.raises(ImportError, match=says):
        T.trainer()

def test_a_trl_that_renames_a_parameter_that_we_rely_on_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(GRPOTrainer, '_compute_loss', lambda self, model, batch: None)
    says = 'took the parameter `inputs` from `GRPOTrainer._compute_loss`: use trl'
    with pytest.raises(ImportError, match=says):
        T.trainer()

def test_a_trl_that_renames_an_attribute_is_refused_by_name(monkeypatch):
    made = GRPOTrainer.__init__
    @functools.wraps(made)
    def init(self, *args, **kw):
        made(self, *args, **kw)
        self.extra_logs = self.__dict__.pop('_pending_extra_logs')
    monkeypatch.setattr(GRPOTrainer, '__init__', init)
    with pytest.raises(ImportError, match='moved `GRPOTrainer._pending_extra_logs`: use trl'): T.trainer()

def passed_over(name):
    "TRL still has the method `name`, but no longer calls it: what it calls is not ours."
    def of_trl(f, self, *args, **kw):
        setattr(self, name, functools.partial(getattr(GRPOTrainer, name), self))
        try: return f(self, *args, **kw)
        finally: delattr(self, name)
    return of_trl

def lost_number(f, self, batch):
    "TRL hands on the keys of the batch that it knows."
    return {k:v for k,v in f(self, batch).items() if k!='replay_row'}

@pytest.mark.parametrize('within,how', [('_prepare_inputs', passed_over('_generate_and_score_completions')),
    ('compute_loss', passed_over('_compute_loss')),
    ('_compute_loss', passed_over('_get_per_token_logps_and_entropies')), ('_prepare_inputs', lost_number)])
def test_a_trl_that_passes_our_hooks_over_is_named_before_its_first_step(within, how, monkeypatch):
    was = getattr(GRPOTrainer, within)
    @functools.wraps(was)
    def f(self, *args, **kw): return how(was, self, *args, **kw)
    monkeypatch.setattr(GRPOTrainer, within, f)
    t = T.trainer(per_device_train_batch_size=8)
    says = r'^trl \d.* trained on 8 rows of the first batch, of which 0 came'
    with pytest.raises(RuntimeError, match=says):
        t.train()
    assert t.state.global_step==0

def _completion_width(batch): return batch['completion_ids'].shape[1]
def _whole_width(batch): return batch['prompt_ids'].shape[1]+batch['completion_ids'].shape[1]

@pytest.mark.parametrize('name,wide', [
    ('routing', _whole_width), ('entropies', _completion_width), ('advantages', _completion_width)])
def test_a_column_that_replay_cannot_move_is_refused_by_name_at_the_first_batch(name, wide, monkeypatch):
    was = GRPOTrainer._generate_and_score_completions
    def more(self, inputs):
        b = was(self, inputs)
        return b|{name:torch.ones(len(b['advantages']), wide(b))}
    monkeypatch.setattr(GRPOTrainer, '_generate_and_score_completions', more)
    t = T.trainer(max_steps=1)
    with pytest.raises(ValueError, match=rf"^trl \d.* column '{name}' has .*: use trl"): t.train()
    off = T.trainer(max_steps=1, replay_buffer_size=0) if name!='advantages' else None
    if off: assert off.train().global_step==1

def test_the_declared_range_of_trl_is_the_one_tested():
    "At least what is declared; newer than tested is said, never refused"
    from configparser import ConfigParser
    from pathlib import Path
    import trl
    from grpo_nb.parts.versions import OLDEST, NEWEST_TESTED, version_warnings
    c = ConfigParser()
    c.read(Path(__file__).parent.parent/'settings.ini')
    low, = re.search(r'trl>=([\d.]+)', c['DEFAULT']['requirements']).groups()
    for k,v in OLDEST.items(): assert f' {k}>={v}' in c['DEFAULT']['requirements']
    def v(s): return [int(o) for o in s.split('.')[:2]]
    assert v(low)<=v(trl.__version__) and v(low)<=v(NEWEST_TESTED['trl'])
    assert any('trl' in o.split() for o in version_warnings())==(v(trl.__version__)>v(NEWEST_TESTED['trl']))
