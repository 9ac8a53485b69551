"""How the files in `runs/others` were made: by the packages themselves, in an environment that has them.

    python tests/made_records.py trackio|trl|verl|tinker FOLDER
"""

import ast, gzip, json, os, shutil, sqlite3, sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

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

def verl(folder):
    "What `_write_generations` of verl's trainer writes, run from its source, since its imports want a GPU."
    source = Path(find_spec('verl').origin).parent/'trainer'/'ppo'/'ray_trainer.py'
    nodes = ast.walk(ast.parse(source.read_text()))
    found = next(o for o in nodes if getattr(o, 'name', '')=='_write_generations')
    found.decorator_list = []
    here = dict(os=os, json=json)
    exec(compile(ast.Module([found], []), str(source), 'exec'), here)
    for s in (1, 2):
        asked,said,rewards,uid = [],[],[],[]
        for _,g,i,r in (o for o in answers() if o[0]==s):
            asked.append(question(s, 0))   # one text: only the identity tells groups apart
            said.append(f'It is {i}.')
            rewards.append(r)
            uid.append(f'sample{g}_{i}_0')
        to = str(folder/'verl-0.9')
        here['_write_generations'](asked, said, ['1']*len(uid), rewards, dict(uid=uid), to, s)

def tinker(folder):
    "Summaries by `serialize_rollout_summaries`, and a capture of them by the package's exporter."
    from tinker_cookbook.capture import CaptureExporter, JsonlFileSink, capture, instrument
    from tinker_cookbook.rl.rollout_logging import serialize_rollout_summaries
    from tinker_cookbook.stores.storage import LocalStorage
    run = folder/'tinker-0.6'
    shutil.rmtree(run, ignore_errors=True)
    exporter = CaptureExporter(JsonlFileSink(LocalStorage(str(run))))
    for s in (1, 2):
        groups = []
        for g in range(3):
            rewards,made = [],[]
            for _,_,i,r in (o for o in answers() if o[:2]==(s, g)):
                tokens,logprobs = list(range(40, 45+i)),[-.1*(k+1) for k in range(5+i)]
                with capture(run_id='run', iteration=s, group_idx=g, traj_idx=i, split='train'):
                    record = dict(kind='sample', scope=dict(instrument.current_scope()), created_at=float(s),
                        prompt_tokens=[1, 2, 3])
                sequence = SimpleNamespace(tokens=tokens, logprobs=logprobs, stop_reason='stop')
                instrument._sample_outcome(record, SimpleNamespace(sequences=[sequence]))
                exporter.enqueue(record)
                step = SimpleNamespace(ob=SimpleNamespace(length=3), ac=SimpleNamespace(tokens=tokens),
                    reward=r, episode_done=True, metrics={}, logs={})
                made.append(SimpleNamespace(transitions=[step], final_ob=SimpleNamespace(length=9)))
                rewards.append(r)
            groups.append(SimpleNamespace(trajectories_G=made, get_total_rewards=lambda r=rewards: r,
                final_rewards_G=[0.]*4, metrics_G=[{}]*4))
        rows = serialize_rollout_summaries(split='train', iteration=s, trajectory_groups_P=groups,
            taglist_P=[[]]*3)
        to = run/f'iteration_{s:06d}'/'train_rollout_summaries.jsonl'
        to.parent.mkdir(parents=True)
        to.write_text(''.join(json.dumps(o)+'\n' for o in rows))
    exporter.force_flush(30)
    exporter.shutdown()

if __name__=='__main__': globals()[sys.argv[1]](Path(sys.argv[2]))
