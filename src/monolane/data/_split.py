"""Which documents training never sees: each is drawn by the hash of its own text.

So a document stays on its side whatever comes or goes around it, in any order and in any source.
"""

import hashlib


def is_held_out(text: str, share: float) -> bool:
    """Return whether a text is held out, where ``share`` of all texts are, from 0 to below 1."""
    draw = int(hashlib.sha256(text.encode()).hexdigest()[:16], 16) / 2**64  # uniform in [0, 1)
    return draw < share
