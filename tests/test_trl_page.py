"""Every block of the page on what TRL can do, as it stands; and TRL's own scripts with one changed import.

The scripts come from the installed package, and from a clone of TRL's repository that GRPO_NB_TRL names."""

import functools, os, re, sys
from importlib.util import find_spec
from pathlib import Path
import pytest, torch
from datasets import Dataset

PAGE = Path(__file__).parent.parent/'nbs/practise/trl.qmd'
BLOCKS = re.findall(r'```python\n(.*?)```', PAGE.read_text(), re.S)
BEFORE,*REST = BLOCKS[:-1]
ABSENT = {'vllm':('vllm', 'v-?llm'), 'bitsandbytes':('bitsandbytes', 'bitsandbytes'),
    'liger':('liger_kernel', 'liger')}
HERE = dict(use_cpu=True, bf16=False, report_to='none', max_completion_length=6, max_steps=1,
    disable_tqdm=True, gradient_checkpointing=False, save_strategy='no')

@functools.lru_cache
def tiny(tmp=None):
    "A folder with a Qwen2 of 30,000 weights over bytes, and Qwen3's chat template."
    import tempfile
    from trl_tiny import byte_tokenizer
    from transformers import Qwen2Config, Qwen2ForCausalLM
    tok,d = byte_tokenizer(),tempfile.mkdtemp(prefix='tiny')
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=len(tok), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, eos_token_id=3,
        max_position_embeddings=4096)
    Qwen2ForCausalLM(config).save_pretrained(d)
    tok.save_pretrained(d)
    return d

def names(folder):
    "What the first block of the page defines, with a model and settings for this machine."
    space = dict(__name__='page')
    before = BEFORE.replace("'Qwen/Qwen3-0.6B'", repr(tiny()))
    exec(before.replace("'runs/mine'", repr(str(folder/'mine'))), space)
    plain = space['settings']
    def settings(**kw):
        kw = dict(save_strategy='steps' if 'save_steps' in kw else 'no')|kw
        space['args'] = plain(**HERE|kw)
        return space['args']
    space['settings'] = settings
    return space

def title(block): return re.sub(r'\W+', '_', block.strip().splitlines()[0])[:50]

@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    monkeypatch.setenv('TRL_EXPERIMENTAL_SILENCE', '1')
    monkeypatch.chdir(tmp_path)

@pytest.mark.parametrize('block', REST, ids=title)
def test_every_block_runs_as_it_stands(block, tmp_path):
    block = block.replace("GRPOConfig('runs/plain',", f"GRPOConfig('runs/plain', **{HERE},")
    space,needs = names(tmp_path),re.search(r'# needs (.*)', block)
    if not needs: return exec(block, space)
    package,message = ABSENT.get(needs[1], (None, 'reads text only'))
    if package=='bitsandbytes' and find_spec(package): return exec(block, space)   # it has kernels for a CPU
    if package and find_spec(package): pytest.skip(f'{package} is here: the block would want its machine')
    with pytest.raises((ImportError, ValueError), match=f'(?i){message}'): exec(block, space)
    assert 'args' in space   # the settings were taken

def test_completions_are_a_parquet_table(tmp_path):
    block, = [b for b in REST if 'log_completions' in b]
    exec(block, names(tmp_path))
    table = Dataset.from_parquet([str(f) for f in (tmp_path/'mine/completions').glob('*.parquet')])
    assert {'prompt','completion','right','advantage'}<=set(table.column_names) and len(table)==8

# -- TRL's scripts ----------------------------------------------------------------------------------
def swapped(source):
    "The script with our trainer and config under TRL's names, by the page's last block."
    assert 'GRPOTrainer' in source
    taken = re.sub(r'from trl import ([^\n(]+|\([^)]*\))', lambda m: f'{m[0]}\n{BLOCKS[-1]}', source, count=1)
    assert taken!=source
    return taken

def run(source, words, monkeypatch, data=None):
    "The script's main part on rows made here; the trainer it made."
    import datasets
    from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferTrainer as Trainer
    made,init = [],Trainer.__init__
    monkeypatch.setattr(datasets, 'load_dataset', data)
    monkeypatch.setattr(sys, 'argv', ['script.py', *words])
    def watch(self, *args, **kw): made.append(self); init(self, *args, **kw)
    monkeypatch.setattr(Trainer, '__init__', watch)
    space = dict(__name__='__main__', __file__='script.py')
    monkeypatch.setitem(sys.modules, '__main__', type(sys)('__main__'))
    sys.modules['__main__'].__dict__.update(space)
    exec(compile(swapped(source), 'script.py', 'exec'), sys.modules['__main__'].__dict__)
    return made[0]

def words(folder, **more):
    own = dict(model_name_or_path=tiny(), output_dir=folder, num_generations=4, per_device_train_batch_size=8,
        dtype='float32', **HERE)|more
    return [o for k,v in own.items() for o in (f'--{k}', str(v))]

def test_the_script_that_trl_brings_along(tmp_path, monkeypatch):
    import inspect, trl.scripts.grpo as script
    source = inspect.getsource(script)
    rows = Dataset.from_dict(dict(prompt=[[dict(role='user', content='1+1=')]]*16))
    from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferConfig, GRPOWithReplayBufferTrainer
    import trl
    monkeypatch.setattr(trl, 'GRPOConfig', GRPOWithReplayBufferConfig)
    monkeypatch.setattr(trl, 'GRPOTrainer', GRPOWithReplayBufferTrainer)
    import datasets
    monkeypatch.setattr(datasets, 'load_dataset', lambda *a, **k: dict(train=rows))
    space = dict(__name__='script', __file__='script.py')
    exec(compile(source, 'script.py', 'exec'), space)
    parser = space['make_parser']()
    given = words(tmp_path/'run', dataset_name='x', reward_funcs='think_format_reward')
    got = parser.parse_args_and_config(given)
    space['main'](*got[:4])
    assert (tmp_path/'run'/'history.jsonl').exists() and (tmp_path/'run'/'config.json').exists()

CLONE = os.environ.get('GRPO_NB_TRL')

@pytest.mark.skipif(not CLONE, reason='GRPO_NB_TRL names no clone of TRL')
@pytest.mark.parametrize('name', ['gspo','grpo_continuous_batching','grpo_agent'])
def test_a_script_of_trls_repository(name, tmp_path, monkeypatch):
    source = (Path(CLONE)/'examples/scripts'/f'{name}.py').read_text()
    asked = dict(question=['Does the gene 1 add to 1?']*16, answer=['1+1 #### 2']*16)
    rows = dict(gspo=dict(problem=['1+1?']*16, solution=['2']*16, messages=['']*16),
        grpo_continuous_batching=asked, grpo_agent=asked)[name]
    def data(*args, split=None, **kw):
        ds = Dataset.from_dict(rows)
        return [ds, ds] if isinstance(split, list) else ds
    t = run(source, words(tmp_path), monkeypatch, data)
    assert t.state.global_step==1 and 'replay/dead' in str(t.state.log_history)
