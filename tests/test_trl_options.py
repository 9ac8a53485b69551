"""Every option of GRPOConfig with replay on: it runs, replaces what is dead,
and the loss equals TRL's own on the edited batch."""

import asyncio, functools, math, re, warnings
import pytest, torch
from trl import GRPOConfig, GRPOTrainer
from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferTrainer
from grpo_nb.run.reading import read_run
from loss_calls import loss_of
import trl_tiny as T
from trl_tiny import LIVE, DEAD, Scripted

torch.set_num_threads(1)
G = 4
PLAN = [LIVE,[0.,2.,1.,0.], LIVE,DEAD, DEAD,LIVE, DEAD,DEAD]

def go(steps=4, B=2, plan=PLAN, rewards=None, watch=None, **kw):
    "Train with groups of a known fate, watching batches and finite gradients."
    t = T.trainer(rewards or Scripted(plan, G), max_steps=steps,
        **(dict(per_device_train_batch_size=B*G, learning_rate=5e-3)|kw))
    if watch: watch(t)
    got = T.spy(t)
    before = T.weights(t); t.train(); after = T.weights(t)
    h = [o for o in t.state.log_history if 'loss' in o]
    assert [o for o in h if not (math.isfinite(o['loss']) and math.isfinite(o['grad_norm']))]==[]
    assert any(not torch.equal(before[k], after[k]) for k in before)
    assert sum(b['replayed'].any().item() for b in got)>0
    for b in got: assert b['num_items_in_batch']==(b['completion_mask']*b.get('tool_mask', 1)).sum()
    return t,got

LOSSES = ['grpo','dr_grpo','dapo','bnpo','cispo','sapo','luspo','vespo']
def log_probs(t, x):
    "TRL's own forward, without our hook."
    ids,mask = (torch.cat([x[f'prompt_{k}'], x[f'completion_{k}']], 1) for k in ('ids','mask'))
    with torch.no_grad():
        return GRPOTrainer._get_per_token_logps_and_entropies(t, t.model, ids, mask,
            x['completion_ids'].shape[1])[0]

def rows(x):
    "Each row of a batch as its prompt and its completion."
    return [tuple(tuple(i[m.bool()].tolist()) for i,m in zip(x[f'{k}_ids'], x[f'{k}_mask']))
        for k in ('prompt','completion')]

