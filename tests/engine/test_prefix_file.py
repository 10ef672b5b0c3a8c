"""Kept prefixes on disk: they serve after a restart, and a file that is not right is left alone."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monolane import Engine, SamplingParams
from monolane.engine._prefix_file import fingerprint, read_prefixes, write_prefixes
from monolane.errors import RequestError
from monolane.executor_api import KeptBytes

PROMPT = list(range(5, 65))
PARAMS = SamplingParams(max_tokens=8, temperature=1.0, seed=2, logprobs=2)


def load(folder: Path, file: Path, dtype: str = "auto", size: str = "8M") -> Engine:
    return Engine.load(folder, "cpu", dtype, prefix_cache=size, prefix_file=file)


def test_a_restarted_engine_goes_on_where_the_last_one_ended(
    tiny_model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prefixes"
    with load(tiny_model, file) as engine:
        first = engine.generate(PROMPT, PARAMS, namespace="alice")
        engine.generate(PROMPT[:9], PARAMS, namespace="bob")
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["prefixes"]
    turn = [*PROMPT, *first.token_ids, 7]
    with Engine.load(tiny_model, "cpu", prefix_cache="off") as engine:
        wanted = engine.generate(turn, PARAMS)
    for i in range(2):  # what was read is written again
        with load(tiny_model, file) as engine:
            answer = engine.generate(turn, PARAMS, namespace="alice")
            assert (answer.token_ids, answer.logprobs) == (wanted.token_ids, wanted.logprobs)
            assert answer.timings.cache_n >= len(PROMPT) + len(first.token_ids) - 1
            assert engine.generate(turn, PARAMS, namespace=f"eve {i}").timings.cache_n == 0


def test_a_file_of_another_arithmetic_or_model_is_ignored(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "prefixes"
    with load(tiny_model, file) as engine:
        engine.generate(PROMPT, PARAMS)
    with caplog.at_level(logging.WARNING), load(tiny_model, tmp_path / "no", "bfloat16") as engine:
        engine.prefixes.load(file, engine._files)
        assert engine.generate(PROMPT, PARAMS).timings.cache_n == 0
    assert "is ignored: it was written for another model, dtype, cache dtype, plan" in caplog.text
    weights = [tiny_model / "model.safetensors"]
    before = fingerprint(weights)
    about = weights[0].stat()
    os.utime(weights[0], ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    assert fingerprint(weights) != before


def test_the_most_lately_used_are_read_where_there_is_less_room(
    tiny_model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prefixes"
    with load(tiny_model, file) as engine:
        for begin in (70, 10, 40):
            engine.generate([*range(begin, begin + 20)], PARAMS)
        size = engine.prefixes.tree.nbytes
    with load(tiny_model, file, size=str(size // 2)) as engine:
        assert 0 < engine.prefixes.tree.nbytes <= size // 2
        cached = [
            engine.prefixes.tree.find("", [*range(begin, begin + 20)]).common
            for begin in (70, 10, 40)
        ]
        assert cached == [0, 0, 20]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of two nodes."""
    path = tmp_path_factory.mktemp("written") / "file"
    rows = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    tokens = np.array([1, 2, 3], np.int32)
    tail = np.array([9, 8], np.uint8)
    nodes = [("", tokens, KeptBytes(rows, tail)), ("é", tokens, KeptBytes(rows[:, 1:]))]
    write_prefixes(path, "this", nodes)
    again = read_prefixes(path, "this")
    for (name, ids, kept), (other, other_ids, other_kept) in zip(nodes, again, strict=True):
        assert name == other
        np.testing.assert_array_equal(ids, other_ids)
        np.testing.assert_array_equal(kept.rows, other_kept.rows)
        assert (kept.tail is None) == (other_kept.tail is None)
    return path.read_bytes()


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_found(written: bytes, tmp_path: Path, data: st.DataObject) -> None:
    """A changed byte, an end that lacks or a piece too many: never another content."""
    at = data.draw(st.integers(0, len(written) - 1))
    how = data.draw(st.sampled_from(["change", "cut", "add"]))
    if how == "change":
        other = data.draw(st.integers(1, 255))
        damaged = written[:at] + bytes([written[at] ^ other]) + written[at + 1 :]
    else:
        damaged = written[:at] if how == "cut" else written[:at] + b"\0" + written[at:]
    path = tmp_path / "file"
    path.write_bytes(damaged)
    with pytest.raises(RequestError):
        read_prefixes(path, "this")


def test_what_is_ignored_does_not_keep_the_engine_from_starting(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, written: bytes
) -> None:
    file = tmp_path / "prefixes"
    with load(tiny_model, file) as engine:
        engine.generate(PROMPT, PARAMS)
    whole = file.read_bytes()
    deep = b"monolane prefixes 1\n" + (100_000).to_bytes(8, "little") + b"[" * 100_000 + bytes(32)
    for damaged in (b"", b"other", whole[:-1], written, deep):
        file.write_bytes(damaged)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            engine = load(tiny_model, file)
        assert f"prefix file {file} is ignored: " in caplog.text
        assert engine.generate(PROMPT, PARAMS).timings.cache_n == 0
    folder = tmp_path / "gone"
    folder.mkdir()
    nowhere = folder / "prefixes"
    with load(tiny_model, nowhere) as engine:
        folder.rmdir()
        caplog.clear()
    assert f"prefix file {nowhere} is not written: " in caplog.text


def test_rows_of_other_sizes_are_refused(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a file that somebody made by hand, whose checksum is right."""
    file = tmp_path / "prefixes"
    engine = load(tiny_model, tmp_path / "none")
    binding = engine.prefixes._binding(engine._files)
    nodes = [("", np.arange(3, dtype=np.int32), KeptBytes(np.zeros((1, 3, 4), np.uint8)))]
    write_prefixes(file, binding, nodes)
    engine.prefixes.load(file, engine._files)
    assert "other sizes than this model's" in caplog.text
    assert engine.prefixes.tree.nbytes == 0


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_loaded(
    tiny_model: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")  # to read one is to wait for who writes it
    missing = tmp_path / "missing" / "prefixes"
    for file in (missing, tmp_path, tmp_path / "pipe", Path("/proc/prefixes")):
        with pytest.raises(RequestError, match="prefix_file: .*: expected a file that can be"):
            load(tiny_model, file)


def test_a_link_stays_and_what_it_names_is_replaced(tiny_model: Path, tmp_path: Path) -> None:
    link, disk = tmp_path / "link", tmp_path / "disk"
    disk.mkdir()
    link.symlink_to(disk / "prefixes")  # which is not there yet
    for known in (0, 1):
        with load(tiny_model, link) as engine:
            assert engine.generate(PROMPT, PARAMS).timings.cache_n >= known
        assert link.is_symlink()
        assert [path.name for path in disk.iterdir()] == ["prefixes"]
