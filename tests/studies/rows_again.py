"""Two rows of each arm of every registered study, made again by its command: can they be, and what comes out?

    python tests/studies/rows_again.py [PAGE ...]

Ends with 1 where a row can't be made, differs on the machine and the torch that made it, or is far from the
stored one elsewhere (`NEAR` of `studies/replay_study`). An hour of one core for all of them.
"""
import sys, traceback
from pathlib import Path
from grpo_nb.studies.replay_study import registration, replay_study
from grpo_nb.studies.study import table_file

HERE = Path(__file__).parents[2]/'nbs'/'studies'
# the first's arms and tasks are gone with the code of its day; the others have a command of their own
ELSEWHERE = '_stopped','_real','_real_gpu','_real_scaled','_ladder_confirm'

def studies():
    "Pages whose plan this code has and whose table is there"
    for page in sorted(HERE.glob('registration*.qmd')):
        if page.stem.endswith(ELSEWHERE): continue
        name = registration(page).get('table', 'replay_study')
        if table_file(HERE/'rows'/f'{name}.csv').exists(): yield page

def main(*pages):
    failed = []
    for page in map(Path, pages or studies()):
        print(f'\n{page.stem}', flush=True)
        try: replay_study('main', str(HERE/'rows'), str(page), each_arm=True, device='cpu')
        except Exception as e:
            traceback.print_exc(limit=2)
            failed.append(f'{page.stem}: {e}')
    print(*failed, sep='\n')
    return bool(failed)

if __name__=='__main__': sys.exit(main(*sys.argv[1:]))
