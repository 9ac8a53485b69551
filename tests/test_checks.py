"Rows and settings, looked at before the work starts."

from types import SimpleNamespace
import pytest, torch
from datasets import Dataset
from grpo_nb.parts.datasets import load_problems, select_rows, split_problems
from grpo_nb.run.callbacks import CallbackList, TrainCallback
from grpo_nb.run.checks import check_train_args
from grpo_nb.parts.setting_checks import warmup_warning
from grpo_nb.parts.row_checks import (
    source_row, check_rendered, validate_dataset, is_rendered, dataset_fingerprint, describe_dataset_change)
from grpo_nb.parts.sampling import check_lengths
from grpo_nb.run.record import dataset_info
from grpo_nb.tiny_qwen import encode_prompts, make_tokenizer, tiny_model
from grpo_nb.run.checks import check_prompts
from grpo_nb.on_trl import checks as on_trl_checks
from grpo_nb.run.config import TrainConfig
from grpo_nb.trainer import train

ROWS = [dict(prompt=f'{i}+1=', answer=str(i+1)) for i in range(8)]

@pytest.mark.parametrize('rows,says', [
    ([], 'is empty'), (ROWS[:7], '7 rows but 8 prompts a batch.*to 28 or less'),
    ([dict(q=1)]*8, 'no column `prompt`'),
    (ROWS[:7]+[dict(prompt=None)], 'row 7 has the prompt None: every row needs text'),
    (ROWS[:7]+[dict(prompt=[dict(role='user')])], 'row 7 .*every message needs a `role`'),
    ([o|dict(completions=1) for o in ROWS], 'column `completions`'),
    ([dict(prompt=[dict(role='user', content='1+1='), dict(role='assistant', content='2')])]*8,
        "row 0: the prompt ends with the assistant's answer .'2'.*: take it off"),
    (['1+1=']*8, 'no column `prompt`'), ([dict(prompt='')]*8, "row 0 has the prompt ''"),
    ([*ROWS[:7], '1+1='], "row 7 is a str, needs to be a dict"),
    ([*ROWS[:7], dict(prompt='1+1=')], "row 7 has no `answer`, which row 0 has.*None"),
    ([*ROWS[:7], ROWS[7]|dict(hint='2')], "row 0 has no `hint`, which row 7 has.*None"),
    ([*ROWS[:7], ROWS[7]|dict(prompt=[dict(role='user', content='1+1=')])], 'some are messages')], ids=str)
def test_rows_that_cannot_work_are_named(rows, says):
    with pytest.raises(ValueError, match=says): validate_dataset(rows, 8, G=4)

def test_what_differs_between_two_data_sets_is_said():
    a = dataset_fingerprint(ROWS)
    assert describe_dataset_change(a, a)=='' and describe_dataset_change(a,
        dataset_fingerprint(ROWS[:7]))=='8 rows then, 7 now'
    def change_to(rows): return describe_dataset_change(a, dataset_fingerprint(rows))
    assert 'another order, in `answer`, `prompt`' in change_to(ROWS[::-1])
    assert change_to([o|dict(answer='?') for o in ROWS]).endswith('in `answer`')
    assert change_to([o|dict(note='x') for o in ROWS]).endswith('in `note`')

def test_no_row_of_a_large_set_is_passed_over():
    rows = [dict(prompt=str(i), answer='1') for i in range(20_003)]
    a = dataset_fingerprint(Dataset.from_list(rows))
    for i in (0, 9_999, 10_000, 15_001, 20_002):
        other = [*rows]
        other[i] = dict(prompt=str(i), answer='2')
        assert dataset_fingerprint(Dataset.from_list(other))!=a and dataset_fingerprint(other)!=a
        other[i] = dict(prompt=None, answer='1')
        for table in (other, Dataset.from_list(other)):
            with pytest.raises(ValueError, match=f'row {i} has the prompt None'): validate_dataset(table, 8)

def test_a_prompt_that_does_not_fit_is_named():
    m = torch.nn.Module()
    m.config = type('C', (), dict(max_position_embeddings=10))
    check_lengths(torch.tensor([2, 4]), 6, m)
    with pytest.raises(ValueError, match="row 1's prompt has 5 tokens.*passes the model's 10"):
        check_lengths(torch.tensor([2, 5]), 6, m)

def test_a_part_of_a_problem_set_names_rows_as_the_whole_does():
    m = torch.nn.Module()
    m.config = type('C', (), dict(max_position_embeddings=10))
    whole = load_problems([dict(prompt=f'{i}') for i in range(40)])
    for part in split_problems(whole, .5):
        assert [whole[i]['prompt'] for i in part.source_rows]==part['prompt']
        lengths = torch.tensor([1]*(len(part)-1)+[9])
        last = int(part[-1]['prompt'])
        with pytest.raises(ValueError, match=f"row {last}'s prompt"): check_lengths(lengths, 6, m, part)
        assert source_row(select_rows(part, [2]), 0)==part.source_rows[2]
        some = part.filter(lambda o: o['prompt']!='3')   # its rows are not known
        assert source_row(some, 1)==1 or len(some)==len(part)
        part.source_rows.append(7)   # of another table
        end = len(part)-1
        assert source_row(part, end)==end!=part.source_rows[end]

