"Runs that were trained once and are stored: `tests/runs/runs.json.xz`. `python tests/stored_runs.py NAME "
"…` makes them again."
import json, lzma, sys
from functools import lru_cache
from pathlib import Path
import pandas as pd
from grpo_nb.run.record import GROUP_FIELDS
from grpo_nb.run.reading import LoggedRun, read_run

AT = Path(__file__).parent/'runs'
KEPT = (
    ('step group prompt_key prompt completions n_tokens rewards dead dead_reason outcome '
        'advantages_before id score').split()
)

def pack_runs(runs):
    "Runs by name as bytes, a column of all runs side by side: they are alike and take two thirds of the room"
    d = dict(settings={name:run['settings'] for name,run in runs.items()}, order={}, history={}, groups={})
    for name,run in runs.items():
        for part in ('history','groups'):
            keys = list(dict.fromkeys(k for row in run[part] for k in row))
            d['order'][f'{name} {part}'] = keys
            for k in keys: d[part].setdefault(k, {})[name] = [row.get(k) for row in run[part]]
    return lzma.compress(json.dumps(d, separators=(',', ':')).encode(), preset=9|lzma.PRESET_EXTREME)

def unpack_runs(data):
    "Runs by name, as `pack_runs` was given them: what a row lacks is None in its column"
    d = json.loads(lzma.decompress(data))
    def rows(name, part):
        keys = d['order'][f'{name} {part}']
        columns = [d[part][k][name] for k in keys]
        filled = [zip(keys, row, strict=True) for row in zip(*columns, strict=True)]
        return [{k:v for k,v in row if v is not None} for row in filled]
    return {name:dict(history=rows(name, 'history'), groups=rows(name, 'groups'), settings=settings)
            for name,settings in d['settings'].items()}

@lru_cache
def _texts(path, changed):
    return {name:json.dumps(run) for name,run in unpack_runs(path.read_bytes()).items()}

def stored_texts(at):
    "The runs of a folder as JSON, by name"
    path = at/'runs.json.xz'
    return _texts(path, path.stat().st_mtime_ns) if path.exists() else {}

NAMES = sorted(stored_texts(AT))
HEALTHY = [n for n in NAMES if n.startswith('healthy')]

def stored(name):
    "A stored run, as `read_run` would have read it"
    d = json.loads(stored_texts(AT)[name])
    rows = [dict.fromkeys(GROUP_FIELDS)|o for o in d['groups']]
    return LoggedRun(Path(name), d['settings'], pd.DataFrame(d['history']), rows, {}, [])

def store(folder, name):
    "Keep of a run's folder what the rules read"
    r = read_run(folder)
    rows = [{k:v for k,v in o.items() if v is not None and v==v} for o in r.history.to_dict('records')]
    def group(o):
        new = dict(replacement={k:o['replacement'][k] for k in ('id','step')}) if o.get('replacement') else {}
        return {k:o[k] for k in KEPT if o.get(k) is not None}|new
    args = {k:v for k,v in r.settings['args'].items() if k!='output_dir'}
    settings = {k:v for k,v in r.settings.items() if k not in ('versions','run_id')}|dict(args=args)
    runs = {k:json.loads(text) for k,text in stored_texts(AT).items()}
    runs[name] = dict(history=rows, groups=[group(o) for o in r.rows], settings=settings)
    (AT/'runs.json.xz').write_bytes(pack_runs(dict(sorted(runs.items()))))

if __name__=='__main__':
    import tempfile, faulty_runs
    for name in sys.argv[1:] or NAMES:
        base, _, seed = (name.rpartition('-') if name[-1].isdigit()
                         and name.startswith('healthy') else (name, '', ''))
        with tempfile.TemporaryDirectory() as d:
            store(faulty_runs.make(base, f'{d}/r', **(dict(seed=int(seed)) if seed else {})), name)
