"""For everyone: keyboard alone, names for what has no text, contrast, light and dark, a phone."""

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

LONG = "# Title\n\n" + "word " * 200 + "\n\n```\n" + "x" * 500 + "\n```\n\n- " + "y" * 300


def ask(page: Page, text: str = "go") -> None:
    """Send a message to the stand-in and wait for its end."""
    page.fill("#message", text)
    page.keyboard.press("Enter")
    page.wait_for_selector("#phase[data-phase=done]")


def test_keyboard_alone_is_enough(stand_in_page: Page, stand_in: Any) -> None:
    page, press = stand_in_page, stand_in_page.keyboard.press
    expect(page.locator("#message")).to_be_focused()
    page.keyboard.type("one")
    press("Shift+Enter")
    page.keyboard.type("two")
    press("Enter")
    page.wait_for_selector("#phase[data-phase=done]")
    assert stand_in.requests[-1]["messages"][-1]["content"] == "one\ntwo"
    press("ArrowUp")  # edits the last message
    assert page.input_value("#message") == "one\ntwo"
    press("Escape")
    assert page.input_value("#message") == ""
    expect(page.locator("#editing")).to_be_hidden()
    # The rest by Tab: from the start of the page everything comes, in order, and shows its focus.
    page.focus(".skip")
    reached = ["Skip"]
    for _ in range(40):
        press("Tab")
        what = page.evaluate(
            """() => {
              const { activeElement: at } = document;
              if (at === document.body) return null;
              const shown = at.matches("[name=mode]") ? at.nextElementSibling : at;
              const { outlineStyle } = getComputedStyle(shown);
              const marked = outlineStyle !== "none" || at.id === "message";
              return [at.id || at.textContent || at.value, marked];
            }"""
        )
        if what is None:
            break
        reached.append(what[0])
        assert what[1], f"{what[0]} does not show its focus"
    text = " ".join(re.sub(r"\s+", " ", name) for name in reached)
    for name in ("Skip", "new", "open-settings", "theme", "race-title", "Copy", "Regenerate"):
        assert name in text
    for name in ("open-chats", "open-compare", "search", "export", "change-race"):
        assert name in text
    for name in ("Edit", "Copy as curl", "message", "attach", "send", "chat"):
        assert name in text


def test_what_is_pressed_to_be_answered_hands_on_the_focus(
    stand_in_page: Page, stand_in: Any
) -> None:
    """What held it leaves the page, and from the body the way back is long."""
    page, press = stand_in_page, stand_in_page.keyboard.press
    page.locator("#examples button").first.focus()
    press("Enter")
    expect(page.locator(".turn")).to_be_focused()
    expect(page.locator(".turn .answer")).to_have_text("Hello.")
    page.get_by_role("button", name="Regenerate").focus()
    press("Enter")
    expect(page.locator(".steps")).to_contain_text("2/2")
    expect(page.locator(".turn")).to_be_focused()
    page.fill("#message", "more")
    press("Enter")
    expect(page.locator(".turn")).to_have_count(2)
    expect(page.locator("#message")).to_be_focused()  # which stays


def test_settings_by_keyboard(stand_in_page: Page, stand_in: Any) -> None:
    page, press = stand_in_page, stand_in_page.keyboard.press
    page.focus("#open-settings")
    press("Enter")
    expect(page.locator("#parameters [name=temperature]")).to_be_focused()
    values = {"temperature": 0.2, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "max_tokens": 77}
    penalties = {"frequency_penalty": 0.5, "presence_penalty": 0.25, "repetition_penalty": 1.1}
    schema = '{"type": "object"}'
    tools = '[{"type": "function", "function": {"name": "now"}}]'
    for value in [
        *values.values(),
        4711,
        *penalties.values(),
        "Be brief.",
        r"END\n",
        schema,
        tools,
    ]:
        press("Control+a")
        page.keyboard.type(str(value))
        press("Tab")
    press("Escape")
    expect(page.locator("#settings")).not_to_be_visible()
    expect(page.locator("#open-settings")).to_be_focused()
    ask(page)
    sent = stand_in.requests[-1]
    assert {name: sent[name] for name in values | penalties} == values | penalties
    assert sent["stop"] == ["END\n"]
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert sent["tools"] == json.loads(tools)
    assert sent["seed"] == 4711
    assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
    assert sent["stream"] is sent["timings_per_token"] is True


def test_a_value_out_of_range_is_not_sent(stand_in_page: Page, stand_in: Any) -> None:
    page = stand_in_page
    page.click("#open-settings")
    page.fill("#parameters [name=top_p]", "7")
    page.fill("#parameters [name=max_tokens]", "99999")
    page.click("#settings .primary")
    expect(page.locator("#settings")).to_be_visible()  # the browser says what is wrong
    page.keyboard.press("Escape")
    ask(page)
    assert stand_in.requests[-1]["top_p"] == 1
    assert stand_in.requests[-1]["max_tokens"] == 512


