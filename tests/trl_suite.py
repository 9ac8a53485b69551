"""TRL's own tests with our trainer in the place of theirs, beside the same tests as they are.

    git clone --depth 1 --branch v1.16.0 https://github.com/huggingface/trl
    python tests/trl_suite.py trl/tests/test_grpo_trainer.py [--standins FOLDER] [--csv FILE --of COMMIT]
        [--steps 10] [--limit 120] [-k "not VLM"] [other options of pytest]

Both runs are printed, and each test whose outcome differs. They use the TRL that is installed, also where the
tests come with another one. The tests fetch small models from the hub; with `--standins` they find ours of
`trl_standins.py` in that folder instead, and nothing is fetched. They ask nothing of replay; what they show
is that everything of `GRPOTrainer` still works. `--csv` writes a row per test, with the versions;
tests that the file already holds are replaced and the others stay, so that the suite can run in parts.
"""
import argparse, csv, os, signal, subprocess, sys, tempfile
import xml.etree.ElementTree as ET
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
import pytest

def pytest_configure(config):
    "As a plugin of pytest: the TRL that is installed, and with TRL_SUITE=ours our classes in it."
    import trl
    import_module('trl.import_utils').__getattr__ = unknown
    if steps := os.environ.get('TRL_SUITE_STEPS'): cut_short(int(steps))
    if os.environ.get('TRL_SUITE')!='ours': return
    from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferConfig, GRPOWithReplayBufferTrainer
    trl.GRPOTrainer,trl.GRPOConfig = GRPOWithReplayBufferTrainer,GRPOWithReplayBufferConfig

def cut_short(steps):
    "Where a test sets no `max_steps`, training ends after so many."
    from transformers import Trainer
    whole = Trainer.train
    def train(self, *args, **kwargs):
        if self.args.max_steps<0: self.args.max_steps = steps
        return whole(self, *args, **kwargs)
    Trainer.train = train

@contextmanager
def processor_time(seconds):
    "What runs inside fails after so many seconds of processor time; 0 is no limit."
    def over(*_): pytest.fail(f'took more than {seconds} s of processor time')
    old = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try: yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with processor_time(float(os.environ.get('TRL_SUITE_LIMIT', 0))): return (yield)

def unknown(name):
    "Tests of another version may ask TRL whether a package is there that it no longer knows: skip those."
    if name.startswith('is_') and name.endswith('_available'): return lambda: False
    raise AttributeError(name)

def outcomes(path, options, ours, cwd=None, steps=None, limit=None):
    "{test: (passed, failed or skipped, first line of what it said)} of TRL's file, run inside `cwd`."
    here = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as d:
        command = [sys.executable, '-m', 'pytest', '-q', str(Path(path).resolve()), '-p', 'trl_suite',
            f'--junitxml={d}/out.xml', *options]
        env = os.environ|dict(TRL_SUITE='ours' if ours else 'stock', PYTHONPATH=os.pathsep.join([str(here),
            str(here.parent), os.environ.get('PYTHONPATH', '')]))
        if cwd: env |= dict(HF_HUB_OFFLINE='1')
        if steps: env |= dict(TRL_SUITE_STEPS=str(steps))
        if limit: env |= dict(TRL_SUITE_LIMIT=str(limit))
        r = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True)
        if not Path(f'{d}/out.xml').exists():
            raise SystemExit(f'pytest wrote no result: {(r.stdout+r.stderr)[-2000:]}')
        cases = ET.parse(f'{d}/out.xml').getroot().iter('testcase')
        return {f"{o.get('classname', '').split('.')[-1]}::{o.get('name')}":fate(o) for o in cases}

def fate(case):
    "What became of a test, and the first line of what it said, from pytest's record."
    for o in case:
        what = dict(failure='failed', error='failed', skipped='skipped').get(o.tag)
        if what: return what,(o.get('message') or '').split('\n')[0]
    return 'passed',''

def write(out, of, stock, ours):
    """A row per test: what became of it with either, what was said unless both passed (ours first), and the
    versions. Rows of other tests stay as they are."""
    used = dict(tests_of=of, **{o:version(o) for o in ('trl','transformers','torch')})
    with open(out if Path(out).exists() else os.devnull, encoding='utf-8', newline='') as f:
        rows = {o['test']:o for o in csv.DictReader(f)}
    for k,(what,its) in stock.items():
        mine,said = ours.get(k, ('missing',''))
        rows[k] = dict(test=k, stock=what, ours=mine, said=(said or its)[:200], **used)
    with open(out, 'w', encoding='utf-8', newline='') as f:
        w = csv.DictWriter(f, ['test','stock','ours','said',*used], lineterminator='\n')
        w.writeheader()
        w.writerows(rows.values())

def main(path, *options, standins=None, out=None, of='', steps=None, limit=None):
    if standins:
        from trl_standins import make
        standins = make(standins)
    stock,ours = (outcomes(path, options, o, standins, steps, limit) for o in (False, True))
    def count(o):
        all_of = [what for what,_ in o.values()]
        return ', '.join(f'{all_of.count(k)} {k}' for k in ('passed','failed','skipped'))
    print(f'trl {version("trl")}: {len(stock)} tests. GRPOTrainer: {count(stock)}. '
        f'GRPOWithReplayBufferTrainer: {count(ours)}.')
    for k,(what,said) in stock.items():
        mine,my = ours.get(k, ('missing',''))
        if what!=mine: print(f'  {k}: {what} with theirs, {mine} with ours: {my or said}')
    if out: write(out, of, stock, ours)
    return stock,ours

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('path', help="TRL's file of tests")
    p.add_argument('--standins', help='folder of models and data to use instead of the hub, made if need be')
    p.add_argument('--csv', help='file to write a row per test into')
    p.add_argument('--of', default='', help="the version or commit of TRL that the file comes from")
    p.add_argument('--steps', type=int, help='end each training after so many steps: a quick look')
    p.add_argument('--limit', type=int, help='a test fails after so many seconds of processor time')
    a,more = p.parse_known_args()
    main(a.path, *more, standins=a.standins, out=a.csv, of=a.of, steps=a.steps, limit=a.limit)
