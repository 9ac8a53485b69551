"State files, manifests and whole folders: what was saved comes back, and what is damaged is named."
import json, math, random
from pathlib import Path
import numpy as np
import pytest, torch
from safetensors.torch import save_file
from grpo_nb.run.checkpoints import (
    checkpoint_folders, checkpoint_error, last_checkpoint, load_state, read_manifest,
    get_rng_state, save_state, set_rng_state,
    write_manifest)
from grpo_nb.run.resume import rotate_checkpoints, atomic_dir
from grpo_nb.run import checkpoints

def same(a, b):
    if isinstance(a, torch.Tensor): return a.dtype==b.dtype and a.shape==b.shape and torch.equal(a, b)
    if isinstance(a, dict): return list(a)==list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list,tuple)): return type(b) is list and len(a)==len(b) and all(map(same, a, b))
    return repr(a)==repr(b)

def test_a_state_of_any_nesting_comes_back_to_the_bit(tmp_path):
    kinds = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32]
    state = dict(step=3, no=None, yes=True, text='é "\n', tiny=5e-324, odd=[math.inf, -0.], empty={}, none=[],
        nested=[[dict(a=(1, 2))]], scalar=torch.tensor(1.5), zero=torch.zeros(0, 3),
        kinds=[torch.randn(3, 4).mul(9).to(o) for o in kinds], mask=torch.rand(7)<.5,
        view=torch.arange(12).view(3, 4).T, grad=torch.ones(2, requires_grad=True))
    state[7] = {0:torch.ones(1), 1:'a'}   # an optimizer's keys are numbers
    save_state(tmp_path/'s', state)
    back = load_state(tmp_path/'s')
    assert same(dict(state, grad=state['grad'].detach()), back)
    assert back['view'].untyped_storage().nbytes()==12*8   # memory of its own
    save_state(tmp_path/'t', {})
    assert load_state(tmp_path/'t')=={}

def test_a_view_brings_no_more_into_the_file_than_it_shows(tmp_path):
    "Groups of a buffer are views of the batch they came in."
    batch = torch.randn(1000, 64)
    save_state(tmp_path/'s', dict(data=[dict(x=batch[i]) for i in range(2)]))
    back = load_state(tmp_path/'s')['data']
    assert (tmp_path/'s').stat().st_size<5_000 and torch.equal(back[1]['x'], batch[1])

def test_an_optimizer_goes_on_from_it(tmp_path):
    def run(n, resume=None):
        torch.manual_seed(0)
        m = torch.nn.Linear(3, 2)
        opt = torch.optim.AdamW(m.parameters(), lr=.1)
        if resume: m.load_state_dict(resume['m']); opt.load_state_dict(resume['o'])
        for _ in range(n):
            opt.zero_grad()
            m(torch.ones(3)).square().sum().backward()
            opt.step()
        return m,opt
    m,opt = run(2)
    save_state(tmp_path/'s', dict(m=m.state_dict(), o=opt.state_dict()))
    assert torch.equal(run(5)[0].weight, run(3, load_state(tmp_path/'s'))[0].weight)

