"""The built site in a real browser: nothing from elsewhere, nothing broken, readable narrow and dark,
widgets that move without a kernel"""

import json, os, re, subprocess, sys, time, zlib
from base64 import b64decode
from html import unescape
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote
import numpy as np
import pytest, yaml
from browsing import CHROME, CONTRAST, IN_THEME, RULES, ask_axe, axe_errors
from grpo_nb.dev.pages import site_errors
from grpo_nb.dev.site import (
    _reading_minutes, chapter_errors, course, form_errors, dead_references, output_errors)

ROOT = Path(__file__).parent.parent

MOVED = yaml.safe_load((ROOT/'nbs'/'moved.yml').read_text(encoding='utf-8'))

def page(site, name):
    "The address of the page of a chapter or room, wherever it stands"
    return next(str(f.relative_to(site)) for f in sorted(site.rglob(f'{name}.html'))
                if 'site_libs' not in f.parts)


@pytest.fixture(scope='module')
def pages(site):
    own = ('site_libs', 'live')   # the live page has tests of its own
    there = {str(f.relative_to(site)) for f in site.rglob('*.html') if not {*own} & {*f.parts}}
    return sorted(there-{*MOVED})


def notebook_pages():
    there = [f.relative_to(ROOT/'nbs') for f in ROOT.glob('nbs/**/*.ipynb')]
    return {str(f.with_name(re.sub(r'^\d+[a-zA-Z0-9]*_', '', f.stem)+'.html')) for f in there}

def test_every_notebook_and_page_has_a_page(site, pages):
    assert notebook_pages()<={*pages}
    assert {'index.html','practise/open.html','project/contributing.html'} <= set(pages)

def test_no_link_anchor_or_picture_is_broken_and_no_other_host_is_asked(site):
    assert site_errors(site)==[]

@pytest.mark.parametrize('latex,plain', [
    (r'\nabla\log\pi_{\theta}', '∇logπ_θ'), (r'\mathbb E|r-p|', 'E|r-p|'), (r'\hat A', 'A'),
    (r'1-\binom{n-c}{k}/\binom{n}{k}', '1-C(n-c, k)/C(n, k)'), (r'\frac{a_{i}}{\sqrt{2}}', '(a_i)/(√(2))'),
    (r'\textcolor{blue}{\partial J}', '{∂ J}'), ('{plain} braces', '{plain} braces')])
def test_formulas_are_letters_in_a_list_of_results(latex, plain):
    from grpo_nb.dev.pages import plain_math
    assert plain_math(latex)==plain

def test_the_site_is_small(site):
    "Bytes of all files, without the live page's model: 9 MB for 162 pages; 8 MB was the limit at 116"
    sizes = {f.relative_to(site):f.stat().st_size for f in site.rglob('*') if f.is_file()}
    del sizes[Path('live/model.safetensors')]
    kinds = {}
    for f,n in sizes.items(): kinds[f.suffix] = kinds.get(f.suffix, 0)+n
    assert sum(sizes.values())<=9_200_000, dict(sorted(kinds.items(), key=lambda o: -o[1]))

def test_no_page_tells_of_the_machine_that_built_it(site, pages):
    for p in pages:
        t = (site/p).read_text(encoding='utf-8')
        for o in (str(ROOT), str(Path.home())+'/', 'site-packages/', 'UserWarning'): assert o not in t, (p, o)
        assert not re.search('object at 0x[0-9a-f]{8}', t), p   # another in each build

def test_every_stored_pile_of_frames_is_tied_to_its_control():
    "Without its link a widget stands still on a page, whatever the slider says"
    from grpo_nb.dev.site import stored_widgets, _VIEW
    for f in ROOT.glob('nbs/**/*.ipynb'):
        nb = json.loads(f.read_text(encoding='utf-8'))
        state = stored_widgets(nb)
        names = [o['model_name'] for o in state.values()]
        assert names.count('StackModel')<=names.count('LinkModel'), f.name
        outputs = [o for c in nb['cells'] for o in c.get('outputs', [])]
        shown = {o['metadata'][_VIEW]['model_id'] for o in outputs if _VIEW in o.get('metadata', {})}
        assert shown<={*state} and bool(shown)==bool(state), f.name

def test_a_notebook_with_widgets_can_be_converted_and_shows_the_picture():
    "As on GitHub, which asks for the key that nbconvert asks for"
    from nbconvert.filters.widgetsdatatypefilter import WidgetsDataTypeFilter
    from grpo_nb.dev.site import pack_widgets, _STATE, _VIEW
    state = {'a':dict(model_name='VBoxModel', state={})}
    output = dict(output_type='display_data', data={_VIEW:dict(model_id='a'), 'image/png':'…'})
    nb = dict(metadata=dict(widgets={_STATE:dict(state=state)}), cells=[dict(outputs=[output])])
    pack_widgets(nb)
    about = dict(metadata=dict(name='a', path=''))
    shown = WidgetsDataTypeFilter(notebook_metadata=dict(a=nb['metadata']), resources=about)
    assert [*shown(output['data'])]==['image/png']

def test_a_notebook_keeps_the_picture_of_a_run_and_the_site_gets_its_page():
    from grpo_nb.dev.site import pack_pages, stored_html
    from grpo_nb.see.view import iframe, map_picture, view_html, view_script
    run = ROOT/'nbs/results/run_tiny'
    page = '<p>before</p>'+iframe(view_html(run), 640, map_picture(run))
    output = dict(output_type='display_data', metadata={}, data={'text/html':page.splitlines(keepends=True)})
    nb = dict(cells=[dict(outputs=[output])])
    for _ in range(2):   # what is packed stays packed
        pack_pages(nb)
        assert output['data']['text/html']==f'<p>before</p><div>{map_picture(run)}</div>'
        assert stored_html(output)==page
    assert len(json.dumps(output))<len(page)-len(view_script())
    stored = json.loads((ROOT/'nbs/15_look_at_a_run.ipynb').read_text(encoding='utf-8'))
    shown = [s for c in stored['cells'] for o in c.get('outputs', []) if '<iframe' in (s := stored_html(o))]
    assert len(shown)==1 and unescape(shown[0]).count(view_script()[:9000])==1

