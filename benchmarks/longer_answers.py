"""Which tasks with answers of tens of tokens does SmolLM2 do sometimes, and not always? Four tries.

    python benchmarks/longer_answers.py nbs/results/smollm2_longer.csv   # two minutes of one core

Each prompt has solved examples that show a short working; four answers are sampled to each.
"""
import csv, random, re, sys, warnings
import torch
from grpo_nb.generation import generate
from grpo_nb.parts.datasets import end_at_newline, gym_dataset, make_problems
from grpo_nb.parts.sampling import end_tokens
from grpo_nb.rewards import decode_completions
from grpo_nb.tiny_qwen import encode_prompts, load_model

G = 4
NAMES = 'Ann Ben Carl Dana Eva Finn Gina Hugo Ida Jan Kim Leo Mia Noa Otto Pia'.split()
THINGS = 'apples books pens coins cards stamps shells eggs'.split()
WORD_PROBLEMS = '''\
Q: Tom buys 3 boxes with 4 pens each and gives 2 pens away. How many pens does he have left?
A: 3 * 4 = 12, 12 - 2 = 10. The answer is 10.
Q: Zoe earns 5 dollars an hour. She works 6 hours and spends 10 dollars. How many dollars does she keep?
A: 5 * 6 = 30, 30 - 10 = 20. The answer is 20.
'''

def worked_sums(n):
    return [(o['prompt'], o['answer']) for o in make_problems('worked_sums', n, 0)]

def two_digit_terms(n):
    def line(x): return (f"{' + '.join(map(str, x))}: {x[0]} + {x[1]} = {x[0]+x[1]}, "
        f'{x[0]+x[1]} + {x[2]} = {sum(x)}\n')
    draw,examples = random.Random(0).randint,line([12, 31, 25])+line([40, 27, 11])
    drawn = [[draw(10, 40) for _ in range(3)] for _ in range(n)]
    return [(examples+' + '.join(map(str, x))+':', str(sum(x))) for x in drawn]

def stories(n):
    "A child gets some things and gives some away; numbers up to 9."
    rng = random.Random(0)
    def story(who, what, a, b, c): return (f'Q: {who} has {a} {what} and gets {b} more. Then {who} gives '
        f'away {c}. How many {what} are left?\nA:')
    def working(a, b, c): return f' {a} + {b} = {a+b}, {a+b} - {c} = {a+b-c}. The answer is {a+b-c}.\n'
    solved = ('Tom','pears',4,3,2),('Zoe','keys',6,5,7),('Max','nuts',8,1,3)
    examples,rows = ''.join(story(*o)+working(*o[2:]) for o in solved),[]
    for _ in range(n):
        a,b = rng.randint(2, 9),rng.randint(2, 9)
        c = rng.randint(1, min(9, a+b-1))
        rows.append((examples+story(rng.choice(NAMES), rng.choice(THINGS), a, b, c), str(a+b-c)))
    return rows

def word_problems(n):
    "reasoning-gym's gsm_symbolic, without its request for the form of the answer."
    def text(p): return ' '.join((p if isinstance(p, str) else p[-1]['content']).split())
    def short(p): return re.sub(r'\s*Give (the|your) .*?(number|answer).*?$', '', text(p))
    return [(f'{WORD_PROBLEMS}Q: {short(o["prompt"])}\nA:', o['answer'])
        for o in gym_dataset('gsm_symbolic', n, 0)]

TRIES = {   # what is asked: (problems, how many, most tokens of an answer)
    'three terms of one digit (worked_sums)':(worked_sums, 24, 30),
    'three terms of two digits':(two_digit_terms, 24, 36),
    'stories with two steps, numbers to 9':(stories, 24, 40),
    'gsm_symbolic':(word_problems, 12, 60)}

def is_right(text, answer):
    "Is the last number of the first line the answer?"
    found = re.findall(r'-?\d+', text.strip().split('\n')[0])
    return bool(found) and found[-1]==answer

def measure(model, tok, name):
    make,n,most = TRIES[name]
    rows = make(n)
    ids,mask = encode_prompts(tok, [p for p,_ in rows])
    o = generate(model, ids, mask, G, most, eos_token_id=end_tokens(model, tok),
        pad_token_id=tok.pad_token_id, generator=torch.Generator().manual_seed(0))
    texts = decode_completions(tok, o)
    right = [sum(is_right(t, a) for t in texts[G*i:G*i+G]) for i,(_,a) in enumerate(rows)]
    return dict(task=name, problems=n, answers=G*n, right=round(sum(right)/G/n, 3),
        zero_variance=round(sum(k in (0, G) for k in right)/n, 3),
        tokens=round(o.completion_mask.sum(-1).float().mean().item(), 1))

if __name__=='__main__':
    warnings.filterwarnings('ignore')
    torch.set_num_threads(1)
    model,tok = load_model('smollm2')
    end_at_newline(model, tok)
    with open(sys.argv[1], 'w', newline='', encoding='utf-8') as f:
        w = None
        for name in TRIES:
            row = measure(model, tok, name)
            print(row, flush=True)
            w = w or csv.DictWriter(f, list(row), lineterminator='\n')
            if f.tell()==0: w.writeheader()
            w.writerow(row)
