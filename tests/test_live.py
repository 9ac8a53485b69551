"""The live page in a real Chromium: its values beside torch's, what it draws while it trains, who can use it.
Each value is also seen to be far off when a line of the page is wrong."""

import base64, itertools, re, shutil
from contextlib import contextmanager
import numpy as np
import pytest
import torch
from scipy import stats
from browsing import CONTRAST, RULES, axe_errors
from grpo_nb.advantages import group_advantages
from grpo_nb.evaluation import decode_completions, sample_completions
from grpo_nb.see.live import NpmError, serve_live, write_live
from grpo_nb.parts.datasets import chain_sum, spell_backward
from grpo_nb.parts.groups import group_scores, lr_factor
from grpo_nb.replay import ReplayBuffer
from grpo_nb.tasks import accuracy_reward, format_reward
from grpo_nb.tiny_qwen import load_model
from grpo_nb.parts.files import page_table

@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    d = tmp_path_factory.mktemp('live')
    try: write_live(d)
    except NpmError as e: pytest.skip(str(e))
    return d

@contextmanager
def served(folder):
    server,address = serve_live(folder)
    yield address
    server.shutdown()
    server.server_close()

def _changed(folder, to, **changes):
    "A copy of the page with some words of its modules changed: {module: [(words, others), ...]}"
    shutil.copytree(folder, to)
    for name,pairs in changes.items():
        text = (to/f'{name}.js').read_text(encoding='utf-8')
        for old,new in pairs:
            assert text.count(old)==1
            text = text.replace(old, new)
        (to/f'{name}.js').write_text(text, encoding='utf-8')
    return to

FEW = 'UNSEEN = 192, CHUNK = 96','UNSEEN = 8, CHUNK = 4'   # to measure 192 problems takes as long as a batch

@pytest.fixture(scope='module')
def address(folder, tmp_path_factory):
    with served(_changed(folder, tmp_path_factory.mktemp('few')/'live', tasks=[FEW])) as at: yield at

@pytest.fixture(scope='module')
def small(folder, tmp_path_factory):
    "A page whose batches are half as large"
    batch = 'B: 16, G: 8, T: 48, minis: 4','B: 8, G: 8, T: 48, minis: 1'
    with served(_changed(folder, tmp_path_factory.mktemp('small')/'live', tasks=[FEW, batch])) as at:
        yield at

@pytest.fixture(scope='module')
def whole(folder):
    "The page as it is"
    with served(folder) as at: yield at

@contextmanager
def _opener(browser, address):
    "Open the page; what it asks for, its errors and its words in the console are in `said`"
    contexts = []
    def open(at=''):
        ctx = browser.new_context(viewport=dict(width=1280, height=800))
        contexts.append(ctx)
        pg = ctx.new_page()
        pg.said = []
        at = at if at.startswith('http') else address+at
        home = re.match('http://[^/]+/', at)[0]
        pg.on('request', lambda r: r.url.startswith((home, 'data:')) or pg.said.append(r.url))
        pg.on('pageerror', lambda e: pg.said.append(str(e)))
        pg.on('console', lambda m: pg.said.append(m.text))
        pg.goto(at)
        return pg
    yield open
    for ctx in contexts: ctx.close()

@pytest.fixture
def opened(browser, address):
    with _opener(browser, address) as open: yield open

@pytest.fixture(scope='module')
def trained(browser, address):
    "The page after two batches or three, standing still"
    with _opener(browser, address) as open:
        pg = open()
        pg.locator('#train:not([disabled])').wait_for()
        pg.click('#train')
        _batches(pg, 2)
        pg.click('#train')
        yield pg

# ---- torch's values. The page would train beside them, so its modules are asked from a file of its folder

ALONE = 'tokenizer.json'

B,G,T = 8,8,48

def _rows(x): return x.flatten(0, 1)

def _judged(task, rows, texts):
    return accuracy_reward(None, texts, **{k:[o[k] for o in rows for _ in range(G)]
        for k in ('answer','task','entry')})

@pytest.fixture(scope='module')
def values():
    "Answers of the shipped model to held-out problems, and everything torch makes of them"
    model,tok = load_model('tiny')
    out = {}
    for task,rows in dict(sums=chain_sum(B, 0, 'test'), words=spell_backward(B, 0, 'test', min_word_len=6,
            max_word_len=8)).items():
        rows = list(rows)
        b = sample_completions(model, tok, rows, G, T, torch.Generator().manual_seed(0))
        texts = decode_completions(tok, b)
        r = torch.tensor(_judged(task, rows, texts)).view(B, G)
        A = group_advantages(r)
        out[task] = dict(texts=texts, rewards=r.tolist(), advantages=A.tolist(),
            scores=group_scores(A, r).tolist(),
            prompts=[q[k].tolist() for q,k in zip(b.prompt_ids, b.prompt_mask)],
            ids=[o[n].tolist() for o,n in zip(*map(_rows, (b.completion_ids, b.completion_mask)))])
    return out

