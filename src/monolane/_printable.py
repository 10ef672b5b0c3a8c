"""Text of others for a terminal: messages quote names and words of files that anybody may make.

A terminal obeys what it is sent, and a line may be forged with a line end. So this is done once,
where messages are printed, and not where they are made.
"""

import logging
import unicodedata

# Control characters, marks that turn the direction of writing, halves of a character, line ends.
_OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: str) -> str:
    """Return a text on one line, with what a terminal would obey spelled as Python spells it."""
    if text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if unicodedata.category(char) in _OBEYED
        else char
        for char in text
    )


class PrintableFormatter(logging.Formatter):
    """Makes the message of a record printable; a traceback behind it keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's own name
        """Return the line of a record."""
        return printable(super().formatMessage(record))
