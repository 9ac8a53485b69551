"Threads that act as processes: torch's process group for its own tests."
import threading
from collections.abc import Callable
import torch
import torch.distributed as dist

def in_threads(
    world:int,  # threads that act as processes
    f:Callable, # called with each rank
)->list:        # what each returned, by rank
    "Run `f` on every rank of a threaded process group. The first error of a rank is raised."
    from torch.testing._internal.distributed.multi_threaded_pg import (ProcessLocalGroup,
        _install_threaded_pg, _uninstall_threaded_pg)

    isolate = torch._C._distributed_c10d._set_thread_isolation_mode
    store,out,bad = dist.HashStore(),[None]*world,[]
    def work(rank):
        try:
            dist.init_process_group('threaded', rank=rank, world_size=world, store=store)
            out[rank] = f(rank)
        except BaseException as e:
            bad.append(e)
            ProcessLocalGroup.exception_handle(e)
        finally:
            if dist.is_initialized(): dist.destroy_process_group()
    threads = [threading.Thread(target=work, args=(r,), daemon=True) for r in range(world)]
    _install_threaded_pg()
    isolate(True)
    ProcessLocalGroup.reset()
    try:
        for t in threads: t.start()
        for t in threads: t.join()
    finally:
        isolate(False)
        _uninstall_threaded_pg()
    if bad: raise bad[0]
    return out
