"""A phone, a tablet and a desktop: nothing hidden, nothing beside the screen, axe finds nothing.

PLAYGROUND_SCREENSHOTS takes the pictures of docs/images from the desktop's and the phone's.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.sync_api import Page, expect

AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js")
SIZES = {"phone": (390, 844), "tablet": (820, 1180), "desktop": (1440, 900)}
SCHEMES = {"phone": "light", "tablet": "dark", "desktop": "light"}  # axe takes a second a run
TEXT = (
    "Both sort in place:\n\n```python\ndef insert(items):\n    for at, item in enumerate(items):\n"
    "        pass  # moves\n```\n\n| sort | steps |\n|---|---|\n| quick | n log n |\n\n"
    "> Measured.\n\n"
    "1. A [link](https://example.com)\n2. and `code`\n"
)


def violations(page: Page) -> list[str]:
    """What axe finds, as "rule: element"."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run()")
    return [
        f"{rule['id']}: {node['html'][:120]} {node['failureSummary'][:160]}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


def ask(page: Page, text: str = "go") -> None:
    page.fill("#message", text)
    page.keyboard.press("Enter")
    expect(page.locator("#send")).to_have_text("Send")
    page.wait_for_selector("#phase[data-phase=done]")


@pytest.mark.parametrize("name", SIZES)
def test_nothing_stands_in_the_way(
    stand_in_page: Page, stand_in: Any, picture: Callable[[str], None], name: str
) -> None:
    page = stand_in_page
    width, height = SIZES[name]
    scheme: Any = SCHEMES[name]
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.set_viewport_size({"width": width, "height": height})
    stand_in.text, stand_in.deltas = TEXT, [{"reasoning_content": "Sorts, in Python."}]
    ask(page, "How do I sort?")
    page.click(".reasoning summary")
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".steps")).to_contain_text("2/2")
    if page.locator("#chats").is_hidden():
        assert page.get_attribute("#open-chats", "aria-expanded") == "false"
        page.click("#open-chats")
        expect(page.locator("#search")).to_be_focused()
    expect(page.locator("#chat-list li")).to_have_count(1)
    assert violations(page) == []
    picture(f"{name}-chats")
    page.keyboard.press("Escape")
    expect(page.locator("#chats")).to_be_visible(visible=name == "desktop")
    for opener, dialog in (("#open-settings", "#settings"), ("#change-race", "#compare")):
        if not page.locator(opener).is_visible():
            page.click("#race summary")
        page.click(opener)
        if dialog == "#compare":
            page.check("[name=kind][value=server]", force=True)
        assert violations(page) == []
        picture(f"{name}-{dialog[1:]}")
        box = page.locator(dialog).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["height"] <= height
        page.keyboard.press("Escape")
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) == 0


def test_the_readings_fold_on_a_phone(stand_in_page: Page) -> None:
    page = stand_in_page
    page.set_viewport_size({"width": 390, "height": 844})
    ask(page)
    expect(page.locator("#rate")).to_be_visible()
    expect(page.locator("#first")).to_be_hidden()
    page.focus("#more summary")
    page.keyboard.press("Enter")
    expect(page.locator("#first")).to_be_visible()
    page.set_viewport_size({"width": 1440, "height": 900})
    expect(page.locator("#more summary")).to_be_hidden()
    expect(page.locator("#first")).to_be_visible()


def test_pictures_for_the_docs(page: Page, server: Any, picture: Callable[[str], None]) -> None:
    """A real answer of the demo model at each width, as docs/images shows them."""
    page.goto(server.url)
    page.wait_for_selector("#state[data-state=ready]")
    page.click("#open-settings")
    page.fill("#parameters [name=seed]", "5")
    page.click("#settings .primary")
    for name, (width, height) in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        page.click("#new")
        page.click("#examples button >> nth=0")
        page.wait_for_selector("#phase[data-phase=done]")
        expect(page.locator(".turn pre .hljs-keyword").first).to_be_attached()
        picture(f"playground-{name}")
