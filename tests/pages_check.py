"Checks of a built site: links, anchors, pictures, headings, and that it asks no other host"

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

OURS = 'https://grpo-nb.github.io/grpo_nb/'

class _Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids,self.links,self.loads,self.faults,self.level = set(),[],[],[],0
        self.feed(text)
    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if 'id' in a: self.ids.add(a['id'])
        if tag=='a' and a.get('href') is not None: self.links.append(a['href'])
        if tag=='img' and 'alt' not in a:
            self.faults.append(f"an image without alt text: {a.get('src', '')[:60]}")
        if tag in ('img','script','iframe','source') and a.get('src'): self.loads.append(a['src'])
        if tag=='link' and a.get('href') and a.get('rel') not in ('canonical','alternate','next','prev'):
            self.loads.append(a['href'])
        if re.fullmatch('h[1-6]', tag) and 'no-outline' not in (a.get('class') or ''):
            if self.level and int(tag[1])>self.level+1:
                self.faults.append(f"a heading of level {tag[1]} under one of level {self.level}: "
                    f"{a.get('id', '')}")
            self.level = int(tag[1])

def site_errors(
    site:Path,            # the built site
)->list:  # one line a fault, beginning with the page's name
    "Broken links and anchors, images without alt text, skipped headings, other hosts."
    site = Path(site).resolve()
    files = [f for f in sorted(site.rglob('*.html')) if '_static' not in f.parts]
    pages = {f:_Page(f.read_text(encoding='utf-8')) for f in files}
    res = []
    for f in sorted(site.rglob('*.css')):
        asked = re.findall(r"""(?:url\(|@import )['"]?(https?://[^)'";]+)""", f.read_text(encoding='utf-8'))
        res += [f'{f.relative_to(site)}: asks another host: {o}' for o in asked]
    for f,p in pages.items():
        found = [*p.faults]
        found += [o for o in (_load_fault(f, o, site) for o in p.loads) if o]
        found += [o for o in (_link_fault(f, o, pages, site) for o in dict.fromkeys(p.links)) if o]
        res += [f'{f.relative_to(site)}: {o}' for o in found]
    return res

def _place(f, path, site):
    "Where a path on page `f` leads; the page for lost addresses names all from the host's root."
    path = unquote(path)
    if path.startswith('/grpo_nb/'): return (site/path.removeprefix('/grpo_nb/')).resolve()
    return (f.parent/path).resolve()

def _load_fault(f, o, site):
    u = urlsplit(o)
    if u.scheme in ('http','https') or o.startswith('//'): return f'asks another host: {o}'
    if u.scheme!='data' and not _place(f, u.path, site).exists(): return f'loads what is not there: {o}'

def _link_fault(f, o, pages, site):
    if o.startswith(OURS): return next(iter(links_to_our_site(o, site)), None)
    u = urlsplit(o)
    if u.scheme or u.netloc or o.startswith('#!'): return
    to = _place(f, u.path, site) if u.path else f
    if to.is_dir(): to = to/'index.html'
    if not to.exists(): return f'a link to what is not there: {o}'
    if u.fragment and to in pages and unquote(u.fragment) not in pages[to].ids:
        return f'a link to an anchor that is not there: {o}'

def links_to_our_site(text:str, site:Path)->list:
    "Addresses of our own site in a text that lead to no page or section of the built one."
    lost = []
    for o in re.findall(OURS+r"([\w./-]+(?:#[\w.-]+)?)", text):
        path,_,at = o.rstrip('.').partition('#')
        f = site/path if path and not path.endswith('/') else site/path/'index.html'
        if not f.exists() or at and at not in _ids(f): lost.append(f'not on our site: {o}')
    return lost

@cache
def _ids(f): return _Page(f.read_text(encoding='utf-8')).ids
