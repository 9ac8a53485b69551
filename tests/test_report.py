"The report: one run as the view with everything unfolded, several as arms with intervals over seeds"
import json, re
from html import escape
import numpy as np, pandas as pd, pytest
from scipy import stats
from grpo_nb.parts.stats import paired_difference
from grpo_nb.run.record import Recorder, group_rows
from grpo_nb.run.reading import read_run
from grpo_nb.see.view import (
    compare_arms, group_by_settings, reward_curve, write_report, _comparison_verdict)
from made_runs import make_run
from view_pages import Opened

@pytest.fixture(scope='module')
def run(tmp_path_factory): return make_run(tmp_path_factory.mktemp('r')/'run', n_steps=12, stride=4)

def test_the_page_has_verdict_curves_and_settings(run, tmp_path):
    o = Opened(write_report(run, tmp_path).read_text())
    assert o.head['verdict']['sentence'].startswith('It learned: held-out pass@1 went from')
    h = read_run(run).history
    dead,replaced = h['replay/dead'].sum(),h['replay/replaced'].sum()
    assert o.head['verdict']['groups'].startswith(f'{dead:.0f} dead, {replaced:.0f} replaced, ')
    labels = [c['label'] for c in o.head['curves'] if c.get('main')]
    assert labels==['reward, mean of the batch', 'share of living groups']
    assert dict(o.head['tables'])['Settings'] and len(o.head['samples'])==3
    assert o.head['curves'][1]['value']==pytest.approx((1-h['frac_reward_zero_std']).tolist(), abs=1e-4)

def test_a_run_in_progress_or_with_little_in_it_still_has_a_page(tmp_path):
    (tmp_path / 'a').mkdir()
    (tmp_path / 'a' / 'history.jsonl').write_bytes(b'{"step": 1, "loss": 0.1}\n{"step": 2, "lo')
    assert 'loss' in str(Opened(write_report(tmp_path/'a').read_text()).head['curves'])
    rec = Recorder(tmp_path/'b'); rec.write_groups(3, group_rows(3, ['q'], ['x','y'], [[None, None]]))
    assert write_report(tmp_path/'b').exists()
    (tmp_path/'d').mkdir()
    (tmp_path / 'd' / 'history.jsonl').write_text(
        '{"step": 1, "loss": "oh"}\n{"step": 2, "loss": null, "kl": 0.0}\nbroken\n'
    )
    assert 'line 3 is damaged' in str(Opened(write_report(tmp_path/'d').read_text()).head['notes'])

COUNTED = [('grpo_nb', '600 tokens sampled'), ('trl', '600 tokens, prompts included'), (None, '600 tokens')]
@pytest.mark.parametrize('trainer,says', COUNTED)
def test_tokens_are_called_what_they_are(trainer, says, tmp_path):
    "TRL's `num_tokens` counts prompts too."
    rec = Recorder(tmp_path, settings=dict(trainer=trainer) if trainer else {})
    for s in (1, 2): rec.log(dict(step=s, num_tokens=300.*s, frac_reward_zero_std=.5))
    assert says in Opened(write_report(tmp_path).read_text()).head['about']

# ---- several

def test_paired_differences_equal_scipys():
    rng = np.random.default_rng(0); a,b = rng.random(7),rng.random(7)
    o = paired_difference(pd.Series(dict(enumerate(b)) | {99:5.}), pd.Series(a))
    ci,m,h = stats.ttest_rel(b, a).confidence_interval(.95),o['diff'],o['diff_ci']
    assert o['n']==7 and np.allclose([m-h, m+h], [ci.low, ci.high])

@pytest.fixture(scope='module')
def many(tmp_path_factory):
    d = tmp_path_factory.mktemp('many')
    return [make_run(d/f'{m}{s}', n_steps=6, seed=s, strategy=m) for m in ('replay','keep') for s in range(3)]

def test_runs_that_differ_only_by_seed_are_one_arm(many):
    a = group_by_settings([read_run(f) for f in many])
    assert {k: sorted(r.name for r in o) for k, o in a.items()} == {
        'replay': ['replay0', 'replay1', 'replay2'],
        'plain GRPO': ['keep0', 'keep1', 'keep2'],
    }

def test_an_arm_that_differs_in_much_is_named_in_few_words():
    from types import SimpleNamespace as N
    def run(name, **args): return N(name=name, settings=dict(args=args), setting=lambda k, d=None: d)
    many = {f'option_{i}':i for i in range(1, 10)}
    odd = [run('a', learning_rate=1e-4, seed=0, **many), run('b', learning_rate=2e-4, seed=0),
        run('c', learning_rate=1e-4, seed=1, **many), run('d', learning_rate=1e-4, **many|dict(option_9=0))]
    arms = {k:[r.name for r in o] for k,o in group_by_settings(odd).items()}
    much = 'learning_rate=0.0001, option_1=1, option_2=2, 7 more settings'
    assert arms=={much:['a', 'c'], 'learning_rate=0.0002, 9 more settings':['b'], f'{much}, as d':['d']}
    few = group_by_settings([run('a', beta=.1), run('b')])       # one of few that was not recorded is named
    assert [*few]==['beta=0.1', 'beta=None']

def test_a_comparison_says_what_the_summaries_say(many, tmp_path):
    c = compare_arms(group_by_settings([read_run(f) for f in many])); o = c['plain GRPO']
    want = [json.loads((f / 'summary.json').read_text())['after']['pass@1'] for f in many
            if f.name.startswith('keep')]
    assert (np.allclose(list(o['numbers']['after'].values()), want) and o['gain']['n'] == 3
            and c['replay']['gain']['diff'] == 0)
    r = np.array([reward_curve(read_run(f))['value'] for f in many if f.name.startswith('keep')])
    assert np.allclose(o['reward']['mean'], r.mean(0)) and np.allclose(o['reward']['half'],
        stats.t.ppf(0.975, 2) * r.std(0, ddof=1) / 3**0.5)
    page = write_report(many, tmp_path/'out').read_text()
    assert (f'{np.mean(want):.1%} ± ' in page and page.count('<figure>') == 2
            and len(page) < 5e6)
    for sentence in c['replay']['verdicts']: assert f'<td>{escape(sentence)}</td>' in page   # not cut short
    link = re.search(r'<a href="([^"]+keep0[^"]*)">keep0</a>', page)[1]
    assert (tmp_path/'out'/link).exists()
    assert write_report({'ours':many[:3], 'theirs':many[3:], 'one':many[0]}, tmp_path/'o2').exists()

@pytest.mark.parametrize('gains,says', [
    ([.1, .11, .12], 'better is ahead of base: +11.0 points ± 2.5 held out, paired over 3 seeds.'),
    ([-.1, -.11, -.12], 'better is behind base: −11.0 points'),
    ([.1, -.1, .05], 'and the interval includes 0'),
    ([.1], 'Undecided between better and base: +10.0 points held out, paired over 1 seed. One seed has no'),
    ([], 'share no measured seed')])
def test_a_comparison_begins_with_who_is_ahead(gains, says):
    base = pd.Series([.5]*len(gains), dtype=float)
    gain = paired_difference(base+gains, base) if gains else dict(n=0, diff=np.nan, diff_ci=np.nan)
    assert says in _comparison_verdict('better', dict(gain=gain), 'base')

def test_text_from_anywhere_is_escaped(tmp_path, many):
    evil = '<script>alert(1)</script> $x_'
    page = write_report({evil:[many[0]], 'b':[many[1]]}, tmp_path/'x').read_text()
    assert '<script' not in page and '&lt;script' in page
