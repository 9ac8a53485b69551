"Rewards: TRL's own calculation, its stock functions, every bad return, reward models, loading."
import asyncio, functools, inspect, math, warnings
from concurrent.futures import ThreadPoolExecutor
import pytest, torch
from grpo_nb.parts.row_checks import validate_dataset
from grpo_nb.parts.reward_checks import validate_rewards, reward_name, reward_names
from grpo_nb.parts.registry import import_file
from grpo_nb.parts.reward_loading import load_reward
from grpo_nb.advantages import multi_reward_advantages
from grpo_nb.parts.reward_calls import RewardLog, check_reward_parameters, run_state
from grpo_nb.rewards import combine_rewards, compute_rewards

torch.set_num_threads(1)
P,C = ['p','p','q','q'],['a','bb','ccc','a b']
MP = [[dict(role='user', content=o)] for o in P]
MC = [[dict(role='assistant', content=o)] for o in C]

def length(completions, **kwargs): return [float(len(c)) for c in completions]

def test_functions_get_what_trl_gives_them():
    got = {}
    def look(prompts, completions, completion_ids, answer, trainer_state, log_extra, log_metric, **kwargs):
        got.update(locals()); log_extra('x', [1]*4); log_metric('m', .5)
        return [0]*4
    r = compute_rewards(look, P, C, dict(answer=list('1122'), prompt=P, level=[1, 1, 2, 2]),
                        completion_ids=[[1], [2], [3], [4]])
    assert (
        got['prompts'] == P
        and got['completions'] == C
        and got['completion_ids'] == [[1], [2], [3], [4]]
        and got['answer'] == list('1122')
        and got['trainer_state'].global_step == got['trainer_state'].max_steps == 0
    )
    assert set(got['kwargs'])=={'level'}
    assert r.shape==(4,1) and r.dtype==torch.float32 and torch.equal(r, torch.zeros(4, 1))

def test_the_numbers_are_those_of_trl():
    "GRPOTrainer's own `_calculate_rewards`, on a bare object that holds what it reads."
    trl = pytest.importorskip('trl.trainer.grpo_trainer')
    import threading
    from types import SimpleNamespace as NS

    async def later(completions, level, **kwargs):
        await asyncio.sleep(0)
        return [l * len(c) for c, l in zip(completions, level)]

    def some(completions, **kwargs): return [None if len(c)==1 else .5 for c in completions]
    funcs = [length, some, later]
    loop = asyncio.new_event_loop(); th = threading.Thread(target=loop.run_forever, daemon=True); th.start()
    self = NS(accelerator=NS(device='cpu', num_processes=1, is_main_process=True), reward_funcs=funcs,
              reward_processing_classes=[None] * 3, reward_func_names=['a', 'b', 'c'],
              state=NS(global_step=0), environments=None, _log_completion_extra=None, _log_metric=None,
              async_loop=loop, _metrics={'train': {}, 'eval': {}}, model=NS(training=True),
              args=NS(report_to=[]))
    raw = trl.GRPOTrainer._calculate_rewards
    from unittest import mock

    with (mock.patch.object(trl, 'gather', lambda x: x),
          mock.patch.object(trl, 'profiling_context', lambda *a: __import__('contextlib').nullcontext())):
        want = raw(self, [dict(prompt=p, level=i) for i,p in enumerate(P)], P, C, [[1]]*4)
    loop.call_soon_threadsafe(loop.stop)
    got = compute_rewards(funcs, P, C, dict(level=[0,1,2,3]), completion_ids=[[1]]*4)
    assert torch.equal(got.nan_to_num(-9), want.nan_to_num(-9))
    w = torch.tensor([1.,.5,-2.])
    assert torch.equal(combine_rewards(got, w), (want*w).nansum(1))