def compare_with(monkeypatch, seen, expected):
    """For `go`: beside every loss of the trainer stands `expected`, its old log-probs noted when that very
    completion was sampled."""

    def watch(t):
        noted,made,last = {},GRPOTrainer._generate_and_score_completions,[]
        def generate(self, inputs):
            x = made(self, inputs)                                   # nothing replaced yet
            for k,m,p in zip(zip(*rows(x)), x['completion_mask'].bool(), log_probs(t, x)):
                noted.setdefault(k, []).append(p[m])
            return x
        monkeypatch.setattr(GRPOTrainer, '_generate_and_score_completions', generate)
        forward,compute = t._get_per_token_logps_and_entropies,t._compute_loss
        def kept(*a, **k): last[:] = [out := forward(*a, **k)]; return out
        def loss(model, x):
            got = compute(model, x)
            p,mask = last[0][0],x['completion_mask'].bool()
            old = torch.zeros_like(p)
            for i,k in enumerate(zip(*rows(x))):
                now = p[i,mask[i]].detach()
                given = x.get('replay_old_logps', x.get('old_per_token_logps', p))[i,mask[i]].detach()
                # sampled twice in one wording: the nearer
                same = (min(noted[k], key=lambda o: (o-given).abs().max()) if x['replayed'][i]
                    else noted[k][-1])
                old[i,mask[i]] = same
                seen.append((bool(x['replayed'][i]), (now-same).abs().max().item()))
            q = p.detach().requires_grad_()
            want = expected(t, x, q, old, mask)
            torch.testing.assert_close(got.detach(), want.detach(), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(*(torch.autograd.grad(o, v, retain_graph=True)[0]
                for o,v in ((got, p), (want, q))), rtol=1e-3, atol=1e-5)
            return got
        t._get_per_token_logps_and_entropies,t._compute_loss = kept,loss
    return watch

def of_policy_loss(**kw):
    "Our loss of the trainer's rows, each a group of one."
    def expected(t, x, q, old, mask):
        acc = t.current_gradient_accumulation_steps
        part = (dict(num_items=x['num_items_in_batch']*acc/t.args.steps_per_generation)
            if t.loss_type in ('dapo','cispo','vespo') else dict(num_rows=len(q)*acc))
        rows_first = [o[:,None] for o in (q, old, x['advantages'], mask)]
        return loss_of(*rows_first, max_completion_length=t.max_completion_length, replayed=x['replayed'],
            **part, **kw)/(acc if t.loss_type=='bnpo' else 1)
    return expected

@pytest.mark.parametrize('loss', ['dapo','grpo','vespo'])
def test_two_generations_in_a_step_give_the_loss_of_each(loss, monkeypatch):
    "The road of test_road has the other rhythms."
    kw,seen = dict(loss_type=loss, epsilon_high=None),[]
    watch = compare_with(monkeypatch, seen, of_policy_loss(**kw))
    go(steps=8, watch=watch, steps_per_generation=1, gradient_accumulation_steps=2,
        per_device_train_batch_size=8, **kw)
    assert max(d for old,d in seen if old)>1e-3   # a replayed row's ratio is not 1


@pytest.mark.parametrize('kw,says', [
    (dict(replay_correction='weight=none', beta=.1), 'use_bias_correction_kl'),
    (dict(replay_correction='clip=none', loss_type='vespo'), 'vespo'),
    (dict(replay_correction='max_drift=.1', off_policy_mask_threshold=.5), 'off-policy mask'),
    (dict(replay_correction='weight=decoupled'), 'has no place'),
    (dict(replay_correction='max_moment=.04'), 'has no place'),
    (dict(replay_correction='weight=half'), 'one of')])
def test_a_correction_that_trl_does_not_allow_is_refused(kw, says):
    with pytest.raises(ValueError, match=says): T.config(**kw)

@pytest.mark.parametrize('kw,rank,times', [(dict(replay_correction='clip=none'), '0', 1),
    (dict(replay_correction='clip=none,weight=truncated'), '0', 1),
    (dict(replay_correction='clip=none'), '1', 0),
    (dict(replay_correction='clip=none', replay_buffer_size=0), '0', 0),
    (dict(replay_correction='clip=two_sided'), '0', 0), ({}, '0', 0)])
def test_a_run_warns_once_where_replayed_tokens_are_not_clipped(kw, rank, times, monkeypatch):
    monkeypatch.setenv('RANK', rank)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        t = T.trainer(max_steps=1, **kw)
        monkeypatch.delenv('RANK')
        if times: t.train()
    assert sum('takes the clip from replayed tokens' in str(o.message) for o in seen)==times

OPTS = dict(   # what the drawn road of test_road has no name for
    sync=dict(beta=.1, sync_ref_model=True, ref_model_sync_steps=1),
    checkpointing=dict(gradient_checkpointing=True), bf16=dict(bf16=True),
    sampling=dict(temperature=.7, top_p=.9, top_k=5, min_p=.01, repetition_penalty=1.1),
    pad8=dict(pad_to_multiple_of=8),
    generation_batch=dict(generation_batch_size=16, per_device_train_batch_size=8))
@pytest.mark.parametrize('name', OPTS)
def test_every_other_option(name):
    t,got = go(steps=8 if name=='generation_batch' else 4, **OPTS[name])
    if name=='pad8':
        assert [b for b in got
            if not (b['completion_ids'].shape[1]%8==0 and b['prompt_ids'].shape[1]%8==0)]==[]

@functools.cache
def sampled(**kw):
    "The first completions that TRL's own trainer samples with these `generation_kwargs`"
    t = T.trainer(cls=GRPOTrainer, args=T.config(GRPOConfig, max_steps=1, generation_kwargs=kw or None))
    got = T.spy(t)
    t.train()
    return got[0]['completion_ids']

@pytest.mark.parametrize('key,value', [('presence_penalty', 1.5), ('frequency_penalty', 1.5),
    ('max_tokens', 2), ('no_repeat_ngram', 1)])
def test_a_name_that_generate_passes_over_is_refused_before_any_work(key, value):
    ids = torch.tensor([[9,10,11]])
    with pytest.raises(ValueError, match=f"not used by the model: .*{key}"):
        T.model().generate(ids, max_new_tokens=2, **{key:value})
    assert torch.equal(sampled(**{key:value}), sampled())        # TRL: nothing changes, nothing is said
    with pytest.raises(ValueError, match=f"`generation_kwargs` has '{key}', which `generate`"):
        T.config(generation_kwargs={key:value})
    assert not torch.equal(sampled(repetition_penalty=50.), sampled())
    T.config(generation_kwargs=dict(repetition_penalty=1.5))

def test_no_name_that_generate_reads_is_refused():
    from transformers import GenerationConfig
    names = [k for k in GenerationConfig().to_dict() if not k.startswith('_')]
    assert len(names)>40
    for k in names: T.config(generation_kwargs={k:None})
    T.config(generation_kwargs='{"top_k": 3}')   # as a command line gives it

def test_truncated_completions_stay_out_of_buffer_and_loss():
    t,got = go(mask_truncated_completions=True, max_completion_length=3, steps=6, plan=[LIVE,LIVE,LIVE,DEAD])
    for b in got: assert b['num_items_in_batch']==b['completion_mask'].sum()
    for e in t.replay_buffer: assert e.data['lengths'].sum()>0

# -- rewards --------------------------------------------------------------------------------------
def test_several_rewards_with_weights_async_and_none():
    async def slow(completions, **kw): await asyncio.sleep(0); return [1.]*len(completions)
    def sometimes(completions, **kw): return [None]*len(completions)
    for agg in ('sum_then_normalize','normalize_then_sum'):
        t,got = go(rewards=[Scripted(PLAN, G), slow, sometimes], reward_weights=[1.,.5,2.],
            multi_objective_aggregation=agg)
        assert [b['replayed'].view(-1, G).all(1).tolist() for b in got]==[[False,False],[False,True],
            [True,False],[True,True]]

def test_a_reward_model():
    from transformers import Qwen2Config, Qwen2ForSequenceClassification
    torch.manual_seed(1)
    m = Qwen2ForSequenceClassification(Qwen2Config(vocab_size=29, hidden_size=8, intermediate_size=16,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, num_labels=1, pad_token_id=0))
    m.config._name_or_path = 'tiny'
    t,_ = go(rewards=[m, Scripted(PLAN, G)], reward_weights=[0.,1.],
        reward_processing_classes=[T.tokenizer(), None])
    assert 'rewards/tiny/mean' in t.state.log_history[0]

# -- data -----------------------------------------------------------------------------------------
def test_conversations():
    t,got = go(dataset=T.data(chat=True, answer=['x']*17), log_completions=True, num_completions_to_print=0)
    for name,role in (('prompt','user'),('completion','assistant')):
        column = list(t._logs[name])
        assert len({type(o) for o in column})==1   # older TRL logs text; replayed rows are in its form
        assert isinstance(column[0], str) or all(o[0]['role']==role for o in column)

def test_a_stream_is_read_in_its_order():
    t,got = go(dataset=T.data().to_iterable_dataset(), shuffle_dataset=False)
    read = [(t.processing_class.decode(p), bool(old)) for b in got
        for p,old in list(zip(rows(b)[0], b['replayed']))[::G]]
    # a replaced prompt is passed over, not asked again
    assert [None if old else p for p,old in read]==[None if old else p for p,(_,old) in zip(T.PROMPTS, read)]
    assert [old for _,old in read]==[False,False, False,True, True,False, True,True]

def test_eval_datasets_of_every_kind():
    from datasets import DatasetDict
    for ev,names in ((T.data(4), ['eval_loss']), (dict(a=T.data(4), b=T.data(4)),
            ['eval_a_loss','eval_b_loss']), (DatasetDict(a=T.data(4)), ['eval_a_loss'])):
        t = T.trainer(eval_dataset=ev)
        m = t.evaluate()
        # measured, and kept out of the buffer
        assert [k for k in names if not math.isfinite(m[k])]==[] and len(t.replay_buffer)==0
    assert T.trainer(eval_dataset=None).eval_dataset is None

# -- models ---------------------------------------------------------------------------------------
@pytest.mark.parametrize('opts', [{}, dict(beta=.1), dict(num_iterations=2, beta=.1)])
def test_peft(opts):
    from peft import LoraConfig
    t,_ = go(steps=8, peft_config=LoraConfig(r=2, target_modules=['q_proj','v_proj'],
        init_lora_weights=False), learning_rate=1e-2, **opts)
    assert sum(p.numel() for p in t.model.parameters() if p.requires_grad)<1000

def test_a_peft_model_with_its_own_adapter():
    from peft import LoraConfig, get_peft_model
    m = get_peft_model(T.model(), LoraConfig(r=2, target_modules=['q_proj'], init_lora_weights=False))
    before = {k:v.detach().clone() for k,v in m.named_parameters()}
    t,_ = go(model_=m, beta=.1, learning_rate=1e-2)
    after = dict(m.named_parameters())
    # the adapter moved, the model below it did not
    assert [k for k,v in before.items() if torch.equal(v, after[k])=='lora' in k]==[]
    # the reference is that adapter as it was
    assert [k for k,v in before.items() if not torch.equal(v, after[k.replace('default', 'ref')])]==[]
    assert t.state.log_history[0]['kl']<1e-6<1e-4<t.state.log_history[3]['kl']

# -- other samplers -------------------------------------------------------------------------------
def rollout(prompts, trainer):
    tok = trainer.processing_class
    p = [tok(o)['input_ids'] for o in prompts]
    c = [torch.randint(9, 29, (int(torch.randint(2, 6, (1,))),)).tolist() for _ in p]
    return dict(prompt_ids=p, completion_ids=c, logprobs=[[-1.5]*len(o) for o in c],
        env_mask=[[1]+[0]*(len(o)-2)+[1] for o in c], luck=[float(i%2) for i in range(len(c))])

def test_a_rollout_func_with_its_own_mask_and_columns(monkeypatch):
    monkeypatch.setenv('TRL_EXPERIMENTAL_SILENCE', '1')
    seen = []
    class R(Scripted):
        def __call__(self, completions, luck=None, **kw):
            seen.append(luck); return super().__call__(completions)
    t,got = go(rewards=R(PLAN, G), rollout_func=rollout)
    assert seen[0]==[0.,1.]*4 and [b for b in got
        if not ('tool_mask' in b and 'sampling_per_token_logps' in b)]==[]
    for b in got:
        assert (b['sampling_per_token_logps'][b['completion_mask'].bool()]==-1.5).all()
        inner = (b['completion_mask'].sum(1)-2).clamp(min=0)
        assert torch.equal((b['completion_mask']*(1-b['tool_mask'])).sum(1), inner)   # also of replayed rows
    for e in t.replay_buffer: assert {'tool_mask','sampling_per_token_logps'}<=set(e.data)

def test_a_group_whose_tokens_all_came_from_a_tool_is_not_stored(monkeypatch):
    "Its rewards differ, and no token of it is in the loss"
    monkeypatch.setenv('TRL_EXPERIMENTAL_SILENCE', '1')
    def by_tools(prompts, trainer):
        out = rollout(prompts, trainer)
        return out|dict(env_mask=[[0]*len(o) if i<G else [1]*len(o) for i,o in enumerate(out['env_mask'])])
    t = T.trainer(Scripted([LIVE], G), per_device_train_batch_size=2*G, max_steps=4, rollout_func=by_tools)
    t.train()
    assert len(t.replay_buffer)==4 and all(e.data['tool_mask'].all() for e in t.replay_buffer)

def test_rows_that_are_sampled_again_share_no_list_with_those_they_repeat():
    "What writes into one (a rollout, an environment) writes into no other"
    t = T.trainer(Scripted([LIVE], G), per_device_train_batch_size=3*G, replay_stored_per_fresh=2)
    t.model.train()
    rows = [dict(prompt=[dict(role='user', content='one')], tests=[[1]], more={'in':[1]}) for _ in range(G)]
    again = t.resample_missing(rows)
    assert len(again)==3*G and again[G:]==rows*2
    for o in again:
        assert (o['prompt'], o['tests'], o['more'])==([dict(role='user', content='one')], [[1]], {'in':[1]})
        o['prompt'][0]['content'] = 'spoilt'
        o['tests'][0].append(9)
        o['more']['in'].append(9)

def byte_trainer(rewards, turns, **kw):
    from transformers import Qwen2Config, Qwen2ForCausalLM
    tok = T.byte_tokenizer()
    torch.manual_seed(0)
    m = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tok), hidden_size=16, intermediate_size=32,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, eos_token_id=3))
    own = {k:kw.pop(k) for k in ('tools','environment_factory') if k in kw}
    t = GRPOWithReplayBufferTrainer(model=m, reward_funcs=rewards,
        args=T.config(max_completion_length=256, per_device_train_batch_size=8, max_steps=4, **kw),
        train_dataset=T.data(chat=True), processing_class=tok, **own)
    def turn(prompt_ids, *a, **k): return [tok(next(turns))['input_ids'] for _ in prompt_ids],None
    t._generate_single_turn = turn
    return t

