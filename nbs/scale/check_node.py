"""Is this machine ready for a full run? Says what is there and what is missing, before a model is loaded.

    python nbs/scale/check_node.py --config nbs/scale/eight_gpus.yaml --num_processes 8

It takes the settings of `full_run.py`. On several nodes each one calls it, with `--num_machines` and its own
`--machine_rank`. The exit status is 1 where something is missing.
"""
import shutil, socket, sys, textwrap, time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
import torch, yaml
import torch.distributed as dist
from datasets import load_dataset
from packaging.requirements import Requirement
from transformers import AutoConfig
from trl import TrlParser
from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferConfig
from grpo_nb.parts.batch_plan import batch_plan
from grpo_nb.parts.datasets import HUB_DATASETS
from grpo_nb.parts.pretrained import model_folder
from grpo_nb.run.checkpoints import last_checkpoint
from grpo_nb.tiny_qwen import TINY_QWEN_DIR
from plan import count_weights, memory_plan

@dataclass
class NodeArguments:
    "What `full_run.py` takes, what `accelerate launch` takes, and the size of a GPU."
    model: str = 'Qwen/Qwen2.5-1.5B-Instruct'
    dataset: str = 'gsm8k'
    num_processes: int = 1          # in all
    num_machines: int = 1
    machine_rank: int = 0
    main_process_port: int = 29500
    prompt_tokens: int = 512        # the longest prompt, for the memory plan
    gpu_gb: float = 0.              # 0: that of the first GPU here
    wait_s: float = 60.             # for the other nodes

class Missing(Exception):
    "What is missing, and what to do."

def read_settings(words):
    "Every setting by name, from a file and the command line; nothing is started."
    parser = TrlParser((NodeArguments, GRPOWithReplayBufferConfig), allow_abbrev=False)
    parser.add_argument('--config')
    file = parser.parse_known_args(words)[0].config
    given = yaml.safe_load(Path(file).read_text(encoding='utf-8')) if file else {}
    odd = parser.set_defaults_with_config(**given)
    settings,rest = parser.parse_known_args(words)
    if odd or rest: raise Missing(f'no setting {[*odd, *rest][0]!r}')
    return settings

def check_gpus(o):
    here,need = torch.cuda.device_count(),o.num_processes//o.num_machines
    if o.use_cpu: return f'{need} processes on the CPU'
    if not here: raise Missing('torch sees no GPU (`nvidia-smi` and the CUDA of torch say why); '
        '`--use_cpu true --bf16 false` rehearses without one')
    if here<need:
        raise Missing(f'{need} GPUs are asked for and torch sees {here}: `--num_processes {here}`, or look '
            'at CUDA_VISIBLE_DEVICES')
    return f'{here} x {torch.cuda.get_device_name(0)}'

def check_batch(o):
    G,b,W,s = o.num_generations,o.per_device_train_batch_size,o.num_processes,o.steps_per_generation
    def plan(b): return batch_plan(G, b, o.gradient_accumulation_steps, W, s)
    if not plan(b)['legal']:
        near = [next((k for k in ks if plan(k)['legal']), None) for ks in (range(b, 0, -1), range(b, b+G+1))]
        raise Missing(f'{plan(b)["problem"]}; per_device_train_batch_size can be '
            +' or '.join(str(k) for k in near if k))
    p,cut = plan(b),len(plan(b)['straddling'])
    return (f'{p["completions"]} answers to {p["prompts"]:.0f} prompts, '
        f'{p["completions_per_process"]} on each process, {cut} groups on two or more of them; '
        f'optimizer steps: {p["optimizer_steps_per_generation"]:g}')

def read_config(model):
    try: return AutoConfig.from_pretrained(TINY_QWEN_DIR if model=='tiny' else model_folder(model))
    except (OSError, ValueError) as e:
        raise Missing(f'no config of {model} ({" ".join(str(e).split())[:90]}): `hf download {model}` where '
            'there is a network, or name a folder') from e

def check_data(o):
    if o.dataset not in HUB_DATASETS: return f'{o.dataset} is made here'
    where = [k for k in HUB_DATASETS[o.dataset][:2] if k]
    try: rows = load_dataset(*where, split='train')
    except OSError as e:   # no network, and nothing in the cache of `datasets`
        raise Missing(f'no data set {o.dataset} ({" ".join(str(e).split())[:90]}): where there is a network, '
            f'python -c "import datasets; datasets.load_dataset({str(where)[1:-1]})"') from e
    return f'{o.dataset}, {len(rows)} rows'

