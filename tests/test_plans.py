"The plan of a large run: shapes as published, states cut as the strategy says, activations as measured."

import pytest, torch
from transformers import AutoConfig, LlamaConfig, Qwen3Config, Qwen3MoeConfig
from grpo_nb.scale import plans as M
from grpo_nb.scale.plans import (batch_plan, count_weights, format_plan, memory_plan, model_config, run_plan,
                           step_bytes)
from another import said_elsewhere


@pytest.mark.parametrize('name,n', [('Qwen2.5-0.5B',494_032_768), ('Qwen2.5-1.5B',1_543_714_304),
    ('Qwen2.5-3B',3_085_938_688), ('Qwen2.5-7B',7_615_616_512), ('Qwen2.5-14B',14_770_033_664),
    ('Qwen2.5-32B',32_763_876_352), ('Qwen3-4B',4_022_468_096)])
def test_shapes_have_as_many_weights_as_published(name, n):
    assert count_weights(model_config(f'Qwen/{name}')) == n


def test_a_model_without_shapes_is_named_with_a_near_one(monkeypatch):
    def offline(*args, **kw): raise OSError('no network')
    monkeypatch.setattr(AutoConfig, 'from_pretrained', offline)
    with pytest.raises(ValueError, match='did you mean Qwen/Qwen2.5-7B'): model_config('Qwen/Qwen2.5-70B')

def test_a_folder_is_read_as_the_model_that_it_holds(tmp_path):
    "A mixture of experts is no Qwen2: all of its experts count"
    sizes = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                 vocab_size=100)
    moe = Qwen3MoeConfig(**sizes, head_dim=32, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2)
    for config in (moe, LlamaConfig(**sizes, intermediate_size=96)):
        config.save_pretrained(tmp_path)
        got = model_config(str(tmp_path))
        assert type(got) is type(config) and count_weights(got)==count_weights(config)
    assert count_weights(moe)>2*8*3*64*32

def test_a_batch_is_legal_exactly_when_groups_are_whole_over_all():
    for w in (1,2,3,8):
        for rows in [(b, s) for b in range(1, 5) for s in range(1, 4)]:
            for G in range(2, 9):
                b,s = rows
                plan = batch_plan(G, b, 1, w, s)
                said = str(plan['problem'])
                assert ('cannot be split into whole groups' in said)==bool(w*b*s%G), said
                if not w*b*s%G: assert plan['legal'] and bool(plan['straddling'])==bool(b*s%G)
    with pytest.raises(ValueError, match='whole number'): batch_plan(2, 1, 1, 0, 1)
    assert 'group of 1 has nothing' in batch_plan(1, 2, 1, 1, 1)['problem']

TINY = dict(hidden_size=64, num_attention_heads=2, num_key_value_heads=1, intermediate_size=128)

def small(layers=6, vocab=2000): return LlamaConfig(num_hidden_layers=layers, vocab_size=vocab, **TINY)

def test_states_are_16_bytes_a_weight_and_are_cut_as_the_strategy_says():
    c,lay = small(),batch_plan(16, 2, 8, 8, 8)
    n = count_weights(c)

    def state(s, **k):
        return sum(memory_plan(c, lay, 16, 16, s, **k)[o] for o in ('weights', 'gradients', 'optimizer'))

    # gradients stay whole while they are accumulated
    assert state('ddp')==16*n and state('fsdp2')==12*n/8+2*n
    once = memory_plan(c, batch_plan(16, 2, 1, 8, 8), 16, 16, 'fsdp2')
    assert once['gradients']==4*n/8
    whole = memory_plan(c, lay, 16, 16, 'fsdp2', bf16=False)
    assert whole['gradients']==4*n
    assert (
        state('zero3') == (2 + 4 + 12) * n / 8 and state('zero2') == 2 * n + (4 + 12) * n / 8
    )  # bfloat16 to work on, a float32 copy cut
    assert state('zero2', bf16=False)==4*n+12*n/8
    one = memory_plan(c, batch_plan(16, 2, 8, 1, 8), 16, 16, 'ddp')
    assert one['buckets']==0 and memory_plan(c, lay, 16, 16, 'ddp')['buckets']==4*n
    assert memory_plan(c, lay, 16, 16, 'fsdp2', beta=.1)['reference']==4*n/8   # float32, as TRL loads it
    with pytest.raises(ValueError, match='no strategy'): memory_plan(c, lay, 1, 1, 'fsdp3')

