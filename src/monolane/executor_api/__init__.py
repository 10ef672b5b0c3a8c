"""The contract between the engine and the executors of a model.

``Advance`` is what a request asks, ``TokenEvent`` what comes back, ``Executor`` who answers. A leaf
package: executors and the engine import it, it imports neither.
"""

from monolane._draw import Draw
from monolane._loading import Loading
from monolane.executor_api._abi import (
    ADVANCE,
    BIAS,
    DRAW,
    MAX_LOGPROBS,
    SETUP,
    SPAN,
    TOKEN,
    cpp_header,
    pack,
    pack_setup,
    unpack_tokens,
)
from monolane.executor_api._executor import Executor, MakeExecutor, check_adapt
from monolane.executor_api._rank_addresses import (
    RankAddresses,
    check_key,
    read_key,
    split_address,
)
from monolane.executor_api._request import AUTO_DRAFTS, TEXT_END, Advance, Guide
from monolane.executor_api._saved_kv import Kept, KeptBytes, bytes_of
from monolane.executor_api._token import GONE, NO_TOKEN, TokenEvent, TokenLogprob, describe_logprobs

__all__ = [
    "ADVANCE",
    "AUTO_DRAFTS",
    "BIAS",
    "DRAW",
    "GONE",
    "MAX_LOGPROBS",
    "NO_TOKEN",
    "SETUP",
    "SPAN",
    "TEXT_END",
    "TOKEN",
    "Advance",
    "Draw",
    "Executor",
    "Guide",
    "Kept",
    "KeptBytes",
    "Loading",
    "MakeExecutor",
    "RankAddresses",
    "TokenEvent",
    "TokenLogprob",
    "bytes_of",
    "check_adapt",
    "check_key",
    "cpp_header",
    "describe_logprobs",
    "pack",
    "pack_setup",
    "read_key",
    "split_address",
    "unpack_tokens",
]
