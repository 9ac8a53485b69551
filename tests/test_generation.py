"Generation: fast against the plain loop, transformers' own rules, an exact enumeration, and every bad input"
import itertools, math
import pytest, torch
from grpo_nb.generation import generate, sample_inverse_cdf, filter_logits
from slow_loop import generate_loop
from grpo_nb.parts.fast_path import CachedDecoder, FusedDecoder, fast_path_blocker
from grpo_nb.parts.sampling import (
    check_prompt_ids, eval_mode, penalize_repetition, tokens_seen, sampling_uniforms)
from transformers import (
    LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)
from weekly import most_weekly

torch.set_num_threads(1)
seeded = lambda s=0: torch.Generator().manual_seed(s)

FAMILIES = dict(qwen2=(Qwen2Config, Qwen2ForCausalLM), qwen3=(Qwen3Config, Qwen3ForCausalLM),
                llama=(LlamaConfig, LlamaForCausalLM))

def small_model(family, vocab=32, seed=0, **kw):
    torch.manual_seed(seed)
    config,model = FAMILIES[family]
    c = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
             bos_token_id=None, eos_token_id=1, pad_token_id=0)|kw
    return model(config(vocab_size=vocab, **c)).eval()

def sharp(vocab=32, seed=0, family='qwen2', **kw):
    "A tiny model with a spread of probabilities, and norms and biases that are seen when left out."
    m = small_model(family, vocab, seed, **kw)
    with torch.no_grad():
        m.model.embed_tokens.weight *= 12
        for n,p in m.named_parameters():
            if 'norm' in n or 'bias' in n: p += .3*torch.randn(p.shape, generator=seeded(len(n)))
    return m

def some_prompts(B=3, P=6, vocab=32, seed=0):
    g = seeded(seed)
    n = torch.randint(1, P+1, (B,), generator=g)
    n[0] = P
    mask = torch.arange(P)[None]>=(P-n)[:,None]
    return torch.randint(3, vocab, (B,P), generator=g).masked_fill(~mask, 0),mask

def full_prompts(): return torch.randint(3, 32, (2,5), generator=seeded(1)),torch.ones(2, 5, dtype=torch.bool)

def recompute(model, r, temperature=1.):
    "Log-probs of the completions by one forward over the whole text."
    G,P = r.completion_ids.shape[1],r.prompt_ids.shape[1]
    ids = torch.cat([r.prompt_ids.repeat_interleave(G, 0), r.completion_ids.flatten(0, 1)], 1)
    see = torch.cat([r.prompt_mask.repeat_interleave(G, 0), r.completion_mask.flatten(0, 1)], 1).long()
    pos = (see.cumsum(1)-1).clamp(min=0)
    with torch.no_grad(): z = model(input_ids=ids, attention_mask=see, position_ids=pos).logits[:,P-1:-1]
    logps = (z.float()/temperature).log_softmax(-1).gather(2, ids[:,P:,None])[...,0]
    return logps.view_as(r.old_logps)*r.completion_mask

ALL_RULES = dict(temperature=1.4, top_k=12, top_p=.9, min_p=.05, repetition_penalty=.8)
RULES = [dict(), dict(temperature=.7), dict(temperature=0), dict(top_k=5), dict(top_p=.8), dict(min_p=.1),
         dict(repetition_penalty=1.5), ALL_RULES]

@pytest.mark.parametrize('rules', [*most_weekly(RULES[:-1], 3), RULES[-1]], ids=str)
@pytest.mark.parametrize('padded', [True, False], ids=['padded','full'])
def test_all_roads_draw_the_same_tokens_with_the_same_log_probs(rules, padded):
    model = sharp()
    ids,mask = some_prompts() if padded else full_prompts()
    kw = dict(eos_token_id=[1,2], pad_token_id=0, **rules)
    want = generate_loop(model, ids, mask, 4, 12, generator=seeded(5), **kw)
    for fast in (True, False):
        got = generate(model, ids, mask, 4, 12, generator=seeded(5), fast=fast, **kw)
        assert torch.equal(got.completion_ids, want.completion_ids)
        assert torch.equal(got.completion_mask, want.completion_mask)
        torch.testing.assert_close(got.old_logps, want.old_logps, atol=2e-5, rtol=0)
    again = recompute(model, got, rules.get('temperature') or 1.)
    torch.testing.assert_close(again, got.old_logps, atol=5e-5, rtol=0)

