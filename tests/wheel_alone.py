"""The wheel in an environment of its own: does every module import, and does the first run learn?

    python tests/wheel_alone.py dist/grpo_nb-0.1.0-py3-none-any.whl [--venv FOLDER] [--python PYTHON]

Installs the wheel with the newest of every package that it needs, imports all of its modules, and runs
`grpo_nb demo` for some steps, `grpo_nb diagnose` on that run and TRL's trainer for two steps, in an empty
folder. A folder named by `--venv` is made, or used as it is if it is there. Exits with 1 if something fails.
"""
import argparse, json, os, subprocess, sys, tempfile, zipfile
from pathlib import Path

EVERY = """import importlib, pkgutil, grpo_nb
names = [o.name for o in pkgutil.walk_packages(grpo_nb.__path__, 'grpo_nb.')]
names = [o for o in names if not o.endswith('__main__')]
for o in names: importlib.import_module(o)
print(len(names), 'modules import from', grpo_nb.__path__[0])"""

def main(wheel, folder, python):
    programs,wheel = Path(folder)/'bin',Path(wheel).resolve()
    if not programs.exists(): subprocess.run([python, '-m', 'venv', folder], check=True)
    subprocess.run([programs/'pip', 'install', '-q', '--force-reinstall', '--no-deps', wheel], check=True)
    subprocess.run([programs/'pip', 'install', '-q', wheel], check=True)
    ours = programs/'grpo_nb'
    lines = [[programs/'pip','check'], [programs/'python','-W','ignore','-c',EVERY], [ours,'--version'],
        [ours,'demo','--max_steps','12','--output_dir','run'], [ours,'diagnose','run'],
        [ours,'trl','--dataset','sums.jsonl','--model','tiny','--max_steps','2',
            '--max_completion_length','32']]
    sums = [dict(prompt=f'{i} + {j} =', answer=str(i+j)) for i in range(8) for j in range(8)]
    alone = {k:v for k,v in os.environ.items() if k!='PYTHONPATH'}   # it may name the checkout
    live = 'grpo_nb/assets/jax/index.js' in zipfile.ZipFile(wheel).namelist()
    failed = [] if live else ['no live page in it: npm was missing when it was built']
    with tempfile.TemporaryDirectory() as empty:
        (Path(empty)/'sums.jsonl').write_text('\n'.join(map(json.dumps, sums)), encoding='utf-8')
        for o in lines:
            print('$', *(str(w).partition('\n')[0] for w in o), flush=True)
            if subprocess.run(o, cwd=empty, env=alone).returncode: failed.append(f'{Path(o[0]).name} {o[1]}')
    print(f"failed: {', '.join(failed)}" if failed else 'all of it works')
    return bool(failed)

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('wheel')
    p.add_argument('--venv')
    p.add_argument('--python', default=sys.executable)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as d: sys.exit(main(a.wheel, a.venv or Path(d)/'venv', a.python))
