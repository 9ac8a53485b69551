"What went silently wrong in `train`, each as a whole kind: rewards, rows, groups, models."
import copy, itertools, warnings
import pytest, torch
from datasets import Dataset
from PIL import Image
from grpo_nb.evaluation import evaluate, pass_at_k
from grpo_nb.parts.corrections import high_entropy_mask
from grpo_nb.see.verdict import verdict
from grpo_nb.tiny_qwen import load_model
from grpo_nb.trainer import TrainConfig, train

torch.set_num_threads(1)
SMALL = dict(generation_batch_size=16, num_generations=4, steps_per_generation=1, max_completion_length=4,
    disable_tqdm=True, max_steps=2)
ROWS = [dict(prompt=f'{a}+{b}=') for a in range(4) for b in range(4)]
def odd(completions, **kw): return [float(i%2) for i in range(len(completions))]

# ---- the quantile's token
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize('share', [.05, .1, .2, .3, .5, .7, .8, .9, .95])
def test_the_token_at_the_quantile_stays(dtype, share):
    gen = torch.Generator().manual_seed(0)
    for n in (2, 11, 21, 101, 1001):
        e = torch.randperm(n, generator=gen).double()[None,None]/8   # whole eighths: exact up to 2**8/8
        e = (e if dtype!=torch.bfloat16 else e%256).to(dtype)
        keep = high_entropy_mask(e, torch.ones_like(e).bool(), share)
        # as many as lie at or above the (1-share) quantile: its place counts up from 0 to n-1
        place = (100-round(100*share))*(n-1)   # in hundredths
        values = e.double().flatten().sort().values
        assert keep.sum()==(values>=values[-(-place//100)]).sum(), (n, share)

# ---- a problem that no reward judges
def test_pass_at_k_is_the_share_of_draws_with_a_right_answer_and_takes_no_other_counts():
    for n,c,k in itertools.product(range(1, 6), range(-1, 7), range(7)):
        if not (0<=c<=n and 1<=k<=n):
            with pytest.raises(ValueError, match='need 0 <= c <= n and 1 <= k <= n'): pass_at_k(n, c, k)
            continue
        draws = [*itertools.combinations([1]*c+[0]*(n-c), k)]
        assert pass_at_k(n, c, k)==pytest.approx(sum(map(any, draws))/len(draws))

def test_a_verdict_compares_the_same_problems_or_the_two_shares():
    def measured(right):
        judged = [o for o in right if o is not None]
        p = sum(judged)/len(judged)
        return {'pass@1':p, 'ci':(p-.1, p+.1), 'num_correct':right}
    rows = [dict(step=i, reward=.5) for i in range(8)]
    def sentence_of(a, b): return verdict(rows, measured(a), measured(b)).sentence
    assert 'from 100.0% to 50.0% (−50.0 points' in sentence_of([None, 1]*4, [0, 1]*4)
    assert 'from 25.0% to 75.0% (+50.0 points' in sentence_of([None, 0, 0, 0, 1], [None, 1, 1, 0, 1])

# ---- every answer has lists of its own
@pytest.mark.parametrize('table', [False, True])
def test_a_reward_cannot_change_rows_or_what_the_next_reward_sees(table):
    def row(i): return dict(prompt=[dict(role='user', content=f'{i}+1=')], tests=[[i]], more={'in':[i]})
    rows = [row(i) for i in range(4)]
    before,seen = copy.deepcopy(rows),[]
    def spoils(prompts, completions, tests, more, **kw):
        for p,c,t,m in zip(prompts, completions, tests, more):
            seen.append((len(p), len(t[0]), len(m['in'])))
            p += c
            p[0]['content'] = 'spoilt'
            t[0].append(9)
            m['in'].append(9)
            c[0]['content'] = 'spoilt'
        return odd(completions)
    def looks(prompts, completions, tests, more, **kw):
        assert 'spoilt' not in f'{prompts}{completions}' and '9' not in f'{tests}{more}'
        return odd(completions)
    given = Dataset.from_list(rows) if table else rows
    train(*load_model('tiny'), given, [spoils, looks], TrainConfig(**SMALL))
    assert rows==before and set(seen)=={(1, 1, 1)}

# ---- groups without a token in the loss
@pytest.mark.parametrize('strategy', ['replay','copies','newest'])
def test_a_group_without_a_token_in_the_loss_is_not_stored_and_replaces_none(strategy):
    def reward(completions, trainer_state, **kw):
        return [float(i%2)*(trainer_state.global_step<1 or i<4) for i in range(len(completions))]
    s = train(*load_model('tiny'), ROWS, reward, TrainConfig(**SMALL|dict(max_completion_length=2)),
        mask_truncated_completions=True, strategy=strategy, max_steps=3)
    assert len(getattr(s.strategy, 'buffer', ()))==0
    assert [o['replay/replaced'] for o in s.history]==[0, 0, 0] and [o['grad_norm'] for o in s.history]==[0]*3

# ---- models
def test_a_compiled_model_is_trained_and_its_weights_come_back(tmp_path):
    m,tok = load_model('tiny')
    before = copy.deepcopy(m.state_dict())
    train(torch.compile(m, backend='eager'), tok, ROWS, odd, TrainConfig(**SMALL, output_dir=str(tmp_path)))
    back,_ = load_model(tmp_path/'checkpoint-2')
    assert all(torch.equal(o, back.state_dict()[k]) for k,o in m.state_dict().items())
    assert any(not torch.equal(o, before[k]) for k,o in back.state_dict().items())
    s = train(torch.compile(load_model('tiny')[0], backend='eager'), tok, ROWS, odd, TrainConfig(**SMALL
        |dict(max_steps=3), output_dir=str(tmp_path)), resume_from_checkpoint=True)
    assert s.step==3

def test_a_compiled_part_is_named():
    m,tok = load_model('tiny')
    m.model.layers[1] = torch.compile(m.model.layers[1], backend='eager')
    with pytest.raises(ValueError, match=r'model\.layers\.1.*compile\(\)'):
        train(m, tok, ROWS, odd, TrainConfig(**SMALL))

@pytest.mark.parametrize('kind', ['lfm2','mamba','falcon_h1'])
def test_a_model_with_recurrent_layers_is_refused_in_a_line_that_names_the_way_out(kind):
    from transformers import AutoConfig, AutoModelForCausalLM
    tok = load_model('tiny')[1]
    usual = dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=128)
    more = dict(lfm2=usual|dict(layer_types=['conv','full_attention']), mamba=dict(hidden_size=48,
        num_hidden_layers=2, state_size=8), falcon_h1=usual|dict(mamba_d_ssm=64, mamba_n_heads=4,
        mamba_d_state=8, mamba_d_head=16))[kind]
    m = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=len(tok), eos_token_id=0,
        pad_token_id=0, bos_token_id=None, **more)).eval()
    for call in (lambda: train(m, tok, ROWS, odd, TrainConfig(**SMALL)),
            lambda: evaluate(m, tok, ROWS, odd, max_completion_length=4)):
        with pytest.raises(ValueError, match='recurrent layers.*grpo_nb trl'): call()

