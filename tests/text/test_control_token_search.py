"""The trie pattern against plain searches."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from monolane.text._control_token_search import Spellings

WORDS = st.lists(st.text("ab|", min_size=1, max_size=4), max_size=5)


@settings(deadline=None)
@given(words=WORDS, text=st.text("ab| ", max_size=20))
def test_starts(words: list[str], text: str) -> None:
    end = text.rstrip()
    expected = [
        at
        for at in range(len(text))
        if any(text.startswith(word, at) for word in words)
        or (at < len(end) and any(len(end[at:]) < len(w) and w.startswith(end[at:]) for w in words))
    ]
    assert Spellings(words).starts(text) == expected


def test_many_tokens_and_a_hostile_text() -> None:
    words = [f"<|reserved_special_token_{number}|>" for number in range(1000)] + ["x" * 256]
    started = time.monotonic()
    assert Spellings(words).starts("<|reserved_special_token_" * 40_000 + "!") == []
    assert time.monotonic() - started < 20  # about 0.01 s; an alternation takes minutes
