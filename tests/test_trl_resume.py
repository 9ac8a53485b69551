"""Training 2N steps equals N steps, a checkpoint, and N more: weights, buffer and log, bit for bit.
And what a kill leaves behind."""

import json
import os, signal, shutil
from pathlib import Path
import pytest, torch
from transformers import TrainerCallback
from grpo_nb.grpo_with_replay_buffer import (checkpoint_error,
    last_checkpoint)
from grpo_nb.run.reading import read_run
from grpo_nb.run.signals import Stopped
import trl_tiny as T
from trl_resumed import buffers_equal, logs, make, rewards
from weekly import most_weekly

torch.set_num_threads(1)
G = 4

def assert_resumes_equal(tmp_path, total, at, **kw):
    "`total` steps in one go against a resume from checkpoint `at`."
    whole = make(tmp_path/'a', total, **kw); whole.train()
    part = make(tmp_path/'b', total, **kw)
    shutil.copytree(tmp_path/'a'/f'checkpoint-{at}', tmp_path/'b'/f'checkpoint-{at}')
    torch.manual_seed(999)                                  # whatever happened before must not matter
    part.train(resume_from_checkpoint=True)
    assert part.state.global_step==total
    assert T.same(T.weights(whole), T.weights(part)), 'weights'
    assert buffers_equal(whole.replay_buffer, part.replay_buffer), 'buffer'
    assert logs(whole)==logs(part)
    return whole

MATRIX = {   # each catches what no other does
    'two generations a step': dict(at=3, opts=dict(gradient_accumulation_steps=2, steps_per_generation=1)),
    'in the last of three passes': dict(at=5, opts=dict(num_iterations=3)),
    'odd ratio': dict(at=4, opts=dict(steps_per_generation=2, gradient_accumulation_steps=3), total=7),
    'in the third of four slices': dict(at=6, opts=dict(steps_per_generation=4,
        per_device_train_batch_size=2*G), total=8),
    'third epoch, mid-batch': dict(at=7, opts=dict(dataset=4, steps_per_generation=2,
        per_device_train_batch_size=4), total=9),
    'end of an epoch': dict(at=3, opts=dict(dataset=6), total=8),
    'adapters with beta, mid-batch': dict(at=3, opts=dict(peft=True, beta=.1, num_iterations=2)),
    'moving reference': dict(at=4, opts=dict(beta=.1, sync_ref_model=True, ref_model_sync_steps=3,
        ref_model_mixup_alpha=.5), total=8),
    'adaptive entropy': dict(at=3, opts=dict(use_adaptive_entropy=True, entropy_coef=.01, entropy_target=5.,
        entropy_coef_delta=.01)),
    'age, uses, decay': dict(at=4, opts=dict(replay_age_limit=3, replay_max_uses=2, replay_age_decay=2.,
        replay_buffer_size=3), total=8),
    'no replay': dict(at=3, opts=dict(replay_buffer_size=0, num_iterations=2)),
    'after an epoch whose last step is short': dict(at=2, opts=dict(dataset=3, steps_per_generation=3,
        per_device_train_batch_size=G, gradient_accumulation_steps=2), total=7),
}

EACH_PUSH = ('two generations a step', 'third epoch, mid-batch', 'adapters with beta, mid-batch',
    'adaptive entropy')

@pytest.mark.parametrize('name', most_weekly(MATRIX, EACH_PUSH))
def test_resume_is_bit_equal(tmp_path, name):
    c = MATRIX[name]
    opts = dict(c.get('opts', {}))
    if 'dataset' in opts: opts['dataset'] = T.data(opts['dataset'])
    total = c.get('total', 6)
    t = assert_resumes_equal(tmp_path, total, c['at'], **opts)
    assert t.args.replay_buffer_size==0 or sum(o['replay/replaced'] for o in t.state.log_history
        if 'replay/replaced' in o)>0

