"""Wrong input, as typed, and what is said: what was seen, what is needed, what to do;
argparse's usage or one line, exit code 2, nothing made"""

import json, socket
import pytest
from grpo_nb.cli import main

ROWS = [dict(prompt=f'{a}+{b}=', answer=str(a+b)) for a in range(8) for b in range(8)]
TRAIN = 'train --dataset ok.jsonl --max_steps 4 --eval_problems 4 --disable_tqdm True'.split()

@pytest.fixture(scope='module')
def place(tmp_path_factory):
    "A folder with problems of every kind, a reward, a file and folders that are no runs"
    d = tmp_path_factory.mktemp('place')
    lines = lambda rows: '\n'.join(map(json.dumps, rows))
    text = {
        'ok.jsonl': lines(ROWS),
        'same.jsonl': lines(ROWS[:1] * 400),
        'one.jsonl': lines(ROWS[:1]),
        'question.jsonl': lines([dict(question='q')] * 30),
        'none.jsonl': lines([*ROWS, dict(prompt=None, answer='1')]),
        'unanswered.jsonl': lines([dict(prompt=o['prompt']) for o in ROWS]),
        'notes.txt': 'hello',
        'r.py': 'def r(completions, **kw): return [0. for _ in completions]\nnumber = 3\n'
                'def bad(completions, **kw): raise KeyError("answer")\n',
        'exits_at_once.py': 'import sys\nsys.exit(3)\n',
        'rollouts.jsonl': lines([dict(prompt=f'{i//2}', completion='x', reward=i%2) for i in range(8)]),
        'nones.jsonl': lines([*ROWS, dict(prompt='9+9=', answer=None)]),
        'nans.jsonl': lines([*ROWS, dict(prompt='9+9=', answer=float('nan'))]),
        'lists.jsonl': lines([*ROWS, dict(prompt='9+9=', answer=['18'])]),
        'hashes.jsonl': lines([*ROWS, dict(prompt='9+9=', answer='9 and 9 is\n#### 18')]),
    }
    for k,v in text.items(): (d/k).write_text(v)
    for o in ('folder','model','runs/demo-0'): (d/o).mkdir(parents=True)
    (d/'folder'/'thesis.tex').write_text('x')
    (d/'runs'/'demo-0'/'history.jsonl').write_text('')
    (d/'link').symlink_to(d/'gone')
    return d

