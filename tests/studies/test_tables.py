"What each push checks of the studies, in seconds: plans, hashes, stored rows and the list of starts agree."
import gzip, hashlib, lzma, subprocess
from dataclasses import replace
from pathlib import Path
import pytest, torch
import grpo_nb.studies.speedrun as speedrun
import grpo_nb.studies.stacked as sr
import grpo_nb.studies.starts as starts
from grpo_nb.studies.study import KEY, read_rows, run_study
from grpo_nb.studies.real_study import real_plan
from grpo_nb.studies.replay_study import read_plan, registration
from grpo_nb.studies.stacked import FAMILIES, SHAPE, problems, to_tensors
from notebook_code import defined_in
from rows_again import ELSEWHERE, studies

STUDIES = Path(__file__).parents[2]/'nbs'/'studies'
PAGES = [o for o in sorted(STUDIES.glob('registration*.qmd')) if not o.stem.endswith(ELSEWHERE)]
TABLES = sorted((STUDIES/'rows').glob('*.csv*'))
ROOM = defined_in('studies/stacked', 'grpo_nb.studies.stacked')

@pytest.mark.parametrize('page', PAGES, ids=lambda o: o.stem)
def test_a_registered_plan_is_what_the_code_has(page):
    plan = registration(page)
    assert plan['hash']==read_plan(page)['hash']
    size = plan.get('size', '0.2M')
    listed = {k:starts.stored_starts()[starts.start_name(k, size)] for k in plan['definitions']['families']}
    assert {k:o.sha256[:8] for k,o in listed.items()}==plan['definitions']['starts']

def test_once_a_week_rows_of_every_such_plan_are_made_again(): assert [*studies()]==PAGES

@pytest.mark.parametrize('name', ['real','real_gpu','real_scaled'])
def test_the_pretrained_models_plan_is_what_the_code_has(name):
    assert real_plan(STUDIES/f'registration_{name}.qmd')['seeds']

@pytest.mark.parametrize('table', TABLES, ids=lambda o: o.name.partition('.')[0])
def test_stored_rows_are_of_one_registered_plan_and_each_is_there_once(table):
    df,plans = read_rows(table, ()),{read_plan(o)['hash'] for o in STUDIES.glob('registration*.qmd')}
    if table.stem=='speedrun':   # it has rules, and no plan
        rules = speedrun.LEVEL, speedrun.MAX_TOKENS, speedrun.EVERY, speedrun.N_PROBLEMS
        plans = {hashlib.sha256(repr(rules).encode()).hexdigest()[:8]}
    assert len(df) and set(df.registered)<=plans and df.registered.nunique()==1
    same = [k for k in df if k in (*KEY, 'machine', 'torch')] if 'cpu' in table.name else KEY
    assert not df.duplicated(same).any()

@pytest.mark.parametrize('suffix,pack', [('xz', lzma), ('gz', gzip)])
def test_a_compressed_table_goes_on_where_it_stopped_and_stays_compressed(tmp_path, suffix, pack):
    def run(job): return job|dict(pass1=.5, curve='[]', tokens=7, steps=1, batches=2)
    def jobs(n): return [dict(regime='a', arm='b', seed=s, learning_rate=1e-4, settings='', source='')
        for s in range(n)]
    how = dict(path=tmp_path/'t.csv', stamp=dict(version='1'), disable_tqdm=True)
    run_study(run, jobs(2), **how)
    text,packed = (tmp_path/'t.csv').read_bytes(),tmp_path/f't.csv.{suffix}'
    packed.write_bytes(pack.compress(text))
    (tmp_path/'t.csv').unlink()
    df = run_study(run, jobs(3), **how)
    assert [o.name for o in tmp_path.iterdir()]==[packed.name] and df.seed.tolist()==[0, 1, 2]
    assert pack.decompress(packed.read_bytes()).startswith(text)   # the earlier rows, to the byte
    (tmp_path/'t.csv').write_bytes(text)
    with pytest.raises(ValueError, match='both there: keep one'): read_rows(tmp_path/'t.csv')

# ---- starts

def git(at, *words):
    who = ['-c','user.name=a','-c','user.email=a@b.c','-c','commit.gpgsign=false']
    return subprocess.run(['git','-C',str(at),*who,*words], check=True, capture_output=True,
        text=True).stdout.strip()