KIT = """async given => {
    const [policy, text, replay] = await Promise.all(
        ['policy', 'text', 'replay'].map(o => import(`./${o}.js`)))
    const get = async (name, how = 'json') => (await fetch(name))[how]()
    await policy.ready()
    const weights = text.safetensors(await get('model.safetensors', 'arrayBuffer'))
    const tokenizer = new text.Tokenizer(await get('tokenizer.json')), tasks = await get('tasks.json')
    const make = () => new policy.Policy(weights, tokenizer, replay.random(0))
    const far = (x, y) => x.length != y.length ? NaN
        : x.reduce((m, o, i) => Math.max(m, Math.abs(o - y[i])), 0)
    """

# ---- whole batches, with every knob, beside a road of our own in float64

# A small run: what each optimizer step was given, weights around each batch, how likely tries were
BATCHES = KIT+"""
  const {Trainer} = await import('./trainer.js'), {TASKS} = await import('./tasks.js')
  const packed = o => Object.fromEntries(Object.entries(o).map(([k, x]) =>
    [k, btoa(Array.from(new Uint8Array(x.buffer), c => String.fromCharCode(c)).join(''))]))
  const brief = ({prompt, question, answer, texts, rewards, advantages, pays, dead, batch, answers}) =>
    ({prompt, question, answer, texts, rewards, advantages, pays, dead, batch, ids: answers.map(o => o.ids),
      old: answers.map(o => o.logps)})
  const out = []
  for (const [first, later] of given) {
    const set = {...TASKS.sums.sets[0], B: 6, minis: 2, T: 24, ...first}
    const arm = new Trainer(weights, tokenizer, tasks.sums, set, 0)
    const step = arm.policy.step.bind(arm.policy), steps = [], likely = []
    arm.policy.step = async (groups, items, width, rate, cap) => {
      const r = await step(groups, items, width, rate, cap)
      steps.push({groups: groups.map(brief), items, rate, cap, loss: r.loss, batch: arm.done})
      return r }
    const told = [await arm.batch(), (arm.change(later), await arm.batch())]
    const states = [arm.past[0], arm.past[1], arm.state()].map(o => o.policy), probe = make()
    const live = arm.kept[1].map(([g]) => g).filter(g => !g.dead)
    const each = [arm.kept[1][0].at(-1) ?? arm.kept[1][0][0], ...live.slice(0, 1)]
    for (const g of each) {
      const rows = []
      for (const state of states.slice(1)) {
        probe.restore(state)
        rows.push((await probe.logProbs([g], 28))[0].map(o => o.reduce((a, b) => a + b))) }
      likely.push({...brief(g), rows}) }
    out.push({steps, likely, states: states.map(o => packed(o.W)),
      groups: told.map(o => o.groups.map(g => [g.dead && !g.by, g.texts.length])) })
  }
  return out }"""

# (settings of the first batch, what changes for the second); at the highest rate many tokens are clipped
TURNED = [(dict(reward='right', G=8, scale='sqrt'), dict(G=2, scale='linear')),   # stored: 8, fresh: 2
    (dict(reward='length', G=4, buffer=0), dict(reward='tags', scale='sqrt')),
    (dict(reward='short', G=16, rate=1e-3), {}),
    (dict(reward='length', G=4, beside=1, cap=1), dict(rate=1e-3))]

def _paid(kind, g, T):
    told = dict(prompts=[None]*len(g['texts']), completions=g['texts'])
    right = accuracy_reward(**told, answer=[g['answer']]*len(g['texts']))
    n = [len(o) for o in g['ids']]
    return dict(right=right, tags=format_reward(**told), length=[k/T for k in n],
        short=[r*(1-k/T) for r,k in zip(right, n)])[kind]

def _float64(W):
    model = load_model('tiny')[0].double()
    with torch.no_grad():
        for k,v in model.named_parameters():
            v.copy_(torch.from_numpy(np.frombuffer(base64.b64decode(W[k]), np.float32).copy()).view(v.shape))
    return model

def _logps(model, g):
    "Of each try's tokens, one try at a time"
    out = []
    for ids in g['ids']:
        z = model(torch.tensor([g['prompt']+ids])).logits[0, len(g['prompt'])-1:-1].log_softmax(-1)
        out.append(z.gather(1, torch.tensor(ids)[:,None])[:,0])
    return out

def _loss64(model, groups, items, cap):
    "(the objective, token by token, clipped or with capped ratios as weights; how many of these count less)"
    total,less = 0.,0
    for g in groups:
        A = group_advantages(torch.tensor([g['rewards']], dtype=torch.float64))[0]
        for logps,old,a in zip(_logps(model, g), g['old'], A):
            rho = (logps-torch.tensor(old, dtype=torch.float64)).exp()
            clipped = rho.clamp(.8, 1.2)
            if cap: total = total-(rho.detach().clamp(max=cap)*(logps-logps.detach()).exp()*a).sum()
            else: total = total-torch.minimum(rho*a, clipped*a).sum()
            less += int((rho>cap).sum() if cap else (rho*a>clipped*a).sum())
    return total/items,less

