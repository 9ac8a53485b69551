"Tasks: sides that never meet, judges by value, rewards in TRL's convention, and bad input named."
import json, subprocess, sys, threading
import pytest
from datasets import Dataset, DatasetDict
from grpo_nb.tasks import (accuracy_reward, arithmetic, boxed, chain_sum, completion_text, extract_answer, format_reward, gsm8k, gsm_symbolic, gym_dataset,
    judge, lessons, load_problems, numinamath, overlap_reward, same_answer, same_maths, spell_backward, split_of, split_problems, tldr)

MAKERS = dict(chain_sum=chain_sum, spell_backward=spell_backward, gsm_symbolic=gsm_symbolic, arithmetic=arithmetic)
ask = lambda ds: [p[-1]['content'] for p in ds['prompt']]

# --- sides

@pytest.mark.parametrize('name', MAKERS)
def test_train_and_held_out_never_share_a_question(name):
    train = set().union(*(ask(MAKERS[name](120, seed=s, split='train')) for s in (0, 1, 7)))
    test = set().union(*(ask(MAKERS[name](120, seed=s, split='test')) for s in (0, 1, 7))) if name!='arithmetic' else set(ask(arithmetic(120, split='test')))
    assert train and test and not train & test

@pytest.mark.parametrize('name', MAKERS)
def test_a_set_holds_n_different_problems_and_is_the_same_when_made_again(name):
    a,b = MAKERS[name](60, seed=3), MAKERS[name](60, seed=3)
    assert len(set(ask(a)))==60 and a.to_list()==b.to_list()

@pytest.mark.parametrize('name', ['chain_sum','spell_backward','gsm_symbolic'])
def test_neighbouring_seeds_make_different_problems(name):
    a,b = (ask(MAKERS[name](80, seed=s)) for s in (0, 1))
    assert len(set(a) & set(b))<15

def test_other_settings_do_not_move_a_question_to_the_other_side():
    narrow,wide = chain_sum(300, split='test', min_terms=3, max_terms=3), chain_sum(3000, split='train', min_terms=2, max_terms=3)
    assert not set(ask(narrow)) & set(ask(wide))

def test_the_side_is_the_same_in_another_process_and_about_a_fifth_is_held_out():
    texts = [f'problem {i}' for i in range(5000)]
    here = [split_of(t) for t in texts]
    assert .18<here.count('test')/5000<.22
    code = "from grpo_nb.tasks import split_of; print(''.join(split_of(f'problem {i}')[1] for i in range(200)))"
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout.strip()==''.join(s[1] for s in here[:200])

# the sides as first shipped: a change would let old exams leak into training
FROZEN = 'rrrrrrrerrrrrrrerrrrrree'   # second letters of train and test

def test_sides_of_known_texts_stay_where_they_are():
    assert ''.join(split_of(f'What is {i} + 1?')[1] for i in range(24))==FROZEN

def test_lessons_are_made_of_training_problems_only_and_both_answers_are_what_they_claim():
    L = lessons(30)
    assert all(split_of(q)=='train' for q in ask(L))
    assert set(L.column_names)=={'prompt','careful','hasty','p_careful'}
    for q,c,h in zip(ask(L), L['careful'], L['hasty']):
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

# --- too little

@pytest.mark.parametrize('call, says', [
    (lambda: chain_sum(500, min_terms=2, max_terms=2), 'too few different problems'),
    (lambda: arithmetic(100, largest=2), 'too few different problems'),
    (lambda: chain_sum(0), '`n` is 0'), (lambda: chain_sum(2.5), '`n` is 2.5'), (lambda: chain_sum(5, seed=-1), '`seed` is -1'),
    (lambda: chain_sum(5, split='dev'), "'train' or 'test'"),
    (lambda: gym_dataset('chainsum', 5), 'near it: chain_sum'), (lambda: gym_dataset('zzzzqq', 5), 'in all'),
    (lambda: gym_dataset('chain_sum', 5, terms=3), 'it has min_terms'), (lambda: chain_sum(5, min_terms=5, max_terms=3), 'refuses'),
    (lambda: arithmetic(5, ops='/'), '`ops`'),
])
def test_what_cannot_be_made_is_refused_with_its_reason(call, says):
    with pytest.raises(ValueError) as e: call()
    assert says in str(e.value)

