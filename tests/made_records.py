"""How the files in `runs/others` were made: by the packages themselves, in an environment that has them.

    python tests/made_records.py trackio|trl|verl|tinker FOLDER
"""

import gzip, json, os, shutil, sqlite3, sys
from pathlib import Path

def answers():
    "(step, group, answer, reward) of two steps of three groups of four; the last group of each is all wrong."
    return [(s, g, i, float((i+g)%2) if g<2 else 0.) for s in (1, 2) for g in range(3) for i in range(4)]

def question(s, g): return f'What is {g} + {s}?'

def packed(db, to):
    "The database without what it says of the machine, packed."
    with sqlite3.connect(db) as con:
        for table in ('configs','system_metrics','pending_uploads','project_metadata'):
            con.execute(f'delete from {table}')
    con.close()
    con = sqlite3.connect(db, isolation_level=None)
    con.execute('vacuum')
    con.execute('pragma journal_mode=delete')
    con.close()
    to.write_bytes(gzip.compress(Path(db).read_bytes(), 9, mtime=0))

def trackio(folder):
    "`trackio.Trace` with spans: a generation and a call of a tool that fails at the last answer of a group."
    import trackio
    trackio.init(project='spans', name='run', auto_log_gpu=False, auto_log_cpu=False)
    for s in (1, 2):
        traces = []
        for _,g,i,r in (o for o in answers() if o[0]==s):
            said = dict(id='a', name='answer', kind='generation', usage=dict(output_tokens=5+i))
            tool = dict(id='b', parent_id='a', name='add', kind='tool', status='error' if i==3 else 'ok')
            messages = [dict(role='user', content=question(s, g)),
                dict(role='assistant', content=f'It is {i}.')]
            traces.append(trackio.Trace(messages, dict(reward=r, group_id=f'{s}-{g}'), [said, tool]))
        trackio.log(dict(reward=.5, rollouts=traces), step=s)
    trackio.finish()
    packed(Path(os.environ['TRACKIO_DIR'])/'spans.db', folder/'trackio-0.43.db.gz')

def trl(folder):
    "What `log_rollout_traces` of TRL's asynchronous GRPO logs; answers of the second step are a version old."
    import torch, trackio
    from trl.experimental.async_grpo import async_grpo_trainer as trainer
    trainer.trackio,trainer.is_trackio_available = trackio,lambda: True
    trackio.init(project='trl', name='run', auto_log_gpu=False, auto_log_cpu=False)
    names = trainer.RolloutSample.__dataclass_fields__
    for s in (1, 2):
        samples = []
        for _,g,i,r in (o for o in answers() if o[0]==s):
            known = dict(prompt=[dict(role='user', content=question(s, g))], group_id=10*s+g, model_version=1,
                completion=[dict(role='assistant', content=f'It is {i}.')], input_ids=[0]*(10+i),
                completion_mask=torch.tensor([0]*6+[1]*(4+i)), advantage=r-.5 if g<2 else 0.,
                metrics={'reward':r, 'rewards/exact':r})
            samples.append(trainer.RolloutSample(**{k:known.get(k) for k in names}))
        trainer.log_rollout_traces(samples, s, ['trackio'])
    trackio.finish()
    packed(Path(os.environ['TRACKIO_DIR'])/'trl.db', folder/'trl-async.db.gz')

def byte_tokenizer():
    "A tokenizer of transformers with a token for each byte, and one that pads."
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    bytes_ = {c:i for i,c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tok = Tokenizer(models.BPE(vocab=bytes_, merges=[]))
    tok.pre_tokenizer,tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False),decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token='<pad>')

def verl(folder):
    "What `RayPPOTrainer._log_rollout_data` writes of verl's own batches, of a trainer without a cluster."
    import torch
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    trainer = RayPPOTrainer.__new__(RayPPOTrainer)   # its __init__ asks for a cluster
    trainer.tokenizer = byte_tokenizer()
    trainer._init_dump_executor()
    def padded(texts): return trainer.tokenizer(texts, padding=True, return_tensors='pt').input_ids
    for s in (1, 2):
        rows = [o for o in answers() if o[0]==s]
        asked = padded([question(s, 0) for _ in rows])   # one text: only the identity tells groups apart
        said = padded([f'It is {i}.' for _,_,i,_ in rows])
        scores = torch.zeros(said.shape)
        scores[:, -1] = torch.tensor([r for *_,r in rows])
        batch = DataProto.from_dict(dict(prompts=asked, responses=said, token_level_scores=scores),
            non_tensors=dict(reward_model=[dict(ground_truth='1')]*len(rows)))
        trainer.global_steps = s
        uid = [f'sample{g}_{i}_0' for _,g,i,_ in rows]
        trainer._log_rollout_data(batch, dict(uid=uid), {}, str(folder/'verl-0.9'))
    trainer._shutdown_dump_executor()

def tinker(folder):
    "Summaries of tinker's own trajectories."
    from tinker import ModelInput
    from tinker_cookbook.completers import TokensWithLogprobs
    from tinker_cookbook.rl.rollout_logging import serialize_rollout_summaries
    from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition
    run = folder/'tinker-0.6'
    shutil.rmtree(run, ignore_errors=True)
    prompt,end = [1, 2, 3],list(range(9))
    for s in (1, 2):
        groups = []
        for g in range(3):
            made = []
            for _,_,i,r in (o for o in answers() if o[:2]==(s, g)):
                tokens,logprobs = list(range(40, 45+i)),[-.1*(k+1) for k in range(5+i)]
                step = Transition(ob=ModelInput.from_ints(prompt), ac=TokensWithLogprobs(tokens, logprobs),
                    reward=r, episode_done=True)
                made.append(Trajectory([step], ModelInput.from_ints(end)))
            groups.append(TrajectoryGroup(made, [0.]*4, [{}]*4))
        rows = serialize_rollout_summaries(split='train', iteration=s, trajectory_groups_P=groups,
            taglist_P=[[]]*3)
        to = run/f'iteration_{s:06d}'/'train_rollout_summaries.jsonl'
        to.parent.mkdir(parents=True)
        to.write_text(''.join(json.dumps(o)+'\n' for o in rows))

if __name__=='__main__': globals()[sys.argv[1]](Path(sys.argv[2]))
