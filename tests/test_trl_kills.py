"Two ranks with FSDP2, killed with -9 at random moments and resumed: the run ends as if nobody had killed it."
import csv, os, subprocess, sys
from pathlib import Path
import pytest

HERE = Path(__file__).parent

@pytest.mark.slow
def test_a_run_that_is_killed_at_random_ends_as_one_that_is_not(tmp_path, request):
    "`--kills 50` for as many as the stored table has."
    kills = request.config.getoption('--kills')
    env = os.environ|dict(OMP_NUM_THREADS='1', PYTHONPATH=f'{HERE.parent}:{HERE}')
    r = subprocess.run([sys.executable, str(HERE/'kills.py'), str(kills), str(tmp_path/'kills.csv')],
        env=env, capture_output=True, text=True)
    assert r.returncode==0, r.stdout[-2000:]+r.stderr[-3000:]
    with open(tmp_path/'kills.csv') as f: rows = list(csv.DictReader(f))
    assert len(rows)==kills and all(o['same']=='1' for o in rows)
    assert f'{kills} kills in ' in r.stdout and ', 0 otherwise' in r.stdout

def test_the_stored_table_holds_fifty_kills_of_which_half_fell_within_a_save():
    with open(HERE.parent/'nbs'/'results'/'kills.csv') as f: rows = list(csv.DictReader(f))
    assert len(rows)==50 and all(o['same']=='1' for o in rows)
    assert sum('save' in (o['rank0'], o['rank1']) for o in rows)>=20
    assert {o['who'] for o in rows}=={'0','1','both'}
