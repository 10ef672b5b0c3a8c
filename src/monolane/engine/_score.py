"""How probable a given text is to the model: what evaluation harnesses ask for as ``echo``."""

from collections.abc import Callable, Iterator, Sequence

from monolane.epoch import SharedExecutor, TokenLogprob, describe_logprobs

# Tokens whose logits are held at a time: 32 MB at a vocabulary of 128,000. Others get their turn
# between two such chunks, and a cancelled request ends there.
_CHUNK = 64


def score(
    backend: SharedExecutor,
    slot: int,
    token_ids: Sequence[int],
    top: int,
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[TokenLogprob]:
    """Feed all tokens but the last to an empty slot; yield how probable each but the first was.

    ``top`` alternatives come with each. Ends early once ``cancelled``.
    """
    for begin in range(0, len(token_ids) - 1, _CHUNK):
        if cancelled():
            return
        end = min(begin + _CHUNK, len(token_ids) - 1)
        logits_TV = backend.logits(slot, token_ids[begin:end])
        for logits_V, token in zip(logits_TV, token_ids[begin + 1 : end + 1], strict=True):
            yield describe_logprobs(logits_V, token, top)
