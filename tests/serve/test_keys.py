"""Keys: made, hashed, read, compared."""

import ast
import inspect
from pathlib import Path

import pytest

from monolane.errors import RequestError
from monolane.serve import Keys, ServerOptions, _keys, add_key


def test_a_new_key_is_admitted_and_only_its_hash_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    first, second = add_key(path, "ann"), add_key(path, "bob")
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    assert first not in text
    assert second not in text
    keys = Keys.read(path)
    assert keys.admit(first.encode())
    assert keys.admit(second.encode())
    for wrong in (b"", first.encode() + b"x", first[:-1].encode(), b"\xff\x00" * 1000):
        assert not keys.admit(wrong)


def test_keys_are_compared_in_constant_time() -> None:
    """No ``==`` between hashes anywhere in the file that compares them, and no early return."""
    tree = ast.parse(inspect.getsource(_keys.Keys.admit).replace("    def", "def", 1).strip())
    calls = [
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    assert calls == ["compare_digest"]
    assert not any(isinstance(node, ast.Compare | ast.Break) for node in ast.walk(tree))
    assert sum(isinstance(node, ast.Return) for node in ast.walk(tree)) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has none"),
        ("# only a comment\n", "has none"),
        ("ann secret-key-in-plain\n", "line 1: expected 'NAME sha256:'"),
        ("ann sha256:12\n", "line 1"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(RequestError, match=message):
        Keys.read(path)


def test_missing_files_short_keys_and_odd_names(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot read"):
        Keys.read(tmp_path / "nothing")
    with pytest.raises(RequestError, match="at least 16 characters, got 5"):
        Keys.of(["short"])
    with pytest.raises(RequestError, match="name: expected"):
        add_key(tmp_path / "keys", "two words")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1"])
def test_loopback_needs_no_key(host: str) -> None:
    assert ServerOptions(host=host).is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "box.example"])
def test_other_addresses_refuse_to_start_without_a_key(host: str) -> None:
    with pytest.raises(RequestError, match=f"host: {host} can be reached from other machines"):
        ServerOptions(host=host)
    assert not ServerOptions(host=host, keys=Keys.of(["a-key-of-some-length"])).is_loopback


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 70_000}, "port: expected 0 to 65535"),
        ({"queue_limit": -1}, "queue_limit"),
        ({"deadline_seconds": 0}, "deadline_seconds"),
        ({"allowed_origins": ("chat.example",)}, "allowed_origins: expected origins such as"),
        ({"allowed_origins": ("*",)}, "allowed_origins"),
        ({"allowed_origins": ("https://chat.example/app",)}, "allowed_origins: .*without a path"),
        ({"allowed_origins": ("https://Chat.example",)}, "allowed_origins: .*small letters"),
        ({"allowed_origins": ("https://chat.example:443",)}, "allowed_origins: .*usual port"),
        ({"allowed_hosts": ("box.example:8000",)}, "allowed_hosts: expected a name .* without a"),
        ({"queue_limit": -1}, "queue_limit: expected 0 to 1048576"),
    ],
)
def test_options_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ServerOptions(**options)  # type: ignore[arg-type]


def test_a_key_is_added_behind_a_line_without_an_end(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    first = add_key(file, "a")
    file.write_text(file.read_text().rstrip("\n"))  # as an editor may leave it
    second = add_key(file, "b")
    keys = Keys.read(file)
    assert keys.admit(first.encode())
    assert keys.admit(second.encode())


@pytest.mark.parametrize("held", [b"<svg/>\n", b"\xff\xfe"])
def test_no_key_is_added_to_a_file_of_another_kind(tmp_path: Path, held: bytes) -> None:
    file = tmp_path / "keys"
    file.write_bytes(held)
    with pytest.raises(RequestError, match="keys"):
        add_key(file, "a")
    assert file.read_bytes() == held


@pytest.mark.parametrize("place", [".", "none/keys"])
def test_where_no_key_can_be_kept(tmp_path: Path, place: str) -> None:
    with pytest.raises(RequestError, match="cannot be read and added to"):
        add_key(tmp_path / place, "a")
