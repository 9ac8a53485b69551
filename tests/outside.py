"""An outsider's record of training with replay: martingale binds every token to the weights that sampled it
and to those that were trained, and its own checker reads the record afterwards.

    python tests/outside.py trl|chapters [--steps 8] [--folder runs/outside]
    torchrun --nproc_per_node 2 tests/outside.py trl --scope sharded
    python tests/outside.py vllm        # in the environment that `test_vllm.py` describes, with martingale
    python tests/outside.py certificates --out nbs/results/certificates.csv
"""
import argparse, csv, hashlib, json, os, sys
from fractions import Fraction
from pathlib import Path
if sys.argv[1:2]==['vllm']: import vllm_tiny  # noqa: F401 -- before trl is imported
import torch
import trl_tiny as T
from trl import GRPOTrainer
from martingale.diagnostics import decompose
from martingale.integrations.trl import ROW_ID_KEY, MartingaleGRPOMixin, MartingaleRecorder
from martingale.record import Recorder, SamplerConfig, TokenLedger
from martingale.record.tokens import prompt_digest
from martingale.record.bits import float_bits
from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferTrainer

G = 4

def digest_of(tokens): return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()

# ---- the trainer on TRL -----------------------------------------------------------------------------------
class Recorded(MartingaleGRPOMixin, GRPOTrainer): "TRL's trainer with martingale's mix-in, below ours."

class RecordedReplay(GRPOWithReplayBufferTrainer, Recorded):
    """Registers each row that came out of the buffer as a copy of the sequence that was sampled.

    Its origin is found by the id that traveled with the row, and must be the record of these tokens. Its
    declared weight is made of the log-probs that our buffer stored, the sampler's own where there are any, so
    a wrong one shows as a weight that the trainer's scores contradict.
    """
    def __init__(self, *args, workspace, **kw):
        self.flight_recorder = MartingaleRecorder(str(workspace), tokenizer=kw['processing_class'])
        super().__init__(*args, **kw)

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        if not self.model.training or 'replayed' not in batch: return batch
        weights = self.sequence_weights(batch)
        ids = batch[ROW_ID_KEY].clone()
        for i in batch['replayed'].nonzero()[:,0].tolist():
            row,prompt = (batch[f'{k}_ids'][i][batch[f'{k}_mask'][i].bool()].tolist()
                for k in ('completion','prompt'))
            origin = self.flight_recorder.sequence_digest(ids[i].item())
            ledger = self.flight_recorder.recorder.ledger
            if origin not in [o.digest for o in ledger.find_fresh_sequences(prompt_digest(prompt), row)]:
                raise ValueError(f'row {i} came back as {row}, which is not what was sampled under its id')
            ids[i] = self.flight_recorder.register_replayed(self, content_digest=digest_of(row),
                draw_id=f'{self.state.global_step}/{self.accelerator.process_index}/{i}',
                is_weight=weights[i].item(), advantage=batch['advantages'][i].item(),
                origin_digest=origin)
        return batch|{ROW_ID_KEY:ids}

    @torch.no_grad()
    def sequence_weights(self, batch):
        "How much likelier each answer has become, by the log-probs that were stored with it."
        ids,mask = (torch.cat([batch[f'prompt_{k}'], batch[f'completion_{k}']], 1) for k in ('ids','mask'))
        width = batch['completion_ids'].shape[1]
        now = GRPOTrainer._get_per_token_logps_and_entropies(self, self.model, ids, mask, width)[0]
        of_sampler = ('sampling_per_token_logps','replay_old_logps','old_per_token_logps')
        stored = next((batch[k] for k in of_sampler if batch.get(k) is not None), now)
        return ((now-stored)*batch['completion_mask']).sum(1).exp().double()

def on_trl(folder, steps=8, **options):
    "Train with TRL, replaced groups and one stored group beside each fresh one; the trainer."
    def make(**kw): return RecordedReplay(workspace=folder, **kw)
    kw = dict(output_dir=f'{folder}/run', max_steps=steps, per_device_train_batch_size=4*G,
        steps_per_generation=1, learning_rate=1e-2, lr_scheduler_type='constant', replay_buffer_size=16,
        replay_stored_per_fresh=1)
    t = T.trainer(T.n_red, cls=make, **kw|options)
    t.train()
    return t

