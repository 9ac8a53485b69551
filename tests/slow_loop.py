"Sampling by one completion and one token at a time, as chapter 4 has it: the yardstick of `generate`"
from functools import partial
import torch
from grpo_nb.generation import generate
from grpo_nb.parts.sampling import eval_mode, tokens_seen

@torch.no_grad()
def one_completion(model, ids, u, ends, draw):
    "Tokens and log-probs of one completion of the prompt `ids` (1, P), a whole forward for every token."
    toks,logps = [],[]
    for t in range(len(u)):
        logits = model(input_ids=ids).logits[:,-1].float()
        seen = tokens_seen(ids, torch.ones_like(ids).bool(), logits.shape[-1])
        tok,lp = draw(logits, u[t].view(1, 1), seen=seen)
        ids = torch.cat([ids, tok], 1)
        toks.append(tok[0,0])
        logps.append(lp[0,0])
        if torch.isin(tok, ends).any(): break
    return torch.stack(toks),torch.stack(logps)

def one_by_one(model, prompt_ids, mask, u, draw, ends, pad_id, *_):
    "Tokens and log-probs (N, T), by one completion and one token at a time: no batch, no padding, no cache."
    ids = torch.full(u.shape, pad_id, device=prompt_ids.device)
    logps = torch.zeros(u.shape, device=prompt_ids.device)
    with eval_mode(model):
        for i in range(len(u)):
            b = i*len(mask)//len(u)
            tok,lp = one_completion(model, prompt_ids[b:b+1,mask[b]], u[i], ends, draw)
            ids[i,:len(tok)],logps[i,:len(tok)] = tok,lp
    return ids,logps

generate_loop = partial(generate, decode_fn=one_by_one)
