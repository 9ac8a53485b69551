"Rollouts, masks, files, intervals: grids over shapes and seeds"
import json, math, subprocess, sys, warnings
import numpy as np, pandas as pd, pytest, torch
from grpo_nb.parts.files import atomic_write, save_json
from grpo_nb.parts.tensors import masked_mean, test_tensor as assert_tensor
from grpo_nb.parts.versions import versions
from grpo_nb.parts.registry import PRIORITIES, STRATEGIES, register, resolve
from grpo_nb.generation import Rollouts
from grpo_nb.parts.stats import mean_ci, wilson_ci

def make(B, G, P, T, seed, ref=False, tokens=False):
    "A batch of random lengths, padded as the contract says."
    g = torch.Generator().manual_seed(seed)
    p,t = torch.randint(1, P+1, (B,), generator=g),torch.randint(1, T+1, (B,G), generator=g)
    pm = torch.arange(P)>=P-p[:,None]
    cm = torch.arange(T)<t[...,None]
    lp = -torch.rand(B, G, T, generator=g)*cm
    return Rollouts(torch.randint(1, 50, (B,P), generator=g)*pm, pm,
                    torch.randint(1, 50, (B,G,T),
                                  generator=g)*cm, cm, lp, rewards=torch.rand(B, G, generator=g),
        advantages=torch.randn(B, G, T, generator=g)*cm if tokens else torch.randn(B, G, generator=g),
        ref_logps=lp/2 if ref else None, prompt_key=torch.arange(B)+100*seed, step=torch.full((B,), seed))

@pytest.mark.parametrize('field,shape',
    [('prompt_mask',(2,5)), ('completion_mask',(2,2,9)), ('old_logps',(2,2)), ('rewards',(2,3)),
    ('prompt_key',(3,)),
     ('ref_logps',(1,2,3))])
def test_a_wrong_shape_is_named(field, shape):
    a = make(2, 2, 2, 3, 0)
    with pytest.raises(ValueError, match=f'`{field}` has shape'):
        Rollouts(**(a.tensors()|{field:torch.zeros(shape)}))

def test_mixing_batches_with_and_without_a_field_is_refused():
    with pytest.raises(ValueError, match='ref_logps'):
        Rollouts.concat([make(1, 2, 2, 2, 0, ref=True), make(1, 2, 2, 2, 1)])

@pytest.mark.parametrize('dim', [None, 0, 1, (0, 1)])
def test_masked_mean_is_the_loop(dim):
    x,m = torch.randn(4, 6),torch.rand(4, 6)>.4
    x[~m] = math.nan
    loop = lambda pairs: (lambda v: sum(v)/len(v) if v else 0.)([a for a,k in pairs if k])
    rows = lambda i: list(zip(x[i].tolist(), m[i].tolist()))
    want = loop([o for i in range(4) for o in rows(i)]) if dim in (None, (0, 1)) else [loop(rows(i))
        for i in range(4)] if dim==1 else [loop(list(zip(x[:,j].tolist(),
                                                         m[:,j].tolist()))) for j in range(6)]
    assert_tensor(masked_mean(x, m, dim), want, eps=1e-6)

def test_the_mean_of_one_token_is_that_token_and_of_none_is_0():
    x,m = torch.tensor([[3., 9.]]),torch.tensor([[True, False]])
    for dim in (None, 1): assert masked_mean(x, m, dim).item()==3 and masked_mean(x, m & ~m, dim).item()==0

@pytest.mark.parametrize('got,want',
    [([1.,2.], [1.,2.,3.]), ([[1.]], [1.]), ([1., math.nan], [1., 2.]), ([1., math.inf], [1., -math.inf]),
     ([0.], [1e-3])])
def test_the_tensor_test_can_fail(got, want):
    with pytest.raises(AssertionError): assert_tensor(got, want)

def test_a_file_is_whole_or_absent(tmp_path):
    for mode,data in (('w','ä\n'), ('wb',b'\0')):
        p = tmp_path/mode/'x'
        with pytest.raises(KeyboardInterrupt):
            with atomic_write(p, mode) as f: f.write(data); raise KeyboardInterrupt
        assert list(p.parent.iterdir())==[]
        with atomic_write(p, mode) as f: f.write(data)
        assert [o.name for o in p.parent.iterdir()]==['x'] and p.stat().st_mode&0o777==0o644

def test_json_has_no_nan(tmp_path):
    save_json(tmp_path/'a.json', dict(a=[math.nan, (math.inf, 1)], b={2:-math.inf}))
    assert json.loads((tmp_path/'a.json').read_text())==dict(a=[None, [None, 1]], b={'2':None})

