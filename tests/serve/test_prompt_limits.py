"""How long a prompt may be follows from the tokens that are there, not from the highest id."""

import json
from pathlib import Path

import pytest

from monolane.serve._http.limits import _chars_per_token
from monolane.sources import find_model
from monolane.text import Tokenizer
from monolane.text._token_bytes import TokenBytes


def test_a_token_far_away_costs_no_more_than_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may put one at 2^32 - 1: a loop up to that would hold the server up for an hour."""
    data = json.loads((find_model("demo") / "tokenizer.json").read_text(encoding="utf-8"))
    data["model"]["vocab"]["z" * 99] = 1 << 20
    (tmp_path / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    tokenizer = Tokenizer.open(tmp_path)
    assert tokenizer is not None
    asked: list[int] = []
    get = TokenBytes.get

    def count(self: TokenBytes, token_id: int) -> bytes | None:
        asked.append(token_id)
        return get(self, token_id)

    monkeypatch.setattr(TokenBytes, "get", count)
    assert _chars_per_token(tokenizer) >= 99
    assert len(asked) <= 2 * len(tokenizer.vocabulary())
