"""Kill a run of two ranks (FSDP2, one buffer for both) at random moments, resume it, and compare.

    python tests/kills.py [kills, 50] [file.csv] [seed, 0]

A run is killed with -9 and resumed, again and again, until it reaches its last step. Then weights, reference,
buffer, generator and every row of its record must equal those of a run that nobody killed, to the bit. A kill
hits rank 0, rank 1 or both, every second time at a moment drawn over all that is left of the run (while it
starts, restores, samples or trains), else at one drawn within a save. A rank left over has two seconds
to fall by itself. One row is written for each kill; the exit code is 1 if a run ended differently.
"""
import csv, multiprocessing, os, random, shutil, signal, socket, sys, tempfile, time
from pathlib import Path
import numpy as np
import torch
torch.set_num_threads(1)
import trl_tiny as T
from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferTrainer
from on_cpu import fsdp2_on_cpu
from grpo_nb.run.reading import read_lines

STEPS,G = 10,4
PHASES = 'start','restore','train','save'
FIELDS = 'kill run seconds who rank0 rank1 step resumed_from same'.split()
fork = multiprocessing.get_context('fork')   # the imports are paid once

def rewards(completions, prompts, **kw):
    return [1. if len(p)%2 else o for p,o in zip(prompts, T.n_red(completions))]

class Seen(GRPOWithReplayBufferTrainer):
    "Tells the other side where it is: phase, step, the step it resumed from, saves and their milliseconds."
    def _tell(self, phase): self.at[:2] = PHASES.index(phase),self.state.global_step
    def training_step(self, *a, **k):
        self._tell('train')
        return super().training_step(*a, **k)
    def _load_optimizer_and_scheduler(self, checkpoint):
        self._tell('restore')
        super()._load_optimizer_and_scheduler(checkpoint)
        self.at[2] = self.state.global_step
    def _save_checkpoint(self, *a, **k):
        self._tell('save')
        begun = time.monotonic()
        super()._save_checkpoint(*a, **k)
        self._tell('train')
        self.at[3],self.at[4] = self.at[3]+1,int(1e3*(time.monotonic()-begun))

def full(p): return (p.full_tensor() if hasattr(p, 'full_tensor') else p).detach().clone()

def rank(r, port, folder, at):
    "One process of a run in `folder`, resumed if there is something."
    sys.stdout = sys.stderr = open(Path(folder)/f'said{r}', 'a', encoding='utf-8')
    os.environ |= dict(RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE='2', LOCAL_WORLD_SIZE='2',
        MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
    fsdp2_on_cpu(fsdp_cpu_ram_efficient_loading=False)
    Seen.at = at
    args = T.config(output_dir=f'{folder}/run', max_steps=STEPS, save_strategy='steps', save_steps=1,
        save_total_limit=2, num_iterations=2, per_device_train_batch_size=6, learning_rate=5e-3,
        lr_scheduler_type='constant', replay_buffer_size=4, beta=.1, sync_ref_model=True,
        ref_model_sync_steps=2)
    t = T.trainer(rewards, cls=Seen, args=args)
    t.train(resume_from_checkpoint='auto')
    whole = {name:{k:full(v) for k,v in t.accelerator.unwrap_model(m).state_dict().items()}
        for name,m in (('policy', t.model),('reference', t.ref_model))}
    # the generators as saved: a run that is resumed at its end has no use for them
    rng = torch.load(f'{folder}/run/checkpoint-{STEPS}/rng_state_{r}.pth', weights_only=False)
    torch.save(whole|dict(buffer=t.buffer.state_dict(), rng=rng), f'{folder}/end{r}')

def launch(folder):
    "Two processes, and where each of them is."
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    at = [fork.RawArray('i', [0, 0, -1, 0, 0]) for _ in (0, 1)]
    ps = [fork.Process(target=rank, args=(r, port, folder, at[r])) for r in (0, 1)]
    for p in ps: p.start()
    return ps,at

def finish(ps, seconds):
    for p in ps: p.join(seconds)
    for p in ps:
        if p.is_alive(): p.kill()
        p.join()

def record(folder):
    "Every row of the record, without what a clock says."
    def timeless(row):
        return {k:v for k,v in row.items() if 'time' not in k and 'second' not in k and k!='total_flos'}
    def rows(name): return read_lines(f'{folder}/run/{name}.jsonl')[0]
    return [[timeless(o) for o in rows(k) if 'train_loss' not in o] for k in ('history','groups')]

def equal(a, b):
    if isinstance(a, torch.Tensor): return torch.equal(a, b)
    if isinstance(a, dict): return a.keys()==b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list,tuple)): return len(a)==len(b) and all(map(equal, a, b))
    return np.array_equal(a, b) if isinstance(a, np.ndarray) else a==b