def test_batches_with_every_reward_group_size_rate_and_loss_are_those_of_float64(opened):
    less = {0:0, 1:0}
    for run,(first,later) in zip(opened(ALONE).evaluate(BATCHES, TURNED), TURNED):
        model = _float64(run['states'][0])
        opt = torch.optim.AdamW(model.parameters(), weight_decay=0.)
        flat = lambda m: torch.cat([o.detach().flatten() for o in m.parameters()])
        start = flat(model)
        for n in (0, 1):
            how = dict(reward='right', scale='none', G=8, rate=2e-4)|first|(later if n else {})
            steps = [o for o in run['steps'] if o['batch']==n]
            n_tokens = sum(len(ids) for o in steps for g in o['groups'] for ids in g['ids'])
            assert {o['items'] for o in steps}=={n_tokens/2}
            live = [not dead for dead,_ in run['groups'][n]]
            factor = lr_factor(sum(live)/6, how['scale'])
            assert {k for _,k in run['groups'][n]}=={how['G']}
            for o in steps:
                for g in o['groups']: assert g['rewards']==pytest.approx(_paid(g['pays'], g, 24), abs=1e-6)
                assert o['rate']==pytest.approx(how['rate']*factor, rel=1e-9)
                if o is steps[0]:                    # noted while sampling, by the weights before the batch
                    for g in [g for g in o['groups'] if g['batch']==n+1]:
                        for noted,x in zip(g['old'], _logps(model, g)):
                            assert x.tolist()==pytest.approx(noted, abs=1e-4)
                loss,fewer = _loss64(model, o['groups'], o['items'], o['cap'])
                less[o['cap']] += fewer
                assert abs(loss.item()-o['loss'])<3e-4
                opt.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.)
                opt.param_groups[0]['lr'] = o['rate']
                opt.step()
            moved,theirs = flat(model)-start,flat(_float64(run['states'][n+1]))-start
            assert (moved-theirs).norm()<.01*moved.norm()
        around = [_float64(W) for W in run['states'][1:]]
        for g in run['likely']:                      # how likely each try was, and is
            with torch.no_grad(): want = [[o.sum().item() for o in _logps(m, g)] for m in around]
            assert np.abs(np.array(want)-g['rows']).max()<1e-3
            assert want[0]!=want[1]
    assert min(less.values())>20                     # by the clip, and by the cap

# ---- the task, the comparison, the buffer

TASK = KIT+"""
    const out = {}, same = (x, y) => JSON.stringify(x) == JSON.stringify(y)
    for (const [name, v] of Object.entries(given)) {
        const {before, after, test} = tasks[name], some = test.slice(0, v.prompts.length), o = out[name] = {}
        o.prompts = some.filter(([q], i) => !same(tokenizer.encode(before + q + after), v.prompts[i])).length
        o.texts = v.ids.filter((ids, i) => tokenizer.decode(ids) !== v.texts[i]).length
        const G = v.rewards[0].length, answer = i => some[Math.floor(i / G)][1]
        const told = v.texts.map((t, i) => text.right(t, answer(i)))
        o.rewards = told.filter((r, i) => r !== v.rewards.flat()[i]).length
        const groups = v.rewards.map(replay.compare)
        o.advantages = Math.max(...groups.map((g, i) => far(g.advantages, v.advantages[i])))
        o.scores = far(groups.map(g => g.score), v.scores)
        o.dead = groups.filter((g, i) => g.dead != (v.scores[i] == 0)).length
    }
    return out }"""

def test_prompts_texts_rewards_advantages_and_scores_are_ours(opened, values):
    got = opened(ALONE).evaluate(TASK, values)
    for task,o in got.items():
        assert [o[k] for k in ('prompts','texts','rewards','dead')]==[0, 0, 0, 0], (task, o)
        assert o['advantages']<1e-5 and o['scores']<1e-5, (task, o)
    assert 0<np.mean(values['sums']['rewards'])<1   # both kinds were judged

ODD = [('<answer>12</answer>', '12', 1), ('<answer> +12 </answer>', '12', 1),
    ('<answer>012</answer>', '12', 1), ('<answer>12', '12', 0), ('12', '12', 0),
    ('<answer></answer>', '0', 0), ('<answer> </answer>', '0', 0),
    ('<answer>1</answer><answer>12</answer>', '12', 1), ('<answer>12</answer><answer>1</answer>', '12', 0),
    ('<answer><answer>12</answer>', '12', 1), ('<answer>-3</answer>', '-3', 1),
    ('<answer>Sun</answer>', 'sun', 1),
    ('<answer>nus</answer>', 'sun', 0), ('<answer>1e1</answer>', '10', 1), ('<answer>0x0c</answer>', '12', 0),
    ('<answer>1 2</answer>', '12', 0), ('<answer>--3</answer>', '3', 0), ('<answer>12.0</answer>', '12', 1)]

