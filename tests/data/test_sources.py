"""Files become documents, in one order, with every fault named."""

import gzip
import json
from pathlib import Path

import pytest

from monolane.data._prepare_state import _shards
from monolane.data._recipe import EvaluationSet, SourceRecipe
from monolane.data._sources import list_files, read_evaluation, read_file
from monolane.errors import DataError


def documents(source: SourceRecipe) -> list[tuple[str, str | None]]:
    return [(d.name, d.text) for path in list_files(source) for d in read_file(source, path)]


def test_text_files_are_documents_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/one.md").write_text("one")
    (tmp_path / "a.txt").write_text("two\r\nlines")
    (tmp_path / "c.bin").write_bytes(b"no")
    (tmp_path / "d.rst").write_bytes(b"\xff")
    source = SourceRecipe("s", "text", str(tmp_path))
    expected = [("a.txt", "two\r\nlines"), ("b/one.md", "one"), ("d.rst", None)]
    assert documents(source) == expected


def test_one_file_may_be_a_source(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write('{"body": "é"}\n\n{"body": "\\ud83d\\ude00"}\n{"body": "\\ud83d"}')
    source = SourceRecipe("s", "jsonl", str(path), field="body")
    assert documents(source) == [
        ("x.jsonl.gz:1", "é"),
        ("x.jsonl.gz:3", "😀"),
        ("x.jsonl.gz:4", None),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "cut', "line 2: expected a JSON object, got: "),
        ("[1]", "line 2: expected a JSON object, got: list"),
        ('{"body": "x"}', "line 2: expected a string 'text', got nothing; set the source's field"),
        ('{"text": 3}', "line 2: expected a string 'text', got int"),
    ],
)
def test_a_broken_line_is_an_error(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(DataError, match=f"x.jsonl, {message}"):
        documents(SourceRecipe("s", "jsonl", str(tmp_path)))


def test_a_cut_or_damaged_archive_is_an_error(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"text": "a longer line that is cut"}\n' * 50)
    damaged = packed[:10] + b"\xff" + packed[11:]  # a kind of block that there is not
    (tmp_path / "x.jsonl.gz").write_bytes(damaged)
    with pytest.raises(DataError, match=r"x.jsonl.gz: expected a readable file, got: Error -3"):
        documents(SourceRecipe("s", "jsonl", str(tmp_path)))
    (tmp_path / "x.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"x.jsonl.gz: expected a readable file, got"):
        documents(SourceRecipe("s", "jsonl", str(tmp_path)))


def test_parquet_faults_are_errors(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    source = SourceRecipe("s", "parquet", str(path))
    parquet.write_table(pyarrow.table({"text": ["a", None]}), path)
    with pytest.raises(DataError, match=r"x.parquet, row 2: expected a string 'text', got nothing"):
        documents(source)
    parquet.write_table(pyarrow.table({"body": ["a"], "id": [1]}), path)
    with pytest.raises(DataError, match="expected a column 'text', got body, id; set the source"):
        documents(source)
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match=r"x.parquet: expected a Parquet file, got"):
        documents(source)


def test_the_library_is_the_one_that_the_demo_knows() -> None:
    source = SourceRecipe("library", "python-library")
    names = [name for name, _ in documents(SourceRecipe("j", "python-library", _json_folder()))]
    assert names == ["__init__.py", "decoder.py", "encoder.py", "scanner.py", "tool.py"]
    files = {path.as_posix() for path in list_files(source)}
    assert any(name.endswith("/test/test_json/test_decode.py") for name in files)
    assert not any("site-packages" in name or "_sysconfigdata" in name for name in files)


def _json_folder() -> str:
    import json as package

    return str(Path(package.__file__).parent)


def test_no_file_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"sources.s: expected files \*\*/\*.py below .*, found none"
    ):
        list_files(SourceRecipe("s", "code", str(tmp_path)))


def test_shards_hold_every_file_once_and_do_not_depend_on_anything_else() -> None:
    files = [(f"{n}", 5_000_000) for n in range(10)]
    shards = _shards("s", files)
    assert [name for shard in shards for name in shard.files] == [name for name, _ in files]
    assert [shard.bytes for shard in shards] == [20_000_000, 20_000_000, 10_000_000]
    assert [shard.number for shard in shards] == [0, 1, 2]
    many = _shards("s", [(f"{n}", 10**9) for n in range(10_000)])
    assert len(many) <= 512 + 1


def test_evaluation_sets_are_joined_fields(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"id": 3, "prompt": "p", "answer": "a"}) + "\n")
    assert list(read_evaluation(EvaluationSet("s", str(path)))) == ["p\na"]
    assert list(read_evaluation(EvaluationSet("s", str(path), ("answer",)))) == ["a"]
    with pytest.raises(DataError, match="line 1: expected strings none, got fields id, prompt"):
        list(read_evaluation(EvaluationSet("s", str(path), ("none",))))
    with pytest.raises(DataError, match=r"sets.s: expected a JSONL file .*, found none"):
        list(read_evaluation(EvaluationSet("s", str(tmp_path / "no"))))
