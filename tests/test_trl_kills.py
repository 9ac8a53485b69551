"Two ranks with FSDP2, killed with -9 at random moments and resumed: the run ends as if nobody had killed it."
import csv, json, os, subprocess, sys
from pathlib import Path
import pytest

HERE = Path(__file__).parent

@pytest.mark.slow
@pytest.mark.processes
def test_a_run_that_is_killed_at_random_ends_as_one_that_is_not(tmp_path, request):
    "`--kills 50` for as many as the stored table has."
    kills = request.config.getoption('--kills')
    env = os.environ|dict(OMP_NUM_THREADS='1', PYTHONPATH=f'{HERE.parent}:{HERE}')
    r = subprocess.run([sys.executable, str(HERE/'kills.py'), str(kills), str(tmp_path/'kills.csv')],
        env=env, capture_output=True, text=True)
    assert r.returncode==0, r.stdout[-2000:]+r.stderr[-3000:]
    with open(tmp_path/'kills.csv', encoding='utf-8') as f: rows = list(csv.DictReader(f))
    assert len(rows)==kills and all(o['same']=='1' for o in rows)
    assert f'{kills} kills in ' in r.stdout and ', 0 otherwise' in r.stdout

def test_the_stored_table_holds_fifty_kills_of_which_half_fell_within_a_save():
    with open(HERE.parent/'nbs'/'results'/'kills.csv', encoding='utf-8') as f: rows = list(csv.DictReader(f))
    assert len(rows)==50 and all(o['same']=='1' for o in rows)
    assert sum('save' in (o['rank0'], o['rank1']) for o in rows)>=20
    assert {o['who'] for o in rows}=={'0','1','both'}

PARTNER = """
import json, os, signal, sys, time
import kills as K
import trl_tiny as T
top,kind = sys.argv[1:]
T.folder()
def die(folder):
    if os.fork()==0:   # a child that holds the connections, as a pool of judges does
        while not os.path.exists(f'{folder}/over'): time.sleep(.1)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
def rank(r, port, folder, at):
    sys.stdout = sys.stderr = open(f'{folder}/said{r}', 'a', buffering=1)
    os.environ |= dict(RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE='2', LOCAL_WORLD_SIZE='2',
        MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
    if kind=='fsdp': K.fsdp2_on_cpu(fsdp_cpu_ram_efficient_loading=False)
    moment = os.path.basename(folder)
    class Dies(K.GRPOWithReplayBufferTrainer): pass
    if r==1: setattr(Dies, moment, lambda self, *a, **k: die(folder))
    T.trainer(cls=Dies, args=T.config(output_dir=f'{folder}/run', save_strategy='steps', save_steps=1,
        per_device_train_batch_size=6, replay_buffer_size=4)).train()
K.rank,out = rank,{}
for moment in MOMENTS:
    folder = f'{top}/{moment}'
    os.mkdir(folder)
    ps,_ = K.launch(folder)
    ps[0].join(300)
    out[moment] = ps[0].exitcode,open(f'{folder}/said0').read()[-3000:]
    open(f'{folder}/over', 'w').close()
    K.finish(ps, 5)
print(json.dumps(out))
"""
# the settings are compared, the model is spread out, and a step's parts
MOMENTS = '_agree _prepare_for_training _generate _calculate_rewards _compute_loss _save_rng_state'.split()

@pytest.mark.slow
@pytest.mark.parametrize('kind', ['ddp','fsdp'])
@pytest.mark.processes
def test_the_partner_of_a_killed_rank_ends_and_names_it_wherever_it_waits(kind, tmp_path):
    "No connection breaks: what is left is that the process is gone."
    env = os.environ|dict(OMP_NUM_THREADS='1', PYTHONPATH=f'{HERE.parent}:{HERE}')
    r = subprocess.run([sys.executable, '-c', PARTNER.replace('MOMENTS', repr(MOMENTS)), str(tmp_path), kind],
        env=env, capture_output=True, text=True, encoding='utf-8')
    assert r.returncode==0, r.stderr[-3000:]
    for moment,(code,said) in json.loads(r.stdout.splitlines()[-1]).items():
        assert code==1 and 'rank 1 is gone without a word, perhaps killed' in said, (moment, code, said)
