"""What becomes of zero-variance groups on TRL's trainer, on runs that train;
then the ratio, options, metrics and the documented example."""

import pytest, torch
from trl import GRPOConfig, GRPOTrainer
from grpo_nb.grpo_with_replay_buffer import (GRPOWithReplayBufferConfig)
import trl_tiny as T
from trl_tiny import LIVE, DEAD, Scripted

torch.set_num_threads(1)
G = 4

def run(plan, B=2, steps=2, trace=None, **kw):
    "Train `steps` steps of `B` groups with scripted rewards; the trainer and the batches it trained on."
    t = T.trainer(Scripted(plan, G), per_device_train_batch_size=B*G, max_steps=steps, **kw)
    got = T.spy(t)
    if trace is not None: trace(t)
    t.train()
    return t,got

def stored(t): return [e for e in t.replay_buffer]

@pytest.mark.parametrize('opts', [{}, dict(steps_per_generation=2), dict(beta=.1, num_iterations=2),
    dict(gradient_accumulation_steps=2, loss_type='grpo')])
def test_without_a_buffer_it_is_grpo_to_the_bit(opts):
    a = T.trainer(args=T.config(replay_buffer_size=0, max_steps=4, **opts)); a.train()
    b = T.trainer(cls=GRPOTrainer, args=T.config(GRPOConfig, max_steps=4, **opts)); b.train()
    assert T.same(T.weights(a), T.weights(b))
    # ours alone, or, of the deviation, ours of the groups and TRL's of the batch
    aside = ('time','second','runtime','reward_std','frac_one_text')
    def shown(t):
        return [{k:v for k,v in o.items() if not any(w in k for w in aside)} for o in t.state.log_history]
    assert shown(a)==shown(b)

def test_with_replay_on_and_nothing_dead_the_weights_are_those_of_grpo():
    a,_ = run([LIVE], steps=4)
    b = T.trainer(Scripted([LIVE], G), cls=GRPOTrainer, args=T.config(GRPOConfig,
        per_device_train_batch_size=8, max_steps=4))
    b.train()
    assert T.same(T.weights(a), T.weights(b))

def test_evaluating_on_the_way_leaves_training_as_it_is():
    plain,_ = run([LIVE,LIVE,DEAD,LIVE], steps=3)
    calls = []
    class Rewards(Scripted):
        def __call__(self, completions, **kw):
            return super().__call__(completions) if t.model.training else [1.]*len(completions)
    t = T.trainer(Rewards([LIVE,LIVE,DEAD,LIVE], G), per_device_train_batch_size=8, max_steps=3)
    class Eval(__import__('transformers').TrainerCallback):
        def on_step_end(self, *a, **kw):
            rng = torch.get_rng_state(); calls.append(t.evaluate(T.data(8))); torch.set_rng_state(rng)
    t.add_callback(Eval()); t.train()
    assert len(calls)==3 and T.same(T.weights(plain), T.weights(t))

def extras(t, make):
    "Let TRL's hook return more keys, as its vLLM, tool and vision paths do."
    old = GRPOTrainer._generate_and_score_completions
    def f(self, inputs): return make(old(self, inputs))
    return f

