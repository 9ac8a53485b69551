"What one token adds to the loss: the terms by other roads, in a record, and the update that followed."
import json
import pytest, torch
from browsing import CONTRAST, RULES, axe_errors
from grpo_nb.advantages import group_advantages
from grpo_nb.inspector import add_token_terms, inspector_html
from grpo_nb.variants.token_terms import TokenTermsCallback, token_terms
from grpo_nb.parts.registry import LOSSES
from grpo_nb.parts.loss_settings import LossSettings, parse_correction
from grpo_nb.parts.loss_inputs import LossInputs
from grpo_nb.parts.datasets import chain_sum
from grpo_nb.run.reading import LoggedRun, read_run
from grpo_nb.run.record import Recorder
from grpo_nb.see.monitor import record_batch
from grpo_nb.see.readers import open_run
from grpo_nb.tasks import accuracy_reward
from grpo_nb.tiny_qwen import load_model
from grpo_nb.trainer import TrainConfig, init_state, train, train_batch
from loss_calls import all_terms_of, loss_of, terms_of

LOSS_TYPES = [*LOSSES]

def batch(seed=0, B=3, G=4, T=6):
    g = torch.Generator().manual_seed(seed)
    old = torch.rand(B, G, T, generator=g).log()
    logps = (old+.4*torch.randn(B, G, T, generator=g)).clamp(max=-1e-3)
    mask = torch.arange(T)<torch.randint(1, T+1, (B, G, 1), generator=g)
    return logps,old,group_advantages(torch.rand(B, G, generator=g)),mask

WAYS = [dict(), dict(beta=.1), dict(importance_sampling_level='sequence'), dict(delta=1.3, epsilon_high=.5),
    dict(top_entropy_quantile=.5, entropy_coef=.02), dict(num_items=50, num_rows=20), dict(
    off_policy_mask_threshold=.1)]

@pytest.mark.filterwarnings('ignore:.luspo.')
@pytest.mark.parametrize('how', WAYS, ids=lambda o: '-'.join(o) or 'plain')
@pytest.mark.parametrize('kind', LOSS_TYPES)
def test_the_terms_sum_to_the_loss_and_pushes_are_slopes(kind, how):
    logps,old,A,m = (o.double() if o.is_floating_point() else o for o in batch())
    given = dict(ref_logps=old, entropy=-logps)|{k:how[k] for k in how if k.startswith('num')}
    how = {k:v for k,v in how.items() if k not in given}|(dict(epsilon_high=1.3) if kind=='cispo' else {})
    s = LossSettings(kind, max_completion_length=6, **how)
    got = terms_of(logps, old, A, m, s, **given)
    def loss(x): return loss_of(x, old, A, m, s, **given).item()
    assert abs(got['term'].sum().item()-loss(logps))<1e-6 and not got['term'][~m].any()
    if kind in ('cispo','vespo') or 'off_policy_mask_threshold' in how: return   # a factor is held constant
    for at in m.nonzero()[::7].tolist():
        bump = torch.zeros_like(logps)
        bump[tuple(at)] = 1e-6
        slope = (loss(logps+bump)-loss(logps-bump))/2e-6
        assert got['push'][tuple(at)].item()==pytest.approx(slope, abs=1e-6)

def make(folder=None, **how):
    model,tok = load_model('tiny')
    settings = dict(max_steps=8, num_generations=4, generation_batch_size=32, steps_per_generation=2,
        learning_rate=1e-3, disable_tqdm=True)|how
    return model,tok,chain_sum(100, seed=0),accuracy_reward,TrainConfig(output_dir=folder, **settings)

def sums(run):
    "{step: {loss of an update: the sum of its tokens' terms}}"
    out = {}
    for o in run.rows:
        t = (o['replacement'] or {}).get('terms') or o.get('terms')
        if not t: continue
        here = out.setdefault(o['step'], {})
        own = next(iter(t['by'].values()))
        here[t['loss']] = here.get(t['loss'], 0.)+sum(map(sum, own['term']))
    return out

