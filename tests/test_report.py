"The report: numbers by another road, escaped, self-contained, small."
import json, math, re
import numpy as np, pytest
from scipy import stats
from grpo_nb.records import Recorder, group_rows, read_run
from grpo_nb.report import *
from made_runs import make_run

@pytest.fixture(scope='module')
def run(tmp_path_factory): return make_run(tmp_path_factory.mktemp('r')/'run', n_steps=10, stride=4)

def test_the_reward_curve_is_a_mean_of_group_means_with_students_interval(run):
    c = reward_curve(read_run(run))
    for i,(s,rows) in enumerate(read_run(run).by_step.items()):
        m = np.array([np.mean(o['rewards']) for o in rows])
        lo,hi = stats.t.interval(.95, len(m)-1, m.mean(), stats.sem(m))
        assert c['step'][i]==s and np.allclose([c['mean'][i],c['low'][i],c['high'][i]], [m.mean(),lo,hi], equal_nan=True)

def test_shares_are_counts_of_the_groups(run):
    r = read_run(run); d = dead_shares(r)
    for i,(s,rows) in enumerate(r.by_step.items()):
        dead,rep = np.mean([o['dead'] for o in rows]),np.mean([o['treatment']=='replaced' for o in rows])
        assert d['step'][i]==s and np.allclose([d['alive'][i],d['replaced'][i],d['left'][i]], [1-dead,rep,dead-rep])

@pytest.mark.parametrize('unit', [1, 1/8])
def test_shares_are_the_same_for_counts_and_for_means(tmp_path, unit):
    rec = Recorder(tmp_path); rec.log({'step':1, 'frac_reward_zero_std':.5, 'replay/dead':4*unit, 'replay/replaced':3*unit})
    d = dead_shares(read_run(tmp_path)); assert np.allclose([d['alive'],d['replaced'],d['left']], [[.5],[.375],[.125]])

def test_the_page_shows_the_numbers_and_opens_alone(run):
    f = write_report(run); page = f.read_text()
    s = read_run(run).summary
    for o in (s['before'], s['after']): assert f'{o["pass@1"]:.1%}' in page and f'{o["ci"][0]:.1%}' in page
    assert '500 problems' in page and 'learning_rate' in page and s['versions']['torch'] in page and s['samples'][0]['prompt'] in page
    assert not re.findall(r'(?:src|href)="(?!#)', page.replace('href="inspector.html"', '')) and not re.findall(r'url\((?!#)', page) and '@import' not in page and '<script' not in page
    assert 'http' not in page.replace('http://www.w3.org/', '') and f.stat().st_size<5e6 and 'width=device-width' in page and 'color-scheme:light dark' in page
    names = {o.name for o in (run/'figures').iterdir()}
    assert {'reward.png','reward.svg','dead.png','age.svg','ratio.png','ess.svg'}<=names
    assert (run/'figures'/'reward.png').read_bytes()[:4]==b'\x89PNG'

def test_the_same_run_gives_the_same_bytes(run):
    a = write_report(run).read_bytes(); assert a==write_report(run).read_bytes()

def test_the_inspector_is_linked_only_where_it_stands(run):
    assert 'inspector.html' not in write_report(run).read_text()
    (run/'inspector.html').touch(); assert 'href="inspector.html"' in write_report(run).read_text(); (run/'inspector.html').unlink()

EVIL = '<script>alert(1)</script><img src=x onerror=alert(1)>"\' $x_1 & $\\frac{1} 好 🎉'
def test_text_from_anywhere_is_escaped(tmp_path):
    d = tmp_path/'r<b>&'
    rec = Recorder(d, settings={'a<script>':EVIL, 'args':dict(seed=0, name=EVIL)})
    rec.groups(1, group_rows(1, [EVIL], [EVIL]*2, [[0., 1.]])); rec.log(dict(step=1, reward=.5, loss=.1))
    rec.summary(task=EVIL, model=EVIL, method=EVIL, seed=EVIL, samples=[dict(prompt=EVIL, answer=EVIL, before=EVIL, after=EVIL)], versions={EVIL:EVIL})
    page = write_report(d).read_text()
    assert '<script' not in page and '<img' not in page and 'onerror=alert(1)&gt;' in page and '好' in page
    page = write_report({EVIL:[d], 'b':[d]}, tmp_path/EVIL[8:15]).read_text(); assert '<script' not in page and '<img' not in page

def test_a_run_in_progress_or_with_little_in_it_still_has_a_page(tmp_path):
    (tmp_path/'a').mkdir(); (tmp_path/'a'/'history.jsonl').write_bytes(b'{"step": 1, "loss": 0.1}\n{"step": 2, "lo')
    assert 'Loss' in write_report(tmp_path/'a').read_text() or 'loss' in write_report(tmp_path/'a').read_text()
    rec = Recorder(tmp_path/'b'); rec.groups(3, group_rows(3, ['q'], ['x','y'], [[None, None]]))
    assert write_report(tmp_path/'b').exists()
    (tmp_path/'c').mkdir(); (tmp_path/'c'/'history.jsonl').write_bytes(b'')
    assert write_report(tmp_path/'c').exists()
    (tmp_path/'d').mkdir(); (tmp_path/'d'/'history.jsonl').write_text('{"step": 1, "loss": "oh"}\n{"step": 2, "loss": null, "entropy": null, "kl": 0.0}\nbroken\n')
    assert 'line 3 is damaged' in write_report(tmp_path/'d').read_text()

