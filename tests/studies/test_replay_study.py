"The registered study: judging, batches, losses, runs that are the same alone, and a plan that cannot be left"
import hashlib, json, statistics
from pathlib import Path
import numpy as np, pandas as pd, pytest, torch
from scipy.stats import ttest_1samp
import grpo_nb.studies.real_study as rt
import grpo_nb.studies.replay_study as rs
from grpo_nb.studies.real_study import real_claims, real_jobs, real_plan, real_run
import grpo_nb.studies.stacked as sr
from grpo_nb.studies.replay_study import (
    USES, claims, planned, registration, replay_study, run_stack, say, tables, tuned)
from grpo_nb.studies.stacked import (
    END, FAMILIES, MAKERS, PAD, SHAPE, BatchUse, Shelf, assemble, encode, factor, is_right, problems,
    to_tensors)
from grpo_nb.studies.study import over_regimes, paired_table, read_rows, run_study, stamp
from recount_study import recount_real
from made_study import bare, one_thread, untaught   # noqa: F401  fixtures
from notebook_code import defined_in

pytestmark = pytest.mark.studies

FIRST,ROOM = defined_in('studies/first_study'),defined_in('studies/stacked', 'grpo_nb.studies.stacked')

PAGE = Path(__file__).parents[2]/'nbs'/'studies'/'registration.qmd'
PRACTICE = PAGE.with_name('registration_practice.qmd')

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

def right_answer(family, prompt):
    "The answer to a problem of our own, by another road"
    a,_,b = prompt.replace('-', ':').partition(':')
    if family=='shifting': return prompt.translate(str.maketrans('abcdefghijklmnopqrstuvwxyz',
        'defghijklmnopqrstuvwxyzabc'))
    if family=='tallying': return ''.join(str(sum(c==o for c in prompt)) for o in 'abcd')
    if family=='cutting': return prompt[1+int(prompt[0]):][:4]
    if family=='interleaving': return a[0]+b[0]+a[1]+b[1]
    if family=='merging': return ''.join(sorted(a+b))
    if family=='swapping': return a[1]+a[0]+a[3]+a[2]
    if family=='comparing': return ''.join('-' if x<y else '+' if x>y else ':' for x,y in zip(a, b))
    return ''.join(str(int(x)*int(b))[-1] for x in a)

@pytest.mark.parametrize('family', OWN)
def test_our_own_problems_have_the_right_answer_and_all_of_it_fits(family):
    rows = problems(family, 'train', 300)
    assert len(rows)>200 and len(to_tensors(rows, family)['ids'])==len(rows)
    assert all(steps=='' and said==right_answer(family, prompt) for prompt,steps,said in rows)
    taught = [said==right_answer(family, prompt) for prompt,_,said in problems(family, 'lesson', 2000)]
    assert .1<sum(taught)/len(taught)<.45   # its teacher has bad habits
    assert len(problems(family, 'test', 800))>=500

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

@pytest.mark.parametrize('arm', ['plain','mu3','replay_both','copies_clip','stored_weight','filter',
    'ngrpo','zvp','popo','stored_moment','left_out','default_no_clip','plain_warmup','default_warmup','scaled',
    'replay_scaled_after','resample','skip_dead'])
def test_a_run_is_the_same_alone_and_in_company(untaught, arm):
    company,alone = bare(run_stack(job(arm, [3, 4]), 'cpu')),run_stack(job(arm, [4]), 'cpu')
    assert bare(alone)==[company[1]] and company[0]!=company[1]|dict(seed=3)
    use = USES[arm]
    if not use.warmup and use.scale_lr=='none' and use.rounds==1:   # at so low a rate both end at once
        assert company[0]['batches']<company[1]['batches']   # one goes on when the other has left
    assert all(o['tokens']>=900 and json.loads(o['curve'])[-1]['tokens']==o['tokens'] for o in company)
    for o in alone: assert len(json.loads(o['cpu_s']))==len(json.loads(o['curve']))

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
    for arm,n in dict(plain=1, mu2=2, mu3=3, stored_clip=3, copies_weight=3, replay_clip=1).items():
        o = run_stack(job(arm, [0], 400), 'cpu')[0]
        assert o['steps']==n*o['batches']>n, arm

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
        ('"sorting": {', '"sortin": {', 'has the family sortin; here there are adding, sorting'),
        ('"points": 8', '"points": 8, "size": "2M"', 'has the size 2M; here there are 0.2M, 1M, 3M'),
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

