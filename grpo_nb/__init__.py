__version__ = "0.1.0"

from .parts.registry import register
