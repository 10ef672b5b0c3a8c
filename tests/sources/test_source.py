"""Where a model comes from: what is asked of the Hub."""

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from monolane.errors import ModelNotFoundError
from monolane.sources import find_model

# A model repository, as the card of the released model describes its files, and what must stay.
WANTED = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "chat_template.jinja",
    "README.md",
    "LICENSE",
    "NOTICE",
    "THIRD_PARTY_LICENSES/LLAMA2_LICENSE",
)
LEFT = (
    "pytorch_model.bin",
    "modeling_laneformer.py",
    "original/consolidated.00.pth",
    "original/model.safetensors",
    "metal/model.safetensors",
    "consolidated.safetensors",
)


def test_a_fetch_takes_the_terms_along_and_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    not_asked: list[str] = []

    def snapshot(
        name: str, *, allow_patterns: list[str], ignore_patterns: list[str], **options: Any
    ) -> str:
        del name
        if options["local_files_only"]:
            raise FileNotFoundError
        asked.extend(allow_patterns)
        not_asked.extend(ignore_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert find_model("somebody/model") == tmp_path
    # The Hub matches whole paths, and a star of its patterns goes through slashes.
    matched = [x for x in (*WANTED, *LEFT) if any(fnmatch(x, pattern) for pattern in asked)]
    fetched = [x for x in matched if not any(fnmatch(x, pattern) for pattern in not_asked)]
    assert fetched == list(WANTED)


MODEL = ("config.json", "model.safetensors")  # what Transformers leaves of a model alone


@pytest.mark.parametrize(
    ("cached", "asks"),
    [
        ((*MODEL, "tokenizer.json", "README.md"), False),
        (MODEL, True),
        ((*MODEL, "tokenizer.json", "tokenizer_config.json"), True),  # and no template, maybe
        ((*MODEL, "README.md"), True),
    ],
)
@pytest.mark.parametrize("reachable", [True, False])
def test_the_hub_is_asked_for_what_the_cache_may_lack(
    cached: tuple[str, ...],
    asks: bool,
    reachable: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in cached:
        (tmp_path / name).touch()
    asked: list[bool] = []

    def snapshot(name: str, *, local_files_only: bool, **options: Any) -> str:
        del name, options
        asked.append(not local_files_only)
        if not (local_files_only or reachable):
            raise LocalEntryNotFoundError("no network")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert find_model("somebody/model") == tmp_path  # also where the Hub cannot be reached
    assert asked == [False, True][: 1 + asks]
    asked.clear()
    monkeypatch.setenv("MONOLANE_OFFLINE", "1")
    assert find_model("somebody/model") == tmp_path
    assert asked == [False]


@pytest.mark.parametrize("name", ["~nobody-of-this-name/model", "x" * 300])
def test_a_path_that_none_can_be_is_no_model(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match=f"{name[:80]}: expected a path to a file or fol"):
        find_model(name)
