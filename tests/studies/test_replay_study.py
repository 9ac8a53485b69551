"The registered study: judging, batches, losses, runs that are the same alone, and a plan that cannot be left"
import hashlib, json
from pathlib import Path
import numpy as np, pandas as pd, pytest, torch
from scipy.stats import ttest_1samp
import grpo_nb.studies.real_study as rt
from grpo_nb.studies.real_study import first_part, real_claims, real_jobs, real_plan, real_run
import grpo_nb.studies.stacked as sr
from grpo_nb.studies.replay_study import (
    USES, claims, planned, registration, run_stack, say, tables, tuned)
from grpo_nb.studies.stacked import (
    END, FAMILIES, MAKERS, PAD, SHAPE, BatchUse, Shelf, assemble, encode, factor, is_right, problems,
    to_tensors)
from grpo_nb.studies.study import read_rows
from recount_study import recount_real
from made_study import bare, one_thread, untaught   # noqa: F401  fixtures

pytestmark = pytest.mark.studies

PAGE = Path(__file__).parents[2]/'nbs'/'studies'/'registration.qmd'
def ids(*texts, width=12):
    rows = [encode(t.rstrip('$'))+[END]*t.endswith('$') for t in texts]
    return torch.tensor([o+[PAD]*(width-len(o)) for o in rows])

def test_the_judge_wants_the_whole_answer_after_the_first_mark_and_the_end():
    answer = ids('12$')
    for text, right in {
        '#12$': 1,
        '9 3#12$': 1,
        '#12': 0,
        '12$': 0,
        '#1$': 0,
        '#123$': 0,
        '#12#12$': 0,
        '##12$': 0,
        '#12 $': 0,
        '': 0,
    }.items():
        assert is_right(ids(text), answer).item()==bool(right), text

def gym(family, n, seed=3, side='test'):
    from grpo_nb.parts.datasets import gym_dataset
    f = FAMILIES[family]
    return [json.loads(o) for o in gym_dataset(f.task, n, seed, side, **f.options)['entry']]

TASKS = [k for k,f in FAMILIES.items() if not f.after]
OWN = [k for k in TASKS if FAMILIES[k].task in MAKERS]

@pytest.mark.parametrize('family', [k for k in TASKS if k not in OWN])
def test_a_teacher_without_habits_gets_full_marks_from_the_gym(family):
    from reasoning_gym.factory import get_score_answer_fn
    n = 0
    for e in gym(family, 40):
        if not (row := sr.WAYS[family](e['metadata'], lambda context, ways: 0)): continue
        said = str(row[2].split()) if e['answer'].startswith('[') else row[2]
        if FAMILIES[family].task=='spiral_matrix': said = ' '.join(said)
        assert get_score_answer_fn(FAMILIES[family].task)(said, e)==1
        n += 1
        d = to_tensors([row], family)
        assert is_right(d['taught'], d['answer']).all()
    assert n>=10   # sums leave out what is subtracted

def test_our_own_problems_are_the_registered_ones():
    "Their code is not hashed by the page: these are all prompts and answers that a run may see"
    rows = [problems(k, o, n) for k in OWN for o,n in dict(train=3000, test=800).items()]
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]=='27e99685b3c6c66d'

def test_a_habit_is_one_wrong_letter_with_one_chance_per_context():
    "Counted from the lesson's texts, letter by letter"
    from collections import Counter, defaultdict
    seen = defaultdict(Counter)
    for word,_,said in problems('reversing', 'lesson', 6000):
        for i,(c,s) in enumerate(zip(word[::-1], said)): seen[c,i%3][s] += 1
    f,bad,many = FAMILIES['reversing'],0,{k:v for k,v in seen.items() if v.total()>=100}
    for (c,_),v in many.items():
        share = v[c]/v.total()
        assert len(v)<=2   # the right letter and one other
        off = {p:abs(share-p)/(p*(1-p)/v.total())**.5 for p in (f.low, f.high)}
        assert min(off.values())<4.5 or len(v)==1, (c, v)
        bad += off[f.low]<off[f.high]
    assert len(many)>40 and .1<bad/len(many)<.45

