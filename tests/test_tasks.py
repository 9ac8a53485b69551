"Tasks: judges by value, rewards, the two ways of answering, and the group of the course."
import json, logging, os, signal, threading
import pytest
from grpo_nb.parts import answers
from grpo_nb.parts.datasets import chain_sum, gym_dataset, hub_problems, make_problems, split_name
from grpo_nb.studies.study import lessons
from grpo_nb.tasks import (
    accuracy_reward, chain_sum_demonstrations, completion_text, extract_answer, format_reward, get_verifier,
    example_group, overlap_reward, answers_match, math_equal)

# --- judges

@pytest.mark.parametrize('name', ['sums','words','gsm_symbolic'])
def test_the_right_answer_earns_one_and_a_wrong_one_nothing(name):
    ds = make_problems(name, 25, seed=2)
    kw = {k:ds[k] for k in ('answer','task','entry')}
    def earned(said): return accuracy_reward(prompts=ds['prompt'], completions=list(said), **kw)
    assert earned(f'<answer>{a}</answer>' for a in ds['answer'])==[1.]*25
    assert earned(f'<answer>7{a}</answer>' for a in ds['answer'])==[0.]*25
    assert earned(ds['answer'])==[0.]*25   # no tags

@pytest.mark.parametrize('name', ['leg_counting','word_sorting','base_conversion'])
def test_any_gym_task_is_judged_by_its_own_score_answer(name):
    from reasoning_gym import create_dataset
    ds,own = gym_dataset(name, 8),create_dataset(name, size=1, seed=0)
    answers = [ds['answer'][(i*3)%8] for i in range(8)]
    tagged = [f'<answer>{s}</answer>' for s in answers]
    got = accuracy_reward(None, tagged, ds['answer'], ds['task'], ds['entry'], partial=True)
    assert got==[own.score_answer(s, json.loads(e)) for s,e in zip(answers, ds['entry'])]

def test_part_marks_are_dropped_unless_asked_for():
    entry = [json.dumps(dict(answer='4', metadata={}))]
    args = (None, ['<answer>14</answer>'], ['4'], ['chain_sum'], entry)
    assert accuracy_reward(*args)==[0.] and accuracy_reward(*args, partial=True)==[.5]

def test_standard_and_conversational_completions_earn_the_same():
    texts = ['<think>a</think><answer>Oslo</answer>', 'Oslo', '<answer>Bergen</answer>']
    chats = [[{'role':'assistant','content':t}] for t in texts]
    kw = dict(prompts=['?']*3, answer=['oslo']*3, unknown=[1,2,3])
    for f in (accuracy_reward, format_reward, overlap_reward):
        assert f(completions=texts, **kw)==f(completions=chats, **kw)
    assert accuracy_reward(completions=texts, **kw)==[1.,0.,0.]
    with pytest.raises(ValueError, match='list of messages'): completion_text(7)

@pytest.mark.parametrize('text, want', [
    ('<answer> 1\n</answer>', '1'), ('<answer>1</answer><answer>2</answer>', '2'), ('<answer>1', None),
    ('1</answer>', None), ('', None), ('<answer></answer>', ''), ('<answer>1<answer>2</answer>', '2'),
    ('<answer>a\nb</answer>', 'a\nb')])
def test_the_last_closed_answer_counts(text, want): assert extract_answer(text)==want

@pytest.mark.parametrize('text,right', [
    (' 43\n', 1.), ('43', 1.), (' 43\n50 + 11 = 61', 1.), ('\n43', 1.), (' 42\n43', 0.), ('', 0.),
    ('<answer>43</answer>', 0.)])
def test_behind_solved_examples_the_first_line_is_the_answer(text, right):
    assert accuracy_reward(None, [text], ['43'], task=['few_shot'])==[right]
    assert accuracy_reward(None, [text], ['43'])==[float('<answer>' in text)]

@pytest.mark.parametrize('text,right', [
    (' 3 + 5 = 8, 8 + 4 = 12\n', 1.), (' 12', 1.), (' 3 + 5 = 7, 8 + 4 = 12', 1.), (' 12 = 13', 0.),
    (' 3 + 5 = 8\n8 + 4 = 12', 0.), (' 3 + 5 = 8, 8 + 4 =', 0.), ('', 0.)])
def test_behind_a_working_what_follows_the_last_equals_sign_of_the_line_is_the_answer(text, right):
    assert accuracy_reward(None, [text], ['12'], task=['worked'])==[right]

@pytest.mark.parametrize('name,check', [
    ('two_digit_sums', lambda q, a: sum(map(int, q.removesuffix(' =').split(' + ')))==a),
    ('products', lambda q, a: int(q.split(' * ')[0])*int(q.split(' * ')[1].removesuffix(' ='))==a),
    ('next_numbers', lambda q, a: 2*int(q.split(', ')[2].rstrip(','))-int(q.split(', ')[1])==a),
    ('worked_sums', lambda q, a: sum(map(int, q.removesuffix(':').split(' + ')))==a)])
