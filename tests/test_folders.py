"What lies in a folder stays there: commands and trainers in folders that hold something already"
import json, time
from pathlib import Path
import pytest, torch
from grpo_nb.cli import main
from grpo_nb.run.record import RECORD, Recorder, lock_folder
from grpo_nb.run.reading import read_run
from grpo_nb.run.folders import require_empty_dir
from grpo_nb.tiny_qwen import make_tokenizer, tiny_model
from grpo_nb.trainer import TrainConfig, train
from another import elsewhere, fork, works_elsewhere
from made_runs import make_run
from weekly import most_weekly

torch.set_num_threads(1)
ROWS = [dict(prompt=f'{a}+{b}=', answer='1') for a in range(4) for b in range(4)]
def length(completions, **kwargs): return [float(len(o)) for o in completions]

def short(folder, resume=None, model=None, **more):
    args = dict(num_generations=4, generation_batch_size=16, max_steps=4, max_completion_length=4,
                disable_tqdm=True)
    return train(model or tiny_model(0), make_tokenizer(), ROWS, length,
                 TrainConfig(output_dir=str(folder), **args|more), resume_from_checkpoint=resume)

# ---- what may lie there

HELD = {
    'a thesis':{'thesis.tex':'x'},
    'figures of a paper':{'settings.json':'{}', 'figures/fig1.pdf':'x'},
    'settings of an editor':{'settings.json':'{"editor.fontSize": 14}', 'report.html':'<p>mine</p>'},
    'curves':{'curves.csv':'a,b\n1,2\n', 'figures/a.png':'x'},
    'a summary':{'summary.json':'{"title": "mine"}', 'inspector.html':'<p>mine</p>'},
    'a history':{'history.jsonl':'{"year": 1848}\n'},
    'pages':{'report.html':'<p>mine</p>', 'inspector.html':'<p>mine</p>'},
    'weights under our name':{'checkpoint-4/model.safetensors':'x', 'checkpoint-1/a':'x'},
    'a run on TRL':{'trainer_state.json':'{"log_history": [{"step": 1, "reward": 1.0}]}',
                    'checkpoint-4/trainer_state.json':'{}', 'README.md':'a card'},
    'a repository':{'.git/config':'x'},
    'a record':'record', 'a record beside own work':'record',
}

def fill(folder, held):
    if HELD[held]=='record':
        make_run(folder, n_steps=2)
        settings = json.loads((folder/'settings.json').read_text())
        assert settings['versions']
    for name,text in {'notes.md':'mine', **(HELD[held] if HELD[held]!='record' else {})}.items():
        if name=='notes.md' and held!='a record beside own work': continue
        (folder/name).parent.mkdir(parents=True, exist_ok=True)
        (folder/name).write_text(text)

def files(folder):
    return {str(o.relative_to(folder)):o.read_bytes() for o in folder.rglob('*') if o.is_file()}

def typed(*words): return lambda d: main([*words, *('--output_dir', str(d)), '--disable_tqdm'])
def page(*words): return lambda d: main([o.format(d) for o in words])

DONE = {   # each ends in a refusal, or leaves what it finds
    'demo':typed('demo', '--max_steps', '4', '--n_problems', '5'),
    'demo without replay':typed('demo', '--max_steps', '4', '--n_problems', '5', '--replay_buffer_size', '0'),
    'compare':typed('demo', '--compare'),
    'train':typed('train', '--dataset', 'sums', '--max_steps', '4', '--eval_problems', '5'),
    'train on':typed('train', '--dataset', 'sums', '--max_steps', '4', '--eval_problems', '5', '--resume'),
    'gsm8k':lambda d: main(
        'trl --recipe gsm8k --model tiny --dataset no.jsonl --output_dir'.split()+[str(d)]),
    'the trainer':short,
    'the trainer twice':lambda d: (short(d), pytest.raises(ValueError, short, d)),
    'a record':lambda d: Recorder(d, settings=dict(seed=1)).log(dict(step=0)),
    'report':page('report', '{}'),
    'report of another':lambda d: page('report', str(make_run(d.parent/'b', n_steps=2)), '--out', '{}')(d),
    'inspect':page('inspect', '{}'),
}

GRID = [(done, held) for done in DONE for held in HELD]

