"Recipes: rewards to the digit, words and YAML to settings, runs end to end on the tiny Qwen."

import json, os, subprocess, sys
from dataclasses import fields
from functools import partial
from pathlib import Path
import pytest, yaml
from grpo_nb import recipes as R
from grpo_nb import tasks
from grpo_nb.recipes import length_reward, recipe_options, train_trl
from grpo_nb.on_trl.config import GRPOWithReplayBufferConfig
from grpo_nb.on_trl.options import TrlArguments, TrlOptions
from trl import GRPOConfig, ModelConfig
from grpo_nb.parts.datasets import SYSTEM_PROMPT, chain_sum
from grpo_nb.parts.registry import import_file
from grpo_nb.run.signals import Stopped

gsm8k,numinamath,tldr = (partial(train_trl, recipe=o) for o in ('gsm8k', 'numinamath', 'tldr'))

E = import_file(Path(__file__).parents[1]/'nbs'/'catalogue'/'easydel.py')   # rewards to copy

GOOD = '<think>\nx\n</think>\n<answer>\n4\n</answer>\n'

ANSWERS = [(GOOD, [.5,0.,.5,.5,2.]), (GOOD[:-1], [.5+.001-.001*len(GOOD[:-1]),0.,0.,.5,2.]),
           ('4', [0.,0.,0.,.5,2.]), ('', [0.,0.,0.,0.,0.]),
           (' <think>x</think><answer>4</answer>', [0.,0.,0.,.5,2.]),
           ('<think>x</think><answer>5</answer> and more', [0.,.5,0.,.5,0.]),
           (GOOD.replace('4', '-4'), [.5,0.,.5,0.,0.]), (GOOD.replace('x', 'x\ny'), [.5,0.,0.,.5,2.]),
           (GOOD*2+'so', [0.,0.,0.,.5,2.]), (GOOD.replace('x\n', 'x'), [.375,0.,0.,.5,2.])]

@pytest.mark.parametrize('text,want', ANSWERS)
def test_gsm8k_rewards_to_the_digit(text, want):
    for chat in (False, True):
        c = [[dict(role='assistant', content=text)]] if chat else [text]
        got = [f(prompts=None, completions=c, answer=['4'])[0] for f in E.GSM8K]
        assert got==pytest.approx(want, abs=1e-12)

BEHIND = dict(   # how the prompt may end, and what then is an answer in good form
    opened=('<think>\n', GOOD.removeprefix('<think>\n')),
    closed=('<think>\n\n</think>\n\n', '<answer>4</answer>'))

@pytest.mark.parametrize('start,said', BEHIND.values(), ids=BEHIND)
def test_form_is_that_of_the_answer_together_with_what_its_prompt_began(start, said):
    forms = [*E.GSM8K[:3], E.form, tasks.format_reward]
    def paid(text, prompt='q', **kw):
        chat = [dict(role='assistant', content=text)]
        return [[f(prompts=[prompt], completions=[c], **kw)[0] for f in forms] for c in (text, chat)]
    together = paid(start+said)
    assert paid(said)!=together==paid(said, completion_start=[start])==paid(said, 'q'+start)
    # tags elsewhere in the prompt begin nothing; and what was good form by itself stays so
    assert paid(said)==paid(said, f'Write {start} and more')==paid(said, start+'q')
    assert paid(GOOD, completion_start=[start])==paid(GOOD)

def test_the_beginning_goes_with_its_own_row():
    inside = BEHIND['opened'][1]
    got = tasks.format_reward(None, [inside, GOOD, inside], completion_start=['<think>\n','',''])
    assert got==[1., 1., 0.]

def test_answers_are_matched_row_by_row_not_tiled():
    correct = E.correctness
    assert correct(completions=['1','2','3','4'], answer=['1','1','3','3'])==[2.,0.,2.,0.]
    with pytest.raises(ValueError): correct(completions=['1','2'], answer=['1'])

def test_numinamath_rewards_to_the_digit():
    form,acc = E.NUMINAMATH
    texts = ['<think>a</think><answer>b</answer>', '<think>a</think>\n\n<answer>b</answer>',
        '<think>a</think><answer>b</answer>x', '<think>a\nb</think><answer>c</answer>', 'x']
    assert form(completions=texts)==[1.,1.,0.,0.,0.]
    box = r'$\boxed{\frac{1}{2}}$'
    assert acc(completions=[r'$\frac{1}{2}$','$0.5$','$2$','nothing'], solution=[box]*4)==[1.,1.,0.,0.]
    assert acc(completions=['x'], solution=['a proof'])==[1.]