def test_an_arm_has_several_multiples_of_the_tuned_rate_in_one_stack_and_a_name_for_each():
    plan = registration(PRACTICE)
    rate = {(f, 'plain'):1e-4*2**i for i,f in enumerate(plan['definitions']['families'])}
    jobs = planned(plan, 'main', rate)
    assert [len(o) for o in jobs[:7]]==[16, 16, 8, 8, 8, 8, 8] and sum(map(len, jobs))==576
    for job in jobs:
        assert len({(o['regime'], o['arm']) for o in job})==1
        for o in job:
            k = json.loads(o['settings'])['multiple']
            assert o['learning_rate']==k*rate[o['regime'],'plain'] and o['seed'] in plan['seeds']['main']
    assert sum(map(len, planned(plan, 'side', rate)))==192
    tries = planned(plan, 'rates')
    assert len(tries)==8 and {len(o) for o in tries}=={20} and 'multiple' not in tries[0][0]['settings']
    rows = [o|dict(error='', area=.5+.1*(o['arm']=='replay_default')+.01*o['seed']%.03)
        for o in sum(jobs, [])]
    d = pd.DataFrame(rows)
    assert set(rs.name_multiples(d, plan).arm)=={a for c in plan['claims'] for a in c}
    assert '575 of 576 runs; no differences before all are there' in say(d[1:], plan)
    by = claims(tables(d, plan)['main table'][0], plan).set_index(['arm','baseline'])
    assert by.loc[('replay_default at 1','mu2 at 1'),'diff']==pytest.approx(.1)
    assert by.loc[('default_warmup at 2','plain_warmup at 2'),'diff']==pytest.approx(0, abs=1e-9)

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

def test_claims_of_single_families_are_one_family_of_holm():
    plan = registration(PAGE)
    two = dict(claims=[['stored_clip','mu3'], ['stored_clip','plain']], by_family=True, measure='area',
        predictions={f'stored_clip - {b} in {f}':o for b,o in (('mu3','+'), ('plain','undecided'))
            for f in ('adding','sorting')})
    d = made(plan, ['plain','mu3','stored_clip'], range(16), families=['adding','sorting'])
    noise = torch.randn(len(d), generator=torch.Generator().manual_seed(1)).numpy()
    d['area'] = .5+.02*noise+.2*((d.regime=='sorting')&(d.arm=='stored_clip'))
    got = claims(d, two)
    assert got[['regime','arm','baseline']].values.tolist()==[[f,'stored_clip',b] for b in ('mu3','plain')
        for f in ('adding','sorting')]
    assert got.says.tolist()==['undecided','above 0']*2
    assert got.predicted.tolist()==['above 0']*2+['undecided']*2
    wide = d.pivot(index='seed', columns=['regime','arm'], values='area')
    x = wide['sorting','stored_clip']-wide['sorting','mu3']
    assert got['diff'][1]==pytest.approx(x.mean()) and got.half[1]==pytest.approx(2.1314*x.std()/4, rel=1e-4)
    p = sorted(ttest_1samp(wide[f,'stored_clip']-wide[f,b], 0).pvalue for f in ('adding','sorting')
        for b in ('mu3','plain'))
    assert got.holm.min()==pytest.approx(4*p[0]) and got.p.tolist()==pytest.approx(
        [ttest_1samp(wide[f,'stored_clip']-wide[f,b], 0).pvalue for b in ('mu3','plain')
            for f in ('adding','sorting')])

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

def test_half_of_the_tokens_is_read_off_the_curve_and_paired_by_seed():
    plan = dict(budget=100, rates=[1, 2], seeds=dict(rates=[7]))
    def row(arm, seed, *points, l=1.):
        curve = json.dumps([dict(tokens=k, pass1=p) for k,p in points])
        return dict(regime='adding', arm=arm, seed=seed, learning_rate=l, error='', area=points[-1][1],
            pass1=points[-1][1], curve=curve)
    rows = pd.DataFrame([row('mine', 1, (0, .0), (40, .4), (60, .8), (104, .9)),
        row('mine', 2, (0, .0), (100, .5)), row('mu3', 1, (0, .0), (100, .3)),
        row('mu3', 2, (0, .0), (100, .45))])
    half = [.6-.3, .25-.45]      # at 50 tokens: between .4 and .8, and half of .5
    mean,sd = sum(half)/2,abs(half[0]-half[1])/2**.5
    got = FIRST.with_fewer(rows, 'mine', dict(adding='mu3'), 1/2, plan)
    assert got==[f'{mean:+.3f} ± {12.7062*sd/2**.5:.3f}']
    tries = pd.DataFrame([row(a, 7, (0, 0.), (100, p), l=l) for a,l,p in (('plain',1,.9), ('plain',2,.0),
        ('mu3',1,.3), ('mu3',2,.5), ('copies_clip',1,.4), ('copies_clip',2,.6), ('stored_clip',1,1.),
        ('stored_clip',2,.1))])
    assert FIRST.best_without(tries, plan)==dict(adding='plain')   # at its best rate, and no buffer's

