"The view: what is packed against the record, and the page in a browser, by mouse and by keyboard"
import copy, math
import numpy as np
import pytest, torch
from grpo_nb.inspector import write_inspector
from grpo_nb.run.record import Recorder, group_rows
from grpo_nb.run.reading import LoggedRun, read_run
from grpo_nb.parts.groups import dead_reason
from grpo_nb.parts.files import page_table
from grpo_nb.see.view import (
    CELLS, pack_run, view_html, view_run, _cell_of)
from made_runs import make_run
from view_pages import Opened

@pytest.fixture(scope='module')
def run(tmp_path_factory): return read_run(make_run(tmp_path_factory.mktemp('v')/'run', n_steps=12, stride=4))

# ---- the page's modules, and the table that Python shares with them

def test_the_page_has_words_for_every_reason_of_a_dead_group():
    r = torch.tensor([[0., 0.], [1., 1.], [.5, .5], [.25, .25+1e-7], [math.nan, math.nan]])
    reasons = dead_reason(r)
    assert len({*reasons})==5 and {*reasons}<={*page_table()['why']}

# ---- packed

def test_every_cell_says_what_the_record_says(run):
    o = Opened(pack_run(run))
    assert o.head['steps']==run.steps and o.B==8
    for row in run.rows:
        code, k = (o.state()[run.steps.index(row['step']), row['group']],
                   o.by()[run.steps.index(row['step']), row['group']])
        why = {'all-right':2, 'all-wrong':3}.get(row['dead_reason'], 4) if row['dead'] else 1
        assert code==why+3*(row['replacement'] is not None)
        assert (k>=0)==(row['replacement'] is not None)
        if k>=0:
            assert (o.stored()[k]['id'] == row['replacement']['id']
                    and o.stored()[k]['step'] == row['replacement']['step'])

def test_where_too_many_were_stored_those_that_came_back_are_listed(run, monkeypatch):
    monkeypatch.setattr('grpo_nb.see.view.MOST_STORED', 1)
    o,whole = Opened(pack_run(run)),[r for r in run.rows if r['replacement']]
    for row in run.rows:
        k = o.by()[run.steps.index(row['step']),row['group']]
        assert (k>=0)==(row['replacement'] is not None)
        assert k<0 or o.stored()[k]['id']==row['replacement']['id']
    assert len(o.stored())==len({r['replacement']['id'] for r in whole})>1
    assert any('stored groups that came back' in n for n in o.head['notes'])

def test_the_texts_are_the_records(run):
    o = Opened(pack_run(run))
    for s,step in enumerate(run.steps):
        for shown,row in zip(o.texts(s), run.by_step[step]):
            assert shown['prompt']==row['prompt'] and shown['completions']==row['completions']
            assert shown['rewards'] == pytest.approx(row['rewards']) and shown[
                'advantages_before'
            ] == pytest.approx(row['advantages_before'], rel=1e-4)

def test_a_group_of_one_text_is_told_from_one_of_different_texts(tmp_path):
    texts = [['a']*4, ['a', 'b', 'a', 'a'], ['']*4, ['a', 'a', 'a', 'b']]
    rec = Recorder(tmp_path)
    rec.write_groups(1, group_rows(1, list('qrst'), texts, [[0.]*4]*3+[[0., 0., 0., 1.]]))
    assert Opened(pack_run(read_run(tmp_path))).array('same', np.uint8).tolist()==[[1, 0, 0, 0]]

def test_a_length_that_is_not_known_is_shown_as_zero(tmp_path):
    rec = Recorder(tmp_path)
    rec.write_groups(1, group_rows(1, ['q'], [['a']*2], [[0., 1.]], n_tokens=[[-1, -1]]))
    assert Opened(pack_run(read_run(tmp_path))).array('long', np.uint16).tolist()==[[0]]

def test_a_newcomers_text_is_found_where_it_was_born(run):
    o = Opened(pack_run(run))
    for row in run.rows:
        if not row['replacement']: continue
        at = o.stored()[o.by()[run.steps.index(row['step']),row['group']]]['at']
        assert o.texts(at[0])[at[1]]['completions']==row['replacement']['completions']

