"""The built site in a real browser: nothing broken, nothing from elsewhere, readable narrow, dark and on
paper, widgets that move without a kernel"""

import json, re
from html import unescape
from pathlib import Path
import pytest, yaml
from browsing import CONTRAST, RULES, ask_axe, axe_errors
from pages_check import links_to_our_site, site_errors
from grpo_nb.dev.site import (
    chapter_errors, course, form_errors, dead_references, output_errors, run_nbs)

ROOT = Path(__file__).parent.parent
# the first, chapters with formulas, widgets, frames, wide figures, tables, a module, a study
LOOKED_AT = ['index', 'loss', 'kl', 'look_at_a_run', 'off_policy_lab', 'practise/symptoms',
    'reference/settings', 'parts/tensors', 'studies/reuse_results', 'search', '404']

def test_no_link_anchor_or_picture_is_broken_and_no_other_host_is_asked(site):
    assert site_errors(site)==[]

def test_what_readme_and_package_link_to_is_on_the_site(site):
    texts = [ROOT/'README.md', ROOT/'CONTRIBUTING.md', *ROOT.glob('grpo_nb/**/*.py'),
        *ROOT.glob('grpo_nb/assets/**/*.toml')]
    lost = [o for f in texts for o in links_to_our_site(f.read_text(encoding='utf-8'), site)]
    assert lost==[]

def test_the_checker_sees_each_kind_of_fault(tmp_path):
    (tmp_path/'a.html').write_text(
        '<h1 id=a>a</h1><h3>skips</h3><a href="b.html">gone</a><a href="#b">no anchor</a><img src="data:,">'
        '<script src="https://cdn.example.com/x.js"></script><link rel=stylesheet href="gone.css">'
        '<a href="https://grpo-nb.github.io/grpo_nb/c.html">ours</a>')
    (tmp_path/'a.css').write_text('@import url(https://fonts.example.com/css2?family=A:wght@300;400);')
    errors = '\n'.join(site_errors(tmp_path))
    for o in ('heading of level 3', 'what is not there: b.html', 'anchor that is not there: #b',
              'without alt text', 'asks another host: https://cdn', 'loads what is not there: gone.css',
              'asks another host: https://fonts', 'not on our site: c.html'):
        assert o in errors, o

def test_no_page_tells_of_the_machine_that_built_it(site):
    for f in site.rglob('*.html'):
        text = f.read_text(encoding='utf-8')
        for o in (str(ROOT), str(Path.home())+'/', 'site-packages/'): assert o not in text, (f.name, o)

def test_a_page_leads_to_its_notebook_and_to_what_comes_first(site):
    text = (site/'loss.html').read_text(encoding='utf-8')
    for o in ('lab/tree/nbs/10_loss.ipynb', 'edit/main/nbs/10_loss.ipynb',
              'colab.research.google.com/github/grpo-nb/grpo_nb/blob/main/nbs/10_loss.ipynb'):
        assert o in text, o
    assert re.search(r'About \d+ minutes, after <a [^>]*href="advantages.html"', text)
    assert 'edit/main/nbs/practise/memory.qmd' in (site/'practise'/'memory.html').read_text(encoding='utf-8')

def test_imports_are_left_out_and_figures_code_and_answers_are_folded(site):
    text = (site/'advantages.html').read_text(encoding='utf-8')
    assert 'fastcore.test' not in text and 'COLAB_RELEASE_TAG' not in text
    folded = ''.join(re.findall(r'<details.*?</details>', text, re.S))
    plain = re.sub('<[^>]+>', '', folded)
    assert 'is wrong:' in plain and 'ax.scatter(' in plain
    assert 'is wrong:' not in re.sub('<[^>]+>', '', re.sub(r'<details.*?</details>', '', text, flags=re.S))
    assert 'def group_advantages(' not in plain   # what is to be read

@pytest.mark.parametrize('words,where', [
    ('masked_mean', 'tensors.html#masked_mean'), ('zero-variance group', 'glossary.html'),
    ('dead group', '/replay.html'), ('out of memory', 'practise/memory.html'),
    ('importance ratio', 'loss.html#the-importance-ratio'), ('epsilon_high', 'reference/settings.html'),
    ('my reward does not go up', 'practise/symptoms.html')])
def test_the_search_puts_the_page_that_answers_first(url, browser, words, where):
    pg = browser.new_page()
    pg.goto(f'{url}/search.html?q={words}')
    hit = pg.locator('ul.search > li > a').first
    assert where in '/'+hit.get_attribute('href')
    pg.close()

def test_llms_txt_lists_every_page_once(site):
    text = (site/'llms.txt').read_text(encoding='utf-8')
    listed = re.findall(r'^- \[[^\]]+\]\(https://grpo-nb.github.io/grpo_nb/([^)]+\.html)\)', text, flags=re.M)
    assert len(listed)==len({*listed})>100 and [o for o in listed if not (site/o).is_file()]==[]
    assert text.startswith('# grpo_nb\n\n> ') and '## Course' in text and '## Inside' in text
    assert json.loads((site/'findings.schema.json').read_text(encoding='utf-8'))['type']=='array'

def test_an_old_address_leads_to_the_page_with_its_anchor(url, browser):
    pg = browser.new_page()
    for old,new in yaml.safe_load((ROOT/'docs'/'moved.yml').read_text(encoding='utf-8')).items():
        pg.goto(f'{url}/{old}.html#limits')
        pg.wait_for_url(f'{url}/{Path(old).parent}/{new}#limits')
        assert pg.locator('article h1').count()==1
    pg.close()

