"""The results format: what breaks it is named, and a file is never half there."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from monolane.errors import MonolaneError
from monolane.measure import (
    ResultsError,
    build_document,
    current_commit,
    describe_machine,
    result_name,
    summary,
    validate_document,
    write_document,
)
from monolane.measure._machine import processor_name


def document(**changes: Any) -> dict[str, Any]:
    record = {"name": "decode", "engine": "monolane"} | summary([3.0, 1.0, 2.0], "tokens/s")
    made: dict[str, Any] = build_document(describe_machine(45e9), "monolane bench", [record], "abc")
    return made | changes


def test_a_document_says_machine_day_commit_and_command(tmp_path: Path) -> None:
    made = document()
    assert made["schema"] == 1
    assert made["device"]["read_bandwidth_gb_s"] == 45
    assert made["device"]["cores"] >= 1
    assert made["device"]["memory_gb"] > 0
    (record,) = made["records"]
    assert (record["runs"], record["min"], record["median"], record["max"]) == (3, 1, 2, 3)
    path = tmp_path / "new" / result_name(made, "decode")
    assert path.name.startswith(made["date"])
    assert path.name.endswith("-decode.json")
    write_document(path, made)
    assert json.loads(path.read_text()) == made
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 2}, "expected schema 1, got 2"),
        ({"date": "today"}, "expected a date YYYY-MM-DD"),
        ({"commit": None}, "expected a string in 'commit'"),
        ({"device": {"name": "x"}}, "expected device fields name, driver"),
        ({"records": {}}, "expected a list in 'records'"),
        ({"records": [{}]}, "expected a record with a name"),
        ({"records": [{"name": "x", "error": "wrong", "median": 1}]}, "figures or one reason"),
        ({"records": [{"name": "x", "error": "a", "not_measured": "b"}]}, "figures or one reason"),
        ({"records": [{"name": "x", "error": " "}]}, "figures or one reason"),
        ({"records": [{"name": "x", "mbu": float("nan")}]}, "a finite number in 'mbu'"),
        ({"records": [{"name": "x", "mbu": True}]}, "a finite number in 'mbu'"),
        ({"records": [{"name": "x", "min": 2, "median": 1, "max": 3}]}, "min <= median <= max"),
    ],
)
def test_what_breaks_the_format_is_named(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ResultsError, match=message):
        validate_document(document(**changes))
    with pytest.raises(MonolaneError):
        write_document(tmp_path / "x.json", document(**changes))
    assert list(tmp_path.iterdir()) == []


def test_a_reason_instead_of_figures() -> None:
    validate_document(document(records=[{"name": "decode", "error": "logits differ"}]))


def test_no_checkout_no_commit(tmp_path: Path) -> None:
    assert current_commit(tmp_path) == "unknown"


CPUINFO = "processor\t: 0\nvendor_id\t: {}\ncpu family\t: {}\nmodel\t\t: {}\nmodel name\t: X\n"
FLAGS = "flags\t\t: fpu {}\n"


@pytest.mark.parametrize(
    ("vendor", "family", "model", "name"),
    [
        ("AuthenticAMD", 25, 1, "X (Zen 3)"),  # Milan
        ("AuthenticAMD", 25, 17, "X (Zen 4)"),  # Genoa
        ("AuthenticAMD", 23, 49, "X (Zen 2)"),  # Rome
        ("AuthenticAMD", 26, 2, "X (Zen 5)"),  # Turin
        ("AuthenticAMD", 99, 2, "X"),  # to come
        ("GenuineIntel", 25, 1, "X"),
    ],
)
def test_processors_of_one_model_name_are_told_apart(
    vendor: str, family: int, model: int, name: str
) -> None:
    both = [CPUINFO.format(vendor, family, model), CPUINFO.format("Other", 0, 0)]
    assert processor_name("\n".join(both)) == name


def test_processors_with_tiles_are_told_apart() -> None:
    intel = CPUINFO.format("GenuineIntel", 6, 167)
    assert processor_name(intel + FLAGS.format("amx_bf16 amx_tile amx_int8")) == "X (AMX)"
    assert processor_name(intel + FLAGS.format("avx512_bf16")) == "X"


def test_a_server_that_calls_itself_a_path_gets_a_name_and_no_folder() -> None:
    made = result_name(document(), "serve-../../acme/labs")
    assert made.endswith("-serve-..-..-acme-labs.json")
    assert "/" not in made


def test_a_device_file_stays_one(tmp_path: Path) -> None:
    made, pipe, read = document(), tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_document(pipe, made)
    reader.join()
    assert pipe.is_fifo()
    assert json.loads(read[0]) == made


def test_what_cannot_be_written_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "taken" / "x").mkdir(parents=True)
    with pytest.raises(OSError, match="taken"):
        write_document(tmp_path / "taken", document())
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_file_is_named_after_the_processor() -> None:
    device = describe_machine() | {"name": "AMD EPYC (Zen 3)"}
    made = build_document(device, "monolane bench", [{"name": "decode", "median": 2.0}], "abc")
    assert result_name(made, "decode").endswith("-amd-epyc-zen-3-decode.json")