def test_length_reward_is_that_of_the_quick_start():
    assert length_reward(['a'*20,'a'*23,''])==[0.,-3.,-20.]

# -- options -----------------------------------------------------------------------------------------

def read(words, settings=None): return R.recipe_options(words, settings or {}, 'gsm8k')

def test_every_field_is_an_option():
    known = {a.dest for a in TrlOptions(GRPOWithReplayBufferConfig)._actions}
    for cls in (TrlArguments, GRPOWithReplayBufferConfig):
        assert {f.name for f in fields(cls) if f.init}<=known

def test_the_tutorials_command_line_is_understood():
    words = '''--repo_id meta-llama/Llama-3.1-8B-Instruct --attn_mechanism vanilla --max_prompt_length 2048
        --max_new_tokens 1024 --beta 0.04 --top_p 0.95 --top_k 50 --num_return_sequences 4
        --total_batch_size 16 --learning_rate 1e-6
        --num_train_epochs 3 --use_wandb'''
    r,a = read(words.split())
    assert (r.model, r.attn_mechanism, r.max_prompt_length) == ('meta-llama/Llama-3.1-8B-Instruct',
                                                                'vanilla', 2048)
    assert (a.max_completion_length, a.num_generations, a.generation_batch_size, a.report_to) == (1024, 4,
        64, ['wandb'])
    assert (a.beta, a.top_p, a.top_k, a.learning_rate, a.num_train_epochs)==(.04, .95, 50, 1e-6, 3)

def test_model_name_is_the_name_of_the_run_and_never_a_model(tmp_path):
    (tmp_path/'a.yaml').write_text('model_name: monday\nrepo_id: tiny\n')
    for r,a in (read(['--model_name','monday','--repo_id','tiny']),
                read(['--model_name=monday'], dict(model='tiny')),
                read(['--config',str(tmp_path/'a.yaml')])):
        assert (r.model, a.run_name)==('tiny', 'monday')
    (tmp_path/'b.yaml').write_text('model_name: Qwen/Qwen3-4B\n')
    for words,settings in ((['--model_name','Qwen/Qwen3-4B'], {}), (['--model_name=Qwen/Qwen3-4B'], {}),
                           ([], dict(model_name='Qwen/Qwen3-4B')), (['--config',str(tmp_path/'b.yaml')], {})):
        with pytest.raises(ValueError, match="'Qwen/Qwen3-4B' looks like a model"):
            read(words, settings)

def test_the_system_message_asks_for_every_line_break_that_is_paid_for():
    form = SYSTEM_PROMPT[SYSTEM_PROMPT.index('<think>'):]
    best = [f(completions=[GOOD], answer=['4'])[0] for f in E.GSM8K]
    got = [f(completions=[form.replace('the answer and nothing else', '4')], answer=['4'])[0]
           for f in E.GSM8K]
    assert got==best==[.5,0.,.5,.5,2.]   # the soft form wants one line, which excludes the strict one
    flat = form.replace('\n', '')
    assert [f(completions=[flat], answer=['4'])[0] for f in E.GSM8K][:3]==[0.,.5,0.]

def test_words_win_over_names_and_names_over_the_file(tmp_path):
    f = tmp_path/'a.yaml'
    f.write_text('repo_id: tiny\nbeta: 0.5\ntop_k: 7\nsync_ref_model: true\n'
                 'max_completion_length: 9\nreward_weights: [1, 1, 2]\n')
    r,a = read(['--config',str(f),'--beta','0.1'], dict(top_k=8, beta=.2))
    assert (r.model, a.beta, a.top_k, a.sync_ref_model, a.max_completion_length)==('tiny', .1, 8, True, 9)
    assert (a.reward_weights, a.ref_model_mixup_alpha)==([1, 1, 2], .9)

@pytest.mark.parametrize('words,want', [('', 'no'), ('--resume', 'yes'), ('--resume --beta 0', 'yes'),
    ('--resume auto --beta 0', 'auto')])
def test_resume_alone_means_yes(words, want): assert read(words.split())[0].resume==want