def test_odd_answers_are_judged_as_by_us(opened):
    judge = "async all => { const t = await import('./text.js'); return all.map(([s, a]) => t.right(s, a)) }"
    ours = [accuracy_reward(None, [said], [answer])[0] for said,answer,_ in ODD]
    assert opened(ALONE).evaluate(judge, ODD)==ours==[r for *_,r in ODD]

DRAW = """async ([scores, n, times]) => {
    const {Buffer, random} = await import('./replay.js'), seen = {}, r = random(1)
    for (let i = 0; i < times; i++) {
        const buffer = new Buffer(64, r)
        buffer.add(scores.map((score, id) => ({score, id})))
        const k = buffer.draw(n).map(o => o.id).join()
        seen[k] = (seen[k] ?? 0) + 1 }
    return seen }"""

def _chances(scores, n):
    "The chance of each sequence of draws, by hand: in proportion to what is left, to all where n is more"
    again,out = n>len(scores),{}
    for seq in itertools.product(range(len(scores)), repeat=n):
        p,left = 1.,dict(enumerate(scores))
        for i in seq:
            total = sum(left.values())
            p *= 0 if i not in left else left[i]/total if total else 1/len(left)
            if not again: left.pop(i, None)
        if p: out[','.join(map(str, seq))] = p
    return out

def _odd_draws(pg):
    "How far the page's draws are from their chances: the largest of four chi squared, each over its freedom"
    times,worst = 20_000,0.
    for scores,n in (([1., 2., 5.], 2), ([0., 0., 0.], 1), ([3., 1.], 3), ([0., 4., 1., 1.], 3)):
        want,got = _chances(scores, n),pg.evaluate(DRAW, [scores, n, times])
        if not got.keys()<=want.keys(): return np.inf
        chi = sum((got.get(k, 0)-times*p)**2/(times*p) for k,p in want.items())
        worst = max(worst, chi/(len(want)-1))
    return worst

def test_stored_groups_are_drawn_as_often_as_they_should_be(opened):
    assert _odd_draws(opened(ALONE))<3

KEEP = """async ([size, parts]) => {
    const {Buffer, random} = await import('./replay.js'), buffer = new Buffer(size, random(0))
    return parts.map(part => {
        buffer.add(part.map(([score, id]) => ({score, id})))
        return buffer.groups.map(o => o.id) }) }"""

def test_the_same_groups_stay_in_the_buffer(opened):
    rng = np.random.default_rng(0)
    scores,ours = rng.choice([0., 1., 1.5, 2., 3.], (12, 5)).tolist(),ReplayBuffer(9)
    parts = [[[x, 5*i+j] for j,x in enumerate(o)] for i,o in enumerate(scores)]
    want = []
    for i,o in enumerate(scores):
        ours.add(o, [5*i+j for j in range(5)], step=i)
        want.append([e.data for e in ours])
    assert opened(ALONE).evaluate(KEEP, [9, parts])==want

# ---- the page while it trains. It forbids eval, and so Playwright's `wait_for_function`

def _batches(pg, n, map=0): pg.locator('.map').nth(map).locator('.col.new').nth(n-1).wait_for(timeout=400_000)

def _column(pg, c): return pg.locator('.map .col.new').nth(c).locator('button')

def test_it_trains_while_a_group_is_looked_at(opened, small):
    pg = opened(small)
    pg.locator(".try.right, .try.wrong").nth(7).wait_for()   # its own tries, before anything is pressed
    assert 'before any training' in pg.inner_text('#panel .where')
    pg.click('#train')
    _batches(pg, 1)
    assert pg.inner_text('#train')=='Pause' and _column(pg, 0).count()==8
    square = _column(pg, 0).nth(3)
    square.click()
    said,tries = square.get_attribute('aria-label'),pg.locator('#panel > .tries .try')
    assert pg.inner_text('#panel .where')=='batch 1, group 4' and tries.count()==8
    chances = pg.locator('#panel > .tries .says')                 # told while the next batch is being made
    chances.nth(7).wait_for()
    assert all(re.fullmatch(r'[<.\d]+ → [<.\d]+ %', o) for o in chances.all_inner_texts())
    assert said.startswith(pg.inner_text('#panel h2').split(' →')[0].replace('\u2212', '-'))
    _batches(pg, 3)                                               # it went on, and the group stayed
    assert pg.inner_text('#panel .where')=='batch 1, group 4'
    square.focus()
    pg.keyboard.press('ArrowRight')
    pg.keyboard.press('ArrowDown')
    assert pg.inner_text('#panel .where')=='batch 2, group 5'
    assert pg.evaluate('document.activeElement.getAttribute("aria-selected")')=='true'
    pg.click('#train')
    assert pg.inner_text('#train')=='Go on'
    pg.fill('#question', '2+2')
    pg.click('#ask button')
    pg.locator('.try.right, .try.wrong').nth(7).wait_for()
    assert re.match(r'its eight tries after \d+ batches', pg.inner_text('#panel .where'))
    assert pg.inner_text('#panel h2')=='2 + 2 → 4'
    inside = [pg.locator(f'#panel > :{o}-child').bounding_box() for o in ('first','last')]
    used = inside[1]['y']+inside[1]['height']-inside[0]['y']
    assert pg.locator('#panel').bounding_box()['height']<used+20   # not the height of what was open before
    pg.fill('#question', '12 + 3')
    pg.click('#ask button')
    assert pg.inner_text('#panel h2')=='12 + 3 → 15' and 'one digit' in pg.inner_text('#ask-word')
    pg.fill('#question', 'what is love')
    pg.click('#ask button')
    assert 'Two to six numbers' in pg.inner_text('#ask-word')
    pg.click('#inspect summary')
    pg.locator('#inspector .gv-plot').wait_for()
    assert 'batches so far' in pg.inner_text('#inspector')
    assert pg.said==[]

