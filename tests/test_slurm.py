"The Slurm script that chapter 18 shows, run whole where the commands of a cluster are stand-ins."
import json, os, re, shlex, shutil, signal, subprocess, sys, time
from pathlib import Path
from types import SimpleNamespace
import pytest, yaml
import check_node
from accelerate.commands.launch import launch_command_parser
from transformers import AutoConfig

ROOT = Path(__file__).parents[1]
SCALE = ROOT/'nbs'/'scale'
SCRIPT = SCALE/'slurm.sh'

@pytest.mark.parametrize('name', ['slurm.sh','machine.sh'])
def test_shellcheck_has_nothing_to_say(name):
    if not shutil.which('shellcheck'): pytest.skip('needs shellcheck')
    r = subprocess.run(['shellcheck', SCALE/name], capture_output=True, text=True)
    assert r.returncode==0, r.stdout

def test_every_file_that_a_script_names_is_there():
    for name in ('slurm.sh','machine.sh','sky.yaml'):
        named = re.findall(r'nbs/scale/[\w.]+', (SCALE/name).read_text())
        assert named and [o for o in named if not (ROOT/o).is_file()]==[]
    assert yaml.safe_load((SCALE/'sky.yaml').read_text())['resources']['accelerators']=='H100:8'

def test_every_option_is_the_launchers_or_the_runs_the_batch_is_legal_and_32b_fits(monkeypatch):
    text = SCRIPT.read_text().split('setsid accelerate launch ')[1].split(' &\n')[0].replace('\\\n', ' ')
    text = ' '.join(re.sub(r'"\$(\w+)"', r'\1', text).split())
    text = text.replace('$((NODES*GPUS))', '16').replace('"', '')
    launcher,_,run = text.partition(' nbs/scale/full_run.py ')
    numbers = dict(NODES='2', SLURM_PROCID='1', MASTER_PORT='29500')
    words = [numbers.get(o, o) for o in shlex.split(launcher)]
    a = launch_command_parser().parse_args([*words, 'full_run.py'])
    assert (a.num_processes, a.num_machines, a.machine_rank)==(16, 2, 1)
    assert a.fsdp_state_dict_type=='SHARDED_STATE_DICT'
    batch = re.search(r"^BATCH='(.*)'", SCRIPT.read_text(), re.M)[1]
    known = {'PORT':'8000', 'nbs/scale/eight_gpus.yaml':str(SCALE/'eight_gpus.yaml')}
    words = [known.get(o, o) for o in shlex.split(run.replace('$BATCH', batch))]
    host = ('--vllm_server_host','SERVER','--vllm_server_port','8000')
    assert tuple(words[-4:])==host
    o = check_node.read_settings([*words, '--num_processes', '16'])
    assert o.use_vllm and o.vllm_mode=='server' and '0 groups on two' in check_node.check_batch(o)
    shapes = json.loads((ROOT/'benchmarks'/'shapes.json').read_text())
    config = AutoConfig.for_model(**shapes['Qwen/Qwen2.5-32B'])
    monkeypatch.setattr(check_node, 'AutoConfig', SimpleNamespace(from_pretrained=lambda name: config))
    o.gpu_gb = 80.
    assert 'GB on each GPU of 80' in check_node.check_memory(o)
    o.gradient_accumulation_steps = 2
    with pytest.raises(check_node.Missing, match='most of it gradients not yet summed'):
        check_node.check_memory(o)

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
child,lines = subprocess.Popen([sys.executable, '-c', trainer], **pipes),[]
def end(*a):
    lines.append(True)
    child.terminate()
signal.signal(signal.SIGTERM, end)
print(child.stderr.readline().strip(), child.pid, flush=True)
child.stderr.readline()
if lines:
    child.kill()
    print('killed by the launcher', flush=True)
