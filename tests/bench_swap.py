"""How long a step of the shared buffer takes: `torchrun --standalone --nproc_per_node 2
tests/bench_swap.py [file.csv]` adds a line to the file."""

import csv, os, sys
import torch, torch.distributed as dist
from grpo_nb.dev.made import time_swap
from grpo_nb.replay import ReplayBuffer

torch.set_num_threads(1)
dist.init_process_group('gloo')
row = {k: round(v, 3) for k, v in time_swap(ReplayBuffer(256)).items()} | dict(
    machine=f'{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}'
)
if dist.get_rank()==0:
    print(row)
    if len(sys.argv)>1:
        new = not os.path.exists(sys.argv[1])
        with open(sys.argv[1], 'a', newline='') as f:
            w = csv.DictWriter(f, row)
            if new: w.writeheader()
            w.writerow(row)
dist.destroy_process_group()
