"""Two processes, each with a buffer of its own: same weights, one count of tokens,
resume and signals together."""

import os, subprocess, sys
from pathlib import Path
import pytest, torch
import trl_tiny as T

pytestmark = [pytest.mark.slow, pytest.mark.processes]
HERE = Path(__file__).parent

@pytest.fixture(scope='module')
def out(tmp_path_factory):
    "All scenes in one launch."
    d = tmp_path_factory.mktemp('ranks')
    env = os.environ|dict(OMP_NUM_THREADS='1', TINY=T.folder(),
        PYTHONPATH=f'{HERE.parent}:{HERE}:'+os.environ.get('PYTHONPATH', ''))
    r = subprocess.run([sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node',
        '2', str(HERE/'trl_two_ranks.py'), str(d)], env=env, capture_output=True, text=True, timeout=400)
    assert r.returncode==0, r.stderr[-3000:]
    return d

def test_groups_that_straddle_are_refused_on_both(out):
    assert all('lie on several processes' in (out/f'said{r}').read_text() for r in (0, 1))

def test_two_ranks_train_alike_and_resume_bit_equal(out):
    f = [torch.load(out/f'facts{r}', weights_only=False) for r in (0, 1)]
    assert T.same(f[0]['a']['w'], f[1]['a']['w'])
    for r in f: assert T.same(r['a']['w'], r['b']['w'])
    eq = lambda x, y: torch.equal(x, y) if isinstance(x,
        torch.Tensor) else x.keys()==y.keys() and all(eq(x[k], y[k]) for k in x) if isinstance(x,
        dict) else len(x)==len(y) and all(map(eq, x, y)) if isinstance(x, (list,tuple)) else x==y
    for r in f: assert eq(r['a']['b'], r['b']['b'])
    assert not eq(f[0]['a']['b'], f[1]['a']['b'])                                    # a buffer each
    assert f[0]['items']==f[1]['items']==[a+b for a,b in zip(f[0]['local'], f[1]['local'])]
    assert sum(o.get('replay/replaced', 0) for o in f[0]['a']['log'])>0

def test_a_signal_to_one_rank_stops_both_at_the_same_step(out):
    assert [(out/f'step{r}').read_text() for r in (0, 1)]==['3 SIGTERM']*2
    assert (out/'s'/'checkpoint-3'/'grpo_state_1.pt').exists()
