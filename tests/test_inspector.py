"The inspector: its view by another road, its drawing escaped, its page without a kernel."
import json, math, re, time
import numpy as np, pytest, torch
from html.parser import HTMLParser
from grpo_nb.inspector import *
from grpo_nb.inspector import CSS, WHAT_IFS
from grpo_nb.records import Recorder, group_rows, read_run
from grpo_nb.replay import ReplayBuffer
from made_runs import make_run

@pytest.fixture(scope='module')
def run(tmp_path_factory): return read_run(make_run(tmp_path_factory.mktemp('i')/'run', n_steps=12, stride=4))

# --- the buffer's second life

def test_at_the_runs_own_settings_the_second_life_is_the_first(run):
    again = replay_over(run, buffer_size=16)
    told = {(o['step'],o['group']):o['replacement'] for o in run.rows if o['replacement']}
    assert len(told)>20 and set(told)==set(again['came'])
    for k,n in told.items(): assert all(again['came'][k][f]==pytest.approx(n[f]) for f in ('id','step','age','uses','score','prob','prompt','completions','rewards'))

def test_recorded_and_recomputed_agree_on_what_lay_in_the_buffer(run):
    a,b = replay_over(run, buffer_size=16),replay_over(run, buffer_size=16, recorded=True)
    assert a['stored'].keys()==b['stored'].keys() and all(a['stored'][k]['out']==b['stored'][k]['out'] and a['stored'][k]['used']==b['stored'][k]['used'] for k in a['stored'])

@pytest.mark.parametrize('size', [0, 1, 5, 64])
def test_the_buffer_holds_the_best_groups_seen(run, size):
    "By a plain loop: after each step the best `size`, newest first among equals."
    life,seen = replay_over(run, buffer_size=size),[]
    for step,rows in run.by_step.items():
        seen += [(o['score'], step, o['group']) for o in rows if max(o['rewards'])-min(o['rewards'])>1e-6]
        best = sorted(seen, key=lambda o: (o[0], o[1], o[2]), reverse=True)[:size]
        assert {(o['step'],o['group']) for o in buffer_view(life, step)['entries']}=={o[1:] for o in best}

@pytest.mark.parametrize('limit', [0, 4, 12])
def test_nothing_older_than_the_limit_comes_in(run, limit):
    life = replay_over(run, age_limit=limit)
    assert all(n['age']<=limit and n['age']==k[0]-n['step'] for k,n in life['came'].items())
    for s in run.steps: assert all(o['age']<=limit for o in buffer_view(life, s)['entries'])
    assert (len(life['came'])==0)==(limit==0)

def test_uses_count_how_often_a_group_came_back(run):
    life = replay_over(run, buffer_size=3)
    for i,o in life['stored'].items():
        back = [k[0] for k,n in life['came'].items() if n['id']==i]
        assert o['used']==back and all(s>o['step'] for s in back)
    for k,n in life['came'].items(): assert n['uses']==sum(m['id']==n['id'] and (s,g)<=k for (s,g),m in life['came'].items())

# --- the view

def test_the_view_of_a_replaced_group_shows_both(run):
    row = next(o for o in run.rows if o['replacement']); v = inspector_view(run, row['step'], row['group']); g = v['group']
    born = next(o for o in run.rows if o['id']==row['replacement']['id'])
    assert [c['text'] for c in g['completions']]==row['completions'] and [c['text'] for c in g['incoming']]==born['completions']
    assert [c['after'] for c in g['incoming']]==born['advantages'] and g['newcomer']['step']==born['step'] and g['known'] and g['ratio_hist']==row['ratio_hist']
    assert v['n_dead']==sum(o['dead'] for o in run.by_step[row['step']]) and v['recorded']

def test_counts_of_each_step_equal_the_record(run):
    for s in run.steps:
        v = inspector_view(run, s); rows = run.by_step[s]
        assert v['n_dead']==sum(o['dead'] for o in rows) and v['n_replaced']==sum(o['treatment']=='replaced' for o in rows) and v['n_live']==len(rows)-v['n_dead']
        assert [o['why'] for o in v['groups']]==[o['why'] for o in rows]

