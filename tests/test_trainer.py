"The from-scratch trainer: values of a step, resume to the bit, stops, faults"
import copy, fcntl, functools, math, os, random, signal, sys, warnings
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch
import numpy as np, pytest, torch
from grpo_nb.variants import batch_logps as bl
from grpo_nb import trainer as tr
from grpo_nb.parts.registry import LOSSES, PRIORITIES, STRATEGIES, register, resolve
from grpo_nb.logps import token_logps
from grpo_nb.run.signals import Stopped, check_stop, forget_stop, note_stop
from grpo_nb.run.checkpoints import checkpoint_folders
from grpo_nb.run.resume import load_checkpoint, save_checkpoint
from grpo_nb.run.reading import read_run
from grpo_nb.replay import Replay, decay_with_age, limit_age, limit_uses, score_priority
from grpo_nb.run.checks import make_strategy
from grpo_nb.variants.strategies import AR3PO, DynamicSampling, GFPO, GRESO, NewestReplay
from grpo_nb.parts.groups import REPLACED
from grpo_nb.variants.strategy import Keep, ProcessedBatch
from grpo_nb.variants.token_terms import TokenTermsCallback, add_token_terms
from grpo_nb.see.readers import diagnose, open_run
from grpo_nb.see.view import CELLS, PackedRun, _cell_of
from grpo_nb.tasks import accuracy_reward, format_reward
from grpo_nb.tiny_qwen import sample_texts, make_tokenizer, tiny_model
from small_run import DATA, TOK, cfg, parity, text
from grpo_nb.trainer import (evaluate, init_state, next_prompt_indices, rollout,
    train, train_batch)
from weekly import most_weekly

torch.set_num_threads(1)
def state(seed=0, strategy=None, reward=parity, **kw):
    return init_state(tiny_model(seed), TOK, DATA, reward, cfg(**kw, strategy=strategy))
def flat(model): return torch.cat([p.detach().flatten() for p in model.parameters()])
def grad(model): return torch.cat([p.grad.flatten() for p in model.parameters()])
def update(s, batch, in_loss, uncorrected, num_items):
    "One update on all of `batch`."
    processed = ProcessedBatch(batch, in_loss, [], {}, uncorrected)
    return tr.update_minibatch(s, processed, torch.arange(len(batch)), num_items)

@functools.cache
def undisturbed(strategy=None):
    "Weights and tokens of a run of twelve steps that nothing stops."
    s = train(tiny_model(0), TOK, DATA, parity, cfg(max_steps=12), strategy=strategy)
    return flat(s.model),s.num_tokens

# ---- answers with advantage 0

SKIPS = [dict(), dict(scale_lr_by_alive='sqrt'), dict(strategy='mask'),
    dict(replay_buffer_size=8, strategy=None), dict(advantages='constant'),
    dict(shared_prefix=False, advantages='rft'),
    dict(loss_type='vespo', num_iterations=2), dict(importance_sampling_level='sequence', num_iterations=2),
    dict(mask_truncated_completions=True, off_policy_mask_threshold=.01, num_iterations=2),
    dict(correction='weight=decoupled', num_iterations=2, loss_type='dr_grpo')]

@pytest.mark.parametrize('kw', SKIPS, ids=str)
def test_answers_with_advantage_0_may_be_left_out_of_the_pass_and_nothing_else_changes(kw, monkeypatch):
    passed,kept = [],bl.compute_logps
    def count(s, model, batch, entropy=False):
        if torch.is_grad_enabled(): passed.append(int(batch.completion_mask.any(-1).sum()))
        return kept(s, model, batch, entropy)
    monkeypatch.setattr(bl, 'compute_logps', count)
    runs,asked = [],[]
    for skip in (False, True):
        passed.clear()
        model = tiny_model(0).double()   # so that float noise is far below any change
        runs.append(train(model, TOK, DATA, parity, cfg(skip_zero_advantage=skip, weight_decay=.1,
            max_steps=4, **dict(strategy='keep')|kw), print_verdict=False))
        asked.append(sum(passed))
    whole,part = runs
    if kw.get('advantages')=='constant': assert asked[1]==asked[0]   # no advantage is 0
    elif kw.get('strategy')!='mask' and 'mask_truncated_completions' not in kw: assert asked[1]<asked[0]
    moved = (flat(whole.model)-flat(tiny_model(0))).norm()
    assert (flat(part.model)-flat(whole.model)).norm()<1e-11*moved
    same = [k for k in whole.history[0] if not k.endswith(('time','entropy'))
        and k.split('/')[-1] not in ('ratio_mean','ratio_max','ess_tokens','ess_answers')]
    assert {'loss','grad_norm','clip_ratio/region_mean','num_tokens','reward'}<=set(same)
    for a,b in zip(whole.history, part.history, strict=True):
        torch.testing.assert_close([b[k] for k in same], [a[k] for k in same], atol=1e-5, rtol=1e-4)
        assert math.isfinite(b['entropy']) and 0<=b['frac_skipped']<=1

# ---- settings and input

@pytest.mark.parametrize('bad', [math.nan, math.inf])
@pytest.mark.parametrize('terms', [0, 1])
def test_a_loss_that_is_no_number_stops_the_run_and_names_step_and_rows(bad, terms):
    s = state(beta=.1)
    if terms: TokenTermsCallback().on_train_begin(s)
    batch,t = rollout(s, list(range(8)))[0],torch.ones(8, dtype=torch.bool)
    batch.ref_logps = batch.old_logps.clone()
    before = flat(s.model).clone()
    asked = bl.token_logps
    def broken(*args, **kw):
        logps,entropy = asked(*args, **kw)
        return logps.index_fill(0, torch.tensor([3, 5]), bad),entropy
    says = r'the loss is .* at step 0; groups with such log-probs: \[3, 5\]. Lower learning_rate'
    with patch.object(bl, 'token_logps', broken), pytest.raises(RuntimeError, match=says):
        update(s, batch, t, ~t, 1.)
    assert torch.equal(flat(s.model), before) and s.step==0

