"""The runs of the chapter on reward hacking, by the chapter's own function: every pay, rate and seed.

`python benchmarks/hacking_runs.py nbs/results` makes `hacking.csv`, which the chapter shows, and the two
recorded runs in `hacking/`. About fifteen seconds of one core for each run; runs that are there are kept.
"""
import json, os, shutil, sys
from pathlib import Path
import pandas as pd, torch

CHAPTER = Path(__file__).parent.parent/'nbs/15a_reward_hacking.ipynb'
PAID,RATES,SEEDS,STEPS,EVERY = ('length', 'right answers', 'length if right'),(3e-4, 1e-3),range(5),240,24
KEPT = {('length', 3e-4, 0):'length', ('right answers', 3e-4, 0):'right'}   # whose record is stored

def chapter_names():
    "The chapter's imports, its ways to pay and its `run`."
    torch.set_num_threads(1)
    names = {}
    for c in json.loads(CHAPTER.read_text(encoding='utf-8'))['cells']:
        text = ''.join(c['source'])
        if c['cell_type']=='code' and ('import pandas' in text or 'PAY' in text): exec(text, names)
    return names

def rows_of(
    names:dict,      # from `chapter_names`
    paid_for:str, rate:float, seed:int,
    steps:int=STEPS,
    folder:Path=None,# where the record stays
)->list:             # a row for every 24 steps: means over their batches; pass@1 in the last
    "Make one run. RuntimeError if it stops early."
    history,right = names['run'](paid_for, rate, seed, steps, folder)
    h = pd.DataFrame(history)
    if len(h)!=steps//4: raise RuntimeError(f'{paid_for} {rate} {seed}: stopped after {len(h)} batches')
    judged = 'rewards/accuracy_reward/mean' if 'rewards/accuracy_reward/mean' in h else 'reward'
    means = h.groupby(h.index//(EVERY//4))[['reward', judged, 'completions/mean_length']].mean().round(3)
    rows = [dict(paid_for=paid_for, rate=rate, seed=seed, step=EVERY*(i+1), reward=a, right=b, tokens=c)
            for i,(a,b,c) in enumerate(means.itertuples(index=False))]
    rows[-1]['held_out'] = round(right, 3)
    return rows

if __name__=='__main__':
    names,table = chapter_names(),Path('hacking.csv')
    os.chdir(sys.argv[1])   # so that a record names no folder of one machine
    rows = pd.read_csv(table).to_dict('records') if table.exists() else []
    for key in [(p, r, s) for r in RATES for s in SEEDS for p in PAID]:
        if any((o['paid_for'], o['rate'], o['seed'])==key for o in rows): continue
        folder = Path('hacking')/KEPT[key] if key in KEPT else None
        if folder: shutil.rmtree(folder, ignore_errors=True)
        rows += rows_of(names, *key, folder=folder)
        for o in folder.glob('checkpoint-*') if folder else (): shutil.rmtree(o)
        order = lambda o: ((3e-4, 1e-3).index(o['rate']), PAID.index(o['paid_for']), o['seed'], o['step'])
        pd.DataFrame(sorted(rows, key=order)).to_csv(table, index=False)
        print(key, rows[-1], flush=True)
