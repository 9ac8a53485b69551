"What a practitioner met: each of these went wrong once, and must not again."
import errno, logging, multiprocessing as mp, shutil, signal
from pathlib import Path
import numpy as np
import pytest, torch
from trl import GRPOConfig, GRPOTrainer
from grpo_nb.on_trl.replayed import recompute_ref_logps
from grpo_nb.on_trl.rows import TrlRows
from grpo_nb.run.checkpoints import checkpoint_folders, load_state
import trl_tiny as T
from trl_tiny import LIVE, DEAD, Scripted
from trl_resumed import make, rewards

torch.set_num_threads(1)
G = 4

def forever():
    while True: pass

def test_a_reward_can_terminate_its_own_process():
    "A child inherits the handlers; one that only notes the signal would run for ever."
    codes = []
    def runs_code(completions, **kw):
        p = mp.get_context('fork').Process(target=forever, daemon=True)
        p.start(); p.terminate(); p.join(60)
        codes.append(p.exitcode)
        if p.is_alive(): p.kill()
        return T.n_red(completions)
    T.trainer(runs_code, max_steps=1).train()
    assert codes==[-signal.SIGTERM]

@pytest.mark.parametrize('scope', ['local','sharded'])
def test_beta_turned_on_at_a_resume_is_refused(scope, tmp_path):
    make(tmp_path, 2, replay_scope=scope).train()
    with pytest.raises(ValueError,
            match='made with beta=0, this run has 0.04: .*no log-probs of the reference'):
        make(tmp_path, 4, replay_scope=scope, beta=.04).train(resume_from_checkpoint=True)
    t = make(tmp_path, 3, replay_scope=scope)
    t.train(resume_from_checkpoint=True)
    assert t.state.global_step==3

def test_a_second_train_is_a_run_of_its_own(tmp_path):
    "The buffer's clock counts the steps of one run: what a first one stored would never age in the second."
    t = make(tmp_path, 6, save_strategy='no', replay_age_limit=3)
    t.train()
    first,ages = {e.id for e in t.replay_buffer},[]
    show = t._flag_rows
    t._flag_rows = lambda rows, drawn: ages.extend(o.age for o in drawn.drawn) or show(rows, drawn)
    t.train()
    assert first and len(t.replay_buffer)>0 and all(0<=o<=3 for o in ages)
    assert {e.step for e in t.replay_buffer}<=set(range(2, 6)) and t.state.global_step==6

@pytest.mark.parametrize('peft', [dict(target_modules=['q_proj','embed_tokens']),
    dict(target_modules=['q_proj'], modules_to_save=['embed_tokens'])], ids=['lora','saved'])
def test_adapters_on_the_embedding_train(peft):
    from peft import LoraConfig
    t = T.trainer(max_steps=1, peft_config=LoraConfig(r=2, **peft))
    t.train()
    assert t.state.global_step==1

def test_a_prompt_that_yarn_reaches_is_not_too_long():
    from transformers import Qwen2ForCausalLM
    m = T.model()
    long = T.data().map(lambda o: dict(prompt='red '*140+o['prompt']))
    with pytest.raises(ValueError, match='the model reads 128'): T.trainer(model_=T.model(), dataset=long)
    m.config.rope_parameters = dict(rope_type='yarn', factor=4., original_max_position_embeddings=128,
        rope_theta=1e6)
    t = T.trainer(model_=Qwen2ForCausalLM(m.config), dataset=long, max_steps=1)
    t.train()
    assert t.state.global_step==1

def test_a_folder_with_another_runs_checkpoints_resumes_its_own(tmp_path, caplog):
    make(tmp_path/'first', 6, save_steps=2).train()
    second = make(tmp_path/'second', 2, save_steps=2, learning_rate=1e-4)
    second.train()
    shutil.copytree(tmp_path/'first'/'checkpoint-6', tmp_path/'second'/'checkpoint-6')
    whole = make(tmp_path/'whole', 3, learning_rate=1e-4, save_strategy='no'); whole.train()
    t = make(tmp_path/'second', 3, save_steps=2, learning_rate=1e-4)
    t.train(resume_from_checkpoint=True)
    assert t.run_id==second.run_id and t.state.global_step==3 and T.same(T.weights(whole), T.weights(t))
    assert 'checkpoint-6: it is of another run' in caplog.text

