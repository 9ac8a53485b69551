"""GRPO with replay: the same file on eight GPUs, on two processes of a laptop, and on one.

Settings have TRL's names, on the command line or in a YAML file named by `--config`.
"""
from dataclasses import dataclass
from trl import TrlParser
from grpo_nb.grpo_with_replay_buffer import (
    GRPOWithReplayBufferConfig, GRPOWithReplayBufferTrainer)
from grpo_nb.parts.datasets import FEW_SHOT, end_at_newline, hub_problems, make_problems
from grpo_nb.tasks import accuracy_reward
from grpo_nb.tiny_qwen import load_model

@dataclass
class RunArguments:
    model: str = 'Qwen/Qwen2.5-1.5B-Instruct'   # or smollm2, or tiny
    dataset: str = 'gsm8k'                      # or worked_sums, or sums

run, args = TrlParser((RunArguments, GRPOWithReplayBufferConfig)).parse_args_and_config()
if run.dataset=='gsm8k': problems = hub_problems('gsm8k')
else: problems = make_problems(run.dataset, 500, args.seed)
model, tokenizer = load_model(run.model)
if run.dataset in FEW_SHOT: end_at_newline(model, tokenizer)

trainer = GRPOWithReplayBufferTrainer(model=model, processing_class=tokenizer, args=args,
    train_dataset=problems, reward_funcs=accuracy_reward)
trainer.train(resume_from_checkpoint='auto')
if not trainer.stopped_by: trainer.save_model()
