"Stored groups beside fresh ones: what is sampled, what is trained on, and what is counted, by value."
import itertools, math, struct, zlib
import pytest, torch
from hypothesis import Phase, given, settings, strategies as st
from trl import GRPOConfig, GRPOTrainer
import trl_tiny as T
from trl_tiny import LIVE, DEAD, Scripted
from grpo_nb.on_trl.rows import (
    TrlRows, check_columns, row_format)
from grpo_nb.on_trl.batch_record import is_text
from grpo_nb.parts.groups import pack_groups
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
        def forward(*args, **kwargs):   # TRL before 1.16 gives its loss no labels; sampling needs no gradient
            forwards.append(torch.is_grad_enabled() or kwargs.get('labels') is not None)
            return old(*args, **kwargs)
        t.model.forward = forward
    shown = dict(log_completions=True, num_completions_to_print=0)
    return *go(steps=4, watch=watch, learning_rate=1e-2, **shown),forwards

def test_the_loss_is_that_of_a_batch_that_was_wholly_sampled_and_no_forward_is_added(four):
    _,got,_,h,forwards = four
    assert sum(forwards)==3+4   # three that check the model before the first step, and one in each step
    for b,o in zip(got[1:], h[1:]):
        assert b['replayed'].any() and math.isfinite(o['loss']) and o['replay/ratio_max']!=1

@pytest.mark.parametrize('scope', ['local', 'sharded'])
def test_only_what_the_buffer_keeps_has_a_number_on_record(scope):
    "Of three living groups the best of two stay; each number on record is that of a stored group, once."
    from grpo_nb.run.reading import read_run
    t,_,_,h = go(k=0, steps=3, replay_buffer_size=2, replay_scope=scope, replay_priority='recency')
    rows = read_run(t.args.output_dir).rows
    kept = [[o['id'] for o in rows if o['step']==s and o['id'] is not None] for s in (1, 2, 3)]
    assert [len(o) for o in kept]==[2, 2, 2] and len({i for o in kept for i in o})==6
    assert sorted(kept[-1])==sorted(e.id for e in t.replay_buffer) and h[-1]['replay/buffer_size']==2

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

def test_the_table_holds_what_was_sampled_and_the_record_what_is_trained_on(four):
    from grpo_nb.run.reading import read_run
    t,got,*_ = four
    L,b = t._logs,got[-1]
    assert len(L['prompt'])==len(L['completion'])==len(L['advantages'])==G   # no row of an earlier batch
    assert list(L['advantages'])==pytest.approx(b['advantages'][:G].tolist())
    texts = t.processing_class.batch_decode([i[m.bool()]
        for i,m in zip(b['completion_ids'], b['completion_mask'])], skip_special_tokens=True)
    assert list(L['completion'])==texts[:G]
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

def test_a_prompt_keeps_its_key_however_wide_the_batch_is():
    def of(*rows):
        ids = torch.tensor(rows)
        return TrlRows(dict(completion_ids=ids, prompt_ids=ids, prompt_mask=(ids>0).long())).prompt_keys()
    a,b = of([0, 0, 5, 6], [0, 7, 5, 6])
    assert of([5, 6])==[a] and of([7, 5, 6])==[b] and a!=b and max(a, b)<2**31
    halved = zlib.crc32(struct.pack('<2i', 5, 6))//2   # a checkpoint of before holds it
    assert a==halved

def test_a_prompt_is_plain_without_pictures():
    message = dict(role='user', content='hi')
    assert is_text('hi') and is_text([message]) and is_text([message, message])
    picture = dict(message, content=[dict(type='image')])
    for o in (None, [message, picture], ['hi'], dict(message)): assert not is_text(o)


def test_values_that_are_equal_but_of_different_types_are_all_stored():
    ones = torch.ones(4, 2, dtype=torch.int64)
    b = dict(prompt_ids=ones, prompt_mask=ones, completion_ids=ones, completion_mask=ones,
        label=[1, True, 1., 1], answer=[7, '7', None, torch.tensor(7)], same=['7']*4)
    g, = packs_of(b, 4)
    assert [*map(type, g['label'])]==[int, bool, float, int] and g['answer'][:3]==[7, '7', None]
    assert torch.equal(g['answer'][3], torch.tensor(7)) and g['same']==['7']