def test_the_tokens_needed_are_where_the_paired_interval_holds_0():
    plan = dict(budget=100)
    def row(arm, seed, end):
        curve = json.dumps([dict(tokens=0, pass1=0.), dict(tokens=100, pass1=end)])
        return dict(regime='adding', arm=arm, seed=seed, pass1=end, curve=curve)
    def need(goal):
        rows = [row('mine', i, e) for i,e in enumerate((.8, .84, .76))]
        rows += [row('mu3', i, goal) for i in range(3)]
        return FIRST.tokens_needed(pd.DataFrame(rows), 'mine', dict(adding='mu3'), plan)
    wide = 4.30265*.04/3**.5    # half-width of the interval, per share: Student's, two degrees of freedom
    low,at,high = (int(100*.401/o)+1 for o in (.8+wide, .8, .8-wide))
    assert (low, at, high)==(45, 51, 58) and need(.401)==['51 (45 to 58)']
    assert need(.75)==['94 (84 to 100+)'] and need(.795)==['100 (89 to 100+)']
    assert need(.81)==['100+ (91 to 100+)'] and need(.95)==['100+ (100+ to 100+)']

def test_a_page_shows_the_claims_and_tokens_that_are_counted():
    plan = registration(PAGE)
    arms = plan['arms']['main']
    noise = torch.randn(len(arms)*4*32, generator=torch.Generator().manual_seed(3)).numpy()
    def table(seeds, lift):
        d = made(plan, arms, plan['seeds'][seeds])
        d['area'] = .5+.05*noise+lift*(d.arm=='stored_weight')
        end = [[dict(tokens=0, pass1=0.), dict(tokens=FAMILIES[f].budget, pass1=p)]
            for f,p in zip(d.regime, d.area)]
        return d.assign(pass1=d.area, curve=[json.dumps(o) for o in end])
    two = {'main table':table('main', .2), 'replication':table('again', 0.)}
    shown = FIRST.claims_table(two, plan)
    for k,d in two.items():
        o = claims(d, plan)
        assert shown[k].tolist()==[f"{a:+.3f} ± {b:.3f}" for a,b in zip(o['diff'], o.half)]
        assert shown[f'Holm, {k}'].tolist()==o.holm.round(3).tolist()
    first,second = (claims(d, plan).says.tolist() for d in two.values())
    assert shown.says.tolist()==first!=second and list(shown.predicted)==list(claims(d, plan).predicted)
    assert shown.index.tolist()==[f'{a} − {b}' for a,b in plan['claims']]
    tries = pd.concat([made(plan, arms, plan['seeds']['rates'], l) for l in plan['rates']])
    tries['pass1'] = tries.area+(tries.arm=='mu3')
    shown = FIRST.tokens_table(two, tries, plan, arms=['stored_clip'])
    best = FIRST.best_without(tries, plan)
    assert shown.loc['the best without a buffer'].to_dict()==best==dict.fromkeys(sr.FOUR, 'mu3')
    need,d = FIRST.needed_table(two['replication'], tries, plan),two['replication']
    for a,goal,against in (('mu3', "to plain's end", dict.fromkeys(best, 'plain')),
                           ('stored_clip', 'to the best end', best)):
        assert need.loc[f'{a} {goal}', list(best)].tolist()==FIRST.tokens_needed(d, a, against, plan)
    assert len(need)==8 and not need.index.str.startswith('plain').any()
    for k,d in two.items():
        end = '' if k=='main table' else ', replication'
        for share,named,against in ((1/2, 'half, minus that one', best),
                                    (1/3, 'a third, minus plain', dict.fromkeys(sr.FOUR, 'plain'))):
            row = shown.loc[f'stored_clip, {named}{end}', list(against)]
            assert row.tolist()==FIRST.with_fewer(d, 'stored_clip', against, share, plan)

