"A rank that says its number, in a module that imports nothing of ours: each process of its test loads it"
import os
from torch.distributed.elastic.multiprocessing.errors import record

@record
def rank(device, wrong=None):
    r = int(os.environ['RANK'])
    if r==wrong: raise ValueError(f'no such thing on {device}')
    return r+1