@pytest.mark.parametrize('kind', ['dapo','grpo','cispo'])
def test_a_record_holds_terms_that_sum_to_the_loss_that_was_logged(kind, tmp_path):
    train(*make(str(tmp_path), loss_type=kind, beta=.02, epsilon_high=5. if kind=='cispo' else None),
        callbacks=[TokenTermsCallback(2)], print_verdict=False)
    run = read_run(tmp_path)
    recorded,logged = sums(run),dict(zip(run.history['step'], run.history['loss']))
    assert list(recorded)==[0, 4]   # every other batch
    for at,by in recorded.items():
        assert [(loss,total) for loss,total in by.items() if not (abs(loss-total)<1e-6)]==[]
        assert len(by)==2 and abs(sum(by.values())/2-logged[at])<1e-6
    row = next(o['terms'] for o in run.rows if o.get('terms'))
    assert list(row['by'])[0]==kind and len(row['by'])==len(LOSS_TYPES)

def test_advantages_of_tokens_are_recorded_as_the_mean_of_each_answer(tmp_path):
    s = init_state(*make(str(tmp_path), strategy='entropy', generation_batch_size=16))
    info = train_batch(s)
    rec = Recorder(tmp_path)
    record_batch(rec, s, info)
    rec.close()
    x,rows = info.processed.batch,read_run(tmp_path).rows
    assert x.advantages.ndim==3 and len(rows)==4 and any(o['dead'] for o in rows)
    for b,row in enumerate(rows):
        answers = [x.advantages[b,g][x.completion_mask[b,g]].tolist() for g in range(4)]
        assert row['advantages']==pytest.approx([sum(o)/len(o) for o in answers], abs=1e-6)
        if not row['dead']: assert row['advantages']==pytest.approx(row['advantages_before'], abs=1e-6)

def test_answers_that_are_left_out_have_no_terms():
    with pytest.raises(ValueError, match='set skip_zero_advantage=False'):
        train(*make(skip_zero_advantage=True), callbacks=[TokenTermsCallback()], print_verdict=False)

def test_writing_them_down_changes_no_bit_of_the_run(tmp_path):
    runs = [train(*make(str(tmp_path/str(n)), max_steps=4), callbacks=[TokenTermsCallback()]*n,
        print_verdict=False) for n in (0, 1)]
    for a,b in zip(*(r.model.parameters() for r in runs)): assert torch.equal(a, b)
    rows = [json.loads(o) for o in open(tmp_path/'0'/'groups.jsonl', encoding='utf-8')]
    assert not any('terms' in o for o in rows)

def widened(ratio, A, width=1.): return width*ratio*A

def test_the_other_losses_are_not_asked_for_the_options_of_the_runs_own(tmp_path):
    logps,old,A,m = batch()
    own,plain = (all_terms_of(logps, old, A, m, LossSettings(widened, loss_kwargs=o))
        for o in (dict(width=3.), {}))
    assert torch.allclose(own['widened']['term'], 3*plain['widened']['term'])
    for k in LOSSES: assert all(torch.equal(v, plain[k][n]) for n,v in own[k].items())
    train(*make(str(tmp_path), loss_type=widened, loss_kwargs='width=3', max_steps=2),
        callbacks=[TokenTermsCallback()], print_verdict=False)
    assert {*LOSSES, 'widened'}==set(read_run(tmp_path).rows[0]['terms']['by'])

KINDS = dict(aggregation='dr_grpo'),dict(loss_kwargs='sapo_temperature_pos=4')

