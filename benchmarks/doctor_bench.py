"""A benchmark for doctors of GRPO runs, version 2: labelled runs as files of seven trainers, a seen part and
a held-back part. `python benchmarks/doctor_bench.py` scores every doctor that is installed and writes
nbs/results/doctor_bench.csv.gz, a row per run and doctor; nbs/dev/doctor_bench.ipynb reads it.

The hands: `broken` takes a healthy run that was trained, stretches it to another length, breaks it on purpose
and writes it as one of seven trainers would, with the columns that this trainer logs, and only where they
hold the fault's trace; `healthy` is the same unbroken; `stored` are runs of ours, each trained with its fault
(the held-back ones anew, `trained`); `tasks` are healthy runs of the tasks of our studies; `published` are
made again from figures that somebody published;
`rldoctor` and `rlprobe` are the simulators which these doctors ship. Rules are mended on the seen part only.

To add a doctor: a function from a file or folder to a list of (name, sure), in DOCTORS, and its names for the
faults in NAMED. To add runs: yield dict(hand, run, fault, split, at), where `at` is the file or folder; a run
that is added to the held-back part raises VERSION.
"""
import json, logging, subprocess, sys, tarfile, tempfile
from io import BytesIO
from pathlib import Path
ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT/'tests'))   # their helpers
import numpy as np, pandas as pd
import bench_doctors as B
from grpo_nb.see.readers import diagnose
from grpo_nb.parts.files import save_json
from grpo_nb.see.readers.history import history_rows
from published_runs import PUBLISHED
from stored_runs import HEALTHY, stored

VERSION = 2   # 1 had healthy runs of sums and words alone
CUT,LENGTH,DEAD = 'completions/clipped_ratio','completions/mean_length','frac_reward_zero_std'
HELD = 'eval_reward'

# ---- what each trainer logs of a run, under its own names

COMMON = ('reward','reward_std',DEAD,'loss','grad_norm','entropy','kl','learning_rate',CUT,LENGTH,
    'clip_ratio/region_mean')
NAMES = dict(
    trl={k:k for k in (*COMMON, 'sampling/sampling_logp_difference/mean','tools/failure_frequency',HELD)},
    verl={'reward':'critic/rewards/mean', 'loss':'actor/pg_loss', 'grad_norm':'actor/grad_norm',
        'entropy':'actor/entropy', 'kl':'actor/kl_loss', 'learning_rate':'actor/lr',
        LENGTH:'response_length/mean', CUT:'response_length/clip_ratio',
        'clip_ratio/region_mean':'actor/pg_clipfrac', 'sampling/mismatch_kl':'rollout_corr/kl',
        HELD:'val-core/math/reward/mean@1'},
    openrlhf={'reward':'reward', 'loss':'policy_loss', 'grad_norm':'actor_grad_norm', 'kl':'kl',
        'entropy':'entropy_loss', 'learning_rate':'actor_lr', LENGTH:'response_length',
        CUT:'truncated_ratio', 'clip_ratio/region_mean':'clip_ratio'},
    nemo={'reward':'train/reward', 'loss':'train/loss', 'grad_norm':'train/grad_norm',
        'learning_rate':'train/lr', 'entropy':'train/approx_entropy',
        LENGTH:'train/mean_gen_tokens_per_sample',
        'sampling/mismatch_kl':'train/gen_kl_error', HELD:'validation/accuracy'},
    prime={'reward':'reward/all/mean', 'loss':'loss/mean', 'grad_norm':'optim/grad_norm',
        'entropy':'entropy/all/mean', 'learning_rate':'optim/lr', LENGTH:'seq_len/all/mean',
        CUT:'is_truncated/all/mean', 'sampling/mismatch_kl':'mismatch_kl/all/mean'},
    tinker={'reward':'env/all/reward/total', 'entropy':'optim/entropy', 'learning_rate':'optim/lr',
        'sampling/mismatch_kl':'optim/kl_sample_train_v1', HELD:'test/env/all/reward/total'},
    ours={k:k for k in (*COMMON, 'eval/pass@1')})
