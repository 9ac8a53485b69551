"Problem set C, solved"
import torch
from torch import Tensor

def push(rho:Tensor, A:Tensor, eps:float)->Tensor:
    stopped = (A>0)&(rho>1+eps) | (A<0)&(rho<1-eps)
    return torch.where(stopped, 0., rho*A)

def objective(logps:Tensor, old_logps:Tensor, A:Tensor, mask:Tensor, eps:float=.2)->Tensor:
    rho,A = (logps-old_logps).exp(),A[...,None]
    return torch.minimum(rho*A, rho.clamp(1-eps, 1+eps)*A)[mask].mean()

def keep(scores:list, size:int)->list:
    order = sorted((s, i) for i,s in enumerate(scores) if s>0)
    return sorted(i for _,i in order[-size:]) if size else []

def ess(log_ratio:Tensor, mask:Tensor)->Tensor:
    x = (log_ratio*mask).sum(1)
    w = (x-x.max()).exp()
    return w.sum()**2/(w**2).sum()/len(w)

def replace_dead(batch:dict, dead:Tensor, stored:list)->dict:
    out = {k:v.clone() for k,v in batch.items()}
    for b,group in zip(dead.nonzero()[:,0].tolist(), stored):
        for k in out: out[k][b] = group[k]
    return out

PREDICTION = 'above .4'
