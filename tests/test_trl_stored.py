"Stored groups beside fresh ones: what is sampled, what is trained on, and what is counted, by value."
import math
import pytest, torch
from trl import GRPOConfig, GRPOTrainer
import trl_tiny as T
from trl_tiny import LIVE, DEAD, Scripted
from grpo_nb.on_trl.rows import TrlRows, append_blank_rows
from grpo_nb.on_trl.table import CompletionsTable, is_text
from grpo_nb.parts.groups import ReplayCounts
from trl_resumed import buffers_equal, logs, make
from weekly import most_weekly

torch.set_num_threads(1)
G = 4

class Spread(Scripted):
    """A living group each time, unless its number is in `dead`; it remembers the prompts that it was
    asked about."""

    def __init__(self, dead=()): super().__init__([LIVE], G); self.dead,self.asked = dead,[]
    def __call__(self, completions, prompts=None, **kw):
        out = []
        for g in range(len(completions)//G):
            self.asked.append(prompts[g*G])
            assert len(set(prompts[g*G:g*G+G]))==1
            r = DEAD if self.i in self.dead else [float(self.i%3), 0., 1., 2.]
            out += r
            self.i += 1
        self.seen.append(out)
        return out

def go(k=2, B=3, steps=5, dead=(), watch=None, **kw):
    reward = Spread(dead)
    t = T.trainer(reward, per_device_train_batch_size=B*G, max_steps=steps, replay_stored_per_fresh=k, **kw)
    got = T.spy(t)
    if watch: watch(t)
    t.train()
    return t,got,reward,[o for o in t.state.log_history if 'loss' in o]

def groups(b): return b['replayed'].view(-1, G).all(1).tolist()

def test_a_young_buffer_gives_what_it_has_and_the_rest_is_sampled():
    t,got,reward,h = go()
    assert [len(o)//G for o in reward.seen]==[3,1,1,1,1]
    assert [groups(b) for b in got]==[[False]*3]+[[False,True,True]]*4
    assert [o.get('replay/stored', 0) for o in h]==[0,2,2,2,2] and [o['replay/dead'] for o in h]==[0]*5
    t,got,reward,h = go(k=5, B=6, steps=3)      # five of six, from a buffer of six, seven, eight
    assert [len(o)//G for o in reward.seen]==[6,1,1]
    t,got,reward,h = go(B=3, steps=3, replay_buffer_size=1)
    assert [len(o)//G for o in reward.seen]==[3,2,2] and [sum(groups(b)) for b in got]==[0,1,1]

@pytest.fixture(scope='module')
def four():
    "A run of four steps with two stored groups beside each fresh one, and which forwards were of the loss."
    forwards = []
    def watch(t):
        old = t.model.forward
        t.model.forward = lambda *a, **k: forwards.append('labels' in k
            and k['labels'] is not None) or old(*a, **k)
    shown = dict(log_completions=True, num_completions_to_print=0)
    return *go(steps=4, watch=watch, learning_rate=1e-2, **shown),forwards

def test_a_stored_group_comes_back_token_for_token_with_its_advantages_and_log_probs(four):
    born,(_,got,*_) = {},four
    def row(b, i):
        return (tuple(b['completion_ids'][i][b['completion_mask'][i].bool()].tolist()),
            round(b['advantages'][i].item(), 5))
    for b in got:
        for g,old in enumerate(groups(b)):
            group = tuple(row(b, g*G+i) for i in range(G))
            if old: assert group in born
            born[group] = True
        assert b['num_items_in_batch']==b['completion_mask'].sum()
        assert b['replay_dead'].sum()==0

def test_every_count_is_of_what_was_sampled_or_of_what_is_trained_on(four):
    _,got,reward,h,_ = four
    sampled = 0
    for b,o,r in zip(got, h, reward.seen):
        fresh = ~b['replayed']
        sampled += int(b['prompt_mask'][fresh].sum()+b['completion_mask'][fresh].sum())
        # TRL's count: tokens that were sampled
        assert o['num_tokens']==sampled
        assert abs(o['completions/mean_length']-b['completion_mask'][fresh].sum(1).float().mean())<1e-5
        assert abs(o['reward']-sum(r)/len(r))<1e-6
        assert abs(o['reward_std']-torch.tensor(r).view(-1, G).std(1).mean())<1e-6
        assert o['replay/live_before']==o['replay/live_after']==1
    assert [o['replay/buffer_size'] for o in h]==[3,4,5,6]

def test_the_loss_is_that_of_a_batch_that_was_wholly_sampled_and_no_forward_is_added(four):
    _,got,_,h,forwards = four
    assert sum(forwards)==4                                               # one training forward a step
    for b,o in zip(got[1:], h[1:]):
        assert b['replayed'].any() and math.isfinite(o['loss']) and o['replay/ratio_max']!=1

def test_dead_fresh_groups_are_replaced_as_before():
    t,got,_,h = go(dead=(3,5), steps=4)
    assert [groups(b) for b in got]==[[False]*3, [True]*3, [False,True,True], [True]*3]
    assert [(o['replay/dead'], o['replay/replaced'], o.get('replay/stored', 0)) for o in h]==[(0,0,0),(1,1,2),
        (0,0,2),(1,1,2)]
    assert h[1]['replay/live_before']==0 and h[1]['replay/live_after']==1

@pytest.mark.parametrize('scope', ['local', 'sharded'])
def test_a_group_that_is_too_old_is_not_counted_on(scope):
    "At most a step old: after three groups come one, of which the next batch takes one and samples two."
    t,got,reward,_ = go(steps=6, replay_age_limit=1, replay_scope=scope)
    assert [len(o)//G for o in reward.seen]==[3,1,2,1,2,1]
    assert [sum(groups(b)) for b in got]==[0,2,1,2,1,2]
    assert all(b['completion_mask'].any(1).all() for b in got)

@pytest.mark.parametrize('scope', ['local', 'sharded'])
def test_only_what_the_buffer_keeps_has_a_number_on_record(scope):
    "Of three living groups the best of two stay; each number on record is that of a stored group, once."
    from grpo_nb.run.reading import read_run
    t,_,_,h = go(k=0, steps=3, replay_buffer_size=2, replay_scope=scope, replay_priority='recency')
    rows = read_run(t.args.output_dir).rows
    kept = [[o['id'] for o in rows if o['step']==s and o['id'] is not None] for s in (1, 2, 3)]
    assert [len(o) for o in kept]==[2, 2, 2] and len({i for o in kept for i in o})==6
    assert sorted(kept[-1])==sorted(e.id for e in t.replay_buffer) and h[-1]['replay/buffer_size']==2

def test_a_place_without_a_prompt_of_its_own_takes_any_group():
    "`replay_same_prompt_first` is for dead groups: where none is dead it changes nothing."
    def run(first):
        _,got,reward,_ = go(steps=10, dataset=T.data(4), replay_same_prompt_first=first)
        return [b['completion_ids'].tolist() for b in got],reward.asked
    (a,prompts),(b,_) = run(False),run(True)
    assert a==b and len(set(prompts))==4

@pytest.mark.parametrize('shuffle', most_weekly([True, False]))
def test_no_prompt_is_lost_and_the_order_is_that_of_trl(shuffle):
    reward = Spread()
    t = T.trainer(reward, per_device_train_batch_size=3*G, max_steps=26, replay_stored_per_fresh=2,
        shuffle_dataset=shuffle)
    t.train()
    plain = Spread()
    T.trainer(plain, cls=GRPOTrainer, args=T.config(GRPOConfig, per_device_train_batch_size=G, max_steps=26,
        shuffle_dataset=shuffle)).train()
    # one and a half epochs of 17 prompts; the buffer is empty at first, so the first is sampled three times
    assert len(plain.asked)==26 and reward.asked==plain.asked[:1]*2+plain.asked
    assert len(set(plain.asked[:17]))==17

def test_the_places_that_a_young_buffer_cannot_fill_go_to_the_same_prompts_in_turn():
    reward = Spread()
    t = T.trainer(reward, per_device_train_batch_size=6*G, max_steps=2, replay_stored_per_fresh=2,
        replay_buffer_size=3)
    t.train()
    a,b,c,d = reward.asked[0],reward.asked[1],reward.asked[6],reward.asked[7]
    assert reward.asked==[a,b]*3+[c,d,c] and len({a,b,c,d})==4

@pytest.mark.parametrize('k', [0, 2])
def test_an_epoch_shows_each_prompt_once(k):
    reward = Spread()
    t = T.trainer(reward, per_device_train_batch_size=3*G, max_steps=-1, num_train_epochs=2,
        replay_stored_per_fresh=k, dataset=T.data(15))
    t.train()
    each = {p:reward.asked.count(p) for p in reward.asked}
    if k: each[reward.asked[0]] -= 2   # the empty buffer's places
    assert set(each)==set(T.PROMPTS[:15]) and set(each.values())=={2}
    assert t.state.global_step==(30 if k else 10)
    assert [o['epoch'] for o in t.state.log_history if 'loss' in o][-1]==2

class Backwards(torch.utils.data.Sampler):
    "Prompts from the last to the first, after the pattern of TRL's."
    def __init__(self, data, *how):
        self.n = len(data)
        self.G,self.batch,self.repeat = how
    def __len__(self): return self.n//self.batch*self.batch*self.repeat*self.G
    def __iter__(self):
        order = list(range(self.n))[::-1]
        for at in range(0, self.n-self.batch+1, self.batch):
            for _ in range(self.repeat):
                for i in order[at:at+self.batch]:
                    yield from [i]*self.G

@pytest.mark.parametrize('k', [0, 2])
def test_the_sampler_of_a_subclass_decides_the_order(k):
    from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferTrainer
    class Curriculum(GRPOWithReplayBufferTrainer):
        def _get_train_sampler(self, dataset=None):
            a = self.args
            return Backwards(self.train_dataset, self.num_generations,
                a.generation_batch_size//a.num_generations, a.steps_per_generation*self.num_iterations)
    reward = Spread()
    T.trainer(reward, cls=Curriculum, args=T.config(per_device_train_batch_size=3*G, max_steps=4,
        num_iterations=2, replay_stored_per_fresh=k)).train()
    order = T.PROMPTS[::-1]
    assert reward.asked==(order[:1]*2+order[:2] if k else order[:6])

def test_a_stream_gives_each_prompt_once_and_goes_on(tmp_path):
    def go(folder, n, resume=None):
        reward = Spread()
        args = T.config(output_dir=str(tmp_path/folder), per_device_train_batch_size=3*G, max_steps=n,
            replay_stored_per_fresh=2, shuffle_dataset=False, save_strategy='steps', save_steps=3)
        t = T.trainer(reward, args=args, dataset=T.data().to_iterable_dataset())
        t.train(resume_from_checkpoint=resume)
        return reward.asked
    assert go('a', 6)==T.PROMPTS[:1]*2+T.PROMPTS[:6]
    go('b', 3)
    assert go('b', 6, True)==T.PROMPTS[3:6]

def test_a_data_set_may_be_as_small_as_what_is_sampled():
    reward = Spread()
    T.trainer(reward, per_device_train_batch_size=6*G, max_steps=3, replay_stored_per_fresh=2,
        dataset=T.data(2)).train()
    assert set(reward.asked)==set(T.PROMPTS[:2])
    with pytest.raises(ValueError, match='1 rows but 2 prompts a batch'):
        T.trainer(reward, per_device_train_batch_size=6*G, replay_stored_per_fresh=2, dataset=T.data(1))

def test_the_table_and_the_record_hold_a_row_for_each_row_that_is_trained_on(four):
    from grpo_nb.run.reading import read_run
    t,got,*_ = four
    L,b = t._logs,got[-1]
    assert len(L['prompt'])==len(L['completion'])==len(L['advantages'])==3*G
    assert list(L['extra']['replayed'])[-3*G:]==b['replayed'].tolist()
    assert [round(x, 4) for x in list(L['advantages'])[-3*G:]]==[round(x, 4)
        for x in b['advantages'].tolist()]
    texts = t.processing_class.batch_decode([i[m.bool()]
        for i,m in zip(b['completion_ids'], b['completion_mask'])], skip_special_tokens=True)
    assert list(L['completion'])[-3*G:]==texts
    run = read_run(t.args.output_dir)
    assert [o['outcome'] for o in run.rows]==['trained']*3+['trained','stored','stored']*3
    born = {o['id']:o for o in run.rows if o['id'] is not None}
    for o in run.rows:
        if o['outcome']!='stored': continue
        was = born[o['replacement']['id']]
        assert [o[k] for k in ('prompt','completions','rewards','dead')]==[was[k]
            for k in ('prompt','completions','rewards','dead')]
        assert (o['replacement']['completions']==was['completions'] and o['n_tokens']==was['n_tokens']
            and o['ratio_hist'])

MATRIX = {'between two batches': dict(at=3), 'mid-batch': dict(at=3, num_iterations=2),
    'slices': dict(at=5, steps_per_generation=3, per_device_train_batch_size=G),
    'second epoch': dict(at=4, dataset=7)}
@pytest.mark.parametrize('name', most_weekly(MATRIX, ('mid-batch','second epoch')))
def test_it_resumes_to_the_bit(name, tmp_path):
    import shutil
    kw = dict(MATRIX[name])
    at,n = kw.pop('at'),kw.pop('dataset', None)
    if n: kw['dataset'] = T.data(n)
    own = dict(per_device_train_batch_size=3*G, replay_stored_per_fresh=2)|kw
    whole = make(tmp_path/'a', 7, **own); whole.train()
    shutil.copytree(tmp_path/'a'/f'checkpoint-{at}', tmp_path/'b'/f'checkpoint-{at}')
    part = make(tmp_path/'b', 7, **own); torch.manual_seed(99); part.train(resume_from_checkpoint=True)
    assert T.same(T.weights(whole), T.weights(part)) and buffers_equal(whole.replay_buffer,
        part.replay_buffer) and logs(whole)==logs(part)

# ---- pieces of a batch, by hand

def test_counts_of_two_processes_are_put_together():
    a = ReplayCounts(fresh=4, dead=3, replaced=1, unreplaced=2, live=4, trained=6, unique_prompts=3,
        stored=2, drawn=3, ages=9, uses=5, oldest=6)
    b = ReplayCounts(fresh=4, dead=1, replaced=1, unreplaced=0, live=5, trained=6, unique_prompts=5,
        stored=1, drawn=2, ages=6, uses=3, oldest=4)
    got = (a+b).metrics()
    assert got==pytest.approx(dict(dead=4, replaced=2, unreplaced=2, stored=3, live_before=.5,
        live_after=1-3/12, age_mean=15/5, age_max=6, uses_mean=8/5, unique_prompts=8))

def test_a_prompt_keeps_its_key_however_wide_the_batch_is():
    def of(*rows):
        ids = torch.tensor(rows)
        return TrlRows(dict(completion_ids=ids, prompt_ids=ids, prompt_mask=(ids>0).long())).prompt_keys()
    a,b = of([0, 0, 5, 6], [0, 7, 5, 6])
    assert of([5, 6])==[a] and of([7, 5, 6])==[b] and a!=b and max(a, b)<2**31

def test_a_place_for_a_stored_group_counts_for_nothing_until_it_is_filled():
    batch = dict(completion_ids=torch.tensor([[3, 4],[5, 6]]), completion_mask=torch.ones(2, 2).long(),
        advantages=torch.tensor([1.,-1.]), prompt=['p','q'], num_items_in_batch=torch.tensor(4),
        prompt_ids=torch.ones(2, 1).long(), prompt_mask=torch.ones(2, 1).long())
    got = append_blank_rows(TrlRows.from_trl(batch), 3).to_trl()
    assert got['completion_mask'].tolist()==[[1,1],[1,1],[0,0]] and got['advantages'].tolist()==[1.,-1.,0.]
    assert got['completion_ids'].tolist()==[[3,4],[5,6],[3,4]] and got['prompt']==['p','q','p']
    assert got['num_items_in_batch']==4 and batch['completion_mask'].all()

def table(n, own):
    "TRL's table of `n` rows named by their number, and a column that a reward logged in the last `own`"
    rows = [float(i) for i in range(n)]
    return CompletionsTable(dict(prompt=[f'p{i}' for i in range(n)], completion=[f'c{i}' for i in range(n)],
        advantages=rows[:], rewards=dict(f=rows[:]), extra=dict(note=rows[n-own:], replayed=[])), ['f'])

def test_a_prompt_is_plain_without_pictures():
    said = dict(role='user', content='hi')
    assert is_text('hi') and is_text([said]) and is_text([said, said])
    picture = dict(said, content=[dict(type='image')])
    for o in (None, [said, picture], ['hi'], dict(said)): assert not is_text(o)

def test_places_that_were_not_sampled_show_the_first_row_of_their_process_without_reward():
    t = table(5, 5)   # a row of an earlier batch, then two processes that sampled two each
    t.widen(2, 3, 2)
    assert t.logs['prompt']==['p0','p1','p2','p1','p3','p4','p3']
    assert t.logs['completion']==['c0','c1','c2','c1','c3','c4','c3']
    assert t.logs['advantages']==[0., 1., 2., 0., 3., 4., 0.]
    assert str(t.logs['rewards']['f'])=='[0.0, 1.0, 2.0, nan, 3.0, 4.0, nan]'
    assert t.logs['extra']['note']==[0., 1., 2., '', 3., 4., ''] and t.logs['extra']['replayed']==[]

def test_what_rewards_logged_of_a_row_goes_with_it_where_another_comes_in():
    for own,note in ((3, [None, 1., None]), (2, [1., None])):   # a column may be younger than the table
        t = table(3, own)
        t.replace([(0, 'new', 'done', .5, [2.]), (2, 'late', 'end', -.5, [3.])], 3)
        assert t.logs['extra']['note']==note and t.logs['extra']['replayed']==[True, False, True]
        assert t.logs['prompt']==['new','p1','late'] and t.logs['completion']==['done','c1','end']
        assert t.logs['advantages']==[.5, 1., -.5] and t.logs['rewards']['f']==[2., 1., 3.]

@pytest.mark.parametrize('kw,says', [(dict(B=4), 'needs a multiple of 3 groups, 12 rows'),
    (dict(replay_buffer_size=0), 'replay_buffer_size` above 0'), (dict(k=-1), '0 or more'),
    (dict(k=1.5), 'whole number')])
def test_what_cannot_be_is_refused(kw, says):
    with pytest.raises(ValueError, match=says): go(**kw)

def test_values_that_are_equal_but_of_different_types_are_all_stored():
    from grpo_nb.on_trl.rows import extract_group
    ones = torch.ones(4, 2, dtype=torch.int64)
    b = dict(prompt_ids=ones, prompt_mask=ones, completion_ids=ones, completion_mask=ones,
        label=[1, True, 1., 1], answer=[7, '7', None, torch.tensor(7)], same=['7']*4)
    g = extract_group(b, slice(0, 4))
    assert [*map(type, g['label'])]==[int, bool, float, int] and g['answer'][:3]==[7, '7', None]
    assert torch.equal(g['answer'][3], torch.tensor(7)) and g['same']==['7']