def on_vllm(folder, steps=8):
    "The same with a real vLLM that samples, in bfloat16 on the CPU; the trainer."
    import vllm_tiny as X
    X.one_engine()
    def make(**kw): return RecordedReplay(workspace=folder, **kw)
    args = X.config(output_dir=f'{folder}/run', max_steps=steps, per_device_train_batch_size=4*G,
        lr_scheduler_type='constant', replay_buffer_size=16, replay_stored_per_fresh=1)
    t = X.trainer(X.Scripted(X.PLAN, G), cls=make, args=args)
    t.train()
    return t

# ---- the trainer of the chapters --------------------------------------------------------------------------
class ChapterRecorder:
    "A callback that records what the trainer of the chapters samples, replays and trains on."
    def __init__(self, folder): self.recorder,self.unmatched = Recorder(str(folder)),0

    def on_batch_begin(self, s):
        sampler = SamplerConfig(temperature=s.args.temperature, engine='grpo_nb',
            logprobs_source='trainer_old_logps', temperature_applied=True)
        words = s.tokenizer.backend_tokenizer.to_str().encode()
        self.now = self.recorder.publish_revision(s.model.state_dict(), words, sampler, step=s.step)

    def on_batch_end(self, s, batch):
        for row in rows_of(batch.sampled):
            with self.recorder.sequence(0, f"fresh/{s.step}/{row['at']}", row['prompt']) as seq:
                for token,logp in zip(row['tokens'], row['old']): seq.token(self.now.digest, token, logp)
                seq.reward(row['advantage'])
        for update in batch.updates:
            for row in rows_of(update['mb']):
                origin = self.origin_of(row)
                if origin is None:
                    self.unmatched += 1
                    continue
                new = update['logps'][row['at']][:len(row['tokens'])]
                name = origin.digest
                if row['replayed']:
                    weight = (new.double()-torch.tensor(row['old']).double()).sum().exp().item()
                    name = self.recorder.replay_from(origin.digest, actor_id=0, is_weight=weight,
                        sequence_id=f"replayed/{s.step}/{row['at']}", draw_id=f"{s.step}/{row['at']}",
                        content_digest=digest_of(row['tokens'])).digest
                self.recorder.score(name, self.now.digest, new.tolist())

    def origin_of(self, row):
        "The sequence that was sampled: these tokens with these log-probs, and before now if replayed."
        bits = [float_bits(x, 'f32') for x in row['old']]
        found = self.recorder.ledger.find_fresh_sequences(prompt_digest(row['prompt']), row['tokens'])
        found = [o for o in found if [t.logprob_bits for t in o.tokens]==bits
            and row['replayed']!=(o.tokens[0].revision_digest==self.now.digest)]
        return found[0] if found else None

def rows_of(x):
    "The completions of a batch of groups, one after another."
    for b in range(len(x)):
        for g in range(x.completion_ids.shape[1]):
            n = int(x.completion_mask[b,g].sum())
            yield dict(at=(b, g), prompt=x.prompt_ids[b][x.prompt_mask[b]].tolist(),
                tokens=x.completion_ids[b,g,:n].tolist(), old=x.old_logps[b,g,:n].tolist(),
                advantage=x.advantages[b,g].item() if x.advantages is not None else 0.,
                replayed=bool(x.replayed[b]) if x.replayed is not None else False)

def chapters(folder, steps=8):
    "Train with the trainer of the chapters, replaced groups and one stored group beside each fresh one."
    from grpo_nb.trainer import train
    recorder = ChapterRecorder(folder)
    train(T.model(), T.tokenizer(), [dict(prompt=p) for p in T.PROMPTS], [T.n_red], callbacks=[recorder],
        replay_stored_per_fresh=1, replay_buffer_size=16, seed=0, num_generations=G,
        generation_batch_size=4*G, steps_per_generation=1, max_completion_length=6, max_steps=steps,
        learning_rate=1e-2, disable_tqdm=True, print_verdict=False)
    return recorder

