"Launch files key by key, commands as their parsers read them, a signal that leaves time to save."

import os, shlex, signal, subprocess, sys
import pytest, yaml
from grpo_nb.scale import launch as M
from grpo_nb.scale.launch import (
    check_launch_config, launch_command, launch_config, slurm_script, vllm_command, vllm_error,
    write_launch_config)
from another import said_elsewhere

@pytest.mark.parametrize('s', ['ddp','fsdp2','zero2','zero3'])
def test_trls_files_pass_our_check_and_accelerates_own_reader(s, tmp_path):
    from accelerate.commands.config.config_args import load_config_from_file
    f = write_launch_config(tmp_path/'c.yaml', s, 64, 8)
    c = load_config_from_file(f)
    precision = str(getattr(c.mixed_precision, 'value', c.mixed_precision))
    assert (c.num_processes, c.num_machines, precision)==(64, 8, 'bf16')
    assert check_launch_config(yaml.safe_load(open(f, encoding='utf-8')))==[]

FAULTS = [(lambda c: c['fsdp_config'].update(fsdp_versoin=2),
           "no key 'fsdp_versoin', did you mean 'fsdp_version'"),
          (lambda c: c.update(num_procesess=8), "no key 'num_procesess', did you mean 'num_processes'"),
          (lambda c: c.update(distributed_type='MULTI_GPU'), 'fsdp_config is ignored'),
          (lambda c: c.pop('fsdp_config'), 'there is no fsdp_config'),
          (lambda c: c.update(use_cpu=True), 'plain DDP'),
          (lambda c: c.update(num_machines=3), '8 processes on 3 machines')]

@pytest.mark.parametrize('edit,say', FAULTS)
def test_what_accelerate_would_take_without_a_word_is_named(edit, say):
    c = launch_config('fsdp2')
    edit(c)
    assert any(say in o for o in check_launch_config(c)), check_launch_config(c)

def test_what_accelerate_refuses_itself_is_left_to_it(tmp_path):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.utils import FullyShardedDataParallelPlugin
    c = launch_config('fsdp2', fsdp_state_dict_type='FULLSTATE')
    with pytest.raises(KeyError, match='FULLSTATE'):
        FullyShardedDataParallelPlugin(state_dict_type=c['fsdp_config']['fsdp_state_dict_type'])
    (tmp_path/'c.yaml').write_text(yaml.safe_dump(c|dict(distributed_type='FSDP9')))
    with pytest.raises(ValueError, match='FSDP9'): load_config_from_file(str(tmp_path/'c.yaml'))

def test_a_wrong_change_is_refused_and_a_right_one_lands_in_its_part():
    with pytest.raises(ValueError, match="did you mean 'fsdp_version'"):
        launch_config('fsdp2', fsdp_versoin=2)
    with pytest.raises(ValueError, match='no strategy'): launch_config('fsdp9')
    assert (
        launch_config('zero3', offload_optimizer_device='cpu')['deepspeed_config']['offload_optimizer_device']
        == 'cpu'
    )


def test_torchrun_and_accelerate_read_our_commands():
    from torch.distributed.run import get_args_parser
    from accelerate.commands.launch import launch_command_parser
    a = get_args_parser().parse_args(launch_command(['t.py','--x','1'], None, 64, 8, '3', 'node0')[1:])
    assert (a.nnodes, a.nproc_per_node, str(a.node_rank), a.rdzv_endpoint)==('8', '8', '3', 'node0:29500')
    assert (a.training_script, a.training_script_args)==('t.py', ['--x','1'])
    told = launch_command(['-m', 'grpo_nb', 'trl', '--recipe', 'gsm8k'], 'c.yaml', 64, 8, '3', 'node0')
    b = launch_command_parser().parse_args(told[2:])
    assert (b.num_processes, b.num_machines, b.machine_rank, b.main_process_ip)==(64, 8, 3, 'node0')
    assert b.module and b.training_script=='grpo_nb'

def _task(script): return slurm_script(script, 'c.yaml', 4).split("srun bash -c '")[1].split("' &\n")[0]

def test_each_slurm_node_reads_its_own_rank():
    shown = _task(['t.py']).replace('setsid accelerate', 'echo accelerate')
    for i in range(4):
        env = os.environ|dict(SLURM_PROCID=str(i), MASTER='n0')
        got = subprocess.run(['bash','-c',shown], env=env, capture_output=True, text=True).stdout
        assert f'--machine_rank {i} --main_process_ip n0' in got

