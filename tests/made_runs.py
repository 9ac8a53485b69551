"Made-up but realistic run folders: a policy that gets better, some prompts easy and some hard, a real "
"replay buffer."
import random
from pathlib import Path
import numpy as np, pandas as pd, torch
from grpo_nb.advantages import group_advantages
from grpo_nb.parts.groups import dead_groups, dead_reason, group_scores
from grpo_nb.parts.ratios import ppo_clip_mask
from grpo_nb.parts.tensors import masked_mean
from grpo_nb.run.record import GROUP_FIELDS, Recorder, group_rows, ratio_hists
from grpo_nb.run.reading import LoggedRun
from grpo_nb.replay import ReplayBuffer

def make_run(
    folder,
    n_steps=6,
    B=8,
    G=8,
    seed=0,
    strategy='replay',
    buffer_size=16,
    every=1,
    stride=1,
    texts=None,
    T=24,
    summary=True,
    reward=None,
):
    "Write a run folder of `n_steps` batches; returns the folder."
    rng,g = random.Random(seed),torch.Generator().manual_seed(seed)
    rec = Recorder(folder, settings=dict(trainer='made up',
                                         args=dict(seed=seed, replay_buffer_size=buffer_size,
                                                   dead_tolerance=1e-6, num_generations=G,
                                                   learning_rate=1e-4, epsilon=0.2), strategy=strategy),
                   every=every * stride)
    buf = ReplayBuffer(buffer_size, seed=seed)
    hard = [rng.gauss(0, 2.5) for _ in range(40*B)]
    tokens = 0
    for i in range(n_steps):
        step = i*stride
        keys = [rng.randrange(len(hard)) for _ in range(B)]
        p = torch.sigmoid(torch.tensor([3.*i/max(1, n_steps-1)-.5+hard[k] for k in keys]))
        r = ((torch.rand(B, G, generator=g) < p[:, None]).float()
             if reward is None else reward(torch.rand(B, G, generator=g), step))
        A,dead = group_advantages(r),dead_groups(r)
        def answer(b, j):
            if texts: return texts(step, b, j)
            said = keys[b]+1 if r[b,j]>.5 else rng.randrange(9)
            return f'<think>{keys[b]} + 1 = {keys[b]+1}</think><answer>{said}</answer>'
        cs,prompts = [answer(b, j) for b in range(B) for j in range(G)],[f'What is {k} + 1?' for k in keys]
        where = dead.nonzero()[:,0].tolist()
        drawn = buf.sample_entries(len(where), step) if strategy=='replay' else []
        records = [dict(outcome=('masked' if strategy == 'mask' else 'kept') if d else 'trained', score=s)
                   for d, s in zip(dead.tolist(), group_scores(A, r).tolist())]
        new = A.clone()
        for b,e in zip(where, drawn):
            records[b] |= dict(outcome='replaced',
                               replacement=dict(id=e.id, step=e.step, age=e.age, uses=e.uses, score=e.score,
                                                draw_prob=e.draw_prob, prompt_key=e.prompt_key))
            new[b] = e.data
        live = (~dead).nonzero()[:,0].tolist()
        if strategy=='replay':
            scores,kept = [records[b]['score'] for b in live],[keys[b] for b in live]
            for b,k in zip(live, buf.add(scores, [A[b] for b in live], step, kept)): records[b]['id'] = k
            records[0]['evicted'] = list(buf.evicted)
        ages = torch.tensor([float(step - o['replacement']['step']) if 'replacement' in o else 0.0
                             for o in records])
        ratio, mask = ((torch.randn(B, G, T, generator=g) * (0.03 + 0.02 * ages[:, None, None])).exp(),
                       torch.rand(B, G, T, generator=g) < 0.8)
        tokens += int(mask.sum())
        clipped = ppo_clip_mask(ratio, new[..., None])
        rec.write_groups(step, group_rows(step, prompts, cs, r, records=records,
                                    rewards_by_func=dict(accuracy_reward=r), prompt_key=keys,
                                    n_tokens=mask.sum(-1), truncated=torch.rand(B, G, generator=g) < 0.05,
                                    advantages_before=A, advantages=new, dead=dead,
                                    dead_reason=dead_reason(r),
                                    ratio_hist=ratio_hists(ratio, mask),
                                    clip_frac=masked_mean(clipped.float(), mask, (1, 2)).tolist()))
        old = ages[[o['outcome']=='replaced' for o in records]]
        row = dict(step=step, loss=float(torch.randn((), generator=g) * 1e-3),
                   grad_norm=0.4 + 0.1 * rng.random(), learning_rate=1e-4, reward=r.mean().item(),
                   reward_std=r.std(1).mean().item(), frac_reward_zero_std=dead.float().mean().item(),
                   num_tokens=tokens, entropy=0.6 - 0.3 * i / n_steps, kl=0.001 * i, step_time=0.3)
        row |= {'completions/mean_length': mask.sum(-1).float().mean().item(),
                'completions/clipped_ratio': 0.05, 'clip_ratio/region_mean': 0.02,
                'replay/dead': int(dead.sum()), 'replay/replaced': len(drawn),
                'replay/unreplaced': len(where) - len(drawn), 'replay/buffer_size': len(buf),
                'replay/live_before': (~dead).float().mean().item(),
                'replay/live_after': ((~dead).sum().item() + len(drawn)) / B}
        if len(old):
            row |= {'replay/age_mean': old.mean().item(), 'replay/age_max': old.max().item(),
                    'replay/ratio_mean': 1.01, 'replay/ratio_max': 1.6, 'replay/ess_tokens': 0.9,
                    'replay/clip_frac': 0.05}
        rec.log(row)
    if summary:
        samples = [dict(prompt=f'What is {i} + 1?', answer=str(i + 1), before=f'<answer>{i}</answer>',
                        after=f'<think>{i} + 1 = {i + 1}</think><answer>{i + 1}</answer>',
                        right_before=False, right_after=True) for i in range(3)]
        b,a = .38+.02*rng.random(),.9+.02*rng.random()
        rec.summary(before={'pass@1': b, 'ci': [b - 0.04, b + 0.04], 'n_problems': 500},
                    after={'pass@1': a, 'ci': [a - 0.025, a + 0.025], 'n_problems': 500}, train_s=21.4,
                    total_s=52.8, seed=seed, samples=samples, task='sums', model='made up')
    return folder