# with each push a quarter of them: each command meets some of the folders
@pytest.mark.parametrize('done,held', most_weekly(GRID, len(GRID)//4))
def test_nothing_that_lies_in_a_folder_is_lost(done, held, tmp_path, monkeypatch):
    folder = tmp_path/'mine'
    fill(folder, held)
    before = files(folder)
    runs = ('the trainer','the trainer twice','a record')
    if done not in (*runs, 'train on'):   # these are refused before any model
        for o in ('demo','tiny_qwen'):   # demo first: it takes the other's function at its import
            monkeypatch.setattr(f'grpo_nb.{o}.load_model', lambda *a, **k: pytest.fail('went on'))
        runs_of = 'grpo_nb.research.comparison.compare_seeds'
        monkeypatch.setattr(runs_of, lambda *a, **k: pytest.fail('went on'))
    try: DONE[done](folder)
    except (SystemExit, ValueError): assert files(folder)==before
    after,ours = files(folder),HELD[held]=='record'
    for name,was in before.items():
        moved = f'earlier-1/{name}' if ours and name in RECORD and done in runs else name
        assert after[moved]==was, (name, sorted(after))

@pytest.mark.parametrize('done', ['demo','demo without replay','compare','train'])
def test_a_command_asks_for_a_folder_of_its_own(done, tmp_path, capsys):
    (tmp_path/'thesis.tex').write_text('x')
    with pytest.raises(SystemExit) as e: DONE[done](tmp_path)
    err = capsys.readouterr().err
    assert e.value.code==2 and 'holds thesis.tex' in err and 'another output_dir' in err

def test_a_demo_with_and_one_without_replay_have_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for more in ([], ['--replay_buffer_size', '0']):
        main(['demo', '--max_steps', '4', '--n_problems', '5', '--disable_tqdm', *more])
    assert sorted(o.name for o in Path('runs').iterdir())==['demo-0','plain-0']
    before = files(Path('runs'))
    for more in ([], ['--replay_buffer_size', '0']):
        name = 'plain-0' if more else 'demo-0'
        words = ['demo', '--output_dir', f'runs/{name}', '--max_steps', '4', *more]
        with pytest.raises(SystemExit): main(words)
    assert files(Path('runs'))==before

def test_a_folder_that_takes_no_files_is_named_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr('os.access', lambda path, *a: path!=tmp_path)
    with pytest.raises(ValueError, match='nothing can be written into .*: choose another output_dir'):
        require_empty_dir(tmp_path/'runs'/'mine')
    assert not list(tmp_path.iterdir())

def test_a_link_that_leads_nowhere_is_named(tmp_path):
    (tmp_path/'runs').symlink_to(tmp_path/'gone')
    for o in ('runs','runs/a'):
        with pytest.raises(ValueError, match='runs is a link to .*gone, which is not there'):
            require_empty_dir(tmp_path/o)

# ---- several runs in one folder

def test_checkpoints_of_other_runs_are_neither_replaced_nor_counted(tmp_path):
    short(tmp_path/'a')
    short(tmp_path/'b', max_steps=8)
    before = files(tmp_path/'b')
    with pytest.raises(ValueError, match='b holds checkpoint-8 of an earlier run: choose another output_dir'):
        short(tmp_path/'b', tmp_path/'a'/'checkpoint-4', max_steps=12)
    assert files(tmp_path/'b')==before
    (tmp_path/'a'/'checkpoint-1').mkdir()
    (tmp_path/'a'/'checkpoint-1'/'notes.md').write_text('mine')
    short(tmp_path/'a', True, max_steps=12, save_total_limit=1)
    assert {o.name for o in (tmp_path/'a').glob('checkpoint-*')}=={'checkpoint-1','checkpoint-12'}

def write(folder, begun):
    "A run that goes on until it is killed"
    Recorder(folder, settings=dict(seed=0), run='first').log(dict(step=0, reward=0.))
    begun.set()
    time.sleep(900)

@pytest.mark.processes
def test_two_runs_at_once_do_not_mix_their_rows_and_a_killed_one_holds_nothing(tmp_path):
    p = elsewhere(write, tmp_path, begun := fork.Event())
    try:
        assert begun.wait(120)
        before = files(tmp_path)
        for go in (lambda: short(tmp_path), lambda: Recorder(tmp_path, run='first', resume_step=0)):
            with pytest.raises(ValueError, match='another run is writing there now'): go()
        assert files(tmp_path)==before
    finally:
        p.kill()
        p.join()
    Recorder(tmp_path, run='first', resume_step=0).log(dict(step=1, reward=1.))
    assert read_run(tmp_path).history.step.tolist()==[0, 1]

@pytest.mark.processes
def test_a_run_gives_its_folder_back_when_it_ends_well_or_badly(tmp_path):
    def free(d): return works_elsewhere(lock_folder, d)
    short(tmp_path/'a')
    assert free(tmp_path/'a')
    def breaks(completions, **kwargs): raise KeyError('x')
    with pytest.raises(ValueError):
        train(tiny_model(0), make_tokenizer(), ROWS, breaks, TrainConfig(output_dir=str(tmp_path/'b'),
            num_generations=4, generation_batch_size=16, max_completion_length=4, disable_tqdm=True))
    assert free(tmp_path/'b')
    give_back = lock_folder(tmp_path/'a')
    assert not free(tmp_path/'a')
    give_back()
    assert free(tmp_path/'a')
