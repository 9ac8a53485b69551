"The command line, as a user types it"
import io, json, re, subprocess, sys
from pathlib import Path
import pandas as pd
import pytest
from grpo_nb.parts.registry import ADVANTAGES, LOSSES, STRATEGIES, register
from grpo_nb.cli import COMMANDS, SUBCOMMANDS, main, train_parser
from grpo_nb.demo import DEMOS, demo
from grpo_nb.parts.datasets import split_name
from grpo_nb.parts.stats import paired_share_ci
from grpo_nb.run.signals import forget_stop
from grpo_nb.run.reading import LoggedRun, read_run
from grpo_nb.on_trl.options import TrlArguments, find_recipe, load_training_rows
from grpo_nb.recipes import recipe_options
from made_runs import make_run

REWARD = '''
def is_even_length(completions, **kwargs):
    return [float(len(c)%2==0) for c in completions]
broken = 3
def raises(completions, **kwargs): raise KeyError('answer')
import os, signal
calls = []
def stopped(completions, **kwargs):   # measured once, then the second batch
    calls.append(len(completions))
    if len(calls)==3: os.kill(os.getpid(), signal.SIGTERM)
    return is_even_length(completions)
'''

@pytest.fixture
def mine(tmp_path, tables):
    "A user's folder: problems as JSON lines, and rewards"
    rows = [
        dict(prompt=f'{a}+{b}=', answer=str(a + b)) for a in range(8) for b in range(8)
    ] * 2  # each problem twice: equal prompts must not part
    (tmp_path/'mine.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    (tmp_path/'rewards.py').write_text(REWARD)
    return tmp_path

def train(d, *more):
    main(['train', '--dataset', str(d / 'mine.jsonl'), '--reward', f'{d}/rewards.py:is_even_length',
          '--output_dir', str(d / 'run'), '--num_generations', '4', '--generation_batch_size', '16',
          '--steps_per_generation', '2', '--max_steps', '4', '--max_completion_length', '8',
          '--eval_problems', '6', '--disable_tqdm', 'True', *more])

@pytest.mark.processes
def test_help_is_quick_and_imports_no_torch():
    code = ("import sys; from grpo_nb.cli import main; main(['--help']); "
            "assert not {'torch','transformers','trl','matplotlib','ipywidgets'} & set(sys.modules)")
    out = subprocess.run([sys.executable,'-c',code], capture_output=True, text=True)
    assert out.returncode==0, out.stderr
    assert [o for o in COMMANDS if o not in out.stdout]==[]

def test_every_command_names_a_function_that_is_there():
    from importlib import import_module
    for where in [o for o,_ in COMMANDS.values()]+[*SUBCOMMANDS.values()]:
        mod,name = where.split(':')
        assert callable(getattr(import_module(mod), name)), where

@pytest.mark.parametrize('command,n', [('train', 60), ('trl', 200)])
def test_the_help_of_a_trainer_lists_every_option_and_ends_with_commands_to_copy(command, n, capsys):
    with pytest.raises(SystemExit): main([command, '--help'])
    shown = capsys.readouterr().out
    assert len({*re.findall(r'^  (--\w+)', shown, flags=re.M)})>n
    read = dict(train=lambda o: train_parser().read(o),
        trl=lambda o: recipe_options(o, {}, find_recipe(o)))
    lines = shown[shown.index('examples:'):].splitlines()
    examples = [o.split()[2:] for o in lines if o.startswith(f'  grpo_nb {command} ')]
    for words in examples:   # each can be typed
        if '--accelerate_config' in words: words = words[:words.index('--accelerate_config')]
        assert read[command](words)
    assert len(examples)>3

def test_a_registered_loss_is_in_the_help_and_its_option_names_loss_kwargs(capsys):
    @register('loss', 'tanh_of_mine')
    def tanh(ratio, A, tanh_width=1.): return A*(ratio-1).mul(1/tanh_width).tanh()
    try:
        with pytest.raises(SystemExit): train_parser().read(['--help'])
        text = ' '.join(capsys.readouterr().out.split())
        with pytest.raises(ValueError, match='--loss_kwargs tanh_width='):
            train_parser().read(['--dataset', 'sums', '--tanh_width', '2'])
    finally: del LOSSES['tanh_of_mine']
    for registry in (LOSSES, ADVANTAGES, STRATEGIES):
        assert f'registered: {", ".join(registry)}' in text.replace(', tanh_of_mine', '')
    assert 'tanh_of_mine' in text

def test_a_second_demo_counts_on(tmp_path, monkeypatch, capsys):
    from grpo_nb import demo as M
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(M, 'make_problems', lambda *a, **kw: [dict(prompt='1+1')])
    went = []
    def run(model, tok, problems, held_out, reward, args, info, **how): return went.append(args.output_dir)
    monkeypatch.setattr(M, 'train_and_evaluate', run)
    for name in ('demo-0', 'demo-0-2'):
        main(['demo'])
        assert went[-1]==f'runs/{name}'
        Path(went[-1]).mkdir(parents=True)
        Path(went[-1], 'history.jsonl').touch()
    assert 'runs/demo-0 holds an earlier run: this one goes to runs/demo-0-2' in capsys.readouterr().out
    with pytest.raises(SystemExit) as e: main(['demo', '--output_dir', 'runs/demo-0'])   # it was chosen
    assert e.value.code==2 and len(went)==2

@pytest.mark.parametrize('typed', ['study bakeoff', 'bakeoff', 'study replay', 'replay_study', 'study real'])
def test_a_study_is_asked_for_by_its_name(typed, capsys):
    with pytest.raises(SystemExit) as e: main([*typed.split(), '--help'])
    assert e.value.code==0 and '--repeat' in capsys.readouterr().out
    with pytest.raises(SystemExit): main(['study', 'bakeof'])
    assert "no study 'bakeof': bakeoff, " in capsys.readouterr().err

def test_a_command_of_the_project_takes_names_anywhere_and_ends_in_one_line(monkeypatch, capsys):
    from grpo_nb.dev.__main__ import main as dev
    seen = []
    def run_nbs(names:list[str]|None=None, check:bool=False):
        seen.append((names, check))
        if names==['odd']: raise ValueError('no such notebook')
    monkeypatch.setattr('grpo_nb.dev.site.run_nbs', run_nbs)
    for words in ('run_nbs', 'run_nbs a b --check', 'run_nbs --check a b'): dev(words.split())
    assert seen==[(None, False), (['a','b'], True), (['a','b'], True)]
    with pytest.raises(SystemExit) as e: dev(['run_nbs', 'odd'])
    assert e.value.code==2 and capsys.readouterr().err=='run_nbs: no such notebook\n'
    with pytest.raises(SystemExit, match='usage: python -m grpo_nb.dev .run_nbs,clean'): dev(['rnu_nbs'])

def test_a_users_problems_and_reward_train_and_leave_a_report(mine, capsys):
    train(mine)
    s = json.loads((mine/'run'/'summary.json').read_text())
    assert (0 < s['before']['n_problems'] == s['after']['n_problems'] <= 6
            and 0 <= s['before']['ci'][0] <= s['before']['pass@1'] <= s['before']['ci'][1] <= 1)
    assert s['samples'] and not {'texts'} & {*s['before'], *s['after']}   # said once
    assert s['steps']==4 and s['seed']==0 and s['train_s']<s['total_s'] and s['versions']['torch']
    r = read_run(mine/'run')
    assert len(r.history)==2 and len(r.groups)==8
    assert 'report' in capsys.readouterr().out

def test_held_out_problems_are_not_trained_on(mine, monkeypatch):
    import grpo_nb.demo as tr
    seen = {}
    real,ev = tr.train,tr.evaluate
    monkeypatch.setattr(tr, 'train',
                        lambda m, t, ds, *a, **k: (seen.update(train={str(o['prompt']) for o in ds}),
                                                   real(m, t, ds, *a, **k))[1])
    monkeypatch.setattr(tr, 'evaluate',
                        lambda m, t, ds, *a, **k: (seen.update(test={str(o['prompt']) for o in ds}),
                                                   ev(m, t, ds, *a, **k))[1])
    train(mine)
    assert seen['train'] and seen['test'] and not seen['train']&seen['test']

def test_a_run_that_sigterm_stops_is_saved_and_not_measured(mine, capsys):
    with pytest.raises(SystemExit) as e:
        train(mine, '--max_steps','8', '--reward',f'{mine}/rewards.py:stopped')
    output = capsys.readouterr()
    assert e.value.code==128+15 and 'SIGTERM at step 4: saved; resume with --resume' in output.out+output.err
    assert output.err.endswith('grpo_nb train: stopped; nothing more was written\n')
    assert 'after:' not in output.out
    assert (mine/'run'/'checkpoint-4').exists() and not (mine/'run'/'summary.json').exists()
    forget_stop()   # as a process of its own
    train(mine, '--max_steps','8', '--reward',f'{mine}/rewards.py:stopped', '--resume','True')
    assert json.loads((mine/'run'/'summary.json').read_text(encoding='utf-8'))['steps']==8
    assert read_run(mine/'run').history['step'].tolist()==[0, 2, 4, 6]

def test_an_option_whose_default_is_none_is_read_as_its_type():
    read = lambda *words: train_parser().read(['--dataset', 'sums', *words])[1]
    assert (read().delta, read().reward_weights)==(None, None)
    a = read('--delta', '2', '--reward_weights', '1', '2')
    assert a.delta==2. and a.reward_weights==[1., 2.]
    with pytest.raises(ValueError, match="delta: invalid float value: 'nothing'"): read('--delta', 'nothing')

def test_every_setting_is_an_option_with_the_trainers_default():
    from dataclasses import fields
    from grpo_nb.trainer import TrainConfig
    got = train_parser().read(['--dataset', 'sums', '--output_dir', 'x'])[1]
    assert {f.name:getattr(got, f.name) for f in fields(TrainConfig)}==vars(TrainConfig(output_dir='x'))

@pytest.mark.parametrize('more,says', [('', 'of an earlier run'),
    ('--resume True --epsilon .3', 'epsilon: 0.2 then, 0.3 now'),
    ('--resume True --learning_rate .3', 'learning_rate: 0.0001 then, 0.3 now'),
    ('--resume True --strategy skip', 'strategy: replay then, skip now')])
def test_a_folder_that_does_not_fit_is_refused_before_anything_is_measured(more, says, mine, monkeypatch,
        capsys):
    import grpo_nb.demo as tr
    train(mine)
    monkeypatch.setattr(tr, 'evaluate', lambda *a, **k: pytest.fail('measured first'))
    with pytest.raises(SystemExit) as e: train(mine, *more.split())
    assert e.value.code==2 and says in capsys.readouterr().err

@pytest.mark.parametrize('more,says', [
    ('--device gpu', '--device'), ('--device meta', '--device'), ('--config', '--config needs a file'),
    ('--loss_kwargs wdith=1', 'no options of the loss'),
    ('--strategy {}/rewards.py:is_even_length', 'DeadGroupStrategy'),
    ('--replay_priority {}/rewards.py:is_even_length', 'entries and the step')])
def test_what_a_user_may_mistype_ends_in_one_line_before_anything_is_measured(more, says, mine, monkeypatch,
    capsys):
    import grpo_nb.demo as tr
    monkeypatch.setattr(tr, 'evaluate', lambda *a, **k: pytest.fail('measured first'))
    with pytest.raises(SystemExit) as e: train(mine, *more.format(mine).split())
    assert e.value.code==2 and says in capsys.readouterr().err and not (mine/'run').exists()

BAD_TASK = 'def none(n, seed=0, split="train"): return None\n'

@pytest.mark.parametrize('more,says', [
    ('--dataset {d}/null.jsonl', '`answer` of row 0 is None'),
    ('--dataset {d}/task.py:none', 'a function that returns rows'),
    ('--config {d}/binary.yaml', '--config is not YAML'),
    ('--total_batch_size 0', '`total_batch_size` is 0'),
    ('--reward {d}/short.py:without', 'takes no `answer`'),
    ('--replay_priority {d}/rewards.py:is_even_length', 'entries and the step'),
    ('--output_dir {d}/run --resume yes', 'a checkpoint of `grpo_nb train`')])
def test_a_run_on_trl_refuses_what_it_cannot_use_before_it_samples(more, says, mine, capsys, monkeypatch):
    from trl import GRPOTrainer
    monkeypatch.setattr(GRPOTrainer, '_generate', lambda *a, **k: pytest.fail('sampled first'))
    (mine/'null.jsonl').write_text('\n'.join(json.dumps(dict(prompt=str(i), answer=None)) for i in range(9)))
    (mine/'task.py').write_text(BAD_TASK)
    (mine/'binary.yaml').write_bytes(b'\0\1')
    (mine/'short.py').write_text('def without(completions): return [1.]*len(completions)')
    if 'resume' in more: train(mine)
    with pytest.raises(SystemExit) as e:
        main(['trl', '--dataset', str(mine/'mine.jsonl'), '--model', 'tiny', '--max_steps', '2',
            '--num_generations', '4', '--output_dir', str(mine/'trl'), *more.format(d=mine).split()])
    assert e.value.code==2 and says in capsys.readouterr().err

def test_eval_steps_measures_the_held_out_problems_on_the_way(mine):
    train(mine, '--eval_steps','2')
    h = read_run(mine/'run').history
    assert h['eval/pass@1'].notna().all() and (h['eval/low']<=h['eval/pass@1']).all()

def test_the_demo_of_a_pretrained_model_ends_answers_at_the_line_and_measures_the_likeliest(
        tmp_path, monkeypatch, capsys):
    "With the tiny Qwen in the pretrained model's place: its newline is one token, too"
    from grpo_nb.demo import demo
    from grpo_nb.see.readers import open_run
    from grpo_nb.tiny_qwen import load_model
    net,tok = load_model('tiny')
    monkeypatch.setattr('grpo_nb.demo.load_model', lambda name: (net, tok))
    s = demo('smollm2', seed=3, output_dir=str(tmp_path/'run'), max_steps=2, n_problems=6, disable_tqdm=True)
    newline = tok('\n')['input_ids'][0]
    assert newline in net.generation_config.eos_token_id
    assert s['model']=='smollm2' and s['steps']==2 and s['before']['n_problems']==6
    assert 0<=s['before']['greedy']<=1 and 0<=s['after']['greedy']<=1
    for row in open_run(tmp_path/'run').rows:
        assert [text for text in row['completions'] if '\n' in text.rstrip('\n')]==[]
    assert 'with the likeliest answers' in capsys.readouterr().out

def test_a_task_with_few_problems_gives_all_it_has_to_train_on_and_to_hold_out(capsys):
    from grpo_nb.cli import _problems
    train,held = _problems('products', None, 100, 0, False)
    assert len(set(train['prompt']))==len(train)==250 and not set(train['prompt'])&set(held['prompt'])
    assert len(train)+len(held)==310   # 8 times 39 products, but for the two of the examples
    assert 'products has 250 different problems on the train side' in capsys.readouterr().out
    rows = load_training_rows(TrlArguments(dataset='products'))
    assert rows.to_list()==train.to_list()
    assert 'products has 250 different problems on the train side' in capsys.readouterr().out
    train,held = _problems('prime_factorization', None, 500, 0, False)   # of the numbers from 2 to 1000
    assert 750<len(train)<850 and len({o[0]['content'] for o in train['prompt']})==len(train)
    assert len(train)+len(held)<=999
    assert f'prime_factorization has {len(train)} different problems' in capsys.readouterr().out

def test_a_named_task_is_held_out_by_the_file_and_asked_as_chat_if_it_shall(mine, monkeypatch):
    from grpo_nb.cli import _problems
    columns = dict(prompt='prompt', answer='answer', compared=True)
    train,held = _problems('sums', str(mine/'mine.jsonl'), 6, 0, False, **columns)
    assert held['prompt']==['0+0=', '0+1=', '0+2=', '0+3=', '0+4=', '0+5='] and len(train)==2000
    sides = _problems('two_digit_sums', None, 5, 0, True, **columns)
    assert [[m['role'] for m in o[0]['prompt']] for o in sides]==[['user'], ['user']]
    monkeypatch.chdir(mine)
    (mine/'sums').mkdir()   # a folder of that name changes nothing
    assert _problems('sums', None, 6, 0, False, **columns)[0]['prompt']==train['prompt']

def test_a_demo_without_held_out_problems_names_the_option(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit): main(['demo', '--n_problems', '0'])
    assert '`n_problems` is 0' in capsys.readouterr().err and not [*tmp_path.iterdir()]

def test_the_demo_measures_trains_and_leaves_its_folder(tmp_path, capsys):
    s = demo(seed=3, output_dir=str(tmp_path/'run'), max_steps=8, n_problems=60, disable_tqdm=True)
    assert json.loads((tmp_path/'run'/'summary.json').read_text())==json.loads(json.dumps(s))
    assert s['before']['n_problems']==60 and s['groups']==32 and 0<=s['replaced']<=s['dead']
    assert (tmp_path/'run'/'report.html').stat().st_size>10_000
    out = capsys.readouterr().out
    assert 'before:' in out and 'after:' in out and 'jupyter lab' in out

# ---- one run, one diagnosis

def test_the_last_word_of_a_run_is_that_of_its_report_and_of_diagnose(mine, capsys):
    from grpo_nb.see.readers import diagnose
    from grpo_nb.see.readers import judge_run
    train(mine)
    output,run = capsys.readouterr().out,read_run(mine/'run')
    v,found = judge_run(run)
    assert str(v) in output and v.cause and 'not on record' not in output+str(found)
    assert '8' in v.cause   # max_completion_length, from settings.json
    assert str(diagnose(mine/'run'))==str(found) and found[0].message in v.cause
    assert json.loads((mine/'run'/'summary.json').read_text())['verdict']['sentence']==v.sentence

def test_a_difference_over_the_same_problems_is_taken_problem_by_problem_everywhere(tmp_path, capsys,
        monkeypatch):
    from grpo_nb.see.readers import judge_run
    monkeypatch.chdir(tmp_path)   # far from the notebooks
    room = sys.modules['grpo_nb.demo']
    answers = room._samples
    monkeypatch.setattr(room, '_samples', lambda *a: [o|dict(after='red\x1b[31m') for o in answers(*a)])
    s = demo(seed=3, output_dir=str(tmp_path/'run'), max_steps=4, n_problems=40, disable_tqdm=True)
    a,b = (s[k]['num_correct'] for k in ('before','after'))
    d = [y-x for x,y in zip(a, b)]
    m = sum(d)/40
    low,high = paired_share_ci(d.count(1), d.count(-1), 40)
    half = max(m-low, high-m)
    want = f'{100*m:+.1f} points ± {100*half:.1f}'.replace('-', '−')
    out = capsys.readouterr().out
    assert 'https://grpo-nb.github.io' in out and 'jupyter' not in out
    assert r'  after:  red\x1b[31m' in out and '\x1b[31m' not in out
    assert want in out and want in judge_run(read_run(tmp_path/'run'))[0].sentence
    assert 'Too early to tell: after 4 of the usual 200 steps, ' in out and DEMOS['tiny']['hint'] in out

def test_a_demo_cut_short_is_called_too_early_and_a_whole_one_gets_a_verdict():
    from grpo_nb.see.readers import judge_run
    rows = [dict(step=4*i, reward=.4+.05*(-1)**i, frac_reward_zero_std=.4) for i in range(6)]
    def judged(done, right):
        before,after = ({'pass@1':x, 'ci':(x-.04, x+.04), 'n_problems':500} for x in (.386, right))
        summary = dict(before=before, after=after, steps=done, full_run=dict(steps=200, hint='it dips'))
        return judge_run(LoggedRun(Path('run'), {}, pd.DataFrame(rows), [], summary))[0]
    fell = judged(24, .3)
    assert fell.learned is None and fell.advice=='run all 200 steps: it dips'
    assert fell.sentence==('Too early to tell: after 24 of the usual 200 steps, '
        'held-out pass@1 went from 38.6% to 30.0% (−8.6 points ± 5.7).')
    level = judged(24, .38)
    assert level.sentence.startswith('Too early to tell: after 24 of the usual 200 steps, ')
    assert level.sentence.endswith('; the interval holds 0.')
    assert judged(24, .6).sentence.startswith('It learned: ') and judged(24, .6).learned
    whole = judged(200, .3)
    assert whole.learned is False and whole.sentence.startswith('It got worse: ')

# ---- what is typed, and works

def test_a_reward_may_import_its_neighbour_and_is_named_as_pytest_does(mine):
    (mine/'my_helper.py').write_text('def odd(t): return float(len(t)%2)\n')
    (mine/'near.py').write_text('from my_helper import odd\n'
                                'def r(completions, **kwargs): return [odd(o) for o in completions]\n')
    train(mine, '--reward', f'{mine}/near.py::r')
    assert 'rewards/r/mean' in read_run(mine/'run').history

def test_a_tilde_that_the_shell_left_is_the_home_folder(mine, monkeypatch):
    monkeypatch.setenv('HOME', str(mine))
    monkeypatch.chdir(mine)
    train(mine, '--dataset=~/mine.jsonl', '--output_dir', '~/there')
    assert (mine/'there'/'report.html').exists() and not (mine/'~').exists()

def test_a_table_of_rollouts_gets_its_pages_beside_it(tmp_path, capsys):
    rows = [dict(prompt=f'q{i//4}', completion=f'x{i}', reward=float(i%2), step=i//16) for i in range(64)]
    (tmp_path/'mine.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    for command in ('inspect','report'): main([command, str(tmp_path/'mine.jsonl')])
    assert sorted(o.name for o in tmp_path.iterdir())==['inspector.html','mine.jsonl','report.html']
    main(['report', str(tmp_path/'mine.jsonl'), '--out', str(tmp_path/'pages'/'x.html')])
    assert (tmp_path/'pages'/'x.html').is_file()
    (tmp_path/'report.html').write_text('<p>mine</p>')
    with pytest.raises(SystemExit): main(['report', str(tmp_path/'mine.jsonl')])
    assert 'was not written by grpo_nb' in capsys.readouterr().err

def test_some_held_out_problems_among_those_trained_on_are_counted(mine, capsys):
    rows = [dict(prompt=f'{a}+{a}=', answer=str(2*a)) for a in range(6, 10)]
    (mine/'held.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    train(mine, '--eval_dataset', str(mine/'held.jsonl'))
    assert 'note: 2 of 4 held-out problems are among those trained on' in capsys.readouterr().out

def test_a_terminal_that_knows_ascii_alone_ends_no_command(tmp_path, monkeypatch):
    make_run(tmp_path/'a')
    terminal = io.TextIOWrapper(io.BytesIO(), encoding='ascii')
    monkeypatch.setattr('sys.stdout', terminal)
    main(['diagnose', str(tmp_path/'a')])
    print('difference −1 ± 2', flush=True)
    assert terminal.buffer.getvalue().decode('ascii').endswith('difference \\u22121 \\xb1 2\n')

# ---- rows are named as the file has them, and their texts don't steer the terminal

@pytest.mark.parametrize('side', ['train','test'])
def test_a_prompt_that_is_too_long_is_named_by_its_row_in_the_file(side, tmp_path, capsys):
    prompts = [f'{i} + 1 =' for i in range(60)]
    tail = next(k for k in range(999) if split_name('1+'*5000+str(k), .1)==side)
    prompts[41] = '1+'*5000+str(tail)
    (tmp_path/'p.jsonl').write_text(''.join(json.dumps(dict(prompt=o, answer='1'))+'\n' for o in prompts))
    with pytest.raises(SystemExit):
        main(['train', '--dataset', str(tmp_path/'p.jsonl'), '--output_dir', str(tmp_path/'r'),
            '--generation_batch_size', '8', '--steps_per_generation', '1'])
    err = capsys.readouterr().err
    assert "row 41's prompt has" in err and ('held-out problems: ' in err)==(side=='test')

def test_what_a_file_holds_does_not_steer_the_terminal(tmp_path, capsys):
    (tmp_path/'p.jsonl').write_text(json.dumps({'a\x1b[2Jb\u202e':1}))
    with pytest.raises(SystemExit): main(['train', '--dataset', str(tmp_path/'p.jsonl'), '--output_dir',
        str(tmp_path/'r')])
    err = capsys.readouterr().err
    assert r'a\x1b[2Jb\u202e' in err and '\x1b' not in err and '\u202e' not in err