@pytest.mark.weekly
def test_no_word_of_a_stored_picture_is_cut_off_at_its_edge():
    from PIL import Image
    cut = []
    for f in ROOT.glob('nbs/**/*.ipynb'):
        cells = json.loads(f.read_text(encoding='utf-8'))['cells']
        shown = [o.get('data', {}).get('image/png') for c in cells for o in c.get('outputs', [])]
        for png in filter(None, shown):
            pixels = np.asarray(Image.open(BytesIO(b64decode(''.join(png)))).convert('RGB')).astype(int)
            edges = np.concatenate([pixels[:,0], pixels[:,-1], pixels[0], pixels[-1]])
            if abs(edges-pixels[0,0]).max()>30: cut.append(f.name)
    assert cut==[]

@pytest.mark.parametrize('index', ['plain', 'named', 'two levels', 'two levels of columns'])
def test_a_table_is_stored_in_short_with_every_cell_in_its_place(index):
    import pandas as pd
    from bs4 import BeautifulSoup
    from grpo_nb.dev.site import short_table
    df = pd.DataFrame(dict(a=[1.5, 2], b=['two  words', '<i> & more'], c=['', 'one\n  two']))
    if index=='named': df.index.name = 'row'
    if index=='two levels': df = df.set_index(['b','a'])
    if index=='two levels of columns': df.columns = pd.MultiIndex.from_product([['x'], df.columns])
    def cells(page):
        rows = BeautifulSoup(page, 'html.parser').select('tr')
        return [[(o.name, o.attrs, o.text) for o in row.select('th, td')] for row in rows]
    page = df._repr_html_()
    short = short_table(page)
    assert cells(short)==cells(page) and short_table(short)==short and len(short)<.6*len(page)

def test_links_are_kept_whichever_widget_is_met_last():
    from grpo_nb.dev.site import shown_widgets, _STATE, _VIEW
    a,b,c,l = ('0a'*16, '0b'*16, '0c'*16, '0d'*16)
    model = lambda name, **s: dict(model_name=name, state=s)
    ref = 'IPY_MODEL_'.__add__
    for kids in ([a,b,c],[c,a,b],[b,c,a]):
        state = {a: model('BoxModel', children=[ref(o) for o in kids if o != a]),
                 b: model('StackModel', layout=ref(c)), c: model('LayoutModel', base=ref(a)),
                 l: model('LinkModel', source=[ref(a), 'index'], target=[ref(b), 'index'])}
        nb = dict(metadata=dict(widgets={_STATE: dict(state=state)}),
                  cells=[dict(outputs=[dict(data={_VIEW: dict(model_id=a)})])])
        shown_widgets(nb)
        assert 'LinkModel' in [o['model_name'] for o in nb['metadata']['widgets'][_STATE]['state'].values()]

def test_the_checker_sees_each_kind_of_fault(tmp_path):
    (tmp_path / 'a.html').write_text(
        '<h1 id=a>a</h1><h3>skips</h3><a href="b.html">gone</a><a href="#b">no anchor</a><img src="data:,">'
        '<script src="https://cdn.example.com/x.js"></script><link rel=stylesheet href="gone.css">'
    )
    (tmp_path/'a.css').write_text('@import url(https://fonts.example.com/css2?family=A:wght@300;400);')
    said = '\n'.join(site_errors(tmp_path, max_bytes=100))
    for o in (
        'heading of level 3',
        'what is not there: b.html',
        'anchor that is not there: #b',
        'without alt text',
        'asks another host: https://cdn',
        'loads what is not there: gone.css',
        'asks another host: https://fonts',
        'MB, at most',
    ):
        assert o in said, o


def test_exported_code_and_its_entry_stand_on_the_page(site):
    t = (site/page(site, 'tensors')).read_text(encoding='utf-8')
    assert 'id="masked_mean"' in t and 'return' in t and t.count('masked_mean')>3
    assert 'Exported source' not in t

def test_names_in_prose_link_to_the_reference(site):
    t = (site/page(site, 'tensors')).read_text(encoding='utf-8')
    assert re.search(r'<a href="[\w/.]*tensors\.html#masked_mean"[^>]*><code>masked_mean</code></a>', t)
    assert re.search(
        r'<a href="[\w/.]*widgets\.html#explore"[^>]*><code>explore\(',
        (site / page(site, 'widgets')).read_text(encoding='utf-8'),
    )  # a call, too

def test_a_link_whose_text_is_a_name_is_a_link(site):
    text = (site/page(site, 'advantages')).read_text(encoding='utf-8')
    assert re.search(r'groups\.html#why-a-group-is-dead', text)
    assert not [f for f in site.rglob('*.html') if '</a>](' in f.read_text(encoding='utf-8')]


@pytest.fixture(scope='module')
def found(url, browser):
    "The addresses that the search lists for some words"
    pg = browser.new_page()
    pg.goto(f'{url}/float_noise.html')
    def ask(words):
        pg.eval_on_selector_all('.search-result', 'l => l.forEach(o => o.remove())')   # of earlier words
        pg.get_by_placeholder('Search').first.fill(words)
        pg.wait_for_selector('.smalldocs-search-results.show .search-result')   # they come all at once
        return pg.eval_on_selector_all('.search-result', 'l => l.map(o => o.getAttribute("href"))')
    yield ask
    pg.close()

@pytest.mark.parametrize(
    'words,page,within',
    [
        ('masked_mean', r'tensors\.html#masked_mean', 1),
        ('zero variance', r'glossary\.html', 1),
        ('zero-variance group', r'glossary\.html', 1),
        ('custom reward', r'rewards\.html', 1),
        ('dead group', r'replay\.html', 1),
        ('resume', r'practise/resume\.html', 1),
        ('gpu', r'real_run\.html', 1),
        ('out of memory', r'practise/memory\.html', 1),
        ('lora', r'practise/trl\.html', 1),
        ('replay_buffer_size', r'settings\.html', 1),
        ('importance ratio', r'loss\.html#the-importance-ratio', 1),
        ('importance sampling', r'loss\.html#the-importance-ratio', 1),
        ('entropy', r'/logps\.html', 1),
        ('zero advantage', r'/replay\.html', 1),
        ('DAPO', r'catalogue/methods\.html#other-prompts', 1),
        ('Dr. GRPO', r'/advantages\.html', 1),
        ('kl penalty', r'/kl\.html', 1),
        ('vllm', r'practise/trl\.html', 1),
        ('advantage', r'/advantages\.html', 1),
        ('my model repeats itself', r'practise/symptoms\.html', 1),
        ('dapo clip higher', r'settings\.html|loss\.html', 2),   # no section has all three
        ('overfitting', r'/evaluation\.html', 1),
        ('reinforcement learning', r'glossary\.html|grpo_on_one_screen', 2),
        ('policy gradient', r'glossary\.html|from_reward_to_gradient', 2),
        ('credit assignment', r'glossary\.html', 2),
        ('experience replay', r'glossary\.html', 2),
        ('verifiable reward', r'glossary\.html|tasks\.html', 2),
        ('epsilon_high', r'reference/settings\.html', 2),
        ('my reward does not go up', r'practise/symptoms\.html', 1),
        ('why is the reward stuck', r'practise/symptoms\.html', 1),
        ('reward stays at zero', r'practise/symptoms\.html', 1),
        ('kl', r'^(\.\./)?kl\.html|/kl\.html', 1),
    ],
)
def test_the_search_puts_concepts_and_settings_before_functions(found, words, page, within):
    hits = found(words)
    assert any(re.search(page, o) for o in hits[:within]), hits[:5]

