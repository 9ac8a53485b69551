"The off-policy laboratory: exact sums against autograd, finite differences and sampling"
from pathlib import Path
import pandas as pd, pytest, torch
from grpo_nb.advantages import group_advantages
from loss_calls import loss_of
from grpo_nb.studies.off_policy import (
    G, GradientMoments, group_moments, jacobian, right, token_weights, train_lab)
from notebook_code import defined_in

pytestmark = pytest.mark.studies

ROOM = defined_in('studies/off_policy')
AGES,ESTIMATORS,lab = ROOM.AGES,ROOM.ESTIMATORS,ROOM.lab

CSV = Path(__file__).parents[2]/'nbs'/'results'/'lab.csv.gz'

@pytest.fixture(scope='module', autouse=True)
def one_thread():
    n = torch.get_num_threads(); torch.set_num_threads(1); yield; torch.set_num_threads(n)

@pytest.fixture(scope='module')
def past(): return train_lab(1, .01, 12)

@pytest.mark.parametrize('q', range(4))
def test_the_exact_gradient_is_autograds_on_the_enumerated_objective(past, q):
    lens = GradientMoments(past[-1], q)
    p,g = lens.p,lens.g
    J = (past[-1](q).sum(1).exp()*right[q]).sum()
    auto = torch.cat([o.flatten() for o in torch.autograd.grad(J, list(past[-1].parameters()),
                                                               allow_unused=False)])
    assert g.dtype==torch.float64 and g.shape==(696,) and g.norm()>1e-4
    assert (g-auto).abs().max()<1e-10 and abs(p-J.item())<1e-12

def test_all_answers_have_probability_one_and_scores_average_to_zero(past):
    lp = past[-1](1).detach()
    assert abs(lp.sum(1).exp().sum().item()-1)<1e-12
    assert torch.einsum('n,ntp->p', lp.sum(1).exp(), jacobian(past[-1], 1)).abs().max()<1e-12

def test_fresh_groups_and_full_ratios_are_unbiased_in_direction_and_others_are_not(past):
    lens,then = GradientMoments(past[-1], 0),past[0](0).detach()
    fresh, full, one = lens.measure([(lens.logps, lens.logps, {}), (then, then, dict(full=True)),
                                     (then, lens.logps, {})])
    assert abs(fresh['cosine']-1)<1e-9 and abs(full['cosine']-1)<1e-9
    assert fresh['bias']==0 and abs(fresh['worth']-1)<1e-12
    assert one['cosine']<.9999

def test_recomputed_on_the_batchs_first_update_is_ratio_one(past):
    lens,then = GradientMoments(past[-1], 0),past[0](0).detach()
    a,b = lens.moments([(then, lens.logps, {}), (then, past[-1](0).detach(), {})])
    assert torch.equal(a[0], b[0]) and a[1]==b[1]

@pytest.mark.parametrize(
    'name',
    [
        'ratio 1',
        'stored, clipped',
        'stored, truncated',
        'stored, clipped, drifted masked',
        'stored, sequence level',
    ],
)
def test_moments_are_those_of_sampled_groups(past, name):
    lens,then = GradientMoments(past[-1], 2),past[0](2).detach()
    o = dict(ESTIMATORS[name]); old = lens.logps if o.pop('old')=='now' else then
    draw = torch.multinomial(
        then.sum(1).exp(), 4000 * G, replacement=True, generator=torch.Generator().manual_seed(0)
    ).view(-1, G)
    r = right[2][draw].double(); live = r.min(1).values<r.max(1).values; draw,r = draw[live],r[live]
    lp = lens.logps[draw].clone().requires_grad_()
    loss_of(lp, old[draw], group_advantages(r), torch.ones_like(lp, dtype=torch.bool),
                **dict(loss_type='grpo') | o).backward()
    J = jacobian(past[-1], 2)
    w = -lp.grad*len(draw)
    g = torch.stack([torch.einsum('gt,gtp->p', w[i], J[draw[i]]) for i in range(min(len(draw), 1500))])
    mean,square = lens.moments([(then, old, o)])[0]
    x = g@lens.g
    assert abs(x.mean().item()-(mean@lens.g).item())<4*x.std().item()/len(x)**.5
    y = g.square().sum(1)
    assert abs(y.mean().item()-square)<4*y.std().item()/len(y)**.5

def test_group_moments_are_the_binomials_by_hand():
    import math
    p = .2; ks = range(1, G); w = [math.comb(G, k)*p**k*(1-p)**(G-k) for k in ks]; n = sum(w)
    pos = (sum(c * k / G * group_advantages(torch.tensor([[1.0] * k + [0.0] * (G - k)],
                                                         dtype=torch.float64))[0, 0].item()
               for c, k in zip(w, ks)) / n)
    assert abs(group_moments(p)['pos']-pos)<1e-12 and abs(group_moments(p)['neg']-pos)<1e-12

def test_token_weights_at_the_four_corners_of_the_clip():
    old,now = torch.zeros(1, 3, dtype=torch.float64),torch.tensor([[1.5,1.,.5]], dtype=torch.float64).log()
    assert torch.allclose(token_weights(now, old, 1.)*3, torch.tensor([[0.,1.,.5]], dtype=torch.float64))
    assert torch.allclose(token_weights(now, old, -1.)*3, torch.tensor([[-1.5,-1.,0.]], dtype=torch.float64))
    assert torch.allclose(token_weights(now, old, 1.0, loss_type='cispo', epsilon_high=1.2) * 3,
                          torch.tensor([[1.2, 1.0, 0.5]], dtype=torch.float64))

def test_training_repeats_to_the_bit_and_learns():
    a,b = train_lab(0, .01, 5),train_lab(0, .01, 5)
    assert len(a)==6 and all(torch.equal(x, y) for x,y in zip(a[-1].parameters(), b[-1].parameters()))
    assert not torch.equal(a[0].w1, a[-1].w1)

def test_a_stored_run_of_the_study_comes_out_again():
    new = (lab(3, 0.02).groupby(['age', 'estimator'],
                                sort=False)[['kl', 'ess_answers', 'cosine', 'bias', 'noise',
                                             'worth']].mean())
    old = pd.read_csv(CSV).query('seed==3 and learning_rate==.02').set_index(['age','estimator'])[list(new)]
    assert (
        len(new) == len(AGES) * len(ESTIMATORS) and (new.loc[old.index] - old).abs().max().max() < 1e-4
    )  # float64 and five stored digits: on any machine
