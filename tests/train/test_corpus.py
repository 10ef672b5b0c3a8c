from pathlib import Path

import pytest

from monolane.errors import TextError
from monolane.train._corpus import Document, collect_library, split_corpus


def _write(root: Path, name: str, content: bytes) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_collects_source_and_leaves_out_the_rest(tmp_path: Path) -> None:
    kept = {
        "b.py": b"b = 1\n",
        "a.py": b"a = 1\n",
        "pkg/__init__.py": b"x = '\xc3\xa9'\r\n",
        "test/test_a.py": b"import a\n",
    }
    dropped = {
        "copy_of_a.py": b"a = 1\n",
        "latin.py": b"# coding: latin-1\nx = '\xe9'\n",
        "empty.py": b"\n",
        "site-packages/other.py": b"other = 1\n",
        "pkg/__pycache__/c.py": b"c = 1\n",
        "_sysconfigdata__linux.py": b"build_time_vars = {}\n",
        "lib2to3/tests/data/d.py": b"print 1\n",
        "test/bad_coding.py": b"bad = 1\n",
        "encodings/cp037.py": b'""" Python Codec generated from MAPPINGS with gencodec.py."""\n',
        "readme.txt": b"not python\n",
    }
    for name, content in {**kept, **dropped}.items():
        _write(tmp_path, name, content)
    documents = collect_library(tmp_path)
    assert [document.name for document in documents] == sorted(kept)
    assert {d.name: d.text.encode() for d in documents} == kept  # line ends too
    assert [d.name for d in documents if d.is_test] == ["test/test_a.py"]


def test_the_running_library_is_found_and_has_no_paths_of_the_build() -> None:
    documents = collect_library()
    names = {document.name for document in documents}
    assert {"argparse.py", "json/decoder.py"} <= names
    assert not [name for name in names if "sysconfigdata" in name or "site-packages" in name]
    assert sum(document.size for document in documents) > 5_000_000


def test_collecting_and_splitting_are_deterministic(library: Path) -> None:
    once, twice = (split_corpus(collect_library(library), 0.2) for _ in range(2))
    assert once == twice
    assert once.digest == twice.digest


def test_the_halves_share_nothing_and_lose_nothing(library: Path) -> None:
    documents = collect_library(library)
    corpus = split_corpus(documents, 0.2)
    train = {document.digest for document in corpus.train}
    held_out = {document.digest for document in corpus.held_out}
    assert train
    assert held_out
    assert not train & held_out
    assert train | held_out == {document.digest for document in documents}


def test_a_file_keeps_its_side_whatever_comes_along(library: Path) -> None:
    documents = collect_library(library)
    some = split_corpus(documents[::2], 0.2)
    every = split_corpus(reversed(documents), 0.2)
    assert set(some.held_out) <= set(every.held_out)
    assert set(some.train) <= set(every.train)


def test_the_share_is_about_right() -> None:
    documents = [Document(f"{number}.py", f"x = {number}\n") for number in range(4000)]
    held_out = len(split_corpus(documents, 0.025).held_out)
    # Binomial: mean 100, standard deviation 9.9.
    assert 60 <= held_out <= 140


def test_the_digest_notices_a_file_that_changed_sides() -> None:
    documents = [Document("a.py", "a = 1\n"), Document("b.py", "b = 1\n")]
    digests = {split_corpus(documents, share).digest for share in (0.0, 0.999999)}
    assert len(digests) == 2


def test_a_folder_without_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TextError, match=r"expected the standard library's \.py files below"):
        collect_library(tmp_path)