@pytest.mark.parametrize('family,heads,kv,hidden,layers,more', [
    ('qwen2', 4, 4, 32, 1, {}), ('qwen2', 4, 1, 48, 3, {}), ('qwen2', 2, 2, 16, 2, {}),
    ('qwen2', 8, 2, 64, 2, {}), ('qwen3', 4, 4, 32, 1, dict(head_dim=16)),
    ('qwen3', 4, 1, 48, 3, dict(head_dim=8)), ('qwen3', 8, 2, 64, 2, dict(head_dim=8)),
    ('llama', 4, 4, 32, 1, {}), ('llama', 3, 1, 48, 3, {}), ('llama', 9, 3, 72, 2, dict(head_dim=16))])
@pytest.mark.parametrize('tied', [True, False])
def test_the_fast_road_gives_transformers_logits_for_any_shape(family, heads, kv, hidden, layers, more, tied):
    rope = dict(rope_type='default', rope_theta=5000.)
    model = sharp(family=family, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv,
                  num_hidden_layers=layers, rope_parameters=rope, **more)
    assert fast_path_blocker(model)==''
    if not tied: model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0).clone())
    ids,mask = some_prompts()
    with torch.no_grad():
        a,b = CachedDecoder(model),FusedDecoder(model)
        start = a.prefill(ids, mask, 3, 6)
        torch.testing.assert_close(start, b.prefill(ids, mask, 3, 6), atol=1e-4, rtol=1e-4)
        for t in range(4):
            tok = torch.randint(3, 32, (len(a.mask),1), generator=seeded(t))
            torch.testing.assert_close(a.step(tok), b.step(tok), atol=1e-4, rtol=1e-4)
            keep = torch.arange(len(tok))[torch.arange(len(tok))!=t]
            for o in (a, b): o.select(keep)

def test_drawn_completions_follow_the_exact_enumeration():
    "Every text of up to three tokens of four, its probability by full forwards, beside 6000 draws"
    from scipy.stats import chisquare
    model,ids = sharp(4, hidden_size=16, intermediate_size=32),torch.tensor([[2,3]])
    def prob(text):
        x = torch.tensor([[2,3,*text]])
        with torch.no_grad(): lp = (model(input_ids=x).logits[0,1:-1]/1.5).log_softmax(-1)
        return lp.gather(1, x[0,2:,None]).sum().exp().item()
    every = [t for n in (1,2,3) for t in itertools.product(range(4), repeat=n)]
    texts = [t for t in every if 1 not in t[:-1] and (t[-1]==1 or len(t)==3)]
    want = torch.tensor([prob(t) for t in texts], dtype=torch.float64)
    assert abs(want.sum()-1)<1e-5
    for fast in (True, False):
        r = generate(model, ids, torch.ones_like(ids).bool(), 6000, 3, temperature=1.5, eos_token_id=1,
                     pad_token_id=0, generator=seeded(3), fast=fast)
        drawn = [tuple(i[m].tolist()) for i,m in zip(r.completion_ids[0], r.completion_mask[0])]
        count = torch.tensor([drawn.count(t) for t in texts])
        big = want*6000>=5
        f = lambda x: torch.cat([x[big], x[~big].sum()[None]])
        assert chisquare(f(count.double()), f(want*6000/want.sum())).pvalue>1e-3

def test_the_repetition_penalty_is_that_of_transformers():
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor
    z,ids = torch.randn(40, 50, generator=seeded())*3,torch.randint(0, 50, (40,9), generator=seeded(1))
    seen = tokens_seen(ids, torch.ones(40, 9).bool(), 50)
    for pen in (.7, 1.3):
        assert torch.equal(penalize_repetition(z, seen, pen),
            RepetitionPenaltyLogitsProcessor(pen)(ids, z.clone()))

def slowly_cut(z, top_k=0, top_p=1., min_p=None):
    "Places of one row of logits that stay, from the likeliest down, by the definitions."
    stay = sorted(range(len(z)), key=lambda i: -z[i])[:top_k or None]
    def shares(): return [math.exp(z[i])/sum(math.exp(z[j]) for j in stay) for i in stay]
    if top_p<1:
        mass = [sum(shares()[:k]) for k in range(len(stay))]   # by those before it
        stay = [i for i,h in zip(stay, mass) if h<top_p]
    if min_p: stay = [i for i,p in zip(stay, shares()) if p>=min_p*max(shares())]
    return set(stay)

CUTS = [dict(top_k=1), dict(top_k=7), dict(top_k=30), dict(top_p=.01), dict(top_p=.5), dict(top_p=.9),
        dict(min_p=.01), dict(min_p=.2), dict(min_p=1.), dict(top_k=9, top_p=.9, min_p=.03)]

