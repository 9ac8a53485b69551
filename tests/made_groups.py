"Batches of groups with random lengths, for the tests of replay and of strategies."
import torch
from grpo_nb.advantages import group_advantages
from grpo_nb.generation import Rollouts

def batch(rewards, P=5, T=6, seed=0, step=0, keys=None, ref=False, extra=(0, 0)):
    "A batch with random lengths; `extra` columns of padding beyond what is needed."
    g = torch.Generator().manual_seed(seed)
    r = torch.as_tensor(rewards, dtype=torch.float32)
    B,G = r.shape
    n,p = torch.randint(1, T+1, (B, G), generator=g),torch.randint(1, P+1, (B,), generator=g)
    cm,pm = torch.arange(T+extra[1])<n[...,None],torch.arange(P+extra[0])>=P+extra[0]-p[:,None]
    ids = lambda m: torch.randint(1, 99, m.shape, generator=g)*m
    lp = lambda: -torch.rand(cm.shape, generator=g)*cm
    return Rollouts(ids(pm), pm, ids(cm), cm, lp(), r, group_advantages(r), lp() if ref else None,
                    prompt_key=torch.arange(B) + 100 * seed if keys is None else torch.tensor(keys),
                    step=torch.full((B,), step))

def content(x, b):
    "What a group holds, without padding."
    m = x.completion_mask[b]
    rows = [(x.completion_ids[b, g][m[g]].tolist(), x.old_logps[b, g][m[g]].tolist())
            for g in range(m.shape[0])]
    return x.prompt_ids[b][x.prompt_mask[b]].tolist(),rows,x.rewards[b].tolist(),x.advantages[b].tolist()

MIXED,DEAD0,DEAD1 = [1.,0,0,0],[0.,0,0,0],[1.,1,1,1]
