"The doctor's door: folders, logs and damaged records; and the batch numbers against TRL's own rule"
import itertools, json, math
from pathlib import Path
import numpy as np
import pandas as pd
import jsonschema, pytest, torch
import faulty_runs
from grpo_nb.parts.groups import expected_dead_frac
from grpo_nb.parts.batch_plan import batch_command, batch_plan, beta_pass_rates
from grpo_nb.cli import diagnose as diagnose_command, main
from grpo_nb.see.findings import diagnose_rows, read_asset
from grpo_nb.see.readers import diagnose
from grpo_nb.see.readers import open_run
from grpo_nb.run.record import Recorder
from grpo_nb.run.reading import LoggedRun
from grpo_nb.see.readers.history import history_rows
from notebook_code import defined_in
from stored_runs import stored

torch.set_num_threads(1)
PAGE = defined_in('practise/batch')
beta_dead_share = PAGE.beta_dead_share

def lines(rows): return ''.join(json.dumps(o)+'\n' for o in rows)

@pytest.fixture(scope='module')
def schema():
    schema = json.loads(read_asset('doctor/findings.schema.json'))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)

def test_what_diagnose_prints_as_json_keeps_to_its_schema(schema, capsys, tmp_path):
    seen = set()
    for name in 'healthy all-equal all-truncated replay-too-old reward-never-fires hacked-by-form'.split():
        r = stored(name)
        folder = tmp_path/name
        folder.mkdir()
        (folder/'history.jsonl').write_text(lines(history_rows(r)))
        (folder/'groups.jsonl').write_text(lines(r.rows))
        (folder/'settings.json').write_text(json.dumps(r.settings))
        diagnose_command(str(folder), json=True)
        found = json.loads(capsys.readouterr().out)
        assert [*schema.iter_errors(found)]==[], name
        seen |= {o['name'] for o in found}
    assert len(seen)>=5
    nan = [dict(step=s, reward=.5, loss=math.nan, grad_norm=math.inf) for s in range(30)]
    found = json.loads(json.dumps(diagnose_rows(nan).plain, allow_nan=False))
    assert found and [*schema.iter_errors(found)]==[]

@pytest.mark.slow
def test_a_fault_trained_now_is_found_now(tmp_path):
    "The stored runs stand for all others; this one shows that today's trainer still leaves such a record."
    assert diagnose(faulty_runs.make('all-truncated', tmp_path/'r', max_steps=20)).names==['all-truncated']

def test_the_curves_alone_tell_most_of_it():
    def bare(name): return LoggedRun(Path(name), {}, stored(name).history, [], {})
    names = 'all-truncated all-equal kl-only-pull learning-rate-too-small replay-too-old reward-never-fires'
    for name in names.split():
        assert name in diagnose(bare(name)).names
    assert diagnose(bare('healthy')).names==[]

def test_one_step_says_nothing_and_no_step_is_an_error(tmp_path):
    (tmp_path/'history.jsonl').write_text('{"step": 0, "reward": 0.5, "loss": 0.0}\n')
    assert diagnose(tmp_path).names==[]
    (tmp_path/'history.jsonl').write_text('')
    with pytest.raises(ValueError, match='no history yet'): diagnose(tmp_path)
    with pytest.raises(ValueError, match='no folder'): diagnose(tmp_path/'gone')

# ---- a number that is none, in the files of everybody

NAN_NAMES = dict(verl={'reward':'critic/rewards/mean', 'loss':'actor/pg_loss', 'grad_norm':'actor/grad_norm',
    'entropy':'actor/entropy'}, openrlhf={'loss':'policy_loss', 'grad_norm':'actor_grad_norm'})

def nan_run(reward_falls, broken=math.nan, names=()):
    "120 rows; from step 70 on the trainer's numbers are none, and the sampler goes on"
    rows = []
    for i in range(120):
        x = dict(step=i, reward=.0 if reward_falls and i>=70 else .3+.002*i)
        x |= {k:v if i<70 else broken for k,v in dict(loss=.01, grad_norm=.4, entropy=.5).items()}
        rows.append({dict(names).get(k, k):v for k,v in x.items()})
    return rows