# -- the plan ----------------------------------------------------------------------------------------

def test_a_batch_that_processes_can_not_share_is_refused():
    with pytest.raises(ValueError, match='which 5 processes cannot share'):
        gsm8k(model='tiny', dry_run=True, num_processes=5)


def test_dry_run_prints_the_plan_and_loads_nothing(capsys):
    words = '''--model Qwen/Qwen2.5-7B-Instruct --num_processes 64 --num_generations 16
        --total_batch_size 32 --max_completion_length 1024 --dry_run'''
    plan = gsm8k(words.split())
    assert (plan['world_size'], plan['prompts'], len(plan['straddling']))==(64, 32, 32)
    assert '512 completions for 32 prompts' in capsys.readouterr().out

def test_a_plan_for_8_processes_is_legal_where_the_run_would_be():
    eight = dict(model='tiny', dry_run=True, num_processes=8, per_device_train_batch_size=3)
    plan = gsm8k(steps_per_generation=2, gradient_accumulation_steps=2, num_generations=8, **eight)
    assert [plan[k] for k in ('completions_per_process','completions','prompts')]==[6, 48, 6]
    with pytest.raises(ValueError, match='divisible'):
        gsm8k(steps_per_generation=1, num_generations=16, **eight)

# -- runs --------------------------------------------------------------------------------------------

ROWS = dict(gsm8k=[dict(question=f'{a}+{a}?', answer=f'x\n#### {a+a}') for a in range(8)],
    numinamath=[dict(problem=f'{a}+{a}?', solution=rf'$\boxed{{{a+a}}}$', messages=[]) for a in range(8)],
    tldr=[dict(prompt=f'POST: cat {a} sleeps\nTL;DR:', completion=f' cat {a}') for a in range(8)])
SMALL = dict(model='tiny', total_batch_size=2, num_generations=4, max_completion_length=8, logging_steps=1,
    save_strategy='no', gradient_checkpointing=False, temperature=1., disable_tqdm=True)

def as_words(settings):
    return [o for k, v in settings.items()
            for o in (f'--{k}', str(v).lower() if isinstance(v, bool) else str(v))]


@pytest.mark.parametrize('name,reward', [('gsm8k', 'accuracy_reward'), ('numinamath', 'accuracy_reward'),
    ('tldr', 'length_reward')])
def test_a_recipe_runs_end_to_end_on_rows_in_the_hubs_format(name, reward, tmp_path):
    (tmp_path/'rows.jsonl').write_text('\n'.join(map(json.dumps, ROWS[name])))
    own = dict(dataset=tmp_path / 'rows.jsonl', output_dir=tmp_path / 'out', max_steps=2,
               ref_model_sync_steps=1, beta=0.01)
    t = globals()[name](as_words(SMALL|own)+['--sync_ref_model'])
    assert t.state.global_step==2 and (tmp_path/'out'/'model.safetensors').exists()
    assert {f'rewards/{reward}/mean','replay/dead','kl'} <= set(t.state.log_history[0])

def test_long_prompts_are_left_out_and_templates_can_be_skipped(tmp_path, capsys):
    rows = ROWS['gsm8k']+[dict(question='x'*400, answer='#### 1')]
    opts = SMALL|dict(output_dir=str(tmp_path), max_steps=1, rows=rows)
    t = gsm8k(max_prompt_length=400, skip_apply_chat_template=True, **opts)
    assert isinstance(t.train_dataset[0]['prompt'], str) and len(t.train_dataset)==8
    assert t.train_dataset[0]['prompt'].startswith(SYSTEM_PROMPT)
    assert '1 of 9 prompts' in capsys.readouterr().out
    with pytest.raises(ValueError, match='all 9 prompts have more than 2 tokens'):
        gsm8k(max_prompt_length=2, **opts|dict(output_dir=str(tmp_path/'short')))


def test_what_is_held_out_is_measured_three_times_and_never_trained_on(tmp_path, capsys):
    rows = [dict(question=f'{a}+{b}?', answer=f'#### {a+b}') for a in range(4) for b in range(4)]
    t = gsm8k(rows=rows, held_out=6, max_steps=4, output_dir=str(tmp_path), **SMALL)
    train,held = ({str(o['prompt']) for o in ds} for ds in (t.train_dataset, t.eval_dataset))
    assert (len(train), len(held))==(10, 6) and not train & held
    lines = [o for o in capsys.readouterr().out.splitlines() if '% right (95 %' in o]
    assert [o.split(':')[0] for o in lines]==['step 0', 'step 2', 'step 4']
    with pytest.raises(ValueError, match='leave some to train on'):
        gsm8k(rows=rows, held_out=16, max_steps=1, output_dir=str(tmp_path/'no'), **SMALL)

