"Problems: sides that never meet, sets by name, files in every condition, hub sets on given rows."
import json
from functools import partial
import datasets, pytest
from datasets import Dataset
from grpo_nb.parts.datasets import (
    HUB_DATASETS, chain_sum, gym_dataset, hub_problems, load_problems, make_problems, spell_backward,
    split_name, split_problems)
from grpo_nb.parts.registry import TASKS
from grpo_nb.parts.answers import boxed

gsm8k,numinamath,tldr = (partial(hub_problems, o) for o in ('gsm8k', 'numinamath', 'tldr'))

questions = lambda ds: [p[-1]['content'] for p in ds['prompt']]

# --- sides

@pytest.mark.parametrize('name', ['sums','words','gsm_symbolic'])
def test_sets_are_different_problems_made_again_alike_and_never_cross_sides(name):
    train = [make_problems(name, 80, seed=s) for s in (0, 1)]
    test = make_problems(name, 80, split='test')
    assert make_problems(name, 80, seed=1).to_list()==train[1].to_list()
    first,second,held_out = (set(questions(o)) for o in (*train, test))
    assert len(first)==len(second)==len(held_out)==80
    assert not (first | second) & held_out and len(first & second)<15   # neighbouring seeds hardly meet

def test_other_settings_do_not_move_a_question_to_the_other_side():
    narrow = chain_sum(300, split='test', min_terms=3, max_terms=3)
    wide = chain_sum(3000, split='train', min_terms=2, max_terms=3)
    assert not set(questions(narrow)) & set(questions(wide))

# the sides as first shipped, which every process gives: a change would let old exams leak into training
FROZEN = 'rrrrrrrerrrrrrrerrrrrree'   # second letters of train and test

def test_sides_of_known_texts_stay_where_they_are():
    assert ''.join(split_name(f'What is {i} + 1?')[1] for i in range(24))==FROZEN

# --- by name

def test_names_are_ours_first_and_then_the_gyms():
    assert {'sums','words'}<=set(TASKS)
    assert make_problems('sums', 20, seed=3).to_list()==chain_sum(20, seed=3).to_list()
    assert make_problems('words', 5, max_word_len=4).to_list()==spell_backward(5, max_word_len=4).to_list()
    theirs = make_problems('chain_sum', 20, seed=3)   # the gym's own settings: numbers of up to four digits
    assert theirs.to_list()==gym_dataset('chain_sum', 20, seed=3).to_list()
    assert max(len(q) for q in questions(theirs))>max(len(q) for q in questions(chain_sum(20, seed=3)))

@pytest.mark.parametrize('call, says', [
    (lambda: chain_sum(500, min_terms=2, max_terms=2), 'too few different problems'),
    (lambda: chain_sum(0), '`n` is 0'),
    (lambda: chain_sum(2.5), '`n` is 2.5'),
    (lambda: chain_sum(5, split='dev'), "'train' or 'test'"),
    (lambda: make_problems('sum', 5), 'near it: sums'),
    (lambda: gym_dataset('chainsum', 5), 'near it: chain_sum'),
    (lambda: gym_dataset('zzzzqq', 5), 'of reasoning-gym; near it: '),
    (lambda: gym_dataset('chain_sum', 5, terms=3), "argument 'terms'"),
    (lambda: chain_sum(5, min_terms=5, max_terms=3), 'refuses')])
def test_what_cannot_be_made_is_refused_with_its_reason(call, says):
    with pytest.raises(ValueError) as e: call()
    assert says in str(e.value)

# --- your own problems

def test_every_kind_of_source_gives_the_same_problems(tmp_path):
    rows = [dict(prompt=f'{i}+1?', answer=str(i+1), level='easy, or\n"not"') for i in range(5)]
    Dataset.from_list(rows).to_parquet(tmp_path/'a.parquet')
    Dataset.from_list(rows).to_csv(tmp_path/'a.csv')
    (tmp_path/'a.jsonl').write_text('\n'.join(map(json.dumps, rows))+'\n\n')
    (tmp_path/'a.json').write_text('\ufeff'+json.dumps(rows))
    files = [tmp_path/o for o in ('a.parquet','a.jsonl','a.json')]
    for src in (*files, str(tmp_path/'a.csv'), rows, Dataset.from_list(rows)):
        got = load_problems(src)
        assert sorted(got.column_names)==['answer','level','prompt']
        assert [dict(sorted(o.items())) for o in got.to_list()]==[dict(sorted(o.items())) for o in rows], src

@pytest.mark.parametrize('encoding', ['utf-8-sig','utf-16'])
def test_a_problem_set_as_windows_saves_it(encoding, tmp_path):
    rows = [dict(prompt='a é', answer='1')]*2
    texts = dict(csv='prompt,answer\r\na é,1\r\na é,1\r\n', json=json.dumps(rows),
        jsonl=''.join(json.dumps(o, ensure_ascii=False)+'\r\n' for o in rows))
    for kind,text in texts.items():
        (tmp_path/f'a.{kind}').write_bytes(text.encode(encoding))
        assert load_problems(tmp_path/f'a.{kind}').to_list()==rows, kind

