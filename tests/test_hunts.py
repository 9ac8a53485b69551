"""What a run with a hunt's wrong line does: the stored rows come again, the chapters say what they say, and a
prediction is judged by them. The list of causes holds sentences that the pages have."""
import ast, functools, json, re, sys
from pathlib import Path
import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT/'benchmarks'), str(ROOT/'tests')]
from hunt_runs import BUGS, RUNS
from kl_control import QUESTIONS
from one_screen import run_cell
from grpo_nb.teach.hunts import bug_table, check_prediction, train_on_sums

NBS = ROOT/'nbs'
ROWS = pd.read_csv(NBS/'results/hunts.csv')
CONTROL = dict(loss_at_1='none, temperature 1.2', penalty_a='none, beta .3', place_b='none, PPO')

@functools.cache
def two_batches(bug=None):
    "The first batches of the loop, with a wrong line or without."
    return train_on_sums(0, batches=2, **(BUGS[bug]() if bug else {}))

def weekly(*names): return [pytest.param(o, marks=pytest.mark.weekly) for o in names]

@pytest.mark.parametrize('bug', ['logps_b', 'version_b'])
def test_the_first_batches_of_a_run_come_again(bug):
    want = ROWS[(ROWS.bug==bug)&(ROWS.seed==0)]
    for now,(_,then) in zip(two_batches(bug), want.iterrows()):
        far = .05 if then.batch else 1e-3
        for k in ('right', 'reward', 'length', 'dead'): assert abs(now[k]-then[k])<=far, k

@pytest.mark.slow
@pytest.mark.parametrize('bug', list(RUNS))
def test_a_run_comes_again(bug):
    want = ROWS[(ROWS.bug==bug)&(ROWS.seed==0)].unseen.iloc[0]
    assert abs(RUNS[bug](0)[-1]['unseen']-want)<.12   # another processor rounds otherwise

def test_the_loop_without_a_bug_is_chapter_0s_cell():
    curve = run_cell('gradients clipped at norm 1', 0, batches=2)['curve']
    rows = two_batches()
    assert [o['right'] for o in rows]==[right for right,_,_ in curve]
    assert [o['dead'] for o in rows]==[dead for _,_,dead in curve]

@pytest.mark.parametrize('bug', ['logps_b', 'mask_a', *weekly('repeat_a', 'clip_a', 'penalty_a')])
def test_a_wrong_line_changes_the_loop(bug): assert two_batches(bug)[1]!=two_batches()[1]

DOES = dict(quick_reward='learns', mask_a='learns', repeat_a='learns less', version_b='learns',
    logps_b='unlearns', loss_at_1='learns', penalty_a='learns', place_b='learns less')

@pytest.mark.parametrize('bug,does', DOES.items())
def test_only_the_prediction_that_the_rows_bear_out_is_right(bug, does):
    how = dict(control=CONTROL.get(bug, 'none'), before=.475 if bug=='place_b' else .395)
    words = None, 'learns', 'learns less', 'unlearns', 'Learns'
    said = {o:check_prediction(o, ROWS, bug, **how) for o in words}
    assert [o for o,v in said.items() if v=='right']==[does] and said[None].startswith('not yet')
    del said[None], said[does]
    assert all(v.startswith(f'it {does}: ') for v in said.values())

def test_a_table_has_both_seeds_of_both():
    t = bug_table(ROWS, 'mask_a')
    assert [*t.index]==[('none', 0), ('none', 1), ('mask_a', 0), ('mask_a', 1)]
    by_hand = ROWS[(ROWS.bug=='mask_a')&(ROWS.seed==1)&(ROWS.batch>=20)].length.mean()
    assert t.loc[('mask_a', 1), 'length']==pytest.approx(by_hand, abs=.005)

def test_the_words_that_count_as_an_answer_are_those_of_the_benchmark():
    cells = json.loads((NBS/'17_real_run.ipynb').read_text(encoding='utf-8'))['cells']
    text = next(t for c in cells if 'EXPECTED = {' in (t := ''.join(c['source'])))
    assert ast.literal_eval(re.search(r'EXPECTED = (\{.*?\})', text, re.S)[1])==QUESTIONS
