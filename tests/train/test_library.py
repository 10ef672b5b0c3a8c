from pathlib import Path

import numpy as np
import pytest
import tokenizers

from monolane.data import train_vocabulary
from monolane.errors import DataError
from monolane.train import DemoRecipe
from monolane.train._demo.material import (
    BOS,
    EOS,
    Document,
    Library,
    encode_documents,
    prepare_material,
    read_library,
)


def test_reading_and_splitting_are_deterministic(library: Path) -> None:
    once, twice = (read_library(library, 0.2) for _ in range(2))
    assert once == twice
    assert once.digest == twice.digest


def test_the_halves_share_nothing_and_lose_nothing(library: Path) -> None:
    halves, whole = read_library(library, 0.2), read_library(library, 0.0)
    train = {document.digest for document in halves.train}
    held_out = {document.digest for document in halves.held_out}
    assert train
    assert held_out
    assert not train & held_out
    assert train | held_out == {document.digest for document in whole.train}
    assert whole.held_out == ()


def test_the_digest_notices_a_file_that_changed_sides() -> None:
    one, other = Document("a.py", "a = 1\n"), Document("b.py", "b = 1\n")
    digests = {Library((one, other), ()).digest, Library((one,), (other,)).digest}
    assert len(digests) == 2


def test_tests_are_told_by_their_folder() -> None:
    names = ["test/test_a.py", "idlelib/idle_test/x.py", "json/tests/x.py", "unittest/case.py"]
    names += ["test.py", "doctest.py"]
    tests = [name for name in names if Document(name, "").is_test]
    assert tests == ["test/test_a.py", "idlelib/idle_test/x.py", "json/tests/x.py"]


def test_sizes_are_bytes() -> None:
    assert Document("a.py", "x = 'é'\n").size == 9


def test_both_halves_must_have_files(recipe: DemoRecipe, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a = 1\n")
    with pytest.raises(DataError, match="both sides of the held-out split, got 1 .* and 0 held"):
        prepare_material(recipe, tmp_path)


def test_documents_are_framed_and_spell_control_tokens(library: Path) -> None:
    texts = [document.text for document in read_library(library, 0.0).train]
    vocabulary: tokenizers.Tokenizer = train_vocabulary(texts, 512)
    code = "x = '</s><s>'\n"
    (ids,) = encode_documents(vocabulary, [code])
    assert ids.dtype == np.uint16
    assert (ids[0], ids[-1]) == (BOS, EOS)
    inner = ids[1:-1].tolist()
    assert not set(inner) & set(range(5))
    assert vocabulary.decode(inner) == code


def test_how_far_it_is_stands_in_a_log(
    recipe: DemoRecipe, library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    material = prepare_material(recipe, library)
    lines = capsys.readouterr().err.splitlines()
    for half, documents in (("training", material.train), ("held-out", material.held_out)):
        assert f"encoding {half} files: {len(documents)} of {len(documents)}" in lines
