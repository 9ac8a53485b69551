"Problem set A, solved"
import torch
from torch import Tensor

def draw(probs:Tensor, u:Tensor)->Tensor:
    c = probs.double().cumsum(1)
    return torch.searchsorted(c, u[:,None]*c[:,-1:], right=True)[:,0]

def noted(logits:Tensor, ids:Tensor, temperature:float)->Tensor:
    return (logits/temperature).log_softmax(1).gather(1, ids[:,None])[:,0]

def answer_mask(ids:Tensor, ends:Tensor)->Tensor:
    e = torch.isin(ids, ends).int()
    return e.cumsum(1)-e==0

def sample(scores:object, u:Tensor, end:int, temperature:float)->tuple:
    ids,logps = [],[]
    for x in u:
        z = scores(ids)[None]
        ids.append(draw((z/temperature).softmax(1), x[None]).item())
        logps.append(noted(z, torch.tensor(ids[-1:]), temperature))
        if ids[-1]==end: break
    return torch.tensor(ids),torch.cat(logps)

def end_score(n:Tensor, ended:Tensor, e:float, with_end:bool)->Tensor:
    return -e*(n-ended.int())+(1-e)*ended*with_end

PREDICTION = 'longer'