def test_a_line_break_inside_a_string_is_no_new_line(tmp_path):
    text = json.dumps(dict(prompt='a\u2028b'), ensure_ascii=False)+'\n'
    (tmp_path/'a.jsonl').write_text(text, encoding='utf-8')
    assert load_problems(tmp_path/'a.jsonl')['prompt']==['a\u2028b']

def test_answers_become_text_and_leading_zeros_stay(tmp_path):
    (tmp_path/'a.csv').write_text('question,result\nzip code?,00420\n')
    got = load_problems(tmp_path/'a.csv', prompt='question', answer='result')
    assert got.to_list()==[dict(prompt='zip code?', answer='00420')]
    assert load_problems([dict(prompt='a', answer=7)])['answer']==['7']
    assert load_problems([dict(prompt=[{'role':'user','content':'hi'}])]).column_names==['prompt']

def test_a_column_that_only_later_rows_have_is_kept_and_the_named_prompt_wins():
    got = load_problems([dict(prompt='a'), dict(prompt='b', answer=2, level='hard')])
    assert got['level'][:]==[None,'hard'] and got['answer'][:]==[None,'2'] and got['prompt'][:]==['a','b']
    assert load_problems([dict(prompt='old', question='new')], prompt='question')['prompt']==['new']

def user(text): return [{'role':'user','content':text}]

@pytest.mark.parametrize('source, says', [
    ('missing.jsonl', 'is not a file'),
    (('a.txt', 'x'), 'can read .jsonl'),
    (('a.jsonl', ''), 'a.jsonl is empty'),
    (('a.jsonl', '{"prompt": "a"}\n{oops\n'), 'a.jsonl, line 2 is not valid JSON'),
    (('a.json', '[{"prompt": "a"'), 'a.json is not valid JSON'),
    (('a.json', '{"data": [{"prompt": "a"}]}'), 'it needs a list of objects'),
    (('a.json', '7'), 'a.json holds 7'),
    (('a.jsonl', '{"prompt": "a"}\n{"prompt": "é"}\n'.encode('latin-1')), 'a.jsonl, line 2 is not UTF-8'),
    (('a.csv', 'prompt,answer\né,1\n'.encode('latin-1')), 'a.csv, line 2 is not UTF-8'),
    (('a.csv', 'prompt,answer\nx,1,2\n'), 'a.csv, line 2 has another number of fields'),
    (('a.csv', 'question,answer\nx,1\n'), 'row 0 has no `prompt`, it has question, answer'),
    (('a.parquet', 'no parquet'), 'a.parquet is not a Parquet file'),
    (('a.jsonl', '{"prompt": "a"}\n[1]\n'), 'row 1 is a list'),
    (('a.jsonl', '{"prompt": "a"}\n{"question": "b"}\n'), 'row 1 has no `prompt`, it has question'),
    (('a.jsonl', '{"prompt": "a"}\n{"prompt": "b", "x": "\\ud83d"}\n'), 'surrogates not allowed'),
    ([], 'is empty'),
    ([dict(prompt='a'), dict(prompt=None)], 'row 1 of the data set has the prompt None'),
    ([dict(prompt='a'), dict(prompt='  ')], "row 1 of the data set has the prompt '  '"),
    ([dict(prompt=7)], 'has the prompt 7'),
    ([dict(prompt=[])], 'has the prompt []'),
    ([dict(prompt=['hi'])], 'needs a `role` and a `content`'),
    ([dict(prompt=user(''))], 'ends on an empty message'),
    ([dict(prompt='a'), dict(prompt=user('b'))], 'use one kind'),
    ([dict(prompt='a', y=1, x=1), dict(prompt='b', y=2, x=[2])], 'column `x` has values of different kinds')])
def test_bad_problems_are_named_by_file_row_and_column(source, says, tmp_path):
    if isinstance(source, str): source = tmp_path/source
    if isinstance(source, tuple):
        f,text = tmp_path/source[0],source[1]
        f.write_bytes(text if isinstance(text, bytes) else text.encode())
        source = f
    with pytest.raises(ValueError) as e: load_problems(source)
    assert says in str(e.value)

def test_splitting_keeps_equal_prompts_together_and_loses_none():
    ds = Dataset.from_list([dict(prompt=f'{i%50}', n=i) for i in range(200)])
    train,test = split_problems(ds)
    assert sorted([*train['n'], *test['n']])==list(range(200)) and len(test)>0
    assert not set(train['prompt']) & set(test['prompt'])