def test_a_widget_moves_without_a_kernel_by_keyboard(url, browser):
    pg = browser.new_page()
    pg.goto(f'{url}/see/widgets.html')
    shown = pg.locator('svg[aria-label^="clip eps 0.20, A 1.0"]')
    shown.wait_for(state='visible')
    slider = pg.get_by_role('slider', name='clip eps')
    slider.focus()
    slider.press('ArrowRight')
    pg.locator('svg[aria-label^="clip eps 0.30, A 1.0"]').wait_for(state='visible')
    assert not shown.is_visible()
    pg.close()

def test_the_first_pages_picture_becomes_a_run_that_trains_at_once(url, browser):
    pg = browser.new_page()
    asked = []
    pg.on('request', lambda r: asked.append(r.url))
    pg.goto(f'{url}/index.html')
    hero = pg.locator('a.hero')
    assert hero.locator('img').get_attribute('src').endswith('demo.png')
    assert not [o for o in asked if '/live/' in o or o.endswith('.gif')]   # nothing before it is wanted
    hero.click()
    run = pg.frame_locator('iframe.hero')
    run.locator('.map .col.new').first.wait_for()
    assert run.locator('#train').inner_text()=='Pause' and not run.locator('h1').is_visible()
    assert not [o for o in asked if not o.startswith((url, 'data:', 'blob:'))]
    pg.close()

def test_a_press_on_a_station_lights_the_line_that_does_it(url, browser):
    pg = browser.new_page()
    pg.goto(f'{url}/grpo_on_one_screen.html')
    for name,line in (('3 rewards', 'r = torch.tensor(accuracy_reward('), ('9 buffer', 'buffer.add(')):
        pg.get_by_role('button', name=name).click()
        frame = pg.locator('.widget-html').filter(visible=True)
        assert line in frame.locator('pre > div', has_text='▶').inner_text()
    pg.close()

@pytest.fixture(scope='module')
def seen(url, browser, site, axe, request):
    "What is wrong with pages that are opened: requests to others, script errors, width, axe's findings"
    pages = LOOKED_AT
    if request.config.getoption('--weekly'):
        found = [f.relative_to(site).with_suffix('') for f in site.rglob('*.html')]
        pages = sorted(str(f) for f in found if f.parts[0] not in ('live', '_static'))
    res = {}
    for look in ('light', 'dark'):
        ctx = browser.new_context(viewport=dict(width=390, height=900), color_scheme=look,
                                  reduced_motion='reduce')
        pg,messages = ctx.new_page(),[]
        pg.on('request', lambda r: messages.append(f'asks {r.url}')
              if not r.url.startswith((url, 'data:', 'blob:', 'about:')) else None)
        pg.on('pageerror', lambda e: messages.append(f'script error: {e}'))
        for p in pages:
            r = res.setdefault(p, dict(said=[], wide=[], axe=[], contrast=[]))
            pg.goto(f'{url}/{p}.html', wait_until='load')
            pg.wait_for_timeout(300)
            over = pg.evaluate('document.documentElement.scrollWidth-innerWidth')
            if over>0: r['wide'].append(over)
            pg.set_viewport_size(dict(width=1280, height=900))
            r['said'] += messages
            if axe:
                ask_axe(pg, axe)
                r['contrast'] += axe_errors(pg, CONTRAST)
                if look=='light': r['axe'] += axe_errors(pg, RULES)
            pg.set_viewport_size(dict(width=390, height=900))
            messages.clear()   # axe fetches style sheets by itself, from wrong addresses
        ctx.close()
    return res

@pytest.mark.parametrize('what', ['said', 'wide', 'axe', 'contrast'])
def test_no_page_asks_another_host_is_too_wide_or_has_a_fault_that_axe_sees(seen, axe, what):
    if what in ('axe', 'contrast') and not axe: pytest.skip('no axe-core here, and no npm to fetch it')
    assert {p:r[what] for p,r in seen.items() if r[what]}=={}

# ---- notebooks as they are stored

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
    nb = dict(metadata=dict(widgets={_STATE:dict(state=state)}), cells=[dict(source='', outputs=[output])])
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

def test_a_faulty_notebook_fails_the_check_with_its_name_and_cell():
    code = lambda s, *o: dict(cell_type='code', source=s, outputs=list(o))
    nb = dict(
        cells=[
            dict(cell_type='markdown', source='# t\n\n> s\n\n### deep'),
            code('1/0', dict(output_type='error', ename='ZeroDivisionError', evalue='division by zero')),
            code('plot()', dict(output_type='display_data', data={'image/png': ''})),
            code('here', dict(output_type='stream', name='stdout', text='/home/me/x')),
            dict(cell_type='markdown', source='call `no_such_function_here`'),
        ]
    )
    errors = output_errors('x.ipynb', nb)+form_errors('x.ipynb', nb)+dead_references('x.ipynb', nb, {'plot'})
    assert [o for o in errors if not o.startswith('x.ipynb, cell ')]==[]
    for at, what in ((0, 'level 3'), (1, 'ZeroDivisionError'), (2, 'without alt text'),
                     (3, '/home/me'), (4, 'no_such_function_here')):
        assert any(o.startswith(f'x.ipynb, cell {at} ') and what in o for o in errors), (at, what, errors)

def test_a_name_that_a_page_defines_in_json_of_its_own_is_known_there():
    prose = dict(cell_type='markdown', source='Described: `two_arms`, `no_arm`.')
    plan = dict(cell_type='markdown', source='```json\n{"arms": {"two_arms": {}}}\n```')
    errors = dead_references('plan.qmd', dict(cells=[prose, plan]), set())
    assert len(errors)==1 and 'no_arm' in errors[0]
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

def test_lists_of_chapters_are_what_the_course_gives():
    "A new chapter or another length reaches the first page, the course's page and the teacher's."
    assert run_nbs(['index', 'course'], check=True)==[]   # else an error names the cell