# ---- the order of prompts, what a reward is given

def test_each_epoch_shows_each_prompt_once_in_an_order_of_its_own():
    s = state()
    a,b = next_prompt_indices(s, 48),next_prompt_indices(s, 48)
    assert sorted(a)==sorted(b)==list(range(48)) and a!=b
    s2 = state(); s2.prompts_seen = 48
    assert next_prompt_indices(s2, 48)==b                          # found by counting, as a resumed run does

def test_a_method_that_passes_over_every_prompt_is_reported():
    class No(Keep):
        name = 'no'
        def select_prompts(self, keys, step): return [False]*len(keys)
    with pytest.raises(RuntimeError, match="'no' passed over"): train_batch(state(strategy=No()))

# ---- the values of a step

def test_an_answer_ends_at_every_end_token_that_model_or_tokenizer_declares():
    s = state()
    end,turn = TOK.eos_token_id,TOK('1')['input_ids'][0]   # a token that this model says now and then
    s.model.generation_config.eos_token_id = [turn]
    def checked(texts): assert [o for o in texts if '1' in o[:-1]]==[] and any('1' in o for o in texts)
    batch,texts,_ = rollout(s, list(range(32)))
    ids,mask,n = batch.completion_ids,batch.completion_mask,batch.completion_mask.sum(-1)
    assert [o for o in (end, turn) if not ((ids==o) & mask).any()]==[]   # both were said
    last = ids.gather(-1, (n-1)[...,None])[...,0]
    assert torch.equal(tr.has_eos(s, batch), (last==end) | (last==turn))
    assert (((ids==end) | (ids==turn)) & mask).sum(-1).max()==1   # nothing goes on behind one
    checked(texts)
    checked(evaluate(s.model, TOK, DATA, parity, num_samples=4, max_completion_length=8)['texts'])
    checked([o for row in sample_texts(s.model, TOK, list(DATA['prompt'])) for o in row])

def test_buffer_size_0_and_keep_are_the_same_run_to_the_bit():
    a, b = (train(tiny_model(0), TOK, DATA, parity, cfg(**kw), strategy=m)
            for kw, m in ((dict(replay_buffer_size=0), None), ({}, Keep())))
    assert torch.equal(flat(a.model), flat(b.model))

def watch(monkeypatch, s):
    "What the log-probs of policy and reference are asked for, as (is it the reference?, groups, tokens)."
    asked = []

    def noted(f):
        return lambda m, ro, *a, **k: (asked.append((m is s.ref_model, len(ro),
                                                     int(ro.completion_mask.sum()))), f(m, ro, *a, **k))[1]

    monkeypatch.setattr(bl, 'token_logps', noted(bl.token_logps))
    monkeypatch.setattr(tr, 'check_forward_pass', lambda *a: None)   # of the run's first batch, once
    return asked

def test_the_reference_is_asked_once_for_each_group_and_its_answer_is_stored(monkeypatch):
    s = state(beta=.1, max_steps=99, num_iterations=2, strategy=Replay(buffer_size=8, unreplaced='mask'))
    asked,replaced = watch(monkeypatch, s),0
    for _ in range(4):
        asked.clear()
        info = train_batch(s)
        t = info.processed
        replaced += int(t.batch.replayed.sum())
        assert sum(n for ref, n, _ in asked if ref) == int(
            (~info.dead).sum()
        )  # neither dead groups nor replayed ones
        with torch.no_grad(): want = token_logps(s.ref_model, t.batch, 1.)
        assert t.batch.replayed.any() <= t.in_loss.any() and torch.allclose(t.batch.ref_logps[t.in_loss],
            want[t.in_loss], atol=2e-5)
    assert replaced>3 and s.history[-1]['kl']>0

def test_a_model_in_float64_is_pulled_back_as_one_in_float32():
    "The reference's log-probs are float64 then; they are stored beside the sampler's, which are float32."
    losses = []
    for dtype in (torch.float32, torch.float64):
        s = init_state(tiny_model(0).to(dtype), TOK, DATA, parity, cfg(beta=.1))
        for _ in range(2): train_batch(s)
        assert s.history[-1]['kl']>0
        losses.append([row['loss'] for row in s.history])
    assert losses[1]==pytest.approx(losses[0], abs=1e-4)

def test_a_run_ends_with_a_verdict_and_says_nothing_where_the_bar_is_hidden(capsys):
    flat_reward = lambda completions, **kw: [0.]*len(completions)
    flat_reward.__name__ = 'flat_reward'
    def output(reward, **kw):
        train(tiny_model(0), TOK, DATA, reward, cfg(disable_tqdm=False, **kw))
        return capsys.readouterr().out
    assert 'Undecided: too few batches' in output(parity, max_steps=2)
    out = output(flat_reward, max_steps=24)
    assert (
        'It learned nothing: all 96 groups were dead' in out and 'step 20: ' in out
    )  # live, after ten batches
    assert out.count('step 2')==1   # and once
    assert 'Zero-variance groups: 96 dead, 0 replaced, 96 unreplaced (the buffer had none for them)' in out
    train(tiny_model(0), TOK, DATA, parity, cfg(max_steps=2))
    assert capsys.readouterr().out==''

# ---- what the history says, by hand

def test_gradients_of_an_earlier_step_take_no_room(monkeypatch):
    "Neither while a batch is sampled, nor in a forward pass, nor when a checkpoint is written"
    batches,compute_logps = [],bl.compute_logps
    def watched(s, *args, **how):
        batches.append(sum(p.grad is not None for p in s.model.parameters()))
        return compute_logps(s, *args, **how)
    monkeypatch.setattr(bl, 'compute_logps', watched)
    s = state()
    for _ in range(2):
        train_batch(s)
        assert [p for p in s.model.parameters() if p.grad is not None]==[]
    assert len(batches)>=4 and set(batches)=={0}

