"The arms and contrasts of the experiments that ask why reuse bears higher rates"
import json
import numpy as np, pandas as pd, pytest, torch
from grpo_nb.studies.replay_study import USES, contrasts, planned, registration, say
from grpo_nb.studies.stacked import Runs, Shelf, assemble, completion_logps, factor
from grpo_nb.studies.study import read_rows
from recount_reuse import recount_why

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

def made(plan, lead=.4, few=.1):
    "Rows of every run: an arm's number is its lead over `mu3`, times a factor for each rate"
    worth = dict(mu3=0., stored3=lead, stored3_few=lead-few)
    rows = []
    for o in sum(planned(plan, 'main', stack=8), []):
        area = .3+worth.get(o['arm'], .1)+.001*(7*len(o['arm'])*o['seed']%5)
        rows.append(o|dict(area=area, error=''))
    return pd.DataFrame(rows)

def test_contrasts_are_those_of_the_means_by_hand():
    plan = registration(PAGE)
    d = made(plan)
    t = contrasts(d, plan)
    mean = d.groupby('arm').area.mean()
    assert t['diff']['the lead']==pytest.approx(mean.stored3-mean.mu3)
    want = (mean.stored3+mean.mu3)/2-mean.stored3_few
    assert t['diff']['stored3_few loses half']==pytest.approx(want)
    assert t.says['the lead']=='+' and t.says['stored3_few loses half']=='-'
    assert 'no differences before all are there' in say(d.iloc[1:], plan) and 'the lead' in say(d, plan)
    first = {(f, l[0]) for f,l in plan['rates'].items()}
    part = d[[o in first for o in zip(d.regime, d.learning_rate)]]
    assert contrasts(part, plan).empty and len(contrasts(part, plan, 0))==len(plan['contrasts'])

def counted_alike(path, rows, plan):
    "All cells and rates, each rate, each cell"
    for rank,cells in ((None, None), (0, None), (1, None), *((None, [c]) for c in plan['rates'])):
        part = plan|dict(rates={f:plan['rates'][f] for f in cells or plan['rates']})
        theirs = recount_why(path, PAGE, rank, cells)
        for k,o in contrasts(rows, part, rank).iterrows():
            assert [o['diff'], o.diff_ci, o.p, o.holm]==pytest.approx(theirs[k], abs=2e-5), (k, rank, cells)

def test_other_code_counts_the_same_contrasts(tmp_path):
    "On made rows with noise, from the CSV without a line of the package: all of it, a rate, a cell"
    plan,rng = registration(PAGE),np.random.default_rng(4)
    d = made(plan).assign(source='', pass1=.5)
    def curve(v): return json.dumps([dict(tokens=k, pass1=v*q) for k,q in ((0, .5), (60, 1.), (104, 1.1))])
    d['curve'] = [curve(v+.02*rng.normal()) for v in d.area]
    d.drop(columns='area').to_csv(tmp_path/'rows.csv', index=False)
    rows = read_rows(tmp_path/'rows.csv')
    counted_alike(tmp_path/'rows.csv', rows, plan)
    rows[1:].to_csv(tmp_path/'less.csv', index=False)
    assert recount_why(tmp_path/'less.csv', PAGE) is None

def test_the_stored_rows_are_whole_and_other_code_counts_them_alike():
    plan,path = registration(PAGE),'nbs/studies/rows/why_study.csv'
    rows = read_rows(path, ('registered','torch','machine'))
    assert len(rows)==512 and set(rows.error)=={''} and set(rows.registered)=={plan['hash']}
    assert len(contrasts(rows, plan))==12
    counted_alike(path, rows, plan)

def test_the_page_says_what_the_rows_say():
    from made_study import words
    plan,rows = registration(PAGE),read_rows('nbs/studies/rows/why_study.csv', ('registered',))
    t,m = contrasts(rows, plan),rows.groupby('arm').area.mean()
    page,lead = words('nbs/studies/reuse_results.ipynb'),m.stored3-m.mu3
    def said(k): return f"{t['diff'][k]:+.3f} ± {t.diff_ci[k]:.3f}"
    assert f"The lead is there again, {said('the lead')}" in page and said('no3 minus no1') in page
    lost = {a:f'{(m.stored3-m[a])/lead:.0%}'.replace('%', ' %') for a in ('stored3_few','stored3_no1')}
    won = {a:f'{(m[a]-m.mu3)/lead:.0%}'.replace('%', ' %') for a in ('mu3_anchor','mu3_narrow')}
    assert m.stored3_random<m.mu3-.1 and t.says['stored3_random loses half']=='+'   # "far below"
    for o in (f"win {won['mu3_anchor']} of the lead,",
              f"a clip range of .05 they win {won['mu3_narrow']}",
              f"different stored groups, {lost['stored3_few']} of the lead is lost",
              f"one right answer of four, {lost['stored3_no1']} is lost"): assert o in page, o
    below = ('mu3_anchor wins a quarter','mu3_narrow wins a quarter','stored3_no1 loses a quarter')
    assert set(t.says[[*below]])=={'-'} and t.says['stored3_few loses a quarter']=='+'
    assert f"Holm's p .{t.holm['stored3_few loses half']*1e4:04.0f}" in page
    assert (t.says==t.predicted).sum()==9 and 'Nine of twelve came out as predicted' in page
    at_best = contrasts(rows, plan, 1)
    for k in ('stored3_few loses half','mu3_narrow wins a quarter','stored3_no1 loses a quarter'):
        assert abs(at_best['diff'][k])<at_best.diff_ci[k]   # "too near"
    twice = contrasts(rows, plan, 0)['diff']['the lead']
    assert .3<at_best['diff']['the lead']/twice<.35   # "a third as large"
    chapter,settings = (words(f'nbs/{o}') for o in ('14_replay_study.ipynb','practise/replay_settings.qmd'))
    assert .4<(m.stored3-m.stored3_few)/lead<.5 and 'for nearly half of it groups that differ' in chapter
    assert 'accounts for less than a quarter of the lead' in chapter
    assert 'Masking the same number of tokens at random leaves them far below extra passes' in settings
