"""What needs a GPU, in the order in which few minutes on one card give the most; the rows of
`nbs/results/gpu_day.csv`, which the page `nbs/dev/gpu_day.ipynb` reads.

    grpo_nb bench --gpu --tiny            # the rehearsal: tiny sizes, a few minutes on a laptop
    grpo_nb bench --gpu --minutes 10      # on the GPU: begins nothing that is not expected to end in time
    grpo_nb bench --gpu                   # goes on where that stopped
    grpo_nb bench --gpu --only smoke,nccl # some of it
"""
import gc, json, math, os, signal, subprocess, sys, tempfile, time, warnings
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
import pandas as pd
import torch, yaml
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from datasets import Dataset
from tqdm.auto import tqdm
from trl import GRPOTrainer
from bench_speed import (
    Bench, Paced, Work, compared, generators, in_turn, peak_bytes, read_bench, row, some_answers, spread,
    stamp, trl_trainer, write_rows)
from rehearsal import ROOT, SCALE, SETTINGS, TINY, history
from grpo_nb.cli import function_parser
from grpo_nb.evaluation import evaluate
from grpo_nb.see.verdict import verdict
from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferTrainer
from grpo_nb.demo import DEMOS
from grpo_nb.parts.datasets import chain_sum, end_at_newline, make_problems
from grpo_nb.studies.real_study import REAL_GPU, continue_study, real_plan, rehearsal_plan
from grpo_nb.studies.replay_study import run_stack
from grpo_nb.run.folders import single_thread
from grpo_nb.parts.stats import paired_difference, mean_ci
from grpo_nb.tasks import accuracy_reward
from grpo_nb.tiny_qwen import load_model
from grpo_nb.trainer import TrainConfig, train, train_batch

sys.path.append(str(SCALE))   # chapter 18's scripts
from plan import memory_plan

DAY = {}   # name: function of a `Bench` that yields rows, in the order of the day

def _measurement(seconds):
    "Put a function into `DAY` under its name, with the seconds expected on an H100."
    def put(f):
        f.seconds = seconds
        DAY[f.__name__.strip('_').replace('_', '-')] = f
        return f
    return put

def _in_seconds(o, arms, seconds, most=20):
    "`in_turn`: two rounds to warm up, then as many as fit, but at least 5; 2 in a rehearsal."
    sync = torch.cuda.synchronize if o.device=='cuda' else None
    in_turn(arms, 1, 0, sync)
    t = time.perf_counter()
    in_turn(arms, 1, 0, sync)
    fit = int(seconds/(time.perf_counter()-t))
    return in_turn(arms, o.some(min(most, max(5, fit)), 2), 0, sync)

def _in_cache(name, kind='model'):
    "Is it in the hub's cache of this machine?"
    from huggingface_hub import try_to_load_from_cache
    file = 'config.json' if kind=='model' else 'README.md'
    return isinstance(try_to_load_from_cache(name, file, repo_type=kind), str)

def _full_run_settings(o):
    "Those of chapter 18 for what is here: Qwen and GSM8K where they are in the cache, else SmolLM2 and sums."
    if o.device!='cuda': return SETTINGS|TINY
    big = yaml.safe_load((SCALE/'eight_gpus.yaml').read_text(encoding='utf-8'))
    if not (_in_cache(big['model']) and _in_cache('openai/gsm8k', 'dataset')):
        small = ('model','dataset','num_generations','max_completion_length','learning_rate')
        big |= {k:SETTINGS[k] for k in small}
    if find_spec('vllm') is None: big |= dict(use_vllm=False, vllm_enable_sleep_mode=False)
    return big|dict(max_steps=20, save_steps=10, disable_tqdm=True)

def _memory_used():
    "The most that a card has in use, bytes; 0 without one."
    ask = ['nvidia-smi','--query-gpu=memory.used','--format=csv,noheader,nounits']
    try: said = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError): return 0
    return max(int(k) for k in said.split())*2**20