def test_a_run_stops_once_its_tokens_are_sampled():
    whole = train(tiny_model(0), TOK, DATA, parity, cfg(max_steps=8))
    some = whole.history[3]['num_tokens']
    s = train(tiny_model(0), TOK, DATA, parity, cfg(max_steps=40, max_sampled_tokens=some))
    assert len(s.history)==4 and s.num_tokens==some
    more = cfg(max_steps=40, max_sampled_tokens=some+1)
    assert len(train(tiny_model(0), TOK, DATA, parity, more).history)==5

@pytest.mark.parametrize('steps,passes', [(1, 1), (3, 1), (7, 2)])
def test_a_run_takes_exactly_max_steps_and_goes_on_from_there(tmp_path, steps, passes):
    "Batches of 2 minibatches: the last one ends within its passes; its rate is the last of the schedule."
    args = cfg(max_steps=steps, num_iterations=passes, lr_scheduler_type='linear',
        output_dir=str(tmp_path))
    s = train(tiny_model(0), TOK, DATA, parity, args, callbacks=[TokenTermsCallback()], print_verdict=False)
    counts = [int(o['step'].item()) for o in s.optimizer.state.values()]
    assert s.step==steps and set(counts)=={steps}
    assert [o['step'] for o in s.history]==list(range(0, steps, 2*passes))
    assert s.scheduler.get_last_lr()==[0.]
    assert [o.name for o in checkpoint_folders(tmp_path)]==[f'checkpoint-{steps}']
    more = train(tiny_model(0), TOK, DATA, parity, replace(args, max_steps=steps+5), print_verdict=False,
        resume_from_checkpoint=True)
    assert more.step==steps+5 and read_run(tmp_path).notes==[]

# ---- fresh and stored

