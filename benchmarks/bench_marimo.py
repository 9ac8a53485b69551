"""The view in marimo, in a real browser; by hand, since marimo is no dependency:

    pip install marimo
    python benchmarks/bench_marimo.py   # says what it saw, exit status 1 where the view did not come up
"""
import os, shutil, socket, subprocess, sys, tempfile, time, urllib.request
from pathlib import Path
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
APP = '''import marimo
app = marimo.App()

@app.cell
def _():
    import marimo as mo
    from grpo_nb.see.view import view_run
    w = mo.ui.anywidget(view_run({run!r}, step=4, group=1))
    w
    return
'''

def main():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as d:
        app = Path(d, 'app.py')
        app.write_text(APP.replace('{run!r}', repr(str(ROOT/'nbs'/'results'/'run_tiny'))), encoding='utf-8')
        p = subprocess.Popen([sys.executable, '-m', 'marimo', 'run', str(app), '--headless', '--no-token',
            '--host', '127.0.0.1', '--port', str(port)], env=dict(os.environ, PYTHONPATH=str(ROOT)), cwd=d,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            at = f'http://127.0.0.1:{port}'
            for _ in range(200):
                try: urllib.request.urlopen(at, timeout=2).close()
                except OSError: time.sleep(.3)
                else: break
            with sync_playwright() as pw:
                chrome = os.environ.get('CHROME') or shutil.which('chromium')
                b = pw.chromium.launch(executable_path=chrome, args=['--no-sandbox'])
                page = b.new_page(viewport=dict(width=1200, height=1000))
                errors = []
                page.on('pageerror', lambda e: errors.append(str(e)))
                page.goto(at)
                page.wait_for_selector('.gv-row', timeout=90_000)
                page.locator('.gv-row').nth(3).click()
                page.wait_for_function("document.querySelector('.gv-row:nth-child(4).gv-sel') || "
                    "[...document.querySelectorAll('marimo-anywidget')].some(o => "
                    "o.shadowRoot?.querySelector('.gv-row:nth-child(4).gv-sel'))", timeout=20_000)
                page.locator('.gv-plot').focus()
                page.keyboard.press('ArrowRight')
                page.wait_for_timeout(3000)
                said = page.locator('.gv-say').inner_text()
                if shots := os.environ.get('SHOTS'): page.screenshot(path=f'{shots}/marimo.png')
                print(said, errors)
                b.close()
        finally:
            p.terminate()
            p.wait(10)
    return said.startswith('step 8, group 3') and not errors

if __name__=='__main__': sys.exit(not main())
