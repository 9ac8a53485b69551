"Other trainers of TRL with our replay: GMPO inherits from both; those with a loop of their own have no hook."
import pytest, torch
from trl import GRPOTrainer
from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferTrainer
import trl_tiny as T
from trl_tiny import DEAD, LIVE, Scripted

gmpo = pytest.importorskip('trl.experimental.gmpo', reason='this TRL has no GMPO')
G = 4
PLAN = [LIVE]*4+[DEAD,LIVE]*99

class GMPOWithReplay(GRPOWithReplayBufferTrainer, gmpo.GMPOTrainer): pass

@pytest.fixture(autouse=True)
def quiet(monkeypatch): monkeypatch.setenv('TRL_EXPERIMENTAL_SILENCE', '1')

def config(cls, **kw):
    return T.config(cls, per_device_train_batch_size=2*G, epsilon=.4, learning_rate=3e-2, max_steps=6,
        lr_scheduler_type='constant', **kw)

def by_hand(inputs, logps, eps):
    "GMPO's loss in float64, row after row; arXiv 2507.20673, equation 5, the clip on the log-ratio."
    total = 0.
    for i,A in enumerate(inputs['advantages'].tolist()):
        n = int(inputs['completion_mask'][i].sum())
        new,old = (o[i,:n].double() for o in (logps, inputs['old_per_token_logps']))
        logs = [min(d, max(-eps, min(eps, d))) if A>0 else max(d, max(-eps, min(eps, d)))
            for d in (new-old).tolist()]
        total -= A*torch.tensor(sum(logs)/n).double().exp().item()
    return total/len(inputs['advantages'])

def test_gmpo_takes_replayed_groups_at_their_true_ratio(monkeypatch):
    seen,logps = [],[]
    loss,look = gmpo.GMPOTrainer._compute_loss,GMPOWithReplay._get_per_token_logps_and_entropies
    def keep_loss(self, model, inputs):
        out = loss(self, model, inputs)
        if inputs['replayed'].any(): seen.append((dict(inputs), logps[-1], out.item()))
        return out
    def keep_logps(self, *a, **k):
        out = look(self, *a, **k)
        logps.append(out[0].detach())
        return out
    monkeypatch.setattr(gmpo.GMPOTrainer, '_compute_loss', keep_loss)
    monkeypatch.setattr(GMPOWithReplay, '_get_per_token_logps_and_entropies', keep_logps)
    T.trainer(Scripted(PLAN, G), cls=GMPOWithReplay, args=config(None)).train()
    assert len(seen)>=3
    for inputs,new,got in seen:
        r = inputs['replayed']
        moved = (new-inputs['old_per_token_logps'])[r][inputs['completion_mask'][r].bool()]
        assert moved.abs().max()>1e-3   # the ratio is not 1
        assert got==pytest.approx(by_hand(inputs, new, .4), rel=1e-5, abs=1e-7)

def test_without_a_buffer_it_is_gmpo_to_the_bit():
    def run(cls, args):
        t = T.trainer(Scripted(PLAN, G), cls=cls, args=args)
        t.train()
        return T.weights(t)
    ours = run(GMPOWithReplay, config(None, replay_buffer_size=0, record_groups_every=0))
    assert T.same(ours, run(gmpo.GMPOTrainer, config(gmpo.GMPOConfig)))

@pytest.mark.parametrize('module,name', [('a2po','A2POTrainer'), ('async_grpo','AsyncGRPOTrainer')])
def test_these_have_a_loop_of_their_own(module, name):
    there = pytest.importorskip(f'trl.experimental.{module}')
    assert not issubclass(getattr(there, name), GRPOTrainer)