def test_off_replaces_none_and_a_kept_dead_group_has_advantage_zero(run):
    row = next(o for o in run.rows if o['replacement']); v = inspector_view(run, row['step'], row['group'], 'off')
    assert v['n_replaced']==0 and v['group']['incoming']==[] and not v['group']['known'] and v['group']['ratio_hist'] is None and all(c['after']==0 for c in v['group']['completions'])
    live = next(o for o in run.rows if not o['dead']); g = inspector_view(run, live['step'], live['group'], 'off')['group']
    assert [c['after'] for c in g['completions']]==live['advantages'] and g['known']

def test_uncorrected_draws_the_same_groups_and_takes_their_ratio_as_one(run):
    row = next(o for o in run.rows if o['replacement'])
    a,b = (inspector_view(run, row['step'], row['group'], m) for m in ('on','uncorrected'))
    assert [o['newcomer'] for o in a['groups']]==[o['newcomer'] for o in b['groups']] and not a['group']['as_one'] and b['group']['as_one']
    assert 'takes all of these as 1' in draw_inspector(b) and 'takes all' not in draw_inspector(a)

def test_tolerance_decides_who_is_dead(tmp_path):
    rec = Recorder(tmp_path); r = torch.tensor([[0., .05], [0., 1.], [.1+8e-9, .1], [1., 1.], [0., 0.], [.5, .5]])
    rec.groups(1, group_rows(1, list('abcdef'), ['x']*12, r, advantages_before=r-r.mean(1, keepdim=True))); run = read_run(tmp_path)
    why = lambda t: [o['why'] for o in inspector_view(run, 1, tolerance=t)['groups']]
    assert why(None)==[None, None, 'float-noise', 'all-right', 'all-wrong', 'equal'] and why(.06)[0]=='within-tolerance' and why(.06)[1] is None and why(1.)[1]=='within-tolerance' and why(0.)[2] is None

def test_bad_calls_are_refused_in_words(run, tmp_path):
    for kw,say in ((dict(step=3), 'no groups on record'), (dict(group=8), 'choose 0 to 7'), (dict(group=-1), 'choose 0'), (dict(replay='maybe'), 'choose one of'), (dict(buffer_size=-1), 'max_size')):
        with pytest.raises(ValueError, match=say): inspector_view(run, **kw)
    Recorder(tmp_path).log(dict(step=1, loss=0.))
    for f in (inspect_run, inspector_html):
        with pytest.raises(ValueError, match='no groups to look at'): f(tmp_path)
    with pytest.raises(ValueError, match='no folder'): inspect_run(tmp_path/'none')

@pytest.mark.parametrize('text,want', [('<answer>3</answer>', '3'), ('a <answer>1</answer> b <answer>2\n3</answer>', '2\n3'), ('\\boxed{x^2}', 'x^2'), ('so\n#### 1,234\n', '1,234'), ('<answer>5', None), ('', None), ('<answer></answer>', '')])
def test_the_last_answer_is_found(text, want):
    span = answer_span(text); assert (text[slice(*span)] if span else None)==want

# --- odd records

@pytest.mark.parametrize('G', [2, 64])
def test_any_group_size_is_drawn(tmp_path, G):
    r = read_run(make_run(tmp_path/'r', n_steps=3, B=4, G=G, T=4)); h = draw_inspector(inspector_view(r, group=1))
    assert re.search(r'class="picked">Group 1', h) and h.count('<div class="card">')%G==0 and len(re.findall(r'<span class="dots"[^>]*>((?:<i[^>]*></i>)+)', h))>=4
    assert len(re.findall(r'<i ', draw_dots([1.]*G, (0, 1))))==G

def test_missing_values_and_old_records_are_drawn(tmp_path):
    (tmp_path/'groups.jsonl').write_text(json.dumps(dict(step=1, group=0, prompt='q', completions=['a','b'], rewards=[1., None], advantages=[0., 0.]))+'\n'+json.dumps(dict(step=1, group=1, prompt='q', completions=['a','b'], rewards=[1., 0.], advantages=[.7, -.7]))+'\n{"step": 1, "gr')
    for g in (0, 1):
        for m in ('on','off','uncorrected'): assert 'Group' in draw_inspector(inspector_view(read_run(tmp_path), 1, g, m))
    h = draw_inspector(inspector_view(read_run(tmp_path))); assert '? unscored' in h and 'class="none">?' in h and 'rewards 1, not scored' in h and '? unscored' in inspector_html(tmp_path)

