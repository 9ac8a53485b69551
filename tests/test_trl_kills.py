"Two ranks with FSDP2, killed with -9 at random moments and resumed: the run ends as if nobody had killed it."
import csv, os, subprocess, sys
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

DIES = """
import os, signal, sys
import trl_tiny as T
T.folder = lambda: os.environ['TINY']
def judge(completions, **kw):
    if os.environ['RANK']=='1': os.kill(os.getpid(), signal.SIGKILL)
    return T.n_red(completions)
T.trainer(judge, output_dir=sys.argv[1], per_device_train_batch_size=8).train()
"""

@pytest.mark.slow
@pytest.mark.processes
def test_the_launcher_ends_the_partner_of_a_killed_rank_and_names_it(tmp_path):
    import trl_tiny as T
    (tmp_path/'dies.py').write_text(DIES)
    env = os.environ|dict(OMP_NUM_THREADS='1', TINY=T.folder(), PYTHONPATH=f'{HERE.parent}:{HERE}')
    r = subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node',
        '2', str(tmp_path/'dies.py'), str(tmp_path/'run')], env=env, capture_output=True, text=True,
        timeout=300)
    assert r.returncode==1 and 'local_rank: 1' in r.stderr and 'Signal 9' in r.stderr, r.stderr[-3000:]
