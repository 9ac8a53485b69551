"A stacked run beside the chapter's `train`: the same problems and darts, so the same tokens and weights"
from dataclasses import replace
import pytest, torch
import grpo_nb.generation as generation
import grpo_nb.studies.stacked as sr
import grpo_nb.trainer as trainer
from loss_calls import loss_of
from grpo_nb.studies.stacked import PAD, SHAPE, Letters, from_qwen, is_right, to_qwen
from grpo_nb.studies.replay_study import USES
from grpo_nb.run.config import make_loss_settings
from grpo_nb.trainer import TrainConfig, train
from made_study import spelled

pytestmark = pytest.mark.studies

BATCHES = 6
# settings of the trainer with which it does what an arm does; the ladder's passes in one part each, and three
TRAINER = {'mu3':{}, 'plain_warmup':{}, 'replay_default':dict(replay_buffer_size=64),
    'constant':dict(advantages='constant'), 'no_baseline':dict(advantages='rft'),
    'mean':dict(scale_rewards='none'), 'maxrl':dict(advantages='maxrl'),
    'passes_naive':dict(correction='weight=none,clip=none'), 'passes_ratio':dict(correction='clip=none'),
    'passes_gspo':dict(importance_sampling_level='sequence', epsilon=.05)}

def rate(arm): return 3e-4 if arm=='passes_ratio' else 1e-3   # without a clip float noise grows fast

def stacked(arm, monkeypatch):
    "Some batches of a stacked run, and all that went in and came out"
    r = sr.Runs(USES[arm], 'adding', [3], [rate(arm)], n_train=80, n_test=4)
    seen = dict(start=r.m.theta[0].clone(), asked=[], darts=[], said=[], losses=[], norms=[])
    asked,factor = r.next_problems,sr.factor
    def problems():
        seen['asked'].append(asked())
        return seen['asked'][-1]
    def sample(m, ids, mask, chance, *ends):
        out = sampled(m, ids, mask, chance, *ends)
        seen['darts'].append(chance[0].permute(1, 2, 0).flatten(0, 1))   # (B*G, T)
        seen['said'].append(out[0][0])
        return out
    def noted(logps, old, A, how, real, *more):
        settings = make_loss_settings(TrainConfig(**TRAINER[arm]))
        loss = loss_of(logps[0], old[0], A[0,...,0], real[0], settings)
        seen['losses'].append(loss.item())
        return factor(logps, old, A, how, real, *more)
    sampled,step = sr.sample_stack,r.opt.step
    r.next_problems = problems
    def noted_step(*o):
        norm,length = step(*o)
        seen['norms'].append(norm.item())
        return norm,length
    r.opt.step = noted_step
    monkeypatch.setattr(sr, 'sample_stack', sample)
    monkeypatch.setattr(sr, 'factor', noted)
    for _ in range(BATCHES): r.batch()
    return r,seen

@pytest.mark.parametrize('arm', TRAINER)
def test_a_stacked_run_is_the_chapters_run(arm, monkeypatch):
    torch.set_num_threads(1)
    if arm.startswith('passes'): monkeypatch.setitem(USES, arm, replace(USES[arm], passes=3, parts=1))
    r,seen = stacked(arm, monkeypatch)
    model = to_qwen(seen['start'])
    asked = [o for q in seen['asked'] for o in zip(q['ids'][0], q['mask'][0], q['answer'][0])]
    rows = [dict(prompt=spelled(ids[m].tolist()), answer=a.tolist()) for ids,m,a in asked]
    def right(prompts, completions, answer, completion_ids, **_):
        T = len(answer[0])
        padded = torch.tensor([o+[PAD]*(T-len(o)) for o in completion_ids])
        return is_right(padded, torch.tensor(answer)).float().tolist()
    darts,order = iter(seen['darts']),iter(range(len(rows)))
    monkeypatch.setattr(generation, 'sampling_uniforms', lambda n, T, *_: next(darts).double())
    def next_indices(s, n): return [next(order) for _ in range(n)]
    monkeypatch.setattr(trainer, 'next_prompt_indices', next_indices)
    said,infos = [],[]
    kept = trainer.rollout
    def rollout(*a, **k):
        out = kept(*a, **k)
        said.append(out[0].completion_ids)
        return out
    monkeypatch.setattr(trainer, 'rollout', rollout)
    kept_update,replayed = trainer.update_minibatch,[]
    def update(s, processed, idx, *a):
        replayed.append(processed.batch.replayed[idx].any().item())
        infos.append(kept_update(s, processed, idx, *a))
        return infos[-1]
    monkeypatch.setattr(trainer, 'update_minibatch', update)
    passes = USES[arm].passes
    args = TrainConfig(seed=3, num_generations=sr.G, generation_batch_size=8*sr.G, steps_per_generation=1,
        num_iterations=passes, max_steps=BATCHES*passes, learning_rate=rate(arm), weight_decay=0.,
        max_completion_length=r.family.completion, lr_scheduler_type='constant',
        warmup_steps=USES[arm].warmup, disable_tqdm=True, **dict(replay_buffer_size=0)|TRAINER[arm])
    s = train(model, Letters(), rows, right, args, print_verdict=False)
    assert s.num_tokens==int(r.tokens[0]) and len(said)==BATCHES
    for ours,theirs in zip(said, seen['said'], strict=True):
        T = ours.shape[-1]
        assert torch.equal(ours, theirs[...,:T]) and (theirs[...,T:]==PAD).all()
    torch.testing.assert_close([o['loss'] for o in infos], seen['losses'], atol=2e-6, rtol=1e-4)
    torch.testing.assert_close([o['grad_norm'] for o in infos], seen['norms'], atol=1e-5, rtol=1e-3)
    moved = (r.m.theta[0]-seen['start']).norm()
    assert (from_qwen(s.model, SHAPE)-r.m.theta[0]).norm()<1e-3*moved
    assert moved>(.1 if not USES[arm].warmup else .05)
    if passes>1 and USES[arm].correction=='both':   # the clip had something to do
        assert max(o['clip_ratio/region_mean'] for o in infos)>.01
    elif arm=='replay_default': assert any(replayed)   # nor was the buffer idle