def test_what_does_not_fit_is_left_out_and_said(run):
    o = Opened(pack_run(run, budget=1))
    assert sum(o.texts(s) is not None for s in range(o.S))<o.S or o.head['per_block']>=o.S
    short = Opened(pack_run(run, limit=10))
    assert short.texts(0)[0]['cut'][0]==len(run.by_step[run.steps[0]][0]['completions'][0])-10

def test_a_run_without_groups_has_curves_and_one_without_anything_is_refused(tmp_path):
    rec = Recorder(tmp_path/'a')
    for s in range(3): rec.log(dict(step=s, reward=.1*s))
    o = Opened(pack_run(read_run(tmp_path/'a')))
    assert o.B==0 and o.head['curves'][0]['value']==pytest.approx([0., .1, .2])
    (tmp_path/'b').mkdir(); (tmp_path/'b'/'history.jsonl').write_text('')
    with pytest.raises(ValueError, match='neither groups nor a history'): view_html(tmp_path/'b')

def test_stored_groups_beside_fresh_ones_have_a_colour_of_their_own():
    assert _cell_of(dict(outcome='stored', dead=False))==CELLS['stored']

SAID = [(dict(), 'with the ratio'), (dict(strategy_options=dict(force_ratio_one=True)), 'without correction'),
    *((dict(args={k:v}), f'{word} ') for word,k,v in (('without','replay_correction','weight=none,clip=none'),
        ('without','correction',dict(weight='none')),
        ('with','replay_correction','weight=truncated,clip=none')))]
@pytest.mark.parametrize('kw,says', SAID)
def test_the_page_says_how_the_run_corrected(run, kw, says):
    o = LoggedRun(run.folder, run.settings|kw, run.history, run.rows, run.summary, [])
    assert says in Opened(pack_run(o)).head['correction']

# ---- text from anywhere

EVIL = ['<script>alert(1)</script>', '</script><img src=x onerror=alert(1)>', '<!-- <script>', '‮reversed',
        'lone \ud800 surrogate', '\x00 nul', '{{constructor}}', '<answer><b>4</b></answer>']

def evil(folder, long=200_000):
    rec = Recorder(folder, settings=dict(seed=0, strategy=EVIL[0]))
    for s in (1, 2):
        rec.write_groups(s,
            group_rows(s, [EVIL[s], 'x'*long], EVIL*2, [[float(i==0) for i in range(8)], [0.]*8],
        rewards_by_func={EVIL[0]:[[1.]*8, [0.]*8]}))
    with open(folder/'groups.jsonl', 'a', encoding='utf-8') as f: f.write('{"step": 3, "gro')
    return folder

def test_text_cannot_become_code(tmp_path, browser):
    page,errors,asked = browser.new_page(),[],[]
    page.on('dialog', lambda d: (errors.append(d.message), d.dismiss()))
    page.on('pageerror', lambda e: errors.append(str(e)))
    page.on('request', lambda r: asked.append(r.url))
    write_inspector(evil(tmp_path/'r'))
    page.goto(f'file://{tmp_path}/r/inspector.html')
    page.wait_for_selector('.gv-row')
    for i in (0, 1):
        page.locator('.gv-row').nth(i).click()
        page.wait_for_selector(f'.gv-row.gv-sel:nth-child({i+1})')
        wait_for_text(page, '.gv-body', '<script>alert(1)</script>')
    assert (page.locator('.gv img, .gv script, .gv iframe').count() == 0
            and page.locator('.gv-card b').count() == 0)
    assert errors==[] and [o for o in asked if not o.startswith(('file:', 'blob:'))]==[]
    page.close()

# ---- the page

@pytest.fixture
def opened(run, browser, tmp_path):
    "The page of the made run, with what it asked for"
    pages = []
    def go(width=1280, html=None, scheme='light', at=''):
        f = tmp_path/'page.html'
        f.write_text(html or view_html(run), encoding='utf-8')
        # the tests' own questions are scripts, which the page would refuse
        look = dict(viewport=dict(width=width, height=900), color_scheme=scheme, bypass_csp=True)
        page = browser.new_page(**look)
        page.errors = []
        page.on('pageerror', lambda e: page.errors.append(str(e)))
        page.goto(f'file://{f}{at}')
        page.wait_for_selector('.gv-row, .gv-note, .gv-plot')
        page.wait_for_function("document.getElementById('view').gv")
        pages.append(page)
        return page
    yield go
    for page in pages:
        assert page.errors==[]
        page.close()