# The worker alone: some batches, then other knobs, and as many more
WORKER = '''async ([task, knobs, later, n]) => {
  const worker = new Worker('worker.js', {type: 'module'}), told = []
  const until = what => new Promise(go => {
    worker.onmessage = ({data}) => {
      told.push(data)
      if (what(data)) go()
    } })
  const tell = message => worker.postMessage(message)
  const next = async what => { const there = until(what); tell({do: 'allow', n, id: ++id}); await there }
  let id = 0
  tell({do: 'open'})
  await until(o => o.ready)
  tell({do: 'start', run: 3, task, seed: 0, knobs})
  await next(o => o.idle == id)
  tell({do: 'change', knobs: later})
  await next(o => o.idle == id)
  worker.terminate()
  const brief = g => ({id: g.stored || g.dead ? null : g.id, stored: !!g.stored, by: g.by && g.by.id})
  return told.filter(o => o.batch).map(({run, arm, batch: {rate, size, left, groups}}) =>
    ({run, arm, rate, size, left, groups: groups.map(brief)}))
}'''

@pytest.mark.weekly
def test_knobs_turn_every_arm_and_give_none_a_buffer_that_it_does_not_have(opened):
    before,after = dict(rate=4e-4, buffer=64),dict(rate=1e-4, buffer=8)
    told = opened(ALONE).evaluate(WORKER, ['words', before, after, 2])
    arms = [[o for o in told if o['arm']==i] for i in (0, 1)]
    assert [[(o['rate'], o['size']) for o in arm] for arm in arms]==[
        [(4e-4, 0), (1e-4, 0)], [(4e-4, 64), (1e-4, 8)]]
    assert not any(g['by'] or g['stored'] for o in arms[0] for g in o['groups'])
    assert any(g['stored'] for o in arms[1] for g in o['groups'])
    there = set()                                                 # what the buffer holds, by what is told
    for o in arms[1]:
        assert {g['by'] for g in o['groups'] if g['by']}<=there
        there |= {g['id'] for g in o['groups'] if g['id']}
        assert {*o['left']}<=there
        there -= {*o['left']}
        assert len(there)<=o['size']
    assert len(there)==8 and {o['run'] for o in told}=={3}

# A small run of one arm, and the futures of a fork before its third batch; what each batch of both told
FORKS = '''async changes => {
  const {ready} = await import('./policy.js'), {Trainer, apart} = await import('./trainer.js')
  const {Tokenizer, safetensors} = await import('./text.js'), {TASKS} = await import('./tasks.js')
  const get = async (name, how = 'json') => (await fetch(name))[how]()
  await ready()
  const weights = safetensors(await get('model.safetensors', 'arrayBuffer'))
  const tokenizer = new Tokenizer(await get('tokenizer.json')), {sums} = await get('tasks.json')
  const set = {...TASKS.sums.sets[0], B: 8, G: 4, minis: 2, T: 32}
  const run = async (arm, n) => {
    const told = []
    while (arm.done < n) {
      if (arm.done == 3)   // knobs turned by the reader: for both
        arm.change({rate: 1e-4, reward: 'short', G: 2, scale: 'sqrt'})
      const {ms, ...batch} = await arm.batch()
      told.push(batch)
      if (arm.done == 3) await arm.measure(4)       // unseen problems take random numbers too
    }
    return told
  }
  const arm = new Trainer(weights, tokenizer, sums, set, 0), told = await run(arm, 4), before = 2
  const group = told[before].groups.findIndex(g => g.by), later = told.slice(before), out = {at: group}
  const after = (arm, n) => arm.done == n ? arm.state() : arm.past[n]
  for (const [name, set] of Object.entries(changes)) {
    const other = arm.forked(before, 1, name == 'group' ? {group} : {set})
    const start = apart(other.state(), arm.past[before])
    const future = await run(other, 4), same = (a, b) => JSON.stringify(a) == JSON.stringify(b)
    out[name] = {start: start.same, told: future.map((o, i) => same(o, later[i])),
      fresh: future[0].groups.map((g, r) => same(g.texts, later[0].groups[r].texts)),
      by: future[0].groups.map(g => g.by && g.by.id), rates: future.map(o => o.rate),
      replaced: future.map(o => o.groups.filter(g => g.by).length),
      uses: after(other, before + 1).groups.reduce((n, g) => n + g.uses, 0),
      ends: [3, 4].map(n => apart(after(other, n), after(arm, n)))}
  }
  return out
}'''

