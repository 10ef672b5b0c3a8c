"""What readers of tool calls share: coroutines that are sent one character after the other."""

import string
from collections.abc import Generator

SPACE = " \t\r\n"
NAME = frozenset(string.ascii_letters + string.digits + "_.:/-")  # characters of a tool's name

# Returns those characters that it took but that were not its own.
Reader = Generator[None, str, str]
# Returns the character behind the value.
Value = Generator[None, str, str]


def space() -> Value:
    """Skip white space; return the character behind it."""
    while (char := (yield)) in SPACE:
        pass
    return char