# ---- drawn batches, beside plain lists: a row is a dict of lists without padding

def packs_of(batch, n=2):
    "The groups of `n` rows each, packed"
    rows = TrlRows.from_trl(batch)
    return pack_groups(rows, [slice(i, i+n) for i in range(0, len(rows), n)])

TOKENS = dict(old_per_token_logps=0., ref_per_token_logps=0., sampling_per_token_logps=0., tool_mask=1,
    importance_sampling_ratio=1., replay_old_logps=0.)   # what the padding holds
PAD = 3

@st.composite
def some_rows(draw, names, groups):
    "Rows of `groups` groups of two, with numbers that occur once"
    out,count = [],itertools.count(draw(st.integers(10, 99)))
    one = lambda: next(count)
    for g in range(groups):
        same = draw(st.booleans())
        for i in range(2):
            row = dict(prompt_ids=[one() for _ in range(draw(st.integers(1, 3)))])
            if i and same: row['prompt_ids'] = out[-1]['prompt_ids']
            row['completion_ids'] = [one() for _ in range(draw(st.integers(0, 4)))]
            n = len(row['completion_ids'])
            for k in TOKENS:
                if k in names: row[k] = [one()%2 if k=='tool_mask' else one()/8 for _ in range(n)]
            both = range(n+len(row['prompt_ids']))
            if 'token_type_ids' in names: row['token_type_ids'] = [one() for _ in both]
            row['advantages'],row['label'] = one()/8,[one(), one()]
            row['answer'] = f'{one()}' if not (i and draw(st.booleans())) else out[-1]['answer']
            out.append(row)
    return out

def as_batch(rows, P=1, C=1):
    "Rows as TRL lays them, `P` and `C` wide at least"
    P = max(P, *(len(o['prompt_ids']) for o in rows))
    C = max(C, *(len(o['completion_ids']) for o in rows))
    def left(x, fill): return [fill]*(P-len(x))+x
    def right(x, fill): return x+[fill]*(C-len(x))
    def column(f): return torch.tensor([f(o) for o in rows])
    b = dict(prompt_ids=column(lambda o: left(o['prompt_ids'], PAD)),
        prompt_mask=column(lambda o: left([1]*len(o['prompt_ids']), 0)),
        completion_ids=column(lambda o: right(o['completion_ids'], PAD)),
        completion_mask=column(lambda o: right([1]*len(o['completion_ids']), 0)),
        advantages=column(lambda o: o['advantages']), label=column(lambda o: o['label']),
        answer=[o['answer'] for o in rows], num_items_in_batch=torch.tensor(7.))
    for k,fill in TOKENS.items():
        if k in rows[0]: b[k] = column(lambda o: right(o[k], fill))
    if 'token_type_ids' in rows[0]:
        def both(o):
            p = len(o['prompt_ids'])
            return left(o['token_type_ids'][:p], 0)+right(o['token_type_ids'][p:], 0)
        b['token_type_ids'] = column(both)
    return b

def equal(a, b):
    "The same columns with the same values and kinds of number"
    assert {*a}=={*b}
    for k,v in b.items():
        if not torch.is_tensor(v): assert a[k]==v, k
        else: assert a[k].dtype==v.dtype and torch.equal(a[k], v), (k, a[k], v)

@st.composite
def exchanges(draw):
    "(rows of a batch, its widths, rows of stored groups, where they go, the multiple of widths)"
    more = draw(st.sets(st.sampled_from([*TOKENS, 'token_type_ids'])))
    lacks = draw(st.sets(st.sampled_from(['tool_mask','importance_sampling_ratio'])))   # 1 if nobody says
    if 'old_per_token_logps' in more:
        lacks |= draw(st.sets(st.sampled_from(['sampling_per_token_logps','replay_old_logps'])))
    rows,new = draw(some_rows(more, 3)),draw(some_rows(more-lacks, 2))
    where = draw(st.permutations(range(6)))[:4]
    return rows,draw(st.integers(1, 5)),draw(st.integers(1, 5)),new,where,draw(st.sampled_from([None, 1, 4]))

