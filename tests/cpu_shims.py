"""FSDP2 and vLLM in processes without a GPU, for rehearsals: on a CPU accelerate silently takes DDP in place
of FSDP2, and vLLM's CPU build packs its weights while loading, so that new ones don't reach them."""
import os
from importlib import resources
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
