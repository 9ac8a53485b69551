"Packaging. Every value comes from settings.ini: edit there, not here."
import re, shlex, sys
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path
from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
ini = ConfigParser(delimiters=['='])
ini.read(ROOT/'settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']

LIB = cfg['lib_path']
STATUS = {'3': '3 - Alpha', '4': '4 - Beta', '5': '5 - Production/Stable'}
EXTRAS = [k.removesuffix('_requirements') for k in cfg if k.endswith('_requirements')]

SITE = cfg['doc_host']+cfg['doc_baseurl']
PICTURES = '.png', '.gif', '.jpg', '.svg'

def address(path):
    "Where a file that README.md links to lies: its page on the site; a picture, or another file, on GitHub."
    page = re.fullmatch(r'nbs/((?:\w+/)*)(?:\d+[a-zA-Z0-9]*_)?(\w+)\.(?:ipynb|qmd)(#.*)?', path)
    if page: return f"{SITE}/{page[1]}{page[2]}.html{page[3] or ''}"
    if not path.endswith(PICTURES): return f"{cfg['git_url']}/blob/{cfg['branch']}/{path}"
    return f"{cfg['git_url'].replace('github.com', 'raw.githubusercontent.com')}/{cfg['branch']}/{path}"

def with_addresses(text):
    "The text with absolute links: on a package page a relative one leads nowhere."
    relative = r'(?!\w+:|#)'
    text = re.sub(rf'\]\({relative}([^)\s]+)\)', lambda m: f']({address(m[1])})', text)
    return re.sub(rf'\b(src|href|srcset)="{relative}([^"]+)"', lambda m: f'{m[1]}="{address(m[2])}"', text)

readme = ROOT/'README.md'

class WithJax(build_py):
    "The package with the live page's jax-js beside the weights, as npm has it; `grpo_nb live` fetches what is missing."
    def run(self):
        super().run()
        if self.editable_mode: return
        sys.path.insert(0, str(ROOT))
        live = import_module(f'{LIB}.see.live')   # which needs the standard library alone
        try: live.copy_jax(Path(self.build_lib)/LIB/'assets'/'jax')
        except live.NpmError as e:   # pip hides what a build prints, but not the wheel's name
            print(f'the wheel has no live page: {e}', file=sys.stderr)
            if wheel := self.distribution.command_obj.get('bdist_wheel'): wheel.build_number = '0_without_live_page'

setup(
    cmdclass=dict(build_py=WithJax),
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'], keywords=cfg['keywords'],
    author=cfg['author'], author_email=cfg['author_email'], url=cfg['git_url'], license='Apache-2.0',
    project_urls=dict(Documentation=SITE, Changelog=SITE+'/project/changelog.html', Issues=cfg['git_url']+'/issues'),
    long_description=with_addresses(readme.read_text(encoding='utf-8')) if readme.exists() else '',
    long_description_content_type='text/markdown',
    classifiers=[f"Development Status :: {STATUS[cfg['status']]}", f"Intended Audience :: {cfg['audience']}",
                 'Programming Language :: Python :: 3',
                 *(f'Programming Language :: Python :: {o}' for o in cfg['pythons'].split()),
                 'Topic :: Scientific/Engineering :: Artificial Intelligence', 'Typing :: Typed'],
    packages=[*find_packages(include=[LIB, LIB+'.*'], exclude=[LIB+'.dev*', LIB+'.studies*']), LIB+'.assets.teach'],
    package_dir={LIB+'.assets.teach': 'nbs/teach'},   # handouts and checks, taken from where they are written
    package_data={LIB: shlex.split(cfg['package_data']), LIB+'.assets.teach': ['[abcde]_*.ipynb', 'checks.ipynb']},
    python_requires='>='+cfg['min_python'], install_requires=shlex.split(cfg['requirements']),
    extras_require={o: shlex.split(cfg[f'{o}_requirements']) for o in EXTRAS},
    entry_points={'console_scripts': cfg['console_scripts'].split(), 'nbdev': [f"{cfg['lib_path']}={cfg['lib_path']}._modidx:d"]},
    zip_safe=False,
)