@pytest.mark.parametrize('option', KINDS, ids=lambda o: '-'.join(o))
def test_terms_made_from_a_record_add_up_to_the_runs_own_loss(option, tmp_path):
    settings = dict(loss_type='sapo', strategy='keep', record_tokens=True, max_steps=2, learning_rate=1e-3,
        steps_per_generation=1)
    train(*make(str(tmp_path), **settings|option), print_verdict=False)
    run = read_run(tmp_path)
    rows = [o for o in add_token_terms(run).rows if o['step']==run.rows[-1]['step']]
    assert all(o['terms']['named'] for o in rows)
    total = sum(sum(map(sum, o['terms']['by']['sapo']['term'])) for o in rows)
    assert total==pytest.approx(run.history['loss'].iloc[-1], abs=1e-5)

def terms_of_a_row(**args):
    row = dict(step=0, group=0, prompt='q', completions=['a b','c'], rewards=[0., 1.], replacement=None,
        tokens=[['a',' b'], ['c']], logps=[[-1., -2.], [-4.]])
    row['token_logps'] = dict(old=[[-1.3, -2.], [-4.5]], policy=row['logps'])
    settings = dict(trainer='grpo_nb', versions={}, args=dict(loss_type='dapo', aggregation=None)|args)
    return add_token_terms(LoggedRun(None, settings, None, [row], {})).rows[0]['terms']

@pytest.mark.parametrize('weight', ['truncated','none','sequence'])
def test_terms_made_from_a_record_are_corrected_as_the_run_was(weight):
    correction = f'weight={weight},weight_cap=1.2,clip=none'
    logps,old = (torch.tensor([[[a, b], [c, 0.]]]) for a,b,c in ((-1.,-2.,-4.), (-1.3,-2.,-4.5)))
    A,mask = torch.tensor([[-.7070, .7070]]),torch.tensor([[[True, True], [True, False]]])
    x = LossInputs(logps, old, A, mask, prox_logps=old)
    corrected = token_terms(x, LossSettings(correction=parse_correction(correction)))['term'][mask]
    terms = terms_of_a_row(correction=correction)['by']['dapo']['term']
    assert [v for o in terms for v in o]==pytest.approx(corrected.tolist(), abs=1e-3)

def test_a_loss_that_is_not_known_here_is_not_named_by_another():
    assert terms_of_a_row()['named'] and terms_of_a_row(aggregation='grpo')['named']
    for args in (dict(loss='mine'), dict(loss_type='mine'), dict(aggregation='mine.py:by_hand')):
        assert not terms_of_a_row(**args)['named']

# ---- other people's files

def test_what_any_trainer_writes_opens_with_every_token(tmp_path):
    logps,old,A,m = batch(B=2)
    r,words = (A>0).float(),[[f' t{j}' for j in range(int(n))] for n in m.sum(-1).flatten()]
    def lists(x): return [o[:len(w)].tolist() for o,w in zip(x.flatten(0, 1), words)]
    columns = dict(prompt=[f'q{g}' for g in (0, 1) for _ in range(4)],
        completion=[''.join(w) for w in words], reward=r.flatten().tolist(), advantage=A.flatten().tolist(),
        tokens=words, logps=lists(old), policy_logps=lists(logps), after_logps=lists(logps+.1))
    written = [dict(zip(columns, o), step=3) for o in zip(*columns.values(), strict=True)]
    (tmp_path/'a').mkdir()
    (tmp_path/'a'/'r.jsonl').write_text(''.join(json.dumps(o)+'\n' for o in written))
    run = add_token_terms(open_run(tmp_path/'a'))
    want = terms_of(logps, old, A, m)
    for g,o in enumerate(run.rows):
        t = o['terms']
        assert t['tokens']==words[4*g:4*g+4] and not t['words'] and t['named'] is False
        for i,mine in enumerate(t['by']['dapo']['term']):
            assert mine==pytest.approx(want['term'][g,i][m[g,i]].tolist(), abs=1e-6)
        assert t['after'][0]==pytest.approx((logps[g,0]+.1)[m[g,0]].tolist(), abs=1e-5)

