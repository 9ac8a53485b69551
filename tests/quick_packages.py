"""What makes the tests quicker by changing other packages, in their process alone:
`python -m pytest -p tests.quick_packages`. The weekly workflow leaves it out."""

import os
os.environ.setdefault('OMP_NUM_THREADS', '1')   # which the imports read

def pytest_configure(config):
    "In each process that runs tests; the one that hands them out to workers imports nothing."
    if config.getoption('dist', 'no')=='no': _change()

def _change():
    import functools, importlib.metadata, sys
    import jinja2, torch
    import accelerate.utils.imports as packages
    # What a training of three steps asks again and again: the metadata of packages, whether deepspeed is
    # there, a template for the model card; and each seed is kept, with the stack of its call, for a card that
    # isn't there.
    importlib.metadata.metadata = functools.cache(importlib.metadata.metadata)
    importlib.metadata.version = functools.cache(importlib.metadata.version)
    packages._is_package_available = functools.cache(packages._is_package_available)
    jinja2.Environment.compile = functools.cache(jinja2.Environment.compile)
    for o in (torch.cuda, torch.xpu, torch.mtia):
        if not o.is_available(): getattr(o, 'random', o)._lazy_call = lambda *args, **kw: None
    sys.modules['rfc3987_syntax'] = None   # jsonschema would build 38 grammars of addresses, in three seconds