# what a step may have done before a reward fails in it: nothing, or sampled and stored a batch, or drawn
# stored groups, or dropped used ones, or trained on a slice of the batch before
FAULTS = {
    'first batch of a step': dict(fail=4),
    'second of two': dict(fail=6, gradient_accumulation_steps=2, steps_per_generation=1),
    'second of two, stored groups': dict(fail=6, gradient_accumulation_steps=2, steps_per_generation=1,
        per_device_train_batch_size=3*G, replay_stored_per_fresh=2),
    'third of three, one buffer for all': dict(fail=6, gradient_accumulation_steps=3, steps_per_generation=1,
        replay_scope='sharded', replay_max_uses=1),
    'after a slice of the batch before': dict(fail=4, gradient_accumulation_steps=2, steps_per_generation=3,
        per_device_train_batch_size=G),
    'second of two, no replay': dict(fail=6, gradient_accumulation_steps=2, steps_per_generation=1,
        replay_buffer_size=0),
    'in the second epoch': dict(fail=7, gradient_accumulation_steps=2, steps_per_generation=1, dataset=11)}

@pytest.mark.parametrize('name', most_weekly(FAULTS, 2))
def test_what_is_saved_when_a_reward_fails_goes_on_to_the_bit_and_loses_no_prompt(tmp_path, name):
    kw = dict(FAULTS[name])
    fail = kw.pop('fail')
    if n := kw.pop('dataset', None): kw['dataset'] = T.data(n)
    def run(folder, fail=None, resume=None):
        t,asked = make(folder, 6, save_strategy='no', **kw),[]
        old = t._calculate_rewards
        def judged(inputs, *rest):
            asked.append((t.state.global_step, [o['prompt'] for o in inputs[::G]]))
            if len(asked)==fail: t.reward_funcs = [broken]
            return old(inputs, *rest)
        t._calculate_rewards = judged
        t.train(resume_from_checkpoint=resume)
        return t,asked
    def broken(**kw): raise KeyError('answer')
    whole,all_asked = run(tmp_path/'a')
    with pytest.raises(KeyError) as e: run(tmp_path/'b', fail)
    step = all_asked[fail-1][0]
    assert step and f'checkpoint-{step} holds the {step} step' in e.value.__notes__[1]
    part,asked = run(tmp_path/'b', resume=True)
    assert asked==[o for o in all_asked if o[0]>=step]
    assert T.same(T.weights(whole), T.weights(part)) and logs(whole)==logs(part)
    assert buffers_equal(whole.buffer, part.buffer)
    tables = [(tmp_path/o/'groups.jsonl').read_text() for o in 'ab']
    assert tables[0]==tables[1]

def test_logging_windows_survive_a_checkpoint_between_them(tmp_path):
    whole = make(tmp_path/'a', 6, logging_steps=2); whole.train()
    part = make(tmp_path/'b', 6, logging_steps=2)
    shutil.copytree(tmp_path/'a'/'checkpoint-3', tmp_path/'b'/'checkpoint-3')
    part.train(resume_from_checkpoint=True)
    # transformers forgets the loss of the window's first half
    drop = lambda t: [{k:v for k,v in o.items() if k not in ('loss',)} for o in logs(t)]
    a,b = drop(whole),drop(part)
    assert a[-1]==b[-1]
    assert a[1]==b[1]   # the window that the checkpoint lies in

def test_an_iterable_dataset_resumes_within_its_first_epoch(tmp_path):
    assert_resumes_equal(tmp_path, 5, 2, dataset=T.data(17).to_iterable_dataset())

def test_a_checkpoint_of_plain_grpo_resumes_with_an_empty_buffer(tmp_path, caplog):
    from trl import GRPOConfig, GRPOTrainer
    a = T.trainer(rewards, cls=GRPOTrainer, args=T.config(GRPOConfig, output_dir=str(tmp_path), max_steps=2,
        save_strategy='steps', save_steps=2, per_device_train_batch_size=8))
    a.train()
    b = make(tmp_path, 4); b.train(resume_from_checkpoint=True)
    assert b.state.global_step==4 and 'starts empty' in caplog.text

