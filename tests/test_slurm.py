"The Slurm script that the pages show, run whole where the commands of a cluster are stand-ins."
import os, re, shlex, shutil, signal, subprocess, sys, time
from pathlib import Path
import pytest
from accelerate.commands.launch import launch_command_parser
from grpo_nb.on_trl.config import GRPOWithReplayBufferConfig
from grpo_nb.on_trl.options import GSM8KArguments, TrlOptions, split_launch

SCRIPT = Path(__file__).parents[1]/'nbs'/'scale'/'slurm.sh'

def words_of_the_run():
    text = SCRIPT.read_text().split('setsid grpo_nb trl ')[1].split(' &\n')[0].replace('\\\n', ' ')
    return shlex.split(re.sub(r'"\$(\w+)"', r'\1', text))

def test_shellcheck_has_nothing_to_say():
    if not shutil.which('shellcheck'): pytest.skip('needs shellcheck')
    r = subprocess.run(['shellcheck', SCRIPT], capture_output=True, text=True)
    assert r.returncode==0, r.stdout

def test_every_option_is_the_launchers_or_the_runs_and_the_batch_is_legal(monkeypatch):
    options = TrlOptions(GSM8KArguments, GRPOWithReplayBufferConfig, use_cpu=True, bf16=False, output_dir='x')
    words = words_of_the_run()
    recipe = words.index('--recipe')
    assert words[recipe+1]=='gsm8k'
    del words[recipe:recipe+2]
    launcher,run = split_launch(words, {*options._option_string_actions})
    for name,value in (('--machine_rank','3'), ('--accelerate_config','fsdp2')):
        launcher[launcher.index(name)+1] = value
    i = launcher.index('--accelerate_config')
    a = launch_command_parser().parse_args(launcher[:i]+launcher[i+2:]+['-m', 'grpo_nb'])
    nodes = int(re.search(r'--nodes=(\d+)\n', SCRIPT.read_text())[1])
    assert (a.num_processes, a.num_machines)==(56, nodes-1) and a.fsdp_state_dict_type=='SHARDED_STATE_DICT'
    run[run.index('--vllm_server_port')+1] = '8000'
    r,a = options.read([*run, '--num_processes', '56', '--dry_run'])
    assert r.resume=='auto' and a.generation_batch_size==56*16 and a.use_vllm and a.vllm_mode=='server'

# A launcher whose trainer saves on SIGTERM; it kills the trainer in mid-save if it was signalled itself.
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
TOOLS = dict(
    scontrol='if [ "$1" = requeue ]; then echo requeued $2; else echo node0; echo node1; echo node2; fi',
    grpo_nb='echo "$@" > trained; wc -l < answers >> trained; [ -e trains ] && exec PY launcher.py; true',
    vllm='echo "$VLLM_SERVER_DEV_MODE" "$@" > served; [ -e broken ] && exit 3; exec sleep 900',
    # answers the third time
    curl='echo "$@" >> answers; [ ! -e silent ] && [ "$(wc -l < answers)" -gt 2 ]',
    sleep='if [ "$1" = 5 ]; then exec /bin/sleep .3; else exec /bin/sleep "$1"; fi',
    srun='while [[ "$1" == --* ]]; do echo "$1" >> asked; shift; done; exec setsid "$@"')

def submit(folder, *marks):
    "The script where a cluster's commands note what they were asked; `marks` say how they behave."
    (folder/'launcher.py').write_text(LAUNCHER)
    for o in marks: (folder/o).touch()
    for k,v in TOOLS.items():
        (folder/k).write_text('#!/bin/bash\n'+v.replace("PY ", sys.executable+" ")+'\n')
        (folder/k).chmod(0o755)
    env = os.environ|dict(PATH=f'{folder}:{os.environ["PATH"]}', SLURM_JOB_NODELIST='n', SLURM_PROCID='1',
        SLURM_JOB_ID='7')
    return subprocess.Popen(['bash', SCRIPT], env=env, cwd=folder, stdout=subprocess.PIPE, text=True)

@pytest.mark.processes
def test_a_server_gets_a_node_and_answers_before_the_trainers_start(tmp_path):
    p = submit(tmp_path)
    assert 'requeued' not in p.communicate(timeout=120)[0] and p.returncode==0
    asked = (tmp_path/'asked').read_text().split()
    assert asked==['--nodes=1','--ntasks=1','--nodelist=node2','--nodes=7','--ntasks=7','--exclude=node2']
    assert (tmp_path/'served').read_text().startswith('1 serve Qwen/Qwen2.5-32B-Instruct --port 8000')
    words,answers = (tmp_path/'trained').read_text().splitlines()
    assert answers=='3' and '--main_process_ip node0' in words and '--machine_rank 1' in words
    assert '--vllm_server_host node2 --vllm_server_port 8000' in words and words.endswith('--resume auto')
    assert set((tmp_path/'answers').read_text().split())=={'-sf','http://node2:8000/health'}

@pytest.mark.processes
def test_a_server_that_can_not_start_ends_the_job(tmp_path):
    p = submit(tmp_path, 'broken', 'silent')
    assert 'requeued' not in p.communicate(timeout=120)[0] and p.returncode==1
    assert not (tmp_path/'trained').exists()

@pytest.mark.processes
def test_sigterm_reaches_the_trainers_and_the_job_queues_itself_again(tmp_path):
    p = submit(tmp_path, 'trains')
    assert p.stdout.readline().startswith('training')
    p.send_signal(signal.SIGTERM)
    assert p.communicate(timeout=120)[0].split('\n')[:2]==['saved','requeued 7'] and p.returncode==0

@pytest.mark.processes
def test_sigterm_while_the_server_starts_queues_the_job_again(tmp_path):
    p = submit(tmp_path, 'silent')
    until = time.time()+60
    while not (tmp_path/'answers').exists() and time.time()<until: time.sleep(.05)
    p.send_signal(signal.SIGTERM)
    assert p.communicate(timeout=120)[0].strip()=='requeued 7' and p.returncode==0
    assert not (tmp_path/'trained').exists()

@pytest.mark.processes
def test_a_job_that_fails_by_itself_is_not_queued_again(tmp_path):
    p = submit(tmp_path, 'trains')
    os.kill(int(p.stdout.readline().split()[1]), signal.SIGKILL)   # the launcher ends with it, by an error
    assert 'requeued' not in p.communicate(timeout=120)[0] and p.returncode!=0