def test_a_trl_folder_alone_has_a_report(tmp_path):
    log = [{'step':s, 'loss':0., 'reward':s/10, 'frac_reward_zero_std':.5, 'entropy':.3, 'completions/mean_length':12., 'epoch':.1} for s in range(1, 9)]+[dict(step=8, train_runtime=3.)]
    (tmp_path/'checkpoint-8').mkdir(); (tmp_path/'checkpoint-8'/'trainer_state.json').write_text(json.dumps(dict(log_history=log)))
    page = write_report(tmp_path).read_text(); assert '50% of groups dead' in page and '8 steps' in page

def test_a_reward_above_0_is_not_called_right(tmp_path):
    rec = Recorder(tmp_path)
    for s in (1, 2): rec.groups(s, group_rows(s, [f'question {s}'], ['short','longer'], [[.05, .1]]))
    page = write_report(tmp_path).read_text()
    assert 'before, reward 0.05' in page and ', right' not in page and page.count('question 1')==1==page.count('question 2')
    assert page.index('question 1')<page.index('before, reward')+200 and page.index('after, reward')<page.index('question 2')

def test_paired_differences_equal_scipys(run):
    rng = np.random.default_rng(0); a,b = rng.random(7),rng.random(7)
    m,h,n = paired(dict(enumerate(a)), dict(enumerate(b)) | {99:5.})
    ci = stats.ttest_rel(b, a).confidence_interval(.95)
    assert n==7 and np.allclose([m-h, m+h], [ci.low, ci.high])

@pytest.fixture(scope='module')
def many(tmp_path_factory):
    d = tmp_path_factory.mktemp('many')
    return [make_run(d/f'{m}{s}', n_steps=6, seed=s, method=m) for m in ('replay','keep') for s in range(3)]

def test_runs_that_differ_only_by_seed_are_one_arm(many):
    a = arms([read_run(f) for f in many])
    assert {k:sorted(r.name for r in o) for k,o in a.items()}=={'method=replay':['replay0','replay1','replay2'], 'method=keep':['keep0','keep1','keep2']}

def test_a_comparison_says_what_the_summaries_say(many, tmp_path):
    c = compare_view(arms([read_run(f) for f in many])); o = c['method=keep']
    want = [json.loads((f/'summary.json').read_text())['after']['pass@1'] for f in many if f.name.startswith('keep')]
    assert np.allclose(list(o['numbers']['after'].values()), want) and o['gain'][2]==3 and c['method=replay']['gain'] is None and np.allclose(o['gain'][0], 0)
    r = np.array([reward_curve(read_run(f))['mean'] for f in many if f.name.startswith('keep')])
    assert np.allclose(o['reward']['mean'], r.mean(0)) and np.allclose(o['reward']['half'], stats.t.ppf(.975, 2)*r.std(0, ddof=1)/3**.5)
    page = write_report(many, tmp_path/'out'); t = page.read_text()
    assert f'{np.mean(want):.1%} ± ' in t and 'method=keep' in t and (tmp_path/'out'/'figures'/'alive.svg').exists() and page.stat().st_size<5e6
    assert write_report({'ours':many[:3], 'theirs':many[3:], 'one':many[0]}, tmp_path/'o2').exists()

@pytest.mark.parametrize('trainer,says', [('grpo_nb', '600 tokens sampled'), ('trl', '600 tokens, prompts included'), ('another', '600 tokens;'), (None, '600 tokens;')])
def test_tokens_are_called_what_they_are(trainer, says, tmp_path):
    "TRL's `num_tokens` counts prompts too."
    rec = Recorder(tmp_path, settings=dict(trainer=trainer) if trainer else {})
    for s in (1, 2): rec.log(dict(step=s, num_tokens=300.*s, frac_reward_zero_std=.5))
    page = write_report(tmp_path).read_text()
    assert says in page and page.count('tokens sampled')==(trainer=='grpo_nb')

def test_a_comparison_says_what_each_arm_counted(tmp_path):
    def one(name, trainer):
        rec = Recorder(tmp_path/name, settings=dict(trainer=trainer, args=dict(seed=0))); rec.log(dict(step=1, num_tokens=600., reward=.5))
        return tmp_path/name
    runs = dict(a=one('a', 'grpo_nb'), b=one('b', 'trl'))
    same = write_report(dict(a=runs['a'], a2=one('c', 'grpo_nb')), tmp_path/'o1').read_text(); assert '>tokens sampled</th>' in same and '>600</td>' in same
    both = write_report(runs, tmp_path/'o2').read_text(); assert '>tokens</th>' in both and '>600 sampled</td>' in both and '>600 prompts included</td>' in both
    mixed = write_report(dict(all=list(runs.values()), a=runs['a']), tmp_path/'o3').read_text(); assert '>600 sampled or tokens, prompts included<' in mixed

def test_bad_calls_are_refused_in_words(tmp_path, run):
    with pytest.raises(ValueError, match='no runs'): write_report([])
    with pytest.raises(ValueError, match='folder of its own'): write_report([run, run])
    with pytest.raises(ValueError, match='no folder'): write_report(tmp_path/'none')