def test_a_chapter_says_how_long_it_takes_and_what_to_know_first(site):
    text = (site/page(site, 'loss')).read_text(encoding='utf-8')
    says = r'class="page-links">About \d+ minutes, after <a href="advantages\.html">7 Advantages</a>'
    assert re.search(says, text)
    assert 'minutes, after' not in (site/'practise'/'memory.html').read_text(encoding='utf-8')

def test_llms_txt_lists_every_page_of_the_sidebar_once(site):
    text = (site/'llms.txt').read_text(encoding='utf-8')
    url = yaml.safe_load((ROOT/'nbs'/'nbdev.yml').read_text(encoding='utf-8'))['website']['site-url']
    listed = re.findall(rf'^- \[[^\]]+\]\({url}/([^)]+\.html)\)', text, flags=re.M)
    assert len(listed)==len({*listed})>100 and [o for o in listed if not (site/o).is_file()]==[]
    assert text.startswith('# grpo_nb\n\n> ') and '## Course' in text and '## Optional' in text
    assert {'index.html', page(site, 'advantages'), 'practise/symptoms.html'}<={*listed}
    assert json.loads((site/'findings.schema.json').read_text(encoding='utf-8'))['type']=='array'

def test_an_old_address_leads_to_the_page_with_its_anchor(url, browser):
    pg = browser.new_page()
    for old,new in MOVED.items():
        pg.goto(f'{url}/{old}#limits')
        pg.wait_for_url(f'{url}/{new}#limits')
        assert pg.locator('h1').count()==1
    pg.close()

def test_what_users_say_leads_to_pages_that_are_there(site, pages):
    answers = yaml.safe_load((ROOT/'nbs'/'answers.yml').read_text(encoding='utf-8'))
    assert {o.split('#')[0] for o in answers}<={*pages}
    for at in (o for o in answers if '#' in o):
        file,anchor = at.split('#')
        assert f'id="{anchor}"' in (site/file).read_text(encoding='utf-8'), at

def test_the_first_stop_of_the_keyboard_leads_past_the_menu(url, browser):
    pg = browser.new_page()
    pg.goto(f'{url}/float_noise.html')
    pg.keyboard.press('Tab')
    assert pg.evaluate('document.activeElement.textContent')=='Skip to the text'
    pg.keyboard.press('Enter')
    assert pg.evaluate("document.activeElement.closest('main') !== null")
    pg.close()

def test_the_contents_are_in_sight_at_every_width(url, browser):
    pg = browser.new_page()
    pg.goto(f'{url}/loss.html')
    for width in (400, 1000, 1280, 1600):
        pg.set_viewport_size(dict(width=width, height=900))
        seen = pg.locator('.contents-here:visible, #quarto-margin-sidebar:visible #TOC')
        assert seen.count()>=1, width
        if (fold := pg.locator('.contents-here:visible')).count():
            fold.locator('summary').click()
            assert fold.locator('a').first.is_visible(), width
            fold.locator('summary').click()   # closed, as the next width finds it
    pg.close()

def test_every_page_leads_to_its_notebook(site, pages):
    for p in pages:
        t = (site/p).read_text(encoding='utf-8')
        if p not in ('404.html',): assert 'Edit this page' in t, p
    t = (site/page(site, 'loss')).read_text(encoding='utf-8')
    for o in ('blob/main/nbs/10_loss.ipynb', 'lab/tree/nbs/10_loss.ipynb',
              'colab.research.google.com/github/grpo-nb/grpo_nb/blob/main/nbs/10_loss.ipynb',
              'edit/main/nbs/10_loss.ipynb'):
        assert o in t, o


def test_imports_and_code_of_figures_are_folded(site):
    t = (site/page(site, 'loss')).read_text(encoding='utf-8')
    assert re.search(r'<details[^>]*class="code-fold"[^>]*>\s*<summary>The figure(&#x27;|.)s code', t)
    assert 'fastcore.test' not in t   # imports that only the page needs

def test_what_jupyterlab_collapses_is_folded_on_the_page_too(site):
    def folded(name):
        t = (site/page(site, name)).read_text(encoding='utf-8')
        fold = r'<details[^>]*class="code-fold"[^>]*>\s*<summary>Source</summary>(.*?)</details>'
        return ''.join(re.sub(r'<[^>]+>', '', o) for o in re.findall(fold, t, re.S))
    assert 'def add_token_terms(' in folded('token_terms'), 'the source of a hidden cell lies open'
    assert 'def policy_loss(' not in folded('loss'), 'what is to be read is folded'

def test_what_counts_for_nothing_in_the_minutes_is_collapsed_in_jupyterlab():
    for f in sorted(ROOT.glob('nbs/**/*.ipynb')):
        for c in json.loads(f.read_text(encoding='utf-8'))['cells']:
            if not re.search(r'^#\|\s*hide_input', ''.join(c['source']), re.M): continue
            assert c['metadata'].get('jupyter', {}).get('source_hidden'), (f.name, c['id'])

def test_no_cell_falls_out_of_its_fence(site, pages):
    "A backtick in a cell's summary ends the fence around its code, which then stands there as prose"
    for p in pages: assert '{.python .cell-code' not in (site/p).read_text(encoding='utf-8'), p

def test_every_button_of_a_widget_has_a_name(site, url, browser):
    pg = browser.new_page()
    for name in ('widgets','loss','advantages'):
        pg.goto(f'{url}/{page(site, name)}')
        if not pg.locator('.widget').count(): continue
        pg.wait_for_selector('.widget button', state='attached')
        pg.wait_for_function(DRAWN)
        odd = pg.eval_on_selector_all(
            '.widget button',
            "l => l.filter(o => !(o.getAttribute('aria-label') || o.textContent).trim()).length",
        )
        assert odd==0, name
    pg.close()

