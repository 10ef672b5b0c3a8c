"""Terms travel with the model: its own, and those of whom it took something from."""

from pathlib import Path

from monolane.model import copy_licences

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
    (source / "config.json").write_text("{}")
    copy_licences(source, out)
    assert {str(x.relative_to(out)) for x in out.rglob("*") if x.is_file()} == set(TERMS)
    assert all((out / name).read_text() == f"terms of {name}" for name in TERMS)
