"""The rewards of EasyDeL's scripts for GSM8K and NuminaMath, to copy: `grpo_nb trl --reward easydel.py:xmlcount ...`.

GSM8K: xmlcount, soft_format, strict_format, whole_number, correctness. NuminaMath: form, equal.
Left out: the options of those scripts (xml_reward, correctness_reward, ...). Change the numbers here instead.
"""
import re
from grpo_nb.parts.answers import compare_math, judge_with_start
from grpo_nb.tasks import completion_text

XML_REWARD,FULL_MATCH,NO_MATCH,CORRECT = .125,.5,0.,2.   # points: each tag, the whole form, another, the answer
TAGS = '<think>\n', '\n</think>\n', '\n<answer>\n', '\n</answer>'

def xml_count(text):
    "Credit for every tag that occurs once with its line breaks, less 0.001 per character after the end."
    n = sum(text.count(o)==1 for o in TAGS)*XML_REWARD
    if text.count('\n<answer>\n')==1: n -= .001*len(text.split('\n</answer>\n')[-1])
    if text.count('\n</answer>')==1: n -= .001*(len(text.split('\n</answer>')[-1])-1)
    return n

def _form(pattern, *answers):
    fits = judge_with_start(lambda t: bool(re.match(pattern, t)), *answers)
    return [FULL_MATCH if o else NO_MATCH for o in fits]

def _last_answer(completion):
    "The answer as that script reads it: with no tags at all, everything is the answer."
    return completion_text(completion).split('<answer>')[-1].split('</answer>')[0].strip()

def xmlcount(completions, prompts=None, completion_start=None, **kwargs):
    return judge_with_start(xml_count, completions, prompts, completion_start)

def soft_format(completions, prompts=None, completion_start=None, **kwargs):   # each part on one line
    return _form(r'<think>.*?</think>\s*<answer>.*?</answer>', completions, prompts, completion_start)

def strict_format(completions, prompts=None, completion_start=None, **kwargs):
    pattern = r'<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>\n$'
    return _form(pattern, completions, prompts, completion_start)

def whole_number(completions, **kwargs):
    return [.5 if _last_answer(o).isdigit() else 0. for o in completions]

def correctness(completions, answer, **kwargs):
    right = [_last_answer(o)==a for o,a in zip(completions, answer, strict=True)]
    return [CORRECT if o else 0. for o in right]

def form(completions, prompts=None, completion_start=None, **kwargs):
    pattern = r'<think>.*?</think>\s*<answer>.*?</answer>$'
    return judge_with_start(lambda t: float(bool(re.match(pattern, t))), completions, prompts, completion_start)

def equal(completions, solution, **kwargs):
    "1 where math_verify finds an answer equal to the solution, and where it can't read the solution."
    same = [compare_math(s, completion_text(o), latex_only=True)
        for o,s in zip(completions, solution, strict=True)]
    return [1. if o is None else float(o) for o in same]

GSM8K = [xmlcount, soft_format, strict_format, whole_number, correctness]
NUMINAMATH = [form, equal]
