"""What strangers write into files is printed, and obeyed by no terminal."""

import logging

import pytest

from monolane._printable import PrintableFormatter, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("model/größe.json: 中 \U0001f600", "model/größe.json: 中 \U0001f600"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("one\ntwo\r\n\x0b\x85\u2028", "one\\ntwo\\r\\n\\x0b\\x85\\u2028"),
        ("abc\u202egnp.exe", "abc\\u202egnp.exe"),
        ("\udcff", "\\udcff"),
        ("a\tb \u00a0c", "a\\tb \u00a0c"),
    ],
)
def test_control_characters_are_spelled(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_log_line_is_one_line_and_its_traceback_stays() -> None:
    try:
        raise ValueError("bad")
    except ValueError as error:
        about = (type(error), error, error.__traceback__)
    record = logging.LogRecord("x", logging.ERROR, __file__, 1, "%s", ("a\nb\x1b",), about)
    first, *rest = PrintableFormatter("%(levelname)s %(message)s").format(record).splitlines()
    assert first == "ERROR a\\nb\\x1b"
    assert rest[0].startswith("Traceback")
    assert rest[-1] == "ValueError: bad"