def test_a_newcomer_without_text_is_said(tmp_path):
    rec = Recorder(tmp_path); rec.groups(5, group_rows(5, ['q'], ['a','b'], [[0., 0.]], advantages_before=[[0., 0.]], records=[dict(treatment='replaced', replacement=dict(id=7, step=1, age=4, uses=1, score=1., prob=.1))]))
    assert 'not in the record' in draw_inspector(inspector_view(read_run(tmp_path))) and 'born at step 1, 4 old' in inspector_html(tmp_path)

def test_a_run_that_masks_its_dead_groups_says_so(tmp_path):
    r = read_run(make_run(tmp_path/'r', method='mask'))
    assert 'left out of the loss' in draw_inspector(inspector_view(r, r.steps[0], replay='off')) and inspector_view(r)['recorded'] is False and inspector_view(r)['n_replaced']>0

# --- what TRL itself writes

@pytest.fixture(scope='module')
def trl_log(tmp_path_factory):
    "A plain GRPOTrainer that logs its completions, at every step; each generation serves two of them. With what its rewards were asked."
    from trl import GRPOConfig, GRPOTrainer
    from faulty_runs import fresh, sums
    out,asked = tmp_path_factory.mktemp('trl')/'out',[]
    def even(completions, prompts, **kw):
        asked.append((prompts, completions))
        return [float(len(c[0]['content'])%2) for c in completions]
    def short(completions, **kw): return [-len(c[0]['content'])/64 for c in completions]
    model,tok = fresh()
    args = GRPOConfig(output_dir=str(out), per_device_train_batch_size=4, num_generations=4, steps_per_generation=2, max_steps=6, max_completion_length=8, logging_steps=1, log_completions=True, num_completions_to_print=0,
        learning_rate=1e-4, report_to='none', use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy='no', disable_tqdm=True, seed=0)
    t = GRPOTrainer(model=model, reward_funcs=[even, short], args=args, train_dataset=sums(), processing_class=tok)
    t.train()
    return out,asked,t

def test_trls_own_log_of_completions_opens(trl_log):
    out,asked,t = trl_log
    run = open_run(out)
    assert len(asked)==3 and len(run.rows)==6 and run.steps==[1, 3, 5]
    for step,(prompts,cs) in zip(run.steps, asked):
        for g,o in enumerate(run.by_step[step]):
            mine = slice(4*g, 4*g+4)
            assert [c[0]['content'] for c in cs[mine]]==o['completions'] and all(p[-1]['content'] in o['prompt'] for p in prompts[mine])
            n = np.array([len(c) for c in o['completions']])
            assert np.allclose(o['rewards'], n%2-n/64) and np.allclose(o['rewards_by_func']['even'], n%2) and o['dead']==(len(set(n))==1)
            A = np.array(o['rewards'])-np.mean(o['rewards'])
            assert np.allclose(o['advantages'], A/(np.std(o['rewards'], ddof=1)+1e-4), atol=1e-4)
    h = draw_inspector(inspector_view(run, 3, 1))
    assert 'Group 1, sampled at step 3' in h and run.by_step[3][1]['completions'][0] in h.replace('&lt;', '<').replace('&gt;', '>').replace('<mark>', '').replace('</mark>', '')
    assert 'replay off' in inspector_html(out) or 'replay' in inspector_html(out)

def test_the_log_is_read_with_the_curves_where_there_is_a_checkpoint(trl_log):
    out,_,t = trl_log
    t.save_state()
    assert len(open_run(out).history)>=6 and len(open_run(out).rows)==6
    (out/'trainer_state.json').unlink()

def test_rows_that_make_no_groups_are_left_out(tmp_path):
    import pandas as pd
    (tmp_path/'completions').mkdir()
    pd.DataFrame(dict(step=1, prompt=list('aab'), completion=list('xyz'), f=[1.,0.,None], advantage=0.)).to_parquet(tmp_path/'completions'/'completions_00001.parquet')
    with pytest.raises(ValueError, match='no groups to look at'): inspect_run(tmp_path)
    pd.DataFrame(dict(step=2, prompt=list('aabb'), completion=list('xyzz'), f=[1.,0.,None,None], advantage=0.)).to_parquet(tmp_path/'completions'/'completions_00002.parquet')
    assert [(o['step'], o['rewards'], o['why']) for o in open_run(tmp_path).rows]==[(2, [1., 0.], None), (2, [None, None], 'unscored')]

