"A stacked run beside the chapter's `train`: the same problems and darts, so the same tokens and weights"
import pytest, torch
from transformers import Qwen2Config, Qwen2ForCausalLM
import grpo_nb.generation as generation
import grpo_nb.dev.stacked as sr
import grpo_nb.trainer as trainer
from loss_calls import loss_of
from grpo_nb.dev.stacked import END, PAD, SHAPE, encode, is_right
from grpo_nb.dev.replay_study import USES
from grpo_nb.trainer import TrainConfig, train
from made_study import spelled

RATE,BATCHES = 1e-3,6

class Letters:
    "The families' letters as a tokenizer"
    chat_template,eos_token_id,pad_token_id,name_or_path = None,END,PAD,'letters'
    eos_token,pad_token = '$','_'
    def __call__(self, text, **_): return dict(input_ids=encode(text))
    def __len__(self): return SHAPE.vocab
    def decode(self, ids, **_): return spelled([int(o) for o in ids])
    def batch_decode(self, rows, **_): return [self.decode(o) for o in rows]

def from_qwen(model):
    "The weights of a transformers model in the order of a shape's parts"
    d,out = model.state_dict(),[]
    for k in SHAPE.parts():
        i,_,name = k.partition('.')
        def of(*names): return torch.cat([d[f'model.layers.{i}.{o}'] for o in names])
        qkv = [f'self_attn.{o}_proj' for o in 'qkv']
        if k in ('embed','norm'): t = d[dict(embed='model.embed_tokens.weight', norm='model.norm.weight')[k]]
        elif name=='qkv': t = of(*[f'{o}.weight' for o in qkv]).T
        elif name=='bias': t = of(*[f'{o}.bias' for o in qkv])
        elif name=='norm1': t = of('input_layernorm.weight')
        elif name=='norm2': t = of('post_attention_layernorm.weight')
        elif name=='out': t = of('self_attn.o_proj.weight').T
        elif name=='up': t = of('mlp.gate_proj.weight', 'mlp.up_proj.weight').T
        else: t = of('mlp.down_proj.weight').T
        out.append(t.flatten())
    return torch.cat(out).detach().clone()

def qwen_of(theta):
    "A transformers model with these weights: `from_qwen` of their places says where each one lies"
    s = SHAPE
    m = Qwen2ForCausalLM(Qwen2Config(vocab_size=s.vocab, hidden_size=s.width, num_hidden_layers=s.layers,
        num_attention_heads=s.heads, num_key_value_heads=s.kv_heads, head_dim=s.head,
        intermediate_size=s.inner, tie_word_embeddings=True, rope_theta=s.theta, max_position_embeddings=64,
        bos_token_id=None, eos_token_id=END, pad_token_id=PAD))
    params,at = list(m.parameters()),0
    with torch.no_grad():
        for p in params:
            p.copy_(torch.arange(at, at+p.numel()).view_as(p))   # below 2^24: exact in float32
            at += p.numel()
        flat = torch.empty(at)
        flat[from_qwen(m).long()] = theta
        for p,o in zip(params, flat.split([p.numel() for p in params])): p.copy_(o.view_as(p))
    assert torch.equal(from_qwen(m), theta)
    return m

def stacked(arm, monkeypatch):
    "Some batches of a stacked run, and all that went in and came out"
    r = sr.Runs(USES[arm], 'adding', [3], [RATE], n_train=80, n_test=4)
    seen = dict(start=r.m.theta[0].clone(), asked=[], darts=[], said=[], losses=[], norms=[])
    asked,factor = r.next_problems,sr.factor
    def problems():
        seen['asked'].append(asked())
        return seen['asked'][-1]
    def sample(m, ids, mask, chance, *ends):
        out = sampled(m, ids, mask, chance, *ends)
        seen['darts'].append(chance[0].permute(1, 2, 0).flatten(0, 1))   # (B*G, T)
        seen['said'].append(out[0][0])
        return out
    def noted(logps, old, A, how, real, *more):
        loss = loss_of(logps[0], old[0], A[0,...,0], real[0])
        seen['losses'].append(loss.item())
        return factor(logps, old, A, how, real, *more)
    sampled,step = sr.sample_stack,r.opt.step
    r.next_problems = problems
    r.opt.step = lambda *o: seen['norms'].append(step(*o).item())
    monkeypatch.setattr(sr, 'sample_stack', sample)
    monkeypatch.setattr(sr, 'factor', noted)
    for _ in range(BATCHES): r.batch()
    return r,seen

@pytest.mark.parametrize('arm', ['mu3','replay_default','plain_warmup'])
def test_a_stacked_run_is_the_chapters_run(arm, monkeypatch):
    torch.set_num_threads(1)
    r,seen = stacked(arm, monkeypatch)
    model = qwen_of(seen['start'])
    asked = [o for q in seen['asked'] for o in zip(q['ids'][0], q['mask'][0], q['answer'][0])]
    rows = [dict(prompt=spelled(ids[m].tolist()), answer=a.tolist()) for ids,m,a in asked]
    def right(prompts, completions, answer, completion_ids, **_):
        T = len(answer[0])
        padded = torch.tensor([o+[PAD]*(T-len(o)) for o in completion_ids])
        return is_right(padded, torch.tensor(answer)).float().tolist()
    darts,order = iter(seen['darts']),iter(range(len(rows)))
    monkeypatch.setattr(generation, 'sampling_uniforms', lambda n, T, *_: next(darts).double())
    def next_indices(s, n): return [next(order) for _ in range(n)]
    monkeypatch.setattr(trainer, 'next_prompt_indices', next_indices)
    said,infos = [],[]
    kept = trainer.rollout
    def rollout(*a, **k):
        out = kept(*a, **k)
        said.append(out[0].completion_ids)
        return out
    monkeypatch.setattr(trainer, 'rollout', rollout)
    kept_update,replayed = trainer.update_minibatch,[]
    def update(s, treated, idx, *a):
        replayed.append(treated.batch.replayed[idx].any().item())
        infos.append(kept_update(s, treated, idx, *a))
        return infos[-1]
    monkeypatch.setattr(trainer, 'update_minibatch', update)
    passes = USES[arm].passes
    args = TrainConfig(seed=3, num_generations=sr.G, generation_batch_size=8*sr.G, steps_per_generation=1,
        num_iterations=passes, max_steps=BATCHES*passes, learning_rate=RATE, weight_decay=0.,
        max_completion_length=r.family.completion, lr_scheduler_type='constant',
        warmup_steps=USES[arm].warmup, disable_tqdm=True,
        replay_buffer_size=64 if arm=='replay_default' else 0)
    s = train(model, Letters(), rows, right, args, print_verdict=False)
    assert s.num_tokens==int(r.tokens[0]) and len(said)==BATCHES
    for ours,theirs in zip(said, seen['said'], strict=True):
        T = ours.shape[-1]
        assert torch.equal(ours, theirs[...,:T]) and (theirs[...,T:]==PAD).all()
    torch.testing.assert_close([o['loss'] for o in infos], seen['losses'], atol=2e-6, rtol=1e-4)
    torch.testing.assert_close([o['grad_norm'] for o in infos], seen['norms'], atol=1e-5, rtol=1e-3)
    moved = (r.m.theta[0]-seen['start']).norm()
    assert (from_qwen(s.model)-r.m.theta[0]).norm()<1e-3*moved and moved>(.1 if not USES[arm].warmup else .05)
    if passes>1: assert max(o['clip_ratio/region_mean'] for o in infos)>.01   # the clip had something to do
    elif arm=='replay_default': assert any(replayed)   # nor was the buffer idle
