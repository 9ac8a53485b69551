"The site: Sphinx, with myst-nb and sphinx-book-theme. `python -m grpo_nb.dev docs` stages the notebooks and builds it."
import sys
from pathlib import Path
import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))   # for the small extension beside this file

project,author,copyright = 'grpo_nb','The grpo_nb authors','2026 onwards, the grpo_nb authors'
extensions = ['myst_nb', 'sphinx_external_toc', 'sphinxext.opengraph', 'notfound.extension', 'sphinx_reredirects',
    'sphinxcontrib.katex', 'extension']
SITE = 'https://grpo-nb.github.io/grpo_nb/'

# notebooks are shown as they are stored, and never run here
nb_execution_mode = 'off'
nb_merge_streams = True
nb_render_markdown_format = 'myst'
nb_ipywidgets_js = {'html-manager/embed.js':{}}
nb_render_image_options = {'align':'left'}
nb_code_prompt_show = nb_code_prompt_hide = 'Code'
myst_enable_extensions = ['dollarmath', 'amsmath', 'attrs_inline']
myst_heading_anchors = 4
myst_heading_slug_func = 'grpo_nb.dev.site.anchor'
external_toc_path = '_toc.yml'   # staged: with the chapters of nbs/course.yml
suppress_warnings = ['myst.header', 'misc.highlighting_failure', 'sphinx_multitoc_numbering']

# look
html_theme = 'sphinx_book_theme'
html_title,html_favicon = 'grpo_nb',str(HERE/'_static'/'favicon.svg')
html_static_path,html_css_files,html_js_files = [str(HERE/'_static')],['site.css'],['site.js']
html_copy_source,html_show_sourcelink = False,False
html_search_scorer,html_use_index = str(HERE/'scorer.js'),False
katex_css_path = 'katex/katex.min.css'
html_theme_options = dict(
    repository_url='https://github.com/grpo-nb/grpo_nb', repository_branch='main', path_to_docs='nbs',
    use_repository_button=True, use_edit_page_button=True, use_source_button=True, use_download_button=False,
    launch_buttons=dict(binderhub_url='https://mybinder.org', colab_url='https://colab.research.google.com',
        notebook_interface='jupyterlab'),
    navbar_start=[], navbar_center=[], navbar_end=[], navbar_persistent=[],
    show_navbar_depth=1, collapse_navbar=True, show_toc_level=2, toc_title='On this page',
    pygments_light_style='a11y-high-contrast-light', pygments_dark_style='a11y-high-contrast-dark')

# what others read of the site: previews of links, llms.txt, old addresses
html_baseurl = ogp_site_url = SITE
ogp_social_cards,ogp_image = {'enable':False},SITE+'_static/preview.png'
ogp_image_alt = 'A run: 16 groups in each column, living, dead, or replaced by a stored one, and the share of right answers'
notfound_urls_prefix = '/grpo_nb/'
redirects = yaml.safe_load((HERE/'moved.yml').read_text(encoding='utf-8'))
