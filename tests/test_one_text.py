"Cliff or collapse as a number that both trainers log: the share of groups that are one text, by hand"
import pytest, torch
from types import SimpleNamespace
from grpo_nb.run.history import _one_text_share
from grpo_nb.run.reading import read_run

def rollouts(*groups):
    "Token ids of each answer, padded with 0"
    T = max(len(a) for g in groups for a in g)
    ids = torch.tensor([[a+[0]*(T-len(a)) for a in g] for g in groups])
    mask = torch.tensor([[[True]*len(a)+[False]*(T-len(a)) for a in g] for g in groups])
    return SimpleNamespace(completion_ids=ids, completion_mask=mask)

def test_the_share_by_hand():
    same,other,longer = [[5, 6], [5, 6]],[[5, 6], [5, 7]],[[5], [5, 0]]   # a 0 that was said is no padding
    assert _one_text_share(rollouts(same, other))==.5 and _one_text_share(rollouts(same, same))==1.
    assert _one_text_share(rollouts(longer, other))==0.
    junk = rollouts(same)
    junk.completion_ids = torch.cat([junk.completion_ids, torch.tensor([[[1], [2]]])], -1)
    junk.completion_mask = torch.cat([junk.completion_mask, torch.zeros(1, 2, 1, dtype=torch.bool)], -1)
    assert _one_text_share(junk)==1.   # what stands behind the end says nothing

def shares(run):
    by = {}
    for o in run.rows: by.setdefault(o['step'], []).append(len(set(o['completions']))==1)
    return [sum(v)/len(v) for _,v in sorted(by.items())]

def test_ours_logs_what_the_record_shows(tmp_path):
    import faulty_runs
    run = read_run(faulty_runs.make('too-cold', tmp_path/'r', max_steps=8))
    assert run.history.frac_one_text.tolist()==pytest.approx(shares(run))
    assert run.history.frac_one_text.max()>.2

def test_trls_logs_what_the_record_shows(tmp_path):
    import trl_tiny as T
    how = dict(per_device_train_batch_size=32, max_steps=4, temperature=.02, record_groups_every=1)
    T.trainer(output_dir=str(tmp_path/'r'), **how).train()
    run = read_run(tmp_path/'r')
    seen = run.history.dropna(subset=['frac_one_text'])
    assert len(seen)==4 and seen.frac_one_text.tolist()==pytest.approx(shares(run)) and shares(run)!=[0.]*4
