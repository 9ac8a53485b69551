"""The run folder that the TRL trainer leaves, read by inspector, report, doctor and batch calculator:
on runs that train."""

import time, shutil, subprocess, sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
import pytest, torch
from transformers import TrainerCallback
import grpo_nb.on_trl.record as on_trl_record
from grpo_nb.on_trl.rows import TrlRows
from grpo_nb.parts.batch_plan import batch_plan
from grpo_nb.inspector import inspector_html
from grpo_nb.run.record import Recorder, lock_folder
from grpo_nb.run.reading import read_run
from grpo_nb.see.verdict import verdict
from another import elsewhere, fork, works_elsewhere
from view_pages import Opened
import trl_tiny as T
from trl_tiny import LIVE, DEAD, Scripted
from trl_resumed import make as make_resumable
from weekly import most_weekly

torch.set_num_threads(1)
G = 4
PLAN = [LIVE,LIVE, LIVE,DEAD, DEAD,[0.,2.,1.,0.], DEAD,DEAD]

def test_the_end_tokens_of_an_older_trl_are_the_tokenizers():
    older = SimpleNamespace(_tokenizer=SimpleNamespace(eos_token_id=3))
    assert on_trl_record.end_token_ids(older)==[3]
    assert on_trl_record.end_token_ids(SimpleNamespace(eos_token_ids=[4, 3], **vars(older)))==[4, 3]

def run(plan=PLAN, B=2, steps=4, **kw):
    "A trained run: the trainer, its batches as they went to the loss, and its folder as read back."
    t = T.trainer(Scripted(plan, G),
        **(dict(per_device_train_batch_size=B*G, max_steps=steps, learning_rate=3e-2) | kw))
    got = T.spy(t)
    t.train()
    return t,got,read_run(t.args.output_dir)

@pytest.fixture(scope='module')
def trained(): return run()

# -- groups.jsonl ---------------------------------------------------------------------------------
def test_a_row_that_trl_masks_for_being_cut_off_is_cut_off_whatever_its_tokens(trained):
    t = trained[0]
    got = t.record.lengths(TrlRows(dict(completion_ids=torch.tensor([[0,5,6],[5,1,0]]),
        completion_mask=torch.tensor([[0,0,0],[1,1,0]]))))
    assert got.tolist()==[[3,1],[2,0]]   # tokens, cut off

def test_two_batches_in_one_step_are_numbered_on():
    _,got,r = run([LIVE], steps=2, steps_per_generation=1, gradient_accumulation_steps=2)
    assert len(got)==4 and [(o['step'],o['group']) for o in r.rows]==[(1,0),(1,1),(1,2),(1,3),(2,0),(2,1),
        (2,2),(2,3)]

def test_without_replay_dead_groups_are_kept_and_recording_changes_nothing():
    runs = {n:run(replay_buffer_size=0, record_groups_every=n) for n in (0,1)}
    assert T.same(*[T.weights(runs[n][0]) for n in (0,1)])
    r = runs[1][2]
    assert [o['outcome'] for o in r.rows]==['trained','trained','trained','kept','kept','trained','kept',
        'kept'] and r.settings['strategy']=='keep'
    # all at 1
    assert all(sum(o['ratio_hist']['counts'])==sum(o['n_tokens'])==o['ratio_hist']['counts'][7]
        for o in r.rows)
    assert not runs[0][2].rows and len(runs[0][2].history)==4

def test_with_replay_recording_changes_nothing_either():
    a,b = (run(record_groups_every=n)[0] for n in (0,1))
    assert T.same(T.weights(a), T.weights(b))