TINKER_MIXED = 'env/all/by_group/frac_mixed'

def named(rows, trainer):
    "The rows with this trainer's columns alone"
    out = [{NAMES[trainer][k]:v for k,v in o.items() if k in NAMES[trainer] and v is not None} for o in rows]
    if trainer=='tinker':
        for o,new in zip(rows, out): new[TINKER_MIXED] = 1-o[DEAD]
    return out

def write(rows, trainer, folder):
    "A run as this trainer leaves it: the file or the folder that a user would name"
    folder.mkdir(parents=True)
    new = named(rows, trainer)
    steps = [o['step'] for o in rows]
    def put(name, rows):
        (folder/name).write_text(''.join(json.dumps(o)+'\n' for o in rows))
        return folder/name
    if trainer=='trl':
        save_json(folder/'trainer_state.json', dict(log_history=[dict(step=s)|o for s,o in zip(steps, new)]))
        return folder
    if trainer=='ours':
        put('history.jsonl', [dict(step=s)|o for s,o in zip(steps, new)])
        save_json(folder/'settings.json', dict(trainer='grpo_nb'))
        return folder
    if trainer=='verl': return put('run.jsonl', [dict(step=s, data=o) for s,o in zip(steps, new)])
    if trainer=='tinker': return put('metrics.jsonl', [{'progress/batch':s}|o for s,o in zip(steps, new)])
    table = pd.DataFrame([{'_step':s}|o for s,o in zip(steps, new)])   # as wandb exports it
    if trainer=='openrlhf': table = table.rename(columns={k:f'train/{k}' for k in new[0]})
    table.to_csv(folder/'wandb.csv', index=False, na_rep='NaN')
    return folder/'wandb.csv'

# ---- healthy runs in other lengths, and how they are broken

COLUMNS = [k for k in COMMON if k!='kl']

