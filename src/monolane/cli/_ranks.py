"""What ``--ranks`` and ``--key-file`` mean."""

from pathlib import Path
from typing import TYPE_CHECKING

from monolane.errors import RequestError

if TYPE_CHECKING:
    from monolane.executor_api import RankAddresses


def find_ranks(text: str, key_file: Path | None) -> "int | RankAddresses":
    """Return a number of ranks on this host, or the addresses of others; RequestError."""
    if ":" in text:
        from monolane.executor_api import RankAddresses

        return RankAddresses.parse(text, key_file)
    try:
        ranks = int(text)
    except ValueError:
        raise RequestError(
            f"ranks: expected a number, or host:port,host:port, got {text!r:.80}"
        ) from None
    if key_file is not None:
        raise RequestError("--key-file: expected ranks with addresses, host:port,host:port")
    return ranks
