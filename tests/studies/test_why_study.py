"The arms and contrasts of the experiments that ask why reuse bears higher rates"
import pytest, torch
from grpo_nb.studies.replay_study import USES, contrasts, registration
from grpo_nb.studies.stacked import Runs, Shelf, assemble, completion_logps, factor
from grpo_nb.studies.study import read_rows
from recount_study import recount_why

pytestmark = pytest.mark.studies

PAGE = 'nbs/studies/registration_why.qmd'

def test_four_stored_groups_come_four_times_each():
    fresh = dict(A=torch.zeros(1, 8, 1), key=torch.arange(8)[None])
    shelf = Shelf(256, fresh)
    for k in range(12): shelf.add(dict(fresh, key=fresh['key']+100+10*k), torch.ones(1, 8).bool(), k)
    u = torch.rand(1, 256, generator=torch.Generator().manual_seed(0))
    dead = torch.zeros(1, 8).bool()
    few,there = assemble(USES['stored3_few'], fresh, dead, shelf, u)
    any_,_ = assemble(USES['stored3'], fresh, dead, shelf, u)
    keys = few['key'][0,8:].tolist()
    assert there.all() and len(keys)==16 and len(set(keys))==4 and keys==keys[:4]*4
    assert keys[:4]==any_['key'][0,8:12].tolist()   # drawn by the same law

def test_as_many_tokens_go_silent_and_any_of_them():
    g = torch.Generator().manual_seed(0)
    logps,A = .4*torch.randn(2, 8, 4, 400, generator=g),torch.randn(2, 8, 4, 1, generator=g).sign()
    real = torch.rand(logps.shape, generator=g)<.8
    logps[1] *= .5   # one run has moved less
    u = torch.rand(logps.shape, generator=g)
    clip,some = (factor(logps, 0*logps, A, k, real, chance=u) for k in ('clip','random'))
    for s in range(2):
        want,got = ((o[s][real[s]]==0).float().mean().item() for o in (clip, some))
        assert got==pytest.approx(want, abs=.02) and want>.05
        both = ((clip[s][real[s]]==0)&(some[s][real[s]]==0)).float().mean().item()
        assert both==pytest.approx(want*want, abs=.02)   # which tokens has nothing to do with the clip
    assert set((some*A).unique().tolist())=={0., 1.}   # the advantage, or nothing

@pytest.mark.parametrize('arm,gone', [('stored3_no1', 1), ('stored3_no3', 3)])
def test_groups_with_so_many_right_are_not_stored(arm, gone):
    r = Runs(USES[arm], 'reversing', [3], [1e-4], n_train=40, n_test=4)
    for _ in range(8): r.batch()
    right = r.shelf.groups['r'][r.shelf.born>=0].sum(-1)
    assert set(right.tolist())=={1., 2., 3.}-{gone}

def test_later_passes_are_masked_by_an_older_policy_and_the_first_is_not():
    r = Runs(USES['mu3_anchor'], 'reversing', [3], [2e-3], n_train=40, n_test=4)
    r.batch()
    first = r.anchor.theta.clone()
    for _ in range(3): r.batch()
    assert torch.equal(r.anchor.theta, first) and not torch.equal(first, r.m.theta)
    before,grads,seen = [],[],[]
    gradient,train = r.m.gradient,r.train
    def noted(loss):
        before.append(r.m.theta.clone())
        grads.append(gradient(loss))
        return grads[-1].clone()
    r.m.gradient = noted
    r.train = lambda g, there: (seen.append(g), train(g, there))
    r.batch()
    g,silent = seen[0],[]
    old = r.from_anchor(g)
    for k,(theta,found) in enumerate(zip(before, grads, strict=True)):
        r.m.theta.copy_(theta)
        lp = completion_logps(r.m, g['ids'], g['mask'], g['out'])
        def moved(log): return ((g['A']>0)&((lp-log).exp()>1.2))|((g['A']<0)&((lp-log).exp()<.8))
        quiet = moved(g['old'])|(moved(old) if k else torch.zeros_like(g['real']))
        want = gradient(-(g['A']*lp*g['real']).masked_fill(quiet, 0.).sum()/g['real'].sum())
        torch.testing.assert_close(found, want, atol=2e-6, rtol=1e-3)
        silent.append(((moved(old)&~moved(g['old'])&g['real'])).sum().item())
    assert len(grads)==3 and silent[1]>0 and silent[2]>0   # the older policy makes a difference

def counted_alike(path, rows, plan):
    "All cells and rates, each rate, each cell"
    for rank,cells in ((None, None), (0, None), (1, None), *((None, [c]) for c in plan['rates'])):
        part = plan|dict(rates={f:plan['rates'][f] for f in cells or plan['rates']})
        theirs = recount_why(path, PAGE, rank, cells)
        for k,o in contrasts(rows, part, rank).iterrows():
            assert [o['diff'], o.diff_ci, o.p, o.holm]==pytest.approx(theirs[k], abs=2e-5), (k, rank, cells)

def test_the_stored_rows_are_whole_and_other_code_counts_them_alike():
    plan,path = registration(PAGE),'nbs/studies/rows/why_study.csv'
    rows = read_rows(path, ('registered','torch','machine'))
    assert len(rows)==512 and set(rows.error)=={''} and set(rows.registered)=={plan['hash']}
    assert len(contrasts(rows, plan))==12
    counted_alike(path, rows, plan)
