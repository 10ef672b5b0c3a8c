"""The prompt of a gap between two texts, from the tokens that a model was trained to fill it with.

    [repo] name [file] other text ... [file] name [prefix] before [suffix] behind [middle] beginning

What other files say comes only where the model has a token for files: it has then been trained so.
"""

from collections.abc import Iterator, Sequence

from pydantic import BaseModel, ConfigDict

from monolane.engine import Engine
from monolane.serve._http.limits import check_length
from monolane.text import InfillTokens, Tokenizer

_REPO, _FILE = "project\n", "file\n"  # a client does not say what they are called
_CHARS = 32  # for each token of the context: what is beyond is cut before it costs anything
_SNIPPET = "\n\n--- snippet ---\n\n"  # before another file, for models without a token for files


class Extra(BaseModel):
    """Another file of the project."""

    model_config = ConfigDict(strict=True)

    text: str
    filename: str | None = None


def infill_ids(
    engine: Engine, texts: tuple[str, str, str], extra: Sequence[Extra], wanted: int | None
) -> list[int]:
    """Return the token ids of the prompt, cut where the context cannot hold it.

    ``texts``: before the gap, behind it, and what the gap begins with. ``wanted``: tokens that the
    answer may have; None: a quarter of the context is left for it. What is farthest from the gap
    goes first: other files, then three quarters of what is left are for the text before it.
    """
    assert engine.tokenizer is not None
    assert engine.infill is not None
    check_length("prompt", texts[2], engine)
    marks, tokenizer, context = engine.infill, engine.tokenizer, engine.backend.context
    chars = _CHARS * context
    cut = (texts[0][-chars:], texts[1][:chars], texts[2])
    before, behind, begun = (_plain(text, tokenizer) for text in cut)
    bos = [] if tokenizer.bos_id is None or not tokenizer.encode("") else [tokenizer.bos_id]
    # The last token drawn is never fed, so it needs no place.
    places = context + 1 - min(context // 4 if wanted is None else max(1, wanted), context // 2)
    room = max(0, places - len(begun) - len(bos) - 3)
    kept = min(len(behind), max(room // 4, room - len(before)))
    before = before[len(before) - min(len(before), room - kept) :]
    behind = behind[:kept]
    others = _others(list(_nearest(extra, chars)), marks, tokenizer)
    room -= len(before) + len(behind)
    others = others[len(others) - min(len(others), max(0, room)) :]
    return [
        *bos,
        *others,
        *(marks.prefix, *before),
        *(marks.suffix, *behind),
        *(marks.middle, *begun),
    ]


def _nearest(extra: Sequence[Extra], chars: int) -> Iterator[Extra]:
    """Yield the last files, as many as have so many characters; of the first its end."""
    sizes = [len(one.text) for one in extra]
    for i, one in enumerate(extra):
        room = chars - sum(sizes[i + 1 :])
        if room > 0:
            yield one.model_copy(update={"text": one.text[-room:]})


def _others(extra: Sequence[Extra], marks: InfillTokens, tokenizer: Tokenizer) -> list[int]:
    if not extra:
        return []
    ids: list[int] = []
    if marks.repo is not None:
        ids += [marks.repo, *_plain(_REPO, tokenizer)]
    for one in extra:
        if marks.file is None:
            ids += _plain(_SNIPPET, tokenizer)
        else:
            ids += [marks.file, *_plain(f"{one.filename or 'other'}\n", tokenizer)]
        ids += _plain(one.text, tokenizer)
    if marks.file is not None:
        ids += [marks.file, *_plain(_FILE, tokenizer)]
    return ids


def _plain(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of a file's text, in which nothing spells a control token."""
    return tokenizer.encode(text, add_special_tokens=False)