def check_record_of_tools(t, got):
    "Each token of an answer has an entry in every list, None where the tool wrote it"
    run = read_run(t.args.output_dir)
    assert run.notes==[] and any(o['replacement'] for o in run.rows)
    for b,groups in zip(got, run.by_step.values()):
        for g,o in enumerate(groups):
            new = o['replacement']
            for k,i in enumerate(range(g*G, g*G+G)):
                whole = b['completion_mask'][i].bool()
                own = b['tool_mask'][i].bool()[whole].tolist()
                lists = [(new or o)['ratios'][k]] + ([] if new else [o['logps'][k]])
                assert all([x is not None for x in numbers]==own for numbers in lists)
                words = [t.processing_class.decode([j]) for j in b['completion_ids'][i][whole]]
                assert new or o['tokens'][k]==words

def test_tools_are_called_and_their_answers_stay_out_of_the_loss():
    def add(a: int, b: int) -> int:
        """Adds.

        Args:
            a: one
            b: other
        """
        calls.append((a, b)); return a+b
    calls = []
    def texts():
        i = 0
        while True:   # a call of 8 rows, then 8 answers
            for r in range(8):
                yield (
                    '<tool_call>\n{"name": "add", "arguments": {"a": %d, "b": %d}}\n</tool_call><|im_end|>'
                    % (i, r)
                )
            for r in range(8): yield 'it is '+'x'*(r%3)+'<|im_end|>'
            i += 1
    t = byte_trainer(Scripted(PLAN, G), texts(), tools=[add], log_completions=True,
        num_completions_to_print=0, record_tokens=True)
    got = T.spy(t); t.train()
    check_record_of_tools(t, got)
    assert len(calls)==32 and t.state.log_history[0]['tools/call_frequency']==1
    assert [b['replayed'].view(-1, G).all(1).tolist() for b in got]==[[False,False],[False,True],[True,False],
        [True,True]]
    for b in got:
        assert ((b['tool_mask'] == 0) & b['completion_mask'].bool()).any(1).all() and b[
            'num_items_in_batch'
        ] == (b['completion_mask'] * b['tool_mask']).sum()
        for i,m,k in zip(b['completion_ids'], b['tool_mask'].bool(), b['completion_mask'].bool()):
            trained,given = (t.processing_class.decode(i[o]) for o in (m&k, ~m&k))
            assert ('tool_call' in trained and 'it is' in trained and 'tool_response' in given
                and 'tool_call>' not in given)