def check_memory(o):
    config = read_config(o.model)
    length = o.prompt_tokens+o.max_completion_length
    held = memory_plan(config, o.per_device_train_batch_size, length, o.num_processes,
        o.gradient_accumulation_steps, o.gradient_checkpointing)
    gpu = o.gpu_gb
    if not gpu and torch.cuda.is_available(): gpu = torch.cuda.get_device_properties(0).total_memory/1e9
    engine = gpu*o.vllm_gpu_memory_utilization if o.use_vllm and o.vllm_mode=='colocate' else 0
    states = sum(v for k,v in held.items() if k!='activations')
    need = max(states+engine, sum(held.values())+(0 if o.vllm_enable_sleep_mode else engine))
    said = f'{o.model} needs {need:.1f} GB on each GPU'+f' of {gpu:.0f}'*bool(gpu)
    optim = getattr(o.optim, 'value', o.optim)
    if not optim.startswith('adamw_torch'): said += f' (with AdamW: {optim} is not counted)'
    if gpu and need>.9*gpu:
        largest = max(held, key=held.get)
        raise Missing(f'{said}, most of it {largest}: take more GPUs, a smaller model, or fewer '
            'rows in per_device_train_batch_size')
    return said

def check_vllm(o):
    if not o.use_vllm: return 'not used'
    takes = next(r.specifier for r in map(Requirement, requires('trl')) if r.name=='vllm')
    how = f'`pip install "vllm{takes}"`, or `--use_vllm false`'
    try: here = version('vllm')
    except PackageNotFoundError: raise Missing(f'vllm is not installed: {how}') from None
    if here not in takes: raise Missing(f'vllm {here}, and trl {version("trl")} takes {takes}: {how}')
    return f'vllm {here}'

def check_port(o):
    if o.machine_rank: return 'the first node listens'
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try: s.bind(('', o.main_process_port))
        except OSError as e:
            raise Missing(f'port {o.main_process_port} ({e.strerror}): end what is left of an earlier run '
                f'(`ss -ltnp`), or take another by --main_process_port') from None
    return f'{o.main_process_port} is free'

def check_folder(o):
    "All nodes see one folder, it has room for the checkpoints, and what an earlier run left is named."
    folder = Path(o.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder/f'.node-{o.machine_rank}').touch()
    until = time.monotonic()+o.wait_s
    def absent(): return [i for i in range(o.num_machines) if not (folder/f'.node-{i}').exists()]
    while absent() and time.monotonic()<until: time.sleep(.2)
    if away := absent():
        raise Missing(f'{folder} is not shared: node {o.machine_rank} does not see the file of node '
            f'{away[0]} in it; name a folder on a file system that all nodes mount')
    config = read_config(o.model)
    need = 12e-9*count_weights(config)[0]*((o.save_total_limit or 2)+1)
    free = shutil.disk_usage(folder).free/1e9
    if free<need:
        raise Missing(f'{folder} has {free:.0f} GB free, the checkpoints take {need:.0f}: '
            'set save_total_limit, or another folder')
    try: left = f'goes on from {Path(last_checkpoint(folder)).name}'
    except ValueError:
        left = 'a new run'
        if (folder/'history.jsonl').exists():
            left = 'what is in it has no whole checkpoint: the run begins again'
    return f'{folder}: {left}; checkpoints take {need:.1f} GB of {free:.0f}'

def _talk(rank, world, port, gpu):
    "One process of `check_talk`."
    if gpu: torch.cuda.set_device(rank)
    dist.init_process_group('nccl' if gpu else 'gloo', init_method=f'tcp://127.0.0.1:{port}', rank=rank,
        world_size=world)
    x = torch.full((2**20,), rank+1., device='cuda' if gpu else 'cpu')
    dist.all_reduce(x)
    dist.destroy_process_group()
    if x[0]!=world*(world+1)/2: raise ValueError(f'rank {rank} got {x[0]}')

def check_talk(o):
    world = max(1, o.num_processes//o.num_machines)
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    try: torch.multiprocessing.spawn(_talk, (world, port, not o.use_cpu), world)
    except Exception as e:
        raise Missing(f'{world} processes of this node do not reach each other ({str(e).strip()[-150:]}): on '
            'cards without NVLink try NCCL_P2P_DISABLE=1') from e
    return f'{world} processes of this node sum a tensor by {"gloo" if o.use_cpu else "NCCL"}'

CHECKS = dict(GPUs=check_gpus, batch=check_batch, data=check_data, memory=check_memory, vLLM=check_vllm,
    port=check_port, folder=check_folder, collectives=check_talk)

def main(words, names=CHECKS):
    "Print what each check found; the number of those that found something missing."
    o,missing = read_settings(words),0
    for name in names:
        if name=='collectives' and missing: break
        try: found = CHECKS[name](o)
        except Missing as e: found,missing = f'MISSING: {e}',missing+1
        print(textwrap.fill(f'{name:<12}{found}', 88, subsequent_indent=' '*12), flush=True)
    return missing

if __name__=='__main__':
    try: sys.exit(main(sys.argv[1:])>0)
    except Missing as e: sys.exit(f'check_node: {e}')
