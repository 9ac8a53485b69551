"Another process without its imports: a fork of this one, for what only has to happen elsewhere"
import multiprocessing as mp
from collections.abc import Callable

fork = mp.get_context('fork')

def elsewhere(
    f:Callable,  # called there
    *args,       # with these
)->mp.Process:  # that was started; it ends with exit code 0 unless `f` raises
    "Call `f` in a process of its own."
    p = fork.Process(target=f, args=args, daemon=True)
    p.start()
    return p

def works_elsewhere(f:Callable, *args)->bool:
    "Does another process get through `f` without an error?"
    p = elsewhere(f, *args)
    p.join(300)
    return p.exitcode==0
