"The paragraph on reuse: its table against the study's rows, g by hand in every record, a line in a verdict"
import csv, json, math
from collections import defaultdict
from importlib.resources import files
from pathlib import Path
import numpy as np
import pytest
from grpo_nb.see.findings import Look
from grpo_nb.see.readers import open_run
from grpo_nb.see.verdict import best_reuse, gain_at, reuse, sampling_share, verdict
from grpo_nb.cli import diagnose as diagnose_command
from grpo_nb.see.readers import history_rows
from stored_runs import HEALTHY, stored
from reuse_table import AT, table

def shipped():
    text = (files('grpo_nb')/'assets/doctor/reuse.csv').read_text()
    return list(csv.DictReader(text.splitlines()))

def test_the_shipped_table_is_that_of_the_rows():
    some = [o for o in shipped() if float(o['g']) in (.8, 1.)]
    got = table((.8, 1.)).to_dict('records')
    assert len(some)==len(got)==32
    numbers = 'gain','half','regret'
    for a,b in zip(some, got):
        assert (float(a['g']), a['rate'], a['way'])==(b['g'], b['rate'], b['way'])
        assert [float(a[k]) for k in numbers]==pytest.approx([b[k] for k in numbers], abs=1e-9)

UPDATES = dict(plain=1, replay_default=1, mu2=2, mu3=3, stored3=3, mu6=6, stored6=6)

@pytest.fixture(scope='module')
def counted():
    "g -> cell -> arm -> mean over five rates and eight seeds: csv, json and trapezes"
    runs = defaultdict(dict)
    for o in csv.DictReader((AT/'nbs/results/reuse_study.csv').open()):
        if o['error']=='' and o['arm'] in UPDATES:
            runs[o['regime'],o['arm'],float(o['learning_rate'])][o['seed']] = json.loads(o['curve'])
    def score(curve, until):
        x,y = zip(*((p['tokens'], p['pass1']) for p in curve))
        at = [t for t in x if t<until]+[until]
        v = np.interp(at, x, y)
        return sum((b-a)*(p+q)/2 for a,b,p,q in zip(at, at[1:], v, v[1:]))/until
    def mean(o, share=None):
        budget = 60_000 if min(c[-1]['tokens'] for c in o.values())>50_000 else 40_000
        return np.mean([score(c, c[-1]['tokens'] if share is None else budget*share) for c in o.values()])
    five = {}
    for c in sorted({k[0] for k in runs}):
        rates = sorted({l for r,a,l in runs if r==c and a=='plain' and len(runs[r,a,l])==8})
        plain = {l:mean(runs[c,'plain',l]) for l in rates}
        best = max(plain, key=plain.get)
        five[c] = [l for l in rates if best/4.5<l<best*4.5]
    def of(c, a, g):
        cost = g+(1-g)*UPDATES[a]
        return np.mean([mean(runs[c,a,l], 1/cost if cost>1 else None) for l in five[c]])
    return lambda g: {c:{a:of(c, a, g) for a in UPDATES} for c in five}

def test_one_of_its_gains_by_other_code(counted):
    "Stored groups against plain GRPO at g = .8, mean over five rates, with Student's 2.3646"
    gain = defaultdict(list)
    for c,o in counted(.8).items(): gain[c.removesuffix('_sparse')].append(o['stored3']-o['plain'])
    task = [np.mean(v) for v in gain.values()]
    half = 2.3646*np.std(task, ddof=1)/len(task)**.5
    assert len(task)==8
    assert gain_at(.8, 'untuned')['stored 2'][:2]==pytest.approx((np.mean(task), half), abs=.0015)

@pytest.mark.parametrize('g', [.5, .75, .9])
def test_its_regrets_by_other_code(counted, g):
    "What the best of seven ways has more, mean over 16 cells; the rule's choice from the seven other tasks"
    cells,at = counted(g),gain_at(g, 'untuned')
    name = dict(plain='none', mu2='passes 2', stored3='stored 2')
    lost = {n:np.mean([max(o.values())-o[a] for o in cells.values()]) for a,n in name.items()}
    def best_elsewhere(c):
        others = [o for k,o in cells.items() if k.split('_')[0]!=c.split('_')[0]]
        return max(UPDATES, key=lambda a: np.mean([o[a] for o in others]))
    lost['this rule'] = np.mean([max(o.values())-o[best_elsewhere(c)] for c,o in cells.items()])
    assert {k:at[k][2] for k in lost}==pytest.approx(lost, abs=.0015) and len(cells)==16