# --- judges

@pytest.mark.parametrize('name', ['chain_sum','spell_backward','gsm_symbolic','arithmetic'])
def test_the_right_answer_earns_one_and_a_wrong_one_nothing(name):
    ds = MAKERS[name](25, seed=2)
    kw = {k:ds[k] for k in ('answer','task','entry')}
    say = lambda xs: [f'<answer>{x}</answer>' for x in xs]
    assert accuracy_reward(prompts=ds['prompt'], completions=say(ds['answer']), **kw)==[1.]*25
    assert accuracy_reward(prompts=ds['prompt'], completions=say(f'7{a}' for a in ds['answer']), **kw)==[0.]*25
    assert accuracy_reward(prompts=ds['prompt'], completions=list(ds['answer']), **kw)==[0.]*25   # no tags

@pytest.mark.parametrize('name, config', [('leg_counting', {}), ('word_sorting', {}), ('base_conversion', {})])
def test_any_gym_task_is_judged_by_its_own_score_answer(name, config):
    from reasoning_gym import create_dataset
    ds = gym_dataset(name, 8, **config)
    own = create_dataset(name, size=1, seed=0)
    said = [ds['answer'][(i*3)%8] for i in range(8)]
    got = accuracy_reward(None, [f'<answer>{s}</answer>' for s in said], ds['answer'], ds['task'], ds['entry'], partial=True)
    assert got==[own.score_answer(s, json.loads(e)) for s,e in zip(said, ds['entry'])]

def test_part_marks_are_dropped_unless_asked_for():
    entry = [json.dumps(dict(answer='4', metadata={}))]
    args = (None, ['<answer>14</answer>'], ['4'], ['chain_sum'], entry)
    assert accuracy_reward(*args)==[0.] and accuracy_reward(*args, partial=True)==[.5]

def test_standard_and_conversational_completions_earn_the_same():
    texts = ['<think>a</think><answer>Oslo</answer>', 'Oslo', '<answer>Bergen</answer>']
    chats = [[{'role':'assistant','content':t}] for t in texts]
    for f in (accuracy_reward, format_reward, overlap_reward):
        assert f(prompts=['?']*3, completions=texts, answer=['oslo']*3, unknown=[1,2,3])==f(prompts=['?']*3, completions=chats, answer=['oslo']*3, unknown=[1,2,3])
    assert accuracy_reward(None, texts, ['oslo']*3)==[1.,0.,0.]
    with pytest.raises(ValueError, match='list of messages'): completion_text(7)

@pytest.mark.parametrize('text, want', [('<answer>1</answer>', '1'), ('<answer> 1\n</answer>', '1'), ('<answer>1</answer><answer>2</answer>', '2'), ('<answer>1', None), ('1</answer>', None),
    ('', None), ('<answer></answer>', ''), ('<answer>1<answer>2</answer>', '2'), ('<answer>a\nb</answer>', 'a\nb')])
def test_the_last_closed_answer_counts(text, want): assert extract_answer(text)==want

@pytest.mark.parametrize('text, want', [('<think>a</think><answer>1</answer>', 1.), (' <think>a\nb</think>\n<answer>1</answer>\n', 1.), ('<answer>1</answer>', 0.), ('<think>a</think>', 0.),
    ('<think>a</think><answer>1</answer> so', 0.), ('<think><think>a</think><answer>1</answer>', 0.), ('<answer>1</answer><think>a</think>', 0.), ('<think></think><answer></answer>', 1.)])
def test_the_form_is_one_thought_and_one_answer(text, want): assert format_reward(None, [text])==[want]

