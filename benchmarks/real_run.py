"""What the chapter on a real run shows of the demo's runs on SmolLM2, from their folders.

    python benchmarks/demo_runs.py nbs/results/demo_smollm2.csv --model smollm2 --keep runs/real   # the runs
    python benchmarks/real_run.py runs/real nbs/results      # these tables

- `smollm2_batches.csv`: a row per batch of each run
- `smollm2_answers.csv`: what the model sampled for the same three held-out problems before and after (seed 0)
- `smollm2_elsewhere.csv`: share of right answers on tasks that were not trained on, before and after
- `smollm2_chat.csv`: its likeliest answers to questions of a chat, before training and after each run
"""
import csv, json, sys
from pathlib import Path
import torch
from grpo_nb.evaluation import evaluate, sample_completions
from grpo_nb.parts.datasets import end_at_newline, make_problems
from grpo_nb.rewards import decode_completions
from grpo_nb.tasks import accuracy_reward
from grpo_nb.tiny_qwen import load_model

ELSEWHERE = dict(products=40, next_numbers=60)
CHAT = ['What is the capital of France?', 'Name three colours.', 'What is 12 + 31?',
    'Write one sentence about rain.']

def write(path, rows):
    with open(path, 'w', newline='', encoding='utf-8') as f:
        w = csv.DictWriter(f, list(rows[0]), lineterminator='\n')
        w.writeheader()
        w.writerows(rows)

def runs(folder):
    "(seed, buffer size, folder) of each whole run."
    for f in sorted(Path(folder).glob('*/summary.json')):
        a = json.loads((f.parent/'settings.json').read_text(encoding='utf-8'))['args']
        yield a['seed'],a['replay_buffer_size'],f.parent

def batches(seed, size, folder):
    "A row per batch: what was sampled, and what became of its groups."
    tokens,rows = 0,[]
    for i,line in enumerate((folder/'history.jsonl').read_text(encoding='utf-8').splitlines()):
        o = json.loads(line)
        rows.append(dict(seed=seed, replay_buffer_size=size, batch=i, tokens_before=tokens,
            right=round(o['reward'], 5), zero_variance=int(o['replay/dead']),
            replaced=int(o['replay/replaced']),
            length=round(o['completions/mean_length'], 3), clip=round(o['clip_ratio/region_mean'], 5),
            entropy=round(o['entropy'], 4)))
        tokens = o['num_tokens']
    return rows

def elsewhere(model, tok, seed):
    "Share of right answers on other tasks, held-out problems, two answers each."
    def share(task, n):
        problems = make_problems(task, n, seed, 'test')
        return evaluate(model, tok, problems, accuracy_reward, num_samples=2, max_completion_length=6,
            seed=seed)['pass@1']
    return {k:round(share(k, n), 5) for k,n in ELSEWHERE.items()}

def answers(model, tok):
    "Four answers to each of the first three held-out problems."
    rows = make_problems('two_digit_sums', 3, 0, 'test')
    batch = sample_completions(model, tok, [rows[i] for i in range(3)], 4, 6,
        torch.Generator().manual_seed(0))
    texts = decode_completions(tok, batch)
    return [dict(problem=o['prompt'].splitlines()[-1], answer=o['answer'], sampled=' | '.join(
        t.strip() for t in texts[4*i:4*i+4])) for i,o in enumerate(rows)]

@torch.no_grad()
def chat(model, tok):
    "The likeliest answer to each question of a chat, at most 24 tokens."
    rows = []
    for q in CHAT:
        ids = tok.apply_chat_template([dict(role='user', content=q)], add_generation_prompt=True,
            return_tensors='pt', return_dict=True)
        out = model.generate(**ids, max_new_tokens=24, do_sample=False, pad_token_id=tok.pad_token_id,
            eos_token_id=tok.eos_token_id)
        rows.append(dict(question=q,
            said=tok.decode(out[0,ids['input_ids'].shape[1]:], skip_special_tokens=True)))
    return rows

def look(name, seed):
    "What a model says, as `main` needs it: elsewhere, answers, chat."
    model,tok = load_model(name)
    said = chat(model, tok)
    end_at_newline(model, tok)
    return elsewhere(model, tok, seed),answers(model, tok) if seed==0 else [],said

def main(folder, out):
    torch.set_num_threads(1)
    made,out = list(runs(folder)),Path(out)
    write(out/'smollm2_batches.csv', [o for r in made for o in batches(*r)])
    there,said = [],[]
    for seed,size,f in made:
        if not size: continue
        was,now = look('smollm2', seed),look(next(f.glob('checkpoint-*')), seed)
        there += [dict(seed=seed, task=k, before=was[0][k], after=now[0][k]) for k in ELSEWHERE]
        if not said: said += [dict(model='before')|o for o in was[2]]
        said += [dict(model=f'seed {seed}')|o for o in now[2]]
        print(f'seed {seed}: done', flush=True)
        if seed: continue
        both = [a|dict(sampled_after=b['sampled']) for a,b in zip(was[1], now[1])]
        write(out/'smollm2_answers.csv', both)
    write(out/'smollm2_elsewhere.csv', there)
    write(out/'smollm2_chat.csv', said)

if __name__=='__main__': main(*sys.argv[1:])