# nothing last: what the forks before it did must have left the state that it starts from as it was
CHANGES = dict(group={}, replay=dict(buffer=0), rate=dict(rate=4e-4),
    paid=dict(reward='length', scale='sqrt'), nothing={})

def test_a_fork_is_equal_to_the_last_bit_until_the_one_thing_that_is_changed(opened):
    got = opened(ALONE).evaluate(FORKS, CHANGES)
    group = got.pop('at')
    assert all(o['start'] and all(o['fresh']) for o in got.values())   # one state, and one draw of its batch
    nothing = got.pop('nothing')
    assert nothing['told']==[True, True] and [o['same'] for o in nothing['ends']]==[True, True]
    for name,o in got.items():
        assert not any(o['told']) and all(end['differ'] and not end['same'] for end in o['ends']), name
    by = nothing['by']                                            # what came in each group's place
    assert got['group']['uses']==nothing['uses']-1                # what was drawn for it was not used
    assert by[group] and got['group']['by']==[None if i==group else x for i,x in enumerate(by)]
    assert got['replay']['by']==[None]*8 and got['replay']['replaced']==[0, 0]<nothing['replaced']
    assert got['rate']['by']==by and got['rate']['rates']==[4e-4, 4e-4]
    assert nothing['rates']==[2e-4, 1e-4]

def test_an_address_gives_task_and_knobs_and_what_is_none_is_ignored(opened):
    usual,words = ['right','8','none'],['words','7','right','4','none']
    length,senseless = ['length','16','sqrt'],'?task=x&seed=-1&rate=9&buffer=2.5&reward=gold&G=3&scale='
    for asked,want in (('?task=words&seed=7&rate=0.001&buffer=0', [*words,'0.001','64',False]),
            ('?rate=0.0006&buffer=13', ['sums','0',*usual,'0.0006','13',True]),   # between a slider's steps
            ('?rate=0.001&reward=length&G=16&scale=sqrt', ['sums','0',*length,'0.001','64',True]),
            (senseless, ['sums','0',*usual,'0.0002','64',True]),
            ('', ['sums','0',*usual,'0.0002','64',True])):
        pg = opened(asked)
        pg.locator('#train:not([disabled])').wait_for()
        got = [pg.locator('[name=task]:checked').get_attribute('value'),
            *[pg.input_value(f'#{o}') for o in ('seed','reward','G','scale')],
            *[pg.text_content(f'#{o}-says') for o in ('rate','buffer')], pg.is_checked('#replay')]
        none = 'seed=-1','rate=9','buffer=2.5','reward=gold','G=3','scale=,'
        refused = [o for o in none if o in pg.text_content('#knob-word')]
        assert got==want and pg.said==[]
        told = pg.text_content('#unusual'),pg.text_content('#pays')
        assert told[1].startswith('the longest' if 'length' in asked else 'the tries that come out right')
        assert bool(told[0])==(asked!='' and 'task=x' not in asked)
        assert ('16 tries' in told[0])==('G=16' in asked)
        assert pg.url.endswith('/' if 'task=x' in asked else asked) and len(refused)==6*('task=x' in asked)
    for typed in ('1.5', '-3', '1000000'):
        pg.fill('#seed', typed)
        assert 'whole number' in pg.inner_text('#knob-word')
        assert pg.inner_text('#again')=='Another run, seed 1'

def test_opened_from_a_file_it_says_what_to_do(folder, browser):
    pg = browser.new_page()
    pg.goto((folder/'index.html').as_uri())
    pg.evaluate('document.getAnimations().forEach(o => o.finish())')
    assert pg.locator('.late').is_visible() and 'grpo_nb live' in pg.inner_text('.late')
    pg.close()

SUMS = '''async () => {
  const {run} = document.querySelector('#inspector > div').gv, out = {}, all = await run.detail(0);
  for (const t of all.map(o => o.replacement?.terms ?? o.terms).filter(o => o))
    out[t.loss] = (out[t.loss] ?? 0) + Object.values(t.by)[0].term.flat().reduce((a, b) => a + b, 0);
  return out;
}'''