def test_another_reward_of_that_name_is_no_share_of_right_answers(tmp_path, capsys):
    (tmp_path/'own.py').write_text('def accuracy_reward(completions, **kwargs): return [2.]*len(completions)')
    rows = [dict(question=f'{a}+{b}?', answer=f'#### {a+b}') for a in range(4) for b in range(4)]
    gsm8k(rows=rows, held_out=6, max_steps=1, reward=[f'{tmp_path}/own.py:accuracy_reward'],
        output_dir=str(tmp_path/'run'), **SMALL)
    assert '% right' not in capsys.readouterr().out and (tmp_path/'run'/'model.safetensors').exists()

def test_the_share_right_has_its_interval(capsys):
    log = [dict(loss=1.0), {'eval_reward': 1.0, 'eval_rewards/accuracy_reward/mean': 0.25,
                            'eval_rewards/whole/mean': 0.1, 'step': 3}]
    R._print_held_out(log, 8)   # 2 of 8; Wilson's interval by hand: .0715 to .5907
    assert capsys.readouterr().out=='step 3: 25.0% right (95 % 7.1% to 59.1%)\n'

def test_a_recipe_takes_the_split_that_is_asked_for(monkeypatch):
    asked = []
    def hub_rows(name, config, split):
        asked.append((name, split))
        return ROWS['gsm8k']
    monkeypatch.setattr(R.datasets, 'hub_rows', hub_rows)
    for more in ([], ['--dataset_split', 'test']):
        r,_ = R.recipe_options(['--recipe', 'gsm8k', '--model', 'tiny', *more], {}, 'gsm8k')
        assert len(R._load_rows(r, None))==8
    assert asked==[('openai/gsm8k', 'train'), ('openai/gsm8k', 'test')]

def test_model_and_tokenizer_are_of_one_revision(monkeypatch):
    from grpo_nb.parts import loading
    asked = []
    for o in (loading.AutoTokenizer, loading.AutoModelForCausalLM):
        def load(where, revision='main', load=o.from_pretrained, **kw):
            asked.append(revision)
            return load(where, **kw)
        monkeypatch.setattr(o, 'from_pretrained', load)
    r,_ = R.recipe_options(['--recipe', 'gsm8k', '--model', 'tiny', '--model_revision', 'v2'], {}, 'gsm8k')
    R._load(r)
    assert asked==['v2', 'v2']

# -- several processes, and what can't work ----------------------------------------------------------

def words(name, d, **more):
    "A run of two steps on rows made here."
    (d/f'{name}.jsonl').write_text('\n'.join(map(json.dumps, ROWS[name])))
    own = dict(dataset=d/f'{name}.jsonl', output_dir=d/name, max_steps=2, total_batch_size=4)
    return [name, *as_words(SMALL|own|more)]