def files(folder): return {str(o):o.read_bytes() for o in folder.rglob('*') if o.is_file()}

@pytest.mark.parametrize('of', ['ours','plain TRL'])
def test_a_new_run_replaces_no_checkpoint_of_another(of, tmp_path):
    if of=='ours': make(tmp_path, 2, save_steps=2).train()
    else:
        T.trainer(rewards, cls=GRPOTrainer, args=T.config(GRPOConfig, output_dir=str(tmp_path), max_steps=2,
            save_strategy='steps', save_steps=2, per_device_train_batch_size=8)).train()
    before = files(tmp_path)
    with pytest.raises(ValueError, match='holds checkpoint-2 of an earlier run: resume with .*'
            'or choose another `output_dir`'):
        make(tmp_path, 2, save_steps=2, seed=1).train()
    assert files(tmp_path)==before

def test_auto_resumes_if_there_is_something_and_begins_if_there_is_not(tmp_path, caplog):
    whole = make(tmp_path/'whole', 4, save_strategy='no'); whole.train()
    a = make(tmp_path/'run', 2); a.train(resume_from_checkpoint='auto')
    b = make(tmp_path/'run', 4); b.train(resume_from_checkpoint='auto')
    assert (T.same(T.weights(whole), T.weights(b)) and a.run_id == b.run_id
            and (tmp_path / 'run' / 'history.jsonl').read_text().count('"loss"') == 4)
    for p in (tmp_path/'run').glob('checkpoint-*'): (p/'trainer_state.json').write_text('{"ep')
    c = make(tmp_path/'run', 1); c.train(resume_from_checkpoint='auto')
    assert c.state.global_step==1 and c.run_id!=a.run_id and 'This run starts from scratch' in caplog.text

def test_numpy_numbers_are_numbers(tmp_path):
    t = make(tmp_path, 1, replay_buffer_size=np.int64(8), replay_age_limit=np.int32(5),
        num_generations=np.int64(4))
    t.train()
    assert type(t.args.replay_buffer_size) is int and t.replay_buffer.max_size==8

def test_a_reference_that_moved_sees_the_images_of_the_rows(monkeypatch):
    t = T.trainer(Scripted([LIVE], G), per_device_train_batch_size=2*G, max_steps=1, beta=.1,
        sync_ref_model=True)
    got,B = [],2*G
    def forward(model, ids, mask, keep, batch_size=None, **kw):
        got.append((len(ids), kw))
        return torch.zeros(len(ids), keep),None,None
    t._get_per_token_logps_and_entropies = forward
    tokens = {k:torch.ones(B, 3, dtype=torch.int64) for k in ('prompt_ids','prompt_mask','completion_ids',
        'completion_mask')}
    images = dict(pixel_values=[torch.full((4, 2), float(i)) for i in range(B)],
        image_grid_thw=[torch.tensor([[1,2,2]])]*B, num_images=[1]*B)
    batch = tokens|images|dict(ref_per_token_logps=-torch.ones(B, 3),
        mm_token_type_ids=torch.arange(B)[:,None].expand(B, 6))
    batch = recompute_ref_logps(t, TrlRows(batch), [4,5,6,7]).data
    (n,kw), = got
    assert n==4 and kw['pixel_values'][::4,0].tolist()==[4.,5.,6.,7.] and kw['image_grid_thw'].shape==(4,
        3) and kw['num_images']==[1]*4
    assert kw['mm_token_type_ids'][:,0].tolist()==[4,5,6,
        7] and batch['ref_per_token_logps'].sum(1).tolist()==[-3.]*4+[0.]*4