def test_with_the_inspector_open_every_token_says_what_it_added_and_what_followed(opened):
    pg = opened()
    pg.locator(".try.right, .try.wrong").nth(7).wait_for()
    pg.locator('#buffer').focus()
    pg.keyboard.press('Home')
    pg.click('#inspect summary')
    pg.click('#step')
    pg.locator('.gv-tokens').first.wait_for()
    sums = {float(k):v for k,v in pg.evaluate(SUMS).items()}
    assert len(sums)>1
    assert all(abs(k-v)<5e-6 for k,v in sums.items())   # its float32 loss, added in another order
    pg.locator('#inspector .gv-rows .gv-row', has_text='living').first.click()
    pg.get_by_role('button', name='the one with the largest share').click()
    assert 'before the step' in pg.inner_text('.gv-token') and 'dapo, this run' in pg.inner_text('.gv-token')
    pg.click('#step')
    assert pg.locator('text=of at most 8;').inner_text().startswith('8 groups')
    assert pg.said==[]

# The mean over a run, in 100, of each recorded seed, and what a run is said to be among
AMONG = '''async own => {
  const recorded = await (await fetch('recorded.json')).json(), {among} = await import('./among.js')
  const {of, ...arms} = recorded
  return [arms, among(recorded, own)]
}'''

def test_a_run_is_drawn_among_recorded_ones_and_their_difference_is_a_paired_interval(trained, opened):
    recorded,said = opened(ALONE).evaluate(AMONG, [.5, .7, .9, .9, .9, .9])
    area = {k:100*np.array(o).mean(1)/192 for k,o in recorded.items()}
    n = min(map(len, area.values()))
    assert area.keys()=={'replay','plain','scaled'} and n>=3
    for a,b in (('replay','plain'), ('scaled','plain')):
        both = min(len(area[a]), len(area[b]))
        d = area[a][:both]-area[b][:both]
        low,high = stats.t.interval(.95, len(d)-1, d.mean(), d.std(ddof=1)/len(d)**.5)
        assert f'{abs(d.mean()):.1f} ± {(high-low)/2:.1f}' in said, said
    above = [int((area[k]<80).sum()) for k in ('replay','plain')]
    assert 'Yours has 80.0' in said and all(f'{k} of {len(area[a])}' in said for k,a in zip(above, area))
    pg = trained
    assert pg.locator('#chart polyline.past.replay').count()==len(area['replay'])
    scaled = pg.locator('#chart polyline.past.scaled')
    assert scaled.count()==0 and 'usual knobs' not in pg.inner_text('#among')
    pg.check('#kinds .scaled input')
    assert scaled.count()==len(area['scaled'])
    pg.uncheck('#kinds .scaled input')

def test_the_squares_say_what_became_of_their_groups(trained):
    "Colours and order of the stored run's map; a replaced group shows whom it made room for"
    pg = trained
    css = "o => getComputedStyle(o).getPropertyValue('--c').trim().toUpperCase()"
    want = page_table()['colours']
    states = {'they differ':want['living'], 'came in its place':want['stored']}
    for o in _column(pg, 1).all():
        said = o.get_attribute('aria-label')
        right = re.search(r'(\d) of 8', said)[1]
        key = next((k for k in states if k in said), None)
        colour = states.get(key) or want['right' if right=='8' else 'wrong']
        assert o.evaluate(css)==colour.upper(), said
        assert ('they differ' in said)==(right not in '08')
        if key=='came in its place':
            o.click()
            assert pg.locator('.came .try').count()==8 and pg.locator('.more .try').count()==8

def test_a_batch_is_forked_by_keyboard_and_both_futures_are_drawn(trained):
    pg = trained
    first = [o.get_attribute('aria-label') for o in _column(pg, 1).all()]
    square = pg.locator('.map .col.new').nth(1).locator('.s5, .s6').first
    said = square.get_attribute('aria-label')
    row = first.index(said)+1
    square.focus()
    pg.keyboard.press('Enter')
    pg.locator('#fork-what').focus()
    assert pg.locator('#fork-what option').all_inner_texts()==['this group is not replaced', 'no replay',
        'half the learning rate, 0.0001', 'twice the learning rate, 0.0004', 'length is paid',
        'nothing is changed']
    pg.keyboard.press('Tab')
    pg.keyboard.press('Enter')
    fork = pg.locator('.map').nth(1)
    _batches(pg, 2, map=1)
    pg.click('#train')
    pg.locator('#status', has_text='paused').wait_for()
    assert fork.locator('h2').inner_text().startswith(f'Fork at batch 2: group {row} is not replaced')
    squares = [fork.locator('.col.new').nth(c).locator('button') for c in (0, 1)]
    pale = [[bool(re.search(r'\bsame\b', o.get_attribute('class'))) for o in c.all()] for c in squares]
    assert pale==[[True]*16, [i+1!=row for i in range(16)]]       # all but the group that was left
    assert 'in its place' in said and squares[1].nth(row-1).get_attribute('aria-label')==said.split(', so')[0]
    apart = pg.inner_text('#apart')
    assert apart.startswith('After 1 batch the two are equal to the last bit') and 'After batch 2, ' in apart
    pg.get_by_role('button', name='Remove the fork').click()
    assert pg.locator('.map').count()==1 and pg.inner_text('#apart')==''
    assert [o.get_attribute('aria-label') for o in _column(pg, 1).all()]==first and pg.said==[]
    square.click()                                                # for the next test, one to look at
    pg.locator('#fork-what').select_option(label='nothing is changed')
    pg.locator('form.fork button').click()
    pg.locator('.map').nth(1).locator('.col.new').nth(1).wait_for()
    pg.click('#train')
    pg.locator('#status', has_text='paused').wait_for()
    assert pg.inner_text('#apart').startswith('After 1 batch and after each batch up to ')

