"What a notebook defines for itself: its imports, functions and constants, without its other lines"
import ast, json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

NBS = Path(__file__).parent.parent/'nbs'

def defined_in(name, room=None):
    "`nbs/NAME.ipynb` as an object with its functions; what it exports is that of the module `room`, if given"
    cells = json.loads((NBS/f'{name}.ipynb').read_text(encoding='utf-8'))['cells']
    texts = [''.join(c['source']) for c in cells if c['cell_type']=='code']
    code = '\n'.join(o for o in texts if not room or '#| export' not in o)
    def constant(o): return isinstance(o, ast.Assign) and getattr(o.targets[0], 'id', '').isupper()
    kept = [o for o in ast.parse(code).body
        if constant(o) or isinstance(o, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))]
    out = dict(vars(import_module(room))) if room else {}
    exec(compile(ast.Module(kept, []), name, 'exec'), out)
    return SimpleNamespace(**out)
