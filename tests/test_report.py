"The report: a run as the view with everything unfolded"
import pytest
from grpo_nb.run.record import Recorder, group_rows
from grpo_nb.run.reading import read_run
from grpo_nb.see.view import write_report
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
