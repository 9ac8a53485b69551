"What our pages need of Sphinx: names of the package as anchors and links, the notebook behind a page, llms.txt."
import ast, re
from functools import cache
from pathlib import Path
import yaml
from docutils import nodes
from pygments.formatters import HtmlFormatter
from pygments.token import Token
from sphinx.addnodes import index, pending_xref, toctree
from sphinx.domains.python import ObjectEntry
from sphinx.highlighting import PygmentsBridge

class LeanFormatter(HtmlFormatter):
    "Without marks on names, punctuation and spaces, which have the color of plain text: a quarter of every page."
    def _get_css_class(self, ttype):
        plain = ttype in (Token.Name, Token.Punctuation, Token.Text.Whitespace)
        return '' if plain else super()._get_css_class(ttype)

def _defined(code):
    "The functions and classes of a cell, and the methods that `@patch` adds."
    for o in ast.parse(code).body:
        if not isinstance(o, (ast.FunctionDef, ast.ClassDef)): continue
        patched = any(getattr(d, 'id', '')=='patch' for d in o.decorator_list)
        if patched: yield f'{o.args.args[0].annotation.id}.{o.name}'
        else: yield o.name

def note_names(app, doctree):
    "Give each exported cell the names that it defines as anchors, and tell Sphinx's index of them."
    env,python = app.env,app.env.get_domain('py')
    for cell in doctree.findall(nodes.container):
        about = cell.get('cell_metadata') or {}
        module,internal = about.get('exports'),about.get('internal', False)   # the search lists no internal ones
        if not module: continue
        code = next((o.astext() for o in cell.findall(nodes.literal_block)), '')
        for name in _defined(code):
            if name.startswith('_') or name in doctree.ids: continue
            cell['ids'].append(name)
            doctree.ids[name] = cell
            kind = 'class' if name[0].isupper() and '.' not in name else 'function'
            python.objects.setdefault(f'{module}.{name}', ObjectEntry(env.docname, name, kind, internal))

def _known(app):
    found = {}
    for full,o in sorted(app.env.get_domain('py').objects.items(), key=lambda o: (o[1].docname.count('/'), o[0])):
        found.setdefault(o.node_id, []).append(o)
    return found

@cache
def _words():
    text = (Path(__file__).parent/'words.yml').read_text(encoding='utf-8')
    return yaml.safe_load(text)

def index_words(app, doctree):
    "Enter what users say in the index, which the search reads before titles and text."
    name = app.env.docname
    for at,words in _words().items():
        page,_,section = at.partition('.html#')
        if page.removesuffix('.html')!=name: continue
        if section and section not in doctree.ids: raise ValueError(f'docs/words.yml: {name} has no section {section}')
        entries = [('single', o.lower(), section, 'main', None) for o in words]
        doctree.insert(0, index(entries=entries))

def _around(node):
    "What a node lies in, from the inside out."
    while node.parent is not None:
        node = node.parent
        yield node

def link_names(app, doctree, docname):
    "Link `name` and `name(x)` in running text to the cell that defines it."
    if not hasattr(app, 'known_names'): app.known_names = _known(app)
    for o in [*doctree.findall(nodes.literal)]:
        if any(isinstance(p, (nodes.reference, nodes.title, pending_xref)) for p in _around(o)): continue
        m = re.fullmatch(r'(?:grpo_nb\.)?(?:[a-z_]+\.)*([A-Za-z_]\w*(?:\.\w+)?)(\(.*\))?', o.astext())
        there = app.known_names.get(m[1], []) if m else []
        if not there: continue
        to = next((k for k in there if k.docname==docname), there[0])
        at = '' if to.docname==docname else app.builder.get_relative_uri(docname, to.docname)
        ref = nodes.reference('', '', refuri=f'{at}#{to.node_id}', internal=True)
        o.replace_self(ref)
        ref += o

def anchors(app, doctree):
    "An address with the heading's own words, whatever docutils makes of them."
    for section in doctree.findall(nodes.section):
        slug = section.get('slug')
        if slug and slug not in doctree.ids:
            section['ids'].append(slug)
            doctree.ids[slug] = section

def notebook_paths(app, pagename, templatename, context, doctree):
    "The theme's buttons lead to the notebook, whose file has its chapter's number."
    path = (app.env.metadata.get(pagename) or {}).get('notebook')
    if not path: return
    def mend(o):
        if isinstance(o, dict): return {k:mend(v) for k,v in o.items()}
        if isinstance(o, list): return [mend(v) for v in o]
        return re.sub(rf'nbs/{re.escape(pagename)}\.(ipynb|md)', f'nbs/{path}', o) if isinstance(o, str) else o
    context['header_buttons'] = mend(context.get('header_buttons', []))

def write_llms(app, failed):
    """llms.txt, for agents: the pages by section with a sentence on each. Source: llmstxt.org."""
    if failed: return
    env,site = app.env,app.config.html_baseurl
    lines = ['# grpo_nb', '', f"> {env.metadata['index']['says']}", '',
        'Pages are notebooks and texts of one repository; the code on them is the code of the package.',
        f'`grpo_nb diagnose FOLDER --json` follows [this JSON schema]({site}findings.schema.json).']
    def page(name):
        says = env.metadata[name].get('says')
        return f'- [{env.titles[name].astext()}]({site}{name}.html)'+(f': {says}' if says else '')
    def below(name): return [o for k in env.toctree_includes.get(name, []) for o in (k, *below(k))]
    listed = set()   # a page that stands in the sidebar twice is listed where it comes first
    def pages(names):
        new = [o for o in dict.fromkeys(names) if o not in listed]
        listed.update(new)
        return map(page, new)
    for tree in env.get_doctree('index').findall(toctree):
        names = tree['includefiles']
        if tree['caption']=='Course': lines += ['', '## Course', '', *pages(names)]
        else:
            for k in names: lines += ['', f"## {dict((b, a) for a,b in tree['entries'])[k]}", '', *pages([k, *below(k)])]
    (Path(app.outdir)/'llms.txt').write_text('\n'.join(lines)+'\n', encoding='utf-8')

def setup(app):
    PygmentsBridge.html_formatter = LeanFormatter
    app.connect('build-finished', write_llms)
    app.connect('doctree-read', note_names)
    app.connect('doctree-read', anchors)
    app.connect('doctree-read', index_words)
    app.connect('doctree-resolved', link_names)
    app.connect('html-page-context', notebook_paths, priority=900)
    return dict(parallel_read_safe=True, parallel_write_safe=True)