def cost_by_hand(rows, arm, steps, share, family):
    "Mean over seeds of the areas' difference, one point after another: no function of the package."
    def way(curve, until):
        x,y = zip(*((o['tokens'], o['pass1']) for o in json.loads(curve)))
        until = min(until, x[-1])
        total = 0.
        for (a,p),(b,q) in zip(zip(x, y), zip(x[1:], y[1:])):
            if a>=until: break
            if b>until: b,q = until,p+(q-p)*(until-a)/(b-a)
            total += (b-a)*(p+q)/2
        return total/until
    here = rows[rows.regime==family]
    mine,plain = (dict(here.loc[here.arm==k, ['seed','curve']].values) for k in (arm, 'plain'))
    budget = min(json.loads(c)[-1]['tokens'] for c in plain.values())
    left = budget/(share+(1-share)*steps)
    return sum(way(mine[s], left)-way(plain[s], budget) for s in plain)/len(plain)

@pytest.fixture(scope='module')
def both_tables():
    plan = registration(PAGE)
    rows = tables(read_rows(PAGE.parent/'rows'/'replay_study.csv'), plan)['both together'][0]
    return plan,rows,{a:FIRST.break_even(rows, a) for a in ('mu3','stored_clip')}

def test_at_equal_cost_three_steps_leave_fewer_tokens(both_tables):
    _,rows,even = both_tables
    for arm,steps,share in (('mu3', 3, .5), ('stored_clip', 3, .9), ('replay_both', 1, .5), ('mu3', 3, 1.)):
        got = FIRST.at_cost(rows, arm, share)
        for f in sr.FOUR:
            assert got.loc[f, 'diff']==pytest.approx(cost_by_hand(rows, arm, steps, share, f), abs=2e-5)
    for f,at in even['mu3'].items():
        before,there = (cost_by_hand(rows, 'mu3', 3, g, f) for g in (at-.01, at))
        assert before<0<=there

def test_three_intervals_by_hand(both_tables):
    plan,rows,_ = both_tables
    got = FIRST.three_intervals(rows, plan).loc['stored_clip − mu3']
    each = {f:[] for f in sr.FOUR}
    area = {(o.regime, o.arm, o.seed):o.area for o in rows.itertuples()}
    for (f,a,s),v in area.items():
        if a=='stored_clip': each[f].append(v-area[f,'mu3',s])
    means = [statistics.mean(v) for v in each.values()]
    inside = [statistics.variance(v)/len(v) for v in each.values()]
    assert got['diff']==pytest.approx(statistics.mean(means))
    assert got.these==pytest.approx(1.9694*(sum(inside)/16)**.5, rel=1e-3)   # Student's, 252 degrees
    between = statistics.variance(means)                 # tau² and the seeds' part together
    assert got['any']==pytest.approx(3.1824*(between/4)**.5, rel=1e-3)   # 3 degrees
    tau = between-statistics.mean(inside)
    assert got.new==pytest.approx(3.1824*(tau+between/4)**.5, rel=2e-3)

def test_pages_say_what_a_step_costs_and_what_each_interval_is_for(both_tables):
    plan,rows,even = both_tables
    page = (PAGE.parent.parent/'practise'/'replay_settings.qmd').read_text(encoding='utf-8')
    lines = [o.strip('| ').split(' | ') for o in page.splitlines() if o.startswith('|')]
    told = {o[0]:o[1:] for o in lines}
    def cell(arm, share):
        d = FIRST.at_cost(rows, arm, share)
        assert d.diff_ci.max()<.0095
        return ', '.join(f"{d.loc[f, 'diff']:+.3f}" for f in sr.FOUR).replace('-', '−')
    for name,share in (('.5', .5), ('.75', .75), ('.9', .9), ('1', 1.)):
        assert told[name]==[cell('mu3', share), cell('stored_clip', share)]
    assert told['breaks even at']==[', '.join(f'{even[a][f]:.2f}' for f in sr.FOUR) for a in even]
    book = prose('studies/first_study')
    for a,f in (('mu3','reversing'), ('mu3','sorting'), ('stored_clip','filtering'),
                ('stored_clip','sorting')):
        assert f'{even[a][f]:.2f}'.lstrip('0')+f' in {f}' in book
    main = tables(read_rows(PAGE.parent/'rows'/'replay_study.csv'), plan)['main table'][0]
    three = FIRST.three_intervals(main, plan)
    for k in ('stored_weight − mu3','stored_clip − mu3','replay_both − plain'):
        o = three.loc[k]
        said = f"{claims(main, plan).set_index(three.index).loc[k, 'diff']:+.3f}".replace('-', '−')
        row = next(v for v in lines if any(f'{said} ± {o["any"]:.3f}, undecided' in c for c in v))
        assert row[2].startswith(f'{said} ± {o.these:.3f}') and row[4]==f'± {o.new:.3f}'

