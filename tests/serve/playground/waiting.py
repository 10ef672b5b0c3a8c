"""Waiting for what a page's script comes to say."""

import time
from typing import Any

from playwright.sync_api import Page

_PATIENCE = 300  # seconds, as of all that must come (conftest.py)


def wait_until(page: Page, expression: str) -> Any:
    """Return the value of an expression as soon as it is true.

    Playwright's own wait_for_function evaluates it in the page each time but the first, which the
    page's policy refuses: it passed where what it waited for was there at once.
    """
    end = time.monotonic() + _PATIENCE
    while not (value := page.evaluate(expression)):
        assert time.monotonic() < end, f"expected {expression}, got {value!r}"
        page.wait_for_timeout(20)
    return value
