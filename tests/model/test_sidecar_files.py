"""Tokenizer and terms travel with a model: its own, and those of whom it took something from."""

from pathlib import Path

from monolane.model import copy_beside

TERMS = (
    "LICENSE",
    "LICENSE.txt",
    "NOTICE",
    "THIRD_PARTY_LICENSES/LLAMA2_LICENSE",
    "THIRD_PARTY_LICENSES/more/MIT",
    "USE_POLICY.md",
)


def test_copies_files_and_folders(tmp_path: Path) -> None:
    source, out = tmp_path / "model", tmp_path / "out"
    for name in TERMS:
        blob = tmp_path / name.replace("/", "-")
        blob.write_text(f"terms of {name}")
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).symlink_to(blob)  # as in the Hub's cache
    for name in ("config.json", "README.md", "modeling.py", "model.safetensors"):
        (source / name).write_text("not to be taken over as it is")
    copy_beside(source, out)
    assert {str(x.relative_to(out)) for x in out.rglob("*") if x.is_file()} == set(TERMS)
    assert all((out / name).read_text() == f"terms of {name}" for name in TERMS)
