"Runs that were trained once and are stored: `tests/runs/NAME.json.xz`. `python tests/stored_runs.py NAME "
"…` makes them again."
import gzip, json, lzma, sys
from pathlib import Path
import pandas as pd
from grpo_nb.run.record import GROUP_FIELDS
from grpo_nb.parts.renamed import new_names
from grpo_nb.run.reading import LoggedRun, _new_row, read_run

AT = Path(__file__).parent/'runs'
KEPT = (
    ('step group prompt_key prompt completions n_tokens rewards dead dead_reason outcome '
        'advantages_before id score').split()
)
NAMES = sorted(f.name.removesuffix('.json.xz') for f in AT.glob('*.json.xz'))
HEALTHY = [n for n in NAMES if n.startswith('healthy')]

def stored(name):
    "A stored run, as `read_run` would have read it"
    packed = AT/f'{name}.json.xz'
    if not packed.exists(): packed = AT/f'{name}.json.gz'   # as earlier commits have it
    unpack = lzma.decompress if packed.suffix=='.xz' else gzip.decompress
    d = json.loads(unpack(packed.read_bytes()))
    rows = [dict.fromkeys(GROUP_FIELDS)|_new_row(o) for o in d['groups']]
    history = pd.DataFrame([new_names('metrics', o) for o in d['history']])
    settings = d['settings']|dict(args=new_names('settings', d['settings']['args']))
    return LoggedRun(Path(name), settings, history, rows, {}, [])

def store(folder, name):
    "Keep of a run's folder what the rules read"
    r = read_run(folder)
    rows = [{k:v for k,v in o.items() if v is not None and v==v} for o in r.history.to_dict('records')]
    def group(o):
        new = dict(replacement={k:o['replacement'][k] for k in ('id','step')}) if o.get('replacement') else {}
        return {k:o[k] for k in KEPT if o.get(k) is not None}|new
    args = {k:v for k,v in r.settings['args'].items() if k!='output_dir'}
    settings = {k:v for k,v in r.settings.items() if k not in ('versions','run_id')}|dict(args=args)
    data = json.dumps(dict(history=rows, groups=[group(o) for o in r.rows], settings=settings),
                      separators=(',', ':'))
    (AT/f'{name}.json.xz').write_bytes(lzma.compress(data.encode(), preset=9))

if __name__=='__main__':
    import tempfile, faulty_runs
    for name in sys.argv[1:] or NAMES:
        base, _, seed = (name.rpartition('-') if name[-1].isdigit()
                         and name.startswith('healthy') else (name, '', ''))
        with tempfile.TemporaryDirectory() as d:
            store(faulty_runs.make(base, f'{d}/r', **(dict(seed=int(seed)) if seed else {})), name)
