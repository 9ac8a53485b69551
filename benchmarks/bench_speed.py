"""Each part of a step beside its alternative, in turns, in one process; the rows of
`nbs/results/speed.csv.xz`, which the page `nbs/dev/speed.ipynb` reads.

    grpo_nb bench                      # every part
    grpo_nb bench --only step --quick  # one of them, small, to see that it works
"""
import gc, json, math, os, sys, tempfile, threading, time, warnings, weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode
from tqdm.auto import tqdm
from grpo_nb.parts.files import atomic_write
from grpo_nb.parts.versions import versions
from grpo_nb.parts.registry import register
from grpo_nb.parts.datasets import chain_sum, make_problems
from grpo_nb.generation import generate
sys.path.append(str(Path(__file__).resolve().parents[1]/'tests'))   # their helpers
from slow_loop import generate_loop
from grpo_nb.studies.study import machine
from grpo_nb.replay import ReplayBuffer
from grpo_nb.variants.strategy import Keep
from grpo_nb.tiny_qwen import encode_prompts, load_model, make_tokenizer, tiny_model
from grpo_nb.trainer import TrainConfig, TrainState, init_state, train_batch

def in_turn(
    arms:dict,      # name -> function without arguments; what it returns, if a number, is the work it did
    rounds:int=5,   # measured rounds
    warmup:int=1,   # rounds before them that don't count
    sync:Callable=None, # called before each look at the clocks: waits for an accelerator
)->dict:            # name -> list of (wall seconds, processor seconds, work), one per round
    "Run every arm once per round, in order, and note both clocks. ValueError for no arms or no rounds."
    if not arms or rounds<1 or warmup<0:
        raise ValueError(f'{len(arms)} arms, {rounds} rounds, {warmup} warm-up rounds: give at least one '
                         'arm and one round')
    out = {k:[] for k in arms}
    for i in range(warmup+rounds):
        for k,f in arms.items():
            gc.collect()
            if sync: sync()
            w,c = time.perf_counter(),time.process_time()
            work = f()
            if sync: sync()
            seen = time.perf_counter()-w,time.process_time()-c,work if isinstance(work, (int,float)) else 1
            if i>=warmup: out[k].append(seen)
    return out

def spread(
    xs:Iterable, # numbers
)->tuple:    # median, lower quartile, upper quartile
    "The middle of `xs`, and between what the middle half lies. ValueError for none."
    xs = np.asarray(list(xs), dtype=float)
    if not len(xs): raise ValueError('no numbers: nothing was measured')
    return tuple(float(o) for o in np.quantile(xs, [.5, .25, .75]))

def speedup(
    base:list,          # (wall, processor, work) a round, from `in_turn`
    arm:list,           # the same rounds of the other arm
    clock:str='cpu',    # 'cpu' or 'wall'
)->tuple:               # median, lower and upper quartile: how many times faster is the arm than the base?
    "The ratio of seconds per unit of work, round by round. ValueError for a different number of rounds."
    if len(base)!=len(arm):
        raise ValueError(f'{len(base)} rounds against {len(arm)}: both arms must have taken turns')
    i = dict(wall=0, cpu=1)[clock]
    return spread((a[i]/a[2])/(b[i]/b[2]) for a,b in zip(base, arm))

def flop_counter()->FlopCounterMode:  # `get_total_flops()` of what ran in its block
    "PyTorch's counter of operations, told of in-place products and of attention on a CPU."
    counter,a = FlopCounterMode(display=False),torch.ops.aten
    known,cpu = counter.flop_registry,'_scaled_dot_product_flash_attention_for_cpu'
    same = {a.addmm_:a.addmm, a.baddbmm_:a.baddbmm, getattr(a, cpu):a._scaled_dot_product_flash_attention,
        getattr(a, f'{cpu}_backward'):a._scaled_dot_product_flash_attention_backward}
    for new,old in same.items(): known.setdefault(new, known[old])
    return counter

