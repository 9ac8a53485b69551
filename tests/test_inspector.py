"The buffer's second life by another road, and what the inspector opens"
import json, random, statistics
import pytest, torch
from grpo_nb.inspector import *
from grpo_nb.inspector import WHAT_IFS
from grpo_nb.run.record import Recorder, group_rows
from grpo_nb.run.reading import read_run
from grpo_nb.see.readers import open_run
from grpo_nb.see.view import stored_groups
from grpo_nb.parts.datasets import chain_sum
from grpo_nb.replay import Replay
from grpo_nb.tiny_qwen import load_model
from grpo_nb.trainer import TrainConfig, train
from made_runs import make_run
import trl_tiny as T
from view_pages import Opened

@pytest.fixture(scope='module')
def run(tmp_path_factory): return read_run(make_run(tmp_path_factory.mktemp('i')/'run', n_steps=12, stride=4))

def came(run): return {(o['step'],o['group']):o['replacement'] for o in run.rows if o['replacement']}

def test_at_the_runs_own_settings_the_second_life_is_the_first(run):
    recorded,again = came(run),came(what_if(run, buffer_size=16))
    assert len(recorded)>20 and set(recorded)==set(again)
    for k,n in recorded.items():
        for f in ('id','step','age','uses','score','draw_prob','prompt','completions','rewards'):
            assert again[k][f]==pytest.approx(n[f])

# ---- runs of both trainers, with every rule that a buffer has: with nothing changed, nothing changes

RULES = dict(plain={}, recency=dict(replay_priority='recency'), uniform=dict(replay_priority='uniform'),
    uses=dict(replay_max_uses=1), age=dict(replay_age_limit=2), beside=dict(replay_stored_per_fresh=1),
    beside_uses=dict(replay_stored_per_fresh=3, replay_max_uses=2, replay_priority='uniform', seed=5))
BY_HAND = dict(decay=dict(age_decay=1.5), own_prompt=dict(same_prompt_first=True), seed=dict(seed=3),
    small=dict(buffer_size=3, priority='recency', stored_per_fresh=1), ratio_one=dict(force_ratio_one=True))

def paid(completion_ids, i, **kw):
    return [float(sum(c)%3)/2 if k%3 else 0. for k,c in zip(i, completion_ids)]

@pytest.mark.parametrize('name', [*RULES, *BY_HAND])
def test_a_run_of_the_course_is_filled_as_it_was(name, tmp_path):
    own = BY_HAND.get(name)
    kw = RULES.get(name, {})
    if own: kw = dict(strategy=Replay(**dict(buffer_size=12)|own),
        replay_stored_per_fresh=own.get('stored_per_fresh', 0))
    model,tok = load_model('tiny')
    data = [dict(o, i=i) for i,o in enumerate(chain_sum(12 if name=='own_prompt' else 40, 0))]
    train(model, tok, data, paid, TrainConfig(**dict(output_dir=tmp_path/'r', num_generations=4,
        generation_batch_size=32, steps_per_generation=1, max_steps=8, max_completion_length=6,
        disable_tqdm=True, replay_buffer_size=16)|kw), print_verdict=False)
    how = 'without correction' if name=='ratio_one' else 'with the ratio'
    assert_filled_as_it_was(read_run(tmp_path/'r'), how)

@pytest.mark.parametrize('name', [k for k in RULES if k!='beside_uses'])
def test_a_run_on_trl_is_filled_as_it_was(name, tmp_path):
    scripted = T.Scripted([T.LIVE if i%3 else T.DEAD for i in range(80)], 4)
    t = T.trainer(scripted, per_device_train_batch_size=16, max_steps=8, output_dir=str(tmp_path/'r'),
        replay_buffer_size=5, **RULES[name])
    t.train()
    assert_filled_as_it_was(read_run(tmp_path/'r'))

def assert_filled_as_it_was(run, how='with the ratio'):
    recorded,again = came(run),came(what_if(run))
    assert len(recorded)>=6 and {k:(o['step'], o['prompt_key'], o['uses']) for k,o in recorded.items()}=={
        k:(o['step'], o['prompt_key'], o['uses']) for k,o in again.items()}
    for k,o in recorded.items(): assert again[k]['draw_prob']==pytest.approx(o['draw_prob'], rel=1e-4)
    o = Opened(inspector_html(run))
    assert len(o.head['versions'])==len(WHAT_IFS)+1 and not any('what-if' in n for n in o.head['notes'])
    assert how in o.head['correction']

