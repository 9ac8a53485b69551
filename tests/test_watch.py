"Watching a run that goes on: on this machine alone, with a token, by callback and in a browser"
import http.client, json
import pytest
from grpo_nb.see import serve as W
from grpo_nb.see.serve import serve, watch
from grpo_nb.see.view import as_json
from made_runs import make_run

@pytest.fixture
def served(tmp_path):
    make_run(tmp_path/'r', n_steps=4)
    f = tmp_path/'r'/'settings.json'
    settings = json.loads(f.read_text())
    settings['args']['max_steps'] = 12
    (tmp_path/'r'/'summary.json').unlink()   # it goes on
    f.write_text(json.dumps(settings))
    server,address = serve(tmp_path/'r')
    yield tmp_path/'r',server,address
    server.shutdown()
    server.server_close()

def ask(port, path, host=None, method='GET'):
    c = http.client.HTTPConnection('127.0.0.1', port, timeout=120)
    c.request(method, path, headers={'Host':host or f'127.0.0.1:{port}'})
    r = c.getresponse()
    return r.status,r.read()

def test_only_who_has_the_token_and_comes_by_this_name_is_served(served):
    _,server,address = served
    port = server.server_port
    token = address.split('token=')[1]
    assert ask(port, f'/?token={token}')[0]==200
    short = f'/stamp?token={token[:-1]}'
    for path in ('/', '/?token=', '/?token=x', '/packed', short, '/block?b=0', '/?token=%ff'):
        assert ask(port, path)[0]==403
    assert ask(port, f'/packed?token={token}', host='evil.example')[0]==403
    assert (ask(port, f'/../../etc/passwd?token={token}')[0] == 404
            and ask(port, f'/block?token={token}')[0] == 404)
    assert ask(port, f'/stamp?token={token}', method='POST')[0]==501

def test_it_listens_on_this_machine_alone(served):
    import socket
    port = served[1].server_port
    other = [o[4][0] for o in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
             if not o[4][0].startswith('127.')]
    for at in other:
        with socket.socket() as s:
            s.settimeout(2)
            with pytest.raises(OSError): s.connect((at, port))

def test_the_page_takes_in_what_the_run_writes(served, browser):
    folder,server,address = served
    port = server.server_port
    page,asked,errors = browser.new_page(bypass_csp=True),[],[]
    page.on('request', lambda r: asked.append(r.url))
    page.on('pageerror', lambda e: errors.append(str(e)))
    page.goto(address)
    page.wait_for_selector('.gv-row')
    page.wait_for_function("document.querySelector('.gv')?.gv?.run.S==4")
    rows = [json.loads(o) for o in (folder/'groups.jsonl').read_text().splitlines()][-8:]
    with open(folder/'groups.jsonl', 'a', encoding='utf-8') as f:
        f.write(''.join(json.dumps(o|dict(step=9))+'\n' for o in rows)+'{"step": 10, "gr')
    page.wait_for_function("document.querySelector('.gv')?.gv?.run.S==5")
    page.get_by_label('search').fill(rows[0]['prompt']); page.keyboard.press('Enter')
    page.wait_for_function("/found/.test(document.querySelector('.gv-found').innerText)")
    assert errors==[] and {o.split('/')[2] for o in asked}=={f'127.0.0.1:{port}'}
    status_line = page.locator('p[role=status]').first
    page.locator('p[role=status]', has_text='step 9 of 12, about 1 s left;').first.wait_for()
    assert status_line.evaluate('o => getComputedStyle(o).fontFamily').startswith('system-ui')
    server.shutdown()
    server.server_close()
    page.wait_for_function(
        "/The watching has ended/.test(document.querySelector('p[role=status]').innerText)")
    assert 'as of' in status_line.inner_text()
    page.close()