@pytest.mark.parametrize('k', [1, 3])
def test_stored_groups_save_sampling_and_no_prompt_is_lost(k):
    s = state(replay_stored_per_fresh=k, max_steps=99)
    seen = [train_batch(s) for _ in range(6)]
    taken = 0
    for o in seen:
        n,row = len(o.sampled),o.row
        assert len(o.processed.batch)==8 and n==8-row['replay/stored'] and len(o.prompts)==n
        keys = o.sampled.prompt_key.tolist()
        want = [tr.permutation(48, s.args.seed*100_003+(taken+i)//48)[(taken+i)%48] for i in range(n)]
        assert keys==want   # the cursor moves by what was sampled
        taken += n
        assert row['frac_reward_zero_std']==o.dead.float().mean().item()
        assert o.processed.batch.replayed[n:].all() and (o.processed.batch.step[n:]<row['step']).all()
        assert row['replay/live_after']==((8-row['replay/unreplaced'])/8)
    assert (seen[0].row['replay/stored'] == 0 and seen[-1].row['replay/stored'] == 8 * k // (1 + k)
            and s.prompts_seen == taken)
    plain = state(max_steps=99)
    for _ in range(6): train_batch(plain)
    assert s.num_tokens<.8*plain.num_tokens

# ---- checkpoints, stops

CASES = [dict(replay_stored_per_fresh=1), dict(num_iterations=2),
         dict(beta=0.1),
         dict(lr_scheduler_type='linear', warmup_steps=2), dict(replay_buffer_size=0)]
@pytest.mark.parametrize('at,n,kw', most_weekly(zip([4, 8, 4, 4, 4], [10, 16, 8, 8, 8], CASES), 3), ids=str)
def test_a_resumed_run_is_the_same_to_the_bit(at, n, kw, tmp_path):
    run = lambda d, n, resume=None: train(tiny_model(0), TOK, DATA, parity,
                                          cfg(output_dir=str(tmp_path / d), max_steps=n, **kw),
                                          resume_from_checkpoint=resume)
    if 'lr_scheduler_type' in kw:
        run_cut = lambda: train(tiny_model(0), TOK, DATA, parity,
                                cfg(output_dir=str(tmp_path / 'b'), max_steps=n, save_steps=at,
                                    save_total_limit=9, **kw))
    else: run_cut = lambda: run('b', at)
    whole = run('a', n)
    run_cut()
    parts = run('b', n, str(tmp_path/'b'/f'checkpoint-{at}'))
    assert torch.equal(flat(whole.model), flat(parts.model))
    strip = lambda h: [{k:v for k,v in o.items() if not k.endswith('_time')} for o in h]
    assert strip(whole.history)==strip(parts.history)
    if 'replay_buffer_size' not in kw:
        assert any(o['replay/replaced'] or o.get('replay/stored') for o in whole.history[-1:])
        assert [(e.id, e.score, e.step, e.uses) for e in whole.strategy.buffer] == [
            (e.id, e.score, e.step, e.uses) for e in parts.strategy.buffer
        ]
    assert read_run(tmp_path / 'b').history['step'].tolist() == [
        o['step'] for o in whole.history
    ]  # no row twice, none lost

def test_a_signal_finishes_the_batch_saves_and_the_run_goes_on(tmp_path):
    for sig in (signal.SIGINT, signal.SIGTERM):
        d = tmp_path/sig.name
        stop = lambda s, info: os.kill(os.getpid(), sig) if s.step==4 else None
        before = signal.getsignal(sig)
        s = train(tiny_model(0), TOK, DATA, parity, cfg(output_dir=str(d), max_steps=12), callbacks=[stop])
        assert (s.step == 4 and [p.name for p in checkpoint_folders(d)] == ['checkpoint-4']
                and signal.getsignal(sig) == before)
        assert s.stopped==sig.name
        with pytest.raises(Stopped, match=f'{sig.name} stopped a run of this process at step 4'):
            train(tiny_model(0), TOK, DATA, parity, cfg(output_dir=str(d/'next')))
        with pytest.raises(Stopped, match='nothing more is measured'): evaluate(s.model, TOK, DATA, parity)
        s = train(tiny_model(0), TOK, DATA, parity, cfg(output_dir=str(d), max_steps=12),
                  resume_from_checkpoint=True)
        assert torch.equal(undisturbed()[0], flat(s.model))

def test_a_signal_in_the_last_batch_leaves_a_whole_run_that_may_be_measured():
    stop = lambda s, info: os.kill(os.getpid(), signal.SIGTERM) if s.step==4 else None
    s = train(tiny_model(0), TOK, DATA, parity, cfg(max_steps=4), callbacks=[stop])
    assert s.stopped is None and evaluate(s.model, TOK, DATA.select(range(4)), parity)['n_problems']==4
    with pytest.raises(Stopped): train(tiny_model(0), TOK, DATA, parity, cfg(max_steps=4))
    forget_stop()
    assert train(tiny_model(0), TOK, DATA, parity, cfg(max_steps=4)).step==4

def test_after_a_stop_the_next_cell_of_a_notebook_may_begin_another_run(monkeypatch):
    shell = SimpleNamespace(execution_count=3)
    monkeypatch.setitem(sys.modules, 'IPython', SimpleNamespace(get_ipython=lambda: shell))
    note_stop('SIGINT', 4, 'a', whole=False)
    with pytest.raises(Stopped): check_stop('b')
    shell.execution_count = 4
    check_stop('b')
    shell.execution_count = 3
    check_stop('b')   # for good

def test_a_finished_run_that_is_resumed_trains_nothing_and_says_so(tmp_path):
    s = train(tiny_model(0), TOK, DATA, parity, cfg(output_dir=str(tmp_path), max_steps=4))
    rows = (tmp_path/'history.jsonl').read_text(encoding='utf-8')
    with pytest.warns(UserWarning, match='checkpoint-4 has done its 4 steps: nothing is trained'):
        again = train(tiny_model(1), TOK, DATA, parity, cfg(output_dir=str(tmp_path), max_steps=4),
            resume_from_checkpoint=True)
    assert again.step==4 and torch.equal(flat(s.model), flat(again.model))
    assert (tmp_path/'history.jsonl').read_text(encoding='utf-8')==rows

@pytest.fixture
def little_room():
    "No file may grow beyond 20 kB."
    resource = pytest.importorskip('resource')
    was = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda n=20_000: resource.setrlimit(resource.RLIMIT_FSIZE, (n, was[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, was)

def test_a_run_on_a_full_disk_names_it_and_goes_on_from_its_last_checkpoint(tmp_path, little_room):
    args = cfg(output_dir=str(tmp_path), max_steps=12, save_steps=4)
    def fill(s, info): little_room(1000) if s.step==6 else None
    try:
        with pytest.raises(OSError, match='could not be written to .*are free'):
            train(tiny_model(0), TOK, DATA, parity, args, callbacks=[fill])
    finally: little_room(-1)
    assert [p.name for p in checkpoint_folders(tmp_path)]==['checkpoint-4'] and not list(tmp_path.glob('.*'))
    s = train(tiny_model(0), TOK, DATA, parity, args, resume_from_checkpoint=True)
    assert torch.equal(flat(s.model), undisturbed()[0])
    assert read_run(tmp_path).history['step'].tolist()==[0, 2, 4, 6, 8, 10]

def failing(at):
    "`parity`, but the `at`-th call raises."
    calls = []
    def parity_but(prompts, completions, **kw):
        calls.append(1)
        if len(calls)==at: raise KeyError('my mistake')
        return parity(prompts, completions)
    parity_but.__name__ = 'parity'
    return parity_but

def test_no_checkpoint_is_said_to_be_before_a_batch_that_changed_the_buffer(tmp_path):
    class Breaks(Replay):
        def process_batch(self, batch, dead=None, step=0, **kw):
            out = super().process_batch(batch, dead, step, **kw)
            if step==4: raise KeyError('my mistake')
            return out
    with pytest.raises(KeyError, match='my mistake') as e:
        train(tiny_model(0), TOK, DATA, parity, cfg(output_dir=str(tmp_path), save_steps=99),
            strategy=Breaks(8))
    notes = ' '.join(e.value.__notes__)
    assert 'raised at step 4' in notes and 'holds all' not in notes and not checkpoint_folders(tmp_path)

def test_a_priority_may_be_a_function():
    def uniform(entries, now): return [1.]*len(entries)
    a,b = (train(tiny_model(0), TOK, DATA, parity, cfg(max_steps=6, replay_priority=o))
        for o in (uniform, 'uniform'))
    assert torch.equal(flat(a.model), flat(b.model))

class Adapts(Keep):
    "A strategy of one's own whose option moves during a run; with a file it can't be copied."
    name = 'adapts'
    def __init__(self, rate=1., file=None): self.rate,self.file = rate,file
    def process_batch(self, batch, dead=None, step=0, **more):
        self.rate /= 2
        return super().process_batch(batch, dead, step, **more)
    def state_dict(self): return dict(rate=self.rate)
    def load_state_dict(self, state): self.rate = state['rate']

def test_a_strategy_object_begins_every_run_as_it_was_given(tmp_path):
    def run(strategy, seed=0, data=DATA, **kw):
        a = cfg(strategy=strategy, max_steps=6)
        return train(tiny_model(seed), TOK, data, parity, a, seed=seed, **kw)
    one = Replay(8)
    first,other = run(one),run(one, 1, DATA.select(range(40)))
    assert len(first.strategy.buffer)>0 and len(one.buffer)==0
    for a,b in ((first, run(Replay(8))), (other, run(Replay(8), 1, DATA.select(range(40))))):
        assert torch.equal(flat(a.model), flat(b.model))
    full,begun = first.strategy,[]   # groups stored on purpose stay with the object, and begin each run
    class Begins:
        def on_train_begin(self, s): begun.append([(e.id, e.uses) for e in s.strategy.buffer])
    stored = [(e.id, e.uses) for e in full.buffer]
    for _ in range(2): run(full, callbacks=[Begins()])
    assert begun==[stored]*2 and [(e.id, e.uses) for e in full.buffer]==stored
    with open(tmp_path/'log', 'w', encoding='utf-8') as f:
        with pytest.raises(ValueError, match="'adapts' can't be copied.*__deepcopy__"): run(Adapts(file=f))

class FirstHalf(Keep):
    name = 'first'
    def __init__(self, share=.5): self.share = share

def shortest(rewards, lengths): return -lengths
def longest(rewards, lengths): return lengths
def power(rewards, lengths, n, weigh=shortest): return weigh(rewards, lengths)*lengths**(n-1)

@dataclass
class Power:
    n:int
    def __call__(self, rewards, lengths): return power(rewards, lengths, self.n)

class Counts(Replay):
    name = 'counts'
    def __init__(self, size=8, share=.5, **options):
        super().__init__(size, **options)
        self.share,self.seen = share,0
    def process_batch(self, batch, dead=None, step=0, **more):
        self.seen += 1
        return super().process_batch(batch, dead, step, **more)

OPTIONS = [(lambda k: Replay(8, force_ratio_one=k), 'force_ratio_one'),
    (lambda k: Replay(8, same_prompt_first=k), 'same_prompt_first'),
    (lambda k: NewestReplay(8, unreplaced='mask' if k else 'keep'), 'unreplaced'),
    (lambda k: DynamicSampling(max_rounds=1+k), 'max_rounds'),
    (lambda k: AR3PO(max_prompts=9+k), 'max_prompts'),
    (lambda k: GRESO(easy_share=.1+k/10), 'easy_share'), (lambda k: GRESO(explore=.4+k/4), 'explore'),
    (lambda k: GFPO(num_remains_in_group=2+k), 'num_remains_in_group'),
    (lambda k: GFPO(measure='efficiency' if k else 'length'), 'measure'),
    (lambda k: GFPO(measure=longest if k else shortest), 'measure'),
    (lambda k: GFPO(measure=functools.partial(power, n=1+k)), 'measure'),
    (lambda k: GFPO(measure=Power(1+k)), 'measure'),
    (lambda k: FirstHalf(.5+k/4), 'share'), (lambda k: Counts(share=.5+k/4), 'share'),
    (lambda k: Adapts(1.+k), 'rate')]
LIMITS = [limit_age, limit_uses, decay_with_age]

@pytest.mark.parametrize('made,option', OPTIONS, ids=lambda o: o if isinstance(o, str) else '')
def test_a_run_goes_on_under_the_same_options_of_its_strategy_alone(made, option, tmp_path):
    def run(n, k, **kw):
        a = cfg(strategy=made(k), max_steps=n, output_dir=str(tmp_path))
        return train(tiny_model(0), TOK, DATA, parity, a, **kw)
    run(2, False)
    with pytest.raises(ValueError, match=rf'strategy\.{option}: .* then, .* now'):
        run(4, True, resume_from_checkpoint=True)
    assert run(4, False, resume_from_checkpoint=True).step==4

@pytest.mark.parametrize('limit', LIMITS)
def test_a_run_goes_on_under_the_same_limit_of_its_priority_alone(limit, tmp_path):
    def run(n, k, **kw):
        a = cfg(replay_priority=limit(score_priority, k), max_steps=n, output_dir=str(tmp_path))
        return train(tiny_model(0), TOK, DATA, parity, a, **kw)
    run(2, 1)
    with pytest.raises(ValueError, match=rf'{limit.__name__}\(score_priority, 1\) then.* 9\) now'):
        run(4, 9, resume_from_checkpoint=True)
    assert run(4, 1, resume_from_checkpoint=True).step==4

def test_the_runs_seed_decides_which_prompts_are_skipped():
    a = [make_strategy(cfg(strategy='skip', seed=i)).rng.random() for i in (1, 1, 2)]
    assert a[0]==a[1]!=a[2]

class Alike:
    "A rule as an object, whose text holds its address."
    def __init__(self, f): self.f = f
    def __call__(self, *args): return self.f(*args)

def test_rules_that_are_objects_are_recorded_without_their_address(tmp_path):
    def alike(rewards): return rewards-rewards.mean(1, keepdim=True)
    def equal(entries, now): return [1.]*len(entries)
    def run(n, **kw):
        a = cfg(max_steps=n, output_dir=str(tmp_path), advantages=Alike(alike), replay_priority=Alike(equal))
        return train(tiny_model(0), TOK, DATA, parity, a, **kw)
    run(2)
    assert run(4, resume_from_checkpoint=True).step==4
    texts = [p.read_text(encoding='utf-8') for p in tmp_path.rglob('*.json*')]
    assert 'Alike object' in ''.join(texts) and [o for o in texts if ' at 0x' in o]==[]

@pytest.mark.parametrize('made', [GRESO, Counts])
def test_a_run_goes_on_whatever_its_strategy_object_had_counted_before(made, tmp_path):
    def run(n, strategy, folder, **kw):
        a = cfg(strategy=strategy, max_steps=n, output_dir=str(tmp_path/folder))
        return train(tiny_model(0), TOK, DATA, parity, a, **kw)
    moved = run(4, made(), 'before').strategy
    whole = run(4, copy.deepcopy(moved), 'whole')
    run(2, moved, 'parts')
    parts = run(4, made(), 'parts', resume_from_checkpoint=True)
    assert torch.equal(flat(whole.model), flat(parts.model))

@pytest.mark.parametrize('strategy,at', [(None, 4), ('skip', 4), ('dynamic', 4), ('dynamic', 5)])
def test_a_reward_that_fails_in_the_middle_costs_one_batch(strategy, at, tmp_path):
    args = dict(max_steps=12, save_steps=99)
    with pytest.raises(ValueError, match="my mistake") as e:
        train(tiny_model(0), TOK, DATA, failing(at), cfg(output_dir=str(tmp_path), **args), strategy=strategy,
            resume_hint='--resume')
    step_ = max(int(p.name[11:]) for p in checkpoint_folders(tmp_path))
    notes = ' '.join(e.value.__notes__)
    assert (f'raised at step {step_}' in notes and f'checkpoint-{step_} holds all' in notes
            and '--resume' in notes)
    s = train(tiny_model(0), TOK, DATA, parity, cfg(output_dir=str(tmp_path), **args), strategy=strategy,
        resume_from_checkpoint=True)
    weights,tokens = undisturbed(strategy)
    assert torch.equal(flat(s.model), weights) and s.num_tokens==tokens and s.step==12

@pytest.mark.parametrize('name', ['model.safetensors','grpo_state_0.pt','tokenizer.json'])
def test_one_flipped_bit_is_noticed(name, tmp_path):
    s = state()
    train_batch(s)
    c = save_checkpoint(s, tmp_path)
    b = bytearray((c/name).read_bytes())
    b[len(b)//2] ^= 1
    (c/name).write_bytes(b)
    with pytest.raises(ValueError, match=f'{name} has changed'): load_checkpoint(state(), c)

# ---- the record, evaluation

def test_evaluate_counts_problems_and_leaves_the_model_and_seeds_alone():
    m = tiny_model(0).train(); rng = torch.get_rng_state()
    half = lambda prompts, **kw: [float(i//2%2) for i in range(len(prompts))]
    half.__name__ = 'half'
    e = evaluate(m, TOK, DATA, half, num_samples=2, k=2, max_completion_length=4, batch_size=64)
    assert e['pass@1']==.5 and e['pass@2']==.5 and e['n_problems']==48 and e['ci'][0]<.5<e['ci'][1]
    assert m.training and torch.equal(rng, torch.get_rng_state())

def test_the_demo_is_the_same_to_the_bit_whatever_the_number_of_threads(tmp_path):
    from grpo_nb.demo import demo
    def run(n):
        torch.set_num_threads(n)
        try:
            demo(output_dir=str(tmp_path / str(n)), max_steps=8, n_problems=20, disable_tqdm=True)
            assert torch.get_num_threads() == n
        finally: torch.set_num_threads(1)
        from safetensors.torch import load_file
        return load_file(tmp_path/str(n)/'checkpoint-8'/'model.safetensors')
    a,b = run(1),run(2)
    assert a.keys()==b.keys() and [k for k in a if not torch.equal(a[k], b[k])]==[]

def own_file():
    "The file that CONTRIBUTING.md shows."
    page = (Path(__file__).parents[1]/'CONTRIBUTING.md').read_text(encoding='utf-8')
    return page.split('```python\n# mine.py\n')[1].split('```')[0]

def test_a_file_of_ones_own_reaches_every_socket(tmp_path, tables):
    f = tmp_path/'spec.py'
    f.write_text(own_file(), encoding='utf-8')
    def run(strategy=None, advantages='grpo', **kw):
        s = train(tiny_model(0), TOK, DATA, parity, cfg(max_steps=4, **kw), strategy=strategy,
            advantages=advantages, print_verdict=False)
        return s,flat(s.model)
    w = run('keep')[1]
    for kw in (dict(strategy=f'{f}:Halve'), dict(strategy='keep', loss_type=f'{f}:plain'),
               dict(strategy='keep', advantages=f'{f}:raw')):
        assert not torch.equal(run(**kw)[1], w), kw
    spec = f'{f}:oldest'
    b = run(replay_priority=spec, replay_age_limit=3, replay_max_uses=2)[0].strategy.buffer
    assert (b.priority, b.age_limit, b.max_uses)==(spec, 3, 2) and PRIORITIES[spec].__name__=='oldest'
    for kw,says in ((dict(strategy=f'{f}:Hlave'), 'it has: .*Halve'),
                    (dict(strategy='nowhere.py:Mine'), 'no file'),
            (dict(replay_priority='oldets'), 'one of .*FILE.py:NAME'), (dict(strategy='mine'), 'no strategy'),
            (dict(strategy='keep', replay_max_uses=2), "'keep' does not know of it")):
        with pytest.raises(ValueError, match=says): run(**kw)
    assert resolve('task', f'{f}:doubles')(2, seed=3)[1]==dict(prompt='4 + 4 =', answer='8')
    assert run('newest')[0].strategy.buffer.priority=='recency'   # a strategy keeps its own unless asked

def counted(monkeypatch, *functions):
    "How often each is called from now on, by whichever module of ours."
    calls = dict.fromkeys([f.__name__ for f in functions], 0)
    for f in functions:
        def count(*a, f=f, **k):
            calls[f.__name__] += 1
            return f(*a, **k)
        for m in [m for k,m in sys.modules.items() if k.startswith('grpo_nb')]:
            for name,v in list(vars(m).items()):
                if v is f: monkeypatch.setattr(m, name, count)
    return calls

@pytest.mark.parametrize('kw', [{}, dict(loss_type='cispo', epsilon_high=2.), dict(record_tokens=True),
    dict(importance_sampling_level='sequence', beta=.1)], ids=str)
def test_ratio_and_clip_are_computed_once_per_optimizer_step(kw, monkeypatch, tmp_path):
    "For the loss, its metrics, the history and the record of groups together."
    from grpo_nb.parts.ratios import ppo_clip_mask, importance_ratio
    calls = counted(monkeypatch, importance_ratio, ppo_clip_mask)
    args = cfg(max_steps=16, output_dir=str(tmp_path), **kw)
    s = train(tiny_model(0), TOK, DATA, parity, args)
    assert s.step==16 and any(o.get('replay/replaced') for o in s.history)
    assert calls==dict(importance_ratio=16, ppo_clip_mask=16)

def test_the_options_of_a_loss_reach_it_from_the_settings_of_a_run(tmp_path, tables):
    @register(LOSSES, 'soft')
    def soft(ratio, A, mask, width=1., kind='plain'):
        taken.append((width, kind))
        return width*ratio*A
    def run(**kw):
        taken.clear()
        args = cfg(max_steps=2, strategy='keep', **kw)
        return flat(train(tiny_model(0), TOK, DATA, parity, args).model)
    taken = []
    run(loss_type='soft', loss_kwargs='width=.5,kind=bent')
    assert taken==[(.5, 'bent')]*2
    run(loss_type='soft', loss_kwargs=dict(width=2))
    assert taken==[(2, 'plain')]*2
    for name,option in (('sapo', 'sapo_temperature_pos=9'), ('vespo', 'vespo_lambda_neg=.5')):
        twice = dict(loss_type=name, num_iterations=2)
        assert not torch.equal(run(**twice), run(**twice, loss_kwargs=option))
    for kw,error,says in ((dict(loss_kwargs='wdith=.5'), ValueError, "wdith.* 'soft', which has kind, width"),
            (dict(loss_kwargs='epsilon=.9'), ValueError, 'a setting of all losses'),
            (dict(loss_kwargs='width=2', loss_type='grpo'), ValueError, "'grpo', which has none"),
            (dict(loss_kwargs='width'), ValueError, 'loss_kwargs')):
        with pytest.raises(error, match=says): cfg(**dict(loss_type='soft')|kw)
    with pytest.raises(ValueError, match=r"asks for \['p', 'q'\]"): cfg(loss_type=lambda p, q, A, mask: A)

def test_rewards_of_one_name_have_a_column_each(tmp_path):
    def ends(completions, limit, **kw): return [float(len(text(c))<limit) for c in completions]
    pair = [functools.partial(ends, limit=n) for n in (9, 5)]
    s = train(tiny_model(0), TOK, DATA, pair, cfg(max_steps=2, output_dir=str(tmp_path)))
    r = read_run(tmp_path)
    for o in r.rows:
        for name,n in (('ends',9), ('ends_2',5)):
            assert o['rewards_by_func'][name]==[float(len(c)<n) for c in o['completions']]
        assert o['rewards']==[sum(v) for v in zip(*o['rewards_by_func'].values())]
    assert s.history[0]['rewards/ends/mean']>s.history[0]['rewards/ends_2/mean']
    e = evaluate(s.model, TOK, DATA, pair, max_completion_length=8)
    assert e['rewards']['ends']['mean']>e['rewards']['ends_2']['mean']

def follows(rewards, advantages):
    "Is no answer's advantage below that of one with less reward, and are they equal where the rewards are?"
    alive = max(rewards)>min(rewards)
    return all(a>=b for x,a in zip(rewards, advantages) for y,b in zip(rewards, advantages)
        if x>y or x==y and not alive)

@pytest.mark.parametrize('name,options', [*((k, {}) for k in STRATEGIES),
    ('copies', dict(replay_stored_per_fresh=1)), ('replay', dict(replay_stored_per_fresh=1))])
def test_a_row_of_the_record_holds_no_numbers_of_a_group_that_it_does_not_name(name, options, tmp_path):
    "Whatever the strategy trained on in a group's place"
    train(tiny_model(0), TOK, DATA, parity, cfg(strategy=name, output_dir=str(tmp_path), record_tokens=True,
        **options), callbacks=[TokenTermsCallback()], print_verdict=False)
    run = open_run(tmp_path)
    assert run.notes==[] and len(run.rows)==32
    born = {o['id']:o for o in run.rows if o['id'] is not None}
    for o in run.rows:
        new,replaced = o['replacement'],o['outcome'] in REPLACED
        of = born.get(new['id']) if new else None if replaced else o   # of `same_prompt` no row holds it
        numbers = [o['advantages'], o['ratio_hist'], o['clip_frac'], *((new or o).get(k) for k in
            ('ratios','terms'))]
        if replaced and not new: assert numbers==[None]*5
        if o['outcome']!='stored':
            assert [*map(len, o['tokens'])]==[*map(len, o['logps'])]==o['n_tokens']
            assert follows(o['rewards'], o['advantages_before'])
        if not of or o['outcome']=='stored': continue
        *_,ratios,terms = numbers
        seen = of['tokens'] if o['outcome']!='masked' and terms['tokens'][0] else [[]]*4   # by the loss
        assert terms['tokens']==seen and [*map(len, ratios)]==[*map(len, seen)]
        assert name=='entropy' and o['dead'] or follows(of['rewards'], o['advantages'])
    assert dict(dynamic='resampled', copies='replaced', replay='replaced').get(name, 'trained') in {
        o['outcome'] for o in run.rows}
    diagnose(run)
    for o in run.rows:   # as without the callback: what is added later comes from the row's own texts too
        for x in (o, o['replacement'] or {}): x.pop('terms', None)
    assert not any(o.get('terms') for o in add_token_terms(run).rows if o['outcome'] in REPLACED)
    names = list(CELLS)
    for o in run.rows:
        replaced = names[_cell_of(o)].endswith('_replaced')
        assert replaced==(o['outcome'] in ('resampled','replaced') or bool(o['dead'] and o['replacement']))
    assert PackedRun(run).steps

def test_a_strategy_may_change_its_batch_and_the_record_keeps_what_was_sampled(tmp_path):
    "By another tensor in its place, or in place"
    class Halve(Keep):
        def process_batch(self, batch, dead=None, step=0, **more):
            dead = self.find_dead(batch, dead)
            batch.advantages = batch.advantages/2
            batch.rewards += 1
            result = self.make_result(batch, dead.clone())
            dead[:] = True
            return result
    def rows(strategy, folder):
        batches,to = [],tmp_path/folder
        train(tiny_model(0), TOK, DATA, parity, cfg(strategy=strategy, output_dir=str(to), max_steps=2),
            callbacks=[lambda s, b: batches.append(b)], print_verdict=False)
        return read_run(to).rows,batches
    (plain,_),(halved,batches) = rows('keep', 'plain'),rows(Halve(), 'halved')
    for a,b in zip(plain, halved, strict=True):
        for k in ('rewards','advantages_before','dead','completions'): assert a[k]==b[k], k
        assert b['advantages']==pytest.approx([x/2 for x in a['advantages']])
    assert batches[0].dead.tolist()==[o['dead'] for o in plain]
    assert not torch.equal(batches[0].sampled.advantages, batches[0].trained.advantages)

def test_rewards_that_draw_by_any_library_are_the_same_in_equal_runs():
    def noise(completions, **kw):
        return [random.random()+np.random.rand()+torch.rand(1).item() for _ in completions]
    def rewards(seed):
        s = train(tiny_model(0), TOK, DATA, noise, cfg(max_steps=4, seed=seed), print_verdict=False)
        return [o['reward'] for o in s.history]
    assert rewards(1)==rewards(1)!=rewards(2**40-1)   # larger than any seed of numpy's own

# ---- what rewards are told, and what they log

def test_a_reward_follows_the_step_and_what_it_logs_is_in_history_and_record(tmp_path):
    seen = []
    def logs(completions, trainer_state, log_metric, log_extra, **kw):
        seen.append((trainer_state.global_step, trainer_state.max_steps, len(trainer_state.log_history)))
        size = [len(text(c)) for c in completions]
        log_metric('size', sum(size)/len(size)); log_extra('size', size)
        return [float(o%2) for o in size]
    s = train(tiny_model(0), TOK, DATA, logs, cfg(max_steps=4, output_dir=str(tmp_path), eval_steps=4),
        eval_dataset=DATA.select(range(4)))
    assert seen==[(0, 4, 0), (2, 4, 1), (4, 4, 2)]   # the last is the evaluation
    r = read_run(tmp_path)
    assert [o for o in r.rows if o['extra']['size']!=[len(c) for c in o['completions']]]==[]
    for row in s.history:
        sizes = [x for o in r.rows if o['step']==row['step'] for x in o['extra']['size']]
        assert row['size']==pytest.approx(sum(sizes)/len(sizes))
    assert r.history['size'].tolist()==pytest.approx([o['size'] for o in s.history])
    assert s.history[-1]['eval/size']>0 and 'eval/size' not in s.history[0]

def test_a_metric_with_a_name_of_the_runs_own_is_refused_and_costs_one_batch(tmp_path):
    def judge(completions, trainer_state, log_metric, **kw):
        log_metric('loss' if trainer_state.global_step>2 else 'mine', 9.)
        return [float(len(text(c))%2) for c in completions]
    with pytest.raises(ValueError, match='`judge`.*the metric `loss`.*another name') as e:
        train(tiny_model(0), TOK, DATA, judge, cfg(max_steps=8, output_dir=str(tmp_path)))
    assert 'checkpoint-4 holds all' in ' '.join(e.value.__notes__)

# ---- a chat template that begins the answer

def thinks(closed=False):
    "The tokenizer, whose template opens the thinking."
    tok = make_tokenizer()
    start = '<think>\n\n</think>\n\n' if closed else '<think>\n'
    tok.chat_template = tok.chat_template.replace('assistant\n{% endif', f'assistant\n{start}{{% endif')
    return tok,start

@pytest.mark.parametrize('closed', [False, True])
def test_rewards_get_the_beginning_that_the_template_writes(closed):
    tok,start = thinks(closed)
    seen = []
    def looks(completions, completion_start=None, **kw):
        seen.append(completion_start); return [0.]*len(completions)
    with warnings.catch_warnings():
        warnings.simplefilter('error')   # it asks for the beginning, so nothing is said
        s = init_state(tiny_model(0), tok, DATA, [looks, accuracy_reward, format_reward], cfg())
    rollout(s, [0, 1])
    evaluate(s.model, tok, DATA.select(range(2)), looks, max_completion_length=4)
    assert seen==[[start]*8, [start]*2]
    def plain(completions, **kw): return [0.]*len(completions)
    with pytest.warns(UserWarning, match=r"'plain' does, give it a parameter `completion_start`") as w:
        init_state(tiny_model(0), tok, DATA, plain, cfg())
    assert repr(start) in str(w[0].message)
    seen.clear()
    rollout(state(reward=looks), [0])   # a template that begins nothing
    assert seen==[None]

# ---- callbacks and settings

class Hears:
    "Notes every event of a run"
    def __init__(self): self.heard = []
    def on_train_begin(self, s): self.heard.append('begin')
    def on_batch_begin(self, s): self.heard.append(f'batch {s.step}')
    def on_batch_end(self, s, batch): self.heard.append(f"end {batch.row['step']}")
    def on_log(self, s, row): self.heard.append(f"log {row['step']}")
    def on_exception(self, s, error): self.heard.append(f'{type(error).__name__} in {s.in_rollout}')
    def on_train_end(self, s): self.heard.append('train end')

def test_callbacks_hear_of_a_run_in_order_and_functions_of_the_end_of_a_batch():
    first,second,steps = Hears(),Hears(),[]
    train(tiny_model(0), TOK, DATA, parity, cfg(max_steps=4),
        callbacks=[first, lambda s, batch: steps.append(s.step), second])
    assert first.heard==second.heard==['begin', 'batch 0', 'end 0', 'log 0', 'batch 2', 'end 2', 'log 2',
        'train end']
    assert steps==[2, 4]

def test_a_callback_hears_of_the_error_that_ends_a_run_and_no_end():
    c = Hears()
    with pytest.raises(ValueError): train(tiny_model(0), TOK, DATA, failing(2), cfg(), callbacks=[c])
    assert c.heard[-2:]==['batch 2','ValueError in True']

def test_the_folder_is_free_again_after_an_error_of_a_callback(tmp_path):
    def breaks(s, batch): raise KeyError('mine')
    with pytest.raises(KeyError):
        train(tiny_model(0), TOK, DATA, parity, cfg(output_dir=str(tmp_path)), callbacks=[breaks])
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)   # as another process would
    os.close(fd)

def test_settings_by_name_are_those_of_a_config():
    def raw(rewards, **settings): return rewards-.5
    own = dict(strategy='mask', advantages=raw, loss_type='grpo', max_steps=4)
    a = train(tiny_model(0), TOK, DATA, parity, cfg(**own))
    base = cfg()
    b = train(tiny_model(0), TOK, DATA, parity, base, **own)
    assert torch.equal(flat(a.model), flat(b.model)) and b.args.strategy=='mask' and base.strategy=='replay'
