"The registered study: judging, batches, losses, runs that are the same alone, and a plan that cannot be left"
import json, re
from pathlib import Path
import pandas as pd, pytest, torch
import grpo_nb.families as fm
import grpo_nb.replay_study as rs
import grpo_nb.stacked_runs as sr
from grpo_nb.replay_study import (ARMS, END, FAMILIES, PAD, Arm, Shelf, assemble, decode, encode, factor,
                                  judge, planned, registration, run_stack, say, to_tensors, tuned)
from grpo_nb.stacked import Shape, new_weights

PAGE = Path(__file__).parent.parent/'nbs'/'project'/'registration.qmd'

@pytest.fixture(autouse=True)
def one_thread():
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)

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
        assert judge(ids(text), answer).item()==bool(right), text

def test_the_judge_agrees_with_the_gyms_own():
    "What is taught gets full marks from reasoning-gym, and so does nothing else"
    from grpo_nb.problems import gym_dataset
    from reasoning_gym.factory import get_score_answer_fn
    for family in ('sums','counting'):
        f = FAMILIES[family]
        for e in gym_dataset(f.task, 5, 3, 'test', **f.options)['entry']:
            e = json.loads(e)
            _,_,answer = fm.WAYS[family](e['metadata'], e['answer'])
            assert get_score_answer_fn(f.task)(answer, e)==1

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
    g,there = assemble(Arm(fresh=3), fresh, dead, shelf, u)
    assert g['key'].tolist()==[[0,1,2]]*2 and there.all()
    g,there = assemble(Arm(fresh=3, fill=True), fresh, dead, shelf, u)
    assert (
        g['key'].tolist() == [[10, 1, 2], [0, 1, 2]] and there.all()
    )  # one stored group for two holes, none for run 1
    g,there = assemble(Arm(fresh=3, stored=2), fresh, dead, shelf, u)
    assert g['key'][0,3]==10 and there.tolist()==[[True]*4+[False], [True]*3+[False]*2]
    g,there = assemble(Arm(fresh=3, copies=2), fresh, dead, shelf, u)
    assert g['key'][0].tolist()==[0,1,2,1,1] and there.tolist()==[[True]*5, [True]*3+[False]*2]

def test_the_factor_at_the_corners_of_the_clip():
    new,A = torch.tensor([1.5,.5,1.5,.5,3.]).log(),torch.tensor([1.,1.,-1.,-1.,-1.])
    old = torch.zeros(5)
    for how,want in dict(both=[0,.5,1.5,0,3], clip=[0,1,1,0,1], weight=[1.5,.5,1.5,.5,2]).items():
        assert torch.allclose(factor(new, old, A, how), torch.tensor(want).float()), how

@pytest.fixture
def untaught(monkeypatch):
    "A start that takes no lesson"
    rows = [(f'{a}+{b}', '', str(a+b)) for a in range(10) for b in range(10)]
    d = to_tensors(rows, 'sums')
    theta = 4*new_weights(Shape(vocab=rs.FIRST+len(rs.LETTERS)))
    monkeypatch.setattr(sr, 'start', lambda family: dict(theta=theta, train=d, test=d, hash='0'))
    kind = sr.Runs.__init__
    monkeypatch.setattr(sr.Runs, '__init__', lambda self, *a, **k: kind(self, *a, n_train=40, n_test=10, **k))
    mark = torch.tensor([rs.MARK])   # so that some answers live: right is what ends early
    monkeypatch.setattr(sr, 'judge', lambda ids, answer: (ids==PAD).sum(-1)>2)

def job(arm, seeds, budget=1500):
    return dict(regime='sums', arm=arm, seed=seeds, learning_rate=1e-3, source='',
                settings=json.dumps(dict(budget=budget, points=2)))

@pytest.mark.parametrize('arm', ['plain','mu3','replay_both','copies_clip','stored_weight','plain_16'])
def test_a_run_is_the_same_alone_and_in_company(untaught, arm):
    def bare(rows): return [{k:v for k,v in o.items() if k!='cpu_s'} for o in rows]
    company = bare(run_stack(job(arm, [3, 4, 5]), 'cpu'))
    assert bare(run_stack(job(arm, [4]), 'cpu'))==[company[1]] and company[0]!=company[1]|dict(seed=3)
    assert all(o['tokens']>=1500 and json.loads(o['curve'])[-1]['tokens']==o['tokens'] for o in company)
    for o in run_stack(job(arm, [4]), 'cpu'): assert len(json.loads(o['cpu_s']))==len(json.loads(o['curve']))

