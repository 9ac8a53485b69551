"An outsider's record: every replayed row is bound to the sequence that was sampled, in both trainers."
import os, subprocess, sys
from fractions import Fraction
from pathlib import Path
import pandas as pd
import pytest
import torch
from grpo_nb.studies.off_policy import token_weights
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
    logged = [r for r in t.state.log_history if 'replay/dead' in r]
    assert o['replayed']==outside.G*sum(r['replay/replaced']+r.get('replay/stored', 0) for r in logged)

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

def test_a_certificate_made_again_is_the_one_on_the_page():
    "Exact rational arithmetic: the same on every machine."
    stored = pd.read_csv(HERE.parent/'nbs'/'results'/'certificates.csv')
    assert {*stored.estimator}=={*outside.estimators()} and len(stored)==11*9
    again = pd.DataFrame(outside.certificates(sizes=((3, 2, 3),), lags=(1,)))
    want = stored[(stored.world==0)&(stored.lag==1)].reset_index(drop=True)
    pd.testing.assert_frame_equal(again, want)

@pytest.mark.parametrize('sign', [1., -1.])
def test_clip_cap_and_full_ratio_weigh_a_token_as_its_estimators_do(sign):
    from martingale.exact import defendants
    g = torch.Generator().manual_seed(0)
    old = -1+.1*torch.randn(100, 3, generator=g, dtype=torch.float64)
    now = old+.5*torch.randn(100, 3, generator=g, dtype=torch.float64)
    ratio = (now-old).exp()
    def theirs(weight): return torch.tensor([[float(weight(Fraction(x), Fraction(int(sign)))) for x in row]
        for row in ratio.tolist()], dtype=torch.float64)
    def ours(**how): return sign*3*token_weights(now, old, sign, **how)   # 3 tokens to an answer
    assert (ratio>2).any() and (ratio<.8).any()
    clipped,capped = defendants._ppo(Fraction(1, 5)),defendants._truncate(Fraction(2))
    assert torch.allclose(ours(), theirs(clipped), atol=1e-12)
    assert torch.allclose(ours(loss_type='cispo', epsilon_high=2.), theirs(capped), atol=1e-12)
    whole = ratio.prod(1, keepdim=True).expand_as(ratio)   # `seq_is`: the product, for every token
    assert torch.allclose(ours(full=True), whole, atol=1e-12)