def test_a_record_is_bounded_by_batches_and_by_groups():
    _,_,r = run([LIVE], B=3, steps=5, record_groups_every=2, record_max_groups=2)
    assert [(o['step'],o['group']) for o in r.rows]==[(1,0),(1,1),(3,0),(3,1),(5,0),(5,1)]
    _,_,r = run([LIVE], B=3, steps=1, record_max_groups=None)
    assert [(o['step'],o['group']) for o in r.rows]==[(1,0),(1,1),(1,2)]
    _,got,r = run([LIVE], steps=10, steps_per_generation=2, per_device_train_batch_size=4,
        record_groups_every=2)
    assert len(got)==5 and r.steps==[1,5,9]
    # no texts on the hub unasked
    assert T.config(push_to_hub=True).record_groups_every==0 and T.config(push_to_hub=True,
        record_groups_every=3).record_groups_every==3
    for bad in (dict(record_groups_every=-1), dict(record_max_groups=0)):
        with pytest.raises(ValueError, match=list(bad)[0]): T.config(**bad)

@pytest.mark.parametrize('kw', [dict(), dict(replay_stored_per_fresh=1)])
def test_what_rewards_log_is_in_history_and_record(kw):
    plan = Scripted([LIVE, DEAD]*3, G)
    def logs(completions, log_metric, log_extra, trainer_state, **other):
        n = [len(c) for c in completions]
        log_metric('size', sum(n)/len(n))
        if trainer_state.global_step!=1: log_extra('size', n)   # in two steps of three
        return plan(completions)
    t = T.trainer(logs, per_device_train_batch_size=8, max_steps=3, **kw)
    t.train()
    r = read_run(t.args.output_dir)
    for o in r.rows:
        if o['outcome']=='stored': continue   # never sampled
        if o['step']==2: assert 'extra' not in o
        else: assert o['extra']=={'size':[len(c) for c in o['completions']]}
    sampled = [len(c) for o in r.rows if o['step']==1 for c in o['completions']]
    assert len(r.rows)==6 and r.history['size'][0]==pytest.approx(sum(sampled)/len(sampled))
    if not kw: assert any(o['outcome']=='replaced' for o in r.rows)

def test_a_metric_with_a_name_of_the_runs_own_is_refused_and_costs_one_batch():
    def judge(completions, trainer_state, log_metric, **kw):
        log_metric('loss' if trainer_state.global_step else 'mine', 9.)
        return [float(i%2) for i in range(len(completions))]
    t = T.trainer(judge, per_device_train_batch_size=8, max_steps=4)
    with pytest.raises(ValueError, match='the metric `loss`.*another name') as e: t.train()
    notes = ' '.join(e.value.__notes__)
    assert "raised in reward function 'judge'" in notes and 'checkpoint-1 holds the 1 step' in notes

# -- settings.json and history.jsonl --------------------------------------------------------------
def test_settings_say_what_the_tools_ask_for():
    t,_,r = run([LIVE], steps=2, steps_per_generation=2, gradient_accumulation_steps=2,
        per_device_train_batch_size=4, num_iterations=1, beta=.02, replay_age_limit=9, replay_buffer_size=5)
    s = r.settings
    assert s['trainer']=='trl' and s['strategy']=='replay' and s['world_size']==1 and s['versions']['trl']
    want = dict(steps_per_generation=2, gradient_accumulation_steps=2, num_iterations=1, beta=.02,
        max_completion_length=6, replay_age_limit=9, replay_buffer_size=5, num_generations=4,
        learning_rate=3e-2, seed=0, dead_tolerance=1e-6)
    assert {k:r.setting(k) for k in want}==want and r.setting('age_limit')==9
    assert not {'output_dir','hub_token','run_name','report_to'} & set(s['args'])
    assert s['data']==dict(n_prompts=17, prompt_format='text', chat_template=True, eos_token_id=1,
        eos_token='<eos>', eos_in_template=False)
    plan = batch_plan(**{k:r.setting(k) for k in ('num_generations','per_device_train_batch_size',
        'gradient_accumulation_steps','steps_per_generation','num_iterations')},
        world_size=r.setting('world_size'))
    assert (plan['legal'] and plan['completions']==t.args.generation_batch_size==8
        and plan['optimizer_steps_per_generation']==1)