def test_half_a_file_is_named(tmp_path):
    save_state(tmp_path/'s', dict(x=torch.randn(50), y='text'))
    raw = (tmp_path/'s').read_bytes()
    for n in (0, 9, len(raw)//2, len(raw)-5):
        (tmp_path/'s').write_bytes(raw[:n])
        with pytest.raises(ValueError, match='s is damaged'): load_state(tmp_path/'s')

def test_what_cannot_be_held_is_named_and_nothing_is_written(tmp_path):
    for bad in (object(), {1, 2}):
        with pytest.raises(ValueError, match='cannot hold'): save_state(tmp_path/'s', dict(x=[bad]))
    assert not list(tmp_path.iterdir())

def made(folder, n, run=None):
    (folder/f'checkpoint-{n}').mkdir(parents=True)
    (folder/f'checkpoint-{n}'/'weights').write_bytes(b'abc')
    write_manifest(folder/f'checkpoint-{n}', run)
    (folder/f'checkpoint-{n}'/'trainer_state.json').write_text('{}')
    return folder/f'checkpoint-{n}'

@pytest.mark.parametrize('damage,says', [
    (lambda c: (c/'weights').unlink(), 'weights is missing'),
    (lambda c: (c/'weights').write_bytes(b'abcd'), '4 bytes, 3 were written'),
    (lambda c: (c/'weights').write_bytes(b'abd'), 'weights has changed'),
    (lambda c: (c/'trainer_state.json').unlink(), 'trainer_state.json is missing'),
    (lambda c: (c/'trainer_state.json').write_text('{'), 'half-written'), (lambda c: None, '')])
def test_what_is_wrong_with_a_checkpoint_is_said(damage, says, tmp_path):
    c = made(tmp_path, 3)
    damage(c)
    assert says in checkpoint_error(c) and bool(says)==bool(checkpoint_error(c))

def test_the_newest_whole_checkpoint_up_to_a_step(tmp_path):
    for n in (2, 4): made(tmp_path, n)
    def name(at_most): return Path(last_checkpoint(tmp_path, at_most=at_most)).name
    assert [name(n) for n in (4, 3, None)]==['checkpoint-4','checkpoint-2','checkpoint-4']
    with pytest.raises(ValueError, match='no whole checkpoint'): last_checkpoint(tmp_path, at_most=1)

def test_the_newest_whole_checkpoint_of_this_run_is_found(tmp_path):
    for n,run in ((2, 'mine'), (10, 'mine'), (11, 'old')): made(tmp_path, n, run)
    (tmp_path/'checkpoint-99').mkdir()
    messages = []
    assert Path(last_checkpoint(tmp_path, 'mine', tell=messages.append)).name=='checkpoint-10'
    assert 'checkpoint-99: trainer_state.json is missing' in messages[0]
    assert 'checkpoint-11: it is of another run' in messages[0]
    assert Path(last_checkpoint(tmp_path, tell=messages.append)).name=='checkpoint-11'
    rotate_checkpoints(tmp_path, 2)
    assert [p.name for p in checkpoint_folders(tmp_path)]==['checkpoint-11', 'checkpoint-99']
    with pytest.raises(ValueError, match='no whole checkpoint.*another run'):
        last_checkpoint(tmp_path, 'x')
    assert read_manifest(tmp_path/'checkpoint-11')['run']=='old' and read_manifest(tmp_path)=={}

def test_of_another_run_no_checkpoint_is_removed(tmp_path):
    for n,run in ((1, 'old'), (2, 'mine'), (3, None), (4, 'mine'), (5, 'mine')): made(tmp_path, n, run)
    rotate_checkpoints(tmp_path, 1, 'mine')
    assert [p.name[11:] for p in checkpoint_folders(tmp_path)]==['1','3','5']

def test_every_random_choice_goes_on_where_it_stood(tmp_path):
    random.gauss(0, 1); np.random.randn()   # the second of a pair waits
    def draw(): return [torch.rand(1).item(), random.gauss(0, 1), np.random.randn(), np.random.rand()]
    state = json.loads(json.dumps(random.getstate()))   # as lists, which is how a file gives it back
    d = get_rng_state()|dict(python_rng=state)
    first = draw()
    assert all(a!=b for a,b in zip(draw(), first))
    set_rng_state(d)
    assert draw()==first
    save_state(tmp_path/'s', d)
    set_rng_state(load_state(tmp_path/'s'))
    assert draw()==first

def test_a_large_file_is_looked_at_from_its_first_byte_to_its_last(tmp_path):
    "Above a size, 64 blocks of it: here of 4 bytes in 1,000."
    p = tmp_path/'weights'
    def seen(i):
        p.write_bytes(bytes(i==j for j in range(1000)))
        return checkpoints._crc(p, whole=999, block=4)
    none,at = seen(-1),[4*j+3 for j in range(250)]
    assert seen(0)!=none and seen(999)!=none
    assert sum(seen(i)!=none for i in at)>=60   # spread over all of it

def test_a_folder_is_whole_or_not_there(tmp_path):
    with atomic_dir(tmp_path/'a') as tmp: (tmp/'f').write_text('1')
    with atomic_dir(tmp_path/'a') as tmp: (tmp/'f').write_text('2')     # in the old one's place
    with pytest.raises(KeyboardInterrupt):
        with atomic_dir(tmp_path/'a') as tmp: (tmp/'f').write_text('3'); raise KeyboardInterrupt
    assert (tmp_path/'a'/'f').read_text()=='2' and [p.name for p in tmp_path.iterdir()]==['a']

def limited(n):
    import resource
    return resource.setrlimit(resource.RLIMIT_FSIZE, (n, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

@pytest.mark.parametrize('write', [
    lambda f: save_state(f/'x', dict(x=torch.zeros(100_000))),
    lambda f: torch.save(torch.zeros(100_000), f/'x'),
    lambda f: save_file(dict(x=torch.zeros(100_000)), f/'x'), lambda f: (f/'x').write_bytes(bytes(400_000))],
    ids=['save_state','torch','safetensors','file'])
def test_a_full_disk_is_named_whoever_writes(write, tmp_path):
    pytest.importorskip('resource')
    made(tmp_path, 3)
    limited(50_000)
    try:
        says = 'checkpoint-4 could not be written.*MiB are free.*older checkpoints are intact'
        with pytest.raises(OSError, match=says):
            with atomic_dir(tmp_path/'checkpoint-4') as tmp: write(tmp)
    finally: limited(-1)
    assert [p.name for p in tmp_path.iterdir()]==['checkpoint-3']
    assert not checkpoint_error(tmp_path/'checkpoint-3')