def says(page, text):
    "Wait until the line under the map begins so"
    page.wait_for_function("text => document.querySelector('.gv-say').innerText.startsWith(text)", arg=text)

def wait_for_text(page, selector, text):
    "Some panes are drawn with the next frame."
    page.wait_for_function('([k, text]) => document.querySelector(k)?.innerText.includes(text)',
                           arg=[selector, text])

def test_the_keyboard_does_all_of_it(run, opened):
    page = opened()
    page.locator('.gv-plot').focus()
    page.keyboard.press('Home')
    says(page, f'step {run.steps[0]}, group')
    for _ in range(8): page.keyboard.press('ArrowUp')
    page.keyboard.press('ArrowRight'); page.keyboard.press('ArrowDown')
    says(page, f'step {run.steps[1]}, group 1')
    page.keyboard.press('PageDown')
    says(page, f'step {run.steps[11]}')
    page.keyboard.press('Home'); page.keyboard.press('d')
    dead = next((s, o['group']) for s in run.steps for o in run.by_step[s] if o['dead']
                and (s, o['group']) > (run.steps[0], 1))
    says(page, f'step {dead[0]}, group {dead[1]}')
    whole = page.get_by_role('button', name='whole run')
    page.keyboard.press('+')
    whole.wait_for()
    page.keyboard.press('0')
    whole.wait_for(state='hidden')
    page.keyboard.press('Enter')
    page.wait_for_function("document.activeElement.classList.contains('gv-sel')")

def test_u_walks_along_the_uses_of_a_stored_group(run, opened):
    uses = {}
    for o in run.rows:
        if o['replacement']: uses.setdefault(o['replacement']['id'], []).append((o['step'], o['group']))
    i,places = max(uses.items(), key=lambda kv: len(kv[1]))
    assert len(places)>2
    page = opened(at=f'#step={places[0][0]}&group={places[0][1]}')
    page.locator('.gv-plot').focus()
    for step,group in places[1:3]:
        page.keyboard.press('u')
        says(page, f'step {step}, group {group}:')

def test_a_click_opens_a_group_and_a_drag_zooms(run, opened):
    page = opened()
    box = page.locator('.gv-over').bounding_box()
    at = page.evaluate(
        "(() => { const r = document.getElementById('view').gv.run; return [r.S, r.B, r.curves.filter(o => "
        "o.main).length] })()"
    )
    assert at==[12, 8, 2]
    x = lambda s: box['x']+64+(s+.5)*(box['width']-74)/12
    y = lambda g: box['y']+150+80+4+(g+.5)*22   # below the learning curve and a second one
    page.mouse.click(x(5), y(3))
    says(page, f'step {run.steps[5]}, group 3')
    wait_for_text(page, '.gv-body', f'Group 3, sampled at step {run.steps[5]}')
    page.mouse.move(x(2), y(1)); page.mouse.down(); page.mouse.move(x(6), y(1), steps=4); page.mouse.up()
    page.wait_for_function(
        "(() => { const n = document.getElementById('view').gv.now; return n.from == 2 && n.to == 7 })()")

def test_both_texts_stand_side_by_side_and_the_pane_stays_when_the_step_moves(run, opened):
    row = next(o for o in run.rows if o['replacement'])
    page = opened(at=f"#step={row['step']}&group={row['group']}")
    for text in (row['completions'][0], row['replacement']['completions'][0],
        f"What came in: group {row['replacement']['id']}", 'steps old'):
        page.wait_for_function("text => document.querySelector('.gv-body').textContent.includes(text)",
            arg=text)
    page.locator('.gv-plot').focus(); page.keyboard.press('Home')
    page.wait_for_function("document.querySelector('.gv-at').innerText.includes('step 0 of')")
    assert page.locator('.gv-pair').first.locator('section').count()==2
    page.get_by_label('mark differences').check()