def as_verl(d, rows): (d/'verl.jsonl').write_text(lines(dict(step=o.pop('step'), data=o) for o in rows))
def as_state(d, rows): (d/'trainer_state.json').write_text(json.dumps(dict(log_history=rows)))
def as_words(d, rows):
    (d/'wandb.jsonl').write_text(lines({k:'NaN' if v!=v else v for k,v in o.items()} for o in rows))
def as_csv(d, rows): pd.DataFrame(rows).to_csv(d/'run.csv', index=False, na_rep='nan')
def as_blank(d, rows): pd.DataFrame(rows).to_csv(d/'run.csv', index=False)
def as_parquet(d, rows):
    import pyarrow as pa, pyarrow.parquet as pq
    pq.write_table(pa.Table.from_pylist(rows), d/'run.parquet')
def as_events(d, rows):
    from torch.utils.tensorboard import SummaryWriter
    w = SummaryWriter(str(d))
    for o in rows:
        for k,v in o.items():
            if k!='step': w.add_scalar(f'train/{k}', v, o['step'])
    w.close()
def as_ours(d, rows):
    rec = Recorder(d)
    for o in rows: rec.log(o)
def as_trackio(d, rows):
    from made_histories import trackio
    named = lambda k: 'train/global_step' if k=='step' else f'train/{k}'
    trackio(d/'p.db', dict(run=[{named(k):v for k,v in o.items()} for o in rows]))

FILES = dict(verl=as_verl, state=as_state, words=as_words, csv=as_csv, blank=as_blank, parquet=as_parquet,
    events=as_events, ours=as_ours, trackio=as_trackio, openrlhf=as_csv)

@pytest.mark.parametrize('falls', [False, True])
@pytest.mark.parametrize('kind', FILES)
def test_a_number_that_is_none_is_found_in_every_file(kind, falls, tmp_path):
    if kind=='events': pytest.importorskip('tensorboard')
    FILES[kind](tmp_path, nan_run(falls, names=NAN_NAMES.get(kind, {})))
    file = [o for o in tmp_path.iterdir() if o.suffix in ('.jsonl','.csv','.db','.parquet')]
    f = diagnose(file[0] if len(file)==1 and kind!='ours' else tmp_path)[0]
    assert f.name=='not-a-number' and f.step==70
    assert f.confidence==('likely' if kind in ('ours','blank') else 'certain')   # these two leave a gap

def test_a_gap_is_no_nan(tmp_path):
    "Evaluations now and then, a loss every fifth step: files with holes in them, and nothing wrong"
    rows = [dict(step=i, reward=.3+.004*i, loss=.1 if i%5==0 else None,
        eval_reward=.3+.004*i if i%20==0 else None) for i in range(80)]
    as_blank(tmp_path, rows)
    (tmp_path/'null.jsonl').write_text(lines(rows))
    as_parquet(tmp_path, rows)
    for f in ('run.csv','null.jsonl','run.parquet'): assert diagnose(tmp_path/f).names==[]

# ---- what people paste: a console, a notebook's table

def test_an_evaluation_belongs_to_the_step_before_it(tmp_path):
    rows = [{'loss':.1, 'reward':.5, 'epoch':.1}, {'eval_reward':.4, 'eval_runtime':3., 'epoch':.1},
        {'loss':.2, 'reward':.6, 'epoch':.2}, {'train_runtime':60., 'train_loss':.15, 'epoch':.2}]
    (tmp_path/'run.log').write_text('\n'.join(map(repr, rows)))
    h = open_run(tmp_path/'run.log').history
    assert h['step'].tolist()==[1, 2] and h['eval_reward'].tolist()[0]==.4 and h['reward'].tolist()==[.5, .6]

@pytest.mark.parametrize('text,says', [('', 'is empty'), ('nothing here\nat all', 'no metrics that we know'),
    ("{'colour': 'red'}\n", 'no metrics that we know')])
