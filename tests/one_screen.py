"""Chapter 0's cell again, with another seed or one line changed.

`python tests/one_screen.py nbs/results/one_screen.csv` makes the table that the chapter shows, but for the
rows of the first machine. About fifteen seconds of one core for each row; rows that are there are kept.
"""
import json, sys
from pathlib import Path
import pandas as pd, torch

ROOT = Path(__file__).parent.parent
ADVANTAGE = "A = ((r-r.mean(1, keepdim=True))/(r.std(1, keepdim=True)+1e-4)).view(-1, 1)"
MEAN = 'loss = -(gain*m[i]).sum()/m[i].sum()'
CHANGES = {
    'as it stands': (),
    'gradients clipped at norm 1':
        (('loss.backward(); opt.step()',
          'loss.backward(); torch.nn.utils.clip_grad_norm_(model.parameters(), 1.); opt.step()'),),
    'A = r': ((ADVANTAGE, 'A = r.view(-1, 1)'),),
    'A = r + 1': ((ADVANTAGE, 'A = (r+1).view(-1, 1)'),),
    'not divided by the deviation': ((ADVANTAGE, 'A = (r-r.mean(1, keepdim=True)).view(-1, 1)'),),
    'each answer by its own length': ((MEAN, 'loss = -((gain*m[i]).sum(1)/m[i].sum(1)).mean()'),),
    'lr = 2e-3': (('lr=3e-4', 'lr=2e-3'),),
    'G = 2': (('B,G,eps = 16,8,.2', 'B,G,eps = 16,2,.2'),),
    'nothing pushed down': ((ADVANTAGE, ADVANTAGE+'.clamp(min=0)'),),
    'lr = 1e-4': (('lr=3e-4', 'lr=1e-4'),),
}
ROWS = [(c, s) for c in CHANGES for s in range(4)]

def run_cell(
    change:str,  # one of CHANGES
    seed:int,
    batches:int=25,
)->dict:         # the cell's names
    "Train as chapter 0 does, with one line changed."
    from grpo_nb.parts.datasets import chain_sum
    from grpo_nb.tasks import accuracy_reward
    from grpo_nb.tiny_qwen import sample_texts, encode_prompts, load_model
    torch.set_num_threads(1)
    cells = json.loads((ROOT/'nbs/00_grpo_on_one_screen.ipynb').read_text(encoding='utf-8'))['cells']
    text = next(t for c in cells if 'for batch in range(25)' in (t := ''.join(c['source'])))
    given = ('torch.manual_seed(0)', f'torch.manual_seed({seed})'),('range(25)', f'range({batches})')
    for old,new in (*given, *CHANGES[change]):
        assert text.count(old)==1, old
        text = text.replace(old, new)
    names = dict(torch=torch, chain_sum=chain_sum, accuracy_reward=accuracy_reward, ask=sample_texts,
                 encode_prompts=encode_prompts, load_model=load_model)
    exec(text, names)
    return names

def one_screen(
    change:str, seed:int,  # as for `run_cell`
)->dict:                   # a row of the table
    "Train as chapter 0 does, with one line changed, and ask 200 problems that it never saw."
    names = run_cell(change, seed)
    right,_,dead = zip(*names['curve'])
    sample_texts,accuracy_reward = names['ask'],names['accuracy_reward']
    test = names['chain_sum'](200, split='test')
    said = [o[0] for o in sample_texts(names['model'], names['tok'], test['prompt'])]
    first = next((i+1 for i,r in enumerate(right) if r>=.5), None)
    return dict(change=change, seed=seed, machine=2,
        unseen=sum(accuracy_reward(None, said, test['answer']))/200, half_at=first,
        mean_right=sum(right)/len(right), dip=min(right[:12]), agree_least=min(dead),
        agree=sum(dead)/len(dead), agree_most=max(dead))

if __name__=='__main__':
    out = Path(sys.argv[1])
    rows = pd.read_csv(out).to_dict('records') if out.exists() else []
    for change,seed in ROWS:
        if any((r['change'], r['seed'])==(change, seed) for r in rows): continue
        rows.append(one_screen(change, seed))
        rows.sort(key=lambda r: ROWS.index((r['change'], r['seed'])))
        pd.DataFrame(rows).round(3).to_csv(out, index=False)
        print(change, seed, flush=True)