@pytest.mark.parametrize('how', CUTS, ids=str)
def test_what_a_cut_leaves_is_what_a_slow_loop_leaves(how):
    z = torch.randn(40, 20, generator=seeded(), dtype=torch.float64)*3
    got = filter_logits(z, **how)
    left = [set(o.nonzero()[:,0].tolist()) for o in got.isfinite()]
    assert left==[slowly_cut(row, **how) for row in z.tolist()]
    assert torch.equal(got[got.isfinite()], z[got.isfinite()])
    # of four equal ones two reach a half
    assert filter_logits(torch.zeros(1, 4), top_p=.5).isfinite().sum()==2

def test_the_greedy_answer_is_that_of_transformers_generate():
    model = sharp()
    ids,mask = some_prompts()
    for pen in (1., 1.6):
        kw = dict(repetition_penalty=pen, eos_token_id=1, pad_token_id=0)
        want = model.generate(ids, attention_mask=mask.long(), max_new_tokens=10, do_sample=False, **kw)[:,6:]
        got = generate(model, ids, mask, 1, 10, temperature=0, **kw).completion_ids[:,0]
        assert torch.equal(got, want[:,:got.shape[1]])

def test_a_seed_repeats_bit_for_bit_and_rows_do_not_depend_on_each_other():
    model = sharp()
    ids,mask = some_prompts(4)
    f = lambda s: generate(model, ids, mask, 4, 12, eos_token_id=1, generator=seeded(s))
    a,b,c = f(1),f(1),f(2)
    assert [k for k,v in a.tensors().items() if not torch.equal(v, getattr(b, k))]==[]
    assert a.completion_ids.tolist()!=c.completion_ids.tolist()
    torch.manual_seed(3)
    d = generate(model, ids, mask, 2, 6)
    torch.manual_seed(3)
    e = generate(model, ids, mask, 2, 6)
    assert torch.equal(d.completion_ids, e.completion_ids)

def test_more_padding_changes_no_token():
    model = sharp()
    ids,mask = some_prompts()
    wide = lambda x, v: torch.nn.functional.pad(x, (5,0), value=v)
    for pen in (dict(), dict(repetition_penalty=5.)):
        for fast in (True, False):
            def go(i, m): return generate(model, i, m, 4, 10, eos_token_id=1, generator=seeded(), fast=fast,
                                          **pen)
            a = go(ids, mask)
            fill = int(a.completion_ids[a.completion_mask].bincount().argmax())   # a penalty must not see it
            b = go(wide(ids, fill), wide(mask, False))
            assert torch.equal(a.completion_ids, b.completion_ids)
            torch.testing.assert_close(a.old_logps, b.old_logps, atol=2e-5, rtol=0)

def test_finished_rows_leave_the_batch(monkeypatch):
    model,work = sharp(),[]
    step = FusedDecoder.step
    monkeypatch.setattr(FusedDecoder, 'step', lambda self, ids: work.append(len(ids)) or step(self, ids))
    r = generate(model, *some_prompts(4), 16, 40, eos_token_id=1, temperature=2., generator=seeded())
    alive = r.completion_mask.flatten(0, 1).sum(0).tolist()[1:]      # rows that get a token at step t+1
    assert len(work)==len(alive) and work==sorted(work, reverse=True)
    assert [(w,a) for w,a in zip(work, alive) if not (a<=w<=a/.87+1)]==[]

def test_the_mask_holds_the_first_end_token_and_nothing_behind_it():
    model = sharp()
    ids,mask = some_prompts()
    r = generate(model, ids, mask, 8, 30, eos_token_id=[1,2], pad_token_id=0, generator=seeded(4))
    rows = zip(*(o.flatten(0, 1) for o in (r.completion_ids, r.completion_mask, r.old_logps)))
    for toks,m,lp in rows:
        n = int(m.sum())
        assert m[:n].all() and not m[n:].any()
        assert (toks[n:]==0).all() and (lp[n:]==0).all() and (lp[:n]<0).all()
        assert toks[n-1] in (1,2) or n==30
        assert not torch.isin(toks[:n-1], torch.tensor([1,2])).any()
    assert 0<(r.completion_mask.sum(-1)<30).float().mean()   # some did end
    never = generate(model, ids, mask, 2, 9, eos_token_id=[], generator=seeded())
    assert never.completion_mask.all() and never.completion_ids.shape==(3,2,9)

