"""A corpus folder gives back what was written, and refuses what is no longer whole."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from monolane.data import Corpus, Encoded, write_corpus
from monolane.data._tokens import ENDS, Part, TokenFiles
from monolane.data._write import PartWriter
from monolane.errors import ConfigError, DataError

from .conftest import MakeCorpus, encoded


def test_documents_come_back(tmp_path: Path, tiny_model: Path) -> None:
    train = [encoded([5, 6, 7]), encoded([]), encoded([300])]
    held_out = [encoded([9, 9]), encoded([8])]
    corpus = write_corpus(tmp_path / "corpus", tiny_model, {"notes": (train, held_out)})
    files = corpus.train("notes")
    assert (files.documents, files.tokens) == (3, 10)
    for number, document in enumerate(train):
        assert files.document(number).tolist() == document.ids.tolist()
    assert [(d.ids.tolist(), d.bytes) for d in corpus.held_out("notes")] == [
        (d.ids.tolist(), d.bytes) for d in held_out
    ]
    assert [d.bytes for d in corpus.held_out("notes")[1:]] == [1]
    assert corpus.vocabulary_size == 320
    assert corpus.manifest.dtype == "uint16"
    assert corpus.tokenizer.vocab_size == 320
    corpus.verify()


@pytest.mark.parametrize("parts", [[[4, 1, 9], [2], [7, 7]], [[3]]])
def test_parts_read_as_one_sequence(tmp_path: Path, parts: list[list[int]]) -> None:
    rng = np.random.default_rng(0)
    documents, described = [], []
    for number, lengths in enumerate(parts):
        with PartWriter(tmp_path, f"s/train-{number}", np.dtype("<u2")) as writer:
            for length in lengths:
                documents.append(rng.integers(0, 300, length))
                writer.add(documents[-1])
        described.append(writer.part())
    files = TokenFiles(tmp_path, described, np.dtype("<u2"))
    whole = np.concatenate(documents)
    begins = np.zeros(len(whole), dtype=bool)
    begins[np.cumsum([0, *map(len, documents[:-1])])] = True
    for start in range(len(whole) + 1):
        for stop in range(start, len(whole) + 1):
            ids, got = files.read(start, stop)
            assert np.array_equal(ids, whole[start:stop])
            assert np.array_equal(got, begins[start:stop])
    numbers = np.cumsum(begins) - 1
    assert [files.document_at(at) for at in range(len(whole))] == numbers.tolist()
    assert files.lengths().tolist() == [len(document) for document in documents]
    assert [files.document(n).tolist() for n in range(len(documents))] == [
        document.tolist() for document in documents
    ]


def test_more_parts_than_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monolane.data._tokens._OPEN_PARTS", 2)
    described = []
    for number in range(5):
        with PartWriter(tmp_path, f"p{number}", np.dtype("<u2")) as writer:
            writer.add(np.array([number, number]))
        described.append(writer.part())
    files = TokenFiles(tmp_path, described, np.dtype("<u2"))
    for _ in range(2):
        assert files.read(0, 10)[0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
        assert len(files._mapped) == 2


def test_looking_up_a_document_copies_no_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A needle of another type makes NumPy convert the whole index, which may be gigabytes."""
    seen = []
    search = np.searchsorted

    def watched(ends: np.ndarray, value: object, side: str) -> object:
        seen.append((ends.dtype, np.asarray(value).dtype))
        return search(ends, value, side=side)

    monkeypatch.setattr(np, "searchsorted", watched)
    with PartWriter(tmp_path, "p", np.dtype("<u2")) as writer:
        writer.add(np.array([1, 2]))
    TokenFiles(tmp_path, [writer.part()], np.dtype("<u2")).read(1, 2)
    assert seen == [(ENDS, ENDS)] * 2