def test_everything_has_a_name(stand_in_page: Page, stand_in: Any) -> None:
    stand_in.text = LONG
    ask(stand_in_page)
    stand_in_page.click("#open-settings")
    nameless = stand_in_page.evaluate(
        """() => [...document.querySelectorAll(
             "button, input, textarea, summary, a, img, progress, output, dialog, svg[role]")]
           .filter((element) => {
             const labels = [...(element.labels ?? [])].map((label) => label.textContent).join("");
             const by = element.getAttribute("aria-labelledby");
             const name = element.getAttribute("aria-label") || labels || element.textContent.trim()
               || (by && document.getElementById(by).textContent);
             return !name && element.getAttribute("alt") !== "" && !element.hidden;
           })
           .map((element) => element.outerHTML)"""
    )
    assert nameless == []
    assert stand_in_page.get_attribute("html", "lang") == "en"


def test_a_screen_reader_hears_the_end_and_not_each_token(
    stand_in_page: Page, stand_in: Any
) -> None:
    stand_in.text = "word " * 40
    ask(stand_in_page)
    said = stand_in_page.locator("[role=status]")
    expect(said).to_have_text("The answer is complete: 29 tokens, 500 tokens per second.")
    assert stand_in_page.get_attribute("#rate", "aria-live") == "off"
    assert stand_in_page.locator(".turn[aria-busy=false]").count() == 1
    live = stand_in_page.locator("[aria-live=polite], [role=log], [role=status]")
    expect(live).to_have_count(1)


CONTRAST = """([text, ground]) => {
  const style = getComputedStyle(document.documentElement);
  const canvas = document.createElement("canvas").getContext("2d");
  const probe = document.body.appendChild(document.createElement("i"));
  const luminance = (name) => {
    probe.style.color = `var(--${name})`;
    const [r, g, b] = getComputedStyle(probe).color.match(/[\\d.]+/g).map((value) => {
      const part = Number(value) / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const [one, two] = [luminance(text), luminance(ground)].sort((a, b) => b - a);
  probe.remove();
  return (one + 0.05) / (two + 0.05);
}"""
PAIRS = [
    *itertools.product(["text", "soft", "accent"], ["ground", "raised", "sunk"]),
    ("accent", "wash"),
    ("on-accent", "accent"),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_that_of_wcag_aa(stand_in_page: Page, scheme: Any) -> None:
    stand_in_page.emulate_media(color_scheme=scheme)
    for pair in PAIRS:
        assert stand_in_page.evaluate(CONTRAST, list(pair)) >= 4.5, pair


def ground(page: Page) -> list[int]:
    """The page's background, as [red, green, blue]."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return [int(part) for part in re.findall(r"\d+", colour)]


def test_dark_follows_the_system_until_chosen(
    stand_in_page: Page, picture: Callable[[str], None], stand_in: Any
) -> None:
    page = stand_in_page
    assert min(ground(page)) > 200
    page.emulate_media(color_scheme="dark")
    assert max(ground(page)) < 60
    ask(page)
    picture("dark")
    page.click("#theme")
    assert min(ground(page)) > 200
    page.reload()
    page.wait_for_selector("#state[data-state=ready]")
    assert min(ground(page)) > 200  # the choice stays
    page.click("#theme")
    page.emulate_media(color_scheme="light")
    assert min(ground(page)) > 200  # and follows the system again


@pytest.mark.parametrize("width", [320, 768])
def test_a_narrow_screen_holds_all_of_it(
    stand_in_page: Page, stand_in: Any, picture: Callable[[str], None], width: int
) -> None:
    page = stand_in_page
    stand_in.text = LONG
    page.set_viewport_size({"width": width, "height": 700})
    page.reload()
    page.wait_for_selector("#state[data-state=ready]")
    picture(f"narrow-{width}-empty")
    ask(page, "go " * 60)
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) == 0
    assert page.evaluate("document.body.scrollHeight <= innerHeight")
    assert page.eval_on_selector("#transcript", "(it) => it.scrollWidth - it.clientWidth") == 0
    for part in ("#rate", "#phase", "#message", "#send", "#open-settings", "#theme"):
        box = page.locator(part).bounding_box()
        assert box is not None, part
        assert box["x"] >= 0, part
        assert box["x"] + box["width"] <= width, part
        assert box["y"] + box["height"] <= 700, part
    transcript = page.locator("#transcript").bounding_box()
    assert transcript is not None
    assert transcript["height"] > 200
    picture(f"narrow-{width}")
    page.click("#race summary")
    assert page.evaluate(wide) == 0
    page.click("#open-settings")
    assert page.evaluate(wide) == 0
    picture(f"narrow-{width}-settings")