def test_the_verdict_at_the_end_is_kept_and_is_that_of_what_was_logged(trained):
    t,_,r = trained
    logged = [o for o in t.state.log_history if 'loss' in o]
    assert asdict(t.record.verdict)==r.summary['verdict']==asdict(verdict(logged, groups=r.rows,
        settings=r.settings))

# -- resume ---------------------------------------------------------------------------------------
TIMES = {'step_time','generation_time','reward_time','logps_time','train_runtime','train_samples_per_second',
    'train_steps_per_second','eval_runtime','total_flos','train_loss'}
def table(folder):
    r = read_run(folder)
    return r.rows,[{k:v for k,v in o.items() if k not in TIMES and v==v}
        for o in r.history.to_dict('records')]

@pytest.mark.parametrize('name,kw,at',
    most_weekly([('mid-batch', dict(steps_per_generation=4, per_device_train_batch_size=2*G), 5),
        ('aligned', {}, 3), ('second pass', dict(num_iterations=2), 3)]))
def test_a_resumed_run_has_the_record_of_one_that_never_stopped(tmp_path, name, kw, at):
    whole = make_resumable(tmp_path/'a', 8, **kw); whole.train()
    # goes on after the checkpoint, then is lost
    first = make_resumable(tmp_path/'b', 7, **kw); first.train()
    for n in range(at+1, 8): shutil.rmtree(tmp_path/'b'/f'checkpoint-{n}')
    part = make_resumable(tmp_path/'b', 8, **kw); part.train(resume_from_checkpoint=True)
    (rows,history),(rows2,history2) = table(tmp_path/'a'),table(tmp_path/'b')
    assert rows==rows2 and history==history2
    assert any(o['replacement'] for o in rows) and len({(o['step'],o['group']) for o in rows})==len(rows)
    # written with the checkpoint, before their turn came
    if name=='mid-batch': assert any(o['ratio_hist'] is None for o in rows)

def test_a_new_run_in_the_same_folder_begins_a_new_record_and_leaves_the_old_one_whole(tmp_path):
    old = {}
    for n in (2, 3):
        make_resumable(tmp_path, n, save_strategy='no').train()
        old[n] = {o.name:o.read_bytes() for o in tmp_path.iterdir() if o.is_file()}
    assert read_run(tmp_path).steps==[1,2,3] and read_run(tmp_path/'earlier-1').steps==[1,2]
    assert {o.name:o.read_bytes() for o in (tmp_path/'earlier-1').iterdir()}==old[2]

def test_a_record_is_written_as_the_run_goes(tmp_path):
    "Each batch by the end of its step: a machine that stops leaves all that was trained on."
    seen = []
    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, **kw): seen.append(read_run(tmp_path).steps)
        def on_log(self, args, state, control, logs=None, **kw): seen.append(len(read_run(tmp_path).history))
    t = make_resumable(tmp_path, 3, save_strategy='no')
    t.add_callback(Look())
    t.train()
    assert seen[:6]==[[1],1,[1,2],2,[1,2,3],3]   # the record's callback comes first

@pytest.mark.processes
def test_two_runs_at_once_do_not_write_in_one_folder(tmp_path):
    first,second = (make_resumable(tmp_path, 2, save_strategy='no') for _ in range(2))
    def free(): return works_elsewhere(lock_folder, tmp_path)
    class Look(TrainerCallback):
        def on_step_begin(self, args, state, control, **kw): assert not free()
    first.add_callback(Look())
    first.train()
    assert free()
    def write(begun):
        Recorder(tmp_path)
        begun.set()
        time.sleep(900)
    p = elsewhere(write, begun := fork.Event())
    try:
        assert begun.wait(120)
        before = {o:o.read_bytes() for o in tmp_path.rglob('*') if o.is_file()}
        with pytest.raises(ValueError, match='another run is writing there now'): second.train()
    finally:
        p.kill()
        p.join()
    assert second.state.global_step==0
    assert before=={o:o.read_bytes() for o in tmp_path.rglob('*') if o.is_file()}