def test_a_tokenizer_without_padding_trains_as_one_that_pads_with_its_end_token():
    def run(pad):
        m,tok = load_model('tiny')
        tok.pad_token = pad
        rows = [dict(prompt='1'*n+'+1=') for n in range(1, 9)]   # of several lengths
        s = train(m, tok, rows, odd, TrainConfig(**SMALL))
        return tok,[o['loss'] for o in s.history],s.model.state_dict()
    (tok,a,x),(_,b,y) = run(None),run('<|im_end|>')
    assert tok.pad_token is None and a==b and all(torch.equal(x[k], y[k]) for k in x)

# ---- pictures
@pytest.mark.parametrize('column', ['image','images','audio','videos'])
@pytest.mark.parametrize('table', [False, True])
def test_rows_with_pictures_are_refused_wherever_the_picture_is(column, table):
    picture = Image.new('RGB', (8, 8))
    rows = [o|{column:None} for o in ROWS]
    train(*load_model('tiny'), rows, odd, TrainConfig(**SMALL))   # nothing to be seen
    rows[5] = rows[5]|{column:[picture] if column[-1]=='s' else picture}
    if table: rows = Dataset.from_list(rows)
    m,tok = load_model('tiny')
    with pytest.raises(ValueError, match=f'{column}.*reads text only'):
        train(m, tok, rows, odd, TrainConfig(**SMALL))
    with pytest.raises(ValueError, match=f'eval_dataset.*{column}'), warnings.catch_warnings():
        train(m, tok, ROWS, odd, TrainConfig(**SMALL, eval_steps=1), eval_dataset=rows)