def test_few_shot_answers_are_right_and_no_problem_is_on_both_sides(name, check):
    train,held = (make_problems(name, 40, 1, side) for side in ('train', 'test'))
    lines = [[o['prompt'].split('\n') for o in side] for side in (train, held)]
    assert all(check(o['prompt'].split('\n')[-1], int(o['answer'])) for o in train)
    assert {len(o) for side in lines for o in side}=={3}
    asked,kept = ({o[-1] for o in side} for side in lines)
    assert len(asked)==len(kept)==40 and not asked & kept
    assert all(o[-1] not in o[0]+o[1] for o in lines[0])   # no question is among its examples
    other = make_problems(name, 40, 2)
    assert other['prompt']!=train['prompt']
    assert train['prompt'][:20]==make_problems(name, 20, 1)['prompt']

def test_a_box_counts_where_there_are_no_tags():
    answers = [r'so \boxed{7}', r'\boxed{8} <answer>7</answer>', r'<answer>8</answer> \boxed{7}',
            r'<answer>\boxed{7}</answer>', '7']
    assert accuracy_reward(None, answers, ['7']*5)==[1.,1.,0.,1.,0.]

@pytest.mark.parametrize('text, want', [
    ('<think>a</think><answer>1</answer>', 1.), (' <think>a\nb</think>\n<answer>1</answer>\n', 1.),
    ('<think></think><answer></answer>', 1.), ('<answer>1</answer>', 0.), ('<think>a</think>', 0.),
    ('<think>a</think><answer>1</answer> so', 0.), ('<think><think>a</think><answer>1</answer>', 0.),
    ('<answer>1</answer><think>a</think>', 0.)])
def test_the_form_is_one_thought_and_one_answer(text, want): assert format_reward(None, [text])==[want]

SAME = [('−3','-3'), ('–3','-3'), ('18 dollars','18'), ('$18','18'), ('18 km','18.0'), ('50%','50'),
        ('50%','0.5'), (r'50\%','1/2'), ('1 000 000','1000000'), ('1,000,000','1000000'),
        ('1\u202f000','1000'), (r'1{,}000','1000'), (r'\boxed{18}','18'), ('x = 18','18'), ('1/2','0.5'),
        (r'\frac{1}{2}','0.5'), ('3 km','3 KM'), ('7.','7'), ('1e3','1000'), ('-$1,234.00','-1234'),
        (r'18 \text{ dollars}','18'), ('+5','5'), (' OSLO ','Oslo'), (r'\boxed{Oslo}','oslo'), ('007','7'),
        ('nan','NaN'), ('3 kms','3 km'), ('1 dollar','1 dollars')]
OTHER = [('3','-3'), ('−3','3'), ('18 or 19','18'), ('18 and 19','18'), ('18 or more','18'),
         ('18 million','18'), ('2 thousand','2'), ('5 m','5 km'), ('1,2,3','123'), ('12 34','1234'),
         ('nan','0'), ('inf','1e999'), ('1/0','0'), ('0.333','1/3'), ('2x','2'), ('five','5'), ('','5'),
         ('x = 18','y'), ('9'*5000,'1'), ('1e9999','1'), ('50','0.5'), ('18 half','18'),
         ('5 m','5 s'), ('5 s','5 m')]

def test_answers_are_judged_as_a_mathematician_would():
    assert [o for o in SAME if answers_match(o[0], dict(answer=o[1]))!=1.]==[]
    assert [o for o in OTHER if answers_match(o[0], dict(answer=o[1]))!=0.]==[]

def test_a_gym_task_takes_a_right_number_in_any_spelling_and_keeps_its_own_marks():
    score = get_verifier('chain_sum')
    assert [score(t, dict(answer='-4')) for t in ('−4','x = -4',r'\boxed{-4}')]==[1.]*3
    assert [score(t, dict(answer='-4')) for t in ('4','-44')]==[0., 2/3]
    assert get_verifier('spell_backward')('sun', dict(answer='nus', metadata=dict(word='sun')))<1

ROOTS = r'\frac{\sqrt{2}}{2}',dict(answer=r'\frac{1}{\sqrt{2}}')   # equal, and no numbers to read

def in_thread(f, *args):
    out = []
    th = threading.Thread(target=lambda: out.append(f(*args)))
    th.start(); th.join()
    return out[0]

def test_maths_is_compared_as_expressions_also_from_another_thread():
    entry = dict(answer=r'\frac{3}{4}+\sqrt{2}')
    cases = {r'\sqrt2+0.75':1., r'thus \boxed{\dfrac{6}{8}+\sqrt{2}}':1., r'\frac{4}{3}+\sqrt2':0.,
             'no idea':0.}
    assert {t:math_equal(t, entry) for t in cases}==cases
    assert math_equal('1 000 000', dict(answer='1000000'))==1.
    assert math_equal('18 dollars', dict(answer='18'))==1.
    assert in_thread(lambda: {t:math_equal(t, entry) for t in cases})==cases

