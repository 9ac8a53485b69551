"An outsider's record: every replayed row is bound to the sequence that was sampled, in both trainers."
import os, subprocess, sys
from pathlib import Path
import pytest
pytest.importorskip('martingale', reason="no martingale: pip install -e '.[dev]'")
import outside

HERE = Path(__file__).parent
pytestmark = pytest.mark.filterwarnings('ignore')

def holds(o):
    assert o['errors']==0 and o['replayed']>8 and o['scored']==o['replayed'] and o['without_origin']==0, o
    assert min(o['lags'])>=1 and sum(o['lags'].values())==o['replayed'], o
    assert o['largest_at_lag_0']<3e-6 and o['weights_differ']<1e-6, o   # nats: other widths, other rounding

def test_every_row_that_comes_back_on_trl_is_bound_to_its_origin(tmp_path):
    t = outside.on_trl(tmp_path, 5)
    o = outside.report(tmp_path, t.flight_recorder.head())
    holds(o)
    assert o['anchored'] and t.flight_recorder.stats['unmatched_rows']==0
    told = [r for r in t.state.log_history if 'replay/dead' in r]
    assert o['replayed']==outside.G*sum(r['replay/replaced']+r.get('replay/stored', 0) for r in told)

def test_every_row_that_comes_back_in_the_course_is_bound_to_its_origin(tmp_path):
    r = outside.chapters(tmp_path, 5)
    o = outside.report(tmp_path, r.recorder.ledger.head())
    holds(o)
    assert o['anchored'] and r.unmatched==0

@pytest.mark.slow
@pytest.mark.parametrize('scope', ['local','sharded'])
@pytest.mark.processes
def test_rows_of_two_processes_are_bound_to_their_origins(tmp_path, scope):
    "With one buffer for both, a row is trained on by another process than the one that sampled it."
    env = os.environ|dict(OMP_NUM_THREADS='1', PYTHONPATH=f"{HERE.parent}:{os.environ.get('PYTHONPATH', '')}")
    r = subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node',
        '2', str(HERE/'outside.py'), 'trl', '--scope', scope, '--folder', str(tmp_path)], env=env,
        capture_output=True, encoding='utf-8', timeout=400)
    assert r.returncode==0, r.stderr[-3000:]
    holds(outside.report(tmp_path))
