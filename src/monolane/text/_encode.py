"""A text to ids, without holding up the other threads of Python where that takes long."""

import tokenizers

# Characters from which a text goes to the library as a batch of one: then it lets other threads of
# Python run meanwhile, which ``encode`` does not in the second that a megabyte takes. A short text
# is not worth the library's own threads.
LONG = 20_000


def encode_bare(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    """Return the ids of a text, nothing added before or behind it."""
    if len(text) < LONG:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    else:
        ids = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids
