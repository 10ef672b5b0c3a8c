"""Where a model comes from: what is asked of the Hub."""

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from monolane.engine import find_model

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
LEFT = ("pytorch_model.bin", "modeling_laneformer.py", "original/consolidated.00.pth")


def test_a_fetch_takes_the_terms_along_and_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def snapshot(name: str, *, allow_patterns: list[str], **options: Any) -> str:
        del name
        if options["local_files_only"]:
            raise FileNotFoundError
        asked.extend(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert find_model("somebody/model") == tmp_path
    # The Hub matches whole paths, and a star of its patterns goes through slashes.
    fetched = [x for x in (*WANTED, *LEFT) if any(fnmatch(x, pattern) for pattern in asked)]
    assert fetched == list(WANTED)