@pytest.mark.weekly
def test_on_a_phone_a_tap_shows_the_group_beside_its_square(browser, small):
    ctx = browser.new_context(viewport=dict(width=390, height=844), has_touch=True, is_mobile=True)
    pg = ctx.new_page()
    pg.goto(small)
    pg.locator('#step:not([disabled])').wait_for()
    pg.tap('#step')
    pg.locator('#status', has_text='1 of 40 batches, paused').wait_for()
    pg.evaluate("document.querySelector('#maps').scrollIntoView({block: 'end'})")
    square = _column(pg, 0).nth(7)
    square.tap()
    at,panel = square.bounding_box(),pg.locator('#panel').bounding_box()
    assert at['width']>=24 and at['height']>=24
    assert 0<=at['y'] and at['y']+at['height']<=panel['y'] and panel['y']<600   # neither hides the other
    assert pg.inner_text('#panel .where')=='batch 1, group 8'
    assert pg.evaluate('document.documentElement.scrollWidth-innerWidth')<=0
    pg.tap('#shut')                                               # the panel goes back below the map
    assert pg.locator('#panel').bounding_box()['y']>square.bounding_box()['y']+200
    assert square.evaluate('o => o == document.activeElement')
    ctx.close()

@pytest.mark.parametrize('width,scheme', [(1280, 'light'), (390, 'dark')])
def test_it_is_for_everybody(trained, axe, width, scheme):
    pg = trained
    pg.emulate_media(color_scheme=scheme, reduced_motion='reduce')
    pg.set_viewport_size(dict(width=width, height=800))
    top = pg.evaluate("document.querySelector('#train').getBoundingClientRect().y+scrollY")
    assert top<600           # in sight without scrolling
    for o in ('#inspect',): pg.evaluate('o => { document.querySelector(o).open = true }', o)
    pg.locator('#inspector .gv-plot').wait_for()
    assert pg.evaluate('document.documentElement.scrollWidth-innerWidth')<=0
    pg.keyboard.press('Home')
    if not axe: pytest.skip('no axe-core here, and no npm to fetch it')
    pg.evaluate(axe)
    assert axe_errors(pg, RULES)==[] and axe_errors(pg, CONTRAST)==[]

def test_where_wasm_is_refused_it_says_so(folder, opened, tmp_path):
    page = (folder/'index.html').read_text(encoding='utf-8')
    policy = re.search('Content-Security-Policy" content="([^"]+)"', page)[1]
    assert "'unsafe-inline'" not in policy and "'unsafe-eval'" not in policy and 'http' not in policy
    stricter = shutil.copytree(folder, tmp_path/'stricter')
    (stricter/'index.html').write_text(page.replace(" 'wasm-unsafe-eval'", ''), encoding='utf-8')
    with served(stricter) as at:
        pg = opened(at)
        pg.locator('#word:not([hidden])').wait_for()
        assert 'WebAssembly' in pg.inner_text('#word') and pg.is_disabled('#train')

def test_at_most_two_megabytes_go_over_the_wire(folder):
    asked = [f for f in folder.rglob('*') if f.is_file()]
    assert sum(f.stat().st_size for f in asked)<2e6
    assert 'Eric Zhang' in (folder/'jax'/'LICENSE').read_text(encoding='utf-8')

@pytest.mark.slow
def test_the_whole_run_learns(opened, whole):
    pg = opened(whole)
    pg.locator('#train:not([disabled])').wait_for()
    pg.click('#train')
    _batches(pg, 40)
    pg.locator('text=40 batches, done').wait_for()
    before,after = map(int, re.findall(r'(\d+) %', pg.inner_text('#score')))
    pg.locator('#panel .where', has_text='after 40 batches').wait_for()   # the first sum is asked again
    asked = pg.inner_text('#panel .where')
    print(f'{before} % to {after} %; {asked}')
    right,first = map(int, re.findall(r'(\d) right; before any training (\d)', asked)[0])
    assert before<60<80<after and first<right and pg.said==[]
