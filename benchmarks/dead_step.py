"""Gradients and steps of batches of which some lives, on the eight practice tasks: nbs/results/dead_step.csv

    python benchmarks/dead_step.py [TABLE]

Three minutes of one core; nbs/studies/dead_step.ipynb reads it.
"""
import sys
import pandas as pd, torch
from grpo_nb.studies.dead_step import measure_steps

TASKS = 'shifting tallying cutting swapping interleaving merging comparing multiplying'.split()
torch.set_num_threads(1)
rows = [row for task in TASKS for row in measure_steps(task)]
path = sys.argv[1] if len(sys.argv)>1 else 'nbs/results/dead_step.csv'
pd.DataFrame(rows).to_csv(path, index=False, float_format='%.5g')
