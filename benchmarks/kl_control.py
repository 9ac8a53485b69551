"""What a KL term keeps: SmolLM2 on sums with four weights of the KL term and five seeds, for chapter 17.

    python benchmarks/kl_control.py nbs/results             # 20 runs of four to five minutes of one core
    python benchmarks/kl_control.py nbs/results --seeds 0 1

A run that is in the table is not made again, so the command can be stopped and given once more.

- `smollm2_kl.csv`: a row per run: sums right before and after, exact KL to the reference per token (nats) on
  the answers to held-out sums and on the chat's answers, questions of the chat still answered
- `smollm2_kept.csv`: for each run, batch (0: before the first) and question, the likeliest answer
"""
import argparse, copy, csv, resource
from pathlib import Path
import torch
from grpo_nb.evaluation import evaluate, sample_completions
from grpo_nb.parts.datasets import end_at_newline, make_problems
from grpo_nb.tasks import accuracy_reward
from grpo_nb.tiny_qwen import load_model
from grpo_nb.trainer import TrainConfig, train

BETAS = (0., .04, .1, .01)
EVERY = 5   # batches between two looks at the chat
# the untrained model answers these twenty with the expected word
QUESTIONS = {'What is the capital of France?':'paris', 'What is the capital of Japan?':'tokyo',
    'What is the capital of Egypt?':'cairo', 'What is the capital of Germany?':'berlin',
    'What is the capital of Greece?':'athens', 'What is the capital of Poland?':'warsaw',
    'What is the opposite of hot?':'cold', 'What is the opposite of left?':'right',
    'What is the opposite of good?':'evil|bad', 'Who wrote Hamlet?':'shakespeare',
    'Who painted the Mona Lisa?':'leonardo|vinci', 'Who discovered gravity?':'newton',
    'Who developed the theory of relativity?':'einstein', 'How many days are in a week?':'7|seven',
    'What is the chemical symbol of gold?':'au', 'What is the chemical formula of water?':'h2o',
    'What is the boiling point of water in degrees Celsius?':'100', 'What is the currency of Japan?':'yen',
    'What language is spoken in Brazil?':'portuguese', 'On which continent is Kenya?':'africa'}

def is_kept(question, said):
    "Is the expected word in the answer?"
    words = ''.join(c if c.isalnum() else ' ' for c in said.lower()).split()
    return any(w in words for w in QUESTIONS[question].split('|'))

def chat_batch(tok):
    "The questions as a chat, padded on the left."
    def as_chat(q):
        said = [dict(role='user', content=q)]
        return tok.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
    texts = [as_chat(q) for q in QUESTIONS]
    side,tok.padding_side = tok.padding_side,'left'
    out = tok(texts, return_tensors='pt', padding=True, add_special_tokens=False)
    tok.padding_side = side
    return out['input_ids'],out['attention_mask']

@torch.no_grad()
def likeliest(model, tok, end, n=16):
    "The likeliest answers to the questions, at most `n` tokens: ids, and texts."
    ids,mask = chat_batch(tok)
    was = model.training
    model.eval()
    out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=n, do_sample=False,
        pad_token_id=tok.pad_token_id, eos_token_id=end)
    model.train(was)
    return ids,mask,out,tok.batch_decode(out[:, ids.shape[1]:], skip_special_tokens=True)

@torch.no_grad()
def exact_kl(model, ref, ids, mask, P, answer):
    "Mean over the answers' tokens of KL(model || ref) over the whole vocabulary, nats."
    pos = (mask.cumsum(1)-1).clamp(min=0)
    both = [m(input_ids=ids, attention_mask=mask, position_ids=pos).logits[:, P-1:-1].log_softmax(-1)
        for m in (model, ref)]
    return float((both[0].exp()*(both[0]-both[1])).sum(-1)[answer].mean())

