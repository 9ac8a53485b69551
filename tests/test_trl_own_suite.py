"What TRL's own tests ask of the replay trainer and of `GRPOTrainer`, asked of ours: on batches that a trainer trains on, where the reference's tests hand squares to its inner methods."
import pytest, torch
from datasets import DatasetDict
from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferTrainer, ReplayBuffer
import trl_tiny as T
from trl_tiny import Scripted

torch.set_num_threads(1)
G = 2
LIVE,ALSO,DEAD = [0.,1.],[1.,5.],[1.,1.]

# -- the buffer -------------------------------------------------------------------------------------
def stored(scores, size=5):
    b = ReplayBuffer(max_size=size)
    b.add(scores, [dict(id=i) for i in range(1, len(scores)+1)])
    return b

@pytest.mark.parametrize('scores,lowest', [([.5,.8,.3,.9,.7], .3), ([.5,.8,.3,.9,.7,.6,.4], .5)])
def test_the_five_best_are_kept(scores, lowest):
    b = stored(scores)
    assert len(b)==5 and sorted(e.score for e in b)==sorted(scores)[-5:] and min(e.score for e in b)==lowest

def test_three_different_ones_are_drawn():
    b = stored([.5,.8,.3,.9,.7])
    got = b.sample(3)
    assert len(got)==3 and len({o['id'] for o in got})==3 and all(o in [e.data for e in b] for o in got)

# -- what becomes of a batch ------------------------------------------------------------------------
SHORT,OTHER = [[5,6,1],[7,8,1]],[[9,10,1],[11,12,1]]   # completions of a group, 1 ends them
LONG = [[9,10,11,12,1],[13,14,15,16,1]]
FIRST = [([20,21], SHORT),([22,23], OTHER)]   # (prompt, completions) of each group

def two_batches(second, rewards, first=FIRST, **kw):
    "Train on the two living groups `first`, then on `second` with `rewards`; the trainer, both batches and the buffer's size after each."
    plan = iter([first,second])
    def rollout(prompts, trainer):
        batch = next(plan)
        return dict(prompt_ids=[p for p,cs in batch for _ in cs], completion_ids=[c for _,cs in batch for c in cs], logprobs=[[-1.]*len(c) for _,cs in batch for c in cs])
    t = T.trainer(Scripted([LIVE,ALSO,*rewards], G), num_generations=G, per_device_train_batch_size=2*G, max_steps=2, max_completion_length=8, rollout_func=rollout, replay_buffer_size=5, **kw)
    got,sizes,old = T.spy(t),[],t.training_step
    def step(*a, **k):
        out = old(*a, **k)
        sizes.append(len(t.replay_buffer))
        return out
    t.training_step = step
    t.train()
    return t,got,sizes

def groups(b, n=2):
    "(prompt, completions) of each group without padding."
    ids = lambda k,i: b[f'{k}_ids'][i][b[f'{k}_mask'][i].bool()].tolist()
    return [(ids('prompt', g*G), [ids('completion', g*G+i) for i in range(G)]) for g in range(n)]

NEW = [([13,14], [[15,16,1],[17,18,1]]),([13,15], [[16,15,1],[18,17,1]])]

@pytest.fixture(autouse=True)
def quiet(monkeypatch): monkeypatch.setenv('TRL_EXPERIMENTAL_SILENCE', '1')

def test_without_contrast_every_group_is_replaced_and_nothing_is_stored():
    _,got,sizes = two_batches(NEW, [DEAD,DEAD])
    assert sizes==[2,2] and sorted(groups(got[1]))==sorted(FIRST)
    assert (got[1]['advantages'].view(-1, G).abs()>.1).all()

def test_with_contrast_every_group_is_stored_and_nothing_is_replaced():
    _,got,sizes = two_batches(NEW, [LIVE,ALSO])
    assert sizes==[2,4] and groups(got[1])==NEW

@pytest.mark.parametrize('dead', [0,1])
def test_in_a_mixed_batch_one_group_is_replaced_and_the_other_stored(dead):
    _,got,sizes = two_batches(NEW, [DEAD,LIVE] if dead==0 else [LIVE,DEAD])
    now = groups(got[1])
    assert sizes==[2,3] and now[dead] in FIRST and now[1-dead]==NEW[1-dead]

def test_a_shorter_group_takes_the_width_of_the_batch_and_is_padded_outside():
    t,got,sizes = two_batches([([13], LONG),([13,14,15], LONG)], [DEAD,LIVE])
    b = got[1]
    assert b['prompt_ids'].shape[1]==3 and b['completion_ids'].shape[1]==5 and sizes==[2,3]
    assert groups(b)[0] in FIRST and b['prompt_mask'][:G].tolist()==[[0,1,1]]*G and b['completion_mask'][:G].tolist()==[[1,1,1,0,0]]*G
    assert ([13,14,15], LONG) in [(e.data['prompt_ids'].tolist(), [c.tolist() for c in e.data['completion_ids'].split(e.data['lens'].tolist())]) for e in t.replay_buffer]

def test_a_longer_group_widens_the_batch():
    _,got,_ = two_batches(NEW, [DEAD,LIVE], first=[([20,21,22,23], LONG),([22,23,20,21], LONG)])
    b = got[1]
    assert b['prompt_ids'].shape[1]==4 and b['completion_ids'].shape[1]==5
    assert groups(b)[1]==NEW[1] and b['prompt_mask'][G:].tolist()==[[0,0,1,1]]*G and (b['completion_ids'][G:, 3:]==T.tokenizer().pad_token_id).all()

# -- the trainer ------------------------------------------------------------------------------------
@pytest.mark.parametrize('kind', ['none','dataset','dataset_dict','dict'])
@pytest.mark.parametrize('scale', ['batch','group'])
def test_evaluation_sets_are_taken_in_every_form(kind, scale):
    ds = T.data(4)
    ev = dict(none=None, dataset=ds, dataset_dict=DatasetDict(a=ds, b=ds), dict=dict(a=ds, b=ds))[kind]
    t = T.trainer(eval_dataset=ev, scale_rewards=scale)
    if kind=='none': assert t.eval_dataset is None
    elif kind=='dataset': assert t.eval_dataset is ev
    else: assert set(t.eval_dataset)=={'a','b'}

def test_a_trainer_without_settings_takes_our_defaults(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('ACCELERATE_USE_CPU', 'true')
    import trl.trainer.base_config as C
    post = C._BaseConfig.__post_init__
    def on_cpu(self):
        self.use_cpu = True
        post(self)
    monkeypatch.setattr(C._BaseConfig, '__post_init__', on_cpu)
    t = GRPOWithReplayBufferTrainer(model=T.folder(), reward_funcs=T.n_red, train_dataset=T.data(), processing_class=T.tokenizer())
    assert t.args.replay_buffer_size==64 and t.replaying
