"A tiny Qwen2 with its tokenizer, data and rewards for the tests of the TRL trainer; nothing is downloaded."
import copy, functools, sys, tempfile
from pathlib import Path
import torch
from datasets import Dataset
sys.path.append(str(Path(__file__).parents[1]/'nbs'/'scale'))   # `on_cpu` is there

WORDS = (
    'one two three four five six seven eight nine ten red blue green big small cat dog sky sea tree'.split()
)
CHAT = ("{% for m in messages %}<|im_start|> {{ m['role'] }} {{ m['content'] }} <|im_end|> {% endfor %}{% "
    "if add_generation_prompt %}<|im_start|> assistant {% endif %}")
# 17, as many as zen has
PROMPTS = ['one two', 'red big cat', 'sky', 'dog tree sea small', 'three', 'blue green', 'four five six',
    'seven eight', 'nine ten', 'big small', 'cat dog', 'one', 'two three', 'red', 'green sea',
    'tree sky blue', 'ten']

@functools.lru_cache
def folder():
    "A folder with model and tokenizer, made once a session."
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
    vocab = {w:i for i,w in enumerate(['<pad>','<eos>','<|im_start|>','<|im_end|>','<unk>','user','assistant',
        'system','tool']+WORDS)}
    t = Tokenizer(models.WordLevel(vocab, unk_token='<unk>'))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tok = PreTrainedTokenizerFast(tokenizer_object=t, pad_token='<pad>', eos_token='<eos>', unk_token='<unk>',
        additional_special_tokens=['<|im_start|>','<|im_end|>'], padding_side='left', chat_template=CHAT)
    torch.manual_seed(0)
    cfg = Qwen2Config(vocab_size=len(vocab), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128, tie_word_embeddings=True,
        pad_token_id=0, eos_token_id=1, bos_token_id=None)
    m = Qwen2ForCausalLM(cfg)
    with torch.no_grad():
        for p in m.parameters():
            if p.ndim>1: p.mul_(8)   # sharp enough that a step moves the ratio
    d = tempfile.mkdtemp(prefix='tiny')
    m.save_pretrained(d); tok.save_pretrained(d)
    _read_once(d)
    return d

def _read_once(d):
    "From now on the model in this folder is read once, and whoever asks for it gets a copy."
    from transformers import PreTrainedModel
    read,kept = PreTrainedModel.from_pretrained.__func__,{}
    def from_pretrained(cls, path, *args, **kw):
        if path!=d: return read(cls, path, *args, **kw)
        key = cls,repr((args, sorted(kw.items())))
        if key not in kept: kept[key] = read(cls, path, *args, **kw)
        return copy.deepcopy(kept[key])
    PreTrainedModel.from_pretrained = classmethod(from_pretrained)

def tokenizer(pad='<pad>'):
    from transformers import PreTrainedTokenizerFast
    return PreTrainedTokenizerFast.from_pretrained(folder(), padding_side='left', pad_token=pad)

def byte_tokenizer():
    "A letter is a token; chat template of Qwen3"
    from tokenizers import Tokenizer, models, pre_tokenizers, decoders
    from transformers import PreTrainedTokenizerFast
    from importlib.resources import files
    sp = ['<pad>','<|endoftext|>','<|im_start|>','<|im_end|>']
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    t = Tokenizer(models.BPE(vocab={o:i for i,o in enumerate(sp+alphabet)}, merges=[]))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False); t.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=t, pad_token='<pad>', eos_token='<|im_end|>',
        additional_special_tokens=sp[2:3], padding_side='left',
        chat_template=(files('trl')/'chat_templates'/'qwen3.jinja').read_text())

def model():
    from transformers import Qwen2ForCausalLM
    return Qwen2ForCausalLM.from_pretrained(folder(), dtype=torch.float32)

def llama():
    "A Llama with the tokenizer's words, as SmolLM2 is one."
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    m = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer()), hidden_size=16, intermediate_size=32,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128,
        tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=None))
    with torch.no_grad():
        for p in m.parameters():
            if p.ndim>1: p.mul_(8)
    return m

def data(n=None, chat=False, **columns):
    ps = (PROMPTS*10)[:n or len(PROMPTS)]
    return Dataset.from_dict(dict(prompt=[[dict(role='user', content=p)] for p in ps] if chat else ps,
        **columns)) if columns or chat else _prompts(*ps)

@functools.lru_cache
def _prompts(*ps): return Dataset.from_dict(dict(prompt=ps))

def n_red(completions, **kw):
    "How often a completion says a colour: varies within most groups."
    text = [c if isinstance(c, str) else c[-1]['content'] for c in completions]
    return [float(sum(w in ('red','blue','green') for w in t.split())) for t in text]

class Scripted:
    """Rewards as the test wants them: `plan[i]` is a group's rewards in order of generation,
    the last row repeats."""

    __name__ = 'scripted'
    def __init__(self, plan, G): self.plan,self.G,self.i,self.seen = plan,G,0,[]
    def __call__(self, completions, **kw):
        out = []
        for g in range(len(completions)//self.G):
            out += self.plan[min(self.i, len(self.plan)-1)]; self.i += 1
        self.seen.append(out)
        return out

LIVE,DEAD = [0.,1.,0.,1.],[1.,1.,1.,1.]

def config(cls=None, **kw):
    from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferConfig
    opts = dict(output_dir=tempfile.mkdtemp(prefix='run'), per_device_train_batch_size=4, num_generations=4,
        max_completion_length=6, learning_rate=1e-3, report_to='none', use_cpu=True, bf16=False,
        gradient_checkpointing=False, logging_steps=1, max_steps=3, save_strategy='no', disable_tqdm=True,
        seed=0)
    opts |= kw
    if 'generation_batch_size' in kw: opts.pop('steps_per_generation', None)
    return (cls or GRPOWithReplayBufferConfig)(**opts)

def trainer(rewards=n_red, cls=None, args=None, dataset=None, model_=None, callbacks=None, **kw):
    from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferTrainer
    reads = kw.pop('processing_class', None) or tokenizer()
    own = {k:kw.pop(k) for k in list(kw) if k in ('eval_dataset','peft_config','tools','rollout_func',
        'environment_factory','reward_processing_classes')}
    t = (cls or GRPOWithReplayBufferTrainer)(model=model_ or folder(), reward_funcs=rewards,
        args=args or config(**kw), train_dataset=data() if dataset is None else dataset,
        processing_class=reads, callbacks=callbacks, **own)
    return t

def weights(t):
    return {k:v.detach().clone() for k,v in t.accelerator.unwrap_model(t.model).state_dict().items()}

def same(a, b): return a.keys()==b.keys() and all(torch.equal(a[k], b[k]) for k in a)

def spy(t, also_eval=False):
    "Collects every batch the hook returns (clones), in order."
    got,old = [],t._generate_and_score_completions
    def f(inputs):
        out = old(inputs)
        if t.model.training or also_eval:
            got.append({k:v.clone() if isinstance(v, torch.Tensor) else v for k,v in out.items()})
        return out
    t._generate_and_score_completions = f
    return got