def test_trl_stock_functions_go_in_as_they_are():
    from trl.rewards import get_repetition_penalty_reward, get_soft_overlong_punishment, think_format_reward

    ids = [torch.randint(0, 3, (n,), generator=torch.Generator().manual_seed(n)).tolist()
           for n in (0, 2, 7, 12)]
    a = compute_rewards([get_soft_overlong_punishment(9, 4), get_repetition_penalty_reward(2, -1.5)], P, C,
                        completion_ids=ids)
    def overlong(o): return -min(max((len(o)-5)/4, 0.), 1.)   # DAPO, arXiv 2503.14476, equation 13
    def repeats(o):   # 2-grams said before, arXiv 2502.03373
        grams = list(zip(o, o[1:]))
        return -1.5*(1-len(set(grams))/len(grams)) if grams else 0.
    b = torch.tensor([[overlong(o), repeats(o)] for o in ids])
    torch.testing.assert_close(a, b); assert (b<0).any(0).all()
    good = [[dict(role='assistant', content='<think>x</think>y')]]*4
    assert torch.equal(compute_rewards(think_format_reward, MP, good), torch.ones(4, 1))

def test_conversational_rows_arrive_as_messages():
    def text(prompts, completions, **kwargs):
        return [len(p[0]['content']) + len(c[0]['content']) for p, c in zip(prompts, completions)]

    assert compute_rewards(text, MP, MC)[:,0].tolist()==[2,3,4,4]

def test_async_functions_wait_together_also_inside_a_running_loop():
    met = []
    async def all_here(value):
        "Goes on once three are under way: run one after another, they would never meet."
        met.append(value)
        for _ in range(2000):
            if len(met)>=3: break
            await asyncio.sleep(.001)
        else: raise TimeoutError('the others never started')
        return [value]*4
    async def slow(completions, **kwargs): return await all_here(1.)
    class Judge:
        async def __call__(self, completions, **kwargs): return await all_here(2.)
    funcs = [slow, length, Judge(), functools.partial(slow, extra=1)]
    r = compute_rewards(funcs, P, C)
    assert torch.equal(r[0], torch.tensor([1.,1.,2.,1.])) and len(met)==3
    met.clear()
    async def inside(): return compute_rewards(funcs, P, C)

    with ThreadPoolExecutor(1) as own:
        again = own.submit(
            lambda: asyncio.run(inside())
        ).result()  # a thread of its own: browser tests leave a loop running in this one
    assert torch.equal(again, r) and len(met)==3
    async def bad(completions, **kwargs): raise KeyError('answer')

    with pytest.raises(ValueError, match=r"`bad` \(test_rewards.py\) raised KeyError: 'answer'"):
        compute_rewards([slow, bad], P, C)


@pytest.mark.parametrize('out,says', [
    (None, 'returned None: .*`return` forgotten'), (.5, 'returned 0.5, one float'),
    (torch.tensor(1.), 'one float'), ('good', 'one str'), (dict(a=1), 'one dict'),
    ((o for o in range(4)), 'one generator'), ([1, 2, 3], '3 rewards for 4'), ([1]*5, '5 rewards for 4'),
    (torch.ones(4, 2), 'list'), (['1.0']*4, r"'1.0' \(str\) for completion 0"),
    ([[1], [2], [3], [4]], r'\[1\] \(list\) for completion 0'),
    ([0, 0, math.inf, 0], 'inf for completion 2'), ([0, -math.inf, 0, 0], '-inf for completion 1'),
    ([0, 1e30, 0, 0], '1e\\+30 for completion 1')])
def test_every_bad_return_is_named_with_function_and_file(out, says):
    def culprit(**kwargs): return out
    with pytest.raises(ValueError, match=says) as e: compute_rewards([length, culprit], P, C)
    assert '`culprit` (test_rewards.py)' in str(e.value) and str(e.value).count('\n')==0