def matrix_rate(
    sizes:tuple=(256, 512, 1024),  # of square matrices
)->float:                          # operations a second
    "The best rate of this machine at square matrix products, by processor time, with the threads it has."
    def rate(n):
        a,b,c = torch.randn(3, n, n)
        timer = Timer('torch.mm(a, b, out=c)', globals=dict(torch=torch, a=a, b=b, c=c),
            timer=time.process_time, num_threads=torch.get_num_threads())
        return 2*n**3/min(timer.blocked_autorange(min_run_time=.05).times)
    return max(map(rate, sizes))

class PeakBytes(TorchDispatchMode):
    """The bytes of storages that operations make in the block: `now` those that live, `peak` the most.

    PyTorch's `MemTracker` counts the same by module, but knows one forward pass of a model and no second.
    """
    def __init__(self):
        super().__init__()
        self.now,self.peak,self.known = 0,0,set()

    def _gone(self, key, n):
        self.known.discard(key)
        self.now -= n

    def __torch_dispatch__(self, f, types, args=(), kwargs=None):
        out = f(*args, **kwargs or {})
        for o in tree_leaves(out):
            if not isinstance(o, torch.Tensor): continue
            s = o.untyped_storage()
            key,n = s._cdata,s.nbytes()
            if key in self.known: continue   # a view, or a tensor changed in place
            self.known.add(key)
            self.now += n
            weakref.finalize(s, self._gone, key, n)
        self.peak = max(self.peak, self.now)
        return out

def peak_bytes(
    f:Callable,  # function without arguments
)->int:          # bytes
    "The most that tensors took on a CPU at one time while `f` ran, above what stood before."
    with PeakBytes() as seen: f()
    return seen.peak

SHAPES = {   # about so many weights: (width, blocks, width inside the MLP)
    '0.1M':(64, 2, 160), '0.3M':(128, 2, 232), '1M':(192, 3, 384), '3M':(320, 3, 640), '10M':(512, 4, 1024),
    '30M':(768, 6, 1536), '100M':(1280, 7, 2560)}
QWEN = '0.5B','1.5B','7B'   # the shapes of Qwen2.5

def bench_model(
    size:str='0.3M',         # one of `SHAPES`, or of `QWEN` for the shape of a Qwen2.5
    p_end:float=.03,         # chance of the end token, at every position; 0 leaves it as it comes
    device:str='cpu',        # 'cpu' or 'cuda'
    dtype:str='float32',     # 'float32' or 'bfloat16'
    attention:str='sdpa',    # 'sdpa' or 'eager'
)->tuple:                    # (model, tokenizer)
    """A Qwen2 of random weights, always the same, whose completions end by chance.

    ValueError for a size, dtype, attention or device that it does not have.
    """
    for k,v,ok in (('size',size,(*SHAPES,*QWEN)), ('dtype',dtype,('float32','bfloat16')),
                   ('attention',attention,('sdpa','eager')), ('device',device,('cpu','cuda'))):
        if v not in ok: raise ValueError(f'`{k}` is {v!r}: choose one of {list(ok)}')
    if device=='cuda' and not torch.cuda.is_available():
        raise ValueError("`device` is 'cuda', but torch sees no GPU here: take 'cpu'")
    with torch.device(device): model = tiny_model(0, attn_implementation=attention, **_shape(size))
    tok = make_tokenizer()
    if p_end: _end_by_chance(model, tok.eos_token_id, p_end)
    return model.to(device, getattr(torch, dtype)),tok