def test_an_answer_that_cannot_be_read_in_time_is_wrong_in_every_thread(monkeypatch):
    math_equal('2', dict(answer='x'))   # it has started
    child = answers._judge_of(os.getpid()).child
    ask = answers._Judge.ask
    monkeypatch.setattr(answers._Judge, 'ask', lambda self, *a: ask(self, *a, seconds=.3))
    tower = r'9^{9^{9^{9}}}'
    assert in_thread(math_equal, tower, dict(answer='7'))==0.
    assert child.poll() is not None   # it was ended
    monkeypatch.undo()
    assert in_thread(math_equal, *ROOTS)==1.   # and there is another
    assert in_thread(answers.compare_math, r'$\boxed{\frac{1}{2}}$', r'It is $\frac{2}{4}$.', True) is True

def test_a_judge_of_the_gym_that_evaluates_has_a_limit_too(monkeypatch):
    entry = dict(answer='1+2', metadata=dict(numbers=[1, 2], target=3, expression='1+2'))
    assert get_verifier('countdown')('2+1', entry)==1. and in_thread(get_verifier('countdown'), '2+1',
        entry)==1.
    ask = answers._Judge.ask
    monkeypatch.setattr(answers._Judge, 'ask', lambda self, *a: ask(self, *a, seconds=.3))
    assert get_verifier('countdown')('9**9**9**9', entry)==0.

def test_the_judge_of_maths_leaves_no_alarm_and_no_handler_of_the_process_changed():
    rung = []
    old = signal.signal(signal.SIGALRM, lambda *args: rung.append(1))
    level = logging.getLogger('math_verify').level
    try:
        signal.setitimer(signal.ITIMER_REAL, 60)
        handler = signal.getsignal(signal.SIGALRM)
        assert math_equal(*ROOTS)==1.
        in_thread(math_equal, *ROOTS)
        assert signal.getsignal(signal.SIGALRM) is handler and signal.getitimer(signal.ITIMER_REAL)[0]>0
        assert logging.getLogger('math_verify').level==level
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)

def test_a_hub_set_is_judged_by_its_own_judge():
    ds = hub_problems('numinamath', [dict(problem='p', solution=r'\boxed{\sqrt{2}+\frac{1}{3}}')])
    assert accuracy_reward(None, [r'<answer>\frac{1}{3}+\sqrt{2}</answer>'], ds['answer'], ds['task'])==[1.]
    answers = ['<answer>4</answer>','<answer>$1,000.00</answer>']
    assert accuracy_reward(None, answers, ['4','1000'], ['gsm8k']*2)==[1.,1.]

def test_an_unknown_task_has_no_judge():
    with pytest.raises(ValueError, match="no judge for task 'poetry'"):
        accuracy_reward(None, ['<answer>x</answer>'], ['x'], task=['poetry'])
    with pytest.raises(ValueError, match='use `overlap_reward`'): get_verifier('tldr')   # a summary

def test_overlap_is_rouge_1():
    answers = ['the cat','dog','the the the','']
    assert overlap_reward(None, answers, ['the cat sat']*4)==[2*2/5, 0., 2*1/6, 0.]

# --- two ways

def test_lessons_are_made_of_training_problems_only_and_both_answers_are_what_they_claim():
    L = lessons(30)
    asked = [p[-1]['content'] for p in L['prompt']]
    assert all(split_name(q)=='train' for q in asked)
    assert set(L.column_names)=={'prompt','careful','hasty','p_careful'}
    for q,c,h in zip(asked, L['careful'], L['hasty']):
        if q.startswith('State'):
            terms = q.split(': ')[1].removesuffix(' =')
            assert int(extract_answer(c))==eval(terms)
            for step in c[len('<think>'):c.index('</think>')].split():   # every step of the working is true
                left,right = step.rsplit('=', 1)
                assert eval(left)==int(right)
            assert int(extract_answer(h))==eval(' '.join(terms.split()[:5]))
        else:
            word = q.split('): ')[1]
            assert extract_answer(c)==word[::-1] and extract_answer(h)==word[:4][::-1]

def test_the_group_of_the_course_is_what_the_judge_and_the_ways_say():
    g = example_group()
    careful,hasty = chain_sum_demonstrations(dict(metadata=dict(expression='3 + 7 + 2 + 1')))
    assert sorted(g['completions'])==sorted([careful]*2+[hasty]*6) and extract_answer(hasty)=='12'
    assert g['rewards']==[float(c==careful) for c in g['completions']]
    assert g['prompt'][0]['content'].endswith(': 3 + 7 + 2 + 1 =') and g['answer']==str(3+7+2+1)
    assert example_group(careful=())['rewards']==[0.]*8 and example_group(careful=range(8))['rewards']==[1.]*8
    row = chain_sum(1)[0]['prompt'][0]['content']
    assert row.split(': ')[0]==g['prompt'][0]['content'].split(': ')[0]   # worded as the gym words it