def test_a_function_that_raises_is_named_and_its_error_kept():
    def culprit(completions, answer, **kwargs): return answer

    with pytest.raises(ValueError, match=r'`culprit` \(test_rewards.py\) raised TypeError.*answer') as e:
        compute_rewards(culprit, P, C)
    assert isinstance(e.value.__cause__, TypeError)
    def plain(completions): return [0.]
    with pytest.raises(ValueError, match=r'takes no `prompts`.*: add `\*\*kwargs`'):
        compute_rewards(plain, P, C)
    def text(completions, **kwargs): return [o.strip() for o in completions]
    talk = [[dict(role='assistant', content='2')]]
    with pytest.raises(ValueError, match=r"its text is `completion\[0\]\['content'\]`"):
        compute_rewards(text, [[dict(role='user', content='1+1=')]], talk)
    def stop(**kwargs): raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): compute_rewards(stop, P, C)

def test_a_function_that_can_take_the_columns_is_not_refused():
    def one(completions): return [1.]*len(completions)
    @functools.wraps(one)
    def wrapped(**kwargs): return one(kwargs['completions'])
    def started(completions, completion_start, **kwargs): return [1.]*len(completions)
    class Judge:
        def __call__(self, completions, answer, **kwargs): return [1.]*len(completions)
    good = [wrapped, started, Judge(), functools.partial(Judge(), answer=1)]
    check_reward_parameters(good, ['prompt','answer'])
    with pytest.raises(ValueError, match='`one` .*does not fit the dataset: it takes no `answer`'):
        check_reward_parameters([one], ['prompt','answer'])

def test_good_returns_of_every_kind():
    import numpy as np

    for out in ([1, 2, 3, 4], (1.0, 2.0, 3.0, 4.0), torch.tensor([1, 2, 3, 4]),
                np.array([1.0, 2.0, 3.0, 4.0]), [torch.tensor(1.0), np.float32(2), 3, 4],
                torch.arange(1.0, 5, requires_grad=True)):
        assert validate_rewards(out, 4, 'f').tolist()==[1,2,3,4]
    assert validate_rewards([True,False], 2, 'f').tolist()==[1,0] and validate_rewards([], 0, 'f').shape==(0,)

def test_none_is_quiet_and_nan_is_taken_as_none_with_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert validate_rewards([None,1.], 2, 'f').isnan().tolist()==[True,False]
    with pytest.warns(UserWarning, match='`f` returned nan for 1 completions, the first is 1'):
        x = validate_rewards([None, math.nan, 1.0], 3, '`f`')
    assert x.isnan().tolist()==[True,True,False]

def test_combining_skips_none_and_leaves_unjudged_rows_nan():
    n = math.nan
    x = torch.tensor([[[1.,n],[n,n]], [[2.,3.],[n,-1.]]])
    with pytest.warns(UserWarning, match='row 1'): r = combine_rewards(x, [2,10])
    assert r.shape==(2,2) and r[0,0]==2 and r[0,1].isnan() and r[1,0]==34 and r[1,1]==-10
    with pytest.raises(ValueError, match='3 weights for 2'): combine_rewards(x, [1,2,3])
    with pytest.raises(ValueError, match='finite'): combine_rewards(x, [1,n])

def test_what_only_a_measure_of_weight_0_judged_is_not_judged():
    n = math.nan
    x = torch.tensor([[[1.,.5],[n,.5],[0.,.5],[n,n]], [[n,1.],[n,2.],[n,3.],[n,4.]]])
    with pytest.warns(UserWarning, match='judged 6 completions, the first is row 1'):
        r = combine_rewards(x, [2,0])
    assert r[0,0]==2 and r[0,2]==0 and r[0,[1,3]].isnan().all() and r[1].isnan().all()
    for how in ('sum_then_normalize','normalize_then_sum'):
        with pytest.warns(UserWarning): A = multi_reward_advantages(x, [1.,0.], how)
        with pytest.warns(UserWarning): alone = multi_reward_advantages(x[...,:1], None, how)
        assert torch.equal(A, alone) and (A[0,[1,3]]==0).all() and (A[1]==0).all()
    assert combine_rewards(x[1:], [0,0]).tolist()==[[0.]*4]   # all weights 0: every judge counts