# ---- what the record says ---------------------------------------------------------------------------------
def report(folder, head=None):
    "What martingale's checker and doctor find in a record."
    from checker.verify_tokens import verify_export
    ledger = TokenLedger(Path(folder)/'tokens.db', readonly=True)
    checked = verify_export(ledger.export_for_checker(Path(folder)/'export'), expected_head=head)
    found = decompose(ledger, eps=(.2,))
    replayed,lags = found['replayed'],found['by_provenance']['replayed']['by_lag']
    weights,lag_0 = replayed['sequence_weights'],found['lag0_floor']['max_abs_log_ratio']
    differ = [abs(weights[k]) for k in ('mean_log_declared_minus_measured','log_weight_dispersion')]
    return dict(errors=len(checked['errors']), anchored=checked['anchored'], sequences=checked['n_sequences'],
        tokens=checked['n_tokens'], largest_at_lag_0=float(Fraction(lag_0)),
        replayed=replayed['n_sequences'], scored=replayed['n_scored_sequences'],
        without_origin=replayed['n_without_origin'], lags={int(o['lag']):o['n_sequences'] for o in lags},
        weights_differ=max(differ))

# ---- its exact bias of eleven estimators ------------------------------------------------------------------
def estimators():
    "The eleven that it certifies, at the limits of chapter 13: clip range .2, cap 2, mask .5 to 2."
    from martingale.exact import defendants
    half,cap,eps = Fraction(1, 2),Fraction(2),Fraction(1, 5)
    limits = dict(truncated_is=(cap,), masked_is=(half, cap), ppo_clip=(eps,), cispo=(eps, eps))
    def made(name, f): return next((f(*v) for k,v in limits.items() if name.endswith(k)), f)
    return {k:made(k, f) for k,f in defendants.BUILTIN.items()}

def certificates(sizes=((3, 2, 3), (4, 2, 3), (3, 3, 3)), lags=(1, 2, 4)):
    "A row for each estimator, world and lag: is it unbiased, and how long is its bias beside the gradient?"
    from martingale.exact import check_unbiased
    rows = []
    for name,f in estimators().items():
        found = check_unbiased(f, n_configs=len(sizes), sizes=sizes, lags=lags)
        rows += [dict(estimator=name, world=o.config_id, lag=o.lag, unbiased=int(o.is_unbiased),
            bias=round(float(o.rel_sq_bias)**.5, 6)) for o in found.certificates]
    return rows

def main(a):
    if a.trainer=='certificates':
        rows = certificates()
        with open(a.out, 'w', encoding='utf-8', newline='') as f:
            w = csv.DictWriter(f, rows[0], lineterminator='\n')
            w.writeheader()
            w.writerows(rows)
        return
    if a.trainer=='trl': head = on_trl(a.folder, a.steps, replay_scope=a.scope).flight_recorder.head()
    elif a.trainer=='vllm': head = on_vllm(a.folder, a.steps).flight_recorder.head()
    else: head = chapters(a.folder, a.steps).recorder.ledger.head()
    if os.environ.get('RANK', '0')!='0': return
    processes = int(os.environ.get('WORLD_SIZE', 1))
    found = report(a.folder, head if processes==1 else None)   # the other process goes on writing
    name = 'trl, vLLM' if a.trainer=='vllm' else a.trainer
    row = dict(trainer=name, processes=processes, buffer=a.scope or 'one', steps=a.steps)|found
    print(json.dumps(row))
    if a.out:
        row['lags'] = f"{min(found['lags'])} to {max(found['lags'])}"
        with open(a.out, 'a', encoding='utf-8', newline='') as f:
            w = csv.DictWriter(f, row, lineterminator='\n')
            if not f.tell(): w.writeheader()
            w.writerow(row)

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('trainer', choices=['trl','chapters','vllm','certificates'])
    p.add_argument('--steps', type=int, default=8)
    p.add_argument('--folder', default='runs/outside', help='of the record; it must be new')
    p.add_argument('--scope', choices=['local','sharded'], help='of the buffer of several processes')
    p.add_argument('--out', help='CSV to which the result is added')
    main(p.parse_args())
