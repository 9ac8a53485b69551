"The speedrun: what counts as tokens, who has a record, and what is refused"
import json
from functools import partial
import pandas as pd, pytest
from grpo_nb.cli import main
from grpo_nb.parts.datasets import make_problems
from grpo_nb.studies.study import read_rows
from grpo_nb.run.folders import single_thread
from grpo_nb.studies import speedrun
from grpo_nb.studies.speedrun import entry_settings, records, run_entry, seeds_of
from grpo_nb.tasks import accuracy_reward
from grpo_nb.tiny_qwen import load_model
from grpo_nb.trainer import TrainConfig, train

PLAIN = dict(strategy='keep', num_generations=4, generation_batch_size=16, steps_per_generation=1)

@pytest.fixture
def entry(tmp_path):
    "A function that writes an entry's file and returns its FILE.py:NAME"
    def write(text=f'def entry(): return {PLAIN}\n'):
        (tmp_path/'own.py').write_text(text, encoding='utf-8')
        return f'{tmp_path}/own.py:entry'
    return write

def row_of(entry, **rules):
    job = dict(regime='sums', arm='own', seed=7, learning_rate=1e-4, settings='{}')
    return run_entry(job, entry, n_problems=20, **rules)

def history_of(tokens):
    "Tokens after each batch of the same run, made by the trainer alone"
    model,tokenizer = load_model('tiny')
    settings = PLAIN|dict(seed=7, max_steps=10**6, max_sampled_tokens=tokens, disable_tqdm=True)
    with single_thread():
        s = train(model, tokenizer, make_problems('sums', 2000, 7), accuracy_reward, TrainConfig(**settings),
            print_verdict=False)
    return [o['num_tokens'] for o in s.history]

def test_tokens_are_those_of_the_history_at_the_first_measurement_that_is_there(entry):
    got,history = row_of(entry(), level=0, every=200, max_tokens=400),history_of(400)
    first = next(o for o in history if o>=200)
    assert (got['reached'], got['tokens'])==(1, first) and first<history[-1]

def test_a_run_that_does_not_get_there_spends_its_tokens_and_has_no_record(entry):
    got,history = row_of(entry(), level=1.1, every=200, max_tokens=300),history_of(300)
    assert (got['reached'], got['tokens'])==(0, history[-1])
    measured = [o['tokens'] for o in json.loads(got['curve'])]
    assert measured[0]==0 and measured[-1]==history[-1] and {*measured[1:]}<={*history}

def row(arm, tokens, reached=1, source='a', error=''):
    return dict(arm=arm, source=source, tokens=tokens, reached=reached, error=error)

def test_a_record_is_a_mean_of_three_runs_that_all_got_there():
    table = records(pd.DataFrame([*(row('slow', o) for o in (30, 40, 50)),
        *(row('fast', o) for o in (20, 20, 26)), *(row('two', o) for o in (5, 6)),
        row('short', 1), row('short', 1), row('short', 9, reached=0),
        row('bad', 1), row('bad', 1), row('bad', 1), row('bad', None, reached=None, error='it fails'),
        row('fast', 1, source='b')]))
    assert table.tokens.dropna().to_dict()==dict(fast=22, slow=40)
    assert table.index[:2].tolist()==['fast','slow'] and table.reached['short']==2
    assert table.ci['slow']==pytest.approx(4.3027*10/3**.5, rel=1e-4)

def test_another_text_of_the_file_has_other_seeds(entry):
    path = entry().rpartition(':')[0]
    before = seeds_of(path, 4)
    assert seeds_of(path, 4)==before and len({*before})==4 and seeds_of(path, 2)==before[:2]
    entry(f'# lucky\ndef entry(): return {PLAIN}\n')
    assert not {*seeds_of(path, 4)} & {*before}

@pytest.mark.parametrize('name', ['max_steps', 'output_dir', 'seed', 'max_sampled_tokens', 'model',
    'eval_dataset', 'dataset', 'reward_funcs', 'callbacks'])
def test_what_is_fixed_is_refused_by_name(entry, name):
    with pytest.raises(ValueError, match=f'sets {name}, which is the same for all entries'):
        entry_settings(entry(f'entry = dict(method="keep", {name}=3)'))

@pytest.mark.parametrize('text, says', [
    ('def other(): return {}', 'entry'),
    ('def entry(): return 1/0', 'fails when called: ZeroDivisionError'),
    ('def entry(n): return {}', 'fails when called: TypeError'),
    ('entry = 3', 'gives a int'),
    ('entry = dict(lerning_rate=1)', 'lerning_rate'),
    ('entry = dict(learning_rate=-1)', 'learning_rate'),
    ('entry = (', 'could not be loaded'),
    (None, 'no file'), ('', 'no entry')])
def test_what_is_no_entry_is_one_line_and_writes_nothing(entry, tmp_path, capsys, text, says):
    named = entry(text or '') if text is not None else f'{tmp_path}/none.py:entry'
    if text=='': named = 'plain'
    with pytest.raises(SystemExit) as stop: main(['study','speedrun', named, '--out', f'{tmp_path}/rows.csv'])
    said = capsys.readouterr().err
    assert stop.value.code==2 and said.count('\n')==1 and says in said
    assert not (tmp_path/'rows.csv').exists()

def test_the_command_adds_a_row_per_seed_and_a_second_call_makes_none(entry, tmp_path, capsys, monkeypatch):
    small = partial(run_entry, level=0, every=50, max_tokens=300, n_problems=8)
    monkeypatch.setattr(speedrun, 'run_entry', small)
    named,out = entry(),tmp_path/'rows.csv'
    words = ['study','speedrun', named, '--seeds', '2', '--out', str(out), '--disable_tqdm']
    main(words)
    made = out.read_bytes()
    assert sorted(read_rows(out).seed)==sorted(seeds_of(named.rpartition(':')[0], 2))
    def fails(job, entry): raise ValueError('it was run again')
    monkeypatch.setattr(speedrun, 'run_entry', fails)
    main(words)
    assert out.read_bytes()==made and 'own.py:entry' in capsys.readouterr().out
