"""One reader for every TOML that becomes a frozen value: types, places in messages, refusals."""

import pickle
import re
from dataclasses import FrozenInstanceError, field, replace
from typing import Any, Literal

import pytest
from pydantic import PositiveInt

from monolane._toml import Share, config, load_table, read_table, shipped_files
from monolane.errors import ConfigError


@config
class Inner:
    names: tuple[str, ...] = ()
    share: float = 0.5
    part: Share = 0.5

    def __post_init__(self) -> None:
        if self.share > 1:
            raise ConfigError(f"inner.share: expected at most 1, got {self.share}")


@config
class Outer:
    count: PositiveInt
    kind: Literal["a", "b"] = "a"
    inner: Inner = field(default_factory=Inner)
    other: Inner | None = None
    limit: int | None = None
    shares: dict[str, float] = field(default_factory=dict)


def test_tables_lists_and_numbers_become_what_the_annotations_say() -> None:
    table = {"count": 3, "inner": {"names": ["x"], "share": 1}, "shares": {"web": 2}}
    got = read_table(Outer, table, "f")
    assert got == Outer(3, inner=Inner(("x",), 1.0), shares={"web": 2.0})
    assert type(got.inner.share) is type(got.shares["web"]) is float


def test_what_may_be_absent_may_be_none_or_given() -> None:
    assert read_table(Outer, {"count": 1, "limit": None, "other": None}, "f") == Outer(1)
    given = read_table(Outer, {"count": 1, "limit": 4, "other": {"names": ["y"]}}, "f")
    assert given == Outer(1, limit=4, other=Inner(("y",)))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "f: the config: expected count, found none; add it"),
        (
            {"count": 1, "cuont": 2},
            "f: expected a field of the config, got 'cuont'; did you mean 'count'?",
        ),
        ({"count": True}, "f: count: expected an integer, got True; mend it"),
        ({"count": None}, "f: count: expected an integer, got None; mend it"),
        ({"count": 1, "limit": 0.5}, "f: limit: expected an integer, got 0.5; mend it"),
        ({"count": 1, "kind": "c"}, "f: kind: expected one of 'a', 'b', got 'c'; mend it"),
        ({"count": 1, "inner": 2}, "f: inner: expected a table, got 2; mend it"),
        ({"count": 1, "other": 2}, "f: other: expected a table, got 2; mend it"),
        (
            {"count": 1, "inner": {"names": "x"}},
            "f: inner.names: expected a list, got 'x'; mend it",
        ),
        (
            {"count": 1, "other": {"names": ["x", 3]}},
            "f: other.names[1]: expected a string, got 3; mend it",
        ),
        (
            {"count": 1, "inner": {"z": 0}},
            "f: expected a field of [inner], got 'z'; known are names, share, part",
        ),
        ({"count": 0}, "f: count: expected more than 0, got 0; mend it"),
        (
            {"count": 1, "inner": {"part": -1}},
            "f: inner.part: expected at least 0, got -1; mend it",
        ),
        ({"count": 1, "inner": {"part": 1}}, "f: inner.part: expected less than 1, got 1; mend it"),
        ({"count": 1, "shares": {"a": "b"}}, "f: shares.a: expected a number, got 'b'; mend it"),
        ({"count": 1, "inner": {"share": 2}}, "f: inner.share: expected at most 1, got 2.0"),
    ],
)
def test_an_error_says_where_what_was_expected_and_what_was_found(
    table: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_table(Outer, table, "f")
    assert str(caught.value) == message


def test_what_is_made_in_code_is_held_to_the_same() -> None:
    for values, message in (
        ({"count": 0}, "Outer: count: expected more than 0, got 0; mend it"),
        ({"count": 1, "z": 0}, "Outer: expected a field of the config, got 'z'"),
        ({}, "Outer: the config: expected count, found none; add it"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            Outer(**values)
    with pytest.raises(ConfigError, match="Outer: count: expected more than 0, got -1"):
        replace(Outer(1), count=-1)
    with pytest.raises(FrozenInstanceError):
        Outer(1).count = 2  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(Outer(1, inner=Inner(("x",))))) == Outer(
        1, inner=Inner(("x",))
    )


@pytest.mark.parametrize("package", ["monolane.train", "monolane.tune"])
def test_shipped_files_are_found_by_name(package: str) -> None:
    for name in shipped_files(package):
        table, origin = load_table(name, package)
        assert table
        assert origin == f"{name}.toml"