def test_a_message_in_parts_is_named_by_its_row_in_the_file():
    class Part(list): source_rows = [3, 5]
    contents = 'a',[dict(type='text', text='a')]
    part = Part(dict(prompt=[dict(role='user', content=o)]) for o in contents)
    with pytest.raises(ValueError, match='row 5: a message has its `content` in parts'):
        check_prompts(tiny_model(0), make_tokenizer(), TrainConfig(), part, encode_prompts)

def test_a_warmup_that_is_longer_than_the_run_is_said():
    assert warmup_warning(4, 4)==warmup_warning(0, 4)==warmup_warning(9, -1)==''
    with pytest.warns(UserWarning, match='`warmup_steps` is 8 and `max_steps` 4.*reaches 50% of its peak'):
        check_train_args([len], TrainConfig(max_steps=4, warmup_steps=8))

def test_callbacks_that_take_what_they_are_given_are_called(capsys):
    got = []
    class Own(TrainCallback):
        def on_batch_end(self, state, batch): got.append(('own', state, batch))
    def with_a_default(state, batch, more=1): got.append((state, batch, more))
    some = CallbackList([print, lambda *o: got.append(o), with_a_default, TrainCallback(), Own()])
    CallbackList([max])   # doesn't say what it takes
    some.call('on_batch_end', 'the state', 'the batch')
    assert got==[('the state','the batch'), ('the state','the batch', 1), ('own','the state','the batch')]
    assert capsys.readouterr().out=='the state the batch\n'

# ---- prompts that went through the chat template

TEMPLATES = dict(   # what begins a message of a role, what ends it, what opens the answer
    chatml=("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"),
    dated=("{{ bos_token }}<|head|>system<|end|>\n\nToday: {{ today }}\n\n<|eot|>{% for m in messages %}"
        "<|head|>{{ m['role'] }}<|end|>\n\n{{ m['content'] }}<|eot|>{% endfor %}"
        "{% if add_generation_prompt %}<|head|>assistant<|end|>\n\n{% endif %}"),
    no_system=("{{ bos_token }}{% for m in messages %}{% if m['role']=='system' %}{{ raise_exception('no') }}"
        "{% endif %}<turn>{{ m['role'] }}\n{{ m['content'] }}</turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"))
class Renders:
    "A tokenizer with one of these templates; a day passes with every call."
    bos_token,days = '<bos>',0
    def __init__(self, template): self.chat_template = template
    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        from transformers.utils.chat_template_utils import render_jinja_template
        self.days += 1
        return render_jinja_template([messages], chat_template=self.chat_template, bos_token=self.bos_token,
            add_generation_prompt=add_generation_prompt, today=str(self.days))[0][0]

@pytest.mark.parametrize('template', TEMPLATES.values(), ids=TEMPLATES)
def test_a_prompt_that_went_through_the_template_is_known(template):
    tok = Renders(template)
    def show(*said, opened=True):
        talk = [dict(role=('user','assistant')[i%2], content=o) for i,o in enumerate(said)]
        return tok.apply_chat_template(talk, False, opened)
    asked,answered,again = show('3+4='),show('3+4=', '7', opened=False),show('3+4=', '7', '2+2=')
    for o in (asked, answered, again, asked.removeprefix('<bos>')):
        assert is_rendered(tok, o)
    for o in ('3+4=', 'user\n3+4=', '', [dict(role='user', content='3+4=')], 'assistant: '+asked):
        assert not is_rendered(tok, o)
    assert not is_rendered(Renders(None), asked)
    for o in (asked, again, '3+4='): check_rendered(tok, o)
    with pytest.raises(ValueError, match="the assistant's answer .'7'.*before the answer"):
        check_rendered(tok, answered)

def test_of_the_tiny_qwens_prompts_the_record_says_whether_they_are_rendered():
    tok = make_tokenizer()
    asked = [dict(role='user', content='3+4=')]
    shown = tok.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    kinds = [dataset_info(tok, [dict(prompt=o)])['prompt_format'] for o in ('3+4=', shown, asked)]
    assert kinds==['text','rendered','conversational']

def test_a_data_set_of_whole_conversations_is_refused_by_both_trainers():
    tok = make_tokenizer()
    whole = tok.apply_chat_template([dict(role='user', content='3+4='), dict(role='assistant', content='7')],
        tokenize=False)
    rows = [dict(prompt=whole)]*8
    def reward(completions, **kw): return [0.]*len(completions)
    with pytest.raises(ValueError, match="assistant's answer .'7'"):
        train(tiny_model(0), tok, rows, reward, TrainConfig(generation_batch_size=64, output_dir=None))
    t = SimpleNamespace(model=tiny_model(0), processing_class=tok, _is_vlm=False)
    with pytest.raises(ValueError, match="assistant's answer .'7'"): on_trl_checks.check_prompts(t, [whole])

