"The study of reuse at 1M weights: its rows are whole, and other code counts its claims alike"
import json
from pathlib import Path
import numpy as np, pytest
import grpo_nb.studies.replay_study as rs
from grpo_nb.studies.study import as_list, read_rows, stamp
from recount_study import recount_cells

pytestmark = pytest.mark.studies

PAGE,TABLE = 'nbs/studies/registration_reuse_size.qmd',Path('nbs/studies/rows/reuse_study_1M.csv')
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
    def run(job): return [noisy(o, rng) for o in as_list(job)]
    rs.run_rounds(run, lambda d: rs.next_jobs(d, PLAN, stack=10**4), path=path,
        stamp=stamp(registered=PLAN['hash']), disable_tqdm=True)
    return path

def alike(table, theirs):
    ours = rs.claims(rs.spans(table, PLAN, 'cell'), PLAN)
    assert len(ours)==len(theirs)==8
    for o in ours.itertuples():
        diff,half,p,among = theirs[o.regime, f'{o.arm} - {o.baseline}']
        np.testing.assert_allclose((o.diff, o.half, o.p, o.holm), (diff, half, p, among), rtol=1e-9)

def test_a_table_that_lacks_a_row_shows_no_difference(made):
    df = read_rows(made, ('registered',))
    last = df[df.regime=='filtering'].index[-1]
    for less in (df.drop(last), df.assign(error=df.error.mask(df.index==last, 'lost'))):
        assert rs.say(less, PLAN).endswith('no differences before all are there')

def test_a_way_that_is_best_at_an_end_has_more_rows_to_come(made):
    df = read_rows(made, ('registered',))
    assert rs.next_jobs(df, PLAN)==[]
    adding,last = df.regime=='adding',df.learning_rate==df[df.arm=='mu3'].learning_rate.max()
    todo = rs.next_jobs(df.assign(area=df.area+(adding&(df.arm=='mu3')&last)), PLAN)
    runs = [o for job in todo for o in as_list(job)]
    assert len(runs)==8 and {(o['regime'], o['arm']) for o in runs}=={('adding','mu3')}

def test_the_stored_rows_are_whole_and_other_code_counts_their_claims():
    df = read_rows(TABLE, ('registered',))
    assert set(df.registered)=={PLAN['hash']} and set(df.regime)=={*CELLS} and not df.error.any()
    assert set(df.seed)==set(PLAN['seeds']['main']) and rs.next_jobs(df, PLAN)==[]
    alike(df, recount_cells(TABLE, PAGE))