# what is typed after `grpo_nb`; T stands for TRAIN. What must be said.
WRONG = """
trian                                       | did you mean 'train'
--verbose                                   | no command '--verbose'
train                                       | required: --dataset
train --dataset sum                         | 'sum'
train --dataset chain_sm                    | chain_sum
train --dataset nowhere.jsonl               | nowhere.jsonl
train --dataset folder                      | folder is not a file
train --dataset notes.txt                   | notes.txt
train --dataset question.jsonl              | --prompt_column question
train --dataset none.jsonl                  | row 64
train --dataset same.jsonl                  | 1 different prompt
train --dataset unanswered.jsonl            | --answer_column
train --dataset ok.jsonl --prompt_column q  | `q`
T --eval_dataset no.jsonl                   | no.jsonl
T --output_dir ok.jsonl                     | ok.jsonl is a file
T --output_dir folder                       | thesis.tex
T --num_generation 4                        | did you mean '--num_generations'
T --generation_batch_size 8000              | prompts a batch
T --max_completion_length 100000            | positions
T --reward_weights 1 2                      | reward_weights
T --strategy magic                            | no strategy 'magic'
T --resume                                  | no whole checkpoint
T --reward r.py                             | FILE.py:FUNCTION
T --reward r.py:x                           | no `x`
T --reward r.py:bad                         | bad
T --model ./nowhere                         | no such folder
T --model model                             | model can't be loaded
T --model ok.jsonl                          | ok.jsonl
T extra                                     | 'extra' belongs to no option
T -x                                        | no option '-x'
T --eval_problems 0                         | eval_problems
report                                      | required: folder
report nowhere                              | no folder 'nowhere'
report ok.jsonl                             | no column for completion
report folder                               | holds no record
diagnose nowhere                            | no folder 'nowhere'
demo --max_steps 0                          | 1 or more
demo --n_problems 0                         | 1 or more
batch --num_generations 0                   | num_generations
batch --mean_length 0                       | `mean_length` is 0.0, needs a number of tokens above 0
batch --pass_rates 2                        | 2
batch --world_size 0                        | world_size
bakeoff --arms x                            | no arm 'x'
bench --only sped                           | no part 'sped'
bench --rounds 0                            | rounds=0
T --dtype float16                           | invalid choice: 'float16'
trl --recipe gms8k                          | no recipe 'gms8k'
trl --model tiny                            | --dataset is missing
trl --dataset gone.jsonl --model tiny       | no such file or folder
run_nbs                                     | no command 'run_nbs'
watch nowhere                               | no folder 'nowhere'
watch rollouts.jsonl --port 99999           | port 99999 can't be used
watch rollouts.jsonl --port TAKEN           | can't be used (Address already in use)
train --dataset nones.jsonl                 | `answer` of row 64 is None (1 of 65 rows
train --dataset nans.jsonl                  | `answer` of row 64 is nan
train --dataset lists.jsonl                 | `answer` of row 64 is a list
train --dataset hashes.jsonl                | keep what follows the ####
T --eval_dataset ok.jsonl                   | all 4 held-out problems are among those
T --reward exits_at_once.py:r               | could not be loaded: SystemExit: 3
T --use_peft                                | those of TRL's trainers are for `grpo_nb trl`
T --report_to wandb                         | here history.jsonl has every number
T --num_train_epochs 3                      | here --max_steps
T --strategy plain                            | 'keep' is plain GRPO
T --output_dir link                         | link is a link to
T --output_dir link/run                     | which is not there
demo --output_dir link                      | which is not there
T --dataset ~/nowhere.jsonl                 | HOME/nowhere.jsonl is not a file
T --answer_column result                    | no column `result`; it has prompt, answer
report runs                                 | 'runs' holds no record
bakeoff --seeds 0                           | `seeds` is 0, needs 1 or more
"""
CASES = [tuple(o.strip() for o in line.rsplit('|', 1)) for line in WRONG.strip().splitlines()]

@pytest.mark.parametrize('typed,says', CASES, ids=[o[0] for o in CASES])
def test_wrong_input_gets_one_line_that_helps(typed, says, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    monkeypatch.setenv('HOME', str(place.parent/'HOME'))
    before = sorted(place.rglob('*'))
    words = [w for o in typed.split() for w in (TRAIN if o=='T' else [o])]
    monkeypatch.setattr('webbrowser.open', lambda *a: pytest.fail('served'))
    taken = socket.create_server(('127.0.0.1', 0))
    words = [str(taken.getsockname()[1]) if o=='TAKEN' else o for o in words]
    with taken, pytest.raises(SystemExit) as e: main(words)
    err = capsys.readouterr().err.strip()
    assert e.value.code==2 and says in err and 'Traceback' not in err, err
    assert len(err.splitlines())==1 or err.startswith('usage: '), err   # argparse's own words, or ours
    made = [o for o in sorted(place.rglob('*')) if o not in before and '__pycache__' not in o.parts]
    assert made==[], made

@pytest.mark.parametrize('written', ['as we write it', 'as bytes'])
def test_half_a_letter_in_an_answer_stops_no_command(written, tmp_path, capsys):
    "A lone surrogate, which no file in UTF-8 can hold, in prompt, answers and settings."
    from grpo_nb.run.record import Recorder, group_rows
    rec = Recorder(tmp_path/'run', settings=dict(seed=0, note='\ud800'))
    for step in (1, 2):
        rec.log(dict(step=step, reward=.5, num_tokens=100*step))
        rec.write_groups(step, group_rows(step, ['q\ud800'], ['x\udfff', '\ud83d'], [[0., 1.]]))
    f = tmp_path/'run'/'groups.jsonl'
    if written=='as bytes': f.write_bytes(f.read_bytes().replace(b'\\ud800', b'\xed\xa0\x80'))
    for typed in (['report', 'run'], ['inspect', 'run'], ['diagnose', 'run']):
        main([typed[0], *(str(tmp_path/o) for o in typed[1:])])
    assert len(capsys.readouterr().out.splitlines())>=3
    for page in tmp_path.rglob('*.html'): page.read_text(encoding='utf-8')
    assert len(list(tmp_path.rglob('*.html')))==2