else: child.stdin.close()
sys.exit(child.wait())
'''
TOOLS = dict(
    scontrol='if [ "$1" = requeue ]; then echo requeued $2; else echo node0; echo node1; echo node2; fi',
    accelerate='echo "$@" > trained; wc -l < answers >> trained; [ -e trains ] && exec PY launcher.py; true',
    # -c asks where trl lies; anything else is the check of the node
    python='if [ "$1" = -c ]; then echo TRL; else echo "$@" > checked; [ ! -e unready ]; fi',
    vllm='echo "$VLLM_SERVER_DEV_MODE" "$@" > served; [ -e broken ] && exit 3; exec sleep 900',
    # answers the third time
    curl='echo "$@" >> answers; [ ! -e silent ] && [ "$(wc -l < answers)" -gt 2 ]',
    sleep='if [ "$1" = 5 ]; then exec /bin/sleep .3; else exec /bin/sleep "$1"; fi',
    srun='while [[ "$1" == --* ]]; do echo "$1" >> asked; shift; done; exec setsid "$@"')

def submit(folder, *marks, tools=TOOLS, **variables):
    "The script where a cluster's commands note what they were asked; `marks` say how they behave."
    (folder/'launcher.py').write_text(LAUNCHER)
    for o in marks: (folder/o).touch()
    for k,v in tools.items():
        (folder/k).write_text('#!/bin/bash\n'+v.replace('PY ', sys.executable+' ')+'\n')
        (folder/k).chmod(0o755)
    env = os.environ|dict(PATH=f'{folder}:{os.environ["PATH"]}', SLURM_JOB_NODELIST='n', SLURM_NNODES='3',
        SLURM_PROCID='1', SLURM_JOB_ID='7')|variables
    return subprocess.Popen(['bash', SCRIPT], env=env, cwd=folder, stdout=subprocess.PIPE, text=True)

@pytest.mark.processes
def test_a_server_gets_a_node_and_answers_before_the_trainers_start(tmp_path):
    p = submit(tmp_path)
    assert 'requeued' not in p.communicate(timeout=120)[0] and p.returncode==0
    asked = (tmp_path/'asked').read_text().split()
    two = ['--nodes=2','--ntasks=2','--exclude=node2']
    assert asked==[*two, '--nodes=1','--ntasks=1','--nodelist=node2', *two]
    checked = (tmp_path/'checked').read_text()
    assert '--num_processes 16 --num_machines 2 --machine_rank 1' in checked
    served = (tmp_path/'served').read_text()
    assert served.startswith('1 serve Qwen/Qwen2.5-32B-Instruct --port 8000')
    assert '--enable-scale-out' in served   # without it vLLM 0.30 and newer refuse images
    words,answers = (tmp_path/'trained').read_text().splitlines()
    assert answers=='3' and '--main_process_ip node0' in words and '--machine_rank 1' in words
    assert '--config_file TRL/accelerate_configs/fsdp2.yaml --num_processes 16' in words
    assert words.endswith('--vllm_server_host node2 --vllm_server_port 8000')
    assert set((tmp_path/'answers').read_text().split())=={'-sf','http://node2:8000/health'}

@pytest.mark.processes
def test_a_node_that_is_not_ready_and_a_server_that_can_not_start_end_the_job(tmp_path):
    for name,marks in (('unready', ['unready']), ('broken', ['broken','silent'])):
        (folder := tmp_path/name).mkdir()
        p = submit(folder, *marks)
        assert 'requeued' not in p.communicate(timeout=120)[0] and p.returncode==1
        assert not (folder/'trained').exists() and (folder/'served').exists()==(name=='broken')

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

# Two "nodes" of this machine, a process on each: `srun` starts a task per node, `accelerate` is torchrun with
# the tiny Qwen, two passes of three rows, so that the second of three groups of four straddles the nodes.
REAL = TOOLS|dict(
    srun='''n=1; while [[ "$1" == --* ]]; do [[ "$1" == --ntasks=* ]] && n=${1#*=}; shift; done
[ "$1" = env ] && exec setsid "$@"
pids=; for ((i=0; i<n; i++)); do SLURM_PROCID=$i setsid "$@" & pids="$pids $!"; done
echo $pids > tasks
trap 'kill -TERM ${pids##* }' TERM   # one node alone is told
code=0; for p in $pids; do while kill -0 $p 2>/dev/null; do wait $p; c=$?; done; [ $c = 0 ] || code=$c; done
exit $code''',
    accelerate=f'''exec {sys.executable} -m torch.distributed.run --nnodes 2 --nproc_per_node 1 \\
    --node_rank $SLURM_PROCID --master_addr 127.0.0.1 --master_port $MASTER_PORT {SCALE}/on_cpu.py \\
    {SCALE}/full_run.py --config {SCALE}/two_processes.yaml --model tiny --dataset sums --max_steps 30 \\
    --per_device_train_batch_size 3 --gradient_accumulation_steps 2 --max_completion_length 24 \\
    --learning_rate 2e-4 --save_steps 100 --output_dir "$OUTPUT"''')

def history(folder):
    f = folder/'run'/'history.jsonl'
    return [o for o in map(json.loads, f.read_text().splitlines()) if 'loss' in o] if f.exists() else []

@pytest.mark.processes
@pytest.mark.weekly
def test_two_nodes_train_one_is_told_to_stop_and_the_job_goes_on(tmp_path):
    def start():
        return submit(tmp_path, tools=REAL, OUTPUT='run', MASTER_PORT='29517', OMP_NUM_THREADS='1',
            PYTHONPATH=str(ROOT))
    p,until = start(),time.time()+300
    while len(history(tmp_path))<3 and p.poll() is None and time.time()<until: time.sleep(.1)
    p.send_signal(signal.SIGTERM)
    assert 'requeued 7' in p.communicate(timeout=300)[0] and p.returncode==0
    stopped = len(history(tmp_path))
    assert 3<=stopped<30 and (tmp_path/'run'/f'checkpoint-{stopped}').exists()
    p = start()
    assert 'requeued' not in p.communicate(timeout=600)[0] and p.returncode==0
    assert [o['step'] for o in history(tmp_path)]==list(range(1, 31))
    assert sum(o['replay/replaced'] for o in history(tmp_path))
    groups = (tmp_path/'run'/'groups.jsonl').read_text().splitlines()
    assert len(groups)==3*30