def test_the_first_page_shows_then_says_then_asks(site):
    t = (site/'index.html').read_text(encoding='utf-8')
    text = re.sub(r'<script.*?</script>', '', t[t.index('<main'):], flags=re.S)
    order = ['demo.gif', 'Watch it train', '16 seconds', 'grpo_nb demo', 'Read 40 lines', 'Look at a run',
        'Train a real model', 'Teach it', '<iframe', 'id="run-it"', 'id="does-replay-pay"']
    at = [text.index(o) for o in order]
    assert at==sorted(at)

def test_the_live_run_is_reached_without_scrolling_and_the_command_is_whole_on_a_phone(url, browser):
    pg = browser.new_page(viewport=dict(width=1280, height=800))
    pg.goto(f'{url}/index.html')
    box = pg.get_by_text('Watch it train').bounding_box()
    assert box['y']+box['height']<=800, box
    pg.set_viewport_size(dict(width=400, height=800))
    code = pg.locator('main pre').first
    assert 'grpo_nb demo' in code.inner_text()
    assert code.evaluate('o => o.scrollWidth-o.clientWidth')<=0
    pg.close()

def test_the_sidebar_shows_at_most_36_links_and_opens_at_its_page(site, url, browser):
    pg = browser.new_page(viewport=dict(width=1280, height=800))
    for name in ('index', 'loss', 'memory', 'reuse_results', 'groups'):
        pg.goto(f'{url}/index.html' if name=='index' else f'{url}/{page(site, name)}')
        seen = pg.locator('#quarto-sidebar a:visible')
        assert 10<seen.count()<=36, (name, seen.all_inner_texts())
        if name not in ('memory', 'groups', 'loss'): continue
        here = pg.locator('#quarto-sidebar [aria-current=page]')
        assert here.count()==1 and here.is_visible()
        assert here.evaluate('o => o.href')==pg.url
        shown = pg.locator('#quarto-sidebar .sidebar-section.show')
        assert shown.count()==(2 if name=='groups' else 1)   # those that hold the page
        section = shown.first.get_attribute('id')
        opener = pg.locator(f'[data-bs-target="#{section}"]').first
        assert opener.get_attribute('aria-expanded')=='true'
    pg.close()

@pytest.mark.parametrize('scheme', ['light', 'dark'])
def test_on_a_phone_the_list_of_pages_hides_the_text_under_it(url, browser, scheme):
    pg = browser.new_page(viewport=dict(width=390, height=800), color_scheme=scheme)
    pg.goto(f'{url}/loss.html')
    pg.locator('.quarto-btn-toggle:visible').first.click()
    pg.locator('#quarto-sidebar.show').wait_for()
    ground = pg.evaluate("getComputedStyle(document.querySelector('#quarto-sidebar')).backgroundColor")
    assert ground.startswith('rgb('), ground   # rgba lets the text through
    pg.close()

def test_on_a_phone_a_figure_of_several_panels_moves_sideways_within_the_page(url, browser):
    pg = browser.new_page(viewport=dict(width=390, height=800))
    pg.goto(f'{url}/off_policy_lab.html')
    pg.wait_for_function("""() => { const o = document.querySelector('.figure-img[width="900"]')
        return o.getBoundingClientRect().width > 600 && o.parentElement.tabIndex === 0 }""")
    assert pg.evaluate('document.documentElement.scrollWidth <= innerWidth')
    pg.close()

def test_the_sidebar_leads_to_the_list_without_scripts(site, url, browser):
    ctx = browser.new_context(java_script_enabled=False)
    pg = ctx.new_page()
    pg.goto(f"{url}/{page(site, 'memory')}")
    pg.get_by_text('All pages').click()
    assert pg.locator('#quarto-sidebar a[href="see/widgets.html"]').count()==1
    ctx.close()

def test_code_is_coloured_and_copied_as_it_was_written(site, url, browser):
    pg = browser.new_page()
    pg.goto(f"{url}/{page(site, 'answers')}")
    text = (site/page(site, 'answers')).read_text(encoding='utf-8')
    stored = re.findall(r'<pre class="python"><code>(.*?)</code></pre>', text, flags=re.S)
    written = [unescape(o) for o in stored]
    assert pg.eval_on_selector_all('pre.python code', 'l => l.map(o => o.textContent)')==written
    said = pg.evaluate("""() => Object.fromEntries(['kw', 'cf', 'st', 'co', 'dv', 'fu'].map(k =>
        [k, [...document.querySelectorAll(`pre.python .${k}`)].map(o => o.textContent)]))""")
    assert 'boxed' in said['fu'] and {'def', 'import'}<={*said['kw']} and 'return' in said['cf']
    assert [o for o in said['co'] if o[0]!='#']==[] and [o for o in said['st'] if o[-1] not in '\'"']==[]
    assert [o for o in said['dv'] if not re.fullmatch(r'[\d._a-fxoje+-]+', o)]==[]
    assert pg.locator('pre.python').count()==pg.locator('.code-copy-button').count()
    pg.close()

@pytest.mark.parametrize('f', sorted(ROOT.glob('nbs/**/*.ipynb')), ids=lambda f: f.stem)
def test_a_heading_is_a_title(f):
    "Not the name of its module"
    first = ''.join(json.loads(f.read_text(encoding='utf-8'))['cells'][0]['source']).splitlines()[0]
    assert re.match(r'# [A-Z0-9]', first) or f.stem=='index', first