@pytest.mark.parametrize('a, b, want', [('1,234', '1234', 1.), ('12.0', '12', 1.), ('$5', '5', 1.), ('7.', '7', 1.), (' OSLO ', 'Oslo', 1.), ('1e3', '1000', 1.), ('five', '5', 0.), ('', '5', 0.), ('12', '-12', 0.)])
def test_same_answer_knows_numbers_and_text(a, b, want): assert same_answer(a, dict(answer=b))==want

def test_maths_is_compared_as_expressions_also_from_another_thread():
    entry = dict(answer=r'\frac{3}{4}')
    cases = {'0.75':1., r'\dfrac{6}{8}':1., '3/4':1., r'thus \boxed{0.75}':1., '4/3':0., 'no idea':0.}
    assert {t:same_maths(t, entry) for t in cases}==cases
    out = []
    th = threading.Thread(target=lambda: out.append({t:same_maths(t, entry) for t in cases})); th.start(); th.join()
    assert out==[cases]

def test_an_unknown_task_has_no_judge():
    with pytest.raises(ValueError, match="no judge for task 'poetry'"): accuracy_reward(None, ['<answer>x</answer>'], ['x'], task=['poetry'])
    with pytest.raises(ValueError, match='no single right answer'): judge('tldr')('x', {})

# --- your own problems

def test_every_kind_of_source_gives_the_same_problems(tmp_path):
    rows = [dict(prompt=f'{i}+1?', answer=str(i+1), level='easy') for i in range(5)]
    Dataset.from_list(rows).to_parquet(tmp_path/'a.parquet'); Dataset.from_list(rows).to_csv(tmp_path/'a.csv')
    (tmp_path/'a.jsonl').write_text('\n'.join(map(json.dumps, rows))+'\n\n'); (tmp_path/'a.json').write_text(json.dumps(rows))
    for src in (tmp_path/'a.parquet', str(tmp_path/'a.csv'), tmp_path/'a.jsonl', tmp_path/'a.json', rows, Dataset.from_list(rows)):
        got = load_problems(src)
        assert sorted(got.column_names)==['answer','level','prompt'] and [dict(sorted(o.items())) for o in got.to_list()]==[dict(sorted(o.items())) for o in rows], src

def test_answers_become_text_and_leading_zeros_stay(tmp_path):
    (tmp_path/'a.csv').write_text('question,result\nzip code?,00420\n')
    assert load_problems(tmp_path/'a.csv', prompt='question', answer='result').to_list()==[dict(prompt='zip code?', answer='00420')]
    assert load_problems([dict(prompt='a', answer=7)])['answer']==['7']
    assert load_problems([dict(prompt=[{'role':'user','content':'hi'}])]).column_names==['prompt']

def write(tmp_path, name, text):
    (tmp_path/name).write_text(text); return tmp_path/name

@pytest.mark.parametrize('source, says', [
    ('missing.jsonl', 'is no file'), (('a.txt','x'), 'can read .jsonl'), (('a.jsonl',''), 'a.jsonl is empty'), (('a.jsonl','{"prompt": "a"}\n{oops\n'), 'a.jsonl, line 2 is not JSON'),
    (('a.csv','question,answer\nx,1\n'), 'no column `prompt`; it has question, answer'), (('a.jsonl','[1]\n'), 'needs to be an object'),
    ([], 'is empty'), ([dict(prompt='a'), dict(prompt=None)], 'row 1 is None'), ([dict(prompt='a'), dict(prompt='  ')], 'row 1 is empty'), ([dict(prompt=7)], 'is int'),
    ([dict(prompt=[])], 'no messages'), ([dict(prompt=['hi'])], 'without `role` and `content`'), ([dict(prompt=[{'role':'user','content':''}])], 'ends on an empty message'),
    ([dict(prompt='a'), dict(prompt=[{'role':'user','content':'b'}])], 'use one kind'), (DatasetDict(train=Dataset.from_list([dict(prompt='a')])), "ds['train']"),
])
def test_bad_problems_are_named_by_file_row_and_column(source, says, tmp_path):
    if isinstance(source, str): source = tmp_path/source
    if isinstance(source, tuple): source = write(tmp_path, *source)
    with pytest.raises(ValueError) as e: load_problems(source)
    assert says in str(e.value)