# -- a reward that fails --------------------------------------------------------------------------
def failing(at, kind=KeyError):
    calls = []
    def rewards_(completions, **kw):
        calls.append(1)
        if len(calls)==at: raise kind('answer')
        return rewards(completions)
    rewards_.__name__ = 'rewards'
    return rewards_

def test_a_trainer_that_goes_on_after_a_failure_saves_what_it_is_and_not_what_it_was(tmp_path):
    "With a checkpoint at each step nothing was to be rescued, and later ones held the state of the failure."
    def states(t):
        found = [load_state(o/'grpo_state_0.pt') for o in checkpoint_folders(t.args.output_dir)]
        return [(o['step'], o['metrics'].keys()) for o in found]
    whole = make(tmp_path/'a', 4)
    whole.train()
    t = T.trainer(failing(3), args=make(tmp_path/'b', 4).args)
    with pytest.raises(KeyError): t.train()
    t.train(resume_from_checkpoint=True)
    assert states(t)==states(whole) and [o[0] for o in states(t)]==[1, 2, 3, 4]

def test_a_reward_that_fails_at_once_saves_nothing(tmp_path):
    t = T.trainer(failing(1), args=make(tmp_path, 3).args)
    with pytest.raises(KeyError) as e: t.train()
    assert len(e.value.__notes__)==1 and not list(tmp_path.glob('checkpoint-*'))

# -- saving ---------------------------------------------------------------------------------------
@pytest.mark.parametrize('error,blamed', [(OSError(errno.ENOSPC, 'No space left on device'), True),
    (RuntimeError('[enforce fail at inline_container.cc:664] . unexpected pos 1 vs 2'), True),
    (RuntimeError('a collective timed out'), False), (TypeError('an odd state'), False)], ids=str)
def test_the_disk_is_blamed_for_errors_of_the_disk_alone(error, blamed, tmp_path):
    t = make(tmp_path, 4, save_steps=2)
    save = t._save_optimizer_and_scheduler
    def fails(d):
        if d.endswith('-4'): raise error
        save(d)
    t._save_optimizer_and_scheduler = fails
    with pytest.raises(Exception) as e: t.train()
    message = str(e.value)+' '.join(getattr(e.value, '__notes__', []))
    assert ('MiB are free' in message)==blamed and 'checkpoint-4' in message and (blamed or e.value is error)
    assert (sorted(p.name for p in tmp_path.glob('checkpoint-*'))==['checkpoint-2']
        and not list(tmp_path.rglob('*.tmp')))

def test_nodes_with_disks_of_their_own_agree_or_say_who_lacks_what(tmp_path):
    "As a process that finds another rank's files only: it says so, and does not begin with an empty buffer."
    t = make(tmp_path, 2); t.train()
    u = make(tmp_path, 3)
    f = tmp_path/'checkpoint-2'/'grpo_state_0.pt'
    from grpo_nb.run.checkpoints import load_state, save_state, write_manifest
    save_state(f.with_name('grpo_state_1.pt'), load_state(f)|dict(world=2))
    f.unlink(); write_manifest(tmp_path/'checkpoint-2', t.run_id)
    with pytest.raises(ValueError, match='rank 0 does not find all of the files.*save_on_each_node'):
        u.train(resume_from_checkpoint=True)

# -- what is said ---------------------------------------------------------------------------------
def test_a_run_ends_with_a_verdict_and_warns_on_the_way(caplog):
    t = T.trainer(Scripted([DEAD], G), max_steps=12)
    with caplog.at_level(logging.WARNING): t.train()
    assert t.record.verdict.learned is False and 'It learned nothing' in caplog.text
    assert 'Zero-variance groups: 12 dead, 0 replaced, 12 unreplaced (the buffer had none' in caplog.text
    assert caplog.text.count('no group of the last 10 batches had answers of different reward')==1
    import json
    assert json.loads((Path(t.args.output_dir)/'summary.json').read_text())['verdict']['learned'] is False