def _shape(size):
    "Fields of the config."
    if size in QWEN:
        names = 'hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size'
        known = json.loads((Path(__file__).parent/'shapes.json').read_text(encoding='utf-8'))
        c = known[f'Qwen/Qwen2.5-{size}']
        return {k:c[k] for k in names.split()}|dict(vocab_size=151_936, max_position_embeddings=4096)
    width,blocks,inner = SHAPES[size]
    return dict(hidden_size=width, num_hidden_layers=blocks, intermediate_size=inner,
                num_attention_heads=width//32, num_key_value_heads=width//64)

@torch.no_grad()
def _end_by_chance(model, eos, p, c=.5):
    w = model.get_input_embeddings().weight
    w[:,0] = c
    ids = torch.arange(64, device=w.device).view(4, 16)
    h = model.base_model(input_ids=ids).last_hidden_state[...,0].mean()   # what the last norm leaves of it
    w[eos,0] = c+math.log(p*(len(w)-1)/(1-p))/h

def some_answers(
    completions:list,     # N texts or messages; not looked at
    completion_ids:list,  # N lists of tokens
    **kwargs:list,        # the other columns
)->list:             # N floats
    "A reward that varies within nearly every group, for benchmarks: 0, 0.5 or 1 by the sum of the tokens."
    return [float(sum(ids)%3)/2 for ids in completion_ids]

@dataclass
class Work:
    "What is measured: how many prompts, completions, tokens; and how."
    size:str='0.3M'        # of the model
    B:int=16               # prompts
    G:int=8                # completions of each
    T:int=48               # most tokens of a completion
    beta:float=0.          # weight of the KL
    ends:bool=True         # may completions end before `T`?
    device:str='cpu'
    dtype:str='float32'

    def loaded(self)->tuple: return bench_model(self.size, .03 if self.ends else 0, self.device, self.dtype)

    def model(self)->tuple:
        "(model, tokenizer), with fresh weights, always the same."
        m,tok = self.loaded()
        if not self.ends:
            tok.add_special_tokens(dict(eos_token='<|never|>'))   # no model of its size can produce it
            m.generation_config.eos_token_id = m.config.eos_token_id = tok.eos_token_id
        return m,tok

    def problems(self, n:int=None)->Dataset:
        "So many problems of the same few, over and over."
        return chain_sum(self.B, seed=0).select([i%self.B for i in range(n or self.B)])

    def ours(self, strategy:Keep=None)->TrainState:
        "The state of our own trainer."
        args = TrainConfig(num_generations=self.G, generation_batch_size=self.B*self.G,
            steps_per_generation=1, max_steps=10**6, beta=self.beta, learning_rate=1e-6,
            max_completion_length=self.T, replay_buffer_size=0, disable_tqdm=True,
            strategy=strategy or Keep())
        m,tok = self.model()
        return init_state(m, tok, self.problems(64*self.B), some_answers, args)

class _Over(Exception): pass

class Paced:
    """A trainer of TRL that stands still before each step.

    Calling it lets it go on for one, and returns the completion tokens it made.

    An error in the trainer is raised by the call. `close` ends it.
    """
    def __init__(self,
        trainer:object, # a `GRPOTrainer`, not yet started
    ):
        from transformers import TrainerCallback
        self.go,self.still = threading.Semaphore(0),threading.Semaphore(0)
        self.tokens,self.error,self.over,self.counter,self._on = 0,None,False,None,None
        self.trainer,me,old = trainer,self,trainer._generate_and_score_completions
        class Stand(TrainerCallback):
            def on_step_begin(self, args, state, control, **kwargs): me._stand()
        def note(inputs):
            out = old(inputs)
            me.tokens = int(out['completion_mask'].sum())
            return out
        trainer._generate_and_score_completions = note
        trainer.add_callback(Stand())
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self._wait()

    def _run(self):
        try: self.trainer.train()
        except _Over: pass
        except BaseException as e: self.error = e
        self.over = True
        self.still.release()

    def _stand(self):
        if self._on: self._on.__exit__(None, None, None)
        self.still.release()
        self.go.acquire()
        if self.over: raise _Over
        self._on = self.counter
        if self._on: self._on.__enter__()

    def _wait(self):
        self.still.acquire()
        if self.error: raise self.error

    def __call__(self)->int:
        if self.over: raise RuntimeError('the trainer has come to its end: give it more steps')
        self.go.release()
        self._wait()
        return self.tokens

    def close(self)->None:
        "End the trainer where it stands."
        self.over = True
        self.go.release()
        self.thread.join()

def trl_trainer(
    work:Work,    # what to train on
    folder:str|Path,# where TRL may write
    kind:type=None,       # of trainer; None for `GRPOTrainer`
    reward:Callable=some_answers, # in TRL's calling convention
    **options:str|float|bool,  # of the trainer's config
)->object:
    """TRL's `GRPOTrainer`, or one of its kind, on the work that ours does.

    The same optimizer, prompts, lengths and reward; on one GPU, also where there are more.

    No gradient checkpointing, no logging, no saving.
    """
    from transformers import PrinterCallback
    from transformers.utils import logging as hf
    from trl import GRPOConfig, GRPOTrainer
    hf.set_verbosity_error(); hf.disable_progress_bar()
    kind,bf16 = kind or GRPOTrainer,work.dtype=='bfloat16'
    config = getattr(kind, 'config_class', None) or GRPOConfig
    own = dict(output_dir=folder, per_device_train_batch_size=work.B*work.G, num_generations=work.G,
        max_completion_length=work.T, beta=work.beta, learning_rate=1e-6, lr_scheduler_type='constant',
        max_steps=10**6, report_to='none', logging_strategy='no', save_strategy='no', disable_tqdm=True,
        use_cpu=work.device=='cpu', bf16=bf16, gradient_checkpointing=False, dataloader_pin_memory=False,
        temperature=1., seed=0)
    args = config(**own|options)
    args._n_gpu = min(args.n_gpu, 1)   # else torch's DataParallel takes all there are
    m,tok = work.model()
    if work.beta:
        m.save_pretrained(folder)
        m.config._name_or_path = str(folder)   # TRL reads the reference from disk
    t = kind(model=m, reward_funcs=reward, args=args, train_dataset=work.problems(64*work.B),
        processing_class=tok)
    t.remove_callback(PrinterCallback)
    return t

COLUMNS = '''run part case arm x value low high unit wall_s cpu_s rounds
    against ratio ratio_low ratio_high ratio_wall flops bytes share share_alone status note quick
    device machine cores threads when python torch transformers trl grpo_nb'''.split()

def stamp(
    device:str='cpu',  # 'cpu', 'cuda' or 'none'
)->dict:
    "What the numbers depend on: machine, threads, versions, the minute (UTC)."
    v = versions()
    name = torch.cuda.get_device_name() if device=='cuda' else device
    return dict(device=name, machine=machine(), cores=os.cpu_count(), threads=torch.get_num_threads(),
                when=time.strftime('%Y-%m-%d %H:%M', time.gmtime()),
                **{k:v[k] for k in ('python','torch','transformers','trl','grpo_nb')})

def row(
    part:str,   # which part of the benchmark
    case:str,   # what was compared
    arm:str,    # which side of it
    **fields:str|float, # others of `COLUMNS`
)->dict:
    "One row of the CSV. ValueError for a column that there is not."
    if odd := set(fields)-set(COLUMNS): raise ValueError(f'no columns {sorted(odd)}: choose among {COLUMNS}')
    return dict(part=part, case=case, arm=arm, status='measured') | fields

def compared(
    part:str,       # as in `row`
    case:str,       # as in `row`
    seen:dict,      # from `in_turn`
    against:str=None,   # the arm that the others are compared with
    per:str=None,   # unit of work: the value becomes work per second; None: seconds
    clock:str='cpu',# which clock the value and the ratio are taken from
    **fields:str|float, # more of `COLUMNS`, for every row
)->list:            # one row per arm
    "Rows of a comparison: each arm's middle and spread, and how many times faster it is than `against`."
    i,out = dict(wall=0, cpu=1)[clock],[]
    for arm,ts in seen.items():
        v,lo,hi = spread(o[2]/o[i] if per else o[i] for o in ts)
        r = row(part, case, arm, value=v, low=lo, high=hi, unit=f'{per}/s' if per else 's',
                wall_s=spread(o[0] for o in ts)[0], cpu_s=spread(o[1] for o in ts)[0], rounds=len(ts),
                **fields)
        if against and arm!=against:
            m,lo,hi = speedup(seen[against], ts, clock)
            r |= dict(against=against, ratio=m, ratio_low=lo, ratio_high=hi,
                      ratio_wall=speedup(seen[against], ts, 'wall')[0])
        out.append(r)
    return out

def read_bench(
    path:str|Path,  # CSV
    columns:list=COLUMNS,       # that it has to have
    writer:str='grpo_nb bench', # the command that writes such files, named in the error
)->pd.DataFrame:
    "All rows in the file, an empty table where there is none; ValueError for a CSV of something else."
    there = Path(path).exists()
    df = pd.read_csv(path, dtype=dict(run=str)) if there else pd.DataFrame(columns=columns)
    if missing := [c for c in columns if c not in df.columns]:
        raise ValueError(f'{path} has no columns {missing}: it was not written by `{writer}`; choose '
                         'another --out')
    return df.astype({k:bool for k in ('quick','tiny') if k in df})

def write_rows(
    df:pd.DataFrame,  # the table
    path:str|Path,    # CSV
)->None:
    "Write the table, whole or not at all; floats with five digits, whole numbers with all of theirs."
    def short(x):
        if not isinstance(x, float) or math.isnan(x): return x
        return int(x) if x.is_integer() else float(f'{x:.5g}')
    with atomic_write(path) as f: df.astype(object).map(short).to_csv(f, index=False, lineterminator='\n')

@dataclass
class Bench:
    "Settings of a benchmark run."
    quick:bool=False     # small sizes, two rounds
    rounds:int=5         # of each comparison
    device:str='cpu'
    tick:Callable=None   # called with a word on what comes next
    folder:str='.'       # for scratch files

    def say(self, what:str)->None: self.tick and self.tick(what)
    def some(self, xs:object, quick:object)->object: return quick if self.quick else xs
    @property
    def n(self)->int: return 2 if self.quick else self.rounds

PARTS = {}   # name: function of a `Bench` that yields rows

def generators(
    work:Work,    # what is sampled
    rows:int,     # completions
)->dict:          # transformers, loop, ours
    "Three ways to sample, as functions that return how many useful tokens they made."
    model,tok = work.model()
    ids,mask = (o.to(model.device) for o in encode_prompts(tok, list(work.problems(rows//work.G)['prompt'])))
    g = torch.Generator(model.device).manual_seed(0)
    ends = dict(eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id)
    def theirs():
        out = model.generate(input_ids=ids, attention_mask=mask.long(), num_return_sequences=work.G,
            max_new_tokens=work.T, do_sample=True, temperature=1., top_k=0, top_p=1., **ends)
        over = (out[:,ids.shape[1]:]==tok.eos_token_id).int()
        return int((over.cumsum(1)-over==0).sum())
    def ours(f, n, G): return int(f(model, ids[:n], mask[:n], G, work.T, generator=g,
                                    **ends).completion_mask.sum())
    return dict(transformers=theirs, loop=lambda: ours(generate_loop, 1, min(4, work.G)),
        ours=lambda: ours(generate, len(ids), work.G))

@register(PARTS, 'generation')
def _generation(o):
    "Useful tokens per second: ours, transformers' `generate`, and one completion at a time."
    for rows in o.some((64, 128, 256, 512), (32,)):
        o.say(f'{rows} rows')
        work = Work(T=o.some(48, 12))
        arms = generators(work, rows)
        seen = in_turn(arms, o.n)
        with flop_counter() as n: arms['ours']()
        for r in compared('generation', f'{rows} rows', seen, 'transformers', 'tokens', x=rows):
            if r['arm']=='ours': r |= _share(n, spread(t[1] for t in seen['ours'])[0])
            yield r

def _share(counter, seconds):
    "Operations, and how much of the machine's best rate they are."
    flops = counter.get_total_flops()
    return dict(flops=flops, share=flops/matrix_rate()/seconds)

def _one_step(s):
    "One batch of our trainer; its completion tokens."
    return int(train_batch(s).sampled.completion_mask.sum())

@register(PARTS, 'step')
def _step(o):
    "Our from-scratch step against `GRPOTrainer`'s on the same work; seconds per step and per token."
    cases = {'beta 0':{}, 'beta 0.04':dict(beta=.04), 'beta 0, all 48 tokens':dict(ends=False)}
    for k,(case,opts) in enumerate(cases.items()):
        if o.quick and k==2: return
        o.say(case)
        work = Work(B=o.some(16, 4), T=o.some(48, 12), **opts)
        s,trl = work.ours(),Paced(trl_trainer(work, Path(o.folder)/f'trl-{k}'))
        try:
            seen = in_turn(dict(trl=trl, ours=lambda s=s: _one_step(s)), o.n)
            counts = dict(ours=flop_counter(), trl=flop_counter())
            with counts['ours']: _one_step(s)
            trl.counter = counts['trl']; trl(); trl.counter = None; trl()
        finally: trl.close()
        for r in compared('step', case, seen, 'trl'): yield r|_share(counts[r['arm']], r['cpu_s'])
    yield row('step', 'machine', 'matrix products', value=matrix_rate(), unit='operations/s')

@register(PARTS, 'buffer')
def _buffer(o):
    "Seconds to add 16 groups and to draw 8, in a full buffer of 64 to a million groups."
    for n in o.some((64, 1000, 16_000, 250_000, 1_000_000), (64, 1000)):
        o.say(f'{n:,} groups')
        rng,data,b = np.random.default_rng(0),[dict(x=torch.zeros(4))]*16,ReplayBuffer(n)
        for i in range(0, n, 16): b.add(rng.random(min(16, n-i)).tolist(), data[:n-i])
        batches = rng.random((50, 16)).tolist()   # a turn takes a millisecond or more
        def add():
            for scores in batches: b.add(scores, data)
        def draw():
            for _ in batches: b.sample(8)
        gc.freeze()   # else every look for garbage walks through a million groups
        for what,f in (('add 16', add), ('sample 8', draw)):
            seen = in_turn(dict(ours=f), o.some(9, 2))['ours']
            each = [(w/len(batches), c/len(batches), 1) for w,c,_ in seen]
            yield from compared('buffer', what, dict(ours=each), x=n)
        gc.unfreeze()

GROWTH = {   # case: (sizes, the work at a size)
    'group size':((2, 4, 8, 16, 32), lambda x: Work(G=x, ends=False)),
    'completion length':((16, 32, 64, 128, 256), lambda x: Work(B=4, T=x, ends=False)),
    'weights':(tuple(SHAPES), lambda x: Work(size=x, B=2, G=4, T=16, ends=False)),
    'weights, 128 completions':(tuple(SHAPES)[:5], lambda x: Work(size=x, ends=False)),
}

@register(PARTS, 'growth')
def _growth(o):
    "Time, memory and share of the machine's rate of our step against group size, length and weights."
    for case,(sizes,work) in GROWTH.items():
        for x in sizes[:2] if o.quick else sizes:
            o.say(f'{case} {x}')
            s = work(x).ours()
            rounds = 1 if o.quick or x in ('30M','100M') else 3
            seen = in_turn(dict(ours=lambda s=s: _one_step(s) and None), rounds)
            n = x if isinstance(x, int) else sum(p.numel() for p in s.model.parameters())
            with flop_counter() as count: _one_step(s)
            r = compared('growth', case, seen, x=n)[0]
            yield r|_share(count, r['cpu_s'])|dict(bytes=peak_bytes(lambda s=s: _one_step(s)))

@dataclass
class PretrainedWork(Work):
    "SmolLM2 on sums of two digits behind two solved examples; no answer ends before `T` tokens."
    B:int=8
    G:int=4
    T:int=12
    ends:bool=False
    name:str='smollm2'

    def loaded(self)->tuple: return load_model(self.name)
    def problems(self, n:int=None)->Dataset: return make_problems('two_digit_sums', n or self.B, 0)

def read_rate(
    mb:int=512,  # of a matrix that no cache holds
)->float:        # bytes a second
    "How fast this machine reads weights: a matrix times a vector."
    wide,vector = torch.ones(mb, 2**18),torch.ones(2**18)
    def read(): torch.mv(wide, vector)
    return wide.nbytes/spread(t[1] for t in in_turn(dict(read=read), 3)['read'])[0]

def _ways_to_sample(work, model, tok):
    "Ways to sample as many tokens: transformers' `generate`, ours, and ours with a fused copy."
    ids,mask = encode_prompts(tok, list(work.problems()['prompt']))
    ends = dict(eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id)
    def theirs():
        model.generate(input_ids=ids, attention_mask=mask.long(), num_return_sequences=work.G,
            max_new_tokens=work.T, do_sample=True, temperature=1., top_k=0, top_p=1., **ends)
        return work.B*work.G*work.T
    def ours(fast):
        ro = generate(model, ids, mask, work.G, work.T, fast=fast, **ends)
        return int(ro.completion_mask.sum())
    return dict(transformers=theirs, ours=lambda: ours(None), fused=lambda: ours(True))

@register(PARTS, 'pretrained')
def _pretrained(o):
    "SmolLM2: a step beside `GRPOTrainer`'s, three ways to sample, and what the machine could do at most."
    work,n = PretrainedWork(**o.some({}, dict(B=2, G=2, T=4, name='tiny'))),min(o.n, 3)
    o.say('the machine')
    yield row('pretrained', 'machine', 'bytes read', value=read_rate(o.some(512, 8)), unit='bytes/s')
    yield row('pretrained', 'machine', 'matrix products', value=matrix_rate(), unit='operations/s')
    model,tok = work.model()
    yield row('pretrained', 'weights', work.name, value=sum(p.numel() for p in model.parameters()))
    o.say('generation')
    seen = in_turn(_ways_to_sample(work, model, tok), n)
    yield from compared('pretrained', 'generation', seen, 'transformers', 'tokens')
    del model
    o.say('step')
    s,trl = work.ours(),Paced(trl_trainer(work, Path(o.folder)/'trl-pretrained'))
    try: seen = in_turn(dict(trl=trl, ours=lambda: _one_step(s)), n)
    finally: trl.close()
    yield from compared('pretrained', 'step', seen, 'trl')

def _measure(part, o, label):
    "The stamped rows of one part; a part that the machine can't do leaves a row with the reason."
    rows = []
    try: rows.extend(PARTS[part](o))   # those before a failure stay
    except (OSError, MemoryError, torch.OutOfMemoryError) as e:
        rows.append(row(part, 'all', 'all', status='failed', note=' '.join(str(e).split())[:200]))
    return [dict.fromkeys(COLUMNS)|stamp()|r|dict(run=label, quick=o.quick) for r in rows]

def bench(
    only:str=None, # some of generation,step,buffer,growth,pretrained, with commas
    quick:bool=False,        # small sizes and two rounds, to see that it works
    out:str='runs/speed.csv',# the table; runs are added to it
    rounds:int=5,            # of each comparison
    threads:int=1,           # of torch
    disable_tqdm:bool=False, # hide the progress bar
)->pd.DataFrame:             # all rows of this run
    "Measure speed and memory beside TRL and transformers; print and write the table."
    parts,df = [o.strip() for o in only.split(',')] if only else list(PARTS),read_bench(out)
    if odd := [o for o in parts if o not in PARTS]:
        raise ValueError(f'no part {odd[0]!r}: choose among {", ".join(PARTS)}')
    if rounds<1 or threads<1:
        raise ValueError(f'rounds={rounds}, threads={threads}: both need to be 1 or more')
    label = str(1+max([0, *(int(o) for o in set(df['run']) if o.isdigit())]))
    was = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with tempfile.TemporaryDirectory() as folder, tqdm(total=len(parts), disable=disable_tqdm,
            unit='part', desc=f'bench, run {label}') as bar, warnings.catch_warnings():
            warnings.simplefilter('ignore')
            for part in parts:
                o = Bench(quick, rounds, 'cpu', lambda what: bar.set_postfix_str(f'{part}: {what}'), folder)
                new = pd.DataFrame(_measure(part, o, label), columns=COLUMNS)
                df = pd.concat([df.astype(object), new.astype(object)], ignore_index=True)
                write_rows(df, out)
                df = read_bench(out)
                bar.update()
    finally: torch.set_num_threads(was)
    mine = df[df['run']==label]
    show = 'part case arm value unit wall_s cpu_s against ratio ratio_low ratio_high status'.split()
    print(mine[show].to_string(index=False, na_rep='', float_format=lambda x: f'{x:.3g}'))
    print(f'table   {out}; {threads} thread{"s"*(threads>1)}, {machine()}; seconds are processor time, '
          'ratios the median of rounds with their quartiles')
    return mine
