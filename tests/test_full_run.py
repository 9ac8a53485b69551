"Chapter 18's scripts: a run on one process and on two, killed and started again; what is missing; the plan."
import socket
import pandas as pd
import pytest, torch, yaml
from transformers import AutoConfig, AutoModelForCausalLM
import check_node as N
import rehearsal as R
from plan import count_weights, memory_plan

SCALE = R.SCALE
RESULTS = R.ROOT/'nbs'/'results'
TINY = R.SETTINGS|R.TINY|dict(max_steps=4, save_steps=2, max_completion_length=24)

# --- the run

@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    "The tiny Qwen on two processes, one of them killed behind step 2, and on one."
    folder = tmp_path_factory.mktemp('runs')
    at = {n:folder/f'tiny-0-{n}' for n in (2, 1)}
    costs = {n:R.rehearse(n, at[n], 0, TINY, kill=n==2) for n in at}
    return {n:(R.history(at[n]), R.read_groups(at[n], n), costs[n], at[n]) for n in at}

@pytest.mark.processes
def test_two_processes_under_fsdp2_train_as_one_does(runs):
    one,two = (runs[n][0] for n in (1, 2))
    for k in ('reward','replay/dead','replay/replaced','num_tokens'):
        assert [o[k] for o in one]==[o[k] for o in two], k
    first = next(i for i,o in enumerate(one) if o['grad_norm'])
    for k in ('loss','grad_norm'): assert two[first][k]==pytest.approx(one[first][k], rel=1e-5), k

@pytest.mark.processes
def test_a_run_of_which_one_process_is_killed_goes_on_by_the_same_command(runs):
    log,_,cost,_ = runs[2]
    assert [o['step'] for o in log]==[1, 2, 3, 4]
    assert cost['exit_codes'].split()[0]!='0' and cost['exit_codes'].split()[-1]=='0'

@pytest.mark.processes
def test_groups_lie_on_both_processes_and_come_from_either(runs):
    groups = pd.DataFrame(runs[2][1])
    assert groups.groupby('process').size().tolist()==[16, 16]
    replaced = groups[groups.outcome=='replaced']
    assert len(replaced) and replaced.made_step.lt(replaced.step).all()

def test_the_stored_runs_are_the_same_on_one_process_and_on_two():
    log = pd.read_csv(RESULTS/'full_run.csv').set_index(['seed','processes','step'])
    for seed in log.index.unique('seed'):
        one,two = (log.loc[seed, n] for n in (1, 2))
        shared = one.index.intersection(two.index)
        assert two.index.tolist()==list(range(1, R.SETTINGS['max_steps']+1)) and len(shared)>=8
        for k in ('reward','dead','replaced'): assert one[k][shared].tolist()==two[k][shared].tolist()
        assert two.loss[1]==pytest.approx(one.loss[1], rel=1e-5)
        assert two.reward.iloc[-3:].mean()>two.reward.iloc[:3].mean()+.3

# --- what is missing, before anything is loaded

def says(check, words):
    "What a check of the run on eight GPUs reports as missing; '' where nothing is."
    o = N.read_settings([*f'--config {SCALE}/eight_gpus.yaml --num_processes 8'.split(), *map(str, words)])
    try: N.CHECKS[check](o)
    except N.Missing as e: return str(e)
    return ''

def cards(monkeypatch, n):
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: n)
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda i: 'a card')

def test_no_gpu_and_too_few_are_named(monkeypatch):
    cards(monkeypatch, 0)
    assert 'sees no GPU' in says('GPUs', []) and '--use_cpu true' in says('GPUs', [])
    assert says('GPUs', ['--use_cpu', 'true'])==''
    cards(monkeypatch, 3)
    assert '8 GPUs are asked for and torch sees 3' in says('GPUs', [])
    assert says('GPUs', ['--num_processes', 6, '--num_machines', 2])==''

@pytest.mark.parametrize('here,what', [(None, 'not installed'), ('0.33.0', 'vllm 0.33.0'), ('0.31.0', '')])
def test_a_vllm_that_trl_does_not_take_is_named(monkeypatch, here, what):
    def version(name):
        if name!='vllm': return 'one'
        if here is None: raise N.PackageNotFoundError
        return here
    monkeypatch.setattr(N, 'version', version)
    output = says('vLLM', [])
    assert what in output and bool(what)==bool(output) and (not what or '<=0.31.0' in output)
    assert says('vLLM', ['--use_vllm', 'false'])==''

def test_a_port_in_use_is_named():
    with socket.socket() as s:
        s.bind(('', 0))
        s.listen()
        port = s.getsockname()[1]
        assert f'port {port}' in says('port', ['--main_process_port', port])
        assert says('port', ['--main_process_port', port, '--machine_rank', 1])==''
    assert says('port', ['--main_process_port', port])==''

def test_a_batch_that_does_not_divide_names_the_nearest_that_does():
    output = says('batch', ['--per_device_train_batch_size', 13, '--num_generations', 12])
    assert output.endswith('per_device_train_batch_size can be 12 or 15')
    for b in (12, 15): assert says('batch', ['--per_device_train_batch_size', b, '--num_generations', 12])==''
    assert says('batch', ['--num_processes', 1, '--per_device_train_batch_size', 3]).endswith('can be 8')