def test_large_vocabularies_take_four_bytes(tmp_path: Path) -> None:
    with PartWriter(tmp_path, "p", np.dtype("<u4")) as writer:
        writer.add(np.array([70000]))
    assert TokenFiles(tmp_path, [writer.part()], np.dtype("<u4")).read(0, 1)[0].tolist() == [70000]
    with (
        PartWriter(tmp_path, "q", np.dtype("<u2")) as narrow,
        pytest.raises(DataError, match="expected ids from 0 to 65535, got 70000 to 70000"),
    ):
        narrow.add(np.array([70000]))


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def manifest(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        value = json.loads((folder / "corpus.json").read_text())
        change(value)
        (folder / "corpus.json").write_text(json.dumps(value))

    return apply


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: (f / "corpus.json").unlink(), "expected a prepared corpus with corpus.json"),
        (lambda f: damage(f / "a/train-00000.ds"), "a/train-00000.ds: expected 16 bytes, got 15"),
        (lambda f: damage(f / "a/train-00000.ds.index"), "ds.index: expected 8 bytes, got 7"),
        (lambda f: (f / "a/held_out-00000.ds").unlink(), "expected 28 bytes, got no file"),
        (manifest(lambda v: v.update(version=9)), "expected monolane-corpus version 1"),
        (
            manifest(lambda v: v.pop("sources")),
            "fields of a corpus, .* expected sources, found none",
        ),
        (manifest(lambda v: v.update(dtype="int8")), "dtype: expected one of 'uint16', 'uint32'"),
        (lambda f: (f / "corpus.json").write_text("[]"), "expected the fields of a corpus"),
    ],
)
def test_what_is_not_whole_is_refused(
    make_corpus: MakeCorpus, harm: Callable[[Path], None], message: str
) -> None:
    folder = make_corpus(a=[6]).folder
    harm(folder)
    with pytest.raises(DataError, match=message):
        Corpus.open(folder)


def test_other_bytes_of_the_same_size_are_found_by_verify(make_corpus: MakeCorpus) -> None:
    corpus = make_corpus(a=[6])
    path = corpus.folder / "a/train-00000.ds"
    path.write_bytes(bytes(reversed(path.read_bytes())))
    with pytest.raises(DataError, match="a/train-00000.ds: expected SHA-256"):
        corpus.verify()


def test_another_tokenizer_is_refused(make_corpus: MakeCorpus) -> None:
    corpus = make_corpus(a=[6])
    path = corpus.folder / "tokenizer.json"
    path.write_text(path.read_text() + "\n")
    with pytest.raises(DataError, match="put the tokenizer back"):
        _ = corpus.tokenizer


def test_missing_sizes_of_held_out_documents_are_said(make_corpus: MakeCorpus) -> None:
    corpus = make_corpus(a=[6])
    (corpus.folder / "a/held_out.bytes").unlink()
    with pytest.raises(DataError, match="expected a file of 16 bytes"):
        corpus.held_out("a")
    with pytest.raises(ConfigError, match="expected one of the sources a of .*, got 'b'"):
        corpus.held_out("b")


def test_the_digest_tells_corpora_apart(tmp_path: Path, tiny_model: Path) -> None:
    def digest(name: str, ids: list[int]) -> str:
        return write_corpus(tmp_path / name, tiny_model, {"a": ([encoded(ids)], [])}).digest

    assert digest("one", [5, 6]) == digest("two", [5, 6]) != digest("three", [6, 5])


def test_nothing_is_overwritten_and_no_empty_document_written(
    make_corpus: MakeCorpus, tiny_model: Path, tmp_path: Path
) -> None:
    folder = make_corpus(a=[6]).folder
    with pytest.raises(DataError, match="expected no folder there yet"):
        write_corpus(folder, tiny_model, {})
    with pytest.raises(DataError, match="at least one id"):
        write_corpus(
            tmp_path / "new", tiny_model, {"a": ([Encoded(np.zeros(0, dtype=int), 0)], [])}
        )
    assert not (tmp_path / "new").exists()


def test_reading_needs_no_extra() -> None:
    """Not torch, not datatrove: a machine that trains may have been set up by others."""
    import subprocess

    code = (
        "import sys; sys.modules['datatrove'] = sys.modules['torch'] = None\n"
        "import monolane.data; monolane.data.Blend"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_part_is_described_only_when_closed(tmp_path: Path) -> None:
    with PartWriter(tmp_path, "p", np.dtype("<u2")) as writer:
        writer.add(np.array([1]))
    assert isinstance(writer.part(), Part)
