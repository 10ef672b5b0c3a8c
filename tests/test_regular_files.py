"""Files of strangers: a pipe is not waited for, and what leads out of a folder is not its own."""

import logging
import os
from pathlib import Path

import pytest

from monolane._regular_files import (
    MOST_PARTS,
    check_parts,
    is_own_file,
    open_regular,
    own_files,
    read_regular,
)
from monolane.errors import CheckpointError, TextError
from monolane.model import Checkpoint, SafetensorsFile
from monolane.text import Tokenizer


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="expected a regular file"):
        open_regular(tmp_path / "pipe")


def test_a_device_behind_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "endless").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="expected a regular file"):
        read_regular(tmp_path / "endless", 100)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


def test_reads_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(OSError, match="expected at most 4 bytes, got 5"):
        read_regular(path, 4)


def test_a_hole_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "hole"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(OSError, match="expected at most"):
        read_regular(path, 1 << 20)


def test_reads_files_that_do_not_say_their_size() -> None:
    assert len(read_regular(Path("/proc/self/status"), 1 << 20)) > 100  # st_size is 0


def test_own_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, outside = tmp_path / "model", tmp_path / "secret"
    model.mkdir()
    outside.write_text("secret")
    (model / "LICENSE").write_text("terms")
    (model / "inner").symlink_to("LICENSE")
    (model / "outer").symlink_to(outside)
    assert is_own_file(model, model / "LICENSE")
    assert is_own_file(model, model / "inner")
    assert not is_own_file(model, model / "none")
    with caplog.at_level(logging.WARNING):
        assert not is_own_file(model, model / "outer")
    assert "leads out of its folder" in caplog.text


def test_blobs_of_the_hubs_cache_are_a_snapshots_own(tmp_path: Path) -> None:
    cached = tmp_path / "models--org--name"
    snapshot, blob = cached / "snapshots" / "abc", cached / "blobs" / "0123"
    snapshot.mkdir(parents=True)
    blob.parent.mkdir()
    blob.write_text("terms")
    (snapshot / "LICENSE").symlink_to(blob)
    assert is_own_file(snapshot, snapshot / "LICENSE")
    other = tmp_path / "models--org--other" / "blobs" / "0123"
    other.parent.mkdir(parents=True)
    other.write_text("another model's")
    (snapshot / "NOTICE").symlink_to(other)
    assert not is_own_file(snapshot, snapshot / "NOTICE")


def test_a_folder_that_is_elsewhere_is_not_looked_into(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be the machine's root: one word on the link, none on what is behind it."""
    elsewhere, model = tmp_path / "elsewhere", tmp_path / "model"
    for folder in (elsewhere, model / "LICENSES"):
        folder.mkdir(parents=True)
        for i in range(3):
            (folder / str(i)).write_text("x")
    (model / "NOTICE").symlink_to(elsewhere)
    assert list(own_files(model, model / "NOTICE")) == []
    (record,) = caplog.records
    assert "NOTICE: left out, for it leads out of its folder" in record.getMessage()
    assert [path.name for path in own_files(model, model / "LICENSES")] == ["0", "1", "2"]


@pytest.mark.parametrize("part", ["{},", "[],", '"ab",', "0,"])
def test_json_that_takes_many_times_its_size_is_refused(part: str) -> None:
    check_parts("[" + part * (MOST_PARTS // 3) + "0]")
    with pytest.raises(ValueError, match="expected at most"):
        check_parts("[" + part * (MOST_PARTS + 1) + "0]")
    check_parts("[" + '"as long as words are",' * MOST_PARTS + "0]")


def test_readers_of_json_count_before_they_read(tmp_path: Path) -> None:
    text = '{"weight_map": [' + "{}," * (MOST_PARTS + 1) + "0]}"
    header = text.encode()
    for name in ("model.safetensors.index.json", "tokenizer.json"):
        (tmp_path / name).write_bytes(header)
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    expected = "expected at most .* lists, objects"
    with pytest.raises(CheckpointError, match=expected):
        SafetensorsFile(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=expected):
        Checkpoint.open(tmp_path)
    with pytest.raises(TextError, match=expected):
        Tokenizer.open(tmp_path)
