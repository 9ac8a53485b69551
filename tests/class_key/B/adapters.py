"Problem set B, solved"
import torch
from torch import Tensor

def dead(rewards:Tensor)->Tensor: return rewards.amax(1)-rewards.amin(1)<=1e-6

def advantages(rewards:Tensor)->Tensor:
    return (rewards-rewards.mean(1, keepdim=True))/(rewards.std(1, keepdim=True)+1e-4)

def expected_score(p:float, G:int)->float:
    return 2*(G-1)*p*(1-p)   # E[k(G-k)] = G(Gp) - (Gp(1-p) + (Gp)^2) = G(G-1)p(1-p)

def k3(logps:Tensor, ref_logps:Tensor)->Tensor:
    d = ref_logps-logps
    return torch.expm1(d)-d

def kl_gradient(theta:Tensor, ref:Tensor)->Tensor:
    p,d = theta.softmax(0),theta.log_softmax(0)-ref.log_softmax(0)
    return p*(d-(p*d).sum())

def penalty(logps:Tensor, ref_logps:Tensor, mask:Tensor)->Tensor:
    return ((logps-ref_logps)[mask]**2/2).mean()

PREDICTION = 'true'