BARS = dict(exclude=[['#quarto-header'], ['#quarto-sidebar'], ['footer']])   # the same on every page
FIRST = 'index.html','parts/tensors.html'   # judged with their bars: of either depth
SAMPLED = dict(include=[['[data-look]']])
SAMPLE = """known => {   // mark one element for each way text looks here: ink, ground, size, weight.
  // The smallest, since axe reads all that is in it; a single letter it doesn't judge
  const best = new Map(), ground = new Map()
  const under = e => {
    if (!e) return ''
    if (ground.has(e)) return ground.get(e)
    const c = getComputedStyle(e), rest = /^rgb\\(/.test(c.backgroundColor) ? '' : under(e.parentElement)
    const clear = c.backgroundColor === 'rgba(0, 0, 0, 0)' && c.opacity === '1'
    ground.set(e, clear ? rest : c.backgroundColor + c.opacity + rest)
    return ground.get(e) }
  document.querySelectorAll('[data-look]').forEach(o => o.removeAttribute('data-look'))
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (words.nextNode()) {
    const e = words.currentNode.parentElement
    if (words.currentNode.data.trim().length < 2) continue
    if (e.closest('script,style') || !e.getClientRects().length) continue
    const c = getComputedStyle(e), k = [c.color, c.fontSize, c.fontWeight, under(e)].join()
    const n = e.querySelectorAll('*').length
    if (!best.has(k) || n < best.get(k)[1]) best.set(k, [e, n])
  }
  const fresh = [...best.keys()].filter(k => !(known || []).includes(k))
  for (const k of fresh) best.get(k)[0].setAttribute('data-look', '')
  return {all: best.size, fresh} }"""
KINDS = """known => {   // what elements there are: by name, class, role, surroundings, what is said of them
  const found = new Set()
  for (const e of document.querySelectorAll('body *')) {
    const said = e.getAttributeNames().filter(o => /^(aria-|role|tab|on|type|alt|title)/.test(o))
    const is = ['class', 'role'].map(o => e.getAttribute(o))
    found.add([e.tagName, is, e.parentElement.tagName, said].join()) }
  return [...found].filter(k => !known.includes(k)) }"""
FLAT = """() => document.querySelectorAll('pre code').forEach(o => {   // colours of code are judged by then
  if (!o.querySelector('a, button, [role], [tabindex], [id]')) o.textContent = o.textContent })"""

DRAWN = """() => [...document.querySelectorAll('.widget')]
    .every(o => o.querySelector('.handles')) &&
    [...document.querySelectorAll('script.frame')].every(o => o.previousElementSibling.srcdoc)"""

WIDE = """narrow => {   // the page itself, and written tables, which fit, while those of numbers may scroll
  const over = o => o.scrollWidth - o.clientWidth
  const tables = [...document.querySelectorAll('main table:not(.dataframe)')].filter(o => over(o) > 1)
  const n = over(document.documentElement)
  return [...narrow && n > 0 ? [`${n} pixels too wide`] : [],
    ...tables.map(o => `${over(o)} pixels of a table are cut off: ${o.textContent.trim().slice(0, 60)}`)] }"""

TAG = re.compile(r"""<(/?)([a-z]\w*)((?:\s+[\w:-]+(?:=(?:"[^"]*"|'[^']*'|[^\s>]+))?)*)\s*/?>([^<]*)""")
ATTRIBUTE = re.compile(r"""([\w:-]+)(?:=(?:"([^"]*)"|'([^']*)'|([^\s>]+)))?""")
EMPTY = {'br', 'hr', 'img', 'input', 'link', 'meta', 'path', 'rect', 'circle', 'line'}   # nothing is in these

def traits(text):
    """What a page's source has, each with its longest: kinds of elements with the letters of the longest word
    in them (of a formula all), and tables with the letters that stand side by side"""
    text = re.sub(r'(<script\b[^>]*>).*?</script>', r'\1</script>', text, flags=re.S)
    text = text[text.find('<main'):]
    out,around = {},['']
    for end,tag,attributes,words in TAG.findall(text):
        if end:
            if tag in around: del around[len(around)-1-around[::-1].index(tag):]
            continue
        has = {k:a or b or c for k,a,b,c in ATTRIBUTE.findall(attributes)}
        said = tuple(sorted(k for k in has if re.match('aria-|tab|on|alt|title|style', k)))
        kind = around[-1],tag,has.get('class'),has.get('role'),said
        if tag not in EMPTY: around.append(tag)
        words = unescape(words)
        apart = [words] if 'math' in (has.get('class') or '') else re.split(r'[\s/-]', words)
        out[kind] = max(out.get(kind, 0), *map(len, apart))
    for table in re.findall(r'<table(?![^>]*dataframe).*?</table>', text, re.S):
        out['table'] = max(out.get('table', 0), columns(table))
    return out

def columns(table):
    "The longest word of each column of a table, in letters, together"
    longest = {}
    for row in table.split('<tr'):
        for i,cell in enumerate(re.split(r'<t[dh]\b[^>]*>', row)[1:]):
            words = re.sub('<[^>]+>', '', cell).split()
            longest[i] = max([longest.get(i, 0), *map(len, words)])
    return sum(longest.values())

def most_of_each(texts):
    "The names of those of some pages that have the longest of a kind, of tables three: {name: source}"
    found = {}
    for name,text in texts.items():
        for kind,n in traits(text).items(): found.setdefault(kind, []).append((n, name))
    return {name for kind,there in found.items()
            for _,name in sorted(there, reverse=True)[:3 if kind=='table' else 1]}

def test_a_page_with_a_kind_of_its_own_or_with_the_longest_of_a_kind_is_opened():
    texts = {f'{i}.html':f'<main><p>like others {i}<table><tr><td>a<td>b</table></main>' for i in range(9)}
    assert most_of_each(texts)=={'8.html', '7.html', '6.html'}   # of equal ones the last, of tables three
    odd = ('<b class="new">x</b>', '<b style="color:#999">x</b>', '<i role="img">x</i>',
        '<i aria-label="x">x</i>', '<p>incomprehensible',
        '<script class="frame">x</script>', '<table><tr><td>a<td>two<td>three</table>')
    for o in odd:
        assert '2.html' in most_of_each({**texts, '2.html':texts['2.html'].replace('<p>', f'{o}<p>')}), o