def kl_on_sums(model, ref, tok, problems, seed):
    b = sample_completions(model, tok, [problems[i] for i in range(len(problems))], 1, 6,
        torch.Generator().manual_seed(seed))
    comp,m = b.completion_ids.flatten(0, 1),b.completion_mask.flatten(0, 1)
    ids,mask = torch.cat([b.prompt_ids, comp], 1),torch.cat([b.prompt_mask.long(), m.long()], 1)
    return exact_kl(model, ref, ids, mask, b.prompt_ids.shape[1], m)

def run(beta, seed):
    "One run: its row, and the rows of its chat."
    model,tok = load_model('smollm2')
    chat_end = tok.eos_token_id
    ref = copy.deepcopy(model).eval()
    end_at_newline(model, tok)
    problems = make_problems('two_digit_sums', 2000, seed)
    held_out = make_problems('two_digit_sums', 100, seed, 'test')
    said = []
    def look(batch):
        texts = likeliest(model, tok, chat_end)[3]
        said.extend(dict(beta=beta, seed=seed, batch=batch, question=q, said=' '.join(t.split()))
            for q,t in zip(QUESTIONS, texts))
    def share():
        return evaluate(model, tok, held_out, accuracy_reward, seed=seed, max_completion_length=6,
            disable_tqdm=True)['pass@1']
    seen,before = [],share()
    look(0)
    def note(s, batch):
        seen.append(s.step)
        if len(seen)%EVERY==0: look(len(seen))
    args = TrainConfig(output_dir=None, seed=seed, beta=beta, replay_buffer_size=64, disable_tqdm=True,
        max_steps=60, learning_rate=1e-5, num_generations=4, generation_batch_size=32, steps_per_generation=2,
        max_completion_length=6)
    s = train(model, tok, problems, accuracy_reward, args, callbacks=[note], print_verdict=False)
    P = chat_batch(tok)[0].shape[1]
    ids,mask,out,_ = likeliest(model, tok, chat_end)
    ended = (out[:, P:]==chat_end).long()
    answer = (ended.cumsum(1)-ended)==0
    kl_chat = exact_kl(model, ref, out, torch.cat([mask, answer.long()], 1), P, answer)
    known,kept = (sum(is_kept(o['question'], o['said']) for o in said if o['batch']==b) for b in (0, 30))
    kl_sums = kl_on_sums(model, ref, tok, held_out, seed)
    last_ten = sum(o['reward'] for o in s.history[-10:])/10
    return dict(beta=beta, seed=seed, before=before, after=share(), kl_sums=kl_sums, kl_chat=kl_chat,
        known=known, kept=kept, last_ten=last_ten),said

def append(path, rows):
    new = not path.exists()
    with open(path, 'a', newline='', encoding='utf-8') as f:
        w = csv.DictWriter(f, list(rows[0]), lineterminator='\n')
        if new: w.writeheader()
        w.writerows(rows)

def main():
    p = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    p.add_argument('out')
    p.add_argument('--seeds', type=int, nargs='*', default=list(range(5)))
    p.add_argument('--betas', type=float, nargs='*', default=list(BETAS))
    o = p.parse_args()
    torch.set_num_threads(1)
    runs,chat = (Path(o.out)/f'smollm2_{k}.csv' for k in ('kl','kept'))
    done = set()
    if runs.exists():
        with open(runs, encoding='utf-8') as f:
            done = {(float(r['beta']), int(r['seed'])) for r in csv.DictReader(f)}
    for seed in o.seeds:
        for beta in o.betas:
            if (beta, seed) in done: continue
            took = resource.getrusage(resource.RUSAGE_SELF).ru_utime
            row,said = run(beta, seed)
            cost = resource.getrusage(resource.RUSAGE_SELF).ru_utime-took
            append(chat, said)
            short = {k:round(v, 5) if isinstance(v, float) else v for k,v in row.items()}
            append(runs, [short|dict(cpu_s=round(cost))])
            print(row, flush=True)

if __name__=='__main__': main()
