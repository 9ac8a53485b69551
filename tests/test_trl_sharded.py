"One buffer for two processes, in the trainer: rows travel, groups straddle, resume on as many and on fewer."
import os, subprocess, sys
from pathlib import Path
import pytest, torch
import trl_tiny as T

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent

def launch(out, scene, n=2):
    env = os.environ|dict(OMP_NUM_THREADS='1', TINY=T.folder(), PYTHONPATH=f'{HERE.parent}:{HERE}:'+os.environ.get('PYTHONPATH', ''))
    r = subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', str(n), str(HERE/'trl_sharded_ranks.py'), str(out), scene], env=env, capture_output=True, text=True, timeout=240)
    assert r.returncode==0, r.stderr[-3000:]

def rows_of(o):
    return [(tuple(p[m.bool()].tolist()), tuple(c[n.bool()].tolist()), round(float(a), 6)) for p,m,c,n,a in zip(o['prompt_ids'], o['prompt_mask'], o['completion_ids'], o['completion_mask'], o['advantages'])]

@pytest.mark.parametrize('scene', ['whole','straddle','mu2'])
def test_two_processes_share_a_buffer(scene, tmp_path):
    launch(tmp_path, scene)
    f = [torch.load(tmp_path/f'facts{r}', weights_only=False) for r in (0, 1)]
    assert T.same(f[0]['w'], f[1]['w']) and f[0]['calls']==f[1]['calls']
    n = len(f[0]['batches'][0]['advantages'])
    seen,travelled,split = {},0,0
    for a,b in zip(f[0]['batches'], f[1]['batches']):
        assert a['num_items_in_batch']==b['num_items_in_batch']==a['completion_mask'].sum()+b['completion_mask'].sum()
        rows,new = rows_of(a)+rows_of(b),torch.cat([a['replayed'], b['replayed']]).tolist()
        for g in range(2*n//4):
            r = slice(g*4, g*4+4)
            assert len(set(new[r]))==1                                       # a group is replaced whole, wherever it lies
            if new[g*4]:
                assert len({o[0] for o in rows[r]})==1 and tuple(rows[r]) in seen and abs(sum(o[2] for o in rows[r]))<1e-3 and any(o[2] for o in rows[r])
                travelled += seen[tuple(rows[r])]!={i//n for i in range(g*4, g*4+4)}
                split += (g*4)//n!=(g*4+3)//n
        for g in range(2*n//4):
            if not new[g*4]: seen[tuple(rows[g*4:g*4+4])] = {i//n for i in range(g*4, g*4+4)}
    assert travelled>0 and (split>0 or scene!='straddle')
    assert sum(o.get('replay/replaced', 0) for o in f[0]['log'])>0

def test_resume_on_two_and_on_one(tmp_path, monkeypatch):
    import shutil
    launch(tmp_path, 'first')
    saved = sorted(o.name for o in (tmp_path/'r'/'checkpoint-3').glob('grpo_state_*'))
    assert len(saved)==2
    for name,n in (('two',2),('one',1)):
        monkeypatch.setenv('SHARDED_ROWS', str(16//n)); (tmp_path/name).mkdir(); shutil.copytree(tmp_path/'r', tmp_path/name/'r')
        os.environ['SHARDED_ROWS'] = str(16//n)
        launch(tmp_path/name, 'second', n)
    two,one = (torch.load(tmp_path/o/'facts0', weights_only=False) for o in ('two','one'))
    assert len(one['b']['ids'])==len(one['b']['index']['ids']) and one['b']['world']==1    # one process has it all
    assert sum(o.get('replay/replaced', 0) for o in one['log'])>0

def test_one_process_sharded_is_local_bit_for_bit():
    def run(scope):
        t = T.trainer(T.n_red, max_steps=8, per_device_train_batch_size=16, learning_rate=5e-3, replay_scope=scope)
        t.train()
        return t
    a,b = run('local'),run('sharded')
    assert T.same(T.weights(a), T.weights(b)) and b.sharded and not a.sharded
    x,y = a.replay_buffer.state_dict(),b.shared.index.state_dict()
    assert x['ids'].tolist()==y['ids'].tolist() and torch.equal(x['scores'], y['scores']) and x['uses'].tolist()==y['uses'].tolist() and sum(x['uses'])>0

def test_a_checkpoint_of_another_scope_is_refused(tmp_path):
    T.trainer(T.n_red, output_dir=str(tmp_path), max_steps=2, save_strategy='steps', save_steps=2, per_device_train_batch_size=16, replay_scope='local').train()
    with pytest.raises(ValueError, match='set `replay_scope`'):
        T.trainer(T.n_red, output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=16, replay_scope='sharded').train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match='replay_scope'): T.config(replay_scope='global')