def test_four_hundred_equal_prompts_get_the_right_cause():
    ds = Dataset.from_list([dict(prompt='Tell me a joke.')]*400)
    with pytest.raises(ValueError, match='jokes.jsonl has 400 rows but only 1 different prompt'):
        split_problems(ds, .1, what='jokes.jsonl')
    two = Dataset.from_list([dict(prompt='2 + 3 ='), dict(prompt='4 + 3 =')])
    with pytest.raises(ValueError, match='sums.jsonl has 2 different prompts, and none'):
        split_problems(two, .1, what='sums.jsonl')

# --- hub sets, on rows in the hub's format

def test_gsm8k_takes_the_number_after_the_hashes():
    rows = [dict(question='q1', answer='2+2 = <<2+2=4>>4\n#### 4'), dict(question='q2', answer='#### 1,000')]
    ds = gsm8k(rows=rows, system=None)
    assert ds['answer']==['4','1000'] and ds['prompt'][0]==user('q1')

@pytest.mark.parametrize('row, says', [(dict(prompt='1+1?', answer='2'), 'row 1 has no text as `question`'),
    (dict(question='q', answer=4), 'row 1 has no text as `answer`'), ('q', 'row 1 has no text as `question`'),
    (dict(question='q', answer='4'), "row 1: no '#### ' before the result in '4'")])
def test_a_row_that_is_not_in_the_form_of_its_set_is_named(row, says):
    rows = [dict(question='q', answer='#### 4'), row]
    with pytest.raises(ValueError, match=f'gsm8k: {says}'): gsm8k(rows=rows)

def test_numinamath_takes_the_last_box_and_skips_proofs():
    solved = dict(problem='p', solution=r'$\boxed{1}$ or rather \boxed{\sqrt{2}+\frac{1}{3}}')
    proof = dict(problem='proof', solution='QED')
    ds = numinamath(rows=[solved, proof])
    assert ds['answer']==[r'\sqrt{2}+\frac{1}{3}'] and ds['prompt'][0][0]['role']=='system'
    assert boxed('no box') is None and boxed(r'\boxed{{a}') is None
    with pytest.raises(ValueError, match='no row has'): numinamath(rows=[proof])

def test_tldr_prompts_are_plain_text():
    ds = tldr(rows=[dict(prompt='POST: x\nTL;DR:', completion=' the cat sat ')])
    assert ds['prompt']==['POST: x\nTL;DR:'] and ds['answer']==['the cat sat']

def test_the_hub_is_asked_for_the_right_set(monkeypatch, capsys):
    asked = []
    def fake(name, config=None, split=None):
        asked.append((name, config, split))
        row = dict(question='q', answer='#### 1', problem='p', solution=r'\boxed{1}', prompt='x',
                   completion='y')
        return Dataset.from_list([row]*4)
    monkeypatch.setattr(datasets, 'load_dataset', fake)
    assert [len(hub_problems(o, split='test')) for o in HUB_DATASETS]==[4,4,4]
    assert asked==[('openai/gsm8k','main','test'), ('AI-MO/NuminaMath-TIR',None,'test'),
                   ('trl-lib/tldr',None,'test')]
    assert capsys.readouterr().out.count('huggingface.co')==3

def test_conversations_that_end_alike_are_told_apart_by_what_differs():
    from datasets import Dataset
    def talk(i, system):
        turns = [('system', system), ('user', f'add {i}'), ('assistant', 'to what?'), ('user', 'to 1')]
        return [dict(role=a, content=b) for a,b in turns]
    def split(systems):
        rows = [talk(i, s) for i,s in enumerate(systems)]
        return [len(o) for o in split_problems(Dataset.from_dict(dict(prompt=rows)), .2)]
    train,test = split(['Be brief.']*100)
    assert train+test==100 and 8<=test<=35
    first = [dict(role='system', content=f'The number is {0}.'), dict(role='user', content='double it')]
    rows = [[dict(first[0], content=f'The number is {i}.'), first[1]] for i in range(100)]
    train,test = split_problems(Dataset.from_dict(dict(prompt=rows)), .2)
    assert len(test)>=8
    # one question, with or without a shared system message, falls where its text does, as ever
    for before in ([], [dict(role='system', content='Be brief.')]):
        rows = [[*before, dict(role='user', content=f'{i}+1=')] for i in range(50)]
        train,_ = split_problems(Dataset.from_dict(dict(prompt=rows)), .2)
        want = [f'{i}+1=' for i in range(50) if split_name(f'{i}+1=', .2)=='train']
        assert [o[-1]['content'] for o in train['prompt']]==want

# --- rows made for SFT

def talk(*said):
    return [dict(role=r, content=c) for r,c in zip(('user','assistant')*3, said)]

def test_rows_of_which_some_hold_their_answer_are_refused():
    rows = [dict(prompt=talk('1+1=')), dict(prompt=talk('1+2=', '3'))]
    with pytest.raises(ValueError, match="row 1 .*: the prompt ends with the assistant's answer"):
        load_problems(rows)