def test_wrong_calls_are_named():
    with pytest.raises(ValueError, match='no reward functions'): compute_rewards([], P, C)
    with pytest.raises(ValueError, match='not callable'): compute_rewards('length', P, C)
    with pytest.raises(ValueError, match='inf for completion 0'):   # more than a float can hold
        compute_rewards(lambda completions, **kw: [10**400]*4, P, C)
    assert compute_rewards(length, [], []).shape==(0,1)

def test_a_function_that_spoils_its_lists_spoils_no_others():
    def vandal(completions, prompts, **kwargs): completions.clear(); prompts.reverse(); return [0.]*4
    assert compute_rewards([vandal, length], P, list(C))[:,1].tolist()==[1,2,3,3]

def test_rewards_are_told_of_the_run_and_log_metrics_and_columns():
    def logs(completions, trainer_state, log_metric, log_extra, **kw):
        log_metric('long', torch.tensor(1.)); log_metric('long', 2)
        log_extra('size', [len(c) for c in completions])
        return [float(trainer_state.global_step)]*4
    log = RewardLog(run_state(7, 9))
    for _ in range(2): assert compute_rewards([logs, length], P, C, log=log)[:,0].tolist()==[7.]*4
    assert log.metrics=={'long':1.5} and log.extra=={'size':[1, 2, 3, 3]*2}
    compute_rewards(length, P, C, log=log)   # one that logs nothing after one that did

@pytest.mark.parametrize('name,args,says', [
    ('log_metric', ('m', 'much'), 'could not convert string to float'),
    ('log_extra', ('x', [1]), "'x', ….* got 1 values for 4")])
def test_a_log_that_cannot_be_kept_is_named(name, args, says):
    def logs(completions, **kw): kw[name](*args); return [0.]*4
    with pytest.raises(ValueError, match=says): compute_rewards(logs, P, C)

@pytest.mark.parametrize('name', ['trainer_state','log_metric','log_extra'])
def test_a_column_under_a_name_of_the_trainers_is_refused(name):
    with pytest.raises(ValueError, match=f'column `{name}`.* rename it'):
        validate_dataset([{'prompt':'a', name:1}], 1)

@pytest.fixture
def process_as_it_was():
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)

CARELESS = dict(
    another_seed=lambda: torch.manual_seed(6),
    the_same_seed=lambda: torch.manual_seed(5),
    seed_and_draw=lambda: [torch.manual_seed(6), torch.rand(1000), torch.randn(3)])

@pytest.mark.parametrize('async_', [False, True], ids=['sync','async'])
@pytest.mark.parametrize('what', CARELESS)
def test_a_reward_that_seeds_torchs_generator_does_not_seed_the_run(what, async_, process_as_it_was):
    change = CARELESS[what]
    def careless(completions, **kw):
        change()
        return [float(len(c)) for c in completions]
    async def later(completions, **kw): return careless(completions)
    torch.manual_seed(5)
    torch.rand(3)
    state = torch.get_rng_state()
    name = 'later' if async_ else 'careless'
    with pytest.warns(UserWarning, match=f"reward function `{name}`.*seeded torch's.*put back"):
        assert compute_rewards(later if async_ else careless, P, C)[:,0].tolist()==[len(c) for c in C]
    assert torch.equal(torch.get_rng_state(), state) and torch.initial_seed()==5

def test_a_reward_that_draws_random_numbers_moves_torchs_generator_on_without_a_word(recwarn):
    def noisy(completions, **kw):
        torch.randn(3)   # of which torch keeps one for later
        return torch.rand(len(completions)).tolist()
    def drawn(judge):
        torch.manual_seed(5)
        return judge(),torch.randn(3).tolist(),torch.rand(700).tolist(),torch.get_rng_state().tolist()
    want = drawn(lambda: noisy(C))
    got = drawn(lambda: compute_rewards(noisy, P, C)[:,0].tolist())
    assert got[0]==pytest.approx(want[0]) and got[1:]==want[1:] and not list(recwarn)