def test_too_few_problems_for_a_batch_are_refused():
    with pytest.raises(ValueError, match='3 problems, 16 are needed'): load_problems([dict(prompt='a')]*3, min_rows=16)

def test_splitting_keeps_equal_prompts_together_and_loses_none():
    ds = Dataset.from_list([dict(prompt=f'{i%50}', n=i) for i in range(200)])
    train,test = split_problems(ds)
    assert len(train)+len(test)==200 and not set(train['prompt']) & set(test['prompt']) and len(test)>0
    assert len(split_problems(ds, 0.)[1])==0 and len(split_problems(ds, 1.)[0])==0

# --- hub sets, on rows in the hub's format

def test_gsm8k_takes_the_number_after_the_hashes():
    ds = gsm8k(rows=[dict(question='q1', answer='2+2 = <<2+2=4>>4\n#### 4'), dict(question='q2', answer='#### 1,000')], system=None)
    assert ds['answer']==['4','1000'] and ds['prompt'][0]==[{'role':'user','content':'q1'}]
    assert accuracy_reward(None, ['<answer>4</answer>','<answer>$1,000.00</answer>'], ds['answer'], ds['task'])==[1.,1.]
    with pytest.raises(ValueError, match='no field `question`; it has prompt'): gsm8k(rows=[dict(prompt='q')])
    assert gsm8k(rows=[dict(question='q1', answer='#### 4')]*5, n=2).num_rows==2

def test_numinamath_takes_the_last_box_and_skips_proofs():
    ds = numinamath(rows=[dict(problem='p', solution=r'$\boxed{1}$ or rather \boxed{\sqrt{2}+\frac{1}{3}}'), dict(problem='proof', solution='QED')])
    assert ds['answer']==[r'\sqrt{2}+\frac{1}{3}'] and ds['prompt'][0][0]['role']=='system'
    assert accuracy_reward(None, [r'<answer>\frac{1}{3}+\sqrt{2}</answer>'], ds['answer'], ds['task'])==[1.]
    assert boxed('no box') is None and boxed(r'\boxed{{a}') is None
    with pytest.raises(ValueError, match='no row has'): numinamath(rows=[dict(problem='p', solution='QED')])

def test_tldr_prompts_are_plain_text_and_overlap_is_rouge_1():
    ds = tldr(rows=[dict(prompt='POST: x\nTL;DR:', completion=' the cat sat ')])
    assert ds['prompt']==['POST: x\nTL;DR:'] and ds['answer']==['the cat sat']
    assert overlap_reward(None, ['the cat','dog','the the the',''], ds['answer'][:]*4)==[2*2/5, 0., 2*1/6, 0.]

def test_the_hub_is_asked_for_the_right_set(monkeypatch, capsys):
    import datasets
    asked = []
    def fake(name, config=None, split=None):
        asked.append((name, config, split))
        row = dict(question='q', answer='#### 1', problem='p', solution=r'\boxed{1}', prompt='x', completion='y')
        return Dataset.from_list([row]*4)
    monkeypatch.setattr(datasets, 'load_dataset', fake)
    assert [len(f('test', n=3)) for f in (gsm8k, numinamath, tldr)]==[3,3,3]
    assert asked==[('openai/gsm8k','main','test'), ('AI-MO/NuminaMath-TIR',None,'test'), ('trl-lib/tldr',None,'test')]
    assert capsys.readouterr().out.count('huggingface.co')==3

def test_a_hub_that_cannot_be_reached_is_one_clear_message(monkeypatch):
    import datasets
    def fail(*a, **k): raise ConnectionError('no route')
    monkeypatch.setattr(datasets, 'load_dataset', fail)
    with pytest.raises(ValueError, match='no route.*rows='): gsm8k()
