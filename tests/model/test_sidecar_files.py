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
    cached, out = tmp_path / "models--org--name", tmp_path / "out"
    source = cached / "snapshots" / "0123"
    (cached / "blobs").mkdir(parents=True)
    for name in TERMS:
        blob = cached / "blobs" / name.replace("/", "-")
        blob.write_text(f"terms of {name}")
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).symlink_to(blob)  # as in the Hub's cache
    for name in ("config.json", "README.md", "modeling.py", "model.safetensors"):
        (source / name).write_text("not to be taken over as it is")
    copy_beside(source, out)
    assert {str(x.relative_to(out)) for x in out.rglob("*") if x.is_file()} == set(TERMS)
    assert all((out / name).read_text() == f"terms of {name}" for name in TERMS)


def test_what_links_lead_to_elsewhere_is_not_copied(tmp_path: Path) -> None:
    """An archive or a clone may hold links: to a file, to a folder, and in a folder of its own."""
    source, out, elsewhere = tmp_path / "model", tmp_path / "out", tmp_path / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / "deep" / "secret").write_text("secret")
    (source / "LICENSES").mkdir(parents=True)
    (source / "LICENSES" / "MIT").write_text("terms")
    (source / "LICENSES" / "more").symlink_to(elsewhere / "deep" / "secret")
    (source / "LICENSE_x").symlink_to(elsewhere)
    (source / "NOTICE").symlink_to(elsewhere / "deep" / "secret")
    (source / "LICENCE").symlink_to("LICENSES/MIT")
    copy_beside(source, out)
    found = {str(x.relative_to(out)): x.read_text() for x in out.rglob("*") if x.is_file()}
    assert found == {"LICENSES/MIT": "terms", "LICENCE": "terms"}
