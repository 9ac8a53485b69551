"""What a step of training holds, part by part: states counted on torch's meta device, activations by running
TRL's own step on tensors that have a shape and no content. `gpu_day.py` compares it with a card."""
import difflib, json
from functools import lru_cache
from pathlib import Path
import torch
from transformers import PretrainedConfig
from grpo_nb.parts.files import ASSETS

def model_config(
    name:str,  # 'tiny', a folder with a config.json, or a name on the hub
)->PretrainedConfig:  # of any causal language model
    """The config of a model, and with it every shape.

    Qwens of `shapes.json` need no network; of another hub name the config alone is
    downloaded, a few kB.
    ValueError for a name that is neither known nor found.
    """
    from transformers import AutoConfig
    if name=='tiny': return AutoConfig.from_pretrained(ASSETS/'tiny_qwen')
    if (Path(name)/'config.json').is_file(): return AutoConfig.from_pretrained(name)
    key = name.removesuffix('-Instruct')
    known = json.loads((Path(__file__).parent/'shapes.json').read_text(encoding='utf-8'))
    if key in known: return AutoConfig.for_model(**known[key])
    near = difflib.get_close_matches(key, known, 2, .5)
    hint = f'did you mean {" or ".join(near)}? ' if near else ''
    try: return AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as e:
        raise ValueError(f'no shapes of {name!r}: {hint}Known without a network: {", ".join(known)}, tiny, '
            'or a folder with a config.json') from e

def _as_text(config): return config.to_json_string()

def _from_text(text, layers=None):
    "The config again; with `layers`, of a model that is alike but has so many."
    from transformers import AutoConfig
    d = json.loads(text)
    if layers: d |= dict(num_hidden_layers=layers, layer_types=d.get('layer_types', [])[:layers] or None)
    return AutoConfig.for_model(**d)

@lru_cache(64)
def _weights(text):
    from transformers import AutoModelForCausalLM
    with torch.device('meta'): model = AutoModelForCausalLM.from_config(_from_text(text))
    layers = model.get_decoder().layers
    per_layer = max(sum(p.numel() for p in o.parameters()) for o in layers)
    outside = max([m.weight.numel() for m in (model.get_input_embeddings(), model.get_output_embeddings())])
    return sum(p.numel() for p in model.parameters()),per_layer,outside

def count_weights(
    config:PretrainedConfig,  # of a causal language model
)->int:                         # tied embeddings count once
    "Weights of the model, counted on the meta device: nothing is allocated."
    return _weights(_as_text(config))[0]

def _scorer(model):
    "A call that gives the log-probs (and entropies) of a batch as the installed TRL's loss asks for them."
    import trl.trainer.utils as of_trl
    if hasattr(of_trl, 'add_fused_lm_head'):
        of_trl.add_fused_lm_head(model, outputs=('log_probs','entropy'))
        def score(**batch):
            out = model(**batch, fused_lm_head=True)
            return out.log_probs,out.entropy
        return score
    def score(labels, **batch):   # before trl 1.16 the logits of all tokens are there at once
        return of_trl.selective_log_softmax_and_entropy(model(**batch).logits, labels)
    return score

@lru_cache(64)
def _step_peak(text, layers, rows, length, checkpointing, bf16):
    "Bytes above weights and gradients at the worst moment of one forward and backward pass."
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from transformers import AutoModelForCausalLM
    with FakeTensorMode():
        # PyTorch knows the shapes of a product grouped by experts in bf16 only
        half = hasattr(config := _from_text(text, layers), 'num_experts_per_tok')
        dtype = torch.bfloat16 if half else torch.float32
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        score = _scorer(model)
        if checkpointing:
            enable = (getattr(model, 'activation_checkpointing_enable', None)
                      or model.gradient_checkpointing_enable)
            enable(dict(use_reentrant=False))
        model.train()
        for p in model.parameters(): p.grad = torch.zeros_like(p)
        alive = MemTracker()
        alive.memory_tracking = {}   # walked after each product: weak keys would take most of the time
        alive.track_external(model)
        ids = torch.zeros(rows, length, dtype=torch.int64)
        with alive:
            with torch.autocast('cpu', torch.bfloat16, enabled=bf16):
                out = score(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids.clone())
                loss = out[0].float().sum()
            loss.backward()
    kinds = [o for d in alive.get_tracker_snapshot('peak').values() for o in d.items()]
    peak = sum(n for k,n in kinds if getattr(k, 'name', '') in ('ACT','TEMP'))
    return 2*peak if half and not bf16 else peak

def step_bytes(
    config:PretrainedConfig,  # of a causal language model
    rows:int,                   # in a forward pass
    length:int,                 # tokens of prompt and completion together
    checkpointing:bool=True,    # gradient checkpointing, TRL's default
    bf16:bool=True,             # mixed precision
)->float:  # bytes
    "What one forward and backward pass holds at its worst moment, beside weights and gradients."
    c = config.get_text_config()
    text,n = _as_text(config),c.num_hidden_layers
    turns = len(set(getattr(c, 'layer_types', None) or ()))>1   # kinds of layers take turns
    a,b = (min(n, 2),min(n, 4)) if turns else (1,min(n, 2))
    few,more = (_step_peak(text, o, rows, length, checkpointing, bf16) for o in (a, b))
    return few if a==b else few+(more-few)/(b-a)*(n-a)