# --- escaping

EVIL = ['<script>alert(1)</script>', '<img src=x onerror=alert(1)>', '"><svg onload=alert(1)>', "' onmouseover='alert(1)", '</pre></div><iframe src=javascript:alert(1)>', '<!-- <script>', '&lt;b&gt;', '\u202e\u2028 好 🎉 \x00', '</script><script>alert(2)</script>', '<answer><b>4</b></answer>', '#### <i>', '\\boxed{<u>}']
class Tags(HTMLParser):
    def __init__(self): super().__init__(); self.tags,self.attrs = set(),set()
    def handle_starttag(self, tag, attrs): self.tags.add(tag); self.attrs |= {k for k,_ in attrs}

def evil_run(folder):
    G = len(EVIL); rec = Recorder(folder, settings=dict(seed=0)); r = torch.zeros(2, G); r[0,0] = 1
    for s in (1, 2): rec.groups(s, group_rows(s, [EVIL[s], ''.join(EVIL)], EVIL*2, r, records=[dict(treatment=EVIL[0], id=s-1), dict(treatment='replaced', replacement=dict(id=0, step=1, age=1, uses=1, key=EVIL[1])) if s==2 else dict(treatment=EVIL[1])],
        rewards_by_func={EVIL[0]:r, EVIL[3]:r}, advantages_before=r, advantages=r, key=[EVIL[0], EVIL[1]], why=[None, EVIL[2]], truncated=r>0))
    return folder

def test_a_completion_cannot_become_html(tmp_path):
    run = read_run(evil_run(tmp_path)); ours = Tags(); ours.feed(draw_inspector(inspector_view(read_run(make_run(tmp_path/'ok', n_steps=3)), replay='uncorrected', group=0)))
    for g in (0, 1):
        for m in ('off','on'):
            h = draw_inspector(inspector_view(run, 2, g, m)); p = Tags(); p.feed(h)
            assert p.tags<=ours.tags|{'h4','mark','title','circle','path','rect','text','svg','br'} and not {a for a in p.attrs if a.startswith('on')}, p.tags-ours.tags
    assert '<mark>&lt;b&gt;4&lt;/b&gt;</mark>' in h.replace('\n', '') or '&lt;b&gt;4' in h
    page = inspector_html(run); assert page.count('</script')==2 and page.count('<script')==2 or page.lower().count('</script')==2   # its own two

def test_a_completion_cannot_run_in_the_page(tmp_path, browser):
    page = browser.new_page(); said = []
    page.on('dialog', lambda d: (said.append(d.message), d.dismiss())); page.on('pageerror', lambda e: said.append(str(e)))
    f = tmp_path/'p.html'; f.write_text(inspector_html(evil_run(tmp_path/'r')), encoding='utf-8'); page.goto(f'file://{f}')
    for i in (0, 1):
        page.locator('.row').nth(i).click(); assert 'alert(1)' in page.locator('#view').inner_text()
    f.write_text('<body>'+inspector_frame(tmp_path/'r')+'</body>', encoding='utf-8'); page.goto(f'file://{f}'); page.frame_locator('iframe').locator('.row').nth(1).click()
    assert page.frame_locator('iframe').locator('script').count()==2 and page.frame_locator('iframe').locator('#view img, #view script, #view iframe').count()==0
    assert said==[]; page.close()

# --- the page

