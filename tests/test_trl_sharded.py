"""One buffer for two processes, in the trainer: rows travel, groups straddle, FSDP2 gives the same,
signals, resume on as many, fewer and more, and faults that are named."""

import os, subprocess, sys
from importlib.resources import files
from pathlib import Path
import pytest, torch
import trl_tiny as T

pytestmark = [pytest.mark.slow, pytest.mark.processes]
HERE = Path(__file__).parent
FIRST = ('whole,straddle,mu2,disagree,other_data,images,signal,resumed,from_one,stored,stored_local,own,'
    'mended,accumulated,objective,fsdp2,parts,moving')

def rewards(completions, prompts, **kw):   # as in trl_sharded_ranks.py
    r = T.n_red(completions)
    return [1. if len(p)%2 else o for p,o in zip(prompts, r)]

def launch(out, scenes, n=2, fails=False, **env):
    env = os.environ|dict(OMP_NUM_THREADS='1', TINY=T.folder(),
        PYTHONPATH=f'{HERE.parent}:{HERE}:'+os.environ.get('PYTHONPATH', ''))|env
    r = subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node',
        str(n), str(HERE/'trl_sharded_ranks.py'), str(out), scenes], env=env, capture_output=True, text=True,
        timeout=400)
    assert (r.returncode!=0)==fails, r.stderr[-3000:]
    return r.stderr

@pytest.fixture(scope='module')
def out(tmp_path_factory):
    "All scenes in one launch of two processes; a checkpoint of one process is made here first."
    d = tmp_path_factory.mktemp('sharded')
    one = T.trainer(rewards, output_dir=str(d/'one'), max_steps=3, save_strategy='steps', save_steps=3,
        per_device_train_batch_size=16, learning_rate=5e-3, lr_scheduler_type='constant',
        replay_buffer_size=8, replay_scope='sharded')
    one.train()
    torch.save(one.buffer.state_dict(), d/'one_state')
    launch(d, FIRST, FROM_ONE=str(d/'one'/'checkpoint-3'))
    return d

def facts(out, scene): return [torch.load(out/f'{scene}{r}', weights_only=False) for r in (0, 1)]

def equal(x, y):
    return torch.equal(x, y) if isinstance(x, torch.Tensor) else x.keys()==y.keys() and all(equal(x[k], y[k])
        for k in x) if isinstance(x, dict) else len(x)==len(y) and all(map(equal, x, y)) if isinstance(x,
        (list,tuple)) else x==y

WHERE = ('prompt_len','lengths','pieces')

def where(o):
    "Id of each stored group, and where its rows lie: the same on all ranks."
    ix = o['b']['index']
    return [(i, *(d[k] for k in WHERE)) for i,d in zip(ix['ids'].tolist(), ix['data'])]

def stored_rows(o):
    "Rows of stored groups that lie on this rank, by id."
    ix = o['b']['index']
    return {i:{k:v for k,v in d.items() if k not in WHERE}
        for i,d in zip(ix['ids'].tolist(), ix['data']) if 'prompt_ids' in d}

def rows_of(o):
    return [(tuple(p[m.bool()].tolist()), tuple(c[n.bool()].tolist()), round(float(a), 6))
        for p,m,c,n,a in zip(o['prompt_ids'], o['prompt_mask'], o['completion_ids'], o['completion_mask'],
            o['advantages'])]