def test_a_record_that_lacks_what_its_buffer_saw_says_so_and_an_unknown_priority_runs_no_file(tmp_path):
    run = read_run(make_run(tmp_path/'r', n_steps=12))
    run.settings['args']['seed'] = 99
    assert 'what-ifs are near misses: with nothing changed' in Opened(inspector_html(run)).head['notes'][-1]
    (tmp_path/'evil.py').write_text('raise SystemExit("ran")')
    run.settings['args']['replay_priority'] = f'{tmp_path}/evil.py:own'
    with pytest.raises(ValueError, match='is not known here: register it first'): what_if(run)
    o = Opened(inspector_html(run))
    assert len(o.head['versions'])==1 and o.head['notes'][-1].startswith('no what-if: ')

@pytest.mark.parametrize('size', [0, 1, 5, 64])
def test_the_buffer_holds_the_best_groups_seen(run, size):
    "By a plain loop: after each step the best `size`, newest first among equals"
    other = what_if(run, buffer_size=size)
    stored,_ = stored_groups(other.by_step, {s:i for i,s in enumerate(run.steps)})
    seen = []
    for s,(step,rows) in enumerate(run.by_step.items()):
        seen += [(o['score'], step, o['group']) for o in rows if max(o['rewards'])-min(o['rewards'])>1e-6]
        best = {o[1:] for o in sorted(seen, reverse=True)[:size]}
        assert {
            (o['step'], o['at'][1]) for o in stored if o['at'][0] <= s and (o['out'] is None or o['out'] > s)
        } == best

@pytest.mark.parametrize('limit', [0, 4, 12])
def test_nothing_older_than_the_limit_comes_in(run, limit):
    new = came(what_if(run, age_limit=limit))
    assert all(n['age']<=limit and n['age']==k[0]-n['step'] for k,n in new.items())
    assert (len(new)==0)==(limit==0)

def test_tolerance_decides_who_is_dead(tmp_path):
    r = torch.tensor([[0., .05], [0., 1.], [.1+8e-9, .1], [1., 1.], [0., 0.], [.5, .5]])
    Recorder(tmp_path).write_groups(1, group_rows(1, list('abcdef'), ['x'] * 12, r,
                                            advantages_before=r - r.mean(1, keepdim=True)))
    run = read_run(tmp_path)
    why = lambda t: [o['dead_reason'] for o in what_if(run, tolerance=t).rows]
    assert why(None)==[None, None, 'float-noise', 'all-right', 'all-wrong', 'equal']
    assert (why(0.06)[0] == 'within-tolerance' and why(0.06)[1] is None
            and why(1.0)[1] == 'within-tolerance' and why(0.0)[2] is None)

@pytest.mark.parametrize('seed', range(24))
def test_a_tolerance_is_asked_of_the_sum_of_rewards_or_of_each(seed, tmp_path):
    rng = random.Random(seed)
    by = [[[rng.choice([0., .5, 1.]) for _ in range(3)] for _ in range(6)] for _ in range(2)]
    for b in range(2): by[1][b] = [1-x for x in by[0][b]]   # their sum has no spread
    how,weights = rng.choice([None,'sum_then_normalize','normalize_then_sum']),rng.choice([[1., 1.], [1.,
        0.], [1., -1.]])
    total = [[sum(w*x for w,x in zip(weights, o)) for o in zip(*g)] for g in zip(*by)]
    args = dict(reward_weights=weights)|(dict(multi_objective_aggregation=how) if how else {})
    rec = Recorder(tmp_path, settings=dict(args=args))
    rec.write_groups(1, group_rows(1, list('abcdef'), ['x']*18, total, rewards_by_func=dict(f=by[0], g=by[1]),
        advantages_before=[[0.]*3]*6))
    def spread(x): return max(x)-min(x)
    for tolerance in (.1, .5, .7):
        each = [[g for w,g in zip(weights, o) if w] for o in zip(*by)]
        want = [all(spread(g)<=tolerance for g in o) for o in each] if how=='normalize_then_sum' else \
            [spread(o)<=tolerance for o in total]
        assert [o['dead'] for o in what_if(tmp_path, tolerance=tolerance).rows]==want