def test_watch_names_port_and_run_and_ends_with_the_verdict(tmp_path, monkeypatch, capsys):
    "On our folder, and on one of verl's that holds metrics and rollouts"
    verl = tmp_path/'verl_run'
    verl.mkdir()
    for s in range(12):
        rows = [dict(input=f'{g}+1=', output='no idea', score=0., step=s) for g in range(4) for _ in range(4)]
        (verl/f'{s}.jsonl').write_text(''.join(json.dumps(o)+'\n' for o in rows))
    make_run(tmp_path/'r', n_steps=6)
    def stop(seconds): raise KeyboardInterrupt
    monkeypatch.setattr('grpo_nb.see.live.time.sleep', stop)
    for folder,words in ((tmp_path/'r', 'It learned'), (verl, 'It learned nothing')):
        watch(str(folder), browser=False)
        out = capsys.readouterr().out
        port = out.split('127.0.0.1:')[1].split('/')[0]
        assert f'run {folder.name} on port {port}: http://127.0.0.1:{port}/?token=' in out
        assert words in out.splitlines()[2] and 'Reuse: ' not in out
    (tmp_path/'new').mkdir()
    watch(str(tmp_path/'new'), browser=False)
    assert 'no verdict: ' in capsys.readouterr().out

def test_a_folder_of_another_trainer_is_followed(tmp_path):
    "verl adds a file per step: the reader's stamp changes, and its pages hold the new step"
    def put(s):
        rows = [dict(input='2+2=', output=str(i), score=float(i%2), step=s) for i in range(4)]
        (tmp_path/f'{s}.jsonl').write_text(''.join(json.dumps(o)+'\n' for o in rows))
    put(1)
    reader = W._Reader(tmp_path, "")
    reader.now()
    def packed(): return as_json(reader.now().packed())
    before,one = reader.stamp,packed()
    put(2)
    assert len(packed())>len(one) and reader.stamp!=before

def test_in_a_file_the_bar_is_drawn_twice_a_minute(capfd):
    pytest.importorskip('ipykernel.zmqshell')   # to have it is not to run in it
    from types import SimpleNamespace as NS
    from grpo_nb.see.monitor import RunMonitor
    bar = RunMonitor().progress_bar(NS(step=40, args=NS(max_steps=200, disable_tqdm=False)))
    for step in range(44, 201, 4):
        bar.set_postfix_str(f'reward {step/200:.2f}', refresh=False)
        bar.update(4)
    bar.close()
    drawn = capfd.readouterr().err.split('\r')
    assert len(drawn)<5 and '200/200' in drawn[-1] and 'reward 1.00' in drawn[-1]

def test_a_notebooks_cell_has_a_bar_although_its_output_is_no_terminal(monkeypatch):
    import sys
    from types import SimpleNamespace as NS
    from grpo_nb.see.monitor import RunMonitor
    s = NS(step=0, args=NS(max_steps=8, disable_tqdm=False))
    for shell,is_bar in ((NS(kernel=NS()), True), (NS(), False), (None, False)):
        monkeypatch.setitem(sys.modules, 'IPython', NS(get_ipython=lambda: shell))
        bar = RunMonitor().progress_bar(s)
        bar.close()
        assert (bar.mininterval<1)==is_bar and (is_bar or bar.maxinterval>=bar.mininterval)

def test_a_run_that_goes_on_is_not_told_to_train_longer(tmp_path):
    from grpo_nb.run.record import Recorder
    from grpo_nb.see.view import PackedRun, run_progress, verdict_so_far
    from grpo_nb.see.readers import open_run
    rec = Recorder(tmp_path, dict(trainer='grpo_nb', args=dict(max_steps=160)))
    def log(*batches):
        for i in batches:
            rec.log(dict(step=4*i, reward=.3+.05*(-1)**i, frac_reward_zero_std=.1, step_time=6.))
    log(*range(16))
    run = open_run(tmp_path)
    at = run_progress(run)
    assert (at['done'], at['planned'], at['over']) == (64, 160, False) and at['seconds_left']==96/4*6.
    v = verdict_so_far(run)[0]
    assert v.sentence.startswith('After 64 of 160 steps: Undecided') and v.advice==''
    assert PackedRun(run).packed()
    log(*range(16, 40))
    over = open_run(tmp_path)
    assert run_progress(over)=={'done':160, 'planned':160, 'seconds_left':None, 'over':True}
    assert verdict_so_far(over)[0].advice.startswith('train longer')