def test_a_text_without_metrics_says_what_is_needed(text, says, tmp_path):
    (tmp_path/'run.log').write_text(text)
    with pytest.raises(ValueError, match=says): diagnose(tmp_path/'run.log')

# ---- pass rates that are spread

@pytest.mark.parametrize('mean,total,G', [(.17, 1.1, 8), (.5, 2., 4), (.3, .4, 16), (.9, 5., 2)])
def test_a_spread_of_pass_rates_against_a_simulation(mean, total, G):
    rng = np.random.default_rng(0)
    p = rng.beta(mean*total, (1-mean)*total, 200_000)
    k = rng.binomial(G, p)
    assert beta_dead_share(mean, total, G)==pytest.approx(((k==0)|(k==G)).mean(), abs=.005)
    assert batch_plan(G, G, pass_rates=beta_pass_rates(mean, total))['dead_share'] == pytest.approx(
        beta_dead_share(mean, total, G), abs=0.01
    )

# ---- what is a batch?

def grid():
    sizes,few = ((1, 2, 3, 4, 6), (1, 2, 3, 4, 8)),(1, 2, 3)
    for b,G,a,W,s in itertools.product(*sizes, few, few, (None, 1, 2, 3)):
        yield b,G,a,W,s

def test_legal_is_what_trl_accepts(monkeypatch):
    from trl import GRPOConfig
    now = dict(W=1)
    monkeypatch.setattr(GRPOConfig, 'world_size', property(lambda self: now['W']))
    n,legal = 0,0
    from transformers import TrainingArguments
    monkeypatch.setattr(
        TrainingArguments, '__post_init__', lambda self: None
    )  # TRL's own checks alone: the parent's take seconds for a thousand
    for b,G,a,W,s in grid():
        now['W'] = W
        plan = batch_plan(G, b, a, W, s)
        try:
            c = GRPOConfig(output_dir='x', use_cpu=True, bf16=False, report_to='none',
                           gradient_checkpointing=False, per_device_train_batch_size=b, num_generations=G,
                           gradient_accumulation_steps=a, steps_per_generation=s)
        except ValueError as e: assert not plan['legal'], (b, G, a, W, s, str(e))
        else:
            assert plan['legal'], (b, G, a, W, s, plan['problem'])
            assert (plan['completions'], plan['steps_per_generation']) == (c.generation_batch_size,
                c.steps_per_generation)
            legal += 1
        n += 1
    assert n==900 and .1<legal/n<.9

