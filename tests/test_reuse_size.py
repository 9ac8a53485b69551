"The study of reuse at 1M weights: what its page shows of whole cells, of parts, and before the first row"
import json
from collections import Counter
from pathlib import Path
import numpy as np, pytest
import grpo_nb.research.replay_study as rs
from grpo_nb.research.study import one_each, read_rows, stamp
from notebook_code import defined_in
from recount_study import recount_cells

PAGE,TABLE = 'nbs/project/registration_reuse_size.qmd',Path('nbs/results/reuse_study_1M.csv')
claims_by_cell,rows_by_cell = (getattr(defined_in('research/reuse_results'), k)
    for k in ('claims_by_cell','rows_by_cell'))
PLAN = rs.registration(PAGE)
CELLS = list(PLAN['definitions']['families'])

def noisy(o, rng):
    "A made run: plain GRPO is best at 1e-4; stored groups at twice that and higher, less so in combining"
    lead = (.012 if o['regime']=='combining' else .1)*(o['arm']=='stored3')
    off = np.log2(o['learning_rate']/(2e-4 if o['arm']=='stored3' else 1e-4))
    level = .6+lead-.03*abs(off)+.02*rng.normal()
    points = [dict(tokens=t, pass1=level*q) for t,q in ((0, .5), (21000, 1.), (40104, 1.1))]
    return o|dict(curve=json.dumps(points), pass1=level)

@pytest.fixture(scope='module')
def made(tmp_path_factory):
    "A file with all rows, as the command writes it"
    path,rng = tmp_path_factory.mktemp('size')/'rows.csv',np.random.default_rng(8)
    def run(job): return [noisy(o, rng) for o in one_each(job)]
    rs.run_rounds(run, lambda d: rs.next_jobs(d, PLAN, stack=10**4), path=path,
        stamp=stamp(registered=PLAN['hash']), disable_tqdm=True)
    return path

def alike(shown, theirs):
    assert len(shown)==len(theirs)
    for (cell,claim),o in shown.iterrows():
        diff,half,_,p = theirs[cell, claim.replace(' − ', ' - ')]
        assert o.span==f'{diff:+.3f} ± {half:.3f}' and o.Holm==f'{p:.4f}'

def test_a_whole_table_is_counted_alike_by_other_code(made):
    df = read_rows(made, ('registered',))
    t = claims_by_cell(df, PLAN)
    counts = Counter(df.regime)
    assert len(t)==8 and [*t.rows]==[f'{counts[c]} of {counts[c]}' for c in CELLS for _ in range(2)]
    theirs = recount_cells(made, PAGE)
    assert len(theirs)==8 and set(t.says)<={'above 0','undecided'}
    alike(t, theirs)
    assert rs.say(df, PLAN).startswith('main table\n')   # the command shows the same eight
    each = {a:[a] for a in PLAN['arms']['main']}
    best = rs.at_best(df, PLAN, each, 'cell').set_index(['regime','arm']).best
    apart = best['adding','stored3'].mean()-best['adding','mu3'].mean()
    assert t.best_rate['adding','stored3 − mu3'].startswith(f'{apart:+.3f} ± ')

def test_a_cell_that_lacks_a_row_is_silent_and_the_others_are_judged_among_all_eight(made):
    df = read_rows(made, ('registered',))
    counts,last = Counter(df.regime),df[df.regime=='filtering'].index[-1]
    for less in (df.drop(last), df.assign(error=df.error.mask(df.index==last, 'lost'))):
        t = claims_by_cell(less, PLAN)
        mute = t.loc['filtering']
        assert set(mute.rows)=={f"{counts['filtering']-1} of {counts['filtering']}"}
        assert (mute.drop(columns='rows')=='').all().all()
        assert (t.drop(index='filtering', level=0).says!='').all()
    one = df[df.regime=='combining']   # the only one with a p above 0
    t,(small,large) = claims_by_cell(one, PLAN),sorted(rs.claims(rs.spans(one, PLAN), PLAN).p)
    assert sorted(t.Holm['combining'])==[f'{min(1, k):.4f}' for k in (8*small, max(7*large, 8*small))]
    assert round(8*small, 4)>round(2*small, 4) and [*t.rows]==['0 of 160']*6+[f'{len(one)} of {len(one)}']*2

def test_a_way_that_is_best_at_an_end_has_more_rows_to_come(made):
    df = read_rows(made, ('registered',))
    adding,last = df.regime=='adding',df.learning_rate==df[df.arm=='mu3'].learning_rate.max()
    count = rows_by_cell(df.assign(area=df.area+(adding&(df.arm=='mu3')&last)), PLAN)
    assert count.of['adding']==count.rows['adding']+8   # one rate further, eight seeds
    assert (count.of==count.rows).sum()==3

def test_before_the_first_row_the_page_says_how_many_there_will_be_at_least(tmp_path, made):
    (tmp_path/'head.csv').write_text(made.read_text().splitlines()[0]+'\n')
    for path in (tmp_path/'head.csv', 'nbs/results/reuse_study.csv'):
        t = claims_by_cell(read_rows(path, ('registered',))[:0], PLAN)
        assert set(t.rows)=={'0 of 160'} and (t.drop(columns='rows')=='').all().all()

@pytest.mark.skipif(not TABLE.exists(), reason='not a row yet')
def test_the_stored_rows_are_registered_ones_and_other_code_counts_their_claims():
    df = read_rows(TABLE, ('registered',))
    assert set(df.registered)<={PLAN['hash']} and set(df.regime)<={*CELLS}
    assert set(df.seed)<=set(PLAN['seeds']['main'])
    t = claims_by_cell(df, PLAN)
    alike(t[t.says!=''], recount_cells(TABLE, PAGE, [c for c in CELLS if (t.loc[c].says!='').all()]))