def test_filters_search_and_order(run, opened):
    page = opened()
    page.get_by_label('show').select_option('6')   # replaced
    n = sum(o['replacement'] is not None for o in run.rows)
    wait_for_text(page, '.gv-found', f'{n} groups found')
    one = sum(bool(o['dead']) and len(set(o['completions']))==1 for o in run.rows)
    for label,n in (('dead: one text (collapse)', one),
            ('dead: different texts (cliff)', sum(bool(o['dead']) for o in run.rows)-one)):
        page.get_by_label('show').select_option(label=label)
        wait_for_text(page, '.gv-found', f'{n} group')
    page.get_by_label('show').select_option('0')
    word = run.rows[20]['prompt']
    page.get_by_label('search').fill(word); page.keyboard.press('Enter')
    page.wait_for_function("/found/.test(document.querySelector('.gv-found').innerText)")
    n = sum(any(word.lower() in t.lower() for t in [o['prompt'], *o['completions']]) for o in run.rows)
    wait_for_text(page, '.gv-found', f'{n} group')
    page.get_by_label('search').fill('')
    page.get_by_label('sort by').select_option('used')
    page.locator('.gv-hits button').first.click()
    page.locator('.gv-say', has_text='came').wait_for()

@pytest.mark.parametrize('width,scheme', [(400, 'dark'), (1280, 'light')])
def test_it_fits_and_every_control_has_a_name(opened, width, scheme, run):
    page = opened(width, view_html(run, report=True), scheme)
    assert page.evaluate('document.documentElement.scrollWidth')<=width
    nameless = page.evaluate("""() => [...document.querySelectorAll(
        '.gv button, .gv select, .gv input, .gv summary')]
        .filter(o => !(o.ariaLabel || o.labels?.length || o.innerText.trim())).map(o => o.outerHTML)""")
    assert nameless==[]

# ---- tokens

@pytest.fixture(scope='module')
def with_tokens(tmp_path_factory):
    "A run with the demo's settings and its tokens on record"
    from faulty_runs import fresh, right, sums
    from grpo_nb.trainer import TrainConfig, train
    model,tok = fresh()
    args = TrainConfig(output_dir=str(tmp_path_factory.mktemp('t')/'r'), max_steps=24, learning_rate=2e-4,
        record_tokens=True, disable_tqdm=True)
    train(model, tok, sums(), right, args)
    return read_run(args.output_dir)

def plain_logps(model, batch, b, temperature):
    "(G, T) log-probs of group `b`, by a forward of the whole sequences."
    import torch
    G,P = batch.completion_ids.shape[1],batch.prompt_ids.shape[1]
    ids = torch.cat([batch.prompt_ids[b].expand(G, -1), batch.completion_ids[b]], 1)
    mask = torch.cat([batch.prompt_mask[b].expand(G, -1), batch.completion_mask[b]], 1)
    at = (mask.long().cumsum(1)-1).clamp(min=0)
    with torch.no_grad(): logits = model(ids, attention_mask=mask.long(), position_ids=at).logits
    return (logits[:,P-1:-1]/temperature).log_softmax(-1).gather(-1, ids[:,P:,None])[...,0]

def test_recorded_tokens_log_probs_and_ratios_are_those_of_two_plain_forwards(tmp_path):
    "By the weights of this step and by those that sampled the group, token by token; nothing of the record"
    import copy
    from faulty_runs import fresh, right, sums
    from grpo_nb.trainer import TrainConfig, train
    model,tok = fresh()
    weights,sampled = [copy.deepcopy(model)],{}
    def note(s, info):
        sampled[info.row['step']] = info.sampled
        weights.append(copy.deepcopy(s.model))
    args = TrainConfig(output_dir=str(tmp_path/'r'), max_steps=10, generation_batch_size=64,
        learning_rate=1e-3, steps_per_generation=1, record_tokens=True, disable_tqdm=True)
    train(model, tok, sums(), right, args, callbacks=[note])
    run = read_run(args.output_dir)
    assert run.steps==list(range(10))==list(sampled)   # a step a batch, so weights[i] sampled batch i
    born = {o['id']:o['group'] for o in run.rows if o['id'] is not None}
    far = []
    for o in run.rows:
        new = o['replacement']
        at,b = (new['step'], born[new['id']]) if new else (o['step'], o['group'])
        now,then = (plain_logps(weights[i], sampled[at], b, args.temperature) for i in (o['step'], at))
        mask = sampled[at].completion_mask[b]
        for got,want,m in zip((new or o)['ratios'], (now-then).exp(), mask):
            assert got==pytest.approx(want[m].tolist(), rel=2e-3, abs=2e-3)
            far += (want[m]-1).abs().tolist() if new else []
        if new: continue
        ids = sampled[at].completion_ids[b]
        for noted,tokens,want,own,m in zip(o['logps'], o['tokens'], then, ids, mask):
            assert noted==pytest.approx(want[m].tolist(), abs=2e-3)
            assert ''.join(tokens)==tok.decode(own[m]) and len(tokens)==m.sum()
    assert sum(x>.05 for x in far)>100   # ratios that are all one would prove nothing