@pytest.fixture(scope='module')
def seen(url, browser, site, pages, axe, request):
    """Pages opened once: requests to others, script errors, the width at 400 pixels, and axe's findings
    in light and dark where a page has a kind of element, or a look, that no page before it had. All pages
    weekly; else those that have the most of each kind of element"""
    if not request.config.getoption('--weekly'):
        texts = {o:(site/o).read_text(encoding='utf-8') for o in pages}
        pages = sorted(most_of_each(texts)|{*FIRST})
    # colours half-way to another theme are no finding
    ctx = browser.new_context(viewport=dict(width=1200, height=900), color_scheme='light',
                              reduced_motion='reduce')
    res,looks,kinds,widths = {},set(),set(),[400, 1200]
    pg,said = ctx.new_page(),[]
    pg.on('request', lambda r: (said.append(f'asks {r.url}')
                                if not r.url.startswith((url, 'data:', 'blob:', 'about:')) else None))
    pg.on('pageerror', lambda e: said.append(f'script error: {e}'))
    pg.on('console', lambda m: said.append(f'in the console: {m.text[:200]}'))
    for p in pages:
        pg.goto(f'{url}/{p}', wait_until='load')
        pg.add_style_tag(content='* { transition: none !important }')
        pg.wait_for_function(DRAWN)
        r = res[p] = dict(axe=[], light=[], dark=[])
        widths.reverse()   # it was loaded as wide as the one before it was left: drawn twice, not three times
        for width in widths:
            pg.set_viewport_size(dict(width=width, height=900))
            r.setdefault('wide', []).extend(f'at {width}: {o}' for o in pg.evaluate(WIDE, width==400))
            if width>400 and axe: _judge(pg, axe, r, looks, kinds, p in FIRST)
        pg.evaluate('localStorage.clear()')   # the next page begins light
        r['said'] = said[:]
        said.clear()
    ctx.close()
    return dict(pages=res, axe=axe is not None)

def _judge(pg, axe, r, looks, kinds, bars):
    "Note in `r` what axe finds in what the page has first: contrast of both themes, and with or without bars"
    for f in pg.frames: _drawn(f)
    for look in ('light','dark'):
        if look=='dark': pg.evaluate("document.querySelector('.quarto-color-scheme-toggle').click()")
        pg.wait_for_function(IN_THEME, arg=look)
        for f in pg.frames:
            sample = f.evaluate(SAMPLE, [*looks])
            assert sample['all']>1
            looks.update(sample['fresh'])
            if not sample['fresh']: continue
            ask_axe(f, axe)
            r[look] += axe_errors(f, CONTRAST, SAMPLED)
    for f in pg.frames:
        fresh = f.evaluate(KINDS, [*kinds])
        if not fresh: continue
        kinds.update(fresh)
        ask_axe(f, axe)
        f.evaluate(FLAT)
        r['axe'] += axe_errors(f, RULES, None if bars or f.parent_frame else BARS)

def _drawn(frame):
    "Wait for its words; asked from here, since a page whose policy forbids eval stops Playwright's asking"
    for _ in range(2400):
        if frame.evaluate('() => !!document.body && document.body.innerText.trim().length > 1'): return
        time.sleep(.05)
    pytest.fail(f'nothing is drawn at {frame.url} after two minutes')

def _found(seen, what):
    if what not in ('wide', 'said') and not seen['axe']:
        pytest.skip('no axe-core here, and no npm to fetch it')
    return {p:r[what] for p,r in seen['pages'].items() if r[what]}

def test_no_page_asks_another_host_fails_or_talks_in_the_console(seen): assert _found(seen, 'said')=={}

def test_pages_fit_400_pixels(seen): assert _found(seen, 'wide')=={}

def test_axe_finds_no_serious_fault(seen): assert _found(seen, 'axe')=={}

@pytest.mark.parametrize('scheme', ['light','dark'])
def test_contrast_passes_wcag_aa(seen, scheme):
    "Of all pages, one word of each look: the same ink on the same ground has the same contrast everywhere"
    assert _found(seen, scheme)=={}

def test_the_sample_of_looks_misses_no_faint_word(browser, axe):
    "Among many good words of code, one that is too faint; and one that is faint only for what lies under it"
    if not axe: pytest.skip('no axe-core here, and no npm to fetch it')
    pg = browser.new_page()
    for odd, n in (
        ('', 0),
        ('<span style="color:#999">word</span>', 1),
        ('<b style="background:#333"><span>word</span></b>', 1),
        ('<i style="opacity:.3"><span>word</span></i>', 1),
    ):
        pg.set_content(
            '<html lang=en><title>t</title><body style="background:#fff;color:#222"><pre><code>'
            + '<span>word</span> ' * 50
            + odd
            + '<span style="color:#060">word</span> ' * 50
            + '</code></pre>'
        )
        pg.evaluate(axe)
        pg.evaluate(SAMPLE)
        assert len(axe_errors(pg, CONTRAST, SAMPLED))==n, odd
    pg.close()

def test_a_widget_moves_without_a_kernel_by_keyboard(site, url, browser):
    pg = browser.new_page()
    pg.goto(f"{url}/{page(site, 'widgets')}")
    box = pg.locator('.widget').filter(has_text='clip eps')
    shown = lambda: [o for o in box.locator('svg').all() if o.is_visible()]
    box.locator('svg >> visible=true').first.wait_for(timeout=120_000)
    assert [o.get_attribute('aria-label').split('.  ')[0][:22] for o in shown()]==['clip eps 0.20, A 1.0. ']
    slider = box.get_by_role('slider')
    assert slider.get_attribute('aria-label')=='clip eps'
    slider.focus(); slider.press('ArrowRight')
    pg.wait_for_selector('.widget svg[aria-label^="clip eps 0.30, A 1.0"]', state='visible')
    box.get_by_role('button', name='-1.0').click()
    pg.wait_for_selector('.widget svg[aria-label^="clip eps 0.30, A -1.0"]', state='visible')
    assert len(shown())==1
    pg.close()

def test_pages_opened_from_disk_have_widgets_and_formulas(site, browser):
    pg = browser.new_page()
    pg.goto((site/'kl.html').as_uri())
    pg.wait_for_selector('.widget .handles', state='attached')
    pg.wait_for_selector('.katex-html', state='attached')
    named = """l => l.filter(o =>
        o.getAttribute('aria-label')===o.parentElement.firstChild.textContent).length"""
    assert pg.eval_on_selector_all('.widget input[type=range]', named)==2
    assert 'All pages' not in pg.locator('#quarto-sidebar').inner_text()
    pg.close()

OFF_PAPER = '''() => {   // cells and code beyond the right edge, and pale letters
  const edge = document.documentElement.clientWidth + 1, out = []
  for (const o of document.querySelectorAll('main :is(td, th, pre code)')) {
    const light = getComputedStyle(o).color.match(/[0-9]+/g).slice(0, 3).some(x => x > 140)
    const cut = o.getBoundingClientRect().right > edge, folded = o.closest('details:not([open])')
    if (o.offsetWidth && !folded && (cut || light)) out.push(o.textContent.slice(0, 60))
  }
  return out
}'''

