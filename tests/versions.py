"""What stands on torch, transformers and trl, in an environment of its own with other versions of them.

    python tests/versions.py oldest [--out FILE.csv] [--venv FOLDER] [--files 'trl_options trl_resume']

The combinations: every lower bound of `settings.ini` (oldest, by uv: pip only looks for the newest),
`tested.txt` (tested), the transformers that newer releases of vLLM ask for (vllm), what axolotl asks for
(neighbours), the newest of everything beside a tested torch (packages), and whatever pip finds (newest).
On Linux pip's own torch brings several GB for GPUs. A folder named by `--venv` is made, or used as it is if
it is there. `--files` runs some of the test files, `--notebooks` every notebook as well. Prints a row of a
Markdown table, writes it into the CSV, and exits with 1 if one failed.
"""
import argparse, csv, datetime, json, os, shlex, subprocess, sys, tempfile, venv
import xml.etree.ElementTree as ET
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMBINATIONS = {
    'oldest': [],
    'tested': ['-c','tested.txt'],
    'vllm': ['torch==2.13.*','transformers==5.17.*','trl==1.16.*'],
    'neighbours': ['torch==2.13.*','transformers==5.20.1','trl==1.14.1','datasets==5.0.1'],
    'packages': ['torch==2.13.*'],
    'newest': []}
FILES = '''checkpoints generation grpo_with_replay_buffer loss parity recipes rollouts tiny_qwen
    trainer trainer_input trl_defects trl_faults trl_options trl_own_suite trl_ranks trl_record trl_resume
    trl_sharded trl_stored'''
FIELDS = '''combination python torch transformers trl passed failed skipped demo notebooks files names
    date'''.split()

def run(python, *args, **kw):
    env = os.environ|dict(OMP_NUM_THREADS='1', PYTHONPATH=f'{ROOT}:{ROOT/"tests"}')
    return subprocess.run([str(python), *map(str, args)], cwd=ROOT, env=env, **kw)

TESTERS = 'hypothesis','martingale','peft','pytest','pytest-rerunfailures'   # of the extra `dev`

def with_testers():
    "The package's requirements, and of those of `dev` what the tests below need."
    ini = ConfigParser(delimiters=['='])
    ini.read(ROOT/'settings.ini', encoding='utf-8')
    mine,dev = (shlex.split(ini['DEFAULT'][f'{o}requirements']) for o in ('','dev_'))
    return [*mine, *(o for o in dev if o.replace('=', '>').split('>')[0] in TESTERS)]

def install_oldest(python):
    "Install the package beside the lowest version of each requirement that the others allow."
    uv = Path(python).parent/'uv'
    run(python, '-m', 'pip', 'install', '-q', 'uv', check=True)
    run(uv, 'pip', 'install', '-q', '--python', python, '--resolution', 'lowest-direct', *with_testers(),
        check=True)
    run(uv, 'pip', 'install', '-q', '--python', python, '--no-deps', '-e', '.', check=True)

def python_of(folder, name):
    "The Python of a virtual environment with the package and a combination, made if it isn't there."
    python = Path(folder)/'bin'/'python'
    if not python.exists():
        venv.create(folder, with_pip=True)
        if name=='oldest': install_oldest(python)
        else: run(python, '-m', 'pip', 'install', '-q', '-e', '.[dev]', *COMBINATIONS[name], check=True)
    return python

def outcome(python, files):
    "(counts by kind, names of the tests that failed) of pytest over these files."
    with tempfile.TemporaryDirectory() as d:
        paths = [ROOT/'tests'/f'test_{o}.py' for o in files.split()]
        said = run(python, '-m', 'pytest', '-q', '--weekly', *paths, f'--junitxml={d}/out.xml')
        if not Path(f'{d}/out.xml').exists(): raise SystemExit(f'pytest ended with {said.returncode}')
        cases = ET.parse(f'{d}/out.xml').getroot().iter('testcase')
    counts,failed = dict(passed=0, failed=0, skipped=0),[]
    for o in cases:
        kinds = {c.tag for c in o}
        what = 'failed' if kinds & {'failure','error'} else 'skipped' if 'skipped' in kinds else 'passed'
        counts[what] += 1
        if what=='failed': failed.append(f"{o.get('classname').split('.')[-1]}::{o.get('name')}")
    return counts,failed

def row(name, folder, files, notebooks=False):
    python = python_of(folder, name)
    say = 'import json; from grpo_nb.parts.versions import versions; print(json.dumps(versions()))'
    v = json.loads(run(python, '-c', say, capture_output=True, text=True, check=True).stdout)
    with tempfile.TemporaryDirectory() as d:
        demo = run(python, '-m', 'grpo_nb', 'demo', '--max_steps', 12, '--output_dir', d).returncode==0
    counts,failed = outcome(python, files)
    ran = ''
    if notebooks:
        code = run(Path(folder)/'bin'/'nbdev_test', '--n_workers', 1, '--do_print', '--timing').returncode
        ran = 'fail' if code else 'run'
    of = {k:v[k] for k in ('python','torch','transformers','trl')}
    return dict(combination=name, files=' '.join(files.split()), demo='runs' if demo else 'fails',
        notebooks=ran, names='; '.join(failed), date=datetime.date.today().isoformat(), **counts, **of)

def write(out, new):
    "Put the row in the place of the one of its combination."
    out = Path(out)
    with open(out if out.exists() else os.devnull, encoding='utf-8', newline='') as f:
        old = list(csv.DictReader(f))
    rows = {o['combination']:o for o in [*old, new]}
    with open(out, 'w', encoding='utf-8', newline='') as f:
        w = csv.DictWriter(f, FIELDS, lineterminator='\n')
        w.writeheader()
        w.writerows(rows[k] for k in COMBINATIONS if k in rows)

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('name', choices=list(COMBINATIONS))
    p.add_argument('--out')
    p.add_argument('--venv')
    p.add_argument('--files', default=FILES)
    p.add_argument('--notebooks', action='store_true')
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as d: r = row(a.name, a.venv or d, a.files, a.notebooks)
    if a.out: write(a.out, r)
    print('| '+' | '.join(str(r[k]) for k in FIELDS)+' |')
    sys.exit(r['failed']>0 or r['demo']!='runs' or r['notebooks']=='fail')
