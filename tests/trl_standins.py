"""Stand-ins for the models and the data that TRL's tests of `GRPOTrainer` fetch from the hub.

    python tests/trl_standins.py FOLDER

makes `FOLDER/trl-internal-testing/`: tiny random models of the same classes, all with one tokenizer, and the
prompts of `zen`. Run from inside FOLDER, `from_pretrained` and `load_dataset` find them under the names that
the tests ask for, so that nothing is downloaded. Models of images and the code of vLLM are left out.
"""
import codecs, contextlib, io, json, sys
from pathlib import Path

OWNER = 'trl-internal-testing'
MODELS = '''Cohere2ForCausalLM Gemma2ForCausalLM Glm4MoeForCausalLM GptOssForCausalLM LlamaForCausalLM-3.2
    LlamaForSequenceClassification-3.2 MistralForCausalLM-0.2 NemotronHForCausalLM-nano Qwen2ForCausalLM-2.5
    Qwen2ForSequenceClassification-2.5 Qwen3ForCausalLM Qwen3ForSequenceClassification
    Qwen3MoeForCausalLM'''.split()

# -- the data: the verses of `import this`, each cut after so many words ------------------------------
WORDS = [4, 2, 3, 1, 4, 3, 1, 4, 3, 3, 2, 6, 6, 11, 2, 4, 7, 5, 5]

def verses():
    "The first words of each verse."
    with contextlib.redirect_stdout(io.StringIO()): import this
    lines = codecs.decode(this.s, 'rot13').splitlines()[2:]
    return [' '.join(line.split()[:n]) for line,n in zip(lines, WORDS, strict=True)]

def make_zen(folder):
    "A data set with a plain and a conversational part, 17 rows to train on and 2 to test."
    folder.mkdir(parents=True)
    card = ['---','configs:']
    for name in ('standard_prompt_only','conversational_prompt_only'):
        card += [f'- config_name: {name}','  data_files:']
        chat = name.startswith('conversational')
        rows = [dict(prompt=[dict(role='user', content=f'How does it go on: {o}?')] if chat else o)
            for o in verses()]
        for split,part in (('train', rows[:-2]),('test', rows[-2:])):
            file = f'{name}-{split}.jsonl'
            (folder/file).write_text('\n'.join(map(json.dumps, part)))
            card += [f'  - split: {split}',f'    path: {file}']
    (folder/'README.md').write_text('\n'.join([*card, '---', '']))

# -- the tokenizer: the numbers that the tests write down have the meaning that they give them ---------
SIZE = 151_643   # tokens of Qwen's vocabulary before the special ones
SPECIAL = {0:'<|endoftext|>', 1:'<|im_start|>', 2:'<|im_end|>', 14:'<tool_call>', 15:'</tool_call>',
    22:'<tool_response>', 23:'</tool_response>', 24:'<think>', 25:'</think>',
    26:'<|finetune_right_pad_id|>'}
NAMED = {314:' {', 330:' "', 397:'>\n', 411:'out', 450:'dec', 497:'",', 522:'</', 606:'name', 788:'":',
    293:' b', 894:' any', 927:'sh', 944:"'t", 1318:'text', 1414:' know', 1513:' don', 2765:' won',
    4913:'{"', 5212:' {"', 5392:' tool', 6023:'hi', 6659:'call', 7692:'async', 9520:'step', 11248:'}}\n',
    13477:'rement', 14172:'tool', 16252:' increment', 16370:'arguments', 17453:'Done', 22785:'_tool',
    35744:'increment', 64648:'multiply', 93054:'_multiply', 95642:'"}}\n'}

def make_tokenizer(chat_template):
    "Bytes in the order of GPT-2, then the named tokens; every other number is a word of its own."
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in seen]   # these are written as letters from 256 on
    letters = {b:chr(b) for b in seen}|{b:chr(256+i) for i,b in enumerate(hidden)}
    spelled = lambda text: ''.join(letters[b] for b in text.encode())
    vocab = {o:i for i,o in enumerate(letters.values())}
    vocab |= {spelled(NAMED.get(i, f' {i}')):i for i in range(256, SIZE)}
    t = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    t.pre_tokenizer,t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False),decoders.ByteLevel()
    for i in range(max(SPECIAL)+1):
        t.add_tokens([AddedToken(SPECIAL.get(i, f'<|unused_{i}|>'), special=i<14, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=t, chat_template=chat_template, eos_token='<|im_end|>',
        pad_token='<|endoftext|>')

# -- the models -----------------------------------------------------------------------------------
TINY = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=4,
    intermediate_size=16, pad_token_id=SIZE, bos_token_id=None, eos_token_id=SIZE+2, num_experts_per_tok=2,
    moe_intermediate_size=16)
MORE = dict(Glm4Moe=dict(n_routed_experts=4), GptOss=dict(num_local_experts=4),
    Qwen3Moe=dict(num_experts=4), NemotronH=dict(layers_block_type=['mamba','attention','moe'],
        n_routed_experts=4, moe_shared_expert_intermediate_size=16, mamba_num_heads=4, mamba_head_dim=4,
        mamba_n_groups=1, ssm_state_size=8))

REMOTE = '''from transformers import LlamaConfig, LlamaForCausalLM

class RemoteConfig(LlamaConfig): model_type = 'remote'

class RemoteForCausalLM(LlamaForCausalLM): config_class = RemoteConfig
'''

def make_model(name, n_tokens):
    "A model of the class that stands in its name, with weights that keep the numbers near 1."
    import torch, transformers
    family,rest = name.split('For')
    task = rest.split('-')[0]
    config = getattr(transformers, f'{family}Config')(**TINY|MORE.get(family, {}), vocab_size=n_tokens,
        **(dict(num_labels=1) if task=='SequenceClassification' else {}))
    torch.manual_seed(0)
    model = getattr(transformers, f'{family}For{task}')(config)
    for p in model.parameters():
        if p.ndim>1: torch.nn.init.normal_(p, std=p.shape[-1]**-.5)
    return model.to(torch.bfloat16)

def make_remote(folder):
    "A Llama whose code lies beside its weights."
    config = json.loads((folder.parent/'tiny-LlamaForCausalLM-3.2/config.json').read_text())
    config |= dict(model_type='remote', architectures=['RemoteForCausalLM'],
        auto_map=dict(AutoConfig='remote.RemoteConfig', AutoModelForCausalLM='remote.RemoteForCausalLM'))
    for o in (folder.parent/'tiny-LlamaForCausalLM-3.2').iterdir():
        (folder/o.name).write_bytes(o.read_bytes())
    (folder/'remote.py').write_text(REMOTE)
    (folder/'config.json').write_text(json.dumps(config))

def make(folder):
    "Everything, where it isn't there yet; the folder to run the tests in."
    from trl import chat_template_utils as templates
    home = Path(folder)/OWNER
    if not (home/'zen').exists(): make_zen(home/'zen')
    for name in MODELS:
        to = home/f'tiny-{name}'
        if to.exists(): continue
        kind = 'qwen3' if name.startswith('Qwen3') else 'qwen2_5'
        tokenizer = make_tokenizer(getattr(templates, f'{kind}_chat_template'))
        make_model(name, len(tokenizer)).save_pretrained(to)
        tokenizer.save_pretrained(to)
    remote = home/'tiny-RemoteForCausalLM'
    if not remote.exists():
        remote.mkdir()
        make_remote(remote)
    return Path(folder)

if __name__=='__main__':
    if len(sys.argv)!=2: raise SystemExit(__doc__)
    make(sys.argv[1])