def long_run(S=5000, B=64, G=8, seed=0):
    """A run in memory, without a buffer's rule: dead groups get one of the 64 newest stored groups, and
    between steps 100 and 300 nothing is stored and the same four come in without end."""
    rng = np.random.default_rng(seed)
    easy = np.clip(rng.beta(.5, .7, B)+.5*np.arange(S)[:,None]/S-.2, 0, 1)
    r = (rng.random((S, B, G))<easy[...,None]).astype(float)
    dead,rows,stored,n = r.max(2)==r.min(2),[],[],0
    for s in range(S):
        still = 100<=s<=300
        for g in range(B):
            said = [f'<think>{s} + {g} = {s+g}</think><answer>{s+g+int(x<.5)}</answer>' for x in r[s,g]]
            why = ('all-right' if r[s,g,0] else 'all-wrong') if dead[s,g] else None
            o = dict.fromkeys(GROUP_FIELDS)|dict(step=s, group=g, prompt_key=g, prompt=f'What is {s} + {g}?',
                completions=said, n_tokens=[len(t)//4 for t in said], rewards=r[s,g].tolist(),
                dead_reason=why,
                dead=bool(dead[s,g]), outcome='trained', score=float(r[s,g].std()))
            if dead[s,g] and stored and rng.random()<.6:
                i,born = stored[int(rng.integers(min(4, len(stored)) if still else len(stored)))]
                new = dict(id=i, step=born, age=s-born, uses=1, score=1., draw_prob=.1,
                    prompt_key=0)
                o |= dict(outcome='replaced', replacement=new)
            rows.append(o)
        for o in rows[-B:]:
            if o['dead'] or still or rng.random()>.1: continue
            o['id'],n = n,n+1
            stored = (stored+[(o['id'], s)])[-64:]
    live = 1-dead.mean(1)
    history = pd.DataFrame({'step':range(S), 'reward':r.mean((1, 2)), 'frac_reward_zero_std':1-live})
    return LoggedRun(Path('5,000 steps'), dict(seed=seed), history, rows, {}, [])