def test_groups_straddle_just_where_a_listing_shows_it():
    for b,G,W,s in itertools.product((1, 2, 3, 4), (2, 3, 4), (1, 2, 3), (1, 2, 3)):
        plan = batch_plan(G, b, 1, W, s)
        if not plan['legal']: continue
        owners = {}
        for i in range(plan['completions']): owners.setdefault(i//G, set()).add(i//(b*s))
        assert plan['groups_straddle']==any(len(o)>1 for o in owners.values()), (b, G, W, s)

def test_ratio_stays_1_just_where_trl_needs_no_old_log_probs():
    for a,s,mu in itertools.product((1, 2, 4), (1, 2, 4), (1, 2)):
        plan = batch_plan(2, 2, a, 1, s, mu)
        assert plan['ratio_stays_1']==(a%(s*mu)==0) and plan['optimizer_steps_per_generation']==s*mu/a

def test_dead_share_is_the_mean_over_prompts_and_agrees_with_all_outcomes():
    for G in (2, 3, 5):
        for p in (0., .1, .5, 1.):
            exact = sum(math.prod(p if o else 1 - p for o in r) for r in itertools.product((0, 1), repeat=G)
                        if len(set(r)) == 1)
            assert batch_plan(G, G, pass_rates=[p])['dead_share']==pytest.approx(exact)
    plan = batch_plan(8, 8, pass_rates=[0., .5, 1.], mean_length=100)
    z = (2+expected_dead_frac(.5, 8))/3
    assert (plan['dead_share'] == pytest.approx(z) and plan['replay_bound'] == pytest.approx(1 / (1 - z))
            and plan['tokens_wasted'] == pytest.approx(800 * z))
    assert batch_plan(4, 4, pass_rates=[0., 1.])['replay_bound']==math.inf

CANNOT = [(dict(num_generations=0), 'num_generations'), (dict(world_size=1.5), 'world_size'),
    (dict(steps_per_generation=0), 'steps_per_generation'), (dict(pass_rates=[-.1]), '0..1'),
    (dict(pass_rates=[]), '0..1'), (dict(pass_rates=[math.nan]), '0..1')]
@pytest.mark.parametrize('kw,says', CANNOT)
def test_numbers_that_cannot_be_are_named(kw, says):
    with pytest.raises(ValueError, match=says): batch_plan(**kw)

def test_the_command_says_the_plan(capsys):
    main('batch --world_size 2 --pass_rates 0.1 0.5'.split())
    out = capsys.readouterr().out
    assert '16 completions for 2 prompts' in out
    batch_command(8, 8, world_size=2, pass_rates=[.1, .5])
    assert capsys.readouterr().out==out

# ---- for scripts

def test_findings_as_json_and_an_exit_status_for_faults(tmp_path, capsys):
    from grpo_nb.cli import main
    for name,fault in (('all-truncated', True), ('on-policy', False), ('healthy', False)):
        (tmp_path/'history.jsonl').write_text(lines(history_rows(stored(name))))
        main(['diagnose', str(tmp_path), '--json'])
        found = json.loads(capsys.readouterr().out)
        assert [o['name'] for o in found if o['fault']]==[name]*fault
        if found: assert found[0]['rows'] and {'step'}<set(found[0]['rows'][0]) and found[0]['remedy']
        if not fault: main(['diagnose', str(tmp_path), '--strict'])
        else:
            with pytest.raises(SystemExit) as e: main(['diagnose', str(tmp_path), '--strict'])
            assert e.value.code==1
        capsys.readouterr()
    with pytest.raises(SystemExit) as e: main(['diagnose', str(tmp_path/'gone'), '--strict'])
    assert e.value.code==2   # no run is another matter than a run with a fault

# ---- stdin, and what was left out

@pytest.mark.parametrize('kind', ['jsonl','state','csv'])
def test_a_log_on_stdin_is_read(kind, monkeypatch, capsys):
    import io, sys
    from grpo_nb.cli import main
    rows = nan_run(False)
    text = dict(jsonl=lines(rows), state=json.dumps(dict(log_history=rows)),
        csv=pd.DataFrame(rows).to_csv(index=False, na_rep='nan'))[kind]
    monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(text.encode()), encoding='utf-8'))
    main(['diagnose', '-'])
    assert 'not-a-number' in capsys.readouterr().out
    monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(b''), encoding='utf-8'))
    with pytest.raises(SystemExit): main(['diagnose', '-'])
    assert 'is empty' in capsys.readouterr().err

@pytest.mark.parametrize('name', ['m.jsonl','history.jsonl','trainer_state.json'])
def test_words_for_numbers_and_half_a_line_are_one_note_each(name, tmp_path, capsys):
    rows = [dict(step=i, reward=.3+.01*i) for i in range(9)]
    rows[3]['reward'],rows[5]['step'],rows[6]['step'] = 'high','three',None
    text = json.dumps(dict(log_history=rows)) if name.endswith('.json') else lines(rows)+'{"step": 9, "rew'
    (tmp_path/name).write_text(text)
    run = open_run(tmp_path if name=='history.jsonl' else tmp_path/name)
    assert list(run.history.step)==list(range(9)) and run.history.reward.isna().sum()==1
    diagnose_command(str(tmp_path if name=='history.jsonl' else tmp_path/name))
    err = capsys.readouterr().err
    assert err.count('note: reward: 1 values')==1 and err.count('note: step: 1 values')==1
    assert ('1 lines could not be read' in err)==(name=='m.jsonl')   # a history may still be growing