def test_the_page_moves_without_a_kernel(run, browser, tmp_path):
    f = tmp_path/'p.html'; f.write_text(inspector_html(run), encoding='utf-8')
    page = browser.new_page(viewport=dict(width=400, height=800)); asked = []; page.on('request', lambda r: asked.append(r.url)); page.goto(f'file://{f}')
    seen = lambda: page.locator('#view').inner_text()
    assert f'step {run.steps[-1]} of' in seen()
    page.locator('#step').focus(); page.keyboard.press('Home'); page.keyboard.press('ArrowRight')
    assert f'step {run.steps[1]} of' in seen()
    step = next(s for s in run.steps if inspector_view(run, s)['n_replaced']); i = run.steps.index(step); page.keyboard.press('Home'); [page.keyboard.press('ArrowRight') for _ in range(i)]
    row = next(o for o in run.by_step[step] if o['replacement']); page.locator('.row').nth(row['group']).click()
    assert f"Group {row['group']}, sampled at step {step}" in seen() and f"What came in: group {row['replacement']['id']}" in seen() and row['replacement']['completions'][0] in seen()
    page.get_by_role('button', name='replay off').click(); assert 'What came in' not in seen() and '0 replaced' in seen()
    page.get_by_role('button', name='replay on').click(); page.locator('#if').select_option('tolerance 1: all dead'); assert '8 of 8 groups dead, 0 replaced' in seen()
    page.locator('.row').nth(0).click(); page.keyboard.press('ArrowDown'); assert f'Group 1, sampled' in seen()
    assert page.evaluate('document.documentElement.scrollWidth')<=400 and len(asked)==1
    page.locator('#step').focus(); page.keyboard.press('Home'); page.get_by_role('button', name='play', exact=True).click(); page.wait_for_function(f"document.querySelector('#view').innerText.includes('step {run.steps[2]} of')"); page.close()

def test_every_frame_of_the_page_is_the_view_drawn(run):
    D = json.loads(re.search(r'id="data">(.*?)</script>', inspector_html(run), re.S)[1]); T = D['texts']
    for m in ('off','on','uncorrected'):
        for k,kw in WHAT_IFS.items():
            for i in (0, 5, len(run.steps)-1):
                for g in (0, 6):
                    v = inspector_view(run, D['steps'][i], g, m, **kw); f = D['frames'][m][k][i]
                    assert T[f[0]]==draw_head(v) and [T[o] for o in f[2][g]]==draw_group(v['group'], v['scale'], 600) and T[f[3]]==draw_buffer(v['buffer'], v['buffer_size']) and T[f[1][g]]==draw_row(v['groups'][g], v['scale'])

def test_a_long_run_gives_a_page_of_at_most_five_megabytes(tmp_path):
    folder = make_run(tmp_path/'r', n_steps=60, B=16); f = write_inspector(folder)
    D = json.loads(re.search(r'id="data">(.*?)</script>', f.read_text(), re.S)[1])
    assert f.stat().st_size<5e6 and len(D['steps'])==30 and D['steps'][0]==0 and D['steps'][-1]==59

# --- handles

def test_handles_redraw_and_read_again_sees_new_steps(tmp_path):
    folder = make_run(tmp_path/'r', n_steps=4, summary=False); box = inspect_run(folder); h = box.handles
    h['step'].value = 2; h['group'].value = 0; assert 'step 2</b> of 3' in box.body.value
    h['group'].value = 5; assert 'Group 5, sampled at step 2' in box.body.value
    h['replay'].value = 'off'; assert '<b>0</b> replaced' in box.body.value
    h['tolerance'].value = 1.; assert '<b>8</b> of 8 groups dead' in box.body.value
    rows = read_run(folder).by_step[3]; Recorder(folder, resume_step=3).groups(4, rows)
    next(o for c in box.children for o in getattr(c, 'children', ()) if getattr(o, 'description', '')=='read again').click()
    assert h['step'].options[-1]==4 and h['step'].value==2

# --- speed

def test_five_hundred_steps_open_in_a_second_and_move_in_a_tenth(tmp_path):
    folder = make_run(tmp_path/'r', n_steps=500, B=16, buffer_size=64, T=8);
    best = lambda f, n: min(_timed(f) for _ in range(n))
    opened = best(lambda: inspect_run(folder), 3); box = inspect_run(folder); steps = iter(range(10, 500, 7))
    moved = best(lambda: setattr(box.handles['step'], 'value', next(steps)), 10)
    print(f'opened in {opened:.2f} s, moved in {moved*1e3:.1f} ms, {(folder/"groups.jsonl").stat().st_size/1e6:.1f} MB')
    assert opened<1 and moved<.1

def _timed(f):
    "Processor seconds: other work on the machine is not ours."
    t = time.process_time(); f(); return time.process_time()-t