@pytest.mark.parametrize('scene', ['whole','straddle','mu2','fsdp2'])
def test_two_processes_share_a_buffer(scene, out):
    f = facts(out, scene)
    assert T.same(f[0]['w'], f[1]['w']) and f[0]['calls']==f[1]['calls']
    n = len(f[0]['batches'][0]['advantages'])
    seen,travelled,split = {},0,0
    for a,b in zip(f[0]['batches'], f[1]['batches']):
        assert (
            a['num_items_in_batch']
            == b['num_items_in_batch']
            == a['completion_mask'].sum() + b['completion_mask'].sum()
        )
        rows,new = rows_of(a)+rows_of(b),torch.cat([a['replayed'], b['replayed']]).tolist()
        for g in range(2*n//4):
            r = slice(g*4, g*4+4)
            # a group is replaced whole, wherever it lies
            assert len(set(new[r]))==1
            if new[g*4]:
                assert len({o[0] for o in rows[r]})==1 and tuple(rows[r]) in seen and abs(sum(o[2]
                    for o in rows[r]))<1e-3 and any(o[2] for o in rows[r])
                travelled += seen[tuple(rows[r])]!={i//n for i in range(g*4, g*4+4)}
                split += (g*4)//n!=(g*4+3)//n
        for g in range(2*n//4):
            if not new[g*4]: seen[tuple(rows[g*4:g*4+4])] = {i//n for i in range(g*4, g*4+4)}
    assert travelled>0 and (split>0 or scene in ('whole','mu2'))
    assert sum(o.get('replay/replaced', 0) for o in f[0]['log'])>0

def test_fsdp2_gives_the_loss_the_buffer_and_the_weights_of_ddp(out):
    for a,b in zip(facts(out, 'straddle'), facts(out, 'fsdp2')):
        assert b['sharded'] and not a['sharded']                              # FSDP2 it was, and DDP it was
        steps = [[(o['loss'], o['grad_norm']) for o in x['log'] if 'loss' in o] for x in (a, b)]
        assert len(steps[0])==6 and [(p,q) for p,q in zip(*steps)
            if p!=pytest.approx(q, rel=1e-5, abs=1e-7)]==[]
        assert equal(where(a), where(b)) and equal(a['b']['index']['uses'], b['b']['index']['uses'])
        torch.testing.assert_close(a['b']['index']['scores'], b['b']['index']['scores'])
        assert len(stored_rows(a))>0
        for p,q in zip(stored_rows(a).values(), stored_rows(b).values(), strict=True):
            assert p.keys()==q.keys() and torch.equal(p['completion_ids'], q['completion_ids'])
            for k in p: torch.testing.assert_close(p[k], q[k], rtol=1e-5, atol=1e-6)
        assert a['w'].keys()==b['w'].keys()
        for k in a['w']: torch.testing.assert_close(a['w'][k], b['w'][k], rtol=1e-4, atol=1e-6)

@pytest.mark.skipif(not os.environ.get('GRPO_NB_DEEPSPEED'),
    reason='GRPO_NB_DEEPSPEED=1 runs it: needs deepspeed, which builds an extension for minutes')
@pytest.mark.parametrize('scene', ['zero2','zero3'])
def test_deepspeed_gives_the_loss_and_the_buffer_of_ddp(out, scene, tmp_path):
    f = files('trl.accelerate_configs').joinpath(f'{scene}.yaml')
    env = os.environ|dict(OMP_NUM_THREADS='1', DS_ACCELERATOR='cpu', TINY=T.folder(),
        PYTHONPATH=f'{HERE.parent}:{HERE}:'+os.environ.get('PYTHONPATH', ''))
    r = subprocess.run([sys.executable, '-m', 'accelerate.commands.launch', '--config_file', str(f),
        '--num_processes', '2', '--mixed_precision', 'no',
        str(HERE/'trl_sharded_ranks.py'), str(tmp_path), scene], env=env, capture_output=True, text=True,
        timeout=900)
    assert r.returncode==0, r.stderr[-3000:]
    for a,b in zip(facts(out, 'straddle'), facts(tmp_path, scene)):
        steps = [[(o['loss'], o['grad_norm']) for o in x['log'] if 'loss' in o] for x in (a, b)]
        assert len(steps[1])==6 and [(p,q) for p,q in zip(*steps)
            if p!=pytest.approx(q, rel=1e-5, abs=1e-7)]==[]
        assert equal(where(a), where(b))
        assert [(p,q) for p,q in zip(stored_rows(a).values(), stored_rows(b).values(), strict=True)
            if not torch.equal(p['completion_ids'], q['completion_ids'])]==[]

def test_fsdp2_resumes_with_its_buffer(out):
    for a,b in zip(facts(out, 'fsdp2'), facts(out, 'fsdp2_resumed')):
        assert equal(a['b'], b['b']) and [k for k in a['w'] if not torch.equal(a['w'][k], b['w'][k])]==[]

@pytest.fixture(scope='module')
def lora(tmp_path_factory):
    "LoRA on a Llama: under DDP, under FSDP2, and under FSDP2 killed in its third step."
    d = tmp_path_factory.mktemp('lora')
    launch(d, 'llama,llama_fsdp2,llama_killed', fails=True)
    return d

@pytest.mark.weekly
def test_adapters_on_a_llama_are_the_same_under_ddp_and_fsdp2_and_resume_to_the_bit(lora):
    ddp,fsdp = facts(lora, 'llama'),facts(lora, 'llama_fsdp2')
    assert fsdp[0]['sharded'] and not ddp[0]['sharded']
    for scene,whole in (('llama', ddp), ('llama_fsdp2', fsdp)):
        assert T.same(whole[0]['w'], whole[1]['w'])
        assert sum(o.get('replay/replaced', 0) for o in whole[0]['log'])>0
        for a,b in zip(whole, facts(lora, f'{scene}_resumed')):
            assert b['step']==4 and T.same(a['w'], b['w']) and equal(a['b'], b['b'])
    for a,b in zip(ddp, fsdp):
        assert equal(where(a), where(b)) and a['w'].keys()==b['w'].keys()
        for k in a['w']: torch.testing.assert_close(a['w'][k], b['w'][k], rtol=1e-4, atol=1e-6)
    first = T.llama().state_dict()
    moved = {k for k,v in ddp[0]['w'].items() if 'lora_' in k}
    frozen = {k:v for k,v in ddp[0]['w'].items() if 'lora_' not in k}
    def own(k): return k.removeprefix('base_model.model.').replace('.base_layer', '')
    assert moved and [k for k,v in frozen.items() if not torch.equal(v, first[own(k)])]==[]

@pytest.mark.weekly
def test_adapters_under_fsdp2_are_killed_and_the_same_command_ends_as_if_they_had_not_been(lora):
    assert (lora/'died0').exists() and (lora/'died1').exists() and not (lora/'llama_killed0').exists()
    launch(lora, 'llama_killed')
    for a,b in zip(facts(lora, 'llama_fsdp2'), facts(lora, 'llama_killed')):
        assert b['step']==4 and b['sharded'] and T.same(a['w'], b['w']) and equal(a['b'], b['b'])
        assert len(a['batches'])==4
        for x,y in zip(a['batches'][2:], b['batches'], strict=True): assert equal(x, y)

def test_checkpoints_in_parts_resume_to_the_bit_and_the_model_is_saved_whole(out):
    from transformers import AutoModelForCausalLM
    files = [o.name for o in (out/'parts'/'checkpoint-3'/'pytorch_model_fsdp_0').iterdir()]
    assert sorted(files)==['.metadata','__0_0.distcp','__1_0.distcp']
    f = facts(out, 'parts')
    for a,b,c in zip(f, facts(out, 'parts_resumed'), facts(out, 'fsdp2')):
        assert equal(a['b'], b['b']) and T.same(a['w'], b['w']) and T.same(a['w'], c['w'])
    saved = AutoModelForCausalLM.from_pretrained(out/'parts_model').state_dict()
    assert saved.keys()==f[0]['w'].keys() and T.same(saved, f[0]['w'])

def test_stored_groups_stand_beside_fresh_ones_on_both_and_go_on_in_mid_batch(out):
    f = facts(out, 'stored')
    assert T.same(f[0]['w'], f[1]['w']) and f[0]['calls']==f[1]['calls'] and f[0]['log'][-1]['step']==6
    born = set()
    for i,(a,b) in enumerate(zip(f[0]['batches'], f[1]['batches'])):
        old = [torch.cat([a['replayed'], b['replayed']]).view(-1, 4)[g].tolist() for g in range(4)]
        rows = rows_of(a)+rows_of(b)
        for g in range(4):
            group = tuple(rows[g*4:g*4+4])
            assert len(set(old[g]))==1 and (group in born)==old[g][0]
            born.add(group)
        assert sum(o[0] for o in old)>=f[0]['log'][2*i].get('replay/stored',
            0) and (i or not any(o[0] for o in old))
        assert a['num_items_in_batch']==a['completion_mask'].sum()+b['completion_mask'].sum()
    assert any(o.get('replay/stored')==2 for o in f[0]['log'])
    for a,b in zip(f, facts(out, 'stored_resumed')): assert T.same(a['w'], b['w']) and equal(a['b'], b['b'])

def test_with_a_buffer_each_both_sample_as_many_prompts_as_the_poorer_needs(out):
    a,b = facts(out, 'stored_local')
    fresh = [[int((~o['replayed']).view(-1, 4).all(1).sum()) for o in x] for x in (a, b)]
    assert fresh[0][0]==fresh[1][0]==2 and [(x,y) for x,y in zip(a, b)
        if x['num_items_in_batch']!=y['num_items_in_batch']]==[]
    assert min(map(sum, fresh))<10

def test_two_processes_with_a_buffer_each_train_alike_and_resume_to_the_bit(out):
    f = facts(out, 'own')
    assert T.same(f[0]['w'], f[1]['w']) and not equal(f[0]['b'], f[1]['b'])
    for a,b in zip(f[0]['batches'], f[1]['batches'], strict=True):
        local = [o['completion_mask'].sum() for o in (a, b)]
        assert a['num_items_in_batch']==b['num_items_in_batch']==sum(local)
    assert sum(o.get('replay/replaced', 0) for o in f[0]['log'])>0
    for a,b in zip(f, facts(out, 'own_resumed')): assert T.same(a['w'], b['w']) and equal(a['b'], b['b'])

def test_a_reward_that_fails_on_one_process_stops_both_which_save_and_go_on(out):
    said = [(out/f'mended_said{r}').read_text() for r in (0, 1)]
    assert ('RewardFailed: a reward function raised on rank 1 at step 3' in said[0]
        and "KeyError: 'no solution'" in said[1])
    assert [o for o in said if 'checkpoint-3 holds the 3 steps before it' not in o]==[]
    for a,b in zip(facts(out, 'whole'), facts(out, 'mended')):
        assert T.same(a['w'], b['w']) and equal(a['b'], b['b'])

def test_a_reward_that_fails_amid_accumulated_gradients_costs_no_bit_on_both(out):
    said = [(out/f'late_said{r}').read_text() for r in (0, 1)]
    assert [o for o in said if 'checkpoint-3 holds the 3 steps before it' not in o]==[]
    for a,b in zip(facts(out, 'accumulated'), facts(out, 'late_mended')):
        assert T.same(a['w'], b['w']) and equal(a['b'], b['b']) and b['step']==6
        assert any(o.get('replay/stored')==2 for o in b['log'])
        for x,y in zip(a['batches'][6:], b['batches'], strict=True): assert equal(x, y)

@pytest.mark.parametrize('scene,says', [('added', "this run has ['letters', 'rewards']"),
    ('turned', 'reward_weights=[1.0], this run has [-1.0]')])
def test_another_objective_is_refused_on_both_before_the_first_batch(scene, says, out):
    for r in (0, 1):
        said = (out/f'{scene}{r}').read_text()
        assert said.startswith('ValueError after 0 batches') and says in said, said

def test_fsdp2_saves_a_reference_that_moves_and_goes_on_with_it(out):
    from grpo_nb.run.checkpoints import load_state
    s = [load_state(out/'moving'/'checkpoint-2'/f'grpo_state_{r}.pt')['ref'] for r in (0, 1)]
    assert s[1] is None and sum(v.numel() for v in s[0].values())>=sum(p.numel()
        for p in T.model().parameters())
    for a,b in zip(facts(out, 'moving'), facts(out, 'moving_resumed')):
        assert [k for k in a['w'] if not torch.equal(a['w'][k], b['w'][k])]==[] and equal(a['b'], b['b'])

@pytest.mark.parametrize('scene,words',
    [('disagree',['`learning_rate` is 0.001 on rank 0 and 0.002 on rank 1',
        '`seed` is 0 on rank 0 and 1 on rank 1']), ('other_data',
        ['`number of prompts` is 17 on rank 0 and 16 on rank 1']),
    ('images',["images do not travel between processes: set replay_scope='local'"])])
def test_what_can_not_work_is_refused_on_both_before_the_first_batch(scene, words, out):
    for r in (0, 1):
        said = (out/f'{scene}{r}').read_text()
        assert [o for o in words if o not in said]==[], said

def test_a_signal_on_all_ranks_saves_one_whole_checkpoint(out):
    from grpo_nb.run.checkpoints import checkpoint_error, load_state
    assert [(o['step'], o['by']) for o in facts(out, 'signal')]==[(3, 'SIGTERM')]*2
    found = [o for o in (out/'signal').glob('checkpoint-3')]
    assert found and checkpoint_error(found[0])==''
    parts = [load_state(found[0]/f'grpo_state_{r}.pt')['buffer'] for r in (0, 1)]
    a,b = ({k:v for k,v in o['index'].items() if k!='data'} for o in parts)
    assert parts[0]['crc']==parts[1]['crc'] and equal(a, b) and len(a['ids'])>0
    assert equal(*(where(dict(b=o)) for o in parts))

def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(out):
    for a,b in zip(facts(out, 'mu2'), facts(out, 'resumed')):
        assert b['step']==6 and T.same(a['w'], b['w']) and equal(a['b'], b['b'])

def test_a_checkpoint_of_two_processes_goes_on_with_one(out):
    parts = [torch.load(out/f'whole{r}', weights_only=False)['b'] for r in (0, 1)]
    t = T.trainer(rewards, output_dir=str(out/'to_one'), max_steps=8, per_device_train_batch_size=16,
        learning_rate=5e-3, lr_scheduler_type='constant', replay_buffer_size=8)
    t.train(resume_from_checkpoint=str(out/'whole'/'checkpoint-6'))
    s,log = t.buffer.state_dict(),[o for o in t.state.log_history if o.get('step', 0)>6]
    new = stored_rows(dict(b=s))
    assert s['world']==1 and len(new)==len(s['index']['ids'])
    assert sum(o.get('replay/replaced', 0) for o in log)>0
    by_part = [stored_rows(dict(b=q)) for q in parts]
    old = {i:torch.cat([rows[i]['completion_ids'] for rows in by_part if i in rows])
        for i in parts[0]['index']['ids'].tolist()}
    kept = [i for i in new if i in old]
    assert kept and [i for i in kept if not torch.equal(new[i]['completion_ids'], old[i])]==[]

def test_a_checkpoint_of_one_process_goes_on_with_two(out):
    old,new = torch.load(out/'one_state', weights_only=False),facts(out, 'from_one')
    assert [o['step'] for o in new]==[6, 6] and T.same(new[0]['w'], new[1]['w']) and new[0]['b']['world']==2
    was,rows = stored_rows(dict(b=old)),stored_rows(new[0])|stored_rows(new[1])
    kept = [i for i in was if i in rows and len(rows[i]['advantages'])==4]
    assert kept and [i for i in kept
        if not torch.equal(rows[i]['completion_ids'], was[i]['completion_ids'])]==[]
    assert sum(o.get('replay/replaced', 0) for o in new[0]['log'] if o.get('step', 0)>3)>0

def test_the_learning_rate_is_scaled_by_the_share_of_all_processes(tmp_path):
    "Two processes of two groups each train as one of four does."
    for n in (1, 2):
        (tmp_path/f'{n}').mkdir()
        launch(tmp_path/f'{n}', 'scaled', n=n, TRL_EXPERIMENTAL_SILENCE='1')
    one,*two = [torch.load(tmp_path/o, weights_only=False) for o in ('1/scaled0','2/scaled0','2/scaled1')]
    for o in (one, *two):
        assert [r['lr_factor'] for r in o['log'] if 'loss' in r]==pytest.approx([1, .5, 0, .75**.5])
    assert T.same(two[0]['w'], two[1]['w'])
    assert max((one['w'][k]-v).abs().max().item() for k,v in two[0]['w'].items())<1e-5   # of steps of 5e-3

@pytest.mark.parametrize('scene,say',
    [('hangs',"waited for all ranks after reward function 'judge'"),
        ('raises','a reward function raised on rank 1 at step 1')])
def test_a_rank_at_fault_is_named_by_the_others(scene, say, tmp_path):
    err = launch(tmp_path, scene, fails=True)
    assert say in err, err[-3000:]

def test_one_process_sharded_is_local_bit_for_bit():
    def run(scope):
        t = T.trainer(T.n_red, max_steps=8, per_device_train_batch_size=16, learning_rate=5e-3,
            replay_scope=scope)
        t.train()
        return t
    a,b = run('local'),run('sharded')
    assert T.same(T.weights(a), T.weights(b)) and a.buffer.local and not b.buffer.local
    x,y = a.replay_buffer.state_dict(),b.buffer.index.state_dict()
    assert x['ids'].tolist()==y['ids'].tolist() and torch.equal(x['scores'],
        y['scores']) and x['uses'].tolist()==y['uses'].tolist() and sum(x['uses'])>0

def test_a_checkpoint_of_another_scope_is_refused(tmp_path):
    T.trainer(T.n_red, output_dir=str(tmp_path), max_steps=2, save_strategy='steps', save_steps=2,
        per_device_train_batch_size=16, replay_scope='local').train()
    with pytest.raises(ValueError, match='set `replay_scope`'):
        T.trainer(T.n_red, output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=16,
            replay_scope='sharded').train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match='replay_scope'): T.config(replay_scope='global')
