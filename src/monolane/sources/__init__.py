"""Where a model comes from: the demo, a folder, a file, the Hub, a package, another program.

``find_model`` says where a model is, and fetches it at first use; ``fetch_model`` checks what was
fetched before, too; ``models_on_disk`` are those that are here, and ``remove_model`` removes one.
``unpack_gguf`` makes a folder of a .gguf file, for what reads folders alone.
"""

from monolane.sources._aliases import read_aliases, set_alias
from monolane.sources._on_disk import models_on_disk
from monolane.sources._other_programs import KeptModel
from monolane.sources._packaged import DEMO, packaged_defaults
from monolane.sources._path import expand_path
from monolane.sources._proxy import proxy_told
from monolane.sources._remove import remove_model
from monolane.sources._source import fetch_model, find_model
from monolane.sources._unpack import unpack_gguf

__all__ = [
    "DEMO",
    "KeptModel",
    "expand_path",
    "fetch_model",
    "find_model",
    "models_on_disk",
    "packaged_defaults",
    "proxy_told",
    "read_aliases",
    "remove_model",
    "set_alias",
    "unpack_gguf",
]