def test_a_slurm_script_asks_for_what_a_run_needs():
    s = slurm_script(['-m', 'grpo_nb', 'trl', '--recipe', 'gsm8k'], 'c.yaml', 4, gpus_per_node=4,
                     cpus_per_task=32, hours=2, grace_s=600)
    for o in (
        '--signal=B:TERM@600',
        '--cpus-per-task=32',
        '--time=120',
        'HF_HUB_OFFLINE=1',
        'WANDB_MODE=offline',
        'OMP_NUM_THREADS=8',
        '--resume auto',
        'scontrol requeue',
    ): assert o in s
    assert slurm_script(['-m','grpo_nb','trl','--resume','no'], 'c.yaml').count('--resume')==1
    assert '--resume' not in slurm_script(['train.py'], 'c.yaml')   # a script of one's own may not know it
    assert subprocess.run(['bash','-n'], input=s, text=True).returncode==0

# Says `training` when both can be signalled; kills the trainer in mid-save if it was signalled itself.
LAUNCHER = '''
import signal, subprocess, sys
trainer = """
import signal, sys
def save(*a):
    print('saving', file=sys.stderr, flush=True)
    sys.stdin.read()
    print('saved', flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print('training', file=sys.stderr, flush=True)
signal.alarm(60)   # never longer, whatever fails
while True: signal.pause()
"""
pipes = dict(stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
child,told = subprocess.Popen([sys.executable, '-c', trainer], **pipes),[]
def end(*a):
    told.append(True)
    child.terminate()
signal.signal(signal.SIGTERM, end)
print(child.stderr.readline().strip(), child.pid, flush=True)
child.stderr.readline()
if told:
    child.kill()
    print('killed by the launcher', flush=True)
else: child.stdin.close()
sys.exit(child.wait())
'''

def _batch(tmp_path, held=False):
    """The whole script; srun is a shell in a session of its own, scontrol a note, the launcher a stand-in.
    `held`: both shells are held up for a second once they have started their step, as on a busy node."""
    (tmp_path/'launcher.py').write_text(LAUNCHER)
    s = slurm_script(['t.py'], 'c.yaml', 1)
    command = s.split('setsid ')[1].split(' & run')[0]
    s = s.replace(command, f'{sys.executable} {tmp_path}/launcher.py').replace('srun bash', 'setsid bash')
    if held: s = s.replace('& run=$!', '& sleep 1; run=$!').replace('\nstep=$!', '\nsleep 1\nstep=$!')
    tools = 'scontrol() { if [ "$1" = requeue ]; then echo requeued $2; else echo node0; fi; }\n'
    f = tmp_path/'job.sh'
    f.write_text(s.replace('export MASTER', tools+'export MASTER', 1))
    env = os.environ|dict(SLURM_JOB_ID='7', SLURM_JOB_NODELIST='node0', SLURM_PROCID='0')
    return subprocess.Popen(['bash', str(f)], env=env, stdout=subprocess.PIPE, text=True)

@pytest.mark.parametrize('held', [False, True])
@pytest.mark.processes
def test_the_batch_shell_hands_sigterm_to_the_trainers_and_queues_itself_again(tmp_path, held):
    p = _batch(tmp_path, held)
    assert p.stdout.readline().startswith('training')
    p.send_signal(signal.SIGTERM)
    assert p.stdout.read().split('\n')[:2]==['saved','requeued 7'] and p.wait()==0

TOOLS = dict(
    scontrol='echo node0; echo node1; echo node2',
    accelerate='echo "$@" > trained; cat answers | wc -l >> trained',
    vllm='echo "$VLLM_SERVER_DEV_MODE" "$@" > served; [ -e broken ] && exit 3; exec sleep 900',
    # answers the third time
    curl='echo "$@" >> answers; [ "$(wc -l < answers)" -gt 2 ]',
    sleep='if [ "$1" = 5 ]; then /bin/sleep .3; else exec /bin/sleep "$1"; fi',
    srun='while [[ "$1" == --* ]]; do echo "$1" >> asked; shift; done; exec "$@"')

def _cluster(folder):
    "A script with a server, run where the commands of a cluster are notes of what they were asked."
    for k,v in TOOLS.items():
        (folder/k).write_text(f'#!/bin/bash\n{v}\n')
        (folder/k).chmod(0o755)
    server = vllm_command('M', 2, data_parallel=4)
    f = folder/'job.sh'
    f.write_text(slurm_script(['t.py', '--x', "it's 5"], 'c.yaml', 2, server=server))
    env = os.environ|dict(PATH=f'{folder}:{os.environ["PATH"]}', SLURM_JOB_NODELIST='n', SLURM_PROCID='1')
    quiet = dict(env=env, cwd=folder, timeout=300, stdout=subprocess.DEVNULL)
    return subprocess.run(['bash', str(f)], **quiet).returncode