def test_environments_are_reset_for_every_generation_and_own_the_reward():
    class Env:
        made = []
        def __init__(self): self.n = 0; Env.made.append(self)
        def reset(self, **kw): self.n += 1; return f' turn {self.n}'
        def look(self) -> str:
            """Looks."""
            return 'nothing'
        # the third batch is dead
        def get_reward(self): return 1. if self.n==3 else float(Env.made.index(self)%2)
    def texts():
        while True: yield 'done<|im_end|>'
    t = byte_trainer(None, texts(), environment_factory=Env)
    got = T.spy(t); t.train()
    assert sorted(e.n for e in Env.made)==[4]*8
    assert [b['replayed'].all().item() for b in got]==[False,False,True,False]
    prompts = [t.processing_class.decode(got[2]['prompt_ids'][i][got[2]['prompt_mask'][i].bool()])
        for i in range(8)]
    # the replayed prompt is the one it was sampled with
    assert [p for p in prompts if not ('turn 1' in p or 'turn 2' in p)]==[]

# -- vLLM, as far as it goes without one ------------------------------------------------------------
class FakeVLLM:
    "Stands where TRL keeps its vLLM engine: samples at random and says how likely it thought each token."
    def __init__(self, **kw): self.kw = kw; self.synced = 0; self.vllm_client = self
    def get_server_info(self): return dict(model_config=dict(logprobs_mode='processed_logprobs'))
    def sync_weights(self): self.synced += 1
    def generate(self, prompts, images, num_generations, profiler=None):
        c = [torch.randint(9, 29, (int(torch.randint(1, 7, (1,))),)).tolist() for _ in prompts]
        return prompts,c,[[[-3.+.3*((i*7+j)%5)] for j in range(len(o))] for i,o in enumerate(c)],None

