"Settings, records, metrics and checkpoints from before the first release are read under today's names."
import gzip, json
from pathlib import Path
import pytest, torch
from grpo_nb.on_trl.config import GRPOWithReplayBufferConfig
from grpo_nb.parts.renamed import RENAMED
from grpo_nb.replay import Replay
from grpo_nb.run.checkpoints import load_state, read_manifest, save_state, write_manifest
from grpo_nb.run.config import TrainConfig, make_config
from grpo_nb.run.reading import read_run
from grpo_nb.strategies import DeadGroupStrategy
from grpo_nb.tiny_qwen import make_tokenizer, tiny_model
from grpo_nb.trainer import train

ROOT = Path(__file__).parents[1]
OLD = ROOT/'nbs'/'results'/'run_tiny'   # written before the names changed

def rows(name):
    f = OLD/name
    data = f.read_bytes() if f.exists() else gzip.decompress((OLD/f'{name}.gz').read_bytes())
    return [json.loads(o) for o in data.splitlines()]

def test_an_older_record_is_read_under_todays_names():
    run,old = read_run(OLD),rows('groups.jsonl')
    assert run.notes==[] and len(run.rows)==len(old) and sum(o['treatment']=='replaced' for o in old)>5
    for new,was in zip(run.rows, old):
        for before,now in RENAMED['record'].items():
            if before=='prob': continue
            assert new[now]==was[before] and before not in new
        if was['replacement']:
            assert new['replacement']['draw_prob']==was['replacement']['prob']
            assert new['replacement']['prompt_key']==was['replacement']['key']

def test_metrics_and_settings_of_0_1_are_read_under_the_new_names():
    run,old = read_run(OLD),rows('history.jsonl')
    assert run.history['replay/unreplaced'].tolist()==[o['replay/unfilled'] for o in old]
    clipped = [o['replay/clip_share'] for o in old if 'replay/clip_share' in o]
    assert len(clipped)>5 and run.history['replay/clip_frac'].dropna().tolist()==clipped
    assert not set(run.history) & set(RENAMED['metrics'])
    assert run.setting('record_groups_every')==1 and run.setting('record_groups') is None

def test_evaluations_of_0_1_are_read_under_the_new_names(tmp_path):
    e = dict(right=[1, 0], rewards=dict(exact=dict(judged=True, mean=.5)))
    (tmp_path/'history.jsonl').write_text('{"step": 1}\n', encoding='utf-8')
    (tmp_path/'summary.json').write_text(json.dumps(dict(after=e, seed=3)), encoding='utf-8')
    got = read_run(tmp_path).summary
    new = dict(num_correct=[1, 0], rewards=dict(exact=dict(has_rewards=True, mean=.5)))
    assert got==dict(after=new, seed=3)

@pytest.mark.parametrize('old,value', [('max_tokens', 500), ('record_groups', 3), ('record_terms', 2)])
def test_a_setting_of_0_1_is_taken_with_a_warning(old, value):
    now = RENAMED['settings'][old]
    for make in (TrainConfig, lambda **kw: make_config(TrainConfig(), **kw)):
        with pytest.warns(FutureWarning, match=f'`{old}` is now `{now}`'): args = make(**{old:value})
        assert getattr(args, now)==value
    with pytest.raises(ValueError, match='both are given'): TrainConfig(**{old:value, now:value})

def test_settings_of_0_1_are_taken_on_trl_with_a_warning(tmp_path):
    import trl_tiny as T
    with pytest.warns(FutureWarning, match='`replay_when_empty` is now `replay_unreplaced`'):
        args = T.config(replay_when_empty='mask', replay_drop_dead_kl=True)
    assert args.replay_unreplaced=='mask' and args.replay_no_kl_on_dead

def test_options_of_a_strategy_of_0_1_are_refused_by_a_sentence():
    for old,says in (('corrected', '`corrected=False` is `force_ratio_one=True`'),
                     ('when_empty', '`when_empty` is now `unreplaced`')):
        with pytest.raises(ValueError, match=says): Replay(**{old:False})
    with pytest.raises(TypeError, match='Mine.when_empty` is now `unreplaced`'):
        type('Mine', (DeadGroupStrategy,), dict(when_empty='mask'))

