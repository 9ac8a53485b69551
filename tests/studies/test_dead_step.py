"What a dead group does to a step, counted again: groups one by one in float64, steps in numpy"
from pathlib import Path
import numpy as np, pandas as pd, pytest, torch
from grpo_nb.studies.dead_step import KINDS, bandit_groups, group_gradients, norm_and_cosine, optimizer_steps
from grpo_nb.studies.stacked import (
    END, FAMILIES, PAD, SHAPE, Stack, from_qwen, is_right, sample_stack, start, to_qwen)

pytestmark = pytest.mark.studies
ROWS = Path(__file__).parents[2]/'nbs'/'results'/'dead_step.csv'

def test_a_groups_gradient_is_that_of_transformers_in_float64():
    task,seed,n = 'shifting',5,6
    got,dead = group_gradients(task, n, seed, at_once=2)
    d,gen = start(task),torch.Generator().manual_seed(seed)
    order = torch.randperm(len(d['train']['ids']), generator=gen)[:n]
    model = to_qwen(d['theta']).double()
    rows,tokens = [],0
    for i in order.split(2):
        ids,mask,answer = (d['train'][k][i][:,None] for k in ('ids','mask','answer'))
        chance = torch.rand(2, FAMILIES[task].completion, 1, 4, generator=gen)
        out,_,real = sample_stack(Stack(SHAPE, d['theta'].repeat(2, 1)), ids, mask, chance, END, PAD)
        tokens += int(real.sum())
        for k in range(2):
            r = [float(is_right(o[None], answer[k,0][None])) for o in out[k,0]]
            if max(r)==min(r): continue
            A = (np.array(r)-np.mean(r))/(np.std(r, ddof=1)+1e-4)
            model.zero_grad()
            prompt = ids[k,0][mask[k,0]]
            for a,o,seen in zip(A, out[k,0], real[k,0]):
                o = o[seen]
                z = model(torch.cat([prompt, o])[None]).logits[0,len(prompt)-1:-1].log_softmax(-1)
                (a*z.gather(1, o[:,None]).sum()).backward()
            grads = {k:p.grad for k,p in model.named_parameters()}
            rows.append(from_qwen(_Grads(grads), SHAPE))
    want = torch.stack(rows)/(tokens/n)
    assert len(want)==len(got)==round(n*(1-dead)) and len(got)>1
    assert torch.allclose(got, want, atol=2e-6, rtol=1e-3)

class _Grads:
    "Gradients under the names of a model's weights"
    def __init__(self, grads): self.grads = grads
    def state_dict(self): return self.grads

@pytest.mark.parametrize('kind', KINDS)
def test_steps_are_those_of_a_plain_loop(kind):
    how = dict(KINDS[kind])
    g = torch.randn(20, 7, generator=torch.Generator().manual_seed(1))+.3
    alive = [16, 16, 4, 8, 12, 3]
    length,forward = optimizer_steps(g, alive, seed=2, **how)
    gen,x = torch.Generator().manual_seed(2),g.double().numpy()
    m,v,mean = np.zeros(7),np.zeros(7),x.mean(0)
    for t,n in enumerate(alive, 1):
        i = torch.randint(len(g), (n,), generator=gen).numpy()
        grad = sum(x[k] for k in i)/(n if how.get('left_out') else 16)
        size = np.sqrt((grad**2).sum())
        if how.get('clip') and size>how['clip']: grad = grad*how['clip']/size
        step,b = grad,how.get('beta1', .9)
        if b is not None:
            m,v = b*m+(1-b)*grad,.999*v+.001*grad**2
            step = m/(1-b**t)/(np.sqrt(v/(1-.999**t))+1e-8)
        assert length[t-1]==pytest.approx(np.sqrt((step**2).sum()), rel=1e-4)
        assert forward[t-1]==pytest.approx(step@mean/np.sqrt(mean@mean), rel=1e-3, abs=1e-5)

def test_nothing_moves_where_a_dead_batch_is_skipped():
    g = torch.randn(20, 7, generator=torch.Generator().manual_seed(1))
    skip,plain = (optimizer_steps(g, [8, 0, 8], skip=o)[0] for o in (True, False))
    assert skip[1]==0 and plain[1]>0
    assert torch.allclose(skip[[0, 2]], optimizer_steps(g, [8, 8])[0])   # its averages as they were

def test_norm_and_cosine_are_those_of_every_batch_there_is():
    g,chance = bandit_groups(torch.tensor([.2, -.1, .4]), torch.tensor([0., 1., .5]))
    g,chance = g.numpy(),chance.numpy()
    m = chance@g
    pairs = (g[:,None]+g[None])/5                       # a batch of five with two alive, all of them
    p = chance[:,None]*chance
    square = (p*(pairs**2).sum(-1)).sum()
    scatter = (chance*((g-m)**2).sum(1)).sum()
    norm,cosine = norm_and_cosine(m@m, scatter, 2, 5)
    assert norm==pytest.approx(square**.5)
    assert cosine==pytest.approx((p*(pairs@m)).sum()/(square*(m@m))**.5)

def test_the_stored_rows_keep_to_the_law():
    d = pd.read_csv(ROWS)
    assert len(d)==8*4*len(KINDS)
    law = [norm_and_cosine(1., k, n)[1] for k,n in zip(d.scale, d.alive)]
    assert d.cosine.to_numpy()==pytest.approx(np.array(law), rel=1e-3)
    w = d.pivot_table(index=['task','alive'], columns='kind', values='length')
    assert np.allclose(w['AdamW, clipped'], w['AdamW, clipped, left out'], rtol=1e-4)
    assert np.allclose(w['SGD, clipped'].unstack().std(axis=1), 0, atol=1e-4)