@pytest.mark.parametrize('mode', ['token_truncate','token_mask','sequence_truncate','sequence_mask'])
@pytest.mark.parametrize('loss', ['dapo','vespo'])
def test_the_vllm_path_with_its_correction(monkeypatch, mode, loss):
    if loss=='vespo' and mode.startswith('seq'): pytest.skip('TRL refuses it')
    import trl.trainer.grpo_trainer as M
    monkeypatch.setattr(M, 'VLLMGeneration', FakeVLLM, raising=False)
    t,got = go(use_vllm=True, vllm_mode='colocate', vllm_importance_sampling_mode=mode, loss_type=loss)
    for b in got:
        assert b['importance_sampling_ratio'].shape==((8, 1) if mode.startswith('seq')
            else b['completion_ids'].shape)
        want = ((b['old_per_token_logps']-b['sampling_per_token_logps'])*b['completion_mask'])
        want = want.sum(1, keepdim=True).exp() if mode.startswith('seq') else want.exp()
        want = want.clamp(max=3) if mode.endswith('truncate') else want.masked_fill(want>3, 0)
        # fresh and replayed rows alike
        assert torch.allclose(b['importance_sampling_ratio'], want, atol=1e-5)
    assert t.vllm_generation.synced>0

def test_a_second_train_sends_vllm_its_weights_again(monkeypatch):
    "TRL skips it where both generate at the same step: the second run would sample with the first's weights"
    import trl.trainer.grpo_trainer as M
    monkeypatch.setattr(M, 'VLLMGeneration', FakeVLLM, raising=False)
    t = T.trainer(Scripted([LIVE], G), max_steps=1, use_vllm=True, vllm_mode='colocate')
    sent = []
    for _ in range(2):
        t.train()
        sent.append(t.vllm_generation.synced)
    assert sent==[1,2]

