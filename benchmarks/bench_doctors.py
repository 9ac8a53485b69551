"""Other doctors, their simulators, and their names for faults, for `doctor_bench.py`.

    python -m venv doctors; . doctors/bin/activate
    pip install -e . rldoctor==0.2.0 rlprobe==0.1.0 rlwatch==0.5.1
    python benchmarks/doctor_bench.py

Every run is written to files first, and each doctor reads them as its users do: ours what the trainer left,
rldoctor a JSONL whose first line holds the settings; rlprobe and rlwatch, which read no finished log, get its
rows through their callback."""
import json, sys, tempfile
from pathlib import Path
sys.path.append(str(Path(__file__).resolve().parents[1]/'tests'))   # their helpers
from grpo_nb.run.record import to_jsonl
from stored_runs import NAMES

SEEDS = range(100, 105)   # ours was tried on seeds 0 to 2

# What a doctor may call a fault for it to count as named: by label, then by doctor.
DEAD = dict(
    grpo_nb='all-equal thin-signal solved start-at-zero reward-never-fires float-noise kl-only-pull',
    rldoctor='advantage_collapse', rlprobe='DEGENERATE_GROUPS ADV_COLLAPSE REWARD_STD_DEATH', rlwatch='')
CUT = dict(grpo_nb='truncated all-truncated no-end-token no-chat-template', rldoctor='length_pathology',
    rlprobe='TRUNCATION_STARVE', rlwatch='')
HACK = dict(grpo_nb='hacked-by-length hacked-by-form held-out-falls',
    rldoctor='reward_hacking length_pathology', rlprobe='REWARD_HACK_LENGTH FORMAT_GAMING',
    rlwatch='reward_hacking')
CLIP = dict(grpo_nb='learning-rate-too-large', rldoctor='clip_saturation kl_drift gradient_pathology',
    rlprobe='CLIP_SATURATION KL_BLOWUP GRAD_PATHOLOGY', rlwatch='kl_explosion gradient_norm_spike')
DROWN = dict(grpo_nb='one-reward-drowns hacked-by-form', rldoctor='reward_composition',
    rlprobe='FORMAT_GAMING', rlwatch='')
NAMED = {
    'entropy collapse': dict(grpo_nb='entropy-collapse', rldoctor='entropy_collapse',
        rlprobe='ENTROPY_COLLAPSE', rlwatch='entropy_collapse'),
    'dead groups': DEAD, 'truncation': CUT, 'reward hacked': HACK, 'updates too large': CLIP,
    'KL blow-up': dict(grpo_nb='kl-blow-up', rldoctor='kl_drift', rlprobe='KL_BLOWUP',
        rlwatch='kl_explosion'),
    'gradients': dict(grpo_nb='gradient-spikes no-gradient not-a-number',
        rldoctor='gradient_pathology', rlprobe='GRAD_PATHOLOGY', rlwatch='gradient_norm_spike loss_nan'),
    'plateau': dict(grpo_nb='plateau', rldoctor='plateau', rlprobe='', rlwatch='reward_mean_drift'),
    'one reward drowns': DROWN,
    'policy stands still': dict(grpo_nb='learning-rate-too-small ratio-always-1', rldoctor='plateau',
        rlprobe='', rlwatch=''),
    'replay too old': dict(grpo_nb='replay-too-old', rldoctor='clip_saturation', rlprobe='CLIP_SATURATION',
        rlwatch=''),
    # what no log of TRL's holds
    'value function': dict(rlprobe='VALUE_DIVERGENCE'), 'repetition': dict(rlprobe='REPETITION_SPIRAL'),
    'KL by position': dict(rlprobe='REF_POLICY_DRIFT_ASYMMETRY'), 'slower': dict(rlprobe='THROUGHPUT_ROT'),
}
SIMULATED = dict(entropy_collapse='entropy collapse', saturated_groups='dead groups', too_hard='dead groups',
    reward_hacking='reward hacked', length_hacking='reward hacked', truncation='truncation',
    kl_blowup='KL blow-up', clip_saturation='updates too large', grad_spikes='gradients', plateau='plateau',
    format_domination='one reward drowns')
PROBED = dict(kl_blowup='KL blow-up', entropy_collapse='entropy collapse', reward_hack_length='reward hacked',
    format_gaming='one reward drowns', clip_saturation='updates too large', degenerate_groups='dead groups',
    adv_collapse='dead groups', value_divergence='value function', grad_pathology='gradients',
    truncation_starve='truncation', repetition_spiral='repetition', reward_std_death='dead groups',
    ref_drift_asymmetry='KL by position', throughput_rot='slower')
STORED = {'all-truncated':'truncation', 'no-chat-template':'truncation', 'no-end-token':'truncation',
    'reward-never-fires':'dead groups', 'all-equal':'dead groups', 'too-cold':'dead groups',
    'float-noise':'dead groups', 'kl-only-pull':'dead groups', 'ratio-always-1':'policy stands still',
    'learning-rate-too-small':'policy stands still', 'learning-rate-too-large':'updates too large',
    'replay-too-old':'replay too old'} | {k:'reward hacked' for k in NAMES if k.startswith('hacked')}

