"Ctrl-C and SIGTERM: a flag for the run, nothing for the children of a reward, one line on the command line."
import multiprocessing as mp, os, signal, subprocess, sys, threading, time
import pytest
from grpo_nb.run.signals import STOP_SIGNALS, stop_on_signal

def handlers(): return [signal.getsignal(o) for o in STOP_SIGNALS]

@pytest.mark.parametrize('sig', STOP_SIGNALS)
@pytest.mark.processes
def test_the_first_signal_sets_a_flag_and_the_second_acts_as_usual(sig):
    before = handlers()
    with stop_on_signal() as stop:
        assert not stop and handlers()!=before
        os.kill(os.getpid(), sig)
        assert stop and stop.signal==sig.name and handlers()==before
    assert handlers()==before

def test_what_stood_before_comes_back_after_an_error_and_inside_a_run():
    before = handlers()
    with pytest.raises(ZeroDivisionError):
        with stop_on_signal():
            ours = handlers()
            with stop_on_signal(): assert handlers()==ours
            assert handlers()==ours   # the inner one has touched nothing
            1/0
    assert handlers()==before

def test_a_handler_that_c_code_has_set_stays(monkeypatch):
    "Python knows it as None, which can't be set again: the end of a run would raise, and the handler be lost"
    real = signal.getsignal
    before,interrupt = real(signal.SIGTERM),signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(signal, 'getsignal', lambda o: None if o==signal.SIGTERM else real(o))
    try:   # tests that a script begins in the background find SIGINT ignored
        with stop_on_signal():
            assert real(signal.SIGTERM)==before and real(signal.SIGINT)!=signal.default_int_handler
        assert real(signal.SIGTERM)==before and real(signal.SIGINT)==signal.default_int_handler
    finally: signal.signal(signal.SIGINT, interrupt)

def test_outside_the_main_thread_nothing_is_watched():
    before,seen = handlers(),[]
    def go():
        with stop_on_signal() as stop: seen.append((bool(stop), handlers()==before))
    t = threading.Thread(target=go)
    t.start()
    t.join()
    assert seen==[(False, True)]

def for_ever(begun):
    begun.set()
    while True: signal.pause()

def end_one():
    fork = mp.get_context('fork')
    p = fork.Process(target=for_ever, args=[begun := fork.Event()])
    p.start()
    begun.wait()
    p.terminate()
    p.join(60)
    return p.exitcode

@pytest.mark.parametrize('thread', [False, True])
@pytest.mark.processes
def test_a_child_of_a_reward_can_be_terminated(thread):
    out = []
    with stop_on_signal() as stop:
        if thread:
            t = threading.Thread(target=lambda: out.append(end_one()))
            t.start()
            t.join()
        else: out.append(end_one())
        assert not stop
    assert out==[-signal.SIGTERM]

def test_a_pool_ends_with_its_block():
    with stop_on_signal() as stop:
        with mp.get_context('fork').Pool(2) as p: assert p.map(abs, [-1, 2])==[1, 2]
        assert not stop

@pytest.mark.processes
def test_ctrl_c_again_and_again_ends_a_command_in_one_line_and_no_stack():
    code = ('import atexit, signal, time\nfrom grpo_nb import cli\n'
            'signal.signal(signal.SIGINT, signal.default_int_handler)\n'
            'atexit.register(time.sleep, .5)\n'   # what a library does at the end of a program
            'def work(words): print("x", flush=True); time.sleep(900)\n'
            'cli._run = lambda name, words: work(words)\ncli.main(["demo"])')
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    p = subprocess.Popen([sys.executable, '-c', code], **pipes)
    p.stdout.readline()
    while p.poll() is None: p.send_signal(signal.SIGINT); time.sleep(.02)
    err = p.stderr.read().strip()
    assert (err, p.returncode)==('grpo_nb demo: stopped; nothing more was written', 130)