@_measurement(240)
def _full_run(o):
    "Chapter 18's script on every card, in two processes on a CPU: curve, seconds, memory."
    cuda = o.device=='cuda'
    n = torch.cuda.device_count() if cuda else 2
    settings = _full_run_settings(o)|dict(output_dir=f'{o.folder}/full')
    words = [SCALE/'full_run.py', *(w for k,v in settings.items() for w in (f'--{k}', v))]
    if cuda:
        import trl
        fsdp2 = f'{trl.__path__[0]}/accelerate_configs/fsdp2.yaml'
        start = ['-m','accelerate.commands.launch','--config_file',fsdp2,'--num_processes',n] if n>1 else []
    else: start = ['-m','torch.distributed.run','--standalone','--nproc_per_node',n,SCALE/'on_cpu.py']
    env = os.environ|dict(PYTHONPATH=str(ROOT))|({} if cuda else dict(OMP_NUM_THREADS='1'))
    log,peak,t0 = Path(o.folder)/'log',0,time.perf_counter()
    with open(log, 'w', encoding='utf-8') as f:
        p = subprocess.Popen([str(k) for k in (sys.executable, *start, *words)], env=env, stdout=f, stderr=f)
        while p.poll() is None:
            peak = max(peak, _memory_used() if cuda else 0)
            time.sleep(1)
    if p.returncode: raise RuntimeError(f'{n} processes ended with {p.returncode}: {log.read_text()[-300:]}')
    said = f'{settings["model"]}, {settings["dataset"]}, {n} processes'
    rows = history(settings['output_dir'])
    for k in rows: yield row('', 'reward', 'replay', x=k['step'], value=k['reward'])
    yield row('', 'a run', 'replay', value=time.perf_counter()-t0, unit='s', rounds=len(rows), note=said)
    speed = rows[-1]['num_tokens']/sum(k['step_time'] for k in rows)
    yield row('', 'tokens', 'replay', value=speed, unit='tokens/s', note=said)
    replaced = sum(k['replay/replaced'] for k in rows)
    yield row('', 'groups replaced', 'replay', value=replaced, unit='groups', note=said)
    if cuda: yield row('', 'memory in use, fullest card', 'replay', value=peak, unit='bytes', note=said)

@_measurement(10)
def _card(o):
    "Rates of a large product and a large copy."
    n,long = o.some(8192, 256),o.some(2**30, 2**20)
    a,b = (torch.randn(n, n, device=o.device).bfloat16() for _ in range(2))
    x,y = (torch.randn(long, device=o.device) for _ in range(2))
    def product(): torch.mm(a, b)
    def copy(): y.copy_(x)
    seen = _in_seconds(o, {'product':product, 'copy':copy}, 2)
    for arm,work,unit in (('product', 2*n**3, 'operations/s'), ('copy', 8*long, 'bytes/s')):
        v,low,high = spread(work/w for w,_,_ in seen[arm])
        said = f'{n} x {n} in bfloat16' if arm=='product' else f'{4*long/1e9:.1f} GB'
        yield row('', 'best rate', arm, value=v, low=low, high=high, unit=unit, note=said)
    if o.device=='cuda':
        yield row('', 'memory', 'card', value=torch.cuda.get_device_properties(0).total_memory, unit='bytes')

KINDS = {'GRPOTrainer':GRPOTrainer, 'replay':GRPOWithReplayBufferTrainer}

@dataclass
class Sums(Work):
    "One-digit sums for a model that has learned something."
    name:str='tiny'   # as `load_model` takes it

    def model(self)->tuple:
        "(model, tokenizer)"
        m,tok = load_model(self.name)
        m.set_attn_implementation('eager')   # the same sums in the same order
        return m.to(self.device),tok

    def problems(self, n:int=None)->Dataset:
        "So many problems, all different."
        return chain_sum(n or self.B, seed=0)

def _trained(work, kind, folder, resume=None, **options):
    "A trainer at the end of its run."
    own = dict(learning_rate=2e-4, logging_strategy='steps', logging_steps=1)
    t = trl_trainer(work, folder, kind, accuracy_reward, **own|options)
    t.train(resume_from_checkpoint=resume)
    return t