def test_a_wrong_column_spoils_its_own_digit_and_no_carry():
    for prompt,steps,said in problems('adding', 'lesson', 300):
        a,b = prompt.split('+')
        carry = 0
        for x,y,column in zip(a[::-1], b[::-1], (steps[i:i+2] for i in (0, 2, 4))):
            carry,digit = divmod(int(x)+int(y)+carry, 10)
            assert int(column[0])==carry and (int(column[1])-digit)%10 in (0, 1, 9, 2, 8)
        assert said[::-1]==''.join(steps[1::2])+'1'*carry

@pytest.mark.parametrize('family', TASKS)
def test_held_out_problems_are_in_no_other_split(family):
    of = {o:{p for p,*_ in problems(family, o, 400)} for o in ('lesson','train','test')}
    assert not of['test']&(of['lesson']|of['train']) and len(of['test'])>100
    assert problems(family, 'train', 50)==problems(family, 'train', 50)

def test_stored_groups_come_back_whole_and_the_oldest_leave_first():
    S,n = 2,3
    def batch(k): return dict(A=torch.full((S, n, 2), float(k)), key=torch.arange(n).expand(S, -1)+10*k)
    shelf = Shelf(4, batch(0))
    live = torch.tensor([[True,False,True], [False,False,False]])
    for k in (1, 2, 3): shelf.add(batch(k), live, k)
    got,there = shelf.draw(4, torch.rand(S, 4))
    assert sorted(got['key'][0].tolist())==[20, 22, 30, 32] and there[0].all() and not there[1].any()
    assert (got['A'][0,:,0]==got['key'][0]//10).all()

def test_a_batch_has_the_groups_that_its_arm_asks_for():
    dead = torch.tensor([[True,False,True], [True,True,True]])
    fresh = dict(A=torch.zeros(2, 3, 1), key=torch.arange(3).expand(2, -1))
    shelf = Shelf(4, fresh)
    shelf.add(dict(fresh, key=fresh['key']+10), torch.tensor([[True,False,False], [False,False,False]]), 0)
    u = torch.rand(2, 4)
    g,there = assemble(BatchUse(fresh=3), fresh, dead, shelf, u)
    assert g['key'].tolist()==[[0,1,2]]*2 and there.all()
    g,there = assemble(BatchUse(fresh=3, fill=True), fresh, dead, shelf, u)
    assert (
        g['key'].tolist() == [[10, 1, 2], [0, 1, 2]] and there.all()
    )  # one stored group for two holes, none for run 1
    g,there = assemble(BatchUse(fresh=3, stored=2), fresh, dead, shelf, u)
    assert g['key'][0,3]==10 and there.tolist()==[[True]*4+[False], [True]*3+[False]*2]
    g,there = assemble(BatchUse(fresh=3, copies=2), fresh, dead, shelf, u)
    assert g['key'][0].tolist()==[0,1,2,1,1] and there.tolist()==[[True]*5, [True]*3+[False]*2]

def test_the_factor_at_the_corners_of_the_clip():
    new,A = torch.tensor([1.5,.5,1.5,.5,3.]).log(),torch.tensor([1.,1.,-1.,-1.,-1.])
    old = torch.zeros(5)
    for how,want in dict(both=[0,.5,1.5,0,3], clip=[0,1,1,0,1], weight=[1.5,.5,1.5,.5,2]).items():
        got = factor(new[:,None], old[:,None], A[:,None], how)[:,0]   # five runs of one token
        assert torch.allclose(got, A*torch.tensor(want)), how

def job(arm, seeds, budget=900):
    settings = json.dumps(dict(budget=budget, points=2, reach=4))
    return [dict(regime='adding', arm=arm, seed=s, learning_rate=1e-3, source='', settings=settings)
        for s in seeds]

@pytest.mark.parametrize('arm', ['replay_default','filter','ngrpo','zvp','left_out'])
def test_what_a_method_trims_is_stacked_all_the_same(arm, monkeypatch):
    "A trained start, prompts and answers of several lengths: stored groups are wider or narrower"
    kind = sr.Runs.__init__
    monkeypatch.setattr(sr.Runs, '__init__', lambda self, *a, **k: kind(self, *a, n_train=60, n_test=4, **k))
    job = [dict(regime='filtering', arm=arm, seed=s, learning_rate=4e-4, source='',
        settings='{"budget": 900, "points": 1, "reach": 4}') for s in (2000, 2001, 2002)]   # of no table
    company = run_stack(job, 'cpu')
    assert bare(run_stack(job[0], 'cpu'))==bare(company[:1])

def test_a_rate_rises_in_equal_steps_over_the_batches_of_a_warm_up(untaught, monkeypatch):
    shares,step = [],sr.StackedAdam.step
    monkeypatch.setattr(sr.StackedAdam, 'step',
        lambda self, g, share, moves: shares.append(share) or step(self, g, share, moves))
    r = sr.Runs(BatchUse(passes=2, warmup=4), 'adding', [3], [1e-3])
    before = r.m.theta.clone()
    r.batch()
    assert torch.equal(r.m.theta, before)   # the first batch has rate 0
    for _ in range(5): r.batch()
    assert shares==[o for k in (0, .25, .5, .75, 1, 1) for o in (k, k)]
    def alone(arm):
        r = sr.Runs(arm, 'adding', [3], [1e-3])
        for _ in range(3): r.batch()
        return r.m.theta
    assert torch.equal(alone(BatchUse()), alone(BatchUse(warmup=0)))
    assert not torch.equal(alone(BatchUse()), alone(BatchUse(warmup=2)))

def test_steps_per_batch_are_those_of_the_arm(untaught):
    for arm,n in dict(plain=1, mu2=2, stored_clip=3, copies_weight=3, replay_clip=1, replay_default=1,
            big3=9, stored3=3, mu6=6, big6=36, stored6=6).items():
        o = run_stack(job(arm, [0], 600), 'cpu')[0]
        assert o['steps']==n*o['batches'], arm
        assert o['batches']>1 or arm in ('big3','big6'), arm   # one batch of these is the budget

def one_batch(monkeypatch, arm):
    "What an arm would train on in its first batch."
    seen = {}
    monkeypatch.setattr(sr.Runs, 'train', lambda self, groups, there: seen.update(groups=groups, there=there))
    r = sr.Runs(USES[arm], 'adding', [3, 4], [1e-3]*2)
    r.batch()
    return r,seen['groups'],seen['there']

def test_a_method_says_advantages_and_which_groups_count(untaught, monkeypatch):
    _,plain,_ = one_batch(monkeypatch, 'plain')
    right = (plain['out']==PAD).sum(-1)>2
    dead = right.all(-1)|~right.any(-1)
    assert dead.any() and not dead.all()
    _,g,there = one_batch(monkeypatch, 'filter')
    assert not there[dead].any() and there.any(1).all()
    assert torch.equal(g['A'].amax(-1), plain['A'][...,0])
    _,g,there = one_batch(monkeypatch, 'ngrpo')
    r = right.float()
    mean = (r.sum(-1, keepdim=True)+1)/5         # one more answer, which is right
    std = ((r-mean).square().sum(-1, keepdim=True)+(1-mean)**2).div(4).sqrt()   # over the four of the group
    want = ((r-mean)/(std+1e-4))[...,None].masked_fill(right.all(-1)[...,None,None], 0.)
    assert torch.allclose(g['A'], want.expand_as(g['A']), atol=1e-6)
    assert torch.equal(there, ~right.all(-1))

def test_rl_zvp_blames_dead_groups_by_the_entropy_that_is_missing(untaught, monkeypatch):
    from grpo_nb.studies.stacked import Stack
    runs,g,there = one_batch(monkeypatch, 'zvp')
    right = (g['out']==PAD).sum(-1)>2
    s,b = (~right.any(-1)).nonzero()[0].tolist()
    m = Stack(runs.m.shape, runs.m.theta[s:s+1])
    H = torch.zeros(g['out'].shape[2:])
    for a in range(4):       # a forward pass of its own for every token
        for t in range(int(g['real'][s,b,a].sum())):
            said = g['out'][s,b,a].repeat(SHAPE.vocab, 1)
            said[:,t] = torch.arange(SHAPE.vocab)
            lp = sr.completion_logps(m, g['ids'][s,b].expand(1, 1, -1), g['mask'][s,b].expand(1, 1, -1),
                said[None,None])[0,0,:,t]
            H[a,t] = -(lp.exp()*lp).sum()
    want = .1*(H-H.amax(-1, keepdim=True))*g['real'][s,b]
    assert there.all() and torch.allclose(g['A'][s,b], want, atol=1e-5) and want.abs().max()>1e-3

def test_popo_takes_the_newest_groups_and_the_moment_leaves_out_what_drifted_furthest():
    dead = torch.tensor([[True,True,False]])
    fresh = dict(A=torch.zeros(1, 3, 1), key=torch.arange(3).expand(1, -1))
    for seed in range(20):
        shelf = Shelf(6, fresh)
        for k in (1, 2): shelf.add(dict(fresh, key=fresh['key']+10*k), torch.tensor([[True,True,False]]), k)
        u = torch.rand(1, 6, generator=torch.Generator().manual_seed(seed))
        g,_ = assemble(BatchUse(fresh=3, fill=True, newest=True), fresh, dead, shelf, u)
        assert sorted(g['key'][0].tolist())==[2, 20, 21]
    old = torch.zeros(2, 1, 1, 4)
    new = torch.tensor([[.1, .3, -.2, 5.], [.25, .25, .25, 5.]]).view_as(old)   # the last token is padding
    real = torch.tensor([True,True,True,False]).expand_as(old)
    got = factor(new, old, torch.ones_like(old), 'moment', real)
    want = new.exp()*torch.tensor([[1, 0, 1, 0], [0]*4]).view_as(old)   # mean squares .025 and .047; .06
    assert torch.allclose(got, want)

def test_page_and_code_agree_and_a_moved_definition_is_refused(tmp_path):
    plan = registration(PAGE)
    (tmp_path/'p.qmd').write_text(PAGE.read_text().replace('"stored": 16', '"stored": 8'))
    with pytest.raises(ValueError, match='arms of .* are not those'): registration(tmp_path/'p.qmd')
    (tmp_path/'p.qmd').write_text('nothing here')
    with pytest.raises(ValueError, match='no block of JSON'): registration(tmp_path/'p.qmd')
    for a,b,says in (
        ('"measure"', '"measured"', r'lacks measure; `definitions\(arms, families\)` is what'),
        ('"copies_both": {', '"copys_both": {', 'has the arm copys_both; here there are plain, plain_16'),
        ('"stored_clip - mu3": "+"', '"stored_clip": "+"', 'predicts nothing for stored_clip - mu3: '),
        ('"points": 8', '"points": 8,,', 'is no JSON: ')):
        assert a in PAGE.read_text()
        (tmp_path/'p.qmd').write_text(PAGE.read_text().replace(a, b))
        with pytest.raises(ValueError, match=says): registration(tmp_path/'p.qmd')
    n = {k:len(o) for k,o in plan['seeds'].items()}
    assert n['main']+n['again']==64 and n['rates']==16 and len(plan['arms']['main'])==6
    used = sum((plan['seeds'][k] for k in ('main','again','rates','pilot')), [])
    assert len(set(used))==len(used) and plan['arms']['again']==plan['arms']['main']
    assert {a for c in plan['claims'] for a in c}<=set(plan['arms']['main'])
    assert set(plan['arms']['main'])|set(plan['arms']['side'])==set(plan['definitions']['arms'])<=set(USES)

def every(plan, rate): return {(f,a):rate for f in sr.FOUR for a in plan['arms']['main']}

def test_planned_jobs_are_the_registered_ones_block_by_block():
    plan = registration(PAGE)
    main = planned(plan, 'main', every(plan, 1e-4), stack=16)
    assert len(main)==2*6*4 and [o[0]['seed'] for o in main]==sorted(o[0]['seed'] for o in main)
    assert {o['seed'] for stack in planned(plan, 'again', every(plan, 1.)) for o in stack}==set(range(32, 64))
    for stack in main: assert len(stack)==16 and len({(o['regime'], o['arm']) for o in stack})==1
    rate = {(f,a):10*i+j for i,f in enumerate(sr.FOUR) for j,a in enumerate(plan['arms']['main'])}
    for o in sum(planned(plan, 'side', rate), []):   # its family's, of its relative
        assert o['learning_rate']==rate[o['regime'],plan['relatives'][o['arm']]]
    tries = planned(plan, 'rates', stack=16)
    assert len(tries)==6*4*3
    with pytest.raises(ValueError, match='no rate yet for plain in adding, mu3 in adding'):
        planned(plan, 'main', {})
    with pytest.raises(ValueError, match='no plan'): planned(plan, 'other', {})

def made(plan, arms, seeds, l=1e-4, families=sr.FOUR):
    return pd.DataFrame([dict(regime=f, arm=a, seed=s, learning_rate=l, error='',
                              area=0.5 + 0.01 * (s % 3) + (a == 'plain') * 1e3 * l) for f in families
                         for a in arms for s in seeds])

def test_no_difference_is_shown_before_all_runs_of_a_table_are_there():
    plan = registration(PAGE)
    main,again = (made(plan, plan['arms'][k], plan['seeds'][k]) for k in ('main','again'))
    some = say(main.iloc[1:], plan)
    assert 'main table: 767 of 768' in some and 'replication: 0 of 768' in some and 'holm' not in some
    one = say(main, plan)
    assert one.count('holm')==1 and 'both together: 768 of 1536' in one
    assert one.split('replication')[0]==say(pd.concat([main, again.iloc[:5]]), plan).split('replication')[0]
    assert say(pd.concat([main, again]), plan).count('holm')==3

def test_a_claim_is_above_or_below_only_where_it_survives_holm():
    plan = registration(PAGE)
    d = made(plan, plan['arms']['main'], plan['seeds']['main'])
    noise = torch.randn(len(d), generator=torch.Generator().manual_seed(0)).numpy()
    lift = d.arm.map(dict(stored_weight=.2, mu3=.2, stored_clip=-.2)).fillna(0.)
    got = claims(d.assign(area=.5+lift+.01*noise), plan)
    assert got.says.tolist()==['above 0','undecided','above 0','below 0','below 0','undecided']
    assert got.predicted.tolist()==['above 0','above 0','undecided','above 0','undecided','undecided']
    near = d.assign(area=.5+lift/30+.02*noise)   # one claim of its own would stand, of six it doesn't
    fourth = plan|dict(claims=plan['claims'][3:4], predictions={'stored_clip - mu3':'-'})
    of_six,alone = claims(near, plan),claims(near, fourth)
    assert of_six.p[3]==alone.p[0]==alone.holm[0]<.05<of_six.holm[3]
    assert [of_six.says[3], alone.says[0], alone.predicted[0]]==['undecided','below 0','below 0']

STUDIES = ['registration','registration_size','registration_large','registration_methods',
    'registration_practice']

def stored(page, end=''):
    "Plan, table and rows of a registered page"
    plan = registration(PAGE.parent/f'{page}.qmd')
    path = PAGE.parent/'rows'/f"{plan.get('table', 'replay_study')}{end}.csv"
    return plan,path,read_rows(path)

@pytest.mark.parametrize('page', STUDIES)
def test_other_code_counts_the_same_claims_from_the_stored_rows(page):
    from recount_study import recount
    plan,path,df = stored(page)
    found = 0
    for name,key in (('main table','main'),('replication','again')):
        if key not in plan['seeds']: continue
        rows,need = tables(df, plan)[name]
        theirs = recount(path, PAGE.parent/f'{page}.qmd', key)
        assert (theirs is None)==(len(rows)<need)
        for o,t in zip(claims(rows, plan).itertuples() if theirs else (), theirs or ()):
            where = f' in {o.regime}' if plan.get('by_family') else ''
            assert [o.arm, o.baseline+where]==[*t[:2]]
            assert [o.diff, o.half, o.p, o.holm]==pytest.approx(t[2:], abs=2e-5)
            found += 1
    assert found>=6 or page!='registration'   # the main table is whole

def test_the_rate_is_the_best_mean_of_its_family_and_only_of_complete_tries():
    plan = registration(PAGE)
    d = pd.concat([made(plan, ['plain','mu3'], plan['seeds']['rates'], l) for l in plan['rates']])
    other = (d.regime=='sorting')&(d.arm=='plain')
    d.loc[other,'area'] = 1-d[other].area
    best = tuned(d, plan)
    assert best['adding','plain']==max(plan['rates']) and best['sorting','plain']==min(plan['rates'])
    fewer = tuned(d[(d.arm!='mu3')|(d.seed!=1000)|(d.regime!='adding')], plan)
    assert ('adding','mu3') in best and ('adding','mu3') not in fewer and ('sorting','mu3') in fewer

# ---- the study of the pretrained model

REAL,SCALED = PAGE.with_name('registration_real.qmd'),PAGE.with_name('registration_real_scaled.qmd')

def real_table(plan, lead, seed=0):
    "A row for each job of the plan; `lead`: what an arm has at a rate beyond plain GRPO"
    g = np.random.default_rng(seed)
    base = {s:g.normal(.5, .05) for s in plan['seeds']}
    def area(o): return base[o['seed']]+lead.get((o['arm'], o['learning_rate']), 0)+g.normal(0, .01)
    return pd.DataFrame([o|dict(error='', area=area(o)) for o in real_jobs(plan)])

def test_the_claims_on_the_pretrained_model_are_paired_by_seed_over_both_tasks():
    plan = real_plan(REAL)
    df = real_table(plan, {('replay', 1e-5):.02, ('replay', 2e-5):.1, ('left_out', 2e-5):.1})
    t = real_claims(df, plan)
    wide = df.pivot_table(index='seed', columns=['arm','learning_rate'], values='area', aggfunc='mean')
    pairs_of = (('plain', 1e-5), ('plain', 2e-5), ('left_out', 2e-5))
    want = [ttest_1samp(wide['replay', r]-wide[b, r], 0) for b,r in pairs_of]
    assert t.p.tolist()==pytest.approx([o.pvalue for o in want]) and t['diff'].tolist()==pytest.approx(
        [.02, .1, 0], abs=.01)
    p = sorted(t.p)
    assert t.holm.min()==pytest.approx(3*p[0]) and (t.n==8).all()
    assert t.verdict.tolist()[1:]==['better','undecided']
    assert len(real_claims(df[1:], plan))==0                                      # one run is missing
    assert len(real_claims(df.assign(error=['broke', *df.error[1:]]), plan))==0   # or has failed

@pytest.mark.parametrize('name,part', [('study',None), ('scaled','first'), ('scaled',None)])
def test_the_claims_of_its_stored_rows_are_those_of_a_second_count(name, part):
    rows,page = PAGE.parent/'rows'/f'real_{name}.csv',REAL if name=='study' else SCALED
    plan = real_plan(page)
    t = real_claims(read_rows(rows, ('registered',)), first_part(plan) if part else plan)
    second = np.array(recount_real(rows, page, part))
    assert t[['diff','diff_ci','p','holm']].to_numpy()==pytest.approx(second, abs=1e-6)

def gpu_table(plan, lead=0., noise=.001, seed=0):
    "Best rates in the pilot are 1e-5, 2e-5 and 5e-6; `lead`: of replay at twice a task's center"
    g = np.random.default_rng(seed)
    best = dict(zip(plan['tasks'], (1e-5, 2e-5, 5e-6)))
    def pilot(o): return o|dict(error='', area=.5-.1*abs(np.log2(o['learning_rate']/best[o['regime']])))
    rows = pd.DataFrame([pilot(o) for o in real_jobs(plan)])
    def area(o):
        twice = o['settings']=='2 times'
        left = .04 if o['arm']=='scaled' and o['settings']=='0.5 times' else 0
        gain = lead if o['arm']=='replay' else -.1
        return .5+gain*twice+left+g.normal(0, noise)
    main = [o|dict(error='', area=area(o)) for o in real_jobs(plan, rows) if o['settings']!='pilot']
    return pd.concat([rows, pd.DataFrame(main)], ignore_index=True)

GPU = PAGE.with_name('registration_real_gpu.qmd')

def test_the_study_for_a_gpu_finds_its_rates_before_it_begins():
    plan = real_plan(GPU)
    pilot = real_jobs(plan)
    assert len(pilot)==30 and {(o['arm'], o['settings']) for o in pilot}=={('plain','pilot')}
    df = gpu_table(plan)
    assert real_jobs(plan, df[df.settings=='pilot'][1:])==pilot   # one run of the pilot is missing
    main = [o for o in real_jobs(plan, df) if o['settings']!='pilot']
    rates = {task:sorted({o['learning_rate'] for o in main if o['regime']==task}) for task in plan['tasks']}
    assert list(rates.values())==[[5e-6, 1e-5, 2e-5], [1e-5, 2e-5, 4e-5], [2.5e-6, 5e-6, 1e-5]]
    assert len(main)==324 and not {o['seed'] for o in main}&{o['seed'] for o in pilot}

def test_its_claims_compare_each_arm_at_its_best_rate_and_the_better_of_two():
    plan = real_plan(GPU)
    df = gpu_table(plan, lead=.1)
    t = real_claims(df, plan)
    assert (t.n==18).all()
    # replay is at its best at twice the center, .6; the better rival is scaled at half of it, .54
    assert t['diff'].tolist()==pytest.approx([0, .06, .1, .2, .2, -.1], abs=.005)
    d = df[(df.settings!='pilot')].set_index(['regime','seed'])
    a = d[(d.arm=='replay')&(d.settings=='2 times')].area
    b = d[(d.arm=='scaled')&(d.settings=='0.5 times')].area
    assert t.p.iloc[1]==pytest.approx(ttest_1samp(a-b, 0).pvalue)
    assert len(real_claims(df[:-1], plan))==0   # one run is missing

def test_arms_of_the_study_for_a_gpu_sample_the_same_number_of_batches(monkeypatch):
    "Two passes make twice the steps; with the tiny Qwen in the pretrained model's place"
    plan = rt.rehearsal_plan(real_plan(GPU))
    job = dict(regime='two_digit_sums', seed=5, learning_rate=1e-5, settings='1 times', source='')
    rows = {a:real_run(job|dict(arm=a), plan) for a in plan['arms']}
    assert {o['batches'] for o in rows.values()}=={2}
    assert {a:o['steps'] for a,o in rows.items()}==dict.fromkeys(plan['arms'], 4)|dict(two_passes=8)
    assert len({json.loads(o['curve'])[0]['pass1'] for o in rows.values()})==1
    assert real_run(job|dict(arm='plain'), plan, until=1.)==[]   # no run begins when the time is over

def test_a_seed_is_whole_before_the_next_begins():
    plan = real_plan(REAL)
    seeds = [o['seed'] for o in real_jobs(plan)]
    assert seeds==sorted(seeds) and len(seeds)==96 and seeds.count(1100)==12

@pytest.mark.parametrize('was,now,says', [
    ('"sha256": "bcc8', '"sha256": "0000', 'registers smollm2 0000'),
    ('"next_numbers": "', '"next_numbers": "0', 'problems of next_numbers are not those')])
def test_another_model_or_other_problems_are_no_part_of_the_study(was, now, says, tmp_path):
    text = REAL.read_text(encoding='utf-8')
    assert was in text
    (tmp_path/'p.qmd').write_text(text.replace(was, now), encoding='utf-8')
    with pytest.raises(ValueError, match=says): real_plan(tmp_path/'p.qmd')

def test_a_run_of_it_counts_each_batch_before_its_update_and_no_problem_twice(monkeypatch):
    "With the tiny Qwen in the pretrained model's place"
    seen,train = [],rt.train
    def watched(model, tok, problems, *args, **how):
        seen.append(train(model, tok, problems, *args, **how))
        assert len(set(problems['prompt']))==len(problems)==4
        return seen[-1]
    monkeypatch.setattr(rt, 'train', watched)
    plan = real_plan(REAL)|dict(model='tiny', batches=2, prompts=2, held_out=3, samples=2)
    job = dict(regime='two_digit_sums', seed=5, learning_rate=1e-5, settings='', source='')
    rows = {a:real_run(job|dict(arm=a), plan) for a in plan['arms']}
    for row,run in zip(rows.values(), seen):
        tokens = [o['num_tokens'] for o in run.history]
        curve = json.loads(row['curve'])
        assert [o['tokens'] for o in curve]==[0, tokens[0]] and row['tokens']==tokens[1]
        assert [o['pass1'] for o in curve]==[round(o['reward'], 5) for o in run.history]
        assert (row['steps'], row['batches'])==(4, 2)
        assert row['dead']==pytest.approx(sum(o['replay/dead'] for o in run.history)/4)
    first = {json.loads(o['curve'])[0]['pass1'] for o in rows.values()}
    assert len(first)==1 and [o.strategy.name for o in seen]==['keep','replay','mask']
    assert [o.args.learning_rate for o in seen]==[1e-5]*3

def test_a_plan_with_a_first_part_runs_and_counts_it_first():
    plan = real_plan(SCALED)
    first,jobs = rt.first_part(plan),real_jobs(plan)
    assert jobs[:160]==real_jobs(first) and len(jobs)==288==len({tuple(o.values()) for o in jobs})
    def row(o):   # the last point lies beyond the tokens that count
        up = .2 if o['arm']=='replay' else 0.
        points = (0, .1+o['seed']%3/100),(2600, .3+up),(9000, 0)
        curve = [dict(tokens=n, pass1=p) for n,p in points]
        return o|dict(error='', curve=json.dumps(curve), area=0.)
    df = pd.DataFrame(map(row, jobs))
    t = real_claims(df, first)
    assert t['diff'].tolist()==pytest.approx([.1, .1, .1, 0, .1, .1], abs=1e-4)
    assert len(real_claims(df[:160], first))==6 and len(real_claims(df[:159], first))==0
    assert len(real_claims(df[:160], plan))==0 and len(real_claims(df, plan))==4

def scaled_run(arm, alive, monkeypatch):
    "The rates and moves that Adam is given, batch by batch, where so many of the eight sampled groups live"
    seen,step = [],sr.StackedAdam.step
    monkeypatch.setattr(sr.StackedAdam, 'step', lambda self, g, share, moves:
        seen.append((share, moves)) or step(self, g, share, moves))
    lives = iter(alive)
    def answers(out, answer):   # the first answer of a living group is right
        live = torch.arange(out.shape[1])<next(lives)
        return (live[:,None]&(torch.arange(out.shape[2])==0)).expand(out.shape[:3])
    monkeypatch.setattr(sr, 'is_right', answers)
    r = sr.Runs(USES[arm], 'adding', [3], [1e-3])
    return r,seen

def test_a_rate_follows_the_living_groups_and_nothing_moves_where_none_lives(untaught, monkeypatch):
    r,seen = scaled_run('scaled', [8, 2, 0, 4], monkeypatch)
    held = []
    for _ in range(4):
        r.batch()
        held.append([o.clone() for o in (r.m.theta, r.opt.first, r.opt.second)])
    assert [float(o) for o,_ in seen]==pytest.approx([1, .5, 0, .5**.5])
    assert all(torch.equal(a, b) for a,b in zip(held[1], held[2])) and r.opt.t==[3]
    assert not torch.equal(held[2][0], held[3][0])

def test_skipping_is_plain_but_where_nothing_lives(untaught, monkeypatch):
    skip,_ = scaled_run('skip_dead', [8, 0, 3], monkeypatch)
    for _ in range(3): skip.batch()
    plain,_ = scaled_run('plain', [8, 3], monkeypatch)
    plain.batch()
    assert skip.opt.t==[2]
    plain,seen = scaled_run('plain', [8, 0], monkeypatch)
    for _ in range(2): plain.batch()
    assert plain.opt.t==[2] and seen[-1]==(1., None)   # by its averages it goes on

def test_sampling_again_fills_the_batch_and_counts_the_tokens_that_were_asked_for(untaught, monkeypatch):
    r,_ = scaled_run('resample', [3, 4, 1, 7], monkeypatch)   # 3, 7, 8 live: a fourth round is not asked for
    tokens,sample = [],r.sample
    def counted():
        out = sample()
        tokens.append(int(out[0]['real'].sum()))
        return out
    r.sample = counted
    batch = {}
    monkeypatch.setattr(r, 'train', lambda groups, there: batch.update(groups))
    r.batch()
    assert len(tokens)==4 and int(r.tokens[0])==sum(tokens[:3])
    assert (batch['A'][0,:,0,0]>0).all() and batch['A'].shape[1]==8