def test_texts_and_rewards_alone_tell_how_much_a_word_weighs(tmp_path):
    rows = [dict(input='q', output='a b c'[:2*i+1], score=float(i), step=1) for i in range(3)]
    (tmp_path/'1.jsonl').write_text(''.join(json.dumps(o)+'\n' for o in rows))
    t = add_token_terms(open_run(tmp_path)).rows[0]['terms']
    assert t['words'] and t['tokens']==[['a'], ['a',' b'], ['a',' b',' c']] and 'policy' not in t
    assert t['by']['grpo']['weight']==pytest.approx([1/3, 1/6, 1/9], abs=1e-6)
    assert set(t['by']['grpo'])=={'weight'}
    assert t['by']['dapo']['weight']==pytest.approx([1/6]*3, abs=1e-6)

def test_numbers_that_do_not_fit_the_tokens_are_left_aside(tmp_path):
    rows = [dict(prompt='q', completion='x y', reward=float(i), tokens=['x',' y'], logps=[-1., -2.][:1+i],
        ref_logps='none') for i in range(2)]
    (tmp_path/'r.jsonl').write_text(''.join(json.dumps(o)+'\n' for o in rows)+'{"prompt": "q", "compl')
    run = add_token_terms(open_run(tmp_path))
    assert run.rows[0]['tokens'] is None and run.rows[0]['terms']['words']
    assert any('1 lines could not be read' in n for n in run.notes) and inspector_html(run)

def test_answers_of_which_not_every_token_has_a_log_prob_get_no_terms():
    def rows(logps): return [dict(step=1, group=0, prompt='q', completions=['ab c','d'], rewards=[0., 1.],
        replacement=None, tokens=[['a','b',' c'], ['d']], logps=logps)]
    def terms(logps):
        run = LoggedRun(None, dict(trainer='trl', versions={}), None, rows(logps), {})
        return 'terms' in add_token_terms(run).rows[0]
    assert terms([[-1., -2., -3.], [-4.]]) and not terms([[-1., -3.], [-4.]])   # a tool wrote 'b'

# ---- the pane, in a browser

@pytest.mark.parametrize('width,scheme', [(1280, 'light'), (400, 'dark')])
def test_the_pane_is_for_everybody(browser, axe, tmp_path, width, scheme):
    (tmp_path/'i.html').write_text(inspector_html('nbs/results/run_tiny'))
    ctx = browser.new_context(viewport=dict(width=width, height=900), color_scheme=scheme)
    pg,errors = ctx.new_page(),[]
    pg.on('request', lambda r: r.url.startswith(('file:','data:')) or errors.append(r.url))
    pg.on('pageerror', lambda e: errors.append(str(e)))
    pg.on('console', lambda m: errors.append(m.text))
    pg.goto(f'file://{tmp_path}/i.html#step=20&group=0')
    pg.get_by_role('button', name='the one with the largest share').click()
    box = pg.get_by_role('listbox').first
    first = box.get_by_role('option').first.inner_text()
    box.focus()
    pg.keyboard.press('Home')
    pg.locator('.gv-token', has_text=f'“{first}”, token 1 of answer 1').wait_for()
    pg.keyboard.press('ArrowRight')
    pg.locator('.gv-token', has_text='token 2 of answer 1').wait_for()
    tooltip = pg.inner_text('.gv-token')
    assert 'dapo, this run' in tooltip and 'vespo' in tooltip
    assert box.get_by_role('option', selected=True).count()==1
    assert pg.evaluate('document.documentElement.scrollWidth<=innerWidth')
    assert pg.evaluate("""[...document.querySelectorAll('.gv-token .gv-wide')].every(
        o => o.scrollWidth<=o.clientWidth+1)"""), 'the table of losses is cut off'
    if axe:
        pg.evaluate(axe)
        assert axe_errors(pg.main_frame, RULES)==[] and axe_errors(pg.main_frame, CONTRAST)==[]
    assert errors==[]
    ctx.close()
