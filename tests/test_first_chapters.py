"""Chapters 0, 1, 6, 16a and 16b: tables of runs come again, checkers let no plausible wrong answer pass, and
what the text says of numbers is what they are."""
import csv, json, re, sys
from pathlib import Path
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from hacking_runs import EVERY, KEPT, PAID, STEPS, chapter_names, rows_of
from one_screen import CHANGES, ROWS, one_screen
from grpo_nb.parts.datasets import chain_sum
from grpo_nb.tasks import accuracy_reward
from grpo_nb.tiny_qwen import encode_prompts, load_model

NBS = Path(__file__).parent.parent/'nbs'
SCREEN = NBS/'results/one_screen.csv'

def cells(name): return json.loads((NBS/f'{name}.ipynb').read_text(encoding='utf-8'))['cells']

def cell(name, holds): return next(c for c in cells(name) if holds in ''.join(c['source']))

def given(name, *needed):
    "The names of a chapter after those of its cells that hold one of `needed`."
    names = {}
    for c in cells(name):
        text = ''.join(c['source'])
        if c['cell_type']=='code' and any(o in text for o in needed): exec(text, names)
    return names

def test_the_table_of_one_screen_has_every_row_and_the_chapters_own_run():
    rows = list(csv.DictReader(SCREEN.open(encoding='utf-8')))
    assert {(r['change'], int(r['seed'])) for r in rows}<=set(ROWS)
    assert {r['change'] for r in rows}==set(CHANGES)
    shown = cell('00_grpo_on_one_screen', 'test = chain_sum')
    text = ''.join(shown['outputs'][0]['data']['text/plain'])
    own = [float(r['unseen']) for r in rows if r['change']=='as it stands' and r['seed']=='0']
    assert float(text.strip('()').split(',')[1]) in own

def test_every_change_finds_its_line():
    text = ''.join(cell('00_grpo_on_one_screen', 'for batch in range(25)')['source'])
    for old,_ in [o for change in CHANGES.values() for o in change]: assert text.count(old)==1, old

def written_changes():
    "The lines and settings that chapter 0's exercise tells its reader to put in."
    exercise = ''.join(cell('00_grpo_on_one_screen', 'Then change a line of the cell')['source'])
    return re.findall(r'`(\w+ ?= ?[^`]+)`', exercise)

def with_change(text, change):
    "The cell with the line of that name, the argument of that name, or the value in `B,G,eps = …` replaced."
    name,value = (o.strip() for o in change.split('=', 1))
    line,argument = re.compile(rf'^( *){name} = .*$', re.M),re.compile(rf'\b{name}=[^,)]+')
    if line.search(text): return line.sub(lambda m: f'{m[1]}{name} = {value}', text, count=1)
    if argument.search(text): return argument.sub(f'{name}={value}', text, count=1)
    return re.sub(rf'^(\w,{name},\w+ = .*)$', rf'\1\n{name} = {value}', text, flags=re.M)

@pytest.mark.parametrize('change', written_changes())
def test_what_the_exercise_tells_one_to_change_runs_as_written(change):
    text = ''.join(cell('00_grpo_on_one_screen', 'for batch in range(25)')['source'])
    changed = with_change(text, change)
    assert changed!=text
    for old,new in (('B,G,eps = 16,', 'B,G,eps = 2,'), ('range(25)', 'range(1)')):
        assert changed.count(old)==1, old
        changed = changed.replace(old, new)
    names = dict(torch=torch, load_model=load_model, chain_sum=chain_sum, encode_prompts=encode_prompts,
        accuracy_reward=accuracy_reward)
    exec(changed, names)
    assert len(names['curve'])==1

@pytest.mark.slow
@pytest.mark.parametrize('change,seed', ROWS)
def test_a_row_comes_again(change, seed):
    rows = list(csv.DictReader(SCREEN.open(encoding='utf-8')))
    rows = [r for r in rows if (r['change'], int(r['seed']))==(change, seed)]
    if not rows: pytest.skip('not in the table')
    got = one_screen(change, seed)   # another processor rounds otherwise: the same story, not the same digits
    assert abs(got['unseen']-float(rows[-1]['unseen']))<=(.25 if seed==1 or change=='lr = 2e-3' else .08)

@pytest.fixture(scope='module')
def one():
    names = given('01_from_reward_to_gradient', 'import itertools', 'set_default_dtype', 'def learn',
                  'theta = tensor([.2', 'pi,J = ', 'score = torch.eye', 'def check_best', 'def check_groups')
    yield names
    torch.set_default_dtype(torch.float32)

def test_a_mean_of_all_shortens_the_estimate_and_a_mean_of_the_others_does_not(one):
    "By another road: the covariance of score and reward, and not the chapter's sum over groups."
    pi,r,score = one['pi'],one['reward'],one['score']
    exact = (pi[:,None]*(r-pi@r)[:,None]*score).sum(0)
    for G in (2, 3):
        names = dict(one)
        exec(''.join(cell('01_from_reward_to_gradient', 'def mean_estimate')['source']), names)
        torch.testing.assert_close(names['mean_estimate'](names['minus_mean'], G), exact*(G-1)/G)
        torch.testing.assert_close(names['mean_estimate'](names['minus_others'], G), exact)

def hacking():
    import pandas as pd
    return pd.read_csv(NBS/'results/hacking.csv')

@pytest.mark.parametrize('key', KEPT, ids=KEPT.values())
def test_the_recorded_runs_of_reward_hacking_are_rows_of_the_table_and_differ_only_in_their_pay(key):
    import pandas as pd
    folders = {k:NBS/'results/hacking'/o for k,o in KEPT.items()}
    h = pd.read_json(folders[key]/'history.jsonl.gz', lines=True)
    t = hacking().set_index(['paid_for','rate','seed']).loc[key]
    got = h.groupby(h.index//(EVERY//4))[['reward','completions/mean_length']].mean()
    assert got.to_numpy()==pytest.approx(t[['reward','tokens']].to_numpy(), abs=6e-4)
    args = [json.loads((f/'settings.json').read_text(encoding='utf-8'))['args'] for f in folders.values()]
    assert {k for k in args[0] if args[0][k]!=args[1][k]}=={'output_dir', 'reward_weights'}
    assert (args[0]['learning_rate'], args[0]['seed'], args[0]['max_steps'])==(*key[1:], STEPS)

@pytest.fixture(scope='module')
def hack(): return chapter_names()

def test_a_run_of_reward_hacking_begins_as_its_row_says(hack):
    row = hacking().set_index(['paid_for','rate','seed','step']).loc['length', 3e-4, 0, EVERY]
    now, = rows_of(hack, 'length', 3e-4, 0, EVERY)
    assert [now['reward'], now['right']]==pytest.approx([row['reward'], row['right']], abs=.03)

@pytest.mark.slow
@pytest.mark.parametrize('paid_for', PAID)
def test_a_run_of_reward_hacking_comes_again(paid_for, hack):
    # another processor: the same story, not the same digits
    end = rows_of(hack, paid_for, 3e-4, 1)[-1]['held_out']
    assert end<.2 if paid_for=='length' else end>.5