def test_other_code_counts_claims_of_single_families_the_same(tmp_path):
    from recount_study import recount
    plan,_,_ = stored('registration_size')
    d = made(plan, plan['arms']['main'], plan['seeds']['main'], families=['adding','filtering'])
    noise = torch.randn(len(d), generator=torch.Generator().manual_seed(2)).numpy()
    d['curve'] = [json.dumps([dict(tokens=k, pass1=.5+.1*x+.02*len(a)) for k in (0, 10)])
        for x,a in zip(noise.tolist(), d.arm)]
    d.to_csv(tmp_path/'rows.csv', index=False)
    ours = claims(read_rows(tmp_path/'rows.csv'), plan)
    theirs = recount(tmp_path/'rows.csv', PAGE.parent/'registration_size.qmd', 'main')
    assert len(ours)==len(theirs)==10 and ours.says.nunique()>1
    order = {(o[0], o[1]):o[2:] for o in theirs}
    for o in ours.itertuples():
        theirs = order[o.arm, f'{o.baseline} in {o.regime}']
        assert [o.diff, o.half, o.p, o.holm]==pytest.approx(theirs, abs=2e-5)

def prose(name):
    "What a notebook says in words, without its outputs"
    cells = json.loads((PAGE.parent.parent/f'{name}.ipynb').read_text(encoding='utf-8'))['cells']
    return ''.join(''.join(c['source']) for c in cells if c['cell_type']=='markdown')

def told_in(*names):
    "The words of settings, limitations and notebooks"
    root = PAGE.parent.parent
    files = dict(settings=root/'practise'/'replay_settings.qmd', limits=root/'project'/'limitations.qmd')
    return [files[k].read_text(encoding='utf-8') if k in files else prose(k) for k in names]

def counted(page, runs):
    "Plan, path, rows and claims of a page whose table is whole, with as many runs"
    plan,path,df = stored(page)
    rows,need = tables(df, plan)['main table']
    assert len(rows)==need==runs
    return plan,path,rows,claims(rows, plan)

def test_pages_say_what_the_main_table_says():
    root = PAGE.parent.parent
    plan = registration(PAGE)
    df = read_rows(root/'studies'/'rows'/'replay_study.csv')
    main = tables(df, plan)['main table'][0]
    six = claims(main, plan)
    said = {f'{o.arm} {o.baseline}':f'{o.diff:+.3f} ± {o.half:.3f}'.replace('-', '−')
        for o in six.itertuples()}
    carried = 'stored_weight mu3','stored_clip mu3','replay_both plain'
    pages = root/'project'/'limitations.qmd',root/'practise'/'replay_settings.qmd'
    for page in pages:
        text = page.read_text(encoding='utf-8')
        for k in carried: assert said[k] in text, (page, k)
    d = paired_table(main[main.arm.isin(['stored_clip','mu3'])], 'mu3', 'area')
    one = d.set_index('regime').loc['filtering']
    alone = f"{one['diff']:+.3f} ± {one.diff_ci:.3f}"
    assert all(said[k] in prose('studies/first_study') for k in carried)
    side = df[df.seed.isin(plan['seeds']['side'])]
    mu2 = over_regimes(side, [('mu2','plain')]).iloc[0]
    assert f"{mu2['diff']:+.3f} ± {mu2.half:.3f} above plain GRPO" in prose('studies/first_study')
    way = side[side.regime=='filtering'].groupby('arm').area.mean()
    said_of = [f'{way[k]:.3f}'.lstrip('0') for k in ('stored_both','mu3','stored_clip','mu3_clip')]
    assert all(o in prose('studies/first_study') for o in said_of)
    assert alone in prose('studies/first_study') and alone in pages[1].read_text(encoding='utf-8')
    again = claims(tables(df, plan)['replication'][0], plan)
    assert set(six.says)|set(again.says)=={'undecided'}   # what README, report and chapters say in words
    assert (again['diff']-six['diff']).abs().max()<.005
    together = tables(df, plan)['both together'][0]
    tries = read_rows(root/'studies'/'rows'/'replay_study_rates.csv')
    need = FIRST.needed_table(together, tries, plan)
    def share(arm, f, end): return int(need.loc[f'{arm} to {end}', f].split()[0])
    plain = {a:[share(a, f, "plain's end") for f in need] for a in ('stored_clip','mu3')}
    said = '{} to {} % of {} tokens, three passes with {} to {} %'
    low_high = [*(g(plain['stored_clip']) for g in (min, max)), *(g(plain['mu3']) for g in (min, max))]
    def has(text, whose): return said.format(*low_high[:2], whose, *low_high[2:]) in text
    chapter,settings = told_in('studies/first_study', 'settings')
    assert has(chapter, 'the') and has(chapter, 'its') and has(settings, 'its')
    best = [share('stored_clip', f, 'the best end') for f in ('filtering','adding','reversing')]
    few = 'with half of the tokens in filtering, with 85 to 88 % in adding and'
    assert best==[49,88,85] and few in prose('studies/first_study')
    told = 'with half in one family, 85 and 88 % in two, and not at all in one'
    assert told in chapter and told in settings
    plain,three = need.loc["stored_clip to plain's end"],need.loc["mu3 to plain's end"]
    def span(text): return [int(o) for o in text.split('(')[1].rstrip(')').split(' to ')]
    sooner = [f for f in ('adding','filtering','sorting') if span(plain[f])[1]<span(three[f])[0]]
    assert sooner==['adding','filtering']   # "by intervals that don't touch"
    assert need.loc['stored_clip to the best end','sorting'].startswith('100+')

