"`python -m grpo_nb.dev COMMAND`: what builds and tests the project, in a clone."
import sys
from importlib import import_module
from inspect import signature
from grpo_nb.cli import function_parser

COMMANDS = dict(run_nbs='site:run_nbs', clean='site:clean', readme='site:readme', order='site:write_order',
    check='site:check', test='site:test', docs='pages:docs')   # name: module and function

def main(
    argv:list|None=None, # arguments; None for those of the command line
)->None:
    "Run one command. Exits with 2 and one line for a fault of the project."
    command,*words = (sys.argv[1:] if argv is None else argv) or ['--help']
    if command not in COMMANDS: sys.exit(f'usage: python -m grpo_nb.dev {{{",".join(COMMANDS)}}} [options]')
    module,name = COMMANDS[command].split(':')
    f = getattr(import_module(f'grpo_nb.dev.{module}'), name)
    if 'names' in signature(f).parameters:   # before or behind options
        names = [o for o in words if o[:1]!='-']
        words = [o for o in words if o[:1]=='-' and o!='--names']+['--names', *names]*bool(names)
    options = vars(function_parser(f, f'python -m grpo_nb.dev {command}').parse_args(words))
    try: f(**options)
    except (ValueError, OSError) as e:
        print(f'{command}: {e}', file=sys.stderr)
        sys.exit(2)

if __name__=='__main__': main()
