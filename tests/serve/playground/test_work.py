"""The page at work: code in colours, attached files, tokens of the draft, cache, drafts."""

from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

CODE = (
    "Look:\n\n```python\ndef f(x):\n    return 'a' + x  # why\n```\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n"
)


def ask(page: Page, text: str = "go") -> None:
    page.fill("#message", text)
    page.keyboard.press("Enter")
    expect(page.locator("#send")).to_have_text("Send")
    page.wait_for_selector("#phase[data-phase=done]")


def test_code_is_coloured_and_stays_itself(stand_in_page: Page, stand_in: Any) -> None:
    page = stand_in_page
    stand_in.text = CODE
    ask(page)
    code = page.locator(".turn pre code")
    assert code.text_content() == "def f(x):\n    return 'a' + x  # why"
    for kind, text in {"keyword": "def", "string": "'a'", "comment": "# why"}.items():
        word = code.locator(f".hljs-{kind}", has_text=text)
        expect(word).to_have_count(1)
        assert word.evaluate("(it) => getComputedStyle(it).color") != code.evaluate(
            "(it) => getComputedStyle(it).color"
        )
    expect(page.locator(".turn td")).to_have_text(["1", "2"])


def test_a_continuation_is_coloured_as_the_code_that_it_is(
    stand_in_page: Page, stand_in: Any
) -> None:
    page = stand_in_page
    stand_in.text = "name, other):\n    return name == 'x'\n"
    page.check("[value=continue]", force=True)
    ask(page, "import os\n\ndef compare_")
    pre = page.locator(".turn .answer pre")
    assert pre.text_content() == "import os\n\ndef compare_name, other):\n    return name == 'x'\n"
    assert pre.locator("b").text_content() == "import os\n\ndef compare_"
    expect(pre.locator(".hljs-string")).to_have_text("'x'")


HOSTILE_CODE = """async ([text, language]) => {
  const { colours } = await import("/code_colours.js");
  const fragment = colours(text, language);
  const place = document.createElement("div");
  if (fragment !== null) place.append(fragment);
  const all = [...place.querySelectorAll("*")];
  return {
    text: fragment === null ? null : place.textContent,
    elements: [...new Set(all.map((element) => element.nodeName))],
    attributes: [...new Set(all.flatMap((element) => element.getAttributeNames()))],
  };
}"""


def test_hostile_code_stays_text(workbench: Page) -> None:
    """Markup in every language's clothes; and long runs of marks, on which a pattern could hang."""
    evil = "<img src=x onerror=hit()></span><script>hit()</script><span onclick=hit()>&lt;b&gt;"
    for language in ("html", "javascript", "markdown", "php", "python"):
        for text in (evil, f"'{evil}'", f"/* {evil} */", f"`${{{evil}}}`"):
            found = workbench.evaluate(HOSTILE_CODE, [text, language])
            assert found["text"] == text, language
            assert set(found["elements"]) <= {"SPAN"}
            assert set(found["attributes"]) <= {"class"}
    # The slowest of 36 languages with 20 pieces: their time grows with the square of the length.
    for piece, language in (("_", "java"), ("_", "typescript"), ("1", "ini")):
        text = piece * 8000
        assert workbench.evaluate(HOSTILE_CODE, [text, language])["text"] == text
    for text, language in (("x" * 8001, "python"), ("x", "<img>"), ("x", "constructor")):
        assert workbench.evaluate(HOSTILE_CODE, [text, language])["text"] is None