WHERE = dict(filtering=['settings','limits','studies/first_study'],
    adding=['settings','studies/first_study'])   # what larger models say of a family

def test_pages_say_what_the_larger_models_say():
    plan,path,rows,got = counted('registration_size', 192)
    texts = rs.texts(got['diff'], got.half)
    said = {(o.regime, o.arm, o.baseline):t.replace('-', '−') for o,t in zip(got.itertuples(), texts)}
    family = {f:said[f, 'stored_clip', 'mu3'] for f in ('filtering','adding')}
    for k,pages in WHERE.items(): assert all(family[k] in o for o in told_in(*pages)), k
    page = prose('studies/first_study')
    more = [('filtering','stored_clip','copies_clip'), *((f,'replay_both','plain') for f in family)]
    assert all(said[k] in page for k in more)
    assert (got.says!='undecided').sum()==8 and (got.says==got.predicted).sum()==7
    assert 'Eight of the ten claims survive. Seven came out as predicted' in page
    tries = read_rows(path.with_name('replay_study_1M_rates.csv'))
    control = FIRST.best_without(tries, plan)
    half = FIRST.with_fewer(rows, 'stored_clip', control, 1/2, plan)
    assert control==dict.fromkeys(family, 'mu3') and all(o.replace('-', '−') in page for o in half)
    near = FIRST.tokens_needed(rows, 'stored_clip', dict(filtering='mu3'), plan)[0]
    assert f"there {near.replace('(', '% of the tokens (')} lead to where three passes end" in page
    dead = rows[rows.arm=='mu3'].groupby('regime').dead.mean()
    assert f"({dead['filtering']:.2f} under three passes against {dead['adding']:.2f})" in page

def test_pages_say_what_the_largest_models_say():
    plan,path,rows,got = counted('registration_large', 48)
    assert (got.says==got.predicted).all() and (got.says!='undecided').sum()==3
    said = dict(zip(got.arm+' '+got.regime, (o.replace('-', '−') for o in rs.texts(got['diff'], got.half))))
    for k,pages in WHERE.items(): assert all(said[f'stored_clip {k}'] in o for o in told_in(*pages)), k
    page = prose('studies/first_study')
    adding = got[(got.arm=='stored_clip')&(got.regime=='adding')].iloc[0]
    assert .013<adding['diff']+adding.half<.014 and 'All four came out as predicted.' in page
    tries = read_rows(path.with_name('replay_study_3M_rates.csv'))
    control,taken = FIRST.best_without(tries, plan),tuned(tries, plan)
    assert set(control.values())=={'mu3'}
    near = dict(zip(control, FIRST.tokens_needed(rows, 'stored_clip', control, plan)))
    assert f"filtering with {near['filtering'].replace('(', '% of the tokens (')}, in adding with" in page
    assert f"in adding with {near['adding'].replace('(', '% (')}." in page
    half = dict(zip(control, FIRST.with_fewer(rows, 'stored_clip', control, 1/2, plan)))
    assert '{filtering}, and {adding}, decided short'.format(**half).replace('-', '−') in page
    dead = rows[rows.arm=='mu3'].groupby('regime').dead.mean()
    assert f"({dead['filtering']:.2f} under three passes against {dead['adding']:.2f})" in page
    assert taken['filtering','mu3']>taken['adding','mu3']