def test_on_paper_nothing_is_cut_or_pale(url, browser):
    ctx = browser.new_context(color_scheme='dark', viewport=dict(width=718, height=1000))   # A4
    pg = ctx.new_page()
    for name in ('reference/settings.html','loss.html','off_policy_lab.html'):
        pg.goto(f'{url}/{name}')
        pg.wait_for_function(IN_THEME, arg='dark')
        pg.locator('main pre.sourceCode').first.wait_for(state='attached')
        pg.emulate_media(media='print')
        assert pg.evaluate(OFF_PAPER)==[], name
        pg.emulate_media(media='screen')
    ctx.close()

def test_dark_mode_changes_the_page_and_stays(site, url, browser):
    ctx = browser.new_context(color_scheme='light')
    pg = ctx.new_page()
    def ground(look):
        pg.wait_for_function(IN_THEME, arg=look)
        return pg.evaluate('getComputedStyle(document.body).backgroundColor')
    pg.goto(f"{url}/{page(site, 'tensors')}")
    light = ground('light')
    pg.locator('.quarto-color-scheme-toggle >> visible=true').first.click()
    dark = ground('dark')
    pg.goto(f'{url}/kl.html')
    assert ground('dark')==dark!=light
    ctx.close()

@pytest.mark.processes
@pytest.mark.weekly
def test_a_rebuild_changes_nothing(site, tmp_path):
    "All prose, and of each kind of notebook some: code, figures, frames, formulas, tables; the rest as stubs"
    whole = ['index', 'advantages', 'tensors', 'widgets', 'tested']
    code = ("import grpo_nb.dev.pages as s; s.site_errors = s._text_faults = lambda *a, **k: []; "   # known$
        f"s.docs(strict=False, out={str(tmp_path)!r}, only={whole})")
    env = {**os.environ, 'PYTHONHASHSEED': '1'}   # the fixture has another
    subprocess.run([sys.executable, '-c', code], cwd=ROOT, check=True, capture_output=True, env=env)
    def files(d): return {str(f.relative_to(d)):f for f in d.rglob('*') if f.is_file()}
    a,b = files(site),files(tmp_path)
    left_out = a.keys()-b.keys()   # the pictures of stubs
    assert b.keys()<a.keys() and {Path(o).suffix for o in left_out}=={'.webp'}
    stubs = {o for o in notebook_pages() if Path(o).stem not in whole}
    # by what pages use
    styles = {o for o in a if o.startswith('site_libs') and o.endswith(('.css', '.woff'))}
    again = sorted(b.keys()-stubs-styles-{'search.bin'})
    assert any(o.endswith('.webp') for o in again)
    assert {'index.html','advantages.html','see/widgets.html','practise/memory.html'}<={*again}
    assert [k for k in again if a[k].read_bytes()!=b[k].read_bytes()]==[]
    def found(d):
        rows = json.loads(zlib.decompress((d/'search.bin').read_bytes()))
        return [o for o in rows if o['href'].split('#')[0] in again]
    assert found(site)==found(tmp_path)!=[]

def test_a_faulty_notebook_fails_the_check_with_its_name_and_cell():
    code = lambda s, *o: dict(cell_type='code', source=s, outputs=list(o))
    nb = dict(
        cells=[
            dict(cell_type='markdown', source='# t\n\n> s\n\nlost words'),
            code('1/0', dict(output_type='error', ename='ZeroDivisionError', evalue='division by zero')),
            code('plot()', dict(output_type='display_data', data={'image/png': ''})),
            code('here', dict(output_type='stream', name='stdout', text='/home/me/x')),
            dict(cell_type='markdown', source='call `no_such_function_here`'),
            code('import os\nos.sep'),
        ]
    )
    said = output_errors('x.ipynb', nb)+form_errors('x.ipynb', nb)+dead_references('x.ipynb', nb, {'plot'})
    assert [o for o in said if not o.startswith('x.ipynb, cell ')]==[]
    for at, what in ((0, 'lost in the docs'), (1, 'ZeroDivisionError'), (2, 'without alt text'),
                     (3, '/home/me'), (4, 'no_such_function_here'), (5, 'import beside')):
        assert any(o.startswith(f'x.ipynb, cell {at} ') and what in o for o in said), (at, what, said)

def test_a_name_that_a_page_defines_in_json_of_its_own_is_known_there():
    prose = dict(cell_type='markdown', source='Described: `two_arms`, `no_arm`.')
    plan = dict(cell_type='markdown', source='```json\n{"arms": {"two_arms": {}}}\n```')
    said = dead_references('plan.qmd', dict(cells=[prose, plan]), set())
    assert len(said)==1 and 'no_arm' in said[0]
    assert len(dead_references('other.qmd', dict(cells=[prose]), set()))==2

@pytest.mark.parametrize('file,text,says', [
    ('15_look_at_a_run', 'the [last chapter](17_real_run.ipynb) writes the file', '"last chapter"'),
    ('15_look_at_a_run', 'The last chapter takes them to many GPUs.', '"last chapter"'),
    ('17_real_run', '[The last chapter](16_grpo_with_replay_buffer.ipynb) planned', '"last chapter"'),
    ('speed', 'The trainer of the chapter before uses the fast parts', '"chapter before"'),
    ('tensors', "GRPO's own parts begin in [chapter 1](../02_tasks.ipynb).", 'leads to 02_tasks, which is 2'),
    ('glossary', '| entropy | [8](../09_kl.ipynb) |', 'leads to 09_kl, which is 9'),
    ('07_advantages', 'see [the next chapter](08_logps.ipynb)', 'what comes next is 07a_float_noise'),
    ('memory', 'the next chapter has a plan', 'outside the course'),
    ('memory', 'chapter 21 has a plan', 'no chapter 21'),
    ('16_grpo_with_replay_buffer',
    '[The next chapter](17_real_run.ipynb#a-gpu), [chapter 2](02_tasks.ipynb), '
        'chapter 15a', ''),
])
def test_a_chapter_is_called_by_its_number(file, text, says):
    nb = dict(cells=[dict(cell_type='markdown', source=text)])
    found = chapter_errors(f'{file}.ipynb', nb, course())
    assert [says in o for o in found]==[True]*bool(says)

