"""TRL's own tests with our trainer in the place of theirs, beside the same tests as they are.

    git clone --depth 1 --branch v1.16.0 https://github.com/huggingface/trl
    python tests/trl_suite.py trl/tests/test_grpo_trainer.py [-k "not vllm"] [other options of pytest]

Both runs are printed, and each test whose outcome differs. The tests fetch small models from the hub. They
ask nothing of replay; what they show is that everything of `GRPOTrainer` still works. Known to differ:
`reward_func_returning_none`-like tests in which every reward of the run is None, which we refuse after eight
batches.
"""
import os, subprocess, sys, tempfile
import xml.etree.ElementTree as ET
from importlib.metadata import version
from pathlib import Path

def pytest_configure(config):
    "As a plugin of pytest: `from trl import GRPOTrainer` gives ours."
    import trl
    from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferConfig, GRPOWithReplayBufferTrainer
    trl.GRPOTrainer,trl.GRPOConfig = GRPOWithReplayBufferTrainer,GRPOWithReplayBufferConfig

def outcomes(path, options, ours):
    "{test: 'passed' | 'failed' | 'skipped'} of TRL's file `path`."
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as d:
        command = [sys.executable, '-m', 'pytest', '-q', str(path), f'--junitxml={d}/out.xml',
            *(['-p','trl_suite'] if ours else []), *options]
        env = os.environ|dict(PYTHONPATH=os.pathsep.join([str(here), str(here.parent),
            os.environ.get('PYTHONPATH', '')]))
        r = subprocess.run(command, env=env, capture_output=True, text=True)
        if not Path(f'{d}/out.xml').exists():
            raise SystemExit(f'pytest wrote no result: {(r.stdout+r.stderr)[-2000:]}')
        cases = ET.parse(f'{d}/out.xml').getroot().iter('testcase')
        def fate(o):
            kinds = {c.tag for c in o}
            return 'failed' if kinds & {'failure','error'} else 'skipped' if 'skipped' in kinds else 'passed'
        return {f"{o.get('classname', '').split('.')[-1]}::{o.get('name')}":fate(o) for o in cases}

def main(path, *options):
    stock,ours = (outcomes(path, options, o) for o in (False, True))
    def count(o): return ', '.join(f'{list(o.values()).count(k)} {k}' for k in ('passed','failed','skipped'))
    print(f'trl {version("trl")}: {len(stock)} tests. GRPOTrainer: {count(stock)}. '
        f'GRPOWithReplayBufferTrainer: {count(ours)}.')
    for k in stock:
        if stock[k]!=ours.get(k): print(f'  {k}: {stock[k]} with theirs, {ours.get(k)} with ours')
    return stock,ours

if __name__=='__main__':
    if len(sys.argv)<2: raise SystemExit(__doc__)
    main(*sys.argv[1:])
