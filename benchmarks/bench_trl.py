"""Replay on TRL in numbers, by `python benchmarks/bench_trl.py speed|vllm|example|curve [csv]`.

speed: plain GRPO, replay, replay that records every group, and replay with one more forward pass, step by
step in turn (A B C D A B C D) in each of twelve processes, two at a time; CPU seconds of a step, with no
group dead and with half of them dead; then the first and the third of these with a larger model.
vllm: the first and the third of these with vLLM in the process; in the environment of `test_vllm.py`.
example: the documented example, 24 seeds x 40 steps.
curve: the tiny Qwen, replay off and on, five seeds.
"""
import csv, statistics as st, sys, threading, time, warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
sys.path.append(str(Path(__file__).resolve().parents[1]/'tests'))   # their helpers
import torch
torch.set_num_threads(1); warnings.filterwarnings('ignore')
from transformers import PrinterCallback, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging as hf
from trl import GRPOConfig, GRPOTrainer
import trl_tiny as T
from trl_tiny import LIVE, DEAD
from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferConfig, GRPOWithReplayBufferTrainer
from grpo_nb.parts.stats import mean_ci
hf.set_verbosity_error(); hf.disable_progress_bar()

class Forward(GRPOWithReplayBufferTrainer):
    "The road not taken: behaviour log-probs by one more forward pass over the batch."
    def update_with_replay_buffer(self, batch, inputs):
        ids,mask = (torch.cat([batch[f'prompt_{k}'], batch[f'completion_{k}']], 1) for k in ('ids','mask'))
        with torch.no_grad():
            batch['old_per_token_logps'] = self._get_per_token_logps_and_entropies(self.model, ids, mask,
                batch['completion_ids'].shape[1], batch_size=self.args.per_device_train_batch_size)[0]
        return super().update_with_replay_buffer(batch, inputs)

def qwen(width, layers):
    torch.manual_seed(0)
    m = Qwen2ForCausalLM(Qwen2Config(vocab_size=2000, hidden_size=width, intermediate_size=3 * width,
                                     num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
                                     pad_token_id=0, eos_token_id=1))
    m.generation_config.eos_token_id = None
    return m

def in_turn(arms, steps):
    "Train each arm in a thread of its own, one step at a time, round and round; CPU seconds of each step."
    turn,cond,times = [0],threading.Condition(),[[] for _ in arms]
    def pace(i, t):
        old = t.training_step
        def f(*a):
            with cond: cond.wait_for(lambda: turn[0]%len(arms)==i)
            s = time.thread_time(); out = old(*a); times[i].append(time.thread_time()-s)
            with cond: turn[0] += 1; cond.notify_all()
            return out
        t.training_step = f
        return threading.Thread(target=t.train)
    ths = [pace(i, t) for i,t in enumerate(arms)]
    for o in ths: o.start()
    for o in ths: o.join()
    return times

def over_first(case, arms, times):
    """A row for each arm: its median step, and its step over the first arm's of the same round.

    The interval of 95 % is that of the median ratio, by order statistics (binomial, as a normal).
    """
    rows = []
    for arm,o in zip(arms, times):
        ratio = sorted(b/a for a,b in zip(times[0], o))
        half = 1.96*len(ratio)**.5/2
        low,high = ratio[int(len(ratio)/2-half)],ratio[min(int(len(ratio)/2+half), len(ratio)-1)]
        rows.append(dict(case=case, arm=arm, steps=len(o), median_ms=round(1e3*st.median(o), 2),
            over_plain_pct=round(100*(st.median(ratio)-1), 2), low=round(100*(low-1), 2),
            high=round(100*(high-1), 2)))
        print(rows[-1], flush=True)
    return rows

CASES = (('nothing dead', [LIVE]), ('half dead', [LIVE]*4+[LIVE,DEAD]*9999))

ARMS = {'GRPOTrainer':(GRPOTrainer, GRPOConfig, {}),
    'replay':(GRPOWithReplayBufferTrainer, GRPOWithReplayBufferConfig, dict(record_groups_every=0)),
    'replay, recorded':(GRPOWithReplayBufferTrainer, GRPOWithReplayBufferConfig, dict(record_groups_every=1)),
    'replay, one more forward':(Forward, GRPOWithReplayBufferConfig, dict(record_groups_every=0))}
SIZES = ((128, 3, 32, tuple(ARMS)), (256, 6, 48, ('GRPOTrainer','replay, recorded')))

def alone(k, width, layers, tokens, arms, case, steps, warmup=4):
    "Call it in a new process, the `k`-th: of each arm the CPU seconds of `steps` steps."
    def make(cls, cfg, more):
        t = T.trainer(T.Scripted(dict(CASES)[case], 4), cls=cls, model_=qwen(width, layers),
            args=T.config(cfg, per_device_train_batch_size=16, max_completion_length=tokens,
                max_steps=steps+warmup, learning_rate=1e-5,
                generation_kwargs=dict(min_new_tokens=tokens), dataloader_pin_memory=False, **more))
        t.remove_callback(PrinterCallback)
        return t
    k %= len(arms)
    order = arms[k:]+arms[:k]   # each time another one begins
    seen = dict(zip(order, in_turn([make(*ARMS[a]) for a in order], steps+warmup)))
    return {a:seen[a][warmup:] for a in arms}

