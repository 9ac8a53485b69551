"What the tests of the studies share: starts that take no lesson, and rows without their clock"
import pytest, torch
import grpo_nb.studies.stacked as sr
from grpo_nb.studies.stacked import END, FIRST, LETTERS, PAD, SHAPE, to_tensors
from notebook_code import defined_in

new_weights = defined_in('studies/stacked', 'grpo_nb.studies.stacked').new_weights

@pytest.fixture(autouse=True)
def one_thread():
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n)

@pytest.fixture
def untaught(monkeypatch):
    "Starts that take no lesson, one for each family, and answers some of which are right"
    d = to_tensors([(f'{a}+{b}', '', str(a+b)) for a in range(10) for b in range(10)], 'adding')
    def start(family, size): return dict(theta=4*new_weights(SHAPE, len(family)), train=d, test=d)
    monkeypatch.setattr(sr, 'start', start)
    kind = sr.Runs.__init__
    monkeypatch.setattr(sr.Runs, '__init__', lambda self, *a, **k: kind(self, *a, n_train=60, n_test=8, **k))
    monkeypatch.setattr(sr, 'is_right', lambda ids, answer: (ids==PAD).sum(-1)>2)   # right is what ends early

def spelled(ids):
    "Ids as letters, $ for the end token"
    return ''.join('$' if i==END else LETTERS[i-FIRST] for i in ids if i!=PAD)

def bare(rows): return [{k:v for k,v in o.items() if k!='cpu_s'} for o in rows]