def test_the_generator_is_put_back_though_the_reward_raises(process_as_it_was):
    def breaks(completions, **kw):
        torch.manual_seed(6)
        raise KeyError('x')
    torch.manual_seed(5)
    with pytest.warns(UserWarning, match='seeded'), pytest.raises(ValueError, match='raised KeyError'):
        compute_rewards(breaks, P, C)
    assert torch.initial_seed()==5

def test_names():
    class Judge:
        def __call__(self): pass

    assert [
        reward_name(o) for o in (length, functools.partial(functools.partial(length, a=1), b=2), Judge())
    ] == ['length', 'length', 'Judge']

def test_two_rewards_of_one_name_are_told_apart():
    twins = [lambda completions, **kw: [1.]*4, lambda completions, **kw: [2.]*4]
    assert reward_names([*twins, length])==['<lambda>','<lambda>_2','length']
    def length_2(completions, **kw): return [0.]*4   # a name that the second `length` would get
    assert reward_names([length, length_2, functools.partial(length)])==['length','length_2','length_3']
    assert reward_names([length, length, length_2])==['length','length_3','length_2']
    def bad(completions, **kw): return [0.]*4 if kw['word']=='a' else None
    both = [functools.partial(bad, word=o) for o in 'ab']
    with pytest.raises(ValueError, match='`bad_2`'): compute_rewards(both, P, C)


def test_loading_a_function_and_every_way_it_fails(tmp_path):
    f = tmp_path/'my_rewards.py'
    f.write_text('from dataclasses import dataclass\n@dataclass\nclass A:\n    x:int=1\n'
                 'def my_reward(completions, **kw): return [A().x]*len(completions)\nlimit = 3\n')
    assert compute_rewards(load_reward(f'{f}:my_reward'), P, C).tolist()==[[1.]]*4
    assert load_reward('trl.rewards:think_format_reward').__name__=='think_format_reward'
    (tmp_path/'bad.py').write_text('import nothing_of_that_name\n')
    for spec, says in ((f'{f}:other', '`other`; it has: A, my_reward'),
                       (f'{f}:limit', 'int, needs to be a function'), (f'{tmp_path}/none.py:f', 'no file'),
                       (f'{tmp_path}/bad.py:f', 'ModuleNotFoundError'),
                       (str(f), 'FILE.py:FUNCTION|no module'), ('my_reward', 'FILE.py:FUNCTION'),
                       ('no_such_module:f', 'no module `no_such_module`')):
        with pytest.raises(ValueError, match=says): load_reward(spec)
    (tmp_path/'notes.txt').write_text('limit = 3')
    with pytest.raises(ValueError, match='must end in .py'): import_file(tmp_path/'notes.txt')

def test_trls_rewards_are_known_by_name():
    import trl.rewards
    names = ['accuracy_reward','reasoning_accuracy_reward','think_format_reward']
    assert [inspect.unwrap(load_reward(o)) for o in names]==[getattr(trl.rewards, o) for o in names]
    form,inside = load_reward(names[2]),[[dict(role='assistant', content='x</think>y')]]
    assert form(completions=inside)==[0.] and form(inside, completion_start=['<think>\n'])==[1.]
    assert form(inside, prompts=['q <think>'])==[1.] and form(inside, prompts=['<think> q'])==[0.]
    solved = [[dict(role='assistant', content=r'\boxed{4}')]]
    assert load_reward('accuracy_reward')(completions=solved, solution=['4'])==[1.]
    assert load_reward('get_soft_overlong_punishment')(completion_ids=[[0] * 1280]) == [
        -1.0
    ]  # TRL's own settings
    assert load_reward('trl.rewards.think_format_reward')==load_reward('think_format_reward')

def test_an_unknown_name_gets_those_there_are():
    with pytest.raises(ValueError, match='or one of accuracy_reward'): load_reward('accuracy')