@pytest.fixture
def history(tmp_path, monkeypatch):
    "A repository that had two starts and removed them, a shallow clone of it, and an empty cache"
    first,clone = tmp_path/'first',tmp_path/'clone'
    first.mkdir()
    git(first, 'init', '-q', '-b', 'main')
    for k in ('adding','sorting'): (first/f'{k}.safetensors').write_bytes(k.encode()*9)
    git(first, 'add', '-A')
    git(first, 'commit', '-q', '-m', 'starts')
    commit = git(first, 'rev-parse', 'HEAD')
    blobs = {k:git(first, 'rev-parse', f'HEAD:{k}.safetensors') for k in ('adding','sorting')}
    for k in blobs: (first/f'{k}.safetensors').unlink()
    (first/'starts.csv').write_text('start,bytes,sha256,blob,commit\n'+''.join(
        f'{k},9,{starts.sha256_of(k.encode()*9)},{b},{commit}\n' for k,b in blobs.items()))
    git(first, 'add', '-A')
    git(first, 'commit', '-q', '-m', 'none')
    git(tmp_path, 'clone', '-q', '--depth', '1', first.as_uri(), str(clone))
    monkeypatch.setenv('GRPO_NB_CACHE', str(tmp_path/'cache'))
    monkeypatch.setattr(starts, 'STARTS', first)
    starts.stored_starts.cache_clear()
    yield first,clone
    starts.stored_starts.cache_clear()

def test_a_start_comes_from_the_history_and_then_from_the_cache(history, tmp_path, monkeypatch):
    f = starts.start_file('adding')
    assert f==tmp_path/'cache'/'starts'/'adding.safetensors' and f.read_bytes()==b'adding'*9
    monkeypatch.setattr(starts, '_git', None)   # is not asked again
    assert starts.start_file('adding')==f
    assert starts.start_hash('sorting')==starts.sha256_of(b'sorting'*9)[:8]   # and no file for its hash

def test_a_shallow_clone_fetches_the_one_commit(history, monkeypatch):
    monkeypatch.setattr(starts, 'STARTS', history[1])
    assert starts.start_file('sorting').read_bytes()==b'sorting'*9

def test_without_history_or_git_one_line_says_what_to_do(history, monkeypatch):
    monkeypatch.setattr(starts, 'STARTS', history[1])
    git(history[1], 'remote', 'set-url', 'origin', str(history[1]/'nowhere'))
    with pytest.raises(ValueError, match='adding is not in this clone.*--unshallow.*`teach`') as e:
        starts.start_file('adding')
    assert '\n' not in str(e.value)
    monkeypatch.setenv('PATH', '')
    with pytest.raises(ValueError, match='git does not run here.*`teach`'): starts.start_file('adding')

def test_another_files_content_is_refused_and_a_damaged_cache_mended(history, monkeypatch):
    f = starts.start_file('adding')
    f.write_bytes(b'else')
    assert starts.start_file('adding').read_bytes()==b'adding'*9
    f.write_bytes(b'else')
    monkeypatch.setattr(starts, 'read_stored', lambda name: b'not it')
    with pytest.raises(ValueError, match='the start adding has the hash .* the list says'):
        starts.start_file('adding')

def test_a_start_that_is_trained_again_is_taken_in_place_of_the_stored_one(tmp_path, monkeypatch):
    assert sr.start('sorting')['theta'].shape==(SHAPE.n,)
    kept,known = starts.STARTS,starts.stored_starts()
    monkeypatch.setattr(starts, 'STARTS', tmp_path)
    monkeypatch.setattr(starts, 'stored_starts', lambda: known)
    monkeypatch.setitem(FAMILIES, 'sorting', replace(FAMILIES['sorting'], lesson=(100, 3, 1e-3)))
    ROOM.teach('sorting')
    again = sr.start.__wrapped__('sorting')['theta']
    d = to_tensors(problems('sorting', 'lesson', 100), 'sorting')
    assert torch.equal(again, ROOM.lesson(d, 3, SHAPE, 1e-3).half().float())
    assert starts.start_hash('sorting')!=known['sorting'].sha256[:8]
    monkeypatch.setattr(starts, 'STARTS', kept)
    with pytest.raises(ValueError, match="make it again with teach\\('sorting'\\)"):
        sr.start.__wrapped__('sorting')