def over_processes(case, seen):
    """A row for each arm: each process's median ratio to the first, their mean, and its 95 % interval.

    Steps of one process are no sample of it: processes differ by more than their steps do.
    """
    rows,first = [],next(iter(seen[0]))
    for arm in seen[0]:
        ratios = [st.median(b/a for a,b in zip(o[first], o[arm])) for o in seen]
        mean,half = mean_ci(ratios)
        over,low,high = (round(100*(x-1), 2) for x in (mean, mean-half, mean+half))
        rows.append(dict(case=case, arm=arm, processes=len(seen), steps=len(seen[0][arm]),
            median_ms=round(1e3*st.median(x for o in seen for x in o[arm]), 2), over_plain_pct=over,
            low=low, high=high))
        print(rows[-1], flush=True)
    return rows

def speed(out, sizes=SIZES, processes=12, steps=20):
    rows = []
    for width,layers,tokens,arms in sizes:
        weights = sum(p.numel() for p in qwen(width, layers).parameters())
        for case,_ in CASES:
            with ProcessPoolExecutor(2, get_context('spawn'), max_tasks_per_child=1) as pool:
                todo = [pool.submit(alone, k, width, layers, tokens, arms, case, steps)
                    for k in range(processes)]
                seen = [o.result() for o in todo]
            rows += [dict(weights=weights)|o for o in over_processes(case, seen)]
            write(out, rows)

def vllm(out, steps=244, tokens=32):
    import vllm_tiny as X
    X.one_engine()
    rows = []
    def make(plan, cls, cfg, **kw):
        args = X.config(cfg, per_device_train_batch_size=16, max_completion_length=tokens, max_steps=steps,
            learning_rate=1e-5, generation_kwargs=dict(min_tokens=tokens, ignore_eos=True), **kw)
        return X.trainer(T.Scripted(plan, 4), cls, args=args)
    for name,plan in CASES:
        arms = [make(plan, GRPOTrainer, GRPOConfig),
            make(plan, GRPOWithReplayBufferTrainer, GRPOWithReplayBufferConfig, record_groups_every=1)]
        times = [o[4:] for o in in_turn(arms, steps)]
        rows += over_first(f'{name}, vLLM', ('GRPOTrainer','replay, recorded'), times)
    write(out, rows)

def write(out, rows):
    if out:
        with open(out, 'w', encoding='utf-8', newline='') as f:
            w = csv.DictWriter(f, rows[0].keys(), lineterminator='\n')
            w.writeheader()
            w.writerows(rows)


def example(out, seeds=24, steps=40):
    rows = []
    for seed in range(seeds):
        def sometimes_flat(completions, **kw):
            r = torch.rand(len(completions))
            return [0]*len(r) if torch.rand(())<.25 else r.tolist()

        t = T.trainer([sometimes_flat],
                      args=T.config(learning_rate=1e-4, max_completion_length=8, replay_buffer_size=8,
                                    max_steps=steps, seed=seed))
        t.remove_callback(PrinterCallback)
        before,got = T.weights(t),T.spy(t); t.train(); after = T.weights(t)
        old = [b for b in got if b['replayed'].any()]
        rows.append(dict(seed=seed, steps=len(got),
                         dead=int(sum(o['replay/dead'] for o in t.state.log_history if 'replay/dead' in o)),
                         replaced=len(old),
                         unreplaced=int(sum(o['replay/unreplaced'] for o in t.state.log_history
                                          if 'replay/unreplaced' in o)),
                         rows_with_advantage=sum(int((b['advantages'] != 0).sum()) for b in old),
                         of=4 * len(old),
                         weights_unmoved=sum(torch.equal(before[k], after[k]) for k in before)))
    print({k:sum(r[k] for r in rows) for k in rows[0] if k!='seed'}, 'on', seeds, 'seeds')
    write(out, rows)

def curve(out, seeds=5, steps=80):
    from grpo_nb.parts.datasets import chain_sum
    from grpo_nb.tasks import accuracy_reward
    from grpo_nb.tiny_qwen import load_model
    from grpo_nb.trainer import evaluate
    rows,test = [],chain_sum(400, seed=0, split='test')
    for seed in range(seeds):
        for size in (0, 64):
            m,tok = load_model('tiny')
            t = GRPOWithReplayBufferTrainer(model=m, reward_funcs=accuracy_reward, processing_class=tok,
                                            train_dataset=chain_sum(1000, seed=seed),
                                            args=T.config(per_device_train_batch_size=32,
                                                          steps_per_generation=4, num_generations=8,
                                                          max_completion_length=48, learning_rate=2e-4,
                                                          max_steps=steps, seed=seed,
                                                          replay_buffer_size=size,
                                                          lr_scheduler_type='constant'))
            t.remove_callback(PrinterCallback); t.train()
            for o in t.state.log_history:
                if 'reward' in o:
                    rows.append(dict(seed=seed, replay_buffer_size=size, step=o['step'],
                                     reward=round(o['reward'], 4), dead=round(o['frac_reward_zero_std'], 4),
                                     trained_on=round(o.get('replay/live_after',
                                                            1 - o['frac_reward_zero_std']), 4), heldout=''))
            m.eval(); rows[-1]['heldout'] = round(evaluate(m, tok, test, accuracy_reward)['pass@1'], 4)
            print(rows[-1], flush=True)
            write(out, rows)
    end = lambda key, n: (
        lambda seed, size: st.mean(
            [r[key] for r in rows if (r['seed'], r['replay_buffer_size']) == (seed, size)][-n:]
        )
    )
    for key,n in (('reward', 4), ('trained_on', 20), ('heldout', 1)):
        f = end(key, n)
        print(f'{key}, last {n} batches, off / on / on minus off:',
              *[mean_ci([g(s) for s in range(seeds)]) for g in (lambda s: f(s, 0), lambda s: f(s, 64),
                                                                lambda s: f(s, 64) - f(s, 0))])


if __name__=='__main__': globals()[sys.argv[1]](sys.argv[2] if len(sys.argv)>2 else None)