def _apart(a, b):
    "The largest difference between the weights of two trainers."
    x,y = (t.accelerator.unwrap_model(t.model).state_dict() for t in (a, b))
    return max((x[k]-y[k]).abs().max().item() for k in x)

def _noted(t, name): return [o[name] for o in t.state.log_history if name in o]

@_measurement(75)
def _smoke(o):
    "Losses, swaps, a resume to the bit, the record, bfloat16."
    work,out,steps = Sums(B=4, G=4, T=o.some(48, 16), device=o.device),Path(o.folder),6
    ours = GRPOWithReplayBufferTrainer
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        o.say('GRPOTrainer, replay off, replay, resumed')
        runs = {'GRPOTrainer':_trained(work, GRPOTrainer, out/'trl', max_steps=steps),
            'replay off':_trained(work, ours, out/'off', max_steps=steps, replay_buffer_size=0),
            'replay':_trained(work, ours, out/'on', max_steps=steps, save_strategy='steps', save_steps=3)}
        record = len((out/'on'/'groups.jsonl').read_text().splitlines())
        runs['resumed'] = _trained(work, ours, out/'on', str(out/'on'/'checkpoint-3'), max_steps=steps)
    finally: torch.use_deterministic_algorithms(False)
    o.say('bfloat16')
    runs['replay, bfloat16'] = _trained(work, ours, out/'low', max_steps=steps, bf16=True)
    for arm,t in runs.items():
        loss = _noted(t, 'loss')
        yield row('', 'finite losses', arm, value=sum(map(math.isfinite, loss)), unit=f'of {steps} steps',
            note=f'last loss {loss[-1]:.5f}')
    swaps = sum(_noted(runs['replay'], 'replay/replaced'))
    yield row('', 'groups replaced', 'replay', value=swaps, unit='groups')
    for a,b in (('GRPOTrainer','replay off'), ('replay','resumed')):
        yield row('', 'weights apart', f'{a} and {b}', value=_apart(runs[a], runs[b]))
    yield row('', 'groups recorded', 'replay', value=record, unit='groups',
        note=' '.join(str(verdict(runs['replay'].state.log_history[:-1])).split()))

@dataclass
class Shaped(Work):
    "Prompts of one length for a model of random weights."
    P:int=128        # tokens of a prompt
    lora:bool=False  # train adapters of rank 16 only?

    def model(self)->tuple:
        "(model, tokenizer)"
        m,tok = super().model()
        if not self.lora: return m,tok
        from peft import LoraConfig, get_peft_model
        return get_peft_model(m, LoraConfig(r=16, target_modules='all-linear', task_type='CAUSAL_LM')),tok

    def problems(self, n:int=None)->Dataset:
        "Prompts of digits: a byte is a token."
        return Dataset.from_dict(dict(prompt=[f'{i:0{self.P}d}' for i in range(n or self.B)]))