def test_a_what_if_keeps_the_reasons_on_the_files_own_scale(tmp_path):
    "Rewards of -1 and 2 are wrong and right there, so they are in a what-if"
    rows = [dict(prompt=p, completion=f'{i}', reward=r, advantage=r-sum(o)/2)
        for p,o in dict(a=(-1., -1.), b=(2., 2.), c=(-1., 2.), d=(1.9, 2.)).items() for i,r in enumerate(o)]
    (tmp_path/'t.jsonl').write_text(''.join(json.dumps(o)+'\n' for o in rows))
    run = open_run(tmp_path/'t.jsonl')
    first = [o['dead_reason'] for o in run.rows]
    assert first==['all-wrong', 'all-right', None, None]
    assert [o['dead_reason'] for o in what_if(run, tolerance=.2).rows]==[*first[:3], 'within-tolerance']

def test_rollouts_of_another_tool_without_advantages_have_what_ifs_too(tmp_path):
    "One group a step, of two sizes: scored by the advantages that their rewards give"
    rewards = [(0, 1, 0, 0), (1, 1, 1), (0, 3, 0), (0, 0, 0, 0), (2, 2.05, 2)]
    rows = [dict(step=s, prompt=f'{s}', completion=f'{i}', reward=float(x))
        for s,r in enumerate(rewards) for i,x in enumerate(r)]
    (tmp_path/'t.jsonl').write_text(''.join(json.dumps(o)+'\n' for o in rows))
    run = what_if(tmp_path/'t.jsonl', buffer_size=4)
    def score(r):
        std = statistics.stdev(r)
        return sum(abs(x-sum(r)/len(r)) for x in r)/(std+1e-4)*std
    want = [score(r) if len({*r})>1 else 0. for r in rewards]
    assert [o['score'] for o in run.rows]==pytest.approx(want, abs=1e-4)
    assert {k:o['step'] for k,o in came(run).items()}.keys()=={(1, 0), (3, 0)} and came(run)[1, 0]['step']==0
    assert came(run)[1, 0]['rewards']==[0., 1., 0., 0.] and came(run)[3, 0]['step'] in (0, 2)
    assert (4, 0) in came(what_if(tmp_path/'t.jsonl', buffer_size=4, tolerance=.1))

def test_without_replay_none_comes_in_and_the_record_stays_as_it_was(run):
    before = json.dumps(run.rows)
    assert came(what_if(run, buffer_size=0))=={} and json.dumps(run.rows)==before

def test_bad_calls_are_refused_in_words(run, tmp_path):
    Recorder(tmp_path).log(dict(step=1, loss=0.))
    for f in (inspect_run, inspector_html):
        with pytest.raises(ValueError, match='no groups to look at'): f(tmp_path)
    with pytest.raises(ValueError, match='no folder'): inspect_run(tmp_path/'none')
    assert not (tmp_path/'none').exists()

def test_the_page_offers_the_what_ifs(run, tmp_path):
    o = Opened(inspector_html(run))
    assert [v['name'] for v in o.head['versions']]==['as the run did it', *WHAT_IFS]
    for i,kw in enumerate(WHAT_IFS.values(), 1):
        other = came(what_if(run, **kw))
        assert int((o.by(i)>=0).sum())==len(other)
    assert write_inspector(run.folder, tmp_path)==tmp_path/'inspector.html'

def test_a_group_brings_the_advantages_that_its_record_has(tmp_path):
    rows = [dict(step=1, group=0, prompt='q', completions=['a','b'], rewards=[1., 0.], advantages=[.7, -.7]),
        dict(step=2, group=0, prompt='r', completions=['a','b'], rewards=[0., 0.], advantages=[0., 0.])]
    (tmp_path/'groups.jsonl').write_text(''.join(json.dumps(o)+'\n' for o in rows))
    new = came(what_if(tmp_path, buffer_size=4))
    assert [*new]==[(2, 0)] and new[2, 0]['advantages']==[.7, -.7]

def test_a_group_that_is_too_old_takes_no_place_from_a_younger_one(tmp_path):
    "It would teach more, and is over the age limit when the younger one comes"
    rewards = {0:(0, 4), 5:(0, 1), 6:(1, 1)}
    rows = [dict(step=s, prompt=f'{s}', completion=f'{i}', reward=float(x))
        for s,r in rewards.items() for i,x in enumerate(r)]
    (tmp_path/'t.jsonl').write_text(''.join(json.dumps(o)+'\n' for o in rows))
    def at_the_end(limit):
        run = what_if(tmp_path/'t.jsonl', buffer_size=1, age_limit=limit)
        return came(run)[6, 0]['step']
    assert (at_the_end(2), at_the_end(8))==(5, 0)
