"""A destination is complete or untouched, whatever happens while it is written."""

from pathlib import Path

import pytest

from monolane.errors import CheckpointError
from monolane.model import check_replaceable, folder_aside


def _model_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    (path / "old").write_text("old")
    return path


def _names(path: Path) -> list[str]:
    return sorted(child.name for child in path.iterdir())


def test_nothing_is_there_until_all_is(tmp_path: Path) -> None:
    destination = tmp_path / "deep" / "model"
    with folder_aside(destination) as folder:
        (folder / "new").write_text("new")
        assert not destination.exists()
    assert _names(destination) == ["new"]
    assert _names(destination.parent) == ["model"]


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_folder_and_nothing_else(
    fault: type[BaseException], tmp_path: Path
) -> None:
    destination = _model_folder(tmp_path / "model")

    def write() -> None:
        with folder_aside(destination) as folder:
            (folder / "new").write_text("new")
            raise fault

    with pytest.raises(fault):
        write()
    assert _names(tmp_path) == ["model"]
    assert _names(destination) == ["config.json", "old"]


def test_a_failed_rename_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = _model_folder(tmp_path / "model")
    replace = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if ".new-" in self.name:
            raise OSError("no space left")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    said = "model: cannot be written: no space left"
    with pytest.raises(CheckpointError, match=said), folder_aside(destination):
        pass
    assert _names(tmp_path) == ["model"]
    assert _names(destination) == ["config.json", "old"]


def test_the_old_folder_is_replaced_whole(tmp_path: Path) -> None:
    destination = _model_folder(tmp_path / "model")
    with folder_aside(destination) as folder:
        (folder / "new").write_text("new")
    assert _names(destination) == ["new"]
    assert _names(tmp_path) == ["model"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    _model_folder(tmp_path / "model")
    link = tmp_path / "link"
    link.symlink_to("model")
    with folder_aside(link) as folder:
        (folder / "new").write_text("new")
    assert link.is_symlink()
    assert _names(tmp_path / "model") == ["new"]


def test_what_may_be_replaced(tmp_path: Path) -> None:
    source = _model_folder(tmp_path / "source")
    old = _model_folder(tmp_path / "old")
    empty = tmp_path / "empty"
    empty.mkdir()
    for free in (tmp_path / "new", empty):
        check_replaceable(source, free, overwrite=False)
    check_replaceable(source, old, overwrite=True)


def test_what_may_not_be_replaced(tmp_path: Path) -> None:
    source = _model_folder(tmp_path / "parent" / "source")
    (tmp_path / "parent" / "config.json").write_text("{}")
    old = _model_folder(tmp_path / "old")
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "cat.jpg").write_text("")
    link = tmp_path / "link"
    link.symlink_to(source)
    for destination, overwrite, message in (
        (old, False, "expected no such folder, got one with files in it.*overwrite=True"),
        (old / "config.json", True, "expected a folder or nothing, got a file"),
        (photos, True, "expected a model folder to overwrite, got one without config.json"),
        (source, True, "expected a folder apart from the source"),
        (link, True, "expected a folder apart from the source"),
        (source.parent, True, "expected a folder apart from the source"),
    ):
        with pytest.raises(CheckpointError, match=message):
            check_replaceable(source, destination, overwrite)
