"""A STAND-IN for SGLang, for test hosts: no model, no GPU, no tokens worth reading.

It takes the real arguments, logs the real lines, serves the real endpoints and dies the real ways.
"""

from .version import __version__ as __version__