# ---- the model's own forward pass
class Bent(torch.nn.Module):
    "A tiny Qwen whose logits are bent after the head."
    def __init__(self, model, bend):
        super().__init__()
        self.inner,self.bend = model,bend
    def __getattr__(self, name):
        try: return super().__getattr__(name)
        except AttributeError: return getattr(self.inner, name)
    def forward(self, *args, **kw):
        out = self.inner(*args, **kw)
        out.logits = self.bend(out.logits)
        return out

@pytest.mark.parametrize('bend', [lambda z: 5*(z/5).tanh(), lambda z: z*1.1, lambda z: z.clamp(max=8)])
def test_logits_that_change_after_the_head_are_seen_in_the_first_batch(bend):
    m,tok = load_model('tiny')
    before = copy.deepcopy(m.state_dict())
    with pytest.raises(ValueError, match='through the head.*grpo_nb trl'):
        train(Bent(m, bend), tok, ROWS, odd, TrainConfig(**SMALL))
    assert all(torch.equal(o, before[k]) for k,o in m.state_dict().items())   # nothing was trained

@pytest.mark.parametrize('dtype', ['float32','bfloat16'])
@pytest.mark.parametrize('how', [{}, dict(shared_prefix=False), dict(temperature=.6, top_k=5)])
def test_a_model_that_is_read_right_passes_by_every_way(dtype, how):
    m,tok = load_model('tiny', dtype=dtype)
    rows = [dict(prompt='1'*(1+3*i)+'+1=') for i in range(8)]
    assert train(m, tok, rows, odd, TrainConfig(**SMALL), **how).step==2

@pytest.mark.parametrize('far', [.02, -.3])
def test_log_probs_noted_wrongly_while_sampling_are_seen(monkeypatch, far):
    import grpo_nb.trainer as tr
    inner = tr.sample_completions
    def off(*args, **kw):
        batch = inner(*args, **kw)
        batch.old_logps = batch.old_logps+far
        return batch
    monkeypatch.setattr(tr, 'sample_completions', off)
    with pytest.raises(ValueError, match='its cache gives others'):
        train(*load_model('tiny'), ROWS, odd, TrainConfig(**SMALL))

def test_positions_are_given_so_that_gpt2_is_read_right():
    from transformers import GPT2Config, GPT2LMHeadModel
    tok = load_model('tiny')[1]
    torch.manual_seed(0)
    m = GPT2LMHeadModel(GPT2Config(vocab_size=len(tok), n_embd=48, n_layer=2, n_head=4, n_positions=16,
        resid_pdrop=.1, eos_token_id=tok.eos_token_id, bos_token_id=None)).eval()
    rows = [dict(prompt='1'*(1+i)+'=') for i in range(8)]
    assert train(m, tok, rows, odd, TrainConfig(**SMALL)).step==2

# ---- where settings meet, and the first of anything
@pytest.mark.parametrize('how', [dict(loss_type='grpo'), dict(loss_type='sapo'), dict(num_iterations=2)],
    ids=lambda o: '-'.join(map(str, o.values())))
