"""How long a step of the shared buffer takes: `torchrun --standalone --nproc_per_node 2
benchmarks/bench_swap.py [file.csv]` adds a line to the file."""

import csv, os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from grpo_nb.on_trl.distributed import ShardedBuffer
from grpo_nb.replay import ReplayBuffer
sys.path.append(str(Path(__file__).resolve().parents[1]/'tests'))   # their helpers
from notebook_code import defined_in

PAGE = defined_in('on_trl/distributed', 'grpo_nb.on_trl.distributed')   # its made batches

def time_swap(
    index:ReplayBuffer,  # empty
    steps:int=20,    # measured, after two to warm up
    groups:int=64,   # groups of all processes in a step
    G:int=16,        # completions per group
    P:int=256,       # prompt tokens
    T:int=1024,      # completion tokens
    share:float=.3,  # chance that a group is dead
)->dict:             # medians in ms, bytes received a step; of this rank
    "Wall and processor time of a step of the shared buffer, on every rank of the default process group."
    rng = torch.Generator().manual_seed(0)
    data = [PAGE.made_batch(rng, groups, G, P, T, share, fixed=True) for _ in range(4)]
    buf,rows = ShardedBuffer(index, PAGE.WIRE, G),[]
    for step in range(steps+2):
        b,before = data[step%4],buf.ranks.received
        if buf.ranks.world>1: dist.barrier()
        said = PAGE.made_sampled(b, buf.rank, buf.ranks.world, step)
        wall,cpu = time.perf_counter(),time.process_time()
        s = buf.draw(said)
        rows.append((1e3*(time.perf_counter()-wall), 1e3*(time.process_time()-cpu),
            buf.ranks.received-before))
        for g,(i,lo,hi) in s.to_store.items(): buf.commit(i, PAGE.made_rows(b, g*G+lo, g*G+hi, G))
    wall,cpu,got = (torch.tensor(o, dtype=torch.float64) for o in zip(*rows[2:]))
    x = torch.zeros(max(1, int(got.mean())//4))
    def copy():
        t = time.perf_counter()
        x.clone()
        return 1e3*(time.perf_counter()-t)
    return dict(world=buf.ranks.world, wall_ms=wall.median().item(), cpu_ms=cpu.median().item(),
        fastest_ms=wall.min().item(), received=got.mean().item(),
        copy_ms=sorted(copy() for _ in range(21))[10])

def main():
    torch.set_num_threads(1)
    dist.init_process_group('gloo')
    row = {k: round(v, 3) for k, v in time_swap(ReplayBuffer(256)).items()} | dict(
        machine=f'{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}'
    )
    if dist.get_rank()==0:
        print(row)
        if len(sys.argv)>1:
            new = not os.path.exists(sys.argv[1])
            with open(sys.argv[1], 'a', encoding='utf-8', newline='') as f:
                w = csv.DictWriter(f, row)
                if new: w.writeheader()
                w.writerow(row)
    dist.destroy_process_group()

if __name__=='__main__': main()