def test_a_model_that_does_not_fit_is_named_before_it_is_loaded(monkeypatch):
    monkeypatch.setattr(AutoModelForCausalLM, 'from_pretrained', None)
    assert 'GB on each GPU of 0' in says('memory', ['--model', 'tiny', '--gpu_gb', .01])
    assert says('memory', ['--model', 'tiny', '--gpu_gb', 80])==''
    assert 'adafactor is not counted' in says('memory', '--model tiny --gpu_gb .01 --optim adafactor'.split())

def test_a_folder_that_is_not_shared_is_named(tmp_path):
    words = ['--model','tiny','--output_dir',tmp_path/'run','--num_machines',2,'--wait_s',.1]
    assert 'node 0 does not see the file of node 1' in says('folder', words)
    (tmp_path/'run'/'.node-1').touch()
    assert says('folder', words)==''

def test_a_full_disk_and_an_unknown_setting_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(N.shutil, 'disk_usage', lambda f: type('Usage', (), dict(free=0)))
    assert 'has 0 GB free' in says('folder', ['--model','tiny','--output_dir',tmp_path])
    with pytest.raises(N.Missing, match="no setting '--learning_rat'"):
        N.read_settings(['--learning_rat','1'])

@pytest.mark.processes
def test_the_whole_check_passes_on_two_processes_and_fails_without_a_gpu(tmp_path, capsys):
    words = f'--config {SCALE}/two_processes.yaml --num_processes 2 --model tiny --output_dir {tmp_path}'
    assert N.main([*words.split(), '--main_process_port', '0'])==0
    assert '2 processes of this node sum a tensor by gloo' in capsys.readouterr().out
    if not torch.cuda.is_available():
        assert N.main([*words.split(), '--use_cpu', 'false'])==1
        assert 'collectives' not in capsys.readouterr().out

# --- settings and plan

def test_the_settings_of_both_sizes_are_known_and_legal():
    for name,n in (('eight_gpus',8), ('two_processes',2)):
        o = N.read_settings([*f'--config {SCALE}/{name}.yaml --num_processes {n}'.split()])
        assert 'optimizer steps: 1' in N.check_batch(o)

def test_a_layer_keeps_as_many_bytes_as_the_plan_counts():
    "Tensors saved for the backward pass of a small Qwen2, beside the formula."
    sizes = dict(hidden_size=128, intermediate_size=512, num_attention_heads=4, num_key_value_heads=1,
        vocab_size=64)
    kept = []
    for layers in (1, 3):
        config = AutoConfig.for_model('qwen2', num_hidden_layers=layers, **sizes)
        model,memory = AutoModelForCausalLM.from_config(config).train(),{}
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        def note(t):
            s = t.untyped_storage()
            if s.data_ptr() not in weights and s.nbytes()%(8*64)==0: memory[s.data_ptr()] = (s.nbytes(), t)
            return t
        ids = torch.zeros(8, 64, dtype=torch.int64)
        saved = torch.autograd.graph.saved_tensors_hooks(note, lambda t: t)
        with saved, torch.autocast('cpu', torch.bfloat16):
            out = model.get_decoder()(input_ids=ids).last_hidden_state
        low = sum(2*p.numel() for k,p in model.named_parameters() if p.ndim==2 and 'layers' in k)
        kept.append(sum(n for n,_ in memory.values())-low)   # autocast's copies of weights do not count
    del out
    want = 1e9*memory_plan(config, 8, 64, checkpointing=False)['activations']/3
    assert (kept[1]-kept[0])/2==pytest.approx(want, rel=.15)

def test_the_plan_is_near_what_an_h100_held():
    day = pd.read_csv(RESULTS/'gpu_day.csv')
    step = day[(day['name']=='step-05b')&(day.case=='peak memory')&(day.arm=='replay')&~day.tiny]
    measured = step.value.item()/1e9
    shapes = yaml.safe_load((R.ROOT/'benchmarks'/'shapes.json').read_text())
    config = AutoConfig.for_model(**shapes['Qwen/Qwen2.5-0.5B'])
    assert count_weights(config)[0]==494_032_768
    assert sum(memory_plan(config, 32, 192, checkpointing=False).values())==pytest.approx(measured, rel=.05)

def test_shards_add_up_to_the_whole():
    config = AutoConfig.for_model('qwen2', hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, vocab_size=100)
    n = count_weights(config)[0]
    one,eight = (memory_plan(config, 4, 8, w) for w in (1, 8))
    for k in ('weights','gradients','Adam, two averages'): assert 8*eight[k]==pytest.approx(one[k])
    assert 1e9*sum(one[k] for k in ('weights','gradients','Adam, two averages'))==pytest.approx(16*n)
    assert one['gradients not yet summed']==0
    assert 1e9*memory_plan(config, 4, 8, 8, 2)['gradients not yet summed']==2*n