@settings(max_examples=60, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
@given(exchanges())
def test_groups_that_go_from_one_batch_into_another_are_those_rows(case):
    rows,P,C,new,where,multiple = case
    batch,donor = as_batch(rows, P, C),as_batch(new)
    before = {k:v.clone() if torch.is_tensor(v) else v[:] for k,v in batch.items()}
    packs = packs_of(donor)
    def kept(k): return [1+(new[i][k]!=new[i+1][k]) for i in (0, 2)]   # once, where both have the same
    assert [len(o.get('prompt_lens', [0])) for o in packs]==kept('prompt_ids')
    assert [len(o['answer']) for o in packs]==kept('answer')
    got = TrlRows.from_trl(batch, PAD).insert(torch.tensor(where), packs, multiple).to_trl()
    want = [dict(o) for o in rows]
    for i,o in zip(where, new):
        n = len(o['completion_ids'])
        usual = dict(tool_mask=[1]*n, importance_sampling_ratio=[1.]*n)
        for k in ('sampling_per_token_logps','replay_old_logps'): usual[k] = o.get('old_per_token_logps')
        want[i] = {k:o.get(k, usual.get(k)) for k in rows[0]}
    m = multiple or 1
    def wide(k, least): return max(least, *(len(o[k]) for o in rows), -(-max(len(o[k]) for o in new)//m)*m)
    wanted = as_batch(want, wide('prompt_ids', P), wide('completion_ids', C))
    equal(got, wanted)
    equal(batch, before)   # the batch itself is as it was

def test_a_group_that_lacks_what_the_batch_needs_is_refused_by_name():
    usual = dict(prompt_ids=[5], completion_ids=[6, 7], advantages=.5, label=[1, 2], answer='x')
    def row(**more): return usual|more
    batch,bare = as_batch([row(ref_per_token_logps=[-1., -2.])]*2),as_batch([row()]*2)
    with pytest.raises(ValueError, match="no 'ref_per_token_logps', which this run needs"):
        TrlRows.from_trl(batch).insert(torch.arange(2), packs_of(bare))
    assert 'ref_per_token_logps' not in TrlRows.from_trl(bare).insert(torch.arange(2), packs_of(batch)).data
    tools = as_batch([row(tool_mask=[0, 1])]*2)   # a batch without calls, and a group with some
    back = TrlRows.from_trl(as_batch([row()]*4)).insert(torch.tensor([1, 2]), packs_of(tools))
    assert back.tool_mask.tolist()==[[1, 1], [0, 1], [0, 1], [1, 1]]

@pytest.mark.parametrize('column,fits', [
    (torch.ones(2), True), (torch.ones(2, 1), True), (torch.ones(2, 4), True), (['a', 'b'], True),
    (torch.ones(2, 2), False), (torch.ones(2, 3), False), (torch.ones(2, 5), False)])
def test_a_new_column_is_taken_where_it_cannot_be_one_of_tokens(column, fits):
    "Prompts of 2, completions of 3, both of 5"
    batch = as_batch([dict(prompt_ids=[4, 5], completion_ids=[6, 7, 8], advantages=1., label=[1, 2, 3, 4],
        answer='x')]*2)|dict(new=column)
    if fits: return check_columns(TrlRows.from_trl(batch))
    with pytest.raises(ValueError, match="column 'new' has"): check_columns(TrlRows.from_trl(batch))
    check_columns(TrlRows.from_trl(batch, per_row=('new',)))
    check_columns(TrlRows.from_trl(dict(batch, image_sizes=batch.pop('new'))))   # pictures have no tokens

@pytest.mark.parametrize('name,shape', [('advantages', (2, 1)), ('old_per_token_logps', (2, 2)),
    ('old_per_token_logps', (2, 3, 1)), ('token_type_ids', (2, 3)), ('prompt_mask', (2, 3))])
def test_a_known_column_of_another_width_is_refused(name, shape):
    batch = as_batch([dict(prompt_ids=[4, 5], completion_ids=[6, 7, 8], advantages=1., label=[1]*4,
        answer='x', old_per_token_logps=[0.]*3, token_type_ids=[0]*5)]*2)
    check_columns(TrlRows.from_trl(batch))
    with pytest.raises(ValueError, match=f'column {name!r} has'):
        check_columns(TrlRows.from_trl(batch|{name:torch.ones(shape)}))

def test_what_travels_with_a_group_and_how_many_values_of_each():
    row = dict(prompt_ids=[4, 5], completion_ids=[6, 7, 8], advantages=1., label=[1, 2, 3, 4], answer='x',
        ref_per_token_logps=[0.]*3, tool_mask=[1]*3)
    batch = as_batch([row]*2)
    del batch['answer']
    batch |= dict(importance_sampling_ratio=torch.ones(2, 1), number=torch.ones(2), table=torch.ones(2, 2, 3),
        count=torch.ones(2).long(), rows=torch.ones(2, 2, 3).long())
    of = lambda b, *own: row_format(TrlRows.from_trl(b, per_row=own), 2)
    whole = dict(completion_ids=None, old_per_token_logps=None, ref_per_token_logps=None, tool_mask=None,
        importance_sampling_ratio=1, advantages=0, rewards=2, label=-8, number=0, count=-1, table=6, rows=-12)
    assert of(batch, 'importance_sampling_ratio', 'elsewhere')==whole
    with pytest.raises(ValueError, match="'answer' is not a tensor"): of(batch|dict(answer=['x', 'y']))

@settings(max_examples=30, derandomize=True, deadline=None, database=None, phases=[Phase.generate])
@given(some_rows({'tool_mask','old_per_token_logps'}, 3), st.lists(st.integers(-6, 5), max_size=5))
def test_rows_are_picked_and_batches_come_back_as_they_were(rows, at):
    batch = as_batch(rows)
    x = TrlRows.from_trl(batch, PAD)
    equal(x.to_trl(), batch)
    aside = [k for k in batch if k!='num_items_in_batch']
    def picked(rows): return {k:torch.stack([batch[k][i] for i in rows]) if torch.is_tensor(batch[k])
        else [batch[k][i] for i in rows] for k in aside}
    if at: equal(x[at].data, picked(at))
    equal(x[1:5].data, picked(range(1, 5)))
    def wide(o): return [v==1 for v in o]+[False]*(x.loss_mask.shape[1]-len(o))
    assert x.loss_mask.tolist()==[wide(o['tool_mask']) for o in rows]
    keys = x.prompt_keys()
    assert [a==b for a in keys for b in keys]==[a['prompt_ids']==b['prompt_ids'] for a in rows for b in rows]
    assert x.prompt_keys(2)==keys[::2] and all(0<=k<2**31 for k in keys)
    with pytest.raises(AttributeError, match='no column `images`'): x.images

WRITES_OFF = '''
def young_and_fair(entries, now):
    "Groups of which three steps ago half was right are gone."
    return [float(now-e.step<3 or sum(e.rewards)/len(e.rewards)!=.5) for e in entries]
'''

def test_a_priority_of_ones_own_evicts_by_reward_and_age_and_the_record_says_when(tmp_path):
    from grpo_nb.parts.registry import PRIORITIES
    from grpo_nb.run.reading import read_run
    from grpo_nb.see.view import stored_groups
    (tmp_path/'mine.py').write_text(WRITES_OFF)
    plan = [LIVE, [0.,0.,0.,1.], DEAD]   # of each batch's three groups one is half right, one a quarter
    t = T.trainer(Scripted(plan*6, G), per_device_train_batch_size=3*G, max_steps=6,
        replay_priority=f'{tmp_path}/mine.py:young_and_fair', output_dir=str(tmp_path/'run'))
    del PRIORITIES[f'{tmp_path}/mine.py:young_and_fair']   # no later test knows it
    t.train()
    rows = read_run(tmp_path/'run').rows
    born = {o['id']:(o['step'], sum(o['rewards'])/G) for o in rows if o['id'] is not None}
    gone = {i:o['step'] for o in rows for i in o.get('evicted') or ()}
    assert gone=={i:step+3 for i,(step,r) in born.items() if r==.5 and step+3<=6} and len(gone)==3
    assert {e.id for e in t.replay_buffer}==born.keys()-gone.keys()
    by_step = {s:[o for o in rows if o['step']==s] for s in range(1, 7)}
    shown,_ = stored_groups(by_step, {s:s-1 for s in by_step})
    assert {o['id']:o['out'] for o in shown}=={i:gone[i]-1 if i in gone else None for i in born}
