"""A training script in processes without a GPU, for rehearsals: FSDP2 where accelerate would silently take
DDP, and the same answers on any number of processes.

    torchrun --standalone --nproc_per_node 2 nbs/scale/on_cpu.py nbs/scale/full_run.py --use_cpu true …
"""
import hashlib, os, runpy, sys
from importlib import resources
import torch
import yaml

def fsdp2_on_cpu(**changes):
    """From here on, trainers of this process use FSDP2 on the CPU, with the settings that TRL ships and
    `changes` of its `fsdp_config`: call it everywhere, between two trainers."""
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType
    shipped = resources.files('trl.accelerate_configs').joinpath('fsdp2.yaml').read_text(encoding='utf-8')
    settings = yaml.safe_load(shipped)['fsdp_config']|changes
    os.environ |= dict(ACCELERATE_USE_FSDP='true') | {k.upper():str(v) for k,v in settings.items()}
    AcceleratorState._reset_state(True)
    old = AcceleratorState.__init__
    if 'fsdp2_on_cpu' in old.__qualname__: return   # called before
    def init(self, *args, fsdp_plugin=None, **kwargs):
        old(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin and self.distributed_type==DistributedType.MULTI_CPU:
            self.distributed_type,self.fsdp_plugin = DistributedType.FSDP,fsdp_plugin
            PartialState._shared_state['distributed_type'] = DistributedType.FSDP
    AcceleratorState.__init__ = init

def vllm_on_cpu(cache_gb=1):
    """From here on vLLM in this process runs on the CPU and takes new weights: call it first. `cache_gb` GiB
    are for keys and values; 0 for what `vllm_gpu_memory_utilization` leaves."""
    os.environ |= dict(VLLM_CPU_OMP_THREADS_BIND='nobind', VLLM_CPU_CI_ENV='1')   # no compiling
    os.environ.setdefault('VLLM_LOGGING_LEVEL', 'ERROR')
    if cache_gb: os.environ['VLLM_CPU_KVCACHE_SPACE'] = str(cache_gb)
    from torch.nn.functional import linear
    from vllm.model_executor.layers import utils
    def unpacked(layer, remove_weight): layer.cpu_linear = linear
    utils.dispatch_cpu_unquantized_gemm = unpacked

def same_draws(seed=0):
    """From here on `generate` draws the tokens of a row from numbers of its own, made from `seed`, its prompt
    and its place in the whole batch: any number of processes samples the same answers, to rounding."""
    from transformers import GenerationMixin
    rank,sample,draw = int(os.environ.get('RANK', 0)),GenerationMixin._sample,torch.multinomial
    tokens = []   # for each token of the call in progress, a number in [0, 1) per row
    def numbers(i, prompt, n):
        key = hashlib.sha256(repr((seed, i, prompt)).encode()).digest()
        g = torch.Generator().manual_seed(int.from_bytes(key[:8], 'big'))
        return torch.rand(n, generator=g, dtype=torch.float64)
    def sample_rows(self, input_ids, *args, generation_config, attention_mask=None, **kw):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        prompts = [o[m.bool()].tolist() for o,m in zip(input_ids, mask)]
        first,n = rank*len(prompts),generation_config.max_new_tokens
        tokens[:] = torch.stack([numbers(first+i, o, n) for i,o in enumerate(prompts)]).T
        kw |= dict(generation_config=generation_config, attention_mask=attention_mask)
        try: return sample(self, input_ids, *args, **kw)
        finally: tokens.clear()
    def multinomial(p, num_samples, *args, **kw):
        if not tokens: return draw(p, num_samples, *args, **kw)
        reached = p.double().cumsum(1)
        at = tokens.pop(0)[:,None]*reached[:,-1:]
        return torch.searchsorted(reached, at, right=True).clamp(max=p.shape[1]-1)
    GenerationMixin._sample,torch.multinomial = sample_rows,multinomial

if __name__=='__main__':
    del sys.argv[0]
    if int(os.environ.get('WORLD_SIZE', 1))>1: fsdp2_on_cpu()
    same_draws()
    runpy.run_path(sys.argv[0], run_name='__main__')