def test_the_page_of_the_study_shows_the_regrets_that_the_doctor_tells():
    page = json.loads((AT/'nbs/research/reuse_results.ipynb').read_text())
    shown = next(o for c in page['cells'] if 'study_gains()' in ''.join(c['source']) for o in c['outputs'])
    told = ''.join(shown['data']['text/plain'])
    for g in (.5, .75, .9):
        for rate in ('untuned','tuned'):
            row = [f"{gain_at(g, rate)[k][2]:.3f}" for k in ('this rule','stored 2','none','passes 2')]
            line = next(o for o in told.split('\n') if o.startswith(f'{rate}, g = {g:g}'))
            assert line.split()[-4:]==row

def test_what_the_page_of_the_study_says_stands_in_it():
    page = (AT/'nbs/research/reuse_results.ipynb').read_text()
    for rate,way,words in (('untuned','default','+0.065 ± 0.019'), ('tuned','default','+0.019 ± 0.015'),
            ('untuned','stored 2','+0.099 ± 0.035'), ('tuned','passes 3','+0.035 ± 0.014')):
        assert '{:+.3f} ± {:.3f}'.format(*gain_at(1., rate)[way][:2])==words and words in page

@pytest.mark.parametrize('g,untuned,tuned', [(.3, 'default','default'), (.75, 'default','default'),
    (.9, 'stored 2','default'), (.95, 'stored 2','passes 3'), (1., 'stored 2','passes 6')])
def test_the_rule_follows_the_share_of_sampling(g, untuned, tuned):
    assert best_reuse(gain_at(g, 'untuned'))==untuned and best_reuse(gain_at(g, 'tuned'), True)==tuned

ROW = dict(reward=.4, frac_reward_zero_std=.3)
def run(n=8, **more): return [ROW|dict(step=i)|more for i in range(n)]

def test_g_by_hand_in_each_kind_of_record():
    "Ours is timed by batch, TRL's by step; passes and stored groups are taken out"
    trl = lambda **k: dict(trainer='trl', args=dict(steps_per_generation=2, gradient_accumulation_steps=1)|k)
    ours = lambda **k: dict(trainer='grpo_nb', args=dict(steps_per_generation=4)|k)
    of = lambda s, **k: sampling_share(Look(run(**k), settings=s))
    assert of(ours(), generation_time=3., step_time=4.)==pytest.approx(.75)
    assert of(ours(num_iterations=2), generation_time=3., step_time=5.)==pytest.approx(.75)
    assert of(trl(), generation_time=3., step_time=2.)==pytest.approx(.75)
    assert of(trl(replay_stored_per_fresh=2), generation_time=3., step_time=3.)==pytest.approx(.75)
    assert of({}, generation_time=3., batch_time=4.)==pytest.approx(.75)
    assert of({}, generation_time=3., step_time=4.) is None   # how many steps a batch has, nobody says
    assert of(ours(), step_time=4.) is None and of(ours(), generation_time=5., step_time=4.) is None

@pytest.mark.parametrize('sampled,batch', [('timing_s/gen','timing_s/step'),
    ('timing/train/generation','timing/train/total_step_time'), ('perf/rollout_time','perf/step_time')])
def test_logs_of_others_are_read(sampled, batch, tmp_path, capsys):
    rows = [{'step':i, 'critic/rewards/mean':.3+.02*i, sampled:27., batch:30.} for i in range(12)]
    (tmp_path/'m.jsonl').write_text(''.join(json.dumps(o)+'\n' for o in rows))
    assert sampling_share(Look(history_rows(open_run(tmp_path/'m.jsonl'))))==pytest.approx(.9)
    diagnose_command(str(tmp_path/'m.jsonl'))
    out = capsys.readouterr().out
    assert 'reuse: sampling is 90% of a plain step' in out and 'replay_stored_per_fresh=2' in out
    assert '+0.065 ± 0.019' in out and 'how sure' in out
    regrets = [o for o in out.splitlines() if 'regret' in o]
    told = '0.005 by this rule, 0.005 always a buffer, 0.082 never, 0.101 two'
    assert len(regrets)==1 and told in regrets[0]

def test_every_verdict_has_one_line_on_it():
    for name in HEALTHY[:3]:
        r = stored(name)
        v = verdict(history_rows(r), groups=r.rows, settings=r.settings)
        assert str(v).count('Reuse: sampling is ')==1 and v.reuse in str(v)
    bare = str(verdict(run()))
    assert 'Reuse: no seconds of sampling' in bare and 'no word on how hard' in bare
    assert 'since few are dead' in str(verdict([o|dict(frac_reward_zero_std=0.) for o in run()]))
    assert 'Reuse' not in str(verdict([]))

def test_dead_groups_by_kind_and_coverage_are_told():
    groups = [dict(step=s, group=g, rewards=[1., float(s>5), 0.] if g else [0.]*3, dead=g==0, why='all-wrong',
        completions=['a','b','c'] if s%2 else ['a']*3) for s in range(12) for g in range(2)]
    told = reuse(run(12), groups)
    assert '6 one text, 6 all wrong' in told and 'a right answer in 50% of the groups' in told