def test_other_replay_options_are_refused_and_named(tmp_path):
    make(tmp_path, 2).train()
    for kw in (dict(replay_buffer_size=7), dict(replay_buffer_size=0), dict(replay_priority='uniform'),
            dict(replay_age_limit=3), dict(replay_age_decay=2.), dict(replay_max_uses=1),
            dict(replay_unreplaced='mask'), dict(replay_same_prompt_first=True),
            dict(dead_tolerance=.5)):
        with pytest.raises(
            ValueError,
            match=f'{next(iter(kw))}=.*, this run has {next(iter(kw.values()))}.*new run from its weights',
        ):
            make(tmp_path, 3, **kw).train(resume_from_checkpoint=True)
    # what doesn't decide the run is free
    t = make(tmp_path, 3, record_groups_every=0, replay_scope='local'); t.train(resume_from_checkpoint=True)
    assert t.state.global_step==3

DATA = T.data()
OTHER = dict(fewer=(DATA.select(range(16)), '17 rows then, 16 now'),
    other=(DATA.map(lambda o: dict(prompt=o['prompt']+' red')), 'the 17 rows have other values'),
    answers=(DATA.add_column('answer', ['1']*17), 'other values, or another order, in `answer`'),
    order=(DATA.select(range(16, -1, -1)), 'another order'), stream=(DATA.to_iterable_dataset(),
        'a stream now'))
@pytest.mark.parametrize('name', OTHER)
def test_a_run_does_not_go_on_with_other_data_unless_it_is_told_to(name, tmp_path):
    data,says = OTHER[name]
    make(tmp_path, 2, num_iterations=2).train()
    with pytest.raises(ValueError, match=f'other data .*{says}.*ignore_data_skip'):
        make(tmp_path, 4, num_iterations=2, dataset=data).train(resume_from_checkpoint=True)
    lines = (tmp_path/'history.jsonl').read_text()
    t = make(tmp_path, 4, num_iterations=2, dataset=data, ignore_data_skip=True)
    t.train(resume_from_checkpoint=True)
    assert t.state.global_step==4 and (tmp_path/'history.jsonl').read_text().startswith(lines)

def second(completions, **kw): return [.25*i for i in range(len(completions))]

@pytest.mark.parametrize('scope', ['local', 'sharded'])
def test_stored_groups_are_not_trained_on_another_objective(tmp_path, scope):
    own = dict(replay_scope=scope, per_device_train_batch_size=3*G, replay_stored_per_fresh=2)
    make(tmp_path, 2, **own).train()
    for funcs,kw,says in ((rewards, dict(reward_weights=[-1.]), r'reward_weights=.1.0., this run has .-1.0.'),
            (T.n_red, {}, "rewards=.'rewards'., this run has .'n_red'."),
            ([rewards, second], {}, "this run has .'rewards', 'second'."),
            (rewards, dict(scale_rewards='none'), 'scale_rewards=group, this run has none')):
        t = T.trainer(funcs, args=make(tmp_path, 4, **own|kw).args)
        got = T.spy(t)
        with pytest.raises(ValueError, match=says+'.*start a new run from its weights'):
            t.train(resume_from_checkpoint=True)
        assert not got
    t = make(tmp_path, 4, **own, reward_weights=[1.])   # the default, said
    t.train(resume_from_checkpoint=True)
    assert t.state.global_step==4

