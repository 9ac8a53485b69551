"The controls that turn drawn frames over."
import re
from base64 import b64decode
from io import BytesIO
import numpy as np
import pytest
from PIL import Image
import grpo_nb.see.plotting as plotting
from grpo_nb.parts.files import png_bytes
from grpo_nb.see.widgets import W, _indexed, explore

def frames(res):
    "Texts of the HTML frames of one control, in the order of its settings."
    return [o.value for o in res.children[1].children]

@pytest.mark.parametrize('make', [W.ToggleButtons, W.Dropdown, W.RadioButtons, W.Select])
@pytest.mark.parametrize('options,value,start',
    [([('none', None), ('8', 8)], None, 0), ([('8', 8), ('none', None)], None, 1), ([1, 2], None, 0),
     ([('8', 8), ('none', None)], 8, 0)])
def test_a_control_that_starts_at_none_is_drawn_and_starts_at_a_setting(make, options, value, start):
    c = make(options=options, value=value)
    seen = []
    res = explore(lambda age: seen.append(age) or dict(age=age), lambda v: f"<p>{v['age']}</p>", age=c)
    want = [o[1] if isinstance(o, tuple) else o for o in options]
    assert seen==want and frames(res)==[f'<p>{o}</p>' for o in want]
    assert c.index==start and c.value==want[start] and res.children[1].selected_index==start
    assert res.still==f'<p>{want[start]}</p>'

def test_nbdev_test_makes_every_figure_and_writes_one_out(monkeypatch):
    from grpo_nb.see.plotting import new_figure
    made = []
    def draw(k): return made.append(k) or new_figure(str(k), 'x')[0]
    def all_of_them(): return frames(explore(lambda k: k, draw, k=W.IntSlider(2, min=1, max=3)))
    whole = all_of_them()
    monkeypatch.setenv('IN_TEST', '1')
    first,*others = all_of_them()
    assert made==[1, 2, 3]*2 and all('<svg' in o and f'k {i}. ' in o for i,o in enumerate(whole, 1))
    assert '<svg' in first and others==['', '']

def test_a_figure_is_drawn_once_however_often_it_is_shown_and_again_when_it_has_changed(monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.core.pylabtools import select_figure_formats
    drawn,write = [],plotting.fig_png
    monkeypatch.setattr(plotting, 'fig_png', lambda fig: drawn.append(fig) or write(fig))
    monkeypatch.setattr(InteractiveShell, '_instance', shell := InteractiveShell())
    select_figure_formats(shell, {'retina'})   # nbdev_test's shell does, and would draw figures its own way
    fig,ax = plotting.new_figure('one', 'x')
    (one,about),(again,_) = (shell.display_formatter.format(fig) for _ in range(2))
    assert len(drawn)==1 and one['image/png']==again['image/png']==write(fig)
    w,h = fig.get_size_inches()
    assert about['image/png']==dict(width=100*w, height=100*h) and one['text/plain'].startswith('<Canvas')
    ax.plot([0, 1], [0, 1])
    assert shell.display_formatter.format(fig)[0]['image/png']!=one['image/png'] and len(drawn)==2

def test_sliders_and_boxes_keep_their_start():
    c = _indexed('clip_eps', W.FloatSlider(.2, min=.1, max=.5, step=.1))
    assert (c.index, c.value)==(1, .2)
    c = _indexed('on', W.Checkbox(value=True))
    assert (c.index, c.value)==(1, True)

def test_before_anything_runs_a_drawing_is_an_image_with_its_words():
    "JupyterLab strips SVG from what was not run there, and would leave its letters in a row"
    drawn = '<svg viewBox="0 0 9 9" aria-label="a, {a}"><text>letters</text></svg>'
    def draw(v): return '<p>before</p>'+drawn.format(**v)
    res = explore(lambda a: dict(a=a), draw, a=W.Dropdown(options=[1, 2], description='a'))
    html = res._repr_mimebundle_()['text/html']
    assert re.match('<p>before</p><img alt="a, 1" src="data:image/svg[+]xml;base64,', html)
    assert '<text' not in html
    svg = b64decode(re.search('base64,([^"]+)', html)[1]).decode()
    assert 'xmlns=' in svg and '<text>letters</text>' in svg

@pytest.mark.parametrize('n', [1, 2, 16, 17, 256])
@pytest.mark.parametrize('shape', [(1, 1), (3, 4), (4, 5), (40, 301)])
def test_a_picture_of_few_colors_comes_back_pixel_for_pixel(n, shape):
    g = np.random.default_rng(n)
    palette,pixels = g.integers(0, 256, (n, 3)),np.minimum(g.integers(0, n, shape), n-1).astype(np.uint8)
    pixels[:,:shape[1]//2] = 0
    stored = Image.open(BytesIO(png_bytes(pixels, palette)))
    np.testing.assert_array_equal(np.array(stored.convert('RGB')), palette[pixels])

def test_a_stored_picture_loses_rare_shades_and_keeps_the_colors_of_areas_and_lines():
    pixels = np.zeros((100, 200), dtype=np.uint8)
    pixels[:,100:] = 1   # an area 13 levels darker than the other
    pixels[50,:40] = 2   # a thin line, as faint
    pixels[10,10] = 3    # single pixels: one close to the first area, one to none
    pixels[20,20] = 4
    image = Image.fromarray(pixels)
    image.putpalette([255]*3+[242]*3+[240,255,255]+[250]*3+[0, 0, 200])
    got,want = np.array(plotting.merge_shades(image).convert('RGB')),np.array(image.convert('RGB'))
    want[10,10] = 255
    np.testing.assert_array_equal(got, want)