STRATEGIES = ('ddp','fsdp2','zero2','zero3')

def _cache_bytes(config, rows, length, bf16):
    "Keys and values of `rows` sequences, of all layers."
    c = config.get_text_config()
    kv = getattr(c, 'num_key_value_heads', None) or c.num_attention_heads
    head = getattr(c, 'head_dim', None) or c.hidden_size//c.num_attention_heads
    return rows*length*c.num_hidden_layers*2*kv*head*(2 if bf16 else 4)

def _states(n, world, strategy, beta, bf16, passes):
    "Weights, gradients, optimizer, DDP's buckets and reference on one device; bytes."
    held = n/world if strategy in ('fsdp2','zero3') else n   # weights on a device
    cut = n if strategy=='ddp' else n/world
    low = strategy.startswith('zero') and bf16   # DeepSpeed works on bfloat16 weights and cuts a float32 copy
    gradients = 4*cut
    if strategy=='fsdp2' and passes>1: gradients = (2 if bf16 else 4)*n   # whole until the passes are over
    return dict(weights=(2 if low else 4)*held, gradients=gradients, optimizer=(12 if low else 8)*cut,
        buckets=4*n if strategy=='ddp' and world>1 else 0, reference=(2 if low else 4)*held if beta else 0)

def _gathered(n, per_layer, outside, strategy, beta, bf16):
    "Whole parameters that a sharded pass holds for a while: (training, scoring by the reference); bytes."
    if strategy not in ('fsdp2','zero3'): return 0,0
    size = 2 if bf16 else 4
    training = size*(outside+2*per_layer)
    return training,(size*n if strategy=='fsdp2' else training) if beta else 0

def memory_plan(
    config:PretrainedConfig,  # of a causal language model
    batch:dict,                 # of `batch_plan`
    prompt_length:int,          # tokens, the longest
    completion_length:int,      # tokens, the longest
    strategy:str='ddp',         # one of STRATEGIES
    beta:float=0.,              # above 0 a reference model is held too
    use_vllm:bool=False,        # sample with vLLM instead of `generate`?
    vllm_share:float=0.,        # of a GPU that vLLM in the same process takes; 0 for a server elsewhere
    vllm_sleep:bool=False,      # does vLLM free its share while the policy trains?
    vllm_parallel:int=1,        # GPUs that share vLLM's copy of the weights
    gpu_bytes:float=80e9,       # memory of a GPU
    checkpointing:bool=True,    # gradient checkpointing
    bf16:bool=True,             # mixed precision
)->dict:                        # bytes on a device: parts, sampling, training, total, host, checkpoint; fits
    """What a device has to hold at the worst moment of a step.

    States are exact; activations are counted by running TRL's forward and backward pass on tensors without
    content, beside gradients of an earlier pass (gradient accumulation; without it a step needs less). Not
    counted: what the allocator wastes, and what the communication library keeps (about 1 GB on a GPU).
    `vllm_cache` is what vLLM's copy of the weights leaves of its share, for keys, values and its own work.
    `host` is what each process reads while loading, `checkpoint` what one takes on disk: float32 weights and
    Adam's averages, and the weights once more under ZeRO. ValueError for an unknown strategy.
    """
    if strategy not in STRATEGIES: raise ValueError(f'no strategy {strategy!r}: choose one of {STRATEGIES}')
    n,per_layer,outside = _weights(_as_text(config))
    length,rows = prompt_length+completion_length,batch['per_device_train_batch_size']
    out = _states(n, batch['world_size'], strategy, beta, bf16, batch['gradient_accumulation_steps'])
    states = sum(out.values())
    gathered,scoring = _gathered(n, per_layer, outside, strategy, beta, bf16)
    out['gathered'] = gathered
    out['activations'] = step_bytes(config, rows, length, checkpointing, bf16)
    held = batch['completions_per_process']
    out['cache'] = 0 if use_vllm else _cache_bytes(config, held, length, bf16)
    out['vllm'] = vllm_share*gpu_bytes if use_vllm else 0
    out['vllm_cache'] = out['vllm']-2*n/vllm_parallel if out['vllm'] else 0   # it serves bfloat16
    sampling = states+out['vllm']+out['cache']+(0 if use_vllm else gathered)
    training = states+max(out['activations']+gathered, scoring)+(0 if vllm_sleep else out['vllm'])
    total = max(sampling, training)
    host = 4*n*(2 if beta else 1)   # every process loads whole models before they are cut
    checkpoint = (14 if strategy.startswith('zero') and bf16 else 12)*n
    return out|dict(sampling=sampling, training=training, total=total, fits=total<.95*gpu_bytes, host=host,
                    checkpoint=checkpoint)