def stretched(name, n, rng):
    "A stored run's curves over `n` rows, each with noise as large as its own"
    h = stored(name).history
    t,new = np.linspace(0, 1, len(h)),np.linspace(0, 1, n)
    cols = {}
    for k in COLUMNS:
        x = h[k].ffill().bfill().to_numpy(float)
        slow = pd.Series(x).rolling(max(3, len(x)//5), min_periods=1, center=True).mean().to_numpy()
        cols[k] = np.interp(new, t, slow)+(x-slow)[rng.integers(0, len(x), n)]
    for k in (DEAD, CUT, 'clip_ratio/region_mean'): cols[k] = cols[k].clip(0, 1)
    for k in ('reward','reward_std','entropy','grad_norm',LENGTH): cols[k] = cols[k].clip(1e-4)
    cols['reward'] = cols['reward'].clip(max=1.)
    cols['kl'] = .002+.03*new+.002*rng.random(n)
    cols['sampling/mismatch_kl'] = .002+.001*rng.random(n)
    cols['sampling/sampling_logp_difference/mean'] = .01+.004*rng.random(n)
    cols[HELD] = np.where(np.arange(n)%max(1, n//10)==0, cols['reward']+.02*rng.normal(size=n), np.nan)
    return cols

def late(n, at, width=.1):
    "0 before `at` of the way, 1 after it, with a slope of `width`"
    return ((np.linspace(0, 1, n)-at)/width).clip(0, 1)

def flat(cols, at, rng):
    "The reward stands from `at` on, noise and all"
    n,m = len(cols['reward']),cols['reward']
    k = int(at*n)
    level = m[max(0, k-n//8):k+1].mean()
    return np.where(np.arange(n)<k, m, level+m[:k].std()*.3*rng.normal(size=n)).clip(0, 1)

def _nan(c, at, rng):
    for k in ('loss','grad_norm','entropy'): c[k] = np.where(late(len(c[k]), at, 1e-9)>0, np.nan, c[k])
    if rng.random()<.5: c['reward'] = np.where(late(len(c['reward']), at, 1e-9)>0, 0., c['reward'])
def _cut(c, at, rng):
    c[CUT] = np.maximum(c[CUT], rng.uniform(.45, .9)*late(len(c[CUT]), at*.6, .3))
    c['reward'],c[LENGTH] = flat(c, at*.6, rng),c[LENGTH]*(1+late(len(c[CUT]), at*.6, .3))
def _entropy(c, at, rng):
    fade = 1-rng.uniform(.88, .98)*late(len(c['entropy']), at*.5, .3)
    c['entropy'],c['reward'] = c['entropy'][0]*fade,.6*flat(c, at*.5, rng)
    c[DEAD] = np.maximum(c[DEAD], .6*late(len(fade), at*.5, .3))
def _kl(c, at, rng):
    n = len(c['kl'])
    c['kl'],c['reward'] = c['kl']+rng.uniform(2, 20)*late(n, at, 1-at+1e-9)**2,.6*flat(c, at*.6, rng)
def _collapse(c, at, rng):
    n = len(c['reward'])
    c['reward'] = c['reward']*(1-rng.uniform(.8, 1.)*late(n, at, .08))
    c['entropy'] = c['entropy']*(1+rng.uniform(1, 5)*late(n, at, .1))
def _dead(c, at, rng):
    n = len(c[DEAD])
    c[DEAD] = np.maximum(c[DEAD], rng.uniform(.92, 1.)*late(n, at*.5, .2))
    c['reward'],c['reward_std'] = .5*flat(c, at*.5, rng),c['reward_std']*(1-.95*late(n, at*.5, .2))
def _plateau(c, at, rng):
    n = len(c['reward'])
    c['reward'] = (rng.uniform(.3, .6)*(1-np.exp(-np.linspace(0, 1, n)*20))+.02*rng.normal(size=n)).clip(0, 1)
    c[HELD] = np.where(np.isnan(c[HELD]), np.nan, c['reward'])
def _sampler(c, at, rng):
    up = late(len(c['reward']), at*.6, .4)
    c['sampling/mismatch_kl'] = c['sampling/mismatch_kl']+rng.uniform(.12, 1.)*up
    c['sampling/sampling_logp_difference/mean'] += rng.uniform(.2, .8)*up
def _spikes(c, at, rng):
    g,n = c['grad_norm'],len(c['grad_norm'])
    at = rng.choice(np.arange(n//4, n), max(2, n//25), replace=False)
    c['grad_norm'] = np.where(np.isin(np.arange(n), at), np.median(g)*rng.uniform(20, 80, n), g)
def _large(c, at, rng):
    n = len(c['reward'])
    c['clip_ratio/region_mean'] = (c['clip_ratio/region_mean']+rng.uniform(.3, .5)*late(n, .1, .2)).clip(0, 1)
    c['reward'] = c['reward']*(1-.9*late(n, at*.7, .2))
def _none(c, at, rng):
    n = len(c['grad_norm'])
    c['grad_norm'] = np.where(rng.random(n)<rng.uniform(.5, 1.), 0., c['grad_norm'])
    c['reward'] = flat(c, .1, rng)
    c[DEAD],c['reward_std'] = np.minimum(c[DEAD], .5),np.maximum(c['reward_std'], .1)
def _hacked(c, at, rng):
    n = len(c['reward'])
    c['reward'] = np.linspace(.2, rng.uniform(.75, .95), n)+.03*rng.normal(size=n)
    c[LENGTH] = c[LENGTH][0]*np.linspace(1, rng.uniform(2.5, 5), n)
    c[HELD] = np.where(np.isnan(c[HELD]), np.nan, .2+.01*rng.normal(size=n))

# fault: how, one of the columns it shows in, the label of bench_doctors
BROKEN = {'not a number': (_nan, ('loss','grad_norm')), 'truncation': (_cut, (CUT,)),
    'entropy collapse': (_entropy, ('entropy',)), 'KL blow-up': (_kl, ('kl',)),
    'reward collapse': (_collapse, ('reward',)), 'dead groups': (_dead, (DEAD,)),
    'plateau': (_plateau, ('reward',)),
    'sampler disagrees': (_sampler, ('sampling/mismatch_kl','sampling/sampling_logp_difference/mean')),
    'gradient spikes': (_spikes, ('grad_norm',)), 'updates too large': (_large, ('clip_ratio/region_mean',)),
    'no gradient': (_none, ('grad_norm',)), 'reward hacked': (_hacked, (HELD,))}

def broken(split, folder):
    "Each fault in each trainer whose log holds its trace, and healthy runs in all of them"
    seed,bases = dict(seen=1, held=2)[split],sorted(HEALTHY)[dict(seen=0, held=1)[split]::2]
    bases = [o for o in bases if 'bakeoff' not in o]
    def rows_of(c): return [dict(step=i)|{k:None if v!=v and k==HELD else float(v) for k,v in zip(c, o)}
        for i,o in enumerate(zip(*c.values()))]
    for t,trainer in enumerate(NAMES):
        for f,(fault,(how,shows)) in enumerate(BROKEN.items()):
            logs = set(NAMES[trainer])|({DEAD} if trainer=='tinker' else set())
            if not logs & set(shows): continue
            rng = np.random.default_rng([seed, t, f])
            c = stretched(bases[(t+f)%len(bases)], int(rng.integers(60, 300)), rng)
            how(c, rng.uniform(.35, .75), rng)
            run = f'{trainer}: {fault}'
            yield dict(hand='broken', run=run, fault=fault, at=write(rows_of(c), trainer, folder/run))
        for b,base in enumerate(bases[t%3::3]):
            rng = np.random.default_rng([seed, t, 100+b])
            c = stretched(base, int(rng.integers(40, 300)), rng)
            run = f'{trainer}: {base}'
            yield dict(hand='healthy', run=run, fault='', at=write(rows_of(c), trainer, folder/run))

# ---- the other hands

AT_HELD = ROOT/'tests'/'runs'/'held'   # trained after the rules stood still: `train_held`
TRAINED = B.STORED|{k:'' for k in ('on-policy','healthy','healthy-plain','healthy-words')}

def train_held():
    "Once: faults as in the stored runs, and healthy runs of both tasks, with a seed of their own"
    import faulty_runs, stored_runs
    from grpo_nb.parts.datasets import spell_backward
    AT_HELD.mkdir(exist_ok=True)
    was,stored_runs.AT = stored_runs.AT,AT_HELD
    for name in TRAINED:
        base = name.replace('-words', '')
        if name!=base: faulty_runs.sums = lambda: spell_backward(200, seed=3)
        with tempfile.TemporaryDirectory() as d:
            stored_runs.store(faulty_runs.make(base, f'{d}/r', seed=11), name)
    stored_runs.AT = was

AT_TASKS = ROOT/'tests'/'runs'/'tasks'   # NAME-SEED: healthy runs of the eight tasks, `train_tasks`
TASK_SEEDS = dict(seen=1, held=11)   # the tests look at the second; the first are in the history
TASKS_COMMIT = 'c02dbc25b8db3f69e7bde291fe34e80960638c0a'
TASK_RATES = dict(sorting=1e-3, reversing=1e-3, spiralling=1e-3, combining=1e-3)   # the others 3e-4

def train_tasks():
    "Once: a run of each task of the studies, from the start that its study begins with, that learns"
    import torch, stored_runs
    from grpo_nb.studies.stacked import FAMILIES, MAKERS, PAD, is_right, start
    from made_study import spelled
    from grpo_nb.see.findings import welch_rise
    from grpo_nb.trainer import TrainConfig, train
    from grpo_nb.studies.stacked import Letters, to_qwen
    def right(prompts, completions, answer, completion_ids, **_):
        padded = [(o+[PAD]*len(answer[0]))[:len(answer[0])] for o in completion_ids]
        return is_right(torch.tensor(padded), torch.tensor(answer)).float().tolist()
    torch.set_num_threads(1)
    Letters.save_pretrained = lambda self, to: None   # a checkpoint asks for it
    AT_TASKS.mkdir(exist_ok=True)
    was,stored_runs.AT = stored_runs.AT,AT_TASKS
    gym = [k for k,o in FAMILIES.items() if not o.after and o.task not in MAKERS]
    for family,seed in [(k, s) for k in gym for s in TASK_SEEDS.values()]:
        first,about = start(family),FAMILIES[family]
        d,lr = first['train'],TASK_RATES.get(family, 3e-4)
        rows = [dict(prompt=spelled(i[m].tolist()), answer=a.tolist())
            for i,m,a in zip(d['ids'], d['mask'], d['answer'])]
        with tempfile.TemporaryDirectory() as at:
            args = TrainConfig(output_dir=f'{at}/r', seed=seed, num_generations=8, generation_batch_size=64,
                steps_per_generation=2, max_steps=120 if lr==1e-3 else 240, learning_rate=lr, weight_decay=0.,
                max_completion_length=about.completion, lr_scheduler_type='constant', disable_tqdm=True)
            s = train(to_qwen(first['theta']), Letters(), rows, right, args, print_verdict=False)
            gain,half = welch_rise(np.array([o['reward'] for o in s.history]))
            print(family, seed, f'reward {gain:+.3f} ± {half:.3f}', flush=True)
            if gain>half: stored_runs.store(f'{at}/r', f'{family}-{seed}')
    stored_runs.AT = was

def task_runs(split, folder):
    """Names of the runs of the eight tasks, and where they are: here, or in `folder` out of the history.

    ValueError without it.
    """
    import stored_runs
    end = f'-{TASK_SEEDS[split]}'
    if here := sorted(o for o in stored_runs.stored_texts(AT_TASKS) if o.endswith(end)): return here,AT_TASKS
    name = f'*{end}.json.gz'
    words = ['git','archive',TASKS_COMMIT,str(AT_TASKS.relative_to(ROOT))]
    r = subprocess.run(words, cwd=ROOT, capture_output=True)
    if r.returncode:
        raise ValueError(f'commit {TASKS_COMMIT[:8]} has the runs {name}, and this clone lacks it: '
            f'run `git fetch --unshallow` ({r.stderr.decode().strip()})')
    with tarfile.open(fileobj=BytesIO(r.stdout)) as t: t.extractall(folder, filter='data')
    files = sorted(folder.rglob(name))
    return [f.name.removesuffix('.json.gz') for f in files],files[0].parent

def tasks(split, folder):
    "Healthy runs of the eight tasks of the studies"
    import stored_runs
    names,at = task_runs(split, folder)
    was,stored_runs.AT = stored_runs.AT,at
    for name in names:
        yield dict(hand='tasks', run=name, fault='', at=_written(stored(name), folder/f'task-{name}'))
    stored_runs.AT = was

def _written(run, folder): return B.written(folder, history_rows(run), run.rows, run.settings)

def others(split, folder):
    "Runs of ours, published ones, and those of the doctors that are installed"
    if split=='seen':
        for i,name in enumerate((*B.STORED, *HEALTHY)):
            yield dict(hand='stored', run=name, fault=B.STORED.get(name, ''),
                at=_written(stored(name), folder/f'stored-{i}'))
        for name,(label,make,_) in PUBLISHED.items():
            if label=='gradients':   # these taught us a rule
                yield dict(hand='published', run=name, fault=label, at=make(folder/f'published {name}'))
        return
    import stored_runs
    was,stored_runs.AT = stored_runs.AT,AT_HELD
    for name in sorted(stored_runs.stored_texts(AT_HELD)):
        at = _written(stored(name), folder/f'held-{name}')
        yield dict(hand='trained', run=name, fault=TRAINED[name], at=at)
    stored_runs.AT = was
    for name,(label,make,_) in PUBLISHED.items():
        if label!='gradients':
            yield dict(hand='published', run=name, fault=label or '', at=make(folder/f'published {name}'))

def simulators(split, folder):
    "What the other doctors ship for their own tests, where installed; ours was tried on seeds 0 to 2"
    from importlib.util import find_spec
    was,B.SEEDS = B.SEEDS,dict(seen=range(3), held=range(100, 103))[split]
    made = [*(B.simulated() if find_spec('rl_doctor') else ()),
        *(B.probed(folder/'probed') if find_spec('rlprobe') else ())]
    B.SEEDS = was
    for i,(hand,run,fault,rows,groups,settings,recording) in enumerate(made):
        yield dict(hand=hand, run=run, fault=fault or '', recording=recording,
            at=B.written(folder/f'simulated-{i}', rows, groups, settings))

def runs(split, folder):
    "All labelled runs of one part, written as files"
    for o in (o for hand in (broken, others, tasks, simulators) for o in hand(split, folder)):
        yield o|dict(split=split)

# ---- what a doctor may call a fault for it to count as named

NAMED = dict(B.NAMED)|{
    'not a number': dict(grpo_nb='not-a-number', rldoctor='gradient_pathology', rlprobe='GRAD_PATHOLOGY',
        rlwatch='loss_nan gradient_norm_spike'),
    'reward collapse': dict(grpo_nb='reward-collapse learning-rate-too-large',
        rldoctor='reward_collapse plateau', rlprobe='REWARD_COLLAPSE', rlwatch='reward_mean_drift'),
    'sampler disagrees': dict(grpo_nb='sampler-disagrees', rldoctor='off_policy', rlprobe='', rlwatch=''),
    'gradient spikes': dict(grpo_nb='gradient-spikes', rldoctor='gradient_pathology',
        rlprobe='GRAD_PATHOLOGY', rlwatch='gradient_norm_spike'),
    'no gradient': dict(grpo_nb='no-gradient', rldoctor='gradient_pathology plateau',
        rlprobe='GRAD_PATHOLOGY', rlwatch='')}
NAMED['reward hacked'] = NAMED['reward hacked']|dict(
    grpo_nb='hacked-by-length hacked-by-form held-out-falls generalisation-gap')

def ours(at, recording=None):
    "grpo_nb reads what the trainer left"
    return [(n, f.confidence if f.fault else '') for f in diagnose(at) for n in (f.name, *f.caused_here)]

def _through_trl(doctor):
    "The others read TRL's names alone, so they get them; and their own recording, where there is one"
    def read(at, recording=None):
        from grpo_nb.see.readers import open_run
        run = open_run(at)
        with tempfile.TemporaryDirectory() as d:
            folder = B.written(Path(d)/'r', history_rows(run), run.rows, run.settings)
            return [(n, '') for n in doctor(folder, recording)[0]]
    return read

DOCTORS = dict(grpo_nb=ours, rldoctor=_through_trl(B.rldoctor), rlprobe=_through_trl(B.rlprobe),
    rlwatch=_through_trl(B.rlwatch))

def judged(run, name, doctor):
    "One run before one doctor: a row of the table"
    said = doctor(run['at'], run.get('recording'))
    faults = [n for n,sure in said if sure!='' or name!='grpo_nb']
    names = set(NAMED[run['fault']].get(name, '').split()) if run['fault'] else set()
    hits = {n for n,_ in said} & names
    sure = [s for n,s in said if s and (not names or n in names)] or [s for _,s in said if s]
    return {k:run[k] for k in ('hand','run','fault','split')}|dict(doctor=name, warnings=len(faults),
        named=bool(hits), sure=sure[0] if sure else '', says=' '.join(n for n,_ in said), version=VERSION)

def score(splits=('seen','held'), doctors=DOCTORS):
    "A row per run and doctor"
    out = []
    with tempfile.TemporaryDirectory() as d:
        for s in splits:
            for run in runs(s, Path(d)/s): out += [judged(run, *o) for o in doctors.items()]
    return pd.DataFrame(out)

def installed():
    "The doctors that can be imported here"
    from importlib.util import find_spec
    need = dict(grpo_nb='grpo_nb', rldoctor='rl_doctor', rlprobe='rlprobe', rlwatch='rlwatch')
    return {k:v for k,v in DOCTORS.items() if find_spec(need[k])}

if __name__=='__main__':
    logging.disable(logging.WARNING)
    if sys.argv[1:]==['train']: train_held()
    elif sys.argv[1:]==['tasks']: train_tasks()
    else: score(doctors=installed()).to_csv(
        ROOT/'nbs'/'results'/'doctor_bench.csv.gz',
        index=False, compression=dict(method='gzip', mtime=0))
