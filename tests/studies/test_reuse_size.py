"The study of reuse at 1M weights: its rows are whole, and other code counts its claims alike"
from pathlib import Path
import numpy as np, pytest
import grpo_nb.studies.replay_study as rs
from grpo_nb.studies.study import read_rows
from recount_study import recount_cells

pytestmark = pytest.mark.studies

PAGE,TABLE = 'nbs/studies/registration_reuse_size.qmd',Path('nbs/studies/rows/reuse_study_1M.csv')
PLAN = rs.registration(PAGE)
CELLS = list(PLAN['definitions']['families'])

def alike(table, theirs):
    ours = rs.claims(rs.spans(table, PLAN, 'cell'), PLAN)
    assert len(ours)==len(theirs)==8
    for o in ours.itertuples():
        diff,half,p,among = theirs[o.regime, f'{o.arm} - {o.baseline}']
        np.testing.assert_allclose((o.diff, o.half, o.p, o.holm), (diff, half, p, among), rtol=1e-9)

def test_the_stored_rows_are_whole_and_other_code_counts_their_claims():
    df = read_rows(TABLE, ('registered',))
    assert set(df.registered)=={PLAN['hash']} and set(df.regime)=={*CELLS} and not df.error.any()
    assert set(df.seed)==set(PLAN['seeds']['main']) and rs.next_jobs(df, PLAN)==[]
    alike(df, recount_cells(TABLE, PAGE))