def test_two_experts_of_half_the_width_hold_about_what_a_dense_layer_does():
    "PyTorch has no shapes for experts' grouped products in float32, so these are measured in bf16."
    sizes = dict(vocab_size=500, hidden_size=64, num_hidden_layers=1, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=16)
    dense = Qwen3Config(**sizes, intermediate_size=512)
    moe = Qwen3MoeConfig(**sizes, moe_intermediate_size=256, num_experts=4, num_experts_per_tok=2)
    for bf16 in (True, False):
        few,more = (step_bytes(o, 4, 128, checkpointing=False, bf16=bf16) for o in (dense, moe))
        assert .8*few<more<1.4*few, (bf16, few, more)

def test_every_further_layer_costs_the_same():
    "So two small models tell of a large one"
    c = small(3)
    text = M._as_text(c)
    for checkpointing in (True, False):
        direct = M._step_peak(text, 3, 2, 64, checkpointing, False)
        assert step_bytes(c, 2, 64, checkpointing, False)==pytest.approx(direct, rel=1e-6)

def test_activations_are_those_that_a_real_step_holds():
    "The same model with contents, counted by PyTorch's own profiler of memory"
    from torch.profiler import ProfilerActivity, profile
    from transformers import AutoModelForCausalLM
    from trl.trainer.utils import add_fused_lm_head
    c,rows,length = small(3, 4000),2,128
    model = AutoModelForCausalLM.from_config(c, dtype=torch.float32)
    add_fused_lm_head(model, outputs=('log_probs','entropy'))
    model.train()
    for p in model.parameters(): p.grad = torch.zeros_like(p)
    ids = torch.zeros(rows, length, dtype=torch.int64)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        out = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids.clone(),
                    fused_lm_head=True)
        out.log_probs.sum().backward()
    now = top = 0
    for e in prof.profiler.kineto_results.events():
        if e.name()=='[memory]':
            now += e.nbytes()
            top = max(top, now)
    assert step_bytes(c, rows, length, False, False)==pytest.approx(top, rel=.1)

def test_vllm_takes_its_share_while_it_is_awake():
    c,lay = small(),batch_plan(16, 2, 8, 8, 8)
    def plan(**k): return memory_plan(c, lay, 16, 16, 'fsdp2', **k)
    awake,asleep = plan(use_vllm=True, vllm_share=.3),plan(use_vllm=True, vllm_share=.3, vllm_sleep=True)
    assert (awake['vllm'] == 24e9 and awake['training'] - asleep['training'] == 24e9
            and awake['sampling'] == asleep['sampling'])
    rows = lay['completions_per_process']
    # rows, tokens, layers, k and v, width, bytes
    assert plan(use_vllm=True)['cache']==0 and plan()['cache']==rows*32*6*2*32*2

def test_what_vllms_weights_leave_of_its_share_is_its_cache_and_too_little_is_said():
    c,lay = small(),batch_plan(16, 2, 8, 8, 8)
    n = count_weights(c)
    def plan(**k): return memory_plan(c, lay, 16, 16, 'fsdp2', **k)
    got = plan(use_vllm=True, vllm_share=.3)['vllm_cache'],plan(use_vllm=True)['vllm_cache']
    assert got==(24e9-2*n, 0)
    assert plan(use_vllm=True, vllm_share=.3, vllm_parallel=4)['vllm_cache']==24e9-2*n/4
    def said(share, **k):
        seven = batch_plan(16, 2, 8, 8, 8)
        return run_plan('Qwen/Qwen2.5-7B', seven, 256, 1024, strategy='zero3', use_vllm=True,
            vllm_share=share, **k)['problems']
    one = 1280*28*2*4*128*2                  # tokens, layers, k and v, heads, width, bytes
    least = (2*7_615_616_512+one)/80e9
    assert 'raise vllm_gpu_memory_utilization' in str(said(least-1e-6)) and said(least+1e-6)==[]
    assert said(least/2, vllm_parallel=4)==[]