# -- damage ---------------------------------------------------------------------------------------
def test_the_newest_whole_checkpoint_is_found_whatever_is_missing_or_changed(tmp_path):
    make(tmp_path, 3, save_steps=1).train()
    names = sorted(p.name for p in (tmp_path/'checkpoint-3').iterdir())
    assert {'grpo_state_0.pt','manifest.json','trainer_state.json','model.safetensors',
        'optimizer.pt','rng_state.pth'}<=set(names)
    keep = tmp_path/'keep'; shutil.copytree(tmp_path/'checkpoint-3', keep)
    for name in names:
        if name=='manifest.json': continue
        f = tmp_path/'checkpoint-3'/name
        for harm in ('gone','short','bit'):
            raw = f.read_bytes()
            if harm=='gone': f.unlink()
            elif harm=='short': f.write_bytes(raw[:len(raw)//2])
            elif name!='trainer_state.json': b = bytearray(raw); b[len(b)//2] ^= 1; f.write_bytes(b)
            else: continue
            assert last_checkpoint(tmp_path).endswith('checkpoint-2'), (name, harm)
            why = checkpoint_error(tmp_path/'checkpoint-3')
            assert name in why and why
            f.write_bytes(raw)
    assert last_checkpoint(tmp_path).endswith('checkpoint-3')
    (tmp_path/'checkpoint-3'/'optimizer.pt').unlink()
    with pytest.raises(ValueError, match='checkpoint-3 is not whole: optimizer.pt is missing'):
        make(tmp_path, 4).train(resume_from_checkpoint=str(tmp_path/'checkpoint-3'))

def test_a_checkpoint_of_weights_alone_is_not_gone_on_from(tmp_path):
    make(tmp_path, 4, save_steps=2, save_only_model=True).train()
    says = 'checkpoint-4: it has no optimizer, no schedule, no random state .`save_only_model=True`'
    with pytest.raises(ValueError, match=says): make(tmp_path, 6).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match='checkpoint-4 is not whole: it has no optimizer'):
        make(tmp_path, 6).train(resume_from_checkpoint=str(tmp_path/'checkpoint-4'))
    with pytest.raises(ValueError, match=says): last_checkpoint(tmp_path)
    for resume in (None, 'auto'):   # nor are these weights written over
        with pytest.raises(ValueError, match='checkpoint-4 of an earlier run: no run can go on from it'):
            make(tmp_path, 6).train(resume_from_checkpoint=resume)

def test_a_checkpoint_of_plain_trl_that_lost_a_part_is_not_gone_on_from(tmp_path):
    from trl import GRPOConfig, GRPOTrainer
    T.trainer(rewards, cls=GRPOTrainer, args=T.config(GRPOConfig, output_dir=str(tmp_path), max_steps=1,
        save_strategy='steps', save_steps=1, per_device_train_batch_size=8)).train()
    assert checkpoint_error(tmp_path/'checkpoint-1')==''
    parts = {'optimizer.pt':'optimizer', 'scheduler.pt':'schedule', 'rng_state.pth':'random state',
        'model.safetensors':'weights'}
    for name,part in parts.items():
        f = (tmp_path/'checkpoint-1'/name).rename(tmp_path/'aside')
        why = checkpoint_error(tmp_path/'checkpoint-1')
        assert why.startswith(f'it has no {part}') and ', no' not in why
        assert ('save_only_model' in why)==(part!='weights')
        f.rename(tmp_path/'checkpoint-1'/name)

POINTS = ['save_model', '_save_optimizer_and_scheduler', '_save_scaler', '_save_rng_state', 'state',
    'manifest', 'marker']

def killed_at(point, out):
    "In a child: train, and die inside the second save."
    import grpo_nb.on_trl.resume as M
    from transformers import TrainerState
    die = lambda *a, **kw: os.kill(os.getpid(), signal.SIGKILL)
    t = make(out, 6, save_steps=2)
    def arm():
        if point=='state': M.save_state = lambda path, s: (Path(path).write_bytes(b'half'), die())
        elif point=='manifest': M.write_manifest = die
        elif point=='marker':
            def torn(self, path):
                Path(path).write_text('{"epoch": 1.', encoding='utf-8')
                die()
            TrainerState.save_to_json = torn
        else:
            old = getattr(t, point)
            def half(*a, **kw): old(*a, **kw); die()
            setattr(t, point, half)
    class Arm(TrainerCallback):
        def on_step_begin(self, args, state, control, **kw):
            if state.global_step==3: arm()
    t.add_callback(Arm()); t.train()

@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    "Six steps in one go."
    t = make(tmp_path_factory.mktemp('whole'), 6, save_steps=2)
    t.train()
    return t

@pytest.mark.parametrize('point', most_weekly(POINTS, 2))
@pytest.mark.processes
def test_after_kill_9_in_a_save_the_run_goes_on_from_the_last_whole_checkpoint(tmp_path, point, whole):
    pid = os.fork()
    if pid==0:
        try: killed_at(point, tmp_path/'run')
        finally: os._exit(7)
    _,status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status)==signal.SIGKILL
    assert (tmp_path / 'run' / 'checkpoint-4').exists() and last_checkpoint(tmp_path / 'run').endswith(
        'checkpoint-2'
    )
    t = make(tmp_path/'run', 6, save_steps=2); t.train(resume_from_checkpoint=True)
    assert T.same(T.weights(whole), T.weights(t)) and buffers_equal(whole.replay_buffer, t.replay_buffer)
    assert last_checkpoint(tmp_path/'run').endswith('checkpoint-6')

def test_saving_over_a_whole_checkpoint_never_leaves_a_mixture(tmp_path):
    make(tmp_path, 6, save_steps=2).train()
    seen = []
    t = make(tmp_path, 6, save_steps=2)
    old = t._save_optimizer_and_scheduler
    t._save_optimizer_and_scheduler = lambda d: (seen.append(checkpoint_error(d)), old(d))
    t.train(resume_from_checkpoint=str(tmp_path/'checkpoint-2'))
    assert len(seen)==2 and all('trainer_state.json' in o for o in seen)

@pytest.mark.parametrize('sig', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops_and_the_rest_is_as_if_nothing_had_happened(tmp_path, sig):
    whole = make(tmp_path/'a', 6, save_strategy='no', num_iterations=2); whole.train()
    t = make(tmp_path/'b', 6, save_strategy='no', num_iterations=2)
    class Send(TrainerCallback):
        def on_step_begin(self, args, state, control, **kw):
            if state.global_step==2: signal.raise_signal(sig)
    t.add_callback(Send()); before = signal.getsignal(sig)
    out = t.train()
    assert t.stopped_by==out.metrics['stopped_by']==sig.name and t.state.global_step==3
    assert signal.getsignal(sig) is before
    with pytest.raises(Stopped, match=f'{sig.name} stopped a run .* at step 3, so nothing more is trained'):
        make(tmp_path/'c', 6).train()   # the next run of a loop
    with pytest.raises(Stopped, match='nothing more is measured'): t.evaluate(T.data(2))
    u = make(tmp_path/'b', 6, save_strategy='no', num_iterations=2); u.train(resume_from_checkpoint=True)
    assert u.state.global_step==6 and T.same(T.weights(whole),
        T.weights(u)) and buffers_equal(whole.replay_buffer, u.replay_buffer)

def test_a_second_signal_ends_at_once(tmp_path):
    """It does what the signal did before `train`: here a handler of the test's own,
    whatever other tests left behind."""
    t = make(tmp_path, 6, save_strategy='no')
    class Send(TrainerCallback):
        def on_step_begin(self, args, state, control, **kw):
            signal.raise_signal(signal.SIGINT); signal.raise_signal(signal.SIGINT)
    t.add_callback(Send())
    def usual(sig, frame): raise KeyboardInterrupt('the usual answer')
    before = signal.signal(signal.SIGINT, usual)
    try:
        with pytest.raises(KeyboardInterrupt, match='the usual answer'): t.train()
        assert signal.getsignal(signal.SIGINT) is usual
    finally: signal.signal(signal.SIGINT, before)

@pytest.mark.parametrize('resume,rows,length', [
    (True, 4, dict(max_steps=-1, num_train_epochs=1)), ('auto', 17, {})])
def test_a_finished_run_that_is_resumed_trains_nothing_and_says_so(tmp_path, resume, rows, length, caplog):
    "transformers asks whether it is done after a step, not before."
    kw = dict(eval_strategy='steps', eval_steps=1, eval_on_start=True, num_generations_eval=1) | length
    def go(**more):
        own = dict(output_dir=str(tmp_path), max_steps=2, save_strategy='steps', save_steps=1,
            per_device_train_batch_size=8, learning_rate=5e-3)
        t = T.trainer(args=T.config(**own|kw|more), dataset=T.data(rows), eval_dataset=T.data(2))
        got = T.spy(t, also_eval=True)
        begun = (tmp_path/'history.jsonl').exists()
        return t,t.train(resume_from_checkpoint=resume if begun else None),got
    first,_,_ = go()
    history = (tmp_path/'history.jsonl').read_text()
    t,out,got = go()
    assert not got and out.global_step==t.state.global_step==first.state.global_step==2
    assert T.same(T.weights(first), T.weights(t))
    assert 'has done its 2 steps: nothing is trained' in caplog.text
    assert (tmp_path/'history.jsonl').read_text()==history
    t,_,got = go(max_steps=3)   # and with more to do it goes on
    assert t.state.global_step==3 and got

def test_a_shared_buffer_that_holds_nothing_yet_is_saved(tmp_path):
    "Every group is dead, so nothing was stored when the checkpoint was written"
    def nothing(completions, **kw): return [0.]*len(completions)
    opts = dict(replay_scope='sharded', save_strategy='steps', save_steps=1, max_steps=2,
        output_dir=str(tmp_path))
    t = T.trainer(nothing, args=T.config(replay_buffer_size=4, **opts))
    t.train()
    again = T.trainer(nothing, args=T.config(replay_buffer_size=4, **opts|dict(max_steps=3)))
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step==3 and len(again.buffer)==0

def test_a_second_run_of_a_trainer_does_not_train_on_what_the_first_left_of_a_batch():
    t = T.trainer(max_steps=1, steps_per_generation=2)
    got = T.spy(t)
    t.train()   # ends within a batch
    t.train()
    n = got[-1]['completion_mask'].sum(1).float().mean().item()
    assert len(got)==2 and t.state.log_history[0]['completions/mean_length']==pytest.approx(n)
    assert [o['group'] for o in read_run(t.args.output_dir).by_step[1]]==[0, 1]   # numbered anew

def test_numbers_that_a_run_did_not_get_to_log_are_not_in_the_next_ones():
    class Ends(TrainerCallback):
        left = 3
        def on_step_end(self, args, state, control, **kw):
            self.left -= 1
            if self.left==0: raise InterruptedError
    t = T.trainer(max_steps=4, logging_steps=2, callbacks=[Ends()])
    got = T.spy(t)
    with pytest.raises(InterruptedError): t.train()   # the third batch is in no row
    t.train()
    n = torch.cat([b['completion_mask'].sum(1) for b in got[3:5]]).float().mean().item()
    assert t.state.log_history[0]['completions/mean_length']==pytest.approx(n)

def of_mine(entries, now): return [e.score for e in entries]

def test_a_priority_that_is_a_function_is_saved_by_its_name(tmp_path):
    args = dict(output_dir=str(tmp_path), save_strategy='steps', save_steps=1, replay_priority=of_mine)
    T.trainer(max_steps=2, **args).train()
    assert json.loads((tmp_path/'settings.json').read_text())['args']['replay_priority']=='of_mine'
    T.trainer(max_steps=3, **args).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match='replay_priority=of_mine, this run has uniform'):
        T.trainer(max_steps=4, **args|dict(replay_priority='uniform')).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match='a lambda or lies within a function'):
        T.config(replay_priority=lambda entries, now: [1.]*len(entries))