def test_a_resume_that_is_refused_leaves_the_record_as_it_was(tmp_path):
    make_resumable(tmp_path, 3).train()
    before = (tmp_path/'groups.jsonl').read_bytes()
    with pytest.raises(ValueError, match='replay_buffer_size=64, this run has 7'):
        make_resumable(tmp_path, 5,
            replay_buffer_size=7).train(resume_from_checkpoint=str(tmp_path/'checkpoint-2'))
    assert (tmp_path/'groups.jsonl').read_bytes()==before

# -- who reads it ---------------------------------------------------------------------------------
@pytest.fixture(scope='module')
def resumed(tmp_path_factory):
    d = tmp_path_factory.mktemp('run')
    make_resumable(d, 5).train(); make_resumable(d, 10).train(resume_from_checkpoint=True)
    return d

def test_the_inspector_opens_it(resumed):
    r = read_run(resumed)
    step,row = next((o['step'],o) for o in r.rows if o['replacement'])
    o,s = Opened(inspector_html(r)),r.steps.index(step)
    k = o.by()[s,row['group']]
    assert (o.stored()[k]['id']==row['replacement']['id']
        and int((o.by()>=0).sum())==sum(x['replacement'] is not None for x in r.rows))
    at = o.stored()[k]['at']
    assert o.texts(at[0])[at[1]]['completions']==row['replacement']['completions']
    assert o.texts(s)[row['group']]['ratio_hist']==row['ratio_hist'] and o.head['versions'][0]['size']==64
    assert not (o.by(1)>=0).any()   # what if without replay

# -- several processes ----------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize('scene', ['local','shared','straddle'])
@pytest.mark.processes
def test_two_processes_leave_one_record(tmp_path, scene):
    import os
    here = Path(__file__).parent
    env = os.environ|dict(OMP_NUM_THREADS='1', TINY=T.folder(),
        PYTHONPATH=f'{here.parent}:{here}:'+os.environ.get('PYTHONPATH', ''))
    p = subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node',
        '2', str(here/'trl_record_ranks.py'), str(tmp_path), scene], env=env, capture_output=True, text=True,
        timeout=240)
    assert p.returncode==0, p.stderr[-3000:]
    facts,r = [torch.load(tmp_path/f'facts{k}', weights_only=False)['batches']
        for k in (0,1)],read_run(tmp_path)
    assert r.steps==[1,3,5] and r.settings['world_size']==2 and len(r.history)==6
    cat = lambda step, k: [x for f in facts for x in f[step][k].tolist()]
    born = {}
    for i,(step,rows) in enumerate(r.by_step.items()):
        done = [s for f in facts for s in T.tokenizer().batch_decode([ids[m.bool()]
            for ids,m in zip(f[i]['completion_ids'], f[i]['completion_mask'])], skip_special_tokens=True)]
        A,old,tokens = cat(i, 'advantages'),cat(i, 'replayed'),[int(m.sum()) for f in facts
            for m in f[i]['completion_mask']]
        assert len(rows)*G==len(A)==(20 if scene=='straddle' else 32)
        for g,o in enumerate(rows):
            s,n = slice(g*G, g*G+G),o['replacement']
            assert o['advantages']==[pytest.approx(a)
                for a in A[s]] and (n is not None)==old[s][0]==all(old[s]) and o['group']==g
            assert (n or o)['completions']==done[s] and sum(o['ratio_hist']['counts'])==sum(tokens[s])
            if n:
                b = born[n['id']]
                assert (n['step'],n['age'],n['prompt'],n['completions'],n['rewards'],
                    n['prompt_key'])==(b['step'],
                    step-b['step'],b['prompt'],b['completions'],b['rewards'],b['prompt_key']) and o['dead']
        for o in rows:
            assert [*map(len, o['tokens'])]==o['n_tokens']   # those of every process
            if o['id'] is not None: assert o['id'] not in born; born[o['id']] = o
    assert sum(o['replacement'] is not None for o in r.rows)>1
    assert (Opened(inspector_html(r)).by()>=0).any()
