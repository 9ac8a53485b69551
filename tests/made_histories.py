"Histories made by hand: one for each fault that shows in a curve, and a project of trackio"

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

flat = lambda x: .35+.01*math.sin(50*x)
MADE = {'entropy-collapse': dict(entropy=lambda x: 1.2 * math.exp(-6 * x), reward=flat),
        'kl-blow-up': dict(kl=lambda x: 0.02 if x < 0.6 else 4 * (x - 0.6) * 10, reward=flat),
        'truncated': dict(completions__clipped_ratio=lambda x: 0.05 + 0.6 * x, reward=flat),
        'thin-signal': dict(frac_reward_zero_std=lambda x: 0.5 + 0.25 * x,
                            reward=lambda x: 0.12 + 0.01 * math.sin(50 * x)),
        'held-out-falls': dict(eval_reward=lambda x: 0.5 - 0.8 * (x - 0.4) ** 2),
        'gradient-spikes': dict(grad_norm=lambda x: 40.0 if round(59 * x) in (20, 33, 47) else 0.5),
        'plateau': dict(reward=lambda x: min(0.45, 0.2 + x) + 0.005 * math.sin(70 * x)),
        'start-at-zero': dict(reward=lambda x: 0.01 if round(59 * x) in (30, 41) else 0.0,
                              frac_reward_zero_std=lambda x: 0.98 if round(59 * x) in (30, 41) else 1.0),
        'few-groups-replayed': {'replay__buffer_size': 4.0, 'replay__replaced': 8.0, 'replay__dead': 8.0,
                                'replay__live_before': 0.0, 'frac_reward_zero_std': 1.0, 'reward': 0.5},
        'no-gradient': dict(grad_norm=lambda x: 0.0 if round(59 * x) % 2 else 0.5, reward_std=.3),
        'solved': dict(frac_reward_zero_std=lambda x: min(.95, 2*x), reward=lambda x: min(1., .1+2*x)),
        'not-a-number': dict(loss=lambda x: math.nan if x>.7 else .1),
        'reward-collapse': dict(reward=lambda x: .2+.5*x if x<.7 else .02,
                                entropy=lambda x: .5 if x<.7 else 5.5),
        'generalisation-gap': dict(reward=lambda x: .2+.6*x, eval_reward=lambda x: .2+.05*x),
        'sampler-disagrees': {'sampling__mismatch_kl': lambda x: .3*x, 'reward': flat},
        'failing-tools': {'tools__failure_frequency': lambda x: .8*x, 'reward': flat},
        'one-reward-drowns': {'rewards__length/mean': lambda x: 20 + 9 * x, 'rewards__length/std': 8.0,
                              'rewards__right/mean': flat, 'rewards__right/std': 0.4}}

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