class Made:
    "Rewards that differ within every group or, when `half` is set, within every second one."
    __name__ = 'made'
    half = False
    def __init__(self, G:int): self.G = G
    def __call__(self, completions:list, completion_ids:list, **kwargs:list)->list:
        "A number per completion."
        r = some_answers(completions, completion_ids)
        return [1. if self.half and i//self.G%2 else x for i,x in enumerate(r)]

def _peak(f, device):
    "The most that tensors took at one time while `f` ran, above what stood before."
    if device!='cuda': return peak_bytes(f)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    f()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()-before

def _held(device): return torch.cuda.memory_allocated() if device=='cuda' else 0

def _kernels(f, device):
    "How many kernels `f` starts, and their seconds; operators of this thread on a CPU."
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile
    cuda = device=='cuda'
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as p:
        f()
        if cuda: torch.cuda.synchronize()
    want = DeviceType.CUDA if cuda else DeviceType.CPU
    ns = [e.duration_ns() for e in p.profiler.kineto_results.events() if e.device_type()==want]
    return len(ns),sum(ns)/1e9

def _counted(o, case, arm, value, unit, note):
    "A row of what only a GPU can say; on a CPU its place."
    if o.device=='cuda': return row('', case, arm, value=value, unit=unit, note=note)
    return row('', case, arm, unit=unit, status='not run', note='counted on a GPU only')

def _kernel_row(o, case, arm, f, said):
    n,s = _kernels(f, o.device)
    return _counted(o, case, arm, n, 'kernels', f'{s:.4f} s in them; {said}')

def _beside(o, size, **more):
    "Step time, memory and kernels of both trainers in one process."
    sizes = o.some(dict(size=size, B=4, G=8, T=64, P=128)|more, dict(size='0.1M', B=2, G=4, T=6, P=16))
    work = Shaped(**sizes|dict(lora='lora' in more), ends=False, device=o.device)
    said = (f'{work.size}, {work.B} groups of {work.G}, {work.P}+{work.T} tokens, '
        f'{"adapters" if work.lora else "all weights"}')
    arms,made,own = {},Made(work.G),{}
    try:
        for arm,kind in KINDS.items():
            o.say(f'{said}: {arm}')
            before,folder = _held(o.device),Path(o.folder)/f'{work.size}-{arm}'
            arms[arm] = Paced(trl_trainer(work, folder, kind, made, bf16=o.device=='cuda'))
            arms[arm]()
            own[arm] = _held(o.device)-before
        for case in ('no group dead','every second group dead'):
            o.say(f'{said}: {case}')
            made.half = case!='no group dead'
            seen = _in_seconds(o, arms, o.some(30, 1))
            yield from compared('', f'step, {case}', seen, 'GRPOTrainer', clock='wall', note=said)
        swaps = arms['replay'].trainer._metrics['train']['replay/replaced']
        yield row('', 'groups replaced in a step', 'replay', value=swaps[-1], unit='groups', note=said)
        for arm,f in arms.items():
            yield _counted(o, 'peak memory', arm, own[arm]+_peak(f, o.device), 'bytes', said)
            yield _kernel_row(o, 'kernels of a step', arm, f, said)
        config = arms['replay'].trainer.model.config
        plan = memory_plan(config, work.B*work.G, work.P+work.T, checkpointing=False)
        planned = 1e9*sum(plan.values())
        if not work.lora: yield row('', 'peak memory', 'plan', value=planned, unit='bytes', note=said)
    finally:
        for f in arms.values(): f.close()

@_measurement(60)
def _pretrained(o):
    "SmolLM2-135M-Instruct learns sums, from the package registry's wheel: no hub is asked."
    settings,n = DEMOS['smollm2']['settings'],o.some(100, 4)
    args = TrainConfig(output_dir=None, disable_tqdm=True, **settings|dict(max_steps=o.some(60, 4)))
    model,tok = load_model(o.some('smollm2', 'tiny'))
    model.to(o.device)
    end_at_newline(model, tok)
    test = make_problems('two_digit_sums', n, 0, 'test')
    said = f'two_digit_sums, {args.max_steps} steps, learning rate {args.learning_rate}, {n} problems'
    def measured(arm):
        e = evaluate(model, tok, test, accuracy_reward, max_completion_length=args.max_completion_length)
        low,high = e['ci']
        return row('', 'pass@1', arm, value=e['pass@1'], low=low, high=high, note=said)
    yield measured('before')
    t0 = time.perf_counter()
    problems = make_problems('two_digit_sums', 1000, 0)
    run = train(model, tok, problems, accuracy_reward, args, print_verdict=False)
    yield row('', 'a run', 'replay', value=time.perf_counter()-t0, unit='s', rounds=run.step, note=said)
    yield measured('replay')
    for i,r in enumerate(run.history, 1): yield row('', 'reward', 'replay', x=i, value=r['reward'])

@_measurement(600)
def _real_study(o):
    "Ten minutes of rows of the registered study of SmolLM2; `study real --gpu` makes the rest."
    page,path = REAL_GPU
    plan = real_plan(Path(__file__).parents[1]/page)
    if o.quick: plan,path = rehearsal_plan(plan),str(Path(o.folder)/'real_study.csv')
    t0 = time.perf_counter()
    df = continue_study(plan, path, time.time()+600, disable_tqdm=True)
    yield row('', 'rows of the study', 'all', value=len(df), unit='runs', note=page)
    yield row('', 'these minutes', 'all', value=time.perf_counter()-t0, unit='s')
    if (df.error!='').any(): raise RuntimeError('; '.join(df.error[df.error!=''].unique()))

@_measurement(110)
def _step_05b(o):
    "The shape of Qwen2.5-0.5B."
    yield from _beside(o, '0.5B')

def _learning(o, name, steps, lr):
    "Pass@1 before and after, the curve of the reward, seconds and verdict, for both trainers."
    work = Sums(B=o.some(8, 2), G=o.some(8, 4), T=o.some(48, 16), device=o.device, name=name)
    test = chain_sum(o.some(500, 20), seed=0, split='test')
    def measure(m, tok):
        return evaluate(m.eval(), tok, test, accuracy_reward, max_completion_length=work.T)
    said = f'{name}, {steps} steps of {work.B} groups of {work.G}, learning rate {lr}'
    before = measure(*work.model())
    low,high = before['ci']
    yield row('', 'pass@1', 'before', value=before['pass@1'], low=low, high=high, note=said)
    for arm,kind in KINDS.items():
        o.say(f'{name}, {arm}')
        t0 = time.perf_counter()
        t = _trained(work, kind, Path(o.folder)/f'learn-{arm}', max_steps=steps, learning_rate=lr)
        yield row('', 'a run', arm, value=time.perf_counter()-t0, unit='s', rounds=steps, note=said)
        after = measure(t.accelerator.unwrap_model(t.model), t.processing_class)
        low,high = after['ci']
        found = verdict([r for r in t.state.log_history if 'reward' in r], before, after)
        yield row('', 'pass@1', arm, value=after['pass@1'], low=low, high=high, rounds=steps,
            note=f'{found.sentence} {said}')
        for i,r in enumerate(_noted(t, 'reward'), 1):
            if i%o.some(5, 1)==0: yield row('', 'reward', arm, x=i, value=r)

@_measurement(110)
def _learn(o):
    "The tiny Qwen learns to add."
    yield from _learning(o, 'tiny', o.some(100, 3), 2e-4)

@_measurement(100)
def _study(o):
    "Models of 3M weights, many seeds at once: pass@1 with stored groups minus plain GRPO."
    size,seeds,budget = o.some('3M', '0.2M'),list(range(300, o.some(364, 302))),o.some(40_000, 400)
    settings = json.dumps(dict(points=o.some(8, 1), size=size, budget=budget))
    said,ends = f'filtering, {size}, {len(seeds)} seeds, {budget} tokens each',{}
    for arm in ('plain','stored_clip'):
        o.say(f'{said}: {arm}')
        job = [dict(regime='filtering', arm=arm, seed=s, learning_rate=4.8e-5, settings=settings)
            for s in seeds]
        t = time.perf_counter()
        with single_thread(): rows = run_stack(job, o.device)
        ends[arm] = pd.Series({r['seed']:r['pass1'] for r in rows})
        mean,half = mean_ci(ends[arm])
        yield row('', 'pass@1', arm, value=mean, low=mean-half, high=mean+half, rounds=len(seeds), note=said)
        took = time.perf_counter()-t
        yield row('', 'a stack of runs', arm, value=took, unit='s', rounds=len(seeds), note=said)
    d = paired_difference(ends['stored_clip'], ends['plain'])
    low,high = d['diff']-d['diff_ci'],d['diff']+d['diff_ci']
    yield row('', 'pass@1, difference', 'stored_clip', value=d['diff'], low=low, high=high, against='plain',
        rounds=len(seeds), note=said)

@_measurement(90)
def _scratch(o):
    "Generation and step of the trainer from scratch, and its kernels."
    for size in o.some(('0.3M','3M','30M'), ('0.1M',)):
        work = Work(size=size, B=o.some(16, 2), G=o.some(8, 4), T=o.some(48, 6), ends=False, device=o.device)
        said = f'{size}, {work.B} groups of {work.G}, {work.T} tokens, float32'
        o.say(said)
        arms = generators(work, work.B*work.G)
        del arms['loop']
        seen = _in_seconds(o, arms, o.some(5, .2))
        yield from compared('', f'generation, {size}', seen, 'transformers', 'tokens', 'wall', note=said)
        s,trl = work.ours(),Paced(trl_trainer(work, Path(o.folder)/f'scratch-{size}'))
        def ours(s=s): return int(train_batch(s).sampled.completion_mask.sum())
        both = {'GRPOTrainer':trl, 'from scratch':ours}
        try:
            seen = _in_seconds(o, both, o.some(10, .2))
            yield from compared('', f'step, {size}', seen, 'GRPOTrainer', clock='wall', note=said)
            for arm,f in both.items(): yield _kernel_row(o, f'kernels of a step, {size}', arm, f, said)
        finally: trl.close()

def _on_ranks(o, f, *args):
    "Call `f` in a process for each card, in two on a CPU; what each returned, or an error in its words."
    world = torch.cuda.device_count() if o.device=='cuda' else 2
    how = LaunchConfig(1, 1, world, run_id='day', rdzv_backend='c10d', rdzv_endpoint='localhost:0',
        max_restarts=0, start_method='spawn')
    before = {o:signal.getsignal(o) for o in (signal.SIGTERM,signal.SIGINT,signal.SIGHUP,signal.SIGQUIT)}
    try: out = elastic_launch(how, f)(o.device, *args)
    finally:
        for k,v in before.items(): signal.signal(k, v)   # the launcher leaves its own
    return [out[r] for r in range(world)]

@record
def rank_talks(
    device:str,  # 'cpu' or 'cuda'
    rounds:int,  # of each call
    n:int,       # bfloat16 weights to send
)->tuple:      # seconds by call; bytes
    "One rank: the collective calls of a run, timed."
    world = int(os.environ['WORLD_SIZE'])
    if device=='cuda': torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
    dist.init_process_group('nccl' if device=='cuda' else 'gloo')
    weights = torch.randn(n, device=device).bfloat16()
    rows = torch.zeros(world*4096, dtype=torch.int32, device=device)
    every = torch.zeros(world*len(rows), dtype=torch.int32, device=device)
    calls = dict(broadcast=lambda: dist.broadcast(weights, 0), all_reduce=lambda: dist.all_reduce(weights),
        all_gather=lambda: dist.all_gather(list(every.chunk(world)), rows),
        all_to_all=lambda: dist.all_to_all_single(torch.empty_like(rows), rows))
    calls = {k:lambda f=f: f() and None for k,f in calls.items()}   # no work but the call itself
    seen = in_turn(calls, rounds, 2, torch.cuda.synchronize if device=='cuda' else None)
    dist.destroy_process_group()
    return seen,dict(weights=2*n, rows=4*len(rows))

@_measurement(40)
def _nccl(o):
    "Collective calls between all cards."
    out = _on_ranks(o, rank_talks, *o.some((10, 494_032_768), (2, 10_000)))
    said,sizes = f'{len(out)} ranks, {"nccl" if o.device=="cuda" else "gloo"}',out[0][1]
    for k in out[0][0]:
        slowest = [max(ts) for ts in zip(*(seen[k] for seen,_ in out))]
        size = sizes['weights' if k in ('broadcast','all_reduce') else 'rows']
        yield from compared('', k, {k:slowest}, clock='wall', x=len(out), note=f'{size/1e6:.1f} MB, {said}')

@record
def rank_trains(
    device:str,    # 'cpu' or 'cuda'
    folder:str,    # the run's
    strategy:str,  # 'ddp' or 'fsdp2'
    T:int,         # tokens of a completion
)->dict:          # losses, groups replaced, seconds
    "One rank of a run with replay."
    from on_cpu import fsdp2_on_cpu
    if strategy=='fsdp2': fsdp2_on_cpu()   # the settings are those of a GPU; only what it adds is for a CPU
    work = Sums(B=4, G=4, T=T, device='cpu')
    t0 = time.perf_counter()
    t = _trained(work, KINDS['replay'], Path(folder)/strategy, use_cpu=device=='cpu', max_steps=6)
    return dict(loss=_noted(t, 'loss'), replaced=sum(_noted(t, 'replay/replaced')), s=time.perf_counter()-t0)

@_measurement(70)
def _trainers(o):
    "Our trainer on all cards, with DDP and with FSDP2: the same losses?"
    last = {}
    for strategy in ('ddp','fsdp2'):
        o.say(strategy)
        out = _on_ranks(o, rank_trains, str(o.folder), strategy, o.some(48, 16))
        last[strategy],said = out[0]['loss'],f'{len(out)} ranks, tiny Qwen'
        for case,v,unit in (('groups replaced', out[0]['replaced'], 'groups'),
                            ('a run', max(r['s'] for r in out), 's')):
            yield row('', case, strategy, x=len(out), value=v, unit=unit, note=said)
    far = max(abs(a-b) for a,b in zip(*last.values()))
    yield row('', 'losses apart', 'fsdp2 and ddp', value=far, unit='', note=said)

@_measurement(110)
def _step_15b(o):
    "The shape of Qwen2.5-1.5B."
    yield from _beside(o, '1.5B', B=2)   # two trainers: two groups leave room for their states

@_measurement(130)
def _step_7b(o):
    "The shape of Qwen2.5-7B, adapters of rank 16 on bfloat16 weights."
    yield from _beside(o, '7B', B=2, dtype='bfloat16', lora=True)

@_measurement(120)
def _vllm(o):
    "Replay with vLLM in the process, asleep while the policy trains, beside transformers' `generate`."
    if why := '' if find_spec('vllm') else 'vllm is not installed':
        yield row('', 'step, vLLM in the process', 'all', status='not run', note=why)
        return
    work,folder = Sums(B=8, G=8, T=o.some(48, 16), device=o.device),Path(o.folder)
    inside = dict(use_vllm=True, vllm_mode='colocate', vllm_gpu_memory_utilization=.3,
        vllm_enable_sleep_mode=o.device=='cuda', vllm_max_model_length=256)
    arms = {}
    try:
        for arm,options in {'transformers':{}, 'vLLM':inside}.items():
            arms[arm] = Paced(trl_trainer(work, folder/arm, KINDS['replay'], accuracy_reward, **options))
        seen = _in_seconds(o, arms, o.some(30, 1))
        yield from compared('', 'step', seen, 'transformers', clock='wall', note='tiny Qwen, 8 groups of 8')
    finally:
        for f in arms.values(): f.close()

@_measurement(200)
def _real_qwen(o):
    "Qwen2.5-0.5B-Instruct learns sums, where its weights are in the cache."
    name = 'Qwen/Qwen2.5-0.5B-Instruct'
    if not _in_cache(name):
        yield row('', 'pass@1', 'all', status='not run', note=f'{name} is not in the cache of this machine')
    else: yield from _learning(o, name, o.some(60, 2), 1e-6)

COLUMNS = '''name case arm x value low high unit against ratio ratio_low ratio_high rounds settings seconds
    status error tiny device machine cores torch transformers trl grpo_nb when'''.split()

def read_day(
    path:str|Path,  # CSV of `gpu_day`
)->pd.DataFrame:    # its rows, an empty table where there is no file
    "What has been measured. ValueError for a CSV of something else."
    return read_bench(path, COLUMNS, 'grpo_nb bench --gpu')

def _like(df, here): return (df.tiny==here['tiny'])&(df.device==here['device'])

def _to_do(df, names):
    "Of `names` those never begun or not finished, then those that failed."
    failed,ended = (set(df[df.status==o].name) for o in ('failed','done'))
    return [o for o in names if o not in ended]+[o for o in names if o in ended & failed]

def _attempt(name, o):
    "The rows of a measurement as they come, the last 'done'; an error is a row."
    start = last = time.perf_counter()
    why,rows = '',DAY[name](o)
    while not why:
        try: r = next(rows)
        except StopIteration: break
        except Exception as e: why = f'{type(e).__name__}: {" ".join(str(e).split())[:400]}'
        else:
            now = time.perf_counter()
            yield r|dict(seconds=now-last)
            last = now
    if why: yield row('', 'all', 'all', status='failed', note=why)|dict(seconds=time.perf_counter()-last)
    del rows
    gc.collect()   # what this one held would be missing in the next
    if o.device=='cuda': torch.cuda.empty_cache()
    yield row('', 'all', 'all', status='done', unit='s', value=time.perf_counter()-start)

def _as_row(name, r, here):
    "With `COLUMNS`."
    said = 'error' if r['status'] in ('failed','not run') else 'settings'
    r = r|here|{'name':name, said:r.get('note')}
    return {k:r.get(k) for k in COLUMNS}

def _report(df, late, out):
    "The day in text, without the curves."
    show = df[df.case!='reward']['name case arm value unit ratio ratio_low ratio_high status'.split()]
    print(show.to_string(index=False, na_rep='', float_format=lambda x: f'{x:.4g}'))
    for _,o in df[df.error.notna()].iterrows(): print(f'{o.status}: {o["name"]}: {o.error}')
    if late: print(f'no time was left for {", ".join(late)}: call it again')
    print(f'table   {out}')

def gpu_day(
    only:str=None,            # names with commas between them; all without
    minutes:float=None,       # begin nothing that is not expected to end in so many
    tiny:bool=False,          # tiny sizes, also without a GPU: a rehearsal
    out:str='runs/gpu_day.csv',# the table; rows are added to it
    disable_tqdm:bool=False,  # hide the progress bar
)->pd.DataFrame:              # all rows of the table
    "Measure what needs a GPU, most valuable first; rows that the table has are not made again."
    names = [o.strip() for o in only.split(',')] if only else list(DAY)
    if odd := [o for o in names if o not in DAY]:
        raise ValueError(f'no measurement {odd[0]!r}: choose among {", ".join(DAY)}')
    cuda = torch.cuda.is_available()
    if not (cuda or tiny): raise ValueError('torch sees no GPU here: rehearse with --tiny')
    os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')   # what deterministic products ask for
    start,device,df = time.monotonic(),'cuda' if cuda else 'cpu',read_day(out).astype(object)
    here,late = stamp(device)|dict(tiny=tiny),[]
    todo = _to_do(df[_like(df, here)], names)
    with tqdm(total=len(todo), disable=disable_tqdm, unit='measurement') as bar, warnings.catch_warnings():
        warnings.simplefilter('ignore')
        for name in todo:
            left = math.inf if minutes is None else 60*minutes-(time.monotonic()-start)
            if left<(0 if tiny else DAY[name].seconds):
                late.append(name)
                continue
            df = df[~(_like(df, here)&(df.name==name))].reset_index(drop=True)
            with tempfile.TemporaryDirectory() as folder:
                o = Bench(tiny, 5, device, lambda what: bar.set_postfix_str(f'{name}: {what}'), folder)
                for r in _attempt(name, o):
                    df.loc[len(df)] = _as_row(name, r, here)
                    write_rows(df, out)
            bar.update()
            if cuda: torch.cuda.synchronize()   # an error here spoils all that follows: start again
    _report(df[_like(df, here)], late, out)
    return read_day(out)

if __name__=='__main__':
    try: gpu_day(**vars(function_parser(gpu_day, 'grpo_nb bench --gpu').parse_args()))
    except ValueError as e: sys.exit(f'gpu_day: {e}')