def test_vllm_without_correction_needs_no_old_logps(monkeypatch):
    import trl.trainer.grpo_trainer as M
    monkeypatch.setattr(M, 'VLLMGeneration', FakeVLLM, raising=False)
    t,got = go(use_vllm=True, vllm_mode='colocate', vllm_importance_sampling_correction=False)
    assert [b for b in got if 'old_per_token_logps' in b]==[] and any('replay_old_logps' in b for b in got)

def test_a_mixture_of_experts_with_its_balancing_loss():
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM
    def moe():
        torch.manual_seed(0)
        return Qwen2MoeForCausalLM(Qwen2MoeConfig(vocab_size=29, hidden_size=16, intermediate_size=32,
            moe_intermediate_size=16, shared_expert_intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1,
            num_experts=4, num_experts_per_tok=2, pad_token_id=0, eos_token_id=1))
    t,_ = go(model_=moe(), router_aux_loss_coef=.1, num_iterations=2, steps=8)
    assert any('aux_loss' in o for o in t.state.log_history)

def test_the_losses_are_those_of_this_trl_and_ours():
    from grpo_nb.parts.registry import LOSSES
    text = GRPOConfig.__dataclass_fields__['loss_type'].metadata['help']
    named = text[text.index('Supported values are'):].split('.')[0]
    assert set(re.findall(r"'(\w+)'", named))==set(LOSSES)

def test_a_newer_trl_is_used_and_said(monkeypatch):
    from grpo_nb.parts import versions
    monkeypatch.setitem(versions.NEWEST_TESTED, 'trl', '0.1')
    with pytest.warns(UserWarning, match='newer than 0.1, the newest that was tried'):
        t = T.trainer(max_steps=1)
    t.train()
    assert t.state.global_step==1