def test_a_plan_names_what_speaks_against_it():
    p = run_plan('Qwen/Qwen2.5-7B', batch_plan(16, 2, 3, 8, 8), 256, 1024, strategy='ddp')
    wanted = 'no multiple of gradient_accumulation_steps','cut the states'
    assert len(p['problems'])==2 and [any(w in o for o in p['problems']) for w in wanted]==[True]*2
    assert 'PROBLEM' in format_plan(p)
    groups,long = run_plan('tiny', batch_plan(4, 2, 1, 3, 1), 500, 13)['problems']
    assert 'cannot be split into whole groups' in groups and '513 tokens are more than the 512' in long
    q = run_plan('Qwen/Qwen2.5-7B', batch_plan(16, 2, 4, 64, 4), 256, 1024, strategy='fsdp2')
    assert q['straddling']==32 and q['problems']==[]
    assert q['loading_node_GB']==pytest.approx(8*4*7_615_616_512/1e9, abs=.01)
    # 8 processes with 64 groups each: a prompt, and of 16 answers ids, log-probs and an advantage
    assert q['replay_node_MB']==pytest.approx(8*64*4*(256+16*(2*1024+1))/1e6, abs=.1)

def test_a_stretched_context_counts():
    "YaRN reads further than max_position_embeddings says"
    c = model_config('Qwen/Qwen2.5-7B')
    m = dict(fits=True, total=0, vllm=0)
    assert list(M._problems(c, batch_plan(2, 2, 2, 1, 2), 40000, m, 80e9))
    c.rope_scaling = dict(rope_type='yarn', factor=4., original_max_position_embeddings=32768)
    assert not list(M._problems(c, batch_plan(2, 2, 2, 1, 2), 40000, m, 80e9))

def test_sixty_four_fake_processes_cut_the_states_as_planned():
    "FSDP2 on a fake process group of 64: a rank's share of the weights, on the meta device."
    def share():
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.testing._internal.distributed.fake_pg import FakeStore
        from transformers import AutoModelForCausalLM
        dist.init_process_group('fake', rank=5, world_size=64, store=FakeStore())
        mesh = init_device_mesh('cpu', (64,))
        c = model_config('Qwen/Qwen2.5-0.5B')
        c.num_hidden_layers,c.layer_types = 2,c.layer_types[:2]
        with torch.device('meta'): m = AutoModelForCausalLM.from_config(c)
        for l in m.model.layers: fully_shard(l, mesh=mesh)
        fully_shard(m, mesh=mesh)
        return sum(p.to_local().numel() for p in m.parameters())*64/count_weights(c)
    assert .98<said_elsewhere(share)<1.02

def test_a_checkpoint_takes_on_disk_what_the_plan_says(tmp_path):
    import trl_tiny as T
    from grpo_nb.tiny_qwen import TINY_QWEN_DIR
    t = T.trainer(model_=str(TINY_QWEN_DIR), output_dir=str(tmp_path), max_steps=1,
                  save_strategy='steps', save_steps=1)
    t.train()
    files = [tmp_path/'checkpoint-1'/o for o in ('model.safetensors','optimizer.pt')]
    plan = memory_plan(model_config('tiny'), batch_plan(2, 2, 1, 1, 1), 500, 13, 'ddp')['checkpoint']
    assert sum(o.stat().st_size for o in files)==pytest.approx(plan, rel=.03)
    assert plan==12*count_weights(model_config('tiny'))