def test_tokens_are_coloured_in_the_page_and_the_page_stays_small(with_tokens, opened):
    run = with_tokens
    html = view_html(run)
    assert len(html)*(200/24)<3e6, 'as many bytes as 200 steps would take'
    row = next(o for o in run.rows if o['replacement'])
    page = opened(1280, html, at=f"#step={row['step']}&group={row['group']}")
    for kind,n in (('logps', 1), ('ratios', 1)):
        page.get_by_label('color text by').select_option(kind)
        page.wait_for_selector('.gv-card pre span[title]')
        side = page.locator('.gv-side').nth(0 if kind=='logps' else 1)
        texts = side.locator('.gv-card pre').first.locator('span[title]')
        want = (row['tokens'] if kind=='logps' else None)
        numbers = row['logps'][0] if kind=='logps' else row['replacement']['ratios'][0]
        assert texts.count()==len(numbers)
        title = texts.first.get_attribute('title').replace('−', '-')
        assert float(title)==pytest.approx(numbers[0], abs=6e-3)
        if want: assert texts.all_inner_texts()[0].strip()==want[0][0].strip()

def test_what_a_tool_wrote_stays_plain_among_colored_tokens(with_tokens, opened):
    run = copy.deepcopy(with_tokens)
    row = next(o for o in run.rows if not o['replacement'] and len(o['tokens'][0])>2)
    row['ratios'][0][1] = row['logps'][0][1] = None
    by = dict(dapo=dict(weight=[.1], term=[row['logps'][0]], share=[row['logps'][0]], clip=[row['logps'][0]]))
    numbers = dict(policy=row['logps'][:1], ratio=row['ratios'][:1])
    row_terms = dict(tokens=row['tokens'][:1], loss=0., by=by)|numbers
    for terms in (None, row_terms):
        row['terms'] = terms
        page = opened(1280, view_html(run), at=f"#step={row['step']}&group={row['group']}")
        for kind in ('logps','ratios'):
            page.get_by_label('color text by').select_option(kind)
            first = page.locator('.gv-side').nth(0).locator('.gv-card pre').nth(0)
            colored = first.locator('span[style*=background]')
            colored.first.wait_for()
            assert first.inner_text().strip()==''.join(row['tokens'][0]).strip()
            assert colored.count()==len(row['tokens'][0])-1
    option = page.get_by_role('listbox').locator('[role=option]')
    option.nth(1).click()
    page.get_by_text('A tool wrote this token, so it is not in the loss.').wait_for()
    option.nth(2).click()
    page.get_by_role('table').filter(has_text='this run').wait_for()

# ---- the widget

def test_the_widget_answers_what_the_page_asks_for(run):
    w = view_run(run, step=run.steps[2], group=3)
    sent = []
    w.send = lambda m, buffers=None: sent.append((m, buffers))
    w._answer(w, dict(id=1, block=0), [])
    assert (
        Opened(dict(head=w.packed['head'], texts={0: sent[0][1][0]})).texts(0)[0]['prompt']
        == run.by_step[run.steps[0]][0]['prompt']
    )
    assert sent[0][0]==dict(id=1) and (w.step, w.group)==(run.steps[2], 3)

def test_reread_takes_in_what_the_run_has_written_since(tmp_path):
    r = make_run(tmp_path/'r', n_steps=3)
    lines = (r/'groups.jsonl').read_text().splitlines(True)
    (r/'groups.jsonl').write_text(''.join(lines[:8]))
    w = view_run(r)
    assert Opened(w.packed).S==1
    (r/'groups.jsonl').write_text(''.join(lines))
    w.reread()
    assert Opened(w.packed).S==3