def test_leaving_answers_without_an_advantage_out_changes_nothing_under_token_advantages(how):
    "RL-ZVP gives dead groups advantages by token; an answer that is all right and sure gets none."
    def reward(completions, **kw): return [float(i%2)*(i<8) for i in range(len(completions))]
    def run(skip):
        rows = [dict(prompt='1'*(1+2*i)+'+1=') for i in range(8)]
        s = train(*load_model('tiny'), rows, reward, TrainConfig(**SMALL|how|dict(skip_zero_advantage=skip,
            strategy='entropy', temperature=.5, max_steps=2*how.get('num_iterations', 1))))
        return s.history,torch.cat([o.flatten() for o in s.model.parameters()])
    (a,x),(b,y) = run(False),run(True)
    for o,p in zip(a, b): assert o['loss']==pytest.approx(p['loss'], rel=1e-5, abs=1e-7)
    assert (x-y).abs().max()<3e-6 and not torch.equal(x, torch.cat([o.flatten()
        for o in load_model('tiny')[0].parameters()]))

def test_an_answer_counts_for_any_token_with_an_advantage():
    from grpo_nb.variants.batch_logps import needs_gradient
    from grpo_nb.parts.groups import Groups
    class Batch(Groups): pass
    x = Batch()
    x.advantages = torch.tensor([[[0., 0., 1.], [0., 0., 0.]], [[0., 2., 0.], [0., 0., 3.]]])
    mask = torch.ones(2, 2, 3).bool()
    assert needs_gradient(x, mask)[0].tolist()==[[True]*3, [False]*3]
    assert needs_gradient(x, mask)[1,0].all()

@pytest.mark.parametrize('same', [False, True])
def test_one_problem_is_enough_and_prompt_0_is_a_prompt(same):
    from grpo_nb.replay import Replay
    def reward(completions, trainer_state, **kw):
        return [float(i%2)*(trainer_state.global_step%2==0) for i in range(len(completions))]
    args = TrainConfig(**SMALL|dict(generation_batch_size=4, max_steps=4))
    s = train(*load_model('tiny'), ROWS[:1], reward, args, strategy=Replay(4, same_prompt_first=same))
    assert [o['replay/replaced'] for o in s.history]==[0, 1, 0, 1]
    assert {e.prompt_key for e in s.strategy.buffer}=={0}
    b = Replay(8, same_prompt_first=True).buffer
    b.add([1.]*3, 'abc', keys=[1, 0, 2])
    assert [e.data for e in b.sample_entries(1, keys=[0])]==['b']

def test_resampled_groups_have_the_advantages_of_their_own_rollout_under_gdpo(monkeypatch):
    import grpo_nb.trainer as tr
    seen,inner = [],tr.rollout
    def watched(s, indices):
        out = inner(s, indices)
        seen.append((out[0].prompt_key.tolist(), out[2], out[0].advantages))
        return out
    monkeypatch.setattr(tr, 'rollout', watched)
    n = [0]
    def dead_at_first(completions, **kw):
        n[0] += 1
        return [float(i%2)*(n[0]>1 or i<4) for i in range(len(completions))]
    def third(completions, **kw): return [float(i%3==0)*(n[0]>1 or i<4) for i in range(len(completions))]
    args = TrainConfig(**SMALL, strategy='dynamic', multi_objective_aggregation='normalize_then_sum',
        reward_weights=[1., .5])
    s = tr.init_state(*load_model('tiny'), ROWS, [dead_at_first, third], args)
    batch = tr.train_batch(s).processed.batch
    def gdpo(r):   # (B, G, F): each function within its group, then the sum over the batch
        z = ((r-r.mean(1, keepdim=True))/(r.std(1, keepdim=True)+1e-4)*torch.tensor([1., .5])).sum(-1)
        return (z-z.mean())/(z.std()+1e-4)
    want = {}
    for keys,r,A in seen:
        for k,a in zip(keys, gdpo(r)): want[k] = a
    assert len(seen)==2 and len(seen[1][0])==3
    for k,A in zip(batch.prompt_key.tolist(), batch.advantages): assert torch.allclose(A, want[k], atol=1e-4)