def test_pages_say_what_the_methods_of_others_give():
    plan,_,rows,got = counted('registration_methods', 448)
    assert set(got.says)=={'undecided'} and (got.says==got.predicted).all()
    page = prose('studies/first_study')
    assert 'All five are undecided, as predicted.' in page
    most = (got['diff']+got.half).max()
    assert .025<most<.026 and 'a mean gain of more than .026 lies outside each' in page
    d = paired_table(rows, 'plain', plan['measure']).set_index(['arm','regime'])
    sure = d[d['diff'].abs()>d.diff_ci]['diff'].round(3)
    three = sure['mu3']
    told = f'in every family, by {three.min():.3f} to {three.max():.3f}'.replace('0.', '.')
    assert len(three)==4 and told in page
    one = {k:v>0 for k,v in sure.items() if k[0] in ('filter','ngrpo','zvp','popo')}
    assert one=={('zvp','filtering'):True, ('popo','reversing'):True, ('popo','adding'):False,
        ('ngrpo','adding'):False, ('ngrpo','sorting'):False}
    d = paired_table(rows[rows.arm.isin(['stored_moment','mu3'])], 'mu3', plan['measure']).set_index('regime')
    assert d.index[d['diff']+d.diff_ci<0].tolist()==['sorting'] and not (d['diff']>d.diff_ci).any()
    for o in ('RL-ZVP is ahead of plain GRPO in filtering, POPO in reversing;',
              'NGRPO is behind in adding and in sorting, POPO in adding,',
              '`stored_moment` behind three passes in sorting'): assert o in page, o

BETTER = dict(registration_size=set(), registration_large=set(),
    registration_methods={('filtering','mu3'), ('filtering','stored_moment')})

@pytest.mark.parametrize('page', BETTER)
def test_a_page_names_each_rate_beyond_the_ends_that_is_better_than_the_one_that_was_taken(page):
    plan,path,_ = stored(page)
    tries,beyond = (read_rows(path.with_name(f'{path.stem}_{o}.csv')) for o in ('rates','ends'))
    taken,way = tuned(tries, plan),tries.groupby(['regime','arm','learning_rate']).area.mean()
    better = set()
    for k,d in beyond.groupby(['regime','arm']):
        l, = set(d.learning_rate)
        assert set(d.seed)==set(plan['seeds']['rates'])
        assert taken[k]==(min if l<taken[k] else max)(plan['rates'])   # it was an end
        if d.area.mean()>way[*k, taken[k]]: better.add(k)
    ends = {k for k,l in taken.items() if l in (min(plan['rates']), max(plan['rates']))}
    assert set(zip(beyond.regime, beyond.arm))==ends and better==BETTER[page]
    for k in better:
        far,near = beyond.groupby(['regime','arm']).area.mean()[k],way[*k, taken[k]]
        said = f'{far:.3f} at 5e-5 against {near:.3f}',f'{far:.3f} against {near:.3f}'
        assert any(o.replace('0.', '.') in prose('studies/first_study') for o in said)

def test_rows_made_again_are_the_same_and_a_changed_digit_is_named(tmp_path, capsys):
    job = dict(regime='reversing', arm='plain', seed=2000, learning_rate=1e-4, source='',
        settings='{"budget": 1500, "points": 1}')   # a seed of no table
    f = tmp_path/'replay_study.csv'
    run_study(run_stack, [job], f, stamp(registered=registration(PAGE)['hash']))
    again = dict(what='main', folder=str(tmp_path), page=str(PAGE), repeat=1)
    replay_study(**again)
    assert 'True' in capsys.readouterr().out
    d = pd.read_csv(f, dtype=str, keep_default_na=False)
    d.assign(pass1='0.5').to_csv(f, index=False)
    with pytest.raises(ValueError, match='came out differently'): replay_study(**again)

def test_the_page_of_practice_says_what_its_rows_say():
    plan,_,df = stored('registration_practice')
    assert len(df)==768 and len(stored('registration_practice', '_rates')[2])==160 and set(df.error)=={''}
    assert set(df.learning_rate/df.settings.map(lambda o: json.loads(o)['multiple']))=={2e-4, 4e-4, 8e-4}
    page,named = prose('studies/practice_results'),rs.name_multiples(df, plan)
    found = claims(tables(df, plan)['main table'][0], plan)
    for o in found.itertuples(): assert f'{o.diff:+.3f} ± {o.half:.3f}' in page, (o.arm, o.baseline)
    assert found.says.tolist()==['undecided']*2+['above 0']+['undecided']*3   # "One of six is decided"
    area = named.groupby('arm').area.mean()
    for a,name in (('replay_default','the shipped replay'), ('plain','plain GRPO'), ('mu2','two passes')):
        assert f"{name} {area[f'{a} at 1']-area[f'{a} at 2']:.3f}".replace('0.', '.') in page
    best = named.curve.map(lambda c: max(o['pass1'] for o in json.loads(c)))
    lost = named[(named.pass1<best/2)&(named.regime=='shifting')].arm.value_counts()
    assert lost['plain at 1']==1 and lost['plain at 2']==4 and 'replay_default at 2' not in lost
    mean = named.groupby(['regime','arm']).area.mean().unstack('arm')
    for a in ('plain','left_out','default_no_clip'):
        assert (mean['replay_default at 2']>mean[f'{a} at 2']).all()
    assert (mean['mu2 at 2']>mean['replay_default at 2']).sum()==1   # "two passes keep up in one"
    way = [area[f'{a} at 1'] for a in ('plain','replay_default','left_out','default_no_clip')]
    assert max(way)-min(way)<.035