def test_the_glossary_leads_to_pages_that_have_the_word():
    "At least one of a row's pages has the beginning of one of its words."
    page = ROOT/'nbs/reference/glossary.ipynb'
    def text(f):
        return ' '.join(''.join(c['source']) for c in json.loads(f.read_text(encoding='utf-8'))['cells'])
    rows = [o.strip('|').split('|') for o in text(page).splitlines() if re.match(r'\| .*\]\(\.\./', o)]
    lost = []
    for word,_,where in rows:
        stems = [o[:6] for o in re.findall(r'[\w@-]{2,}', word)]
        there = [(page.parent/o) for o in re.findall(r'\]\(([^)#]+)', where)]
        texts = [text(f) if f.suffix=='.ipynb' else f.read_text(encoding='utf-8') for f in there]
        if not re.search('|'.join(map(re.escape, stems)), ' '.join(texts), re.I): lost.append(word.strip())
    assert len(rows)>40 and lost==[]

FIELD = ('reinforcement learning', 'policy gradient', 'REINFORCE', 'baseline', 'score function',
    'importance sampling', 'credit assignment', 'experience replay', 'trust region', 'exploration',
    'verifiable reward', 'chain of thought', 'supervised fine-tuning', 'rejection sampling', 'curriculum',
    'reward shaping', 'entropy collapse', 'on-policy', 'off-policy', 'rollout', 'reward model')

def test_the_fields_words_are_keys_of_the_glossary_and_bold_where_a_chapter_first_uses_them():
    "A student who reads of a *dead group* can look up what the literature calls it."
    def text(f):
        return '\n'.join(''.join(c['source']) for c in json.loads(f.read_text(encoding='utf-8'))['cells'])
    page = ROOT/'nbs/reference/glossary.ipynb'
    rows = re.findall(r'^\| (\*\*.*?) \|.*\| (.*?) \|$', text(page), re.M)
    lost = []
    for word in FIELD:
        there = [re.findall(r'\]\(([^)#]+\.ipynb)', where) for keys,where in rows
            if word.lower() in keys.lower()]
        pages = [text(page.parent/o) for o in sum(there, [])]
        if not any(re.search(rf'\*\*[^*\n]*{word[:9]}', o, re.I) for o in pages): lost.append(word)
    assert lost==[]

def test_every_exercise_counts_in_the_minutes():
    prose = lambda s: dict(cell_type='markdown', source=s)
    cells = [prose('## Exercise: one'), prose('### A third hunt: two'),
        prose('## Exercise: three\n\n### Exercise: four')]
    assert _reading_minutes(dict(cells=cells))==40

def test_what_the_page_on_memory_says_of_a_gpu_was_measured():
    import pandas as pd
    day = pd.read_csv(ROOT/'nbs/results/gpu_day.csv')
    peak = day[day.device.str.contains('H100')&(day['name']=='step-05b')&(day.case=='peak memory')]
    text = (ROOT/'nbs/practise/memory.qmd').read_text(encoding='utf-8')
    took,said = (peak[peak.arm==o].value.item()/1e9 for o in ('GRPOTrainer', 'plan'))
    assert f'took {took:.1f} GB where the plan said {said:.1f}' in text

def test_what_a_record_is_said_to_cost_is_what_was_measured():
    import pandas as pd

    row = (
        pd.read_csv(ROOT / 'nbs' / 'results' / 'looking.csv')
        .set_index('what')
        .loc["recording, share of the demo's training"]
    )
    assert f"| {row['median']:.2f} % of the demo's training" in (
        ROOT / 'nbs' / 'project' / 'limitations.qmd'
    ).read_text(encoding='utf-8')

def test_the_book_holds_every_chapter_and_its_links_lead_somewhere(site, browser, tmp_path, monkeypatch):
    import grpo_nb.dev.pages as printed
    seen = {}
    def look(page, pdf, **options):
        tab = browser.new_page()
        tab.goto(page.as_uri())
        tab.wait_for_function("document.querySelectorAll('.katex').length")
        def ask(which, what):
            return tab.evaluate(f"[...document.querySelectorAll('{which}')].map(o => {what})")
        ids,links = {*ask('[id]', 'o.id')},ask('main a[href]', 'o.getAttribute("href")')
        seen.update(chapters=ask('.chapter', 'o.id'), away=links,
            lost=[o for o in links if len(o)>1 and o[0]=='#' and unquote(o[1:]) not in ids],
            raw=[o for o in ask('p', 'o.innerText') if '\\(' in o])
        tab.close()
    with monkeypatch.context() as m:
        m.chdir(ROOT)
        m.setattr(printed, 'to_pdf', look)
        printed.book(str(tmp_path/'all.pdf'), str(site))
    names = [re.sub(r'^\d+[a-z]*_', '', o['file']) for o in printed.course()]
    assert seen['chapters']==names and seen['lost']==[]==seen['raw']
    assert [o for o in seen['away'] if o and not o.startswith(('#', 'http', 'mailto:'))]==[]

@pytest.mark.processes
@pytest.mark.weekly
def test_the_book_is_printed_with_page_numbers_and_an_outline(site, tmp_path):
    if not CHROME: pytest.skip('no Chromium here')
    code = ("import sys, grpo_nb.dev.pages as p; rows = p.course()[:1]; p.course = lambda: rows; "
            "p.book(*sys.argv[1:])")
    words = [sys.executable, '-c', code, str(tmp_path/'one.pdf'), str(site)]
    r = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert r.returncode==0, r.stderr[-2000:]
    pdf = (tmp_path/'one.pdf').read_bytes()
    assert pdf[:5]==b'%PDF-' and b'/Outlines' in pdf and int(re.findall(rb'/Count (\d+)', pdf)[0])>=5

def test_the_reference_names_a_cells_functions_in_the_order_of_their_source():
    "nbdev has the last one first, and the source after it."
    from types import SimpleNamespace
    from grpo_nb.dev.pages import Entries
    class Cell(dict):
        __getattr__,__setattr__ = dict.__getitem__,dict.__setitem__
    def entry(name): return Cell(cell_type='code', source=f'#| echo: false\nshow_doc({name})', has_sd=True)
    def source(text): return Cell(cell_type='code', source=f'#| code-summary: "Exported source"\n{text}')
    def prose(text): return Cell(cell_type='markdown', source=text)
    one = source('class A: ...\n@patch\ndef b(self:A): ...\ndef c(): ...')
    two = source('def d(): ...')
    cells = [prose('text'), entry('c'), one, entry('A.b'), entry('A'), entry('d'), two, prose('')]
    Entries(SimpleNamespace(cells=cells)).begin()
    names = [o.source.split('show_doc(')[-1].rstrip(')') if o.get('has_sd') else o.source for o in cells]
    assert names[1:4]==['A', 'A.b', 'c'] and 'class A' in names[4] and names[5]=='d' and 'def d' in names[6]