@pytest.mark.processes
def test_a_server_gets_a_node_and_answers_before_the_trainers_start(tmp_path):
    assert _cluster(tmp_path)==0
    asked = (tmp_path/'asked').read_text().split()
    assert asked==['--nodes=1','--ntasks=1','--nodelist=node2','--nodes=2','--ntasks=2','--exclude=node2']
    served = shlex.split((tmp_path/'served').read_text().replace('{"backend":"nccl"}', 'transfer'))
    assert served[:3]==['1','serve','M'] and served[served.index('--data-parallel-size')+1]=='4'
    words,answers = (tmp_path/'trained').read_text().splitlines()
    assert answers=='3' and '--main_process_ip node0' in words and '--machine_rank 1' in words
    assert words.endswith("t.py --x it's 5 --use_vllm --vllm_mode server --vllm_server_host node2 "
        '--vllm_server_port 8000')
    assert set((tmp_path/'answers').read_text().split())=={'-sf','http://node2:8000/health'}
    assert '#SBATCH --nodes=3' in (tmp_path/'job.sh').read_text()

@pytest.mark.processes
def test_a_server_that_can_not_start_ends_the_job(tmp_path):
    (tmp_path/'broken').touch()
    assert _cluster(tmp_path)==1 and not (tmp_path/'trained').exists()

@pytest.mark.processes
def test_a_job_that_fails_by_itself_is_not_queued_again(tmp_path):
    p = _batch(tmp_path)
    trainer = int(p.stdout.readline().split()[1])
    os.kill(trainer, signal.SIGKILL)                 # the launcher ends with it, by an error
    assert 'requeued' not in p.stdout.read() and p.wait()!=0

def test_vllm_is_asked_before_anything_is_loaded(monkeypatch):
    assert (vllm_error('') == '' and 'not installed' in vllm_error('server')
            and 'needs' in vllm_error('servr'))
    monkeypatch.setattr(M, 'find_spec', lambda n: True)
    assert vllm_error('colocate')==''
    assert 'no vLLM server answers at http://127.0.0.1:9' in vllm_error('server', 'http://127.0.0.1:9', .5)
    words = shlex.split(vllm_command('M', 2))
    assert (words[0] == 'VLLM_SERVER_DEV_MODE=1'
            and words[words.index('--weight-transfer-config') + 1] == '{"backend":"nccl"}')


def test_the_words_for_one_node_and_for_two():
    assert launch_command(['x.py'])==['torchrun','--standalone','--nproc_per_node','8','x.py']
    two = launch_command(['x.py'], None, 16, 2, '1', 'node0')
    assert '--standalone' not in two and two[-3:]==['--nproc_per_node','8','x.py']
    assert two[two.index('--rdzv_endpoint')+1]=='node0:29500' and two[two.index('--node_rank')+1]=='1'

def test_a_batch_in_prompts_is_cut_into_passes_of_at_most_eight_rows():
    from grpo_nb.recipes import recipe_options
    from grpo_nb.scale.launch import RecipeArguments
    def cut(prompts, answers):
        a = recipe_options(RecipeArguments, [], dict(total_batch_size=prompts, num_generations=answers),
            output_dir='x')[1]
        return a.per_device_train_batch_size,a.gradient_accumulation_steps
    assert [cut(16, 4), cut(1, 6), cut(9, 3)]==[(8, 8), (6, 1), (3, 9)]

def test_fsdp2_on_a_cpu_takes_trls_settings_and_is_made_once():
    def said():
        from accelerate.state import AcceleratorState
        from grpo_nb.scale.launch import fsdp2_on_cpu
        with pytest.raises(ValueError, match="no key 'fsdp_versoin'"): fsdp2_on_cpu(fsdp_versoin=2)
        before = 'ACCELERATE_USE_FSDP' in os.environ
        fsdp2_on_cpu(fsdp_reshard_after_forward=False)
        once = AcceleratorState.__init__
        fsdp2_on_cpu()
        again = AcceleratorState.__init__ is once
        return before,again,os.environ['FSDP_VERSION'],os.environ['FSDP_RESHARD_AFTER_FORWARD']
    assert said_elsewhere(said)==(False, True, '2', 'True')