def test_two_rows_of_every_arm_are_made_again_in_a_stack(tmp_path, capsys, monkeypatch):
    stacks = []
    def run(job, **options):
        stacks.append(job)
        def curve(o): return json.dumps([dict(tokens=t, pass1=o['seed']/4000) for t in (0, 900)])
        return [o|dict(pass1_before=.5, pass1=.5, reward=.25, curve=curve(o), cpu_s='[]') for o in job]
    monkeypatch.setattr(rs, 'run_stack', run)
    jobs = [[dict(regime='filtering', arm=a, seed=s, learning_rate=l, source='', settings='{}')
        for s in (2000, 2001, 2002)] for a in ('plain','replay_default') for l in (1e-4, 4e-4)]
    f = tmp_path/'replay_study.csv'
    run_study(run, jobs, f, stamp(registered=registration(PAGE)['hash']), disable_tqdm=True)
    stacks.clear()
    def again():
        capsys.readouterr()
        replay_study('main', str(tmp_path), str(PAGE), each_arm=True, device='cpu')
        return capsys.readouterr().out.splitlines()[1:]
    out = again()
    assert [o.split()[1:4] for o in out]==[[a, s, '0.0001'] for a in ('plain','replay_default')
        for s in ('2000','2001')] and all(o.count('True')==3 for o in out)
    assert [len(o) for o in stacks]==[2, 2]
    d = pd.read_csv(f, dtype=str, keep_default_na=False)
    d.assign(reward='0.5').to_csv(f, index=False)
    with pytest.raises(ValueError, match='4 of 4 rows came out differently, of plain, replay_default'):
        again()
    d.assign(reward='0.5', machine='another').to_csv(f, index=False)
    assert all(o.count('False')==2 for o in again())   # neither that machine nor equal, but near
    far = json.dumps([dict(tokens=0, pass1=.9), dict(tokens=900, pass1=.9)])
    d.assign(curve=far, pass1_before='0.9', machine='another').to_csv(f, index=False)
    with pytest.raises(ValueError, match='came out differently'): again()

def test_the_rate_is_the_best_mean_of_its_family_and_only_of_complete_tries():
    plan = registration(PAGE)
    d = pd.concat([made(plan, ['plain','mu3'], plan['seeds']['rates'], l) for l in plan['rates']])
    other = (d.regime=='sorting')&(d.arm=='plain')
    d.loc[other,'area'] = 1-d[other].area
    best = tuned(d, plan)
    assert best['adding','plain']==max(plan['rates']) and best['sorting','plain']==min(plan['rates'])
    fewer = tuned(d[(d.arm!='mu3')|(d.seed!=1000)|(d.regime!='adding')], plan)
    assert ('adding','mu3') in best and ('adding','mu3') not in fewer and ('sorting','mu3') in fewer

@pytest.mark.parametrize('end', ['_rates',''])
@pytest.mark.parametrize('page', STUDIES)
def test_stored_rows_are_registered_ones(page, end):
    plan,_,df = stored(page, end)
    assert set(df.registered)=={plan['hash']}
    assert not df.duplicated(['regime', 'arm', 'seed', 'learning_rate']).any()
    seeds = plan['seeds']['rates'] if end else plan['seeds']['main']+plan['seeds'].get('again', [])
    d = plan['definitions']
    assert set(df.seed)<=set(seeds) and set(df.regime)<=set(d['families']) and set(df.arm)<=set(d['arms'])

# ---- the study of the pretrained model

REAL = PAGE.with_name('registration_real.qmd')

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

def test_the_claims_of_its_stored_rows_are_those_of_a_second_count():
    rows = PAGE.parent/'rows'/'real_study.csv'
    t = real_claims(read_rows(rows, ('registered',)), real_plan(REAL))
    second = recount_real(rows, REAL)
    assert t[['diff','diff_ci','p','holm']].to_numpy()==pytest.approx(np.array(second), abs=1e-6)

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
    plan = real_plan(PAGE.with_name('registration_real_scaled.qmd'))
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
