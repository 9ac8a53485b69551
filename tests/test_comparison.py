"A comparison over seeds: who is run, what is kept, and how sure the difference is"
import json
import pandas as pd, pytest, torch
from scipy.stats import sem, t, ttest_rel
import grpo_nb.research.comparison as c
from grpo_nb.replay import Replay

AREA = {('a', 0):.1, ('a', 1):.2, ('a', 2):.4, ('b', 0):.3, ('b', 1):.35, ('b', 2):.7}

@pytest.fixture
def ran(monkeypatch):
    "Runs that cost nothing; a list of those that were made"
    made = []
    def run(settings, seed, task, **how):
        made.append((settings['way'], seed, how))
        return dict(area=AREA[settings['way'], seed], curve='[]')
    monkeypatch.setattr(c, 'run_seed', run)
    return made

WAYS = dict(a=dict(way='a'), b=lambda seed: dict(way='b', at=seed))

@pytest.mark.filterwarnings('error')
def test_every_way_is_run_with_every_seed_once_and_goes_on_where_it_stopped(ran, tmp_path):
    c.compare_seeds(dict(a=WAYS['a']), 2, tmp_path/'t.csv', points=2)
    df = c.compare_seeds(WAYS, 3, tmp_path/'t.csv', points=2)
    assert ran==[(a, s, dict(points=2)) for a,s in (('a',0),('a',1),('b',0),('b',1),('a',2),('b',2))]
    assert dict(zip(zip(df.arm, df.seed), df.area))==AREA and (df.error=='').all()
    assert len(c.compare_seeds(WAYS, 3, tmp_path/'t.csv', points=2))==6==len(ran)

def test_a_table_is_of_the_same_task_and_settings(ran, tmp_path):
    ways,t = dict(a=dict(way='a', strategy=Replay(age_limit=3))),tmp_path/'t.csv'
    c.compare_seeds(ways, 1, t)
    c.compare_seeds(dict(a=dict(way='a', strategy=Replay(age_limit=3))), 1, t)
    assert len(ran)==1
    assert list(c.compare_seeds(ways, 1, t, task='sums').regime)==['spell_backward','sums'] and len(ran)==2
    for other,more in ((ways, dict(points=3)), (dict(a=dict(way='a')), {}),
            (dict(a=dict(way='a', strategy=Replay(force_ratio_one=True))), {})):
        with pytest.raises(ValueError, match="t.csv has 'a', seed 0, made with .*give another path"):
            c.compare_seeds(other, 1, t, **more)
    assert len(ran)==2

def test_a_table_survives_a_write_that_ends_in_the_middle(ran, tmp_path, monkeypatch):
    c.compare_seeds(dict(a=WAYS['a']), 1, tmp_path/'t.csv')
    before,write = (tmp_path/'t.csv').read_text(),pd.DataFrame.to_csv
    def half(self, f, **kw):
        write(self[:0], f, **kw)
        raise OSError('no space left')
    monkeypatch.setattr(pd.DataFrame, 'to_csv', half)
    with pytest.raises(OSError): c.compare_seeds(dict(a=WAYS['a']), 3, tmp_path/'t.csv')
    assert (tmp_path/'t.csv').read_text()==before

def test_a_table_read_back_is_compared_as_it_was_written(ran, tmp_path):
    df = c.compare_seeds(WAYS, 3, tmp_path/'t.csv')
    failed = pd.concat([df, df[-1:].assign(arm='c', error='stopped')])
    failed.to_csv(tmp_path/'failed.csv', index=False)
    df.drop(columns='error').to_csv(tmp_path/'own.csv', index=False)   # of a user's own loop
    want = c.compare(df, 'spell_backward', 'a', 'area')
    for name in ('t.csv', 'failed.csv', 'own.csv'):   # what is empty is read as nan
        back = c.compare(pd.read_csv(tmp_path/name), 'spell_backward', 'a', 'area')
        pd.testing.assert_frame_equal(back, want)

def test_means_and_differences_are_those_of_scipy(ran):
    result = c.compare(c.compare_seeds(WAYS, 3), 'spell_backward', 'a', 'area')
    x = {w:[AREA[w, s] for s in range(3)] for w in 'ab'}
    d = [q-p for p,q in zip(x['a'], x['b'])]
    far = t.ppf(.975, 2)
    assert result['mean']['b']==pytest.approx(sum(x['b'])/3)
    assert result.ci['b']==pytest.approx(far*sem(x['b']))
    assert result['diff']['b']==pytest.approx(sum(d)/3) and result.diff_ci['b']==pytest.approx(far*sem(d))
    assert result.p['b']==pytest.approx(ttest_rel(x['b'], x['a']).pvalue)
    assert result.index[0]=='b'   # the best comes first
    with pytest.raises(ValueError, match="no runs of the baseline 'nnoe'; there are .'a', 'b'"):
        c.compare(c.compare_seeds(WAYS, 3), 'spell_backward', 'nnoe', 'area')

def test_two_rows_of_one_seed_are_no_comparison(ran):
    df = c.compare_seeds(WAYS, 2)
    with pytest.raises(ValueError, match='several rows for a seed'):
        c.compare(pd.concat([df, df[:1]]), 'spell_backward', 'a', 'area')

def test_a_run_begins_and_ends_on_its_curve_and_the_area_is_its_mean():
    torch.set_num_threads(2)   # which a run changes for itself alone
    row = c.run_seed(dict(generation_batch_size=16, num_generations=4), 3, max_sampled_tokens=500,
        n_problems=6, points=2, min_word_len=4, max_word_len=5)
    curve = json.loads(row['curve'])
    assert curve[0]['tokens']==0 and curve[-1]['tokens']==row['tokens']>=500 and len(curve)==3
    assert (row['pass1_before'], row['pass1'])==(curve[0]['pass1'], curve[-1]['pass1'])
    mean = sum((b['tokens']-a['tokens'])*(a['pass1']+b['pass1'])/2 for a,b in zip(curve, curve[1:]))
    assert row['area']==pytest.approx(mean/row['tokens'], abs=1e-5)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert threads==2
