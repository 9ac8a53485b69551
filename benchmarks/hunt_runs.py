"""What a model learns from the wrong version of each hunt: the rows behind the page on silent bugs.

    python benchmarks/hunt_runs.py nbs/results/hunts.csv    # 32 runs, about 20 s of one core each
    python benchmarks/hunt_runs.py nbs/results/hunts.csv --bugs mask_a

Each wrong line is the chapter's own function. Runs that are in the file are not made again. A row is a batch:
right answers by the honest judge, the mean reward that the run itself sees, tokens of an answer, entropy of
a token (nats), share of zero-variance groups; `unseen` is the share of right answers to 200 other problems
after the run.
"""
import argparse, ast, json, warnings
from importlib import import_module
from pathlib import Path
import pandas as pd
import torch
from grpo_nb.parts.tensors import masked_mean
from grpo_nb.teach.hunts import train_on_sums

ROOT = Path(__file__).resolve().parents[1]
SEEDS = 0,1

def defined(page, kinds):
    "The statements of these kinds in a chapter's code."
    cells = json.loads((ROOT/f'nbs/{page}.ipynb').read_text(encoding='utf-8'))['cells']
    code = '\n'.join(''.join(c['source']) for c in cells if c['cell_type']=='code')
    return [o for o in ast.parse(code).body if isinstance(o, kinds)]

def from_chapter(page, name, room):
    "A function that a chapter defines for its hunt, with the names of its module."
    found = [o for o in defined(page, ast.FunctionDef) if o.name==name]
    names = vars(import_module(f'grpo_nb.{room}'))|dict(torch=torch)
    exec(compile(ast.Module(found, []), page, 'exec'), names)
    return names[name]

def judge_anywhere():
    judge = from_chapter('15a_reward_hacking', 'judge_a', 'tasks')
    return lambda prompts, completions, answer: [judge(c, a) for c,a in zip(completions, answer)]

def parts_mean(x, mask):
    "Four parts, the longest answers first, each divided by its own tokens: `split_b` on a minibatch."
    order = mask.sum(1).argsort(descending=True)
    return sum(masked_mean(x[i], mask[i]) for i in order.chunk(4))/4

def pad_right(ids, mask):
    "The prompts of chapter 3's hunt."
    mask = mask.bool()
    return torch.stack([torch.cat([o[m], o[~m]]) for o,m in zip(ids, mask)]),mask.flip(1)

BUGS = {
    'none': dict,
    'quick_reward': lambda: dict(reward=from_chapter('02_tasks', 'quick_reward', 'tasks')),
    'pad_right': lambda: dict(pad=pad_right),
    'mask_a': lambda: dict(mask=from_chapter('04_generation', 'mask_a', 'generation')),
    'repeat_a': lambda: dict(repeat=from_chapter('05_rewards', 'repeat_a', 'rewards')),
    'version_b': lambda: dict(advantages=from_chapter('07_advantages', 'version_b', 'advantages')),
    'logps_b': lambda: dict(logps=from_chapter('08_logps', 'logps_b', 'logps')),
    'clip_a': lambda: dict(clip=from_chapter('10_loss', 'clip_a', 'loss')),
    'split_b': lambda: dict(average=parts_mean),
    'loss_at_1': lambda: dict(temperature=1.2, loss_temperature=1.),
    'judge_a': lambda: dict(reward=judge_anywhere()),
    'penalty_a': lambda: dict(beta=.3, penalty=from_chapter('09_kl', 'penalty_a', 'kl')),
    'none, temperature 1.2': lambda: dict(temperature=1.2),
    'none, beta .3': lambda: dict(beta=.3),
}

def ppo_rows(seed, wrong):
    "Chapter 15b's own PPO, with the score at the last token, or with `place_b` in the last column."
    c = {}
    kept = defined('15b_ppo_beside_grpo', (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))
    exec(compile(ast.Module(kept, []), '15b', 'exec'), c)
    tok = c['tok'] = c['load_model']('tiny')[1]
    def in_last_column(score, old_logps, ref_logps, mask, beta):
        return -beta*(old_logps-ref_logps)*mask+c['place_b'](score, mask)
    if wrong: c['token_rewards'] = in_last_column
    problems,held_out = c['chain_sum'](400, seed=0),c['chain_sum'](200, seed=7, split='test')
    policy,history = c['ppo'](16, problems, held_out, seed)
    said = c['evaluate'](policy, tok, held_out, c['accuracy_reward'])
    length = sum(len(tok(o)['input_ids'])+1 for o in said['texts'])/len(said['texts'])   # and the end token
    return [dict(batch=i, right=r, reward=r, length=length, unseen=said['pass@1'])
        for i,r in enumerate(history.reward)]

RUNS = {k:lambda seed, f=f: train_on_sums(seed, **f()) for k,f in BUGS.items()}
RUNS |= {'place_b':lambda seed: ppo_rows(seed, True), 'none, PPO':lambda seed: ppo_rows(seed, False)}

def main():
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    p.add_argument('out', type=Path)
    p.add_argument('--bugs', nargs='*', default=list(RUNS))
    p.add_argument('--seeds', type=int, nargs='*', default=SEEDS)
    o = p.parse_args()
    warnings.filterwarnings('ignore')
    torch.set_num_threads(1)
    done = pd.read_csv(o.out) if o.out.exists() else pd.DataFrame(columns=['bug','seed'])
    for seed in o.seeds:
        for bug in o.bugs:
            if ((done.bug==bug)&(done.seed==seed)).any(): continue
            rows = pd.DataFrame(RUNS[bug](seed))
            rows.insert(0, 'bug', bug)
            rows.insert(1, 'seed', seed)
            done = pd.concat([done, rows])
            done['order'] = done.bug.map(list(RUNS).index)
            done = done.sort_values(['order', 'seed', 'batch']).drop(columns='order')
            done.round(4).to_csv(o.out, index=False)
            print(bug, seed, rows.unseen.iloc[0], flush=True)

if __name__=='__main__': main()