@pytest.mark.parametrize('k,n', [(0, 10), (3, 10), (10, 10), (250, 500), (1.5, 3), (2.5, 5)])
def test_wilsons_interval_by_its_formula(k, n):
    z,p = 1.959963984540054,k/n
    mid,half = (p+z*z/2/n)/(1+z*z/n),z/(1+z*z/n)*math.sqrt(p*(1-p)/n+z*z/4/n/n)
    lo,hi = wilson_ci(k, n)
    assert abs(lo-max(0, mid-half))<1e-9 and abs(hi-min(1, mid+half))<1e-9

def test_students_interval_covers_what_it_says():
    g = torch.Generator().manual_seed(0)
    hits = sum(abs(m)<=h for m,h in (mean_ci(torch.randn(5, generator=g)) for _ in range(600)))
    assert 550<=hits<=590                                     # 95 % of 600 is 570
    assert math.isnan(mean_ci([1.])[1])
    for bad in ([],): 
        with pytest.raises(ValueError, match='no numbers'): mean_ci(bad)
    for k,n in ((-1, 5), (6, 5), (0, 0)):
        with pytest.raises(ValueError, match='trials'): wilson_ci(k, n)

def test_the_interval_of_what_cannot_be_written_to_is_that_of_a_list_and_nobody_is_warned():
    x = [.1, .7, .4]
    a = np.array(x); a.flags.writeable = False
    s = pd.Series(x); s.values.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert mean_ci(a)==mean_ci(s)==mean_ci(s.values)==mean_ci(tuple(x))==mean_ci(torch.tensor(x,
            dtype=torch.float64))==mean_ci(o for o in x)==mean_ci(x)
    with pytest.raises(ValueError, match='no numbers'): mean_ci(np.array([]))
    m,h = mean_ci(x)
    assert abs(m-.4)<1e-12 and abs(h-4.302652729911275*.3/3**.5)<1e-9

def test_versions_name_what_is_missing():
    v = versions()
    assert v['torch'] and v['grpo_nb'] and set(v)>={'python','transformers','trl'}

def test_a_name_stands_for_one_thing():
    table = {}
    @register(table, 'a')
    def first(): return 1
    assert table['a'] is first and first()==1
    assert register(table, 'a')(first) is first                      # the same again
    with pytest.raises(ValueError, match="'a' is taken by"): register(table, 'a')(lambda: 2)
    with pytest.raises(ValueError, match="'a' is taken by"): register(table, 'a')(dict)
    register(table, 'd')(dict)
    register(table, 'd')(dict)
    assert table==dict(a=first, d=dict)

def test_a_name_is_found_though_nothing_that_defines_it_was_imported():
    "In a process of its own: what a name means does not depend on what is imported"
    r = subprocess.run([sys.executable, '-c', """
import sys, grpo_nb
from grpo_nb.parts.registry import REGISTRIES, resolve
print(grpo_nb.register.__name__, *[o for o in ('torch','numpy','grpo_nb.replay') if o in sys.modules])
names = dict(priority='score', loss='dapo', advantage='rft', strategy='gfpo', task='sums')
for k,name in names.items(): print(k, resolve(k, name).__name__ if k!='task' else name in REGISTRIES[k])
"""], capture_output=True, text=True)
    assert r.stdout.split('\n')[:-1]==['register', 'priority score_priority', 'loss clipped_objective',
        'advantage rft_advantages', 'strategy GFPO', 'task True'], r.stdout+r.stderr

def test_a_builtin_name_is_taken_and_a_near_one_is_suggested():
    with pytest.raises(ValueError, match="'score' is taken by"): register('priority', 'score')(lambda: 2)
    with pytest.raises(ValueError, match="no strategy 'repaly'.*did you mean 'replay'.*choose one of cop"):
        resolve('strategy', 'repaly')
    with pytest.raises(ValueError, match='no registry .methods.'): register('methods', 'mine')
    with pytest.raises(ValueError, match="no priority 7: choose one of recency"): resolve(PRIORITIES, 7)

def test_a_file_that_registers_may_be_imported_and_named_too(tmp_path, monkeypatch):
    text = ("from grpo_nb import register\n@register('priority', 'own_one')\n"
        "def own_one(entries, now): return [1.]*len(entries)\n")
    (tmp_path/'own_room.py').write_text(text)
    (tmp_path/'other_room.py').write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    import own_room
    try:
        assert resolve('priority', f'{tmp_path}/own_room.py:own_one').__name__=='own_one'
        assert PRIORITIES['own_one'] is not own_room.own_one   # what was read last
        with pytest.raises(ValueError, match="'own_one' is taken by"):
            resolve('priority', f'{tmp_path}/other_room.py:own_one')
    finally:
        for k in [k for k in PRIORITIES if 'own_one' in k]: del PRIORITIES[k]

def test_one_name_in_a_file_is_registered_under_what_was_typed(tmp_path):
    (tmp_path/'own.py').write_text('class Mine: pass')
    spec = f'{tmp_path}/own.py:Mine'
    try: assert resolve('strategy', spec) is resolve(STRATEGIES, spec) is STRATEGIES[spec]
    finally: del STRATEGIES[spec]
