"""A recording of a fork in the live page: pause, choose a replaced group, fork, and both futures grow.

    python tests/record_fork.py nbs/images        # fork_1280.webp and fork_390.webp
"""
import argparse, tempfile
from pathlib import Path
from browsing import CHROME, QUIET, patient, picture_of, save_recording
from grpo_nb.see.live import serve_live, write_live

SIZES = {1280:770, 390:760}   # of the window, pixels
BEFORE,AFTER = 8,14           # batches until the pause, and at the end
SQUARE = '.map:first-child .col.new:nth-child(n+5) :is(.s5, .s6)'   # a replaced group, from batch 5 on

class Recording:
    "Pictures of a page at two widths, each with the milliseconds that it stays."
    def __init__(self, page): self.page,self.frames = page,{w:[] for w in SIZES}
    def take(self, ms, phone, desktop='.bar'):
        "Take one picture of each width, with an element at the top of the window."
        for width,height in SIZES.items():
            self.page.set_viewport_size(dict(width=width, height=height))
            top = phone if width<600 else desktop
            self.page.evaluate('o => { document.querySelector(o).scrollIntoView(); scrollBy(0, -8) }', top)
            self.frames[width].append((picture_of(self.page), ms))

    def save(self, folder):
        for width,frames in self.frames.items(): save_recording(frames, folder/f'fork_{width}.webp')

def record_fork(page, address):
    "Train, pause, fork, and train on; the pictures."
    made = Recording(page)
    columns = lambda: page.locator('.map .col.new').count()
    paused = lambda: page.locator('#status', has_text='paused').wait_for()
    page.goto(address)
    page.locator('#train:not([disabled])').wait_for()
    page.click('#train')
    page.locator('.map .col.new').nth(BEFORE-1).wait_for()
    page.click('#train')
    paused()
    made.take(1600, '#score')
    page.locator(SQUARE).first.click()
    made.take(2600, '#panel')
    page.locator('form.fork button').click()
    page.locator('.map').nth(1).wait_for()
    seen = columns()
    while seen<2*AFTER:
        page.wait_for_function('n => document.querySelectorAll(".map .col.new").length > n', arg=seen+4)
        seen = columns()
        made.take(1100, '#score')
    page.click('#train')
    paused()
    made.take(5000, '.map:last-child')
    print(page.inner_text('#apart'))
    return made

def main(out):
    from playwright.sync_api import sync_playwright
    with tempfile.TemporaryDirectory() as d, sync_playwright() as p:
        write_live(d)
        server,address = serve_live(d)
        browser = patient(p.chromium.launch(executable_path=CHROME, args=QUIET))
        page = browser.new_page(reduced_motion='reduce', viewport=dict(width=1280, height=770))
        record_fork(page, address).save(out)
        browser.close()
        server.shutdown()

if __name__=='__main__':
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('out', type=Path, help='folder of the two recordings')
    main(p.parse_args().out)
