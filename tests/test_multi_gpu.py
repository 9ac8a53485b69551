"The plan of a large run, launch files key by key and value by value, commands as a shell reads them."
import os, shlex, subprocess, sys
import pytest, yaml
from grpo_nb.distributed import pieces
from grpo_nb.multi_gpu import *
from grpo_nb.multi_gpu import _join, QWEN, STRATEGIES

@pytest.mark.parametrize('name,n', [('0.5B',494_032_768),('1.5B',1_543_714_304),('3B',3_085_938_688),('7B',7_615_616_512)])
def test_shapes_have_as_many_weights_as_published(name, n): assert count_weights(qwen_config(f'Qwen/Qwen2.5-{name}-Instruct'))==n

def test_a_model_without_shapes_is_named_with_a_near_one():
    with pytest.raises(ValueError, match='did you mean Qwen/Qwen2.5-7B'): qwen_config('Qwen/Qwen2.5-70B')

def test_a_layout_is_legal_exactly_when_groups_are_whole_over_all():
    for w in (1,2,3,8):
        for b in range(1, 5):
            for s in range(1, 4):
                for G in range(2, 9):
                    if w*b*s%G:
                        with pytest.raises(ValueError, match='does not divide'): Layout(w, b, s, G)
                    else:
                        lay = Layout(w, b, s, G)
                        assert bool(lay.straddling())==bool(b*s%G) and lay.groups*G==w*b*s
    with pytest.raises(ValueError, match='whole number'): Layout(0, 1, 1, 2)
    with pytest.raises(ValueError, match='group of one'): Layout(1, 2, 1, 1)

def test_states_are_16_bytes_a_weight_and_are_cut_as_the_strategy_says():
    c,lay = qwen_config('Qwen/Qwen2.5-7B'),Layout(8, 2, 8, 16, 8)
    n = count_weights(c)
    state = lambda s, **k: sum(memory_plan(c, lay, 256, 1024, s, **k)[o] for o in ('weights','gradients','optimizer'))
    assert state('ddp')==16*n and state('fsdp2')==state('zero3')==2*n and state('zero2')==4*n+12*n/8
    assert abs(state('fsdp2')/1e9-15.2)<.1                                  # 7B at 8 GPUs
    assert not memory_plan(c, lay, 256, 1024, 'ddp')['fits'] and memory_plan(c, lay, 256, 1024, 'fsdp2')['fits']
    assert memory_plan(c, lay, 256, 1024, 'fsdp2', beta=.1)['reference']==2*n/8
    with pytest.raises(ValueError, match='no strategy'): memory_plan(c, lay, 1, 1, 'fsdp3')

def test_a_plan_names_what_speaks_against_it():
    p = run_plan('Qwen/Qwen2.5-7B', Layout(8, 2, 8, 16, 3), 30000, 4000, strategy='ddp')
    assert [any(w in o for o in p['problems']) for w in ('no multiple of gradient_accumulation_steps','more than the 32768','cut the states')]==[True]*3
    assert 'PROBLEM' in format_plan(p)
    assert run_plan('Qwen/Qwen2.5-7B', Layout(64, 2, 4, 16, 4), 256, 1024, strategy='fsdp2')['straddling']==32

@pytest.mark.parametrize('s', STRATEGIES)
def test_trls_files_pass_our_check_and_accelerates_own_reader(s, tmp_path):
    from accelerate.commands.config.config_args import load_config_from_file
    f = write_launch_config(tmp_path/'c.yaml', s, 64, 8)
    c = load_config_from_file(f)
    assert (c.num_processes, c.num_machines, str(getattr(c.mixed_precision, 'value', c.mixed_precision)))==(64, 8, 'bf16')
    assert check_launch_config(yaml.safe_load(open(f)))==[]

@pytest.mark.parametrize('edit,say', [
    (lambda c: c['fsdp_config'].update(fsdp_versoin=2), "no key 'fsdp_versoin', did you mean 'fsdp_version'"), (lambda c: c['fsdp_config'].update(fsdp_version=3), 'fsdp_version is 3'),
    (lambda c: c['fsdp_config'].update(fsdp_state_dict_type='FULLSTATE'), "'FULLSTATE', needs one of FULL_STATE_DICT"), (lambda c: c.update(mixed_precision='bf17'), "'bf17'"), (lambda c: c.update(num_processes='8'), "num_processes is '8'"),
    (lambda c: c.update(distributed_type='MULTI_GPU'), 'fsdp_config is ignored'), (lambda c: c.pop('fsdp_config'), 'there is no fsdp_config'), (lambda c: c.update(use_cpu=True), 'plain DDP'), (lambda c: c.update(machine_rank=1), 'ranks count from 0'),
    (lambda c: c.update(num_machines=3), '8 processes on 3 machines'), (lambda c: c.update(debug='no'), 'true or false'), (lambda c: c.update(fsdp_config=[1]), 'needs keys and values')])
