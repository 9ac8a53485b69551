"A run of seconds with the chapters' trainer: tokenizer, problems, reward and settings"

from grpo_nb.parts.datasets import chain_sum
from grpo_nb.tiny_qwen import make_tokenizer
from grpo_nb.trainer import TrainConfig

TOK = make_tokenizer()
DATA = chain_sum(48, seed=3)
text = lambda c: c if isinstance(c, str) else c[0]['content']

def parity(prompts, completions, **kw):
    "Every third prompt is dead; else 1 for a text of even length."
    return [1.0 if len(p[-1]['content']) % 3 == 0 else float(len(text(c)) % 2 == 0)
            for p, c in zip(prompts, completions)]

def cfg(**kw):
    "Settings of a run of seconds"
    return TrainConfig(**(dict(num_generations=4, generation_batch_size=32, steps_per_generation=2,
                               max_steps=8, max_completion_length=8, learning_rate=1e-3, disable_tqdm=True,
                               replay_buffer_size=8) | kw))