def test_images_move_with_their_group_while_a_trainer_trains(monkeypatch):
    "A model that is shown pixels: each row's must be those that its completion was sampled with."
    import itertools
    from transformers import Qwen2ForCausalLM
    seen = []
    class Sees(Qwen2ForCausalLM):
        def forward(self, input_ids=None, pixel_values=None, image_grid_thw=None, **kw):
            if pixel_values is not None:
                seen.append((input_ids.clone(), pixel_values.clone(), image_grid_thw.clone()))
            return super().forward(input_ids=input_ids, **kw)
    count = itertools.count(1)
    # a batch as TRL's vision path returns it: group k of the run has 4*k patches a row, all of value k
    def more(b):
        ks = [next(count) for _ in range(len(b['advantages'])//G)]
        grid = torch.tensor([[1,2,2*k] for k in ks for _ in range(G)])
        b['pixel_values'] = torch.cat([torch.full((4*k, 3), float(k)) for k in ks for _ in range(G)])
        b['image_grid_thw'],b['num_images'] = grid,[1]*len(grid)
        return b
    monkeypatch.setattr(GRPOTrainer, '_generate_and_score_completions', extras(None, more))
    m = Sees.from_pretrained(T.folder(), dtype=torch.float32)
    t = T.trainer(Scripted([LIVE,LIVE,LIVE,DEAD,DEAD,DEAD], G), model_=m, per_device_train_batch_size=8,
        max_steps=3)
    got = T.spy(t); t.train()
    born = {}
    for b in got:
        pix = b['pixel_values'].split((b['image_grid_thw'][:,2]*2).tolist())
        for g in range(2):
            rows = [b['completion_ids'][g*G+i][b['completion_mask'][g*G+i].bool()].tolist() for i in range(G)]
            k = pix[g*G][0,0].item()
            assert [i for i in range(G) if not ((pix[g*G+i]==k).all() and len(pix[g*G+i])==4*k)]==[]
            if b['replayed'][g*G]: assert born[k]==rows
            else: born[k] = rows
    assert [b['replayed'].view(-1, G).all(1).tolist() for b in got]==[[False,False],[False,True],
        [True,True]] and [b for b in got if b['num_images']!=[1]*8]==[]
    # what the training forward was shown: the same pairs of answer and pixels, shuffled
    for b,(ids,pixels,grid) in zip(got, seen):
        n = b['completion_ids'].shape[1]
        pairs = lambda c, p, g: sorted((r.tolist(), x[0,0].item(), len(x))
            for r,x in zip(c, p.split((g[:,2]*2).tolist())))
        assert pairs(ids[:,-n:], pixels, grid)==pairs(b['completion_ids'], b['pixel_values'],
            b['image_grid_thw'])

def test_groups_on_several_processes_are_refused_at_construction_with_a_buffer_each(monkeypatch):
    c = T.config(per_device_train_batch_size=4)
    monkeypatch.setenv('WORLD_SIZE', '2'); monkeypatch.setattr(GRPOWithReplayBufferConfig, 'world_size', 2)
    c.per_device_train_batch_size = 2; c.replay_scope = 'local'
    with pytest.raises(ValueError, match='lie on several processes'): T.trainer(args=c)

def test_a_launcher_that_the_trainer_does_not_see_is_named(monkeypatch):
    c = T.config()
    monkeypatch.setenv('WORLD_SIZE', '2')
    with pytest.raises(ValueError, match='launcher started 2'): T.trainer(args=c)

def test_a_forward_pass_of_its_own_keeps_no_graph():
    from grpo_nb.on_trl.rows import compute_logps
    t = T.trainer(max_steps=1, per_device_train_batch_size=8)
    got = T.spy(t)
    t.train()
    assert not compute_logps(t, t.model, got[0]).requires_grad

def test_reference_logps_follow_a_reference_that_moves():
    kw = dict(beta=.1, sync_ref_model=True, ref_model_sync_steps=2, ref_model_mixup_alpha=.5,
        learning_rate=1e-2)
    def stale(t):   # at every generation, compare the batch with the reference as it is now
        old = t.update_with_replay_buffer
        def f(batch, inputs):
            out = old(batch, inputs)
            ids,mask = (torch.cat([out[f'prompt_{k}'], out[f'completion_{k}']], 1) for k in ('ids','mask'))
            with torch.no_grad():
                now = t._get_per_token_logps_and_entropies(t.ref_model, ids, mask,
                    out['completion_ids'].shape[1])[0]
            worst.append((now-out['ref_per_token_logps']).mul(out['completion_mask']).abs().max().item())
            n.append(out['replayed'].any().item())
            return out
        t.update_with_replay_buffer = f
    worst,n = [],[]
    run([LIVE,LIVE, *[LIVE,DEAD]*9], steps=8, trace=stale, **kw)
    assert sum(n)==7 and max(worst)<1e-5

# -- the ratio ------------------------------------------------------------------------------------
PLAN = [LIVE,LIVE, LIVE,DEAD, DEAD,LIVE, DEAD,DEAD]

# -- options of its own ---------------------------------------------------------------------------
def test_the_settings_of_the_buffer_and_the_tolerance_are_those_that_it_has():
    "What each of them does is tested where the buffer is"
    t,_ = run([[0.,0.,0.,9.], LIVE, DEAD, LIVE], B=1, steps=6, replay_buffer_size=3, replay_age_limit=4,
        replay_max_uses=2, replay_age_decay=2.)
    assert 0 not in {e.step for e in stored(t)} and max(e.uses for e in stored(t))<2 and len(stored(t))<=3
    t,got = run([LIVE, [.1,.1,.1,.1+1e-4]], B=1, steps=2, dead_tolerance=1e-3, seed=7,
        replay_same_prompt_first=True)
    assert got[1]['replayed'].all() and t.replay_buffer.seed==7 and t.buffer.same_prompt

@pytest.mark.parametrize('first', [False,True])
def test_groups_of_the_same_prompt_can_come_first(first):
    prompt = lambda b, g: b['prompt_ids'][g*G][b['prompt_mask'][g*G].bool()].tolist()
    own = []
    def trace(t):
        f = t.update_with_replay_buffer
        def g(batch, inputs):
            was = [prompt(batch, i) for i in range(4)]
            out = f(batch, inputs)
            own.extend(prompt(out, i)==was[i] for i in range(4) if out['replayed'][i*G])
            return out
        t.update_with_replay_buffer = g
    t,_ = run([LIVE]*4+[DEAD,LIVE,LIVE,LIVE]*9, B=4, steps=8, dataset=T.data(4),
        replay_same_prompt_first=first, trace=trace)
    assert len(own)==7 and all(own)==first

# -- the trainer as a maintainer reads it -----------------------------------------------------------
def test_a_registered_priority_decides_what_is_drawn():
    from grpo_nb.parts.registry import PRIORITIES, register
    asked = []
    @register(PRIORITIES, 'oldest')
    def oldest(entries, now):
        asked.append([(e.rewards, e.prompt_key, e.score>0, e.drawn) for e in entries])
        return [float(e is entries[0]) for e in entries]
    try: t,got = run([LIVE,LIVE,LIVE, DEAD,LIVE,LIVE], B=3, replay_priority='oldest')
    finally: del PRIORITIES['oldest']
    assert all(key is not None and taught and drawn==0 and max(r)>min(r)
        for seen in asked for r,key,taught,drawn in seen)
    assert asked and torch.equal(got[1]['completion_ids'][:G][got[1]['completion_mask'][:G].bool()],
        got[0]['completion_ids'][:G][got[0]['completion_mask'][:G].bool()])
    with pytest.raises(ValueError, match="no replay_priority 'oldest': choose one of recency, score"):
        T.config(replay_priority='oldest')

@pytest.mark.parametrize('kw', [{}, dict(num_iterations=2), dict(steps_per_generation=2,
    per_device_train_batch_size=G)])
def test_a_callback_gets_each_batch_once_and_whole(kw):
    from transformers import TrainerCallback
    seen = []
    class Look(TrainerCallback):
        def on_batch_end(self, args, state, control, batch, **kwargs): seen.append(batch)
    t = T.trainer(Scripted(PLAN, G), args=T.config(**(dict(per_device_train_batch_size=2*G, max_steps=4)|kw)),
        callbacks=[Look()])
    got = T.spy(t)
    t.train()
    assert len(seen)==len(got)>1 and [o for o in seen if not o.complete]==[]
    for e,b in zip(seen, got):
        assert torch.equal(e.trained.completion_ids, b['completion_ids'])
        came = [g for g in range(2) if b['replayed'][g*G]]
        assert e.drawn.slots==came and [e.dead[g] for g in came]==[True]*len(came)
        assert torch.equal(e.logps!=0, e.trained.loss_mask)   # every token that counts was seen

def test_a_callback_reads_the_same_fields_from_a_batch_of_either_trainer():
    from transformers import TrainerCallback
    from grpo_nb.parts.datasets import chain_sum
    from grpo_nb.tiny_qwen import load_model
    from grpo_nb.trainer import TrainConfig, train
    def fields_of(b):
        assert b.rewards_by_func.shape[:2]==(len(b.prompts), G) and len(b.dead)==len(b.prompts)
        assert len(b.completions)==len(b.prompts)*G and b.trained.advantages.numel()==len(b.completions)
        return b.sampled.completion_ids.shape[-1]<=6 and b.step>=0
    seen = []
    class OnTrl(TrainerCallback):
        def on_batch_end(self, args, state, control, batch, **kwargs): seen.append(fields_of(batch))
    class InTheCourse:
        def on_batch_end(self, state, batch): seen.append(fields_of(batch))
    T.trainer(Scripted(PLAN, G), args=T.config(per_device_train_batch_size=2*G, max_steps=2),
        callbacks=[OnTrl()]).train()
    model,tok = load_model('tiny')
    args = TrainConfig(num_generations=G, generation_batch_size=2*G, steps_per_generation=1, max_steps=2,
        max_completion_length=6, disable_tqdm=True)
    train(model, tok, chain_sum(20, seed=0), T.n_red, args, callbacks=[InTheCourse()], print_verdict=False)
    assert seen==[True]*4