def test_files_become_fenced_blocks(stand_in_page: Page, stand_in: Any, tmp_path: Path) -> None:
    page = stand_in_page
    notes, code = tmp_path / "notes.md", tmp_path / "a.py"
    notes.write_text("```\nx\n```\n")
    code.write_text("x = 1\n")
    page.fill("#message", "Read these.")
    page.set_input_files("#attached", [notes, code])
    block = (
        "Read these.\n\nnotes.md:\n\n````md\n```\nx\n```\n````\n\na.py:\n\n```py\nx = 1\n```\n\n"
    )
    expect(page.locator("#message")).to_have_value(block)
    page.keyboard.press("Enter")
    expect(page.locator(".turn .answer")).to_have_text("Hello.")
    assert stand_in.requests[-1]["messages"][0]["content"] == block
    large, binary = tmp_path / "large.txt", tmp_path / "a.bin"
    large.write_text("x" * (64 * 1024 + 1))
    binary.write_bytes(b"\xff\x00")
    page.set_input_files("#attached", [large, binary])
    expect(page.locator("#attach-error")).to_have_text(
        "large.txt has 65 KB; at most 64 KB can be attached. a.bin is no text in UTF-8."
    )
    expect(page.locator("#message")).to_have_value("")


def test_text_may_be_dropped_into_the_message(stand_in_page: Page) -> None:
    """The browser's own doing: the page keeps it for itself only where files are dropped."""
    drop = """(box, name) => {
      const dataTransfer = new DataTransfer();
      if (name === "") dataTransfer.setData("text/plain", "words");
      else dataTransfer.items.add(new File(["x"], name));
      const bubbles = true;
      const cancelable = true;
      return box.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles, cancelable }));
    }"""
    message = stand_in_page.locator("#message")
    assert message.evaluate(drop, "")
    assert not message.evaluate(drop, "a.txt")
    expect(message).to_have_value("a.txt:\n\n```txt\nx\n```\n\n")
    beside = stand_in_page.locator("#transcript")
    for event in (drop, drop.replace('"drop"', '"dragover"')):
        assert beside.evaluate(event, "")
        assert not beside.evaluate(event, "b.txt")  # else the browser leaves the page for the file
    expect(message).to_have_value("a.txt:\n\n```txt\nx\n```\n\n")


def test_the_draft_is_counted_with_what_is_before_it(stand_in_page: Page, stand_in: Any) -> None:
    page = stand_in_page
    ask(page, "one")
    page.fill("#message", "two")
    expect(page.locator("#draft")).to_contain_text("of 4,096 tokens")
    roles = ["user", "assistant", "user"]
    assert [message["role"] for message in stand_in.counted[-1]["messages"]] == roles
    page.check("[value=continue]", force=True)
    expect(page.locator("#draft")).not_to_be_empty()
    with page.expect_request("**/tokenize"):
        page.fill("#message", "three")
    expect(page.locator("#draft")).to_contain_text("of 4,096 tokens")
    assert stand_in.counted[-1] == {"prompt": "three"}
    page.fill("#message", "")
    expect(page.locator("#draft")).to_be_empty()


def test_a_draft_is_counted_by_a_real_server(server_page: Page) -> None:
    server_page.fill("#message", "import os")
    expect(server_page.locator("#draft")).to_have_text("3 of 1,024 tokens")
    server_page.fill("#message", "x = 1\n" * 2000)
    expect(server_page.locator("#draft[data-over]")).not_to_be_empty()


def test_a_draft_that_is_not_counted_is_too_long_only_where_that_is_said(
    stand_in_page: Page,
) -> None:
    refusals: list[dict[str, Any]] = [{"message": "no", "code": "context_length_exceeded"}]
    stand_in_page.route(
        "**/tokenize", lambda route: route.fulfill(status=400, json={"error": refusals[-1]})
    )
    stand_in_page.fill("#message", "one")
    expect(stand_in_page.locator("#draft[data-over]")).to_have_text("more than the context holds")
    refusals.append({"message": "the template refuses it", "code": 400})
    stand_in_page.fill("#message", "two")
    expect(stand_in_page.locator("#draft")).to_be_empty()


def test_cache_and_drafts_are_shown(stand_in_page: Page) -> None:
    ask(stand_in_page)
    expect(stand_in_page.locator("#cached")).to_have_text("5")
    expect(stand_in_page.locator("#drafts")).to_have_text("30 of 40, 75 %")
    expect(stand_in_page.locator(".turn .facts")).to_contain_text("5 from cache")