def test_the_models_own_end_and_padding_tokens_are_the_default():
    model = sharp()
    model.generation_config.eos_token_id,model.generation_config.pad_token_id = [1,2],5
    ids,mask = some_prompts()
    a = generate(model, ids, mask, 4, 15, generator=seeded())
    b = generate(model, ids, mask, 4, 15, eos_token_id=[1,2], pad_token_id=5, generator=seeded())
    assert torch.equal(a.completion_ids, b.completion_ids) and a.pad_id==5

def test_the_model_is_in_eval_mode_while_it_samples_and_as_before_afterwards():
    model = sharp()
    model.config.attention_dropout = .5
    for l in model.model.layers: l.self_attn.attention_dropout = .9
    ids,mask = some_prompts()
    want = generate(model, ids, mask, 2, 6, generator=seeded(), fast=False)
    model.train()
    model.model.layers[1].eval()
    before = [m.training for m in model.modules()]
    got = generate(model, ids, mask, 2, 6, generator=seeded(), fast=False)
    assert torch.equal(got.completion_ids, want.completion_ids)
    assert [m.training for m in model.modules()]==before
    with pytest.raises(ZeroDivisionError):
        with eval_mode(model):
            assert not any(m.training for m in model.modules())
            1/0
    assert [m.training for m in model.modules()]==before

def test_changed_weights_are_seen_at_once():
    model = sharp()
    ids,mask = some_prompts()
    a = generate(model, ids, mask, 2, 6, generator=seeded())
    with torch.no_grad(): model.model.layers[0].mlp.down_proj.weight += 1
    b = generate(model, ids, mask, 2, 6, generator=seeded())
    torch.testing.assert_close(recompute(model, b), b.old_logps, atol=5e-5, rtol=0)
    assert a.old_logps.shape!=b.old_logps.shape or (a.old_logps-b.old_logps).abs().max()>1e-3

def test_what_the_fast_road_does_not_know_goes_through_transformers():
    assert fast_path_blocker(sharp())==fast_path_blocker(sharp().double())==''
    hooked,patched,half,gelu = sharp(),sharp(),sharp().bfloat16(),sharp(hidden_act='gelu')
    window = sharp(use_sliding_window=True, sliding_window=4, max_window_layers=0)
    scaled = sharp(rope_parameters=dict(rope_type='linear', factor=2., rope_theta=1e4))
    hooked.model.layers[0].mlp.register_forward_hook(lambda m, i, o: o*0)
    old = patched.lm_head.forward
    patched.lm_head.forward = lambda x: old(x)*2
    ids,mask = some_prompts()
    says = dict(half='bfloat16', window='window', scaled='scaled', gelu='gelu', hooked='hook',
                patched='lm_head')
    partial = sharp(family='llama', attention_bias=True)
    says |= dict(partial='bias outside', mlp='bias outside', far='scaled')
    far = dict(rope_type='llama3', rope_theta=1e4, factor=8., low_freq_factor=1., high_freq_factor=4.,
               original_max_position_embeddings=16)
    models = dict(half=half, window=window, scaled=scaled, gelu=gelu, hooked=hooked, patched=patched,
                  partial=partial, mlp=sharp(family='llama', mlp_bias=True),
                  far=sharp(family='llama', rope_parameters=far))
    for name,m in models.items():
        assert says[name] in fast_path_blocker(m), name
        r = generate(m, ids, mask, 3, 8, eos_token_id=1, generator=seeded())
        eps = .1 if name=='half' else 5e-5
        torch.testing.assert_close(recompute(m, r), r.old_logps, atol=eps, rtol=0, msg=name)
    with torch.autocast('cpu', dtype=torch.bfloat16): assert fast_path_blocker(sharp())=='autocast is on'
    assert 'too many to copy' in fast_path_blocker(sharp(), max_params=10)

def test_lora_and_another_architecture_sample_by_the_general_road():
    from peft import LoraConfig, get_peft_model
    from transformers import MistralConfig, MistralForCausalLM
    torch.manual_seed(0)
    adapters = LoraConfig(r=2, target_modules=['q_proj','down_proj'], init_lora_weights=False)
    lora = get_peft_model(sharp(), adapters).eval()
    sizes = dict(vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                 num_attention_heads=4)
    other = MistralForCausalLM(MistralConfig(**sizes, num_key_value_heads=2, sliding_window=None,
                                             max_position_embeddings=64)).eval()
    ids,mask = some_prompts()
    for m in (lora, other):
        assert 'not a plain Qwen2, Qwen3 or Llama' in fast_path_blocker(m)
        a = generate(m, ids, mask, 3, 8, eos_token_id=1, pad_token_id=0, generator=seeded())
        b = generate_loop(m, ids, mask, 3, 8, eos_token_id=1, pad_token_id=0, generator=seeded())
        assert torch.equal(a.completion_ids, b.completion_ids)
        torch.testing.assert_close(a.old_logps, b.old_logps, atol=2e-5, rtol=0)

