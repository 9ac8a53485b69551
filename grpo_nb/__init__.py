"""GRPO and its replay buffer, as the notebooks in `nbs` build them: a notebook makes the module of its name.

Chapters, one idea each: tasks, tiny_qwen, generation, rewards, evaluation, advantages, logps, kl, loss, replay,
trainer; what_if and inspector look at a run; grpo_with_replay_buffer is the trainer on TRL.
Commands: cli, demo, recipes.
Folders: parts, what the chapters are built on: groups, sampling, ratios, checks, storage;
run, what surrounds a step: settings, record, checkpoints, resume;
variants, losses and strategies of published methods, and what each token adds to a loss;
see, diagnosis, readers of other frameworks' logs, report, widgets;
on_trl, what the trainer on TRL is built from; research, comparisons over seeds; teach, problem sets and hunts.
"""

__version__ = "0.1.0"

from .parts.registry import register
