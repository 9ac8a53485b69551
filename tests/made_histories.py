"Histories made by hand: a sound run with columns of one's own, and a project of trackio"

import json, math
import numpy as np

def rows(n=60, **cols):
    "Rows from functions of 0..1 (the way through the run)"
    rng = np.random.default_rng(0)
    out = []
    for i in range(n):
        base = {'step': i, 'reward': 0.3 + 0.004 * i + 0.02 * rng.standard_normal(),
                'frac_reward_zero_std': 0.3, 'entropy': 1.0 - 0.004 * i,
                'grad_norm': 0.5 + 0.05 * rng.random(), 'kl': 0.01 + 0.0005 * i,
                'completions/clipped_ratio': 0.02}
        out.append(base|{k.replace('__','/'):f(i/(n-1)) if callable(f) else f for k,f in cols.items()})
    return out

def trackio(path, runs):
    "A project: {run: what each call of `log` was given}; tables as trackio packs them, nan as it spells it"
    from contextlib import closing
    import sqlite3
    def packed(o):
        if isinstance(o, list): return {'_type':'trackio.table', '_value':o}
        return 'NaN' if isinstance(o, float) and math.isnan(o) else o
    with closing(sqlite3.connect(path)) as db:
        db.execute('create table metrics (id integer primary key, run_id text, timestamp text, '
            'run_name text, step integer, metrics text, log_id text, space_id text)')
        for run,rows in runs.items():
            for i,o in enumerate(rows):
                said = json.dumps({k:packed(v) for k,v in o.items()})
                db.execute('insert into metrics (run_id, timestamp, run_name, step, metrics) '
                    'values (?,?,?,?,?)', (run, '', run, i, said))
        db.commit()
    return path
