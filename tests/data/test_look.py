"""What people see of a corpus: its rows as text, its figures, its page."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from monolane.data import (
    NO_DOCUMENT,
    Blend,
    Corpus,
    Encoded,
    figures_of,
    render_page,
    show_row,
    write_corpus,
)


@pytest.fixture
def corpus(tmp_path: Path, tiny_model: Path) -> Corpus:
    from monolane.text import Tokenizer

    tokenizer = Tokenizer.open(tiny_model)
    assert tokenizer is not None
    texts = ["def f(x):\n    return x\n", "é\n</s>", "import os\n"]
    documents = [
        Encoded(
            np.array([1, *tokenizer.encode(text, add_special_tokens=False), 2]), len(text.encode())
        )
        for text in texts
    ]
    return write_corpus(tmp_path / "corpus", tiny_model, {"code": (documents[:2], documents[2:])})


def test_a_shown_row_is_the_row(corpus: Corpus) -> None:
    blend = Blend(corpus, {"code": 1}, 16, 0)
    seen: dict[int, str] = {}
    for number in range(blend.epoch_rows("code")):
        shown = show_row(corpus, blend, number)
        rows = blend.rows(number, 1)
        assert shown.source == "code"
        assert sum(piece.tokens for piece in shown.pieces) == 16
        for piece in shown.pieces:
            own = rows.documents[0, piece.first : piece.first + piece.tokens]
            assert len(set(own.tolist())) == 1
            assert (piece.document is None) == (own[0] == NO_DOCUMENT)
            ids = rows.ids[0, piece.first : piece.first + piece.tokens]
            assert piece.begins == (piece.document is not None and ids[0] == 1)
            if piece.document is not None:
                files = corpus.train("code")
                assert ids.tolist() in _windows(files.document(piece.document), len(ids))
                seen[piece.document] = seen.get(piece.document, "") + piece.text
    assert set(seen) == {0, 1}
    assert any("<s>" in text for text in seen.values())  # control tokens are spelled out


def _windows(ids: np.ndarray, length: int) -> list[list[int]]:
    return [ids[at : at + length].tolist() for at in range(len(ids) - length + 1)]


def fill(corpus: Corpus) -> None:
    """Give a corpus what preparation would have written beside it."""
    report = {
        "sources": {
            "code": {
                "lengths": {"train": [0, 0, 1, 0, 5], "held_out": []},
                "dropped": {
                    "length": {
                        "documents": 2,
                        "bytes": 1500,
                        "reasons": {"too short": 2},
                        "examples": [
                            {"name": "<b>.py", "why": "too short", "text": "<script>x</script>"}
                        ],
                    }
                },
            }
        },
        "evaluation": [{"name": "stars", "tasks": 1, "short": 0, "ngrams": 9}],
    }
    (corpus.folder / "report.json").write_text(json.dumps(report))
    manifest = json.loads((corpus.folder / "corpus.json").read_text())
    manifest["sources"][0].update(read=5, dropped={"length": 2})
    manifest["stages"] = {"late": {"code": 2}}
    (corpus.folder / "corpus.json").write_text(json.dumps(manifest))


def test_figures(corpus: Corpus) -> None:
    fill(corpus)
    figures = figures_of(Corpus.open(corpus.folder))
    (source,) = figures.sources
    assert (source.read, source.kept, figures.tokens) == (5, 3, corpus.train("code").tokens)
    assert [(one.low, one.high, one.documents) for one in source.lengths] == [
        (4, 7, 1),
        (8, 15, 0),
        (16, 31, 5),
    ]
    assert source.dropped[0].share == 2 / 5
    ((share,),) = figures.stages.values()
    assert (share.source, share.share, share.repeats) == ("code", 1, figures.tokens)


class Tags(HTMLParser):
    """Notes what is open, so that an unclosed tag is found, and what is asked from elsewhere."""

    VOID = frozenset({"meta", "br", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.asked: list[str] = []
        self.bars = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.bars += tag == "rect"
        self.asked += [v or "" for k, v in attrs if k in ("src", "href") and "#" not in (v or "")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_whole_needs_nothing_and_escapes_texts(corpus: Corpus) -> None:
    fill(corpus)
    page = render_page(Corpus.open(corpus.folder))
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.asked == []
    assert tags.bars == 3
    assert "http" not in re.sub(r"xmlns=\"[^\"]*\"", "", page)
    assert "<script" not in page
    assert "&lt;script&gt;x&lt;/script&gt;" in page
    assert "prefers-color-scheme: dark" in page
    scrolled = re.findall(r'<div class="wide"(.*?)>', page)  # reached by keyboard, and named
    assert scrolled
    for about in scrolled:
        assert re.fullmatch(' tabindex="0" role="region" aria-label="[^"]+"', about)
    for said in ("too short", "&lt;b&gt;.py", "late", "stars", "40 %", "1.5 kB", "16 to 31 tokens"):
        assert said in page, said


def test_a_corpus_without_a_report_has_a_page_too(corpus: Corpus) -> None:
    page = render_page(corpus)
    assert corpus.digest[:16] in page
    assert "<svg" not in page