def test_each_wrong_key_and_value_is_named(edit, say):
    c = launch_config('fsdp2'); edit(c)
    assert any(say in o for o in check_launch_config(c)), check_launch_config(c)

def test_a_wrong_change_is_refused_and_a_right_one_lands_in_its_part():
    with pytest.raises(ValueError, match='FULLSTATE'): launch_config('fsdp2', fsdp_state_dict_type='FULLSTATE')
    assert launch_config('zero3', offload_optimizer_device='cpu')['deepspeed_config']['offload_optimizer_device']=='cpu'
    with pytest.raises(ValueError, match='no strategy'): launch_config('fsdp9')

def test_torchrun_and_accelerate_read_our_commands():
    from torch.distributed.run import get_args_parser
    from accelerate.commands.launch import launch_command_parser
    a = get_args_parser().parse_args(launch_command(['t.py','--x','1'], None, 64, 8, '3', 'node0')[1:])
    assert (a.nnodes, a.nproc_per_node, str(a.node_rank), a.rdzv_endpoint, a.training_script, a.training_script_args)==('8','8','3','node0:29500','t.py',['--x','1'])
    b = launch_command_parser().parse_args(launch_command(['-m','grpo_nb','gsm8k'], 'c.yaml', 64, 8, '3', 'node0')[2:])
    assert (b.num_processes, b.num_machines, b.machine_rank, b.main_process_ip, b.module, b.training_script)==(64, 8, 3, 'node0', True, 'grpo_nb')

def test_each_slurm_node_reads_its_own_rank():
    line = slurm_script(['t.py'], 'c.yaml', 4).splitlines()[-1].replace('srun ', '').replace('exec accelerate', 'echo accelerate')
    got = [subprocess.run(['bash','-c',line], env=os.environ|dict(SLURM_PROCID=str(i), MASTER='n0'), capture_output=True, text=True).stdout for i in range(4)]
    assert all(f'--machine_rank {i} --main_process_ip n0' in o for i,o in enumerate(got))
    assert '#SBATCH --signal=TERM@300' in slurm_script(['t.py'], 'c.yaml')

def test_vllm_is_asked_before_anything_is_loaded(monkeypatch):
    import grpo_nb.multi_gpu as M
    assert vllm_problem('')=='' and 'not installed' in vllm_problem('server') and 'needs' in vllm_problem('servr')
    monkeypatch.setattr(M, 'find_spec', lambda n: True)
    assert vllm_problem('colocate')=='' and 'no vLLM server answers at http://127.0.0.1:9' in vllm_problem('server', 'http://127.0.0.1:9', .5)
    words = shlex.split(vllm_command('M', 2))
    assert words[0]=='VLLM_SERVER_DEV_MODE=1' and words[words.index('--weight-transfer-config')+1]=='{"backend":"nccl"}'

def test_sixty_four_fake_processes_cut_the_states_as_planned():
    "FSDP2 on a fake process group of 64: a rank's share of the weights, on the meta device."
    code = '''
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from grpo_nb.multi_gpu import qwen_config, count_weights
from grpo_nb.tiny_qwen import Qwen2ForCausalLM
dist.init_process_group('fake', rank=5, world_size=64, store=FakeStore())
mesh = init_device_mesh('cpu', (64,))
c = qwen_config('Qwen/Qwen2.5-0.5B')
c.num_hidden_layers,c.layer_types = 2,c.layer_types[:2]
with torch.device('meta'): m = Qwen2ForCausalLM(c)
for l in m.model.layers: fully_shard(l, mesh=mesh)
fully_shard(m, mesh=mesh)
print(sum(p.to_local().numel() for p in m.parameters())*64/count_weights(c))
'''
    r = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120)
    assert r.returncode==0, r.stderr[-2000:]
    assert .98<float(r.stdout)<1.02

def test_fsdp2_on_a_cpu_takes_trls_settings_and_is_made_once():
    code = '''
import os
from grpo_nb.multi_gpu import fsdp2_on_cpu
from accelerate.state import AcceleratorState
try: fsdp2_on_cpu(fsdp_state_dict_type='FULLSTATE'); print('taken')
except ValueError as e: print('FULLSTATE' in str(e), 'ACCELERATE_USE_FSDP' in os.environ)
fsdp2_on_cpu(fsdp_reshard_after_forward=False)
once = AcceleratorState.__init__
fsdp2_on_cpu()
print(AcceleratorState.__init__ is once, os.environ['FSDP_VERSION'], os.environ['FSDP_RESHARD_AFTER_FORWARD'], os.environ['FSDP_AUTO_WRAP_POLICY'])
'''
    r = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120)
    assert r.stdout.splitlines()==['True False', 'True 2 True TRANSFORMER_BASED_WRAP'], r.stderr[-2000:]