def old_names(kind, values):
    old = {v:k for k,v in RENAMED[kind].items()}
    return {old.get(k, k):v for k,v in values.items()}

def with_old_names(folder):
    "A checkpoint of the course's trainer, with the names of before."
    path = folder/'grpo_state_0.pt'
    state,meta = load_state(path),read_manifest(folder)
    data = state['strategy']['buffer']['data']
    assert data   # else nothing would be tried
    state['strategy']['buffer']['data'] = [old_names('checkpoint', o) for o in data]
    state['history'] = [old_names('metrics', o) for o in state['history']]
    assert 'replay/unfilled' in state['history'][0]
    save_state(path, old_names('checkpoint', state))
    about = {k:meta[k] for k in ('dataset','rewards')}
    write_manifest(folder, meta['run'], args=old_names('settings', meta['args']), **about)

def test_an_older_checkpoint_goes_on_to_the_bit(tmp_path):
    tok,data = make_tokenizer(),[dict(prompt=f'{i}+{i}=') for i in range(16)]
    def odd(completions, **kwargs): return [float(len(o)%2) for o in completions]
    def run(folder, steps, **more):
        args = TrainConfig(output_dir=str(folder), max_steps=steps, num_generations=4,
            generation_batch_size=16, steps_per_generation=2, max_completion_length=6, learning_rate=1e-3,
            max_sampled_tokens=10**6, disable_tqdm=True)
        return train(tiny_model(0), tok, data, odd, args, print_verdict=False, **more)
    whole = run(tmp_path/'whole', 8)
    run(tmp_path/'part', 4)
    with_old_names(tmp_path/'part'/'checkpoint-4')
    part = run(tmp_path/'part', 8, resume_from_checkpoint=True)
    assert part.step==8 and len(part.strategy.buffer)==len(whole.strategy.buffer)
    for a,b in zip(whole.model.parameters(), part.model.parameters()): assert torch.equal(a, b)
    assert [o['replay/unreplaced'] for o in part.history]==[o['replay/unreplaced'] for o in whole.history]

@pytest.mark.parametrize('unreplaced', ['mask', 'keep'])
def test_an_older_checkpoint_on_trl_is_held_to_its_settings(tmp_path, unreplaced):
    from test_trl_resume import make
    make(tmp_path, 2, replay_unreplaced='mask').train()
    folder = tmp_path/'checkpoint-2'
    state,meta = load_state(folder/'grpo_state_0.pt'),read_manifest(folder)
    state['replay'] = old_names('settings', state['replay'])
    save_state(folder/'grpo_state_0.pt', state)
    write_manifest(folder, meta['run'])
    t = make(tmp_path, 3, replay_unreplaced=unreplaced)
    if unreplaced=='mask': t.train(resume_from_checkpoint=True)
    else:
        with pytest.raises(ValueError, match='replay_unreplaced=mask, this run has keep'):
            t.train(resume_from_checkpoint=True)

def test_an_older_shared_buffer_is_loaded_and_dealt_out():
    from grpo_nb.on_trl.distributed import RowFormat, ShardedBuffer, reshard
    from grpo_nb.replay import ReplayBuffer
    b = ShardedBuffer(ReplayBuffer(4), RowFormat(completion_ids=None, advantages=0), 2)
    state = old_names('checkpoint', b.state_dict())
    assert 'wire' in state
    c = ShardedBuffer(ReplayBuffer(4), None, 2)
    c.load_state_dict(state)
    assert c.row_format==b.row_format and reshard([state], 0, 2)['row_format']==b.row_format

def trl_config(**kw): return GRPOWithReplayBufferConfig('x', **kw)

@pytest.mark.parametrize('make', [TrainConfig, trl_config])
def test_a_setting_that_is_none_is_named_with_the_nearest(make):
    with pytest.raises(TypeError, match="has no setting 'learning_rat', did you mean 'learning_rate'"):
        make(learning_rat=1e-5)
    with pytest.raises(TypeError, match=r"has no setting 'xyzzy'$"): make(xyzzy=1)