def written(folder, rows, groups=(), settings=None):
    "A run as files: TRL's state, our record beside it, and rldoctor's JSONL"
    folder.mkdir(parents=True)
    (folder/'trainer_state.json').write_text(json.dumps(dict(log_history=rows)))
    if groups: (folder/'groups.jsonl').write_bytes(b''.join(map(to_jsonl, groups)))
    if settings: (folder/'settings.json').write_text(json.dumps(settings))
    args = {k:v for k,v in ((settings or {}).get('args') or {}).items() if v is not None}
    (folder/'rldoctor.jsonl').write_text('\n'.join(map(json.dumps, [dict(config=args), *rows])))
    return folder

# ---- the runs: (whose, name, label or None, rows, groups, settings, folder of a recording or None)

def simulated():
    from rl_doctor.simulate import simulate
    for seed in SEEDS:
        for name in ('healthy', *SIMULATED):
            rows,config = simulate(name, seed=seed)
            yield 'rldoctor', f'{name}-{seed}', SIMULATED.get(name), rows, [], dict(args=config), None

_TRL = dict(reward_mean='reward', reward_std='reward_std', kl_mean='kl', entropy_mean='entropy',
    clip_fraction='clip_ratio/region_mean', zero_variance_group_frac='frac_reward_zero_std', loss='loss',
    lr='learning_rate', grad_norm='grad_norm', completion_len_mean='completions/mean_length',
    completion_len_max='completions/max_length', truncation_rate='completions/clipped_ratio',
    step_time_s='step_time')

def probed(folder):
    from rlprobe.storage import RunReader
    from rlprobe.testing.synth import generate_run
    for seed in SEEDS:
        for name in (None, *PROBED):
            at = generate_run(folder/f'{name}-{seed}', name, n_steps=200, seed=seed)
            rows,groups,reader = [],{},RunReader(at)
            for o in reader.steps():
                row = dict(step=o.step)|{ours:getattr(o, k) for k,ours in _TRL.items()}
                row |= {f'rewards/{k}/mean':v for k,v in o.reward_components.items()}
                if o.nan_count: row['grad_norm'] = float('nan')
                rows.append({k:v for k,v in row.items() if v is not None})
            for o in reader.samples():
                new = dict(step=o.step, group=len(groups), prompt=o.prompt_text, rewards=[], n_tokens=[])
                g = groups.setdefault((o.step, o.group_id), new)
                for k,v in (('rewards', o.reward_total), ('n_tokens', o.completion_len)): g[k].append(v)
            told = f'{name or "healthy"}-{seed}',PROBED.get(name)
            yield 'rlprobe', *told, rows, list(groups.values()), {}, at

# ---- the doctors: names of what they warn of

def rldoctor(folder, recording):
    from rl_doctor import Severity, diagnose
    from rl_doctor.ingest.base import load_run
    told = diagnose(load_run(str(folder/'rldoctor.jsonl'))).problems
    names = [f.detector for f in told if f.severity>=Severity.WARNING]
    return names,len(names)

def _rows(folder): return json.loads((folder/'trainer_state.json').read_text())['log_history']
def _groups(folder):
    f = folder/'groups.jsonl'
    return [json.loads(o) for o in f.read_text().splitlines()] if f.exists() else []

def rlprobe(folder, recording):
    from rlprobe.doctor import diagnose
    from rlprobe.integrations.trl import _map_logs
    from rlprobe.recorder import Recorder
    with tempfile.TemporaryDirectory() as d:
        if recording is None:
            r = Recorder(d+'/r', algorithm='grpo', install_handlers=False, capture_env=False)
            for o in _rows(folder): r.log_step(int(o['step']), **_map_logs(o))
            for i,o in enumerate(_groups(folder)):
                sizes = o.get('n_tokens') or [len(t) for t in o.get('completions') or []]
                texts = o.get('completions') or ['']*len(sizes)
                samples = [dict(sample_id=f'{i}_{j}', group_id=str(i), prompt_text=str(o.get('prompt')),
                    completion_text=str(texts[j]), reward_total=x, completion_len=int(n))
                    for j,(x,n) in enumerate(zip(o['rewards'], sizes)) if x is not None]
                r.log_samples(int(o['step']), samples, select=False)
            r.close()
        names = [f.signature_id for f in diagnose(recording or d+'/r') if f.severity!='info']
    return names,len(names)

def rlwatch(folder, recording):
    from rlwatch.config import RLWatchConfig
    from rlwatch.detectors import DetectorSuite
    suite,names = DetectorSuite(RLWatchConfig()),[]
    seen = dict(entropy='entropy', kl_divergence='kl', reward_mean='reward', reward_std='reward_std',
        loss='loss', grad_norm='grad_norm')
    for o in _rows(folder):
        alerts = suite.check_step(int(o['step']), **{k:o.get(v) for k,v in seen.items()})
        names += [a.detector for a in alerts]
    return sorted(set(names)),len(names)
