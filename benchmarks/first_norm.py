"""The gradient norm of the rehearsal's first batch on one process and on two: as the trainer computes it, in
float32, and in float64 from the same gradient.

    grpo_nb get smollm2
    python benchmarks/first_norm.py nbs/results 0       # seed 0: two minutes of processor time, 9 GB

Writes a row for each number of processes into `full_run_norm.csv`.
"""
import json, os, runpy, subprocess, sys, tempfile
from pathlib import Path
import torch
import torch.distributed as dist
from rehearsal import ROOT, SCALE, SETTINGS, command, write

def norm_in_float64(parameters):
    "Of the whole gradient; where it is sharded, of all processes' parts."
    total = torch.zeros((), dtype=torch.float64)
    for p in parameters:
        grad = p.grad.to_local() if hasattr(p.grad, 'to_local') else p.grad
        total += grad.double().square().sum()
    if dist.is_initialized(): dist.all_reduce(total)
    return total.sqrt().item()

def note_norms():
    "In a process of the run: from here on each norm that the trainer takes is noted in the file NORMS."
    from accelerate import Accelerator
    clip = Accelerator.clip_grad_norm_
    def noted(self, parameters, *args, **kwargs):
        parameters = list(parameters)
        exact = norm_in_float64(parameters)
        norm = clip(self, parameters, *args, **kwargs)
        whole = norm.full_tensor() if hasattr(norm, 'full_tensor') else norm
        row = dict(float32=float(whole), float64=exact)
        if self.is_main_process: Path(os.environ['NORMS']).write_text(json.dumps(row), encoding='utf-8')
        return norm
    Accelerator.clip_grad_norm_ = noted

def main(out, seed):
    for processes in (1, 2):
        with tempfile.TemporaryDirectory() as d:
            env = os.environ|dict(OMP_NUM_THREADS='1', HF_HUB_OFFLINE='1', NORMS=f'{d}/norms.json',
                PYTHONPATH=f'{ROOT}:{ROOT}/benchmarks')
            words = command(processes, f'{d}/run', seed, SETTINGS|dict(max_steps=1, save_strategy='no'))
            at = words.index(f'{SCALE}/on_cpu.py')
            subprocess.run([*words[:at], __file__, *words[at:]], env=env, check=True)
            row = json.loads(Path(env['NORMS']).read_text(encoding='utf-8'))
        write(out, 'full_run_norm', ['seed','processes'], [dict(seed=seed, processes=processes)|row])

if __name__=='__main__' and 'NORMS' in os.environ:
    del sys.argv[0]
    note_norms()
    runpy.run_path(sys.argv[0], run_name='__main__')
elif __name__=='__main__': main(Path(sys.argv[1]), int(sys.argv[2]))
