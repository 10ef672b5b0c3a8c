"""Reasoning and tool calls stand beside the answer, as inert text, and stay."""

from typing import Any

from playwright.sync_api import Page, expect

CALLS = [
    {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "weather", "arguments": '{"c'}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": 'ity": "<b>Bern</b>"}'}}]},
    {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "now", "arguments": "{}"}}]},
]


def ask(page: Page) -> None:
    page.fill("#message", "go")
    page.keyboard.press("Enter")
    expect(page.locator("#send")).to_have_text("Send")
    page.wait_for_selector("#phase[data-phase=done]")


def test_reasoning_and_calls_are_shown_and_survive_a_reload(
    stand_in_page: Page, stand_in: Any
) -> None:
    page = stand_in_page
    thoughts = [{"reasoning_content": text} for text in ("Rain, ", "<img src=x>", " perhaps.")]
    stand_in.deltas, stand_in.text, stand_in.end = [*thoughts, *CALLS], " ", "tool_calls"
    ask(page)
    for _ in range(2):
        reasoning = page.locator(".turn .reasoning")
        expect(reasoning).to_be_visible()
        assert reasoning.locator("pre").text_content() == "Rain, <img src=x> perhaps."
        expect(reasoning.locator("pre")).not_to_be_visible()  # folded
        reasoning.locator("summary").click()
        expect(reasoning.locator("pre")).to_be_visible()
        assert page.locator(".turn .calls li").all_inner_texts() == [
            'weather\n{"city": "<b>Bern</b>"}',
            "now\n{}",
        ]
        assert page.locator(".turn :is(img, .calls b b)").count() == 0
        expect(page.locator(".turn .facts")).to_contain_text("calls a tool")
        page.reload()
        page.wait_for_selector("#state[data-state=ready]")


def test_the_model_is_told_its_thoughts_again(stand_in_page: Page, stand_in: Any) -> None:
    stand_in.deltas = [{"reasoning_content": "Hm."}]
    ask(stand_in_page)
    expect(stand_in_page.locator(".turn .answer")).to_have_text("Hello.")
    stand_in.deltas = []
    ask(stand_in_page)
    expect(stand_in_page.locator(".turn .answer")).to_have_text(["Hello.", "Hello."])
    ask(stand_in_page)
    expect(stand_in_page.locator(".turn .answer")).to_have_text(["Hello.", "Hello.", "Hello."])
    told = stand_in.requests[2]["messages"]
    assert told[1] == {"role": "assistant", "content": "Hello.", "reasoning_content": "Hm."}
    assert told[3] == {"role": "assistant", "content": "Hello."}


def test_a_plain_answer_shows_neither(stand_in_page: Page) -> None:
    ask(stand_in_page)
    expect(stand_in_page.locator(".turn .answer")).to_have_text("Hello.")
    expect(stand_in_page.locator(".turn :is(.reasoning, .calls)")).to_have_count(0)
