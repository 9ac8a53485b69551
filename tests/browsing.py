"What the tests in a browser share: where it is, what axe-core is asked, when a page has its theme"

import io, os, shutil
import numpy as np

# The first has no windows to draw, and takes three fifths of the processor time of the others
BROWSERS = 'chromium-headless-shell','chromium','chromium-browser','google-chrome'
CHROME = os.environ.get('CHROME') or next(filter(None, map(shutil.which, BROWSERS)), None)
QUIET = ('--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking '
         '--disable-component-update --disable-sync').split()
PATIENCE = 120_000   # milliseconds: a busy machine takes many times what a quiet one does

def patient(browser):
    "Each page waits as long for what it is asked to wait for."
    new_page,new_context = browser.new_page, browser.new_context
    def page(**options):
        pg = new_page(**options)
        pg.set_default_timeout(PATIENCE)
        return pg
    def context(**options):
        ctx = new_context(**options)
        ctx.set_default_timeout(PATIENCE)
        return ctx
    browser.new_page,browser.new_context = page,context
    return browser

def picture_of(page):
    "What a page shows, as a Pillow image"
    from PIL import Image
    return Image.open(io.BytesIO(page.screenshot())).convert('RGB')

def save_recording(frames, to, n_colours=160):
    """Pictures, each with the milliseconds that it stays, as one lossless WebP of their most used colors.

    Areas and letters keep their colors; a rare shade, at the edge of a letter, becomes the closest kept one.
    """
    from PIL import Image
    pixels = np.stack([np.asarray(o) for o,_ in frames]).astype(int)
    codes,place,count = np.unique(pixels@(65536,256,1), return_inverse=True, return_counts=True)
    colours = np.stack([codes>>16, codes>>8&255, codes&255], 1)
    kept = colours[np.argsort(-count, kind='stable')[:n_colours]]
    near = [kept[np.square(kept-o).sum(1).argmin()] for o in colours]
    few = np.array(near, dtype=np.uint8)[place].reshape(pixels.shape)
    first,*rest = map(Image.fromarray, few)
    first.save(to, save_all=True, append_images=rest, duration=[ms for _,ms in frames], loop=0, lossless=True,
        quality=100, method=4, minimize_size=True)
    print(f'{to}: {len(frames)} pictures, {to.stat().st_size/1024:.0f} KB')

LOOK = """o => axe.run(o.within || document,   // frames are asked one by one
    {...o.rules, resultTypes: ['violations'], selectors: false, iframes: false})"""
OFF = dict(enabled=False)   # contrast is asked apart; `region` takes long, and is never serious
RULES = dict(runOnly=['wcag2a','wcag2aa','best-practice'], rules={'color-contrast':OFF, 'region':OFF})
CONTRAST = dict(runOnly=dict(type='rule', values=['color-contrast']))
def ask_axe(frame, axe):
    "Let the frame have axe's text, once"
    if not frame.evaluate('() => !!window.axe'): frame.evaluate(axe)

def axe_errors(frame, rules, within=None):
    got = frame.evaluate(LOOK, dict(within=within, rules=rules))['violations']
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in got
            if v['impact'] in ('serious', 'critical') or v['id'] == 'heading-order']
