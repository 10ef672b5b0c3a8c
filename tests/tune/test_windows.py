import json
from pathlib import Path

import numpy as np
import pytest

from monolane.errors import TextError
from monolane.text import Tokenizer
from monolane.tune import Windows, read_windows

from .conftest import DEMO


def test_an_epoch_shows_each_training_window_once() -> None:
    windows = Windows(np.arange(4003), 10, seed=3)
    assert (len(windows.train_RC), len(windows.held_out_RC)) == (380, 20)
    shown = np.concatenate([windows.batch(step, 38) for step in range(10)])
    assert sorted(shown[:, 0]) == sorted(windows.train_RC[:, 0])
    assert not np.array_equal(windows.batch(0, 38), windows.batch(10, 38))
    assert np.array_equal(windows.batch(7, 38), Windows(np.arange(4003), 10, seed=3).batch(7, 38))
    held_out = set(windows.held_out_RC[:, 0].tolist())
    assert held_out.isdisjoint(shown[:, 0].tolist())


def test_files_lines_and_folders(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(DEMO)
    assert tokenizer is not None
    (tmp_path / "a.py").write_text("x = 1\n" * 200)
    line = json.dumps(
        {"text": "y\u2028\x85= 2 "}, ensure_ascii=False
    )  # JSON allows both as they are
    (tmp_path / "b.jsonl").write_text(f"{line}\n\n" * 200, encoding="utf-8-sig")
    (tmp_path / "c.py").write_bytes(b"\xff")
    (tmp_path / "notes.md").mkdir()
    (tmp_path / "d.bin").write_bytes(b"z")
    windows = read_windows(tmp_path, tokenizer, 8, 0)
    total = (len(windows.train_RC) + len(windows.held_out_RC)) * 8
    expected = len(tokenizer.encode("x = 1\n" * 200, add_special_tokens=False)) + 1
    expected += 200 * (len(tokenizer.encode("y\u2028\x85= 2 ", add_special_tokens=False)) + 1)
    assert total == expected // 8 * 8


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"txt": 1}\n', "line 2: expected a JSON object with a text"),
        ("a.txt", b"\xff", "expected text in UTF-8"),
        ("a.txt", b"short", "expected at least 20 windows of 8 tokens"),
        ("a.txt", b" ", "expected .txt, .md, .py, .jsonl files with text, found none"),
        (None, b"", "expected a text file or a folder of them"),
    ],
)
def test_text_that_is_none(name: str | None, content: bytes, message: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(DEMO)
    assert tokenizer is not None
    path = tmp_path / (name or "nothing")
    if name:
        path.write_bytes(content)
    with pytest.raises(TextError, match=message):
        read_windows(path, tokenizer, 8, 0)