def differs(a, b):
    "In which of its parts the run in folder `b` ended otherwise than the one in `a`."
    out = [k for k,x,y in zip(('history','groups'), record(a), record(b)) if x!=y]
    for r in (0, 1):
        x,y = (torch.load(f'{o}/end{r}', weights_only=False) for o in (a, b))
        out += [f'{k} of rank {r}' for k in x if not equal(x[k], y[k])]
    return out

class Killer:
    "Runs, kills and resumes; a row for each kill in `rows`."
    def __init__(self, seed): self.draw,self.rows,self.lasts,self.saves = random.Random(seed),[],None,None

    def whole(self, folder):
        "A run that nobody kills."
        begun = time.monotonic()
        ps,at = launch(folder)
        finish(ps, 600)
        self.lasts,self.saves = time.monotonic()-begun,at[0][4]/1e3   # seconds of a run, and of a save

    def moment(self, ps, at, before):
        "Return when it is time to kill, or when a process has ended."
        def alive(): return all(p.is_alive() for p in ps)
        def pause(seconds):
            begun = time.monotonic()
            while alive() and time.monotonic()-begun<seconds: time.sleep(.005)
        if len(self.rows)%2:
            nth = self.draw.randint(1, 3)
            while alive() and not (at[0][3]==nth-1 and PHASES[at[0][0]]=='save'): time.sleep(.002)
            return pause(self.draw.uniform(0, self.saves))
        pause(self.draw.uniform(0, self.lasts*max(.2, 1-(before['step'] if before else 0)/STEPS)))

    def attempt(self, folder, run, before, kill):
        "Launch what is in `folder`, and kill it if it lasts as long as drawn: the kill's row, or None."
        ps,at = launch(folder)
        begun = time.monotonic()
        if kill: self.moment(ps, at, before)
        else: finish(ps, 600)
        if before and at[0][2]>=0: before['resumed_from'] = at[0][2]
        if not all(p.is_alive() for p in ps):
            finish(ps, 60)
            return None
        who,where = self.draw.choice(['0','1','both']),[list(o) for o in at]
        for r,p in enumerate(ps):
            if who in (str(r),'both'): os.kill(p.pid, signal.SIGKILL)
        finish(ps, 2)
        seconds,phases = round(time.monotonic()-begun, 2),[PHASES[o[0]] for o in where]
        return dict(zip(FIELDS, (len(self.rows)+1, run, seconds, who, *phases, where[0][1], '', '')))

    def until_done(self, folder, run, kills):
        "One run to its end, killed on the way as long as fewer than `kills` were; its rows."
        mine = []
        while row := self.attempt(folder, run, mine[-1] if mine else None, len(self.rows)<kills):
            self.rows.append(row)
            mine.append(row)
        return mine

def main(kills=50, out=None, seed=0):
    top,killer,run,bad = Path(tempfile.mkdtemp(prefix='kills')),Killer(seed),0,0
    T.folder()
    (top/'whole').mkdir()
    killer.whole(top/'whole')
    print(f'{STEPS} steps take {killer.lasts:.1f} s, a save {killer.saves:.2f}', flush=True)
    while len(killer.rows)<kills:
        here = top/f'run{run}'
        here.mkdir()
        mine = killer.until_done(here, run, kills)
        ended = (here/'end0').exists() and (here/'end1').exists()
        what = differs(top/'whole', here) if ended else ['no end: '+(here/'said0').read_text()[-1500:]]
        for o in mine: o['same'] = int(not what)
        print(f'run {run}: {len(mine)} kills, {", ".join(what) or "the same to the bit"}', flush=True)
        if what: print(f'its folder: {here}')
        else: shutil.rmtree(here)
        run,bad = run+1,bad+bool(what)
        if out: write(out, killer.rows)
    saving = sum('save' in (o['rank0'], o['rank1']) for o in killer.rows)
    print(f'{len(killer.rows)} kills in {run} runs, {saving} of them within a save: '
        f'{run-bad} runs ended as the one that nobody killed, {bad} otherwise')
    if not bad: shutil.rmtree(top)
    return bad

def write(out, rows):
    with open(out, 'w', encoding='utf-8', newline='') as f:
        w = csv.DictWriter(f, FIELDS, lineterminator='\n')
        w.writeheader()
        w.writerows(rows)

if __name__=='__main__':
    kills,out,seed = (sys.argv[1:]+['50','','0'][len(sys.argv)-1:])[:3]
    sys.exit(main(int(kills), out, int(seed))>0)