def test_steps_per_batch_are_those_of_the_arm(untaught):
    for arm,n in dict(plain=1, mu2=2, mu3=3, stored_clip=3, copies_weight=3, replay_clip=1).items():
        o = run_stack(job(arm, [0], 600), 'cpu')[0]
        assert o['steps']==n*o['batches'], arm

def test_page_and_code_agree_and_a_moved_definition_is_refused(tmp_path):
    plan = registration(PAGE)
    (tmp_path/'p.qmd').write_text(PAGE.read_text().replace('"stored": 16', '"stored": 8'))
    with pytest.raises(ValueError, match='arms of .* are not those'): registration(tmp_path/'p.qmd')
    (tmp_path/'p.qmd').write_text('nothing here')
    with pytest.raises(ValueError, match='no block of JSON'): registration(tmp_path/'p.qmd')
    assert len(plan['seeds']['main'])==64 and len(plan['seeds']['rates'])==16 and len(plan['arms']['main'])==6
    assert not set(plan['seeds']['main'])&set(plan['seeds']['rates'])
    assert {a for c in plan['claims'] for a in c}<=set(plan['arms']['main'])
    assert set(plan['arms']['main'])|set(plan['arms']['side'])==set(ARMS)

def test_planned_jobs_are_the_registered_ones_block_by_block():
    plan = registration(PAGE)
    main = planned(plan, 'main', dict.fromkeys(plan['arms']['main'], 1e-4), stack=16)
    assert len(main)==4*6*4 and [o['seed'][0] for o in main]==sorted(o['seed'][0] for o in main)
    side = planned(plan, 'side', {a:i+1. for i,a in enumerate(plan['arms']['main'])})
    assert {o['learning_rate'] for o in side if o['arm'] in ('mu2','mu3_clip')}=={2.}   # its relative's
    tries = planned(plan, 'rates', stack=16)
    assert len(tries)==6*4*3
    with pytest.raises(ValueError, match='no rate yet for plain'): planned(plan, 'main', {})
    with pytest.raises(ValueError, match='no plan'): planned(plan, 'other', {})

def made(plan, arms, seeds, l=1e-4):
    return pd.DataFrame([dict(regime=f, arm=a, seed=s, learning_rate=l, error='',
                              area=0.5 + 0.01 * (s % 3) + (a == 'plain') * 1e4 * l) for f in FAMILIES
                         for a in arms for s in seeds])

def test_no_difference_is_shown_before_all_runs_are_there():
    plan = registration(PAGE)
    df = made(plan, plan['arms']['main'], plan['seeds']['main'])
    assert '1535 of 1536' in say(df.iloc[1:], plan) and 'holm' not in say(df.iloc[1:], plan)
    assert 'holm' in say(df, plan)

def test_the_rate_is_the_best_mean_and_only_of_complete_tries():
    plan = registration(PAGE)
    d = pd.concat([made(plan, ['plain','mu3'], plan['seeds']['rates'], l) for l in plan['rates']])
    assert tuned(d, plan)['plain']==3e-4
    assert 'mu3' in tuned(d, plan) and 'mu3' not in tuned(d[(d.arm!='mu3')|(d.seed!=1000)], plan)

@pytest.mark.parametrize('name', ['replay_study_rates','replay_study'])
def test_stored_rows_are_registered_ones(name):
    path = PAGE.parent.parent/'results'/f'{name}.csv'
    if not path.exists(): pytest.skip('no rows yet')
    from grpo_nb.study import read_rows
    plan,df = registration(PAGE),read_rows(path)
    assert (set(df.registered) == {plan['hash']}
            and not df.duplicated(['regime', 'arm', 'seed', 'learning_rate']).any())
    seeds = plan['seeds']['rates'] if 'rates' in name else plan['seeds']['main']
    assert set(df.seed)<=set(seeds) and set(df.regime)<=set(FAMILIES) and set(df.arm)<=set(ARMS)
