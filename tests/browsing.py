"What the tests in a browser share: where it is, what axe-core is asked, when a page has its theme"

import os, shutil

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

LOOK = """o => axe.run(o.within || document,   // frames are asked one by one
    {...o.rules, resultTypes: ['violations'], selectors: false, iframes: false})"""
OFF = dict(enabled=False)   # contrast is asked apart; `region` takes long, and is never serious
RULES = dict(runOnly=['wcag2a','wcag2aa','best-practice'], rules={'color-contrast':OFF, 'region':OFF})
CONTRAST = dict(runOnly=dict(type='rule', values=['color-contrast']))
IN_THEME = """look => {   // the ground comes with a theme's file, the inks with a class 50 ms after the click
  const html = document.documentElement
  if (![...document.querySelectorAll('link[rel=stylesheet]')].every(o => o.sheet)) return false
  const dark = +getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0] < 128
  return dark === (look === 'dark') && html.classList.contains('quarto-dark') === dark }"""

def ask_axe(frame, axe):
    "Let the frame have axe's text, once"
    if not frame.evaluate('() => !!window.axe'): frame.evaluate(axe)

def axe_errors(frame, rules, within=None):
    got = frame.evaluate(LOOK, dict(within=within, rules=rules))['violations']
    return [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in got
            if v['impact'] in ('serious', 'critical') or v['id'] == 'heading-order']