@pytest.mark.parametrize('change,says', [
    (dict(num_generations=0), '`num_generations` is 0'),
    (dict(max_completion_length=0), '`max_completion_length` is 0'),
    (dict(temperature=-.1), '`temperature` is -0.1'),
    (dict(temperature=math.nan), '`temperature` is nan'),
    (dict(temperature=math.inf), '`temperature` is inf'),
    (dict(top_p=0.), '`top_p` is 0'), (dict(top_p=1.5), '`top_p`'), (dict(top_k=-1), '`top_k` is -1'),
    (dict(min_p=2.), '`min_p`'), (dict(repetition_penalty=0.), '`repetition_penalty`'),
    (dict(max_completion_length=600), '512 positions'),
    (dict(prompt_ids=torch.full((2,3), 40)), 'token 40'),
    (dict(prompt_mask=torch.tensor([[1,1,0],[1,1,1]]).bool()), 'on the right'),
    (dict(prompt_mask=torch.tensor([[1,1,1],[0,0,0]]).bool()), 'prompt 1 has no tokens'),
    (dict(prompt_ids=torch.ones(0, 3).long(), prompt_mask=torch.ones(0, 3).bool()), 'B >= 1'),
    (dict(prompt_mask=torch.ones(2, 4).bool()), 'one shape')])
def test_a_bad_argument_is_named(change, says):
    kw = dict(prompt_ids=torch.full((2,3), 5), prompt_mask=torch.ones(2, 3).bool(), num_generations=2,
              max_completion_length=4)|change
    for f in (generate, generate_loop):
        with pytest.raises(ValueError, match=says): f(sharp(), **kw)

def test_prompt_and_answer_may_fill_all_positions():
    model,ids = sharp(),torch.full((1,5), 5)
    for T in (507, 508):
        if T==507: check_prompt_ids(model, ids, ids>0, T)
        else:
            with pytest.raises(ValueError, match='512 positions'): check_prompt_ids(model, ids, ids>0, T)

@pytest.mark.parametrize('fast', [True, False])
def test_nan_in_the_weights_names_a_row(fast):
    model = sharp()
    with torch.no_grad(): model.model.embed_tokens.weight[9] = math.nan
    model.lm_head.weight = torch.nn.Parameter(sharp().lm_head.weight.detach().clone())
    ids,mask = torch.tensor([[4,5],[4,9]]),torch.ones(2, 2).bool()
    with pytest.raises(ValueError, match='row 3 at token 0'):
        generate(model, ids, mask, 3, 4, eos_token_id=[], generator=seeded(), fast=fast)

def test_pick_never_draws_what_has_no_probability():
    p = torch.tensor([[0.,.5,0.,.5,0.]]).expand(3, -1)
    u = torch.tensor([[0.],[.5],[1-2**-50]], dtype=torch.float64)
    assert sample_inverse_cdf(p, u).flatten().tolist()==[1,3,3]
    z = filter_logits(torch.randn(2000, 30, generator=seeded()), top_k=3)
    ids = sample_inverse_cdf(z.softmax(-1), torch.rand(2000, 1, generator=seeded(1), dtype=torch.float64))
    assert z.gather(1, ids).isfinite().all()

def test_the_short_way_is_refused_where_it_would_give_other_numbers():
    ids,mask = some_prompts()
    hooked = sharp()
    hooked.model.layers[0].register_forward_hook(lambda m, i, o: o)
    for m in (sharp().bfloat16(), sharp(hidden_act='gelu'), hooked):
        with pytest.raises(ValueError, match='fast=True cannot be for this model: .*'+fast_path_blocker(m)):
            generate(m, ids, mask, 2, 3, fast=True)
        assert generate(m, ids, mask, 2, 3, eos_token_id=1, generator=seeded()).old_logps.isfinite().all()

def test_uniform_numbers_stay_on_a_device_with_float64(monkeypatch):
    "Apple's GPU has none: numbers and sums of probabilities are on the CPU there, and the tokens come back."
    assert sampling_uniforms(2, 3, seeded(), 'mps').device.type=='cpu'
    p,u = torch.rand(3, 9, generator=seeded()),sampling_uniforms(3, 1, seeded(1), 'cpu')
    c = p.double().cumsum(1)
    assert torch.equal(sample_inverse_cdf(p, u), torch.searchsorted(c, u*c[:,-1:], right=True))