@pytest.mark.slow
@pytest.mark.processes
def test_the_command_starts_two_processes_by_a_file_that_trl_ships(tmp_path):
    "From a YAML file, without a launcher in front."
    from grpo_nb.run.reading import read_run
    w = words('gsm8k', tmp_path)
    settings = '\n'.join(f'{k[2:]}: {v}' for k,v in zip(w[1::2], w[2::2]))
    (tmp_path/'run.yaml').write_text(settings+'\nreplay_buffer_size: 8\n')
    env = os.environ|dict(OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1', PYTHONPATH=str(Path(__file__).parents[1]))
    start = '-m grpo_nb trl --accelerate_config multi_gpu --num_processes 2 --mixed_precision no'
    start += f' --recipe gsm8k --config {tmp_path}/run.yaml --beta 0.01'
    how = dict(cwd=tmp_path, env=env, capture_output=True, text=True)
    r = subprocess.run([sys.executable, *start.split()], **how,
        timeout=400)
    assert r.returncode==0, (r.stdout+r.stderr)[-3000:]
    run = read_run(tmp_path/'gsm8k')
    assert run.settings['world_size']==2 and len(run.history)==2
    assert (tmp_path/'gsm8k'/'model.safetensors').exists()
    assert {'rewards/accuracy_reward/mean','replay/dead','kl'} <= set(run.history.columns)
    assert len(run.groups[run.groups.step==run.groups.step.min()])==4   # prompts of both processes together

@pytest.fixture
def launched(monkeypatch):
    "What accelerate would start, in place of starting it"
    from accelerate.commands import launch
    seen = []
    monkeypatch.setattr(launch, 'launch_command', seen.append)
    monkeypatch.delenv('LOCAL_RANK', raising=False)
    return seen

def test_a_recipe_is_found_before_its_defaults_are_needed(tmp_path, capsys):
    (tmp_path/'run.yaml').write_text('recipe: tldr\nmodel: tiny\n')
    asked = (['--recipe','tldr'], ['--recipe=tldr'], ['--config',str(tmp_path/'run.yaml')])
    plans = [train_trl([*words, '--dry_run']) for words in asked]
    plans.append(train_trl(recipe='tldr', dry_run=True))
    assert [(o['num_generations'], o['prompts']) for o in plans]==[(8, 16)]*4   # its own, not TRL's

def test_a_reward_that_is_named_takes_the_place_of_the_recipes(tmp_path):
    t = gsm8k(rows=ROWS['gsm8k'], reward=['grpo_nb.tasks.format_reward'], max_steps=1,
        output_dir=str(tmp_path), **SMALL)
    assert [o.__name__ for o in t.reward_funcs]==['format_reward']

def test_a_file_may_ask_for_the_processes(tmp_path, launched):
    file = tmp_path/'run.yaml'
    file.write_text('model: tiny\nnum_processes: 3\naccelerate_config: fsdp2\nuse_cpu: true\n')
    for words in (['--config', str(file)], [f'--config={file}']): assert train_trl(words) is None
    train_trl(['--config', str(file), '--num_processes', '2'])   # the command line goes before the file
    assert [o.num_processes for o in launched]==[3, 3, 2]
    assert all(o.config_file.endswith('fsdp2.yaml') for o in launched)
    assert launched[0].training_script_args[-2:]==['--config', str(file)]
    file.write_text('model: tiny\n')
    with pytest.raises(ValueError, match='--dataset is missing'): train_trl(['--config', str(file)])   # here

WRONG = [
    (lambda d: ['--model','no-such-model','--dataset',str(d/'rows.jsonl')], 'no-such-model'),
    (lambda d: ['--model','tiny'], "Couldn't reach 'openai/gsm8k'"),
    (lambda d: ['--model','tiny','--num_generatoins','4'], "did you mean '--num_generations'"),
    (lambda d: ['--model','tiny','--accelerate_config','fsdp3'], 'neither a file nor a valid config'),
    (lambda d: ['--model','tiny','--do_sample','True'], 'answers are always sampled'),
    (lambda d: ['--model','tiny','--completion_chunk_size','64'], "TRL's kernel fixes the size"),
    (lambda d: ['--model','tiny','--dataset',str(d/'none.jsonl')], 'none.jsonl'),
    (lambda d: ['--model','tiny','--generation_batch_size','6','--num_generations','4'], 'divisible'),
    (lambda d: ['--model','tiny','--total_batch_size','3','--per_device_train_batch_size','8'],
        'not a multiple of per_device_train_batch_size 8')]

@pytest.mark.parametrize('args,say', WRONG)
def test_what_can_not_work_is_one_line_and_exit_2(args, say, tmp_path, capsys, monkeypatch):
    from grpo_nb.cli import main

    for o in ('huggingface_hub.constants.HF_HUB_OFFLINE', 'datasets.config.HF_HUB_OFFLINE'):
        monkeypatch.setattr(o, True)
    (tmp_path/'rows.jsonl').write_text('\n'.join(map(json.dumps, ROWS['gsm8k'])))
    with pytest.raises(SystemExit) as e:
        main(['trl', '--recipe', 'gsm8k', '--output_dir', str(tmp_path/'o'), *args(tmp_path)])
    err = [o for o in capsys.readouterr().err.splitlines() if o.startswith('grpo_nb ')]
    assert e.value.code==2 and len(err)==1 and say in err[0], err
    assert not list(tmp_path.glob('o/checkpoint*')) and not list(tmp_path.glob('o/*.safetensors'))

@pytest.mark.processes
def test_python_m_grpo_nb_is_the_command_line():
    def run(word):
        return subprocess.run([sys.executable, '-m', 'grpo_nb', word], capture_output=True, text=True,
                              timeout=300)

    r = run('--help')
    assert r.returncode==0 and 'gsm8k' in r.stdout
    assert 'trl' in run('nothing').stderr

# -- data and rewards of one's own ---------------------------------------------------------------------

FAST = dict(model='tiny', max_steps=2, num_generations=4, per_device_train_batch_size=8, logging_steps=1,
    max_completion_length=16, disable_tqdm=True)

@pytest.fixture
def mine(tmp_path):
    "Rows under columns of their own, and two rewards in a file."
    rows = [dict(question=o['prompt'][0]['content'] if isinstance(o['prompt'], list) else o['prompt'],
        gold=o['answer']) for o in chain_sum(16, 0)]
    (tmp_path/'rows.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    (tmp_path/'rw.py').write_text(
        'def said(completions, answer, **kw):\n'
        '    return [float(a in str(c)) for c,a in zip(completions, answer)]\n'
        'def short(completions, **kw): return [-len(str(c))/100 for c in completions]\n')
    return tmp_path

def own(d, **more):
    return train_trl(dataset=str(d/'rows.jsonl'), prompt_column='question', answer_column='gold',
        **dict(reward=[f'{d/"rw.py"}:said', f'{d/"rw.py"}:short'], output_dir=str(d/'run'))|FAST|more)

def test_own_rows_and_two_rewards_train_by_one_command(mine, capsys):
    t = own(mine)
    assert t.state.global_step==2 and t.args.replay_buffer_size>0
    means = {k for k in t.state.log_history[0] if k.endswith('/mean') and k.startswith('rewards/')}
    assert means=={'rewards/said/mean', 'rewards/short/mean'}
    assert {'report.html','inspector.html','history.jsonl'}<={f.name for f in (mine/'run').iterdir()}
    printed = capsys.readouterr().out
    assert str(mine/'run'/'report.html') in printed and str(mine/'run'/'inspector.html') in printed
    assert str(t.record.verdict) in printed   # a log that is made by `> log` has it

def test_after_a_crash_in_the_first_batch_the_same_command_trains(mine):
    rewards = (mine/'rw.py').read_text()
    broken = rewards.replace('    return [float(', '    raise KeyError("answer")\n    return [float(')
    (mine/'rw.py').write_text(broken)
    with pytest.raises(KeyError, match='answer'): own(mine)
    (mine/'rw.py').write_text(rewards)
    assert own(mine).state.global_step==2   # nothing of the crash is in its way
    with pytest.raises(ValueError, match='of an earlier run.*or resume with resume=auto$'): own(mine)

OWN = """
seen = []
def echo(n, seed=0, split='train'):
    return [dict(prompt=f'{i} + {int(split=="train")} =', answer=str(i)) for i in range(min(n, 12))]
def oldest(entries, now):
    seen.append('priority')
    return [float(e is entries[0]) for e in entries]
def paid(completions, **kw):   # the first group is dead
    return [float(i>3 and i%2) for i in range(len(completions))]
"""

def test_ones_own_task_and_priority_run_on_trl_and_what_only_our_trainer_has_is_refused(tmp_path):
    "In our trainer a file of one's own is in test_trainer."
    from grpo_nb.parts.registry import PRIORITIES, REGISTRIES
    (tmp_path/'own.py').write_text(OWN)
    f = f'{tmp_path}/own.py'
    try:
        t = train_trl(dataset=f'{f}:echo', replay_priority=f'{f}:oldest',
            **dict(reward=[f'{f}:paid'], output_dir=str(tmp_path/'b'))|FAST)
        assert PRIORITIES[f'{f}:oldest'].__globals__['seen'] and len(t.train_dataset)==12
        for option,says in dict(strategy='run in `grpo_nb train`', advantages='run in `grpo_nb train`',
                loss_type='run in `grpo_nb train`').items():
            with pytest.raises(ValueError, match=says):
                train_trl(dataset=f'{f}:echo', output_dir=str(tmp_path/'c'), **{option:f'{f}:paid'}|FAST)
    finally:
        for r in REGISTRIES.values():
            for name in [o for o in r.entries if f in o]: del r.entries[name]

@pytest.mark.parametrize('launched', [False, True])
def test_a_run_that_sigterm_stops_is_saved_and_ends_the_command(mine, launched, monkeypatch):
    "A launcher takes any code but 0 for a failure: there the command ends as usual."
    if launched: monkeypatch.setenv('ACCELERATE_USE_CPU', 'true')
    (mine/'rw.py').write_text((mine/'rw.py').read_text()+'import os, signal\n'
        'def told(completions, **kw):\n    os.kill(os.getpid(), signal.SIGTERM)\n'
        '    return [0.]*len(completions)\n')
    go = partial(own, mine, reward=[f'{mine/"rw.py"}:told'], max_steps=4)
    if launched: assert go().stopped_by=='SIGTERM'
    else:
        with pytest.raises(Stopped) as e: go()
        assert e.value.code==143
    assert (mine/'run'/'checkpoint-1'/'trainer_state.json').exists()
    assert not (mine/'run'/'report.html').exists()

def test_the_defaults_of_trl_are_trls_own(mine):
    from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferConfig as C
    want = C(output_dir='x', use_cpu=True, bf16=False, report_to='none')
    _,a = R.recipe_options([], {})
    for k in ('beta','learning_rate','num_generations','temperature','top_p','top_k','num_train_epochs',
        'per_device_train_batch_size','gradient_accumulation_steps','generation_batch_size'):
        assert getattr(a, k)==getattr(want, k), k

def test_only_the_adapter_is_trained(mine):
    t = own(mine, use_peft=True, lora_r=4)
    free = [k for k,p in t.model.named_parameters() if p.requires_grad]
    assert free and all('lora_' in k for k in free)
    assert {p.shape[0] for k,p in t.model.named_parameters() if 'lora_A' in k}=={4}
    assert json.loads((mine/'run'/'adapter_config.json').read_text())['r']==4

def test_a_saved_folder_is_a_data_set(mine):
    from grpo_nb.on_trl.options import TrlArguments, load_training_rows
    chain_sum(4, 0).save_to_disk(str(mine/'saved'))
    assert len(load_training_rows(TrlArguments(dataset=str(mine/'saved'))))==4

NOT_OWN = [(dict(prompt_column='prompt'), 'has no `prompt`'),
    (dict(reward=['no_such_room.gone']), 'no module')]

@pytest.mark.parametrize('more,say', NOT_OWN)
def test_what_is_missing_is_said_before_a_model_is_loaded(more, say, mine, monkeypatch):
    monkeypatch.setattr('datasets.config.HF_HUB_OFFLINE', True)
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
    monkeypatch.setattr(R, '_load', lambda r: pytest.fail('a model was loaded'))
    with pytest.raises(ValueError, match=say):
        train_trl(**dict(dataset=str(mine/'rows.jsonl'), prompt_column='question', output_dir=str(mine/'run'),
            **FAST)|more)

# -- None ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('kind', [TrlArguments, GRPOWithReplayBufferConfig])
def test_an_option_that_may_be_none_can_be_given_as_none(kind, tmp_path):
    "From YAML, by name, and in Python after a parser has been made."
    theirs = {f.name for o in (GRPOConfig, ModelConfig) for f in fields(o)}
    def offers(f): return f.default is None or 'None' in f.metadata.get('help', '')
    names = [f.name for f in fields(kind) if f.name not in theirs and offers(f)]
    assert len(names)>6 and (kind is TrlArguments or {'record_max_groups','replay_scope'}<={*names})
    def read(words=(), **settings):
        both = recipe_options(['--output_dir', str(tmp_path), *words], settings)
        return next(o for o in both if isinstance(o, kind))
    given = {k:None for k in names if k!='dataset'}
    (tmp_path/'none.yaml').write_text(yaml.safe_dump(given), encoding='utf-8-sig')
    want = GRPOWithReplayBufferConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, **given) \
        if kind is GRPOWithReplayBufferConfig else TrlArguments(**given)
    for got in (read(['--config', str(tmp_path/'none.yaml')]), read(**given)):
        assert {k:getattr(got, k) for k in given}=={k:getattr(want, k) for k in given}
    assert want.record_max_groups is None if kind is GRPOWithReplayBufferConfig else want.reward is None
