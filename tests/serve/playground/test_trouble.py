"""When something fails the page says what, keeps what it has, and goes on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect


def ask(page: Page, text: str = "go") -> None:
    """Send a message and wait until it is over, however it ends."""
    page.fill("#message", text)
    page.keyboard.press("Enter")
    expect(page.locator("#send")).to_have_text("Send")
    page.wait_for_selector("#phase:is([data-phase=done], [data-phase=error])")


def test_loading_is_said_and_waited_for(page: Page, stand_in: Any) -> None:
    stand_in.health = 503
    page.goto("http://playground.localhost")
    expect(page.locator("#state")).to_have_text("loading the model")
    stand_in.health = 200
    expect(page.locator("#state")).to_have_text("stand-in · cpu · float32")


def test_a_refusal_is_shown_and_can_be_tried_again(stand_in_page: Page, stand_in: Any) -> None:
    message = "messages: 5000 tokens do not fit into a context of 4096; shorten them"
    stand_in.refusal = (400, {"error": {"message": message, "code": 400}})
    ask(stand_in_page)
    expect(stand_in_page.get_by_role("alert").first).to_have_text(message)
    expect(stand_in_page.locator("#phase")).to_have_text("error")
    stand_in.refusal = None
    stand_in_page.get_by_role("button", name="Regenerate").click()
    expect(stand_in_page.locator(".turn .answer")).to_have_text("Hello.")
    expect(stand_in_page.locator(".turn .error")).to_have_count(0)


def test_a_key_that_is_no_longer_good_is_asked_for(stand_in_page: Page, stand_in: Any) -> None:
    stand_in.refusal = (401, {"error": {"message": "expected a valid key", "code": 401}})
    stand_in_page.fill("#message", "go")
    stand_in_page.keyboard.press("Enter")
    expect(stand_in_page.locator("[name=key]")).to_be_focused()
    expect(stand_in_page.locator(".turn .error")).to_have_text("expected a valid key")


BROKEN = {
    'data: {"error": {"message": "the backend stopped", "code": 500}}': "the backend stopped",
    ": no more": "The connection ended before the answer did.",
    "data: {half": "The page failed",
}


@pytest.mark.parametrize("end", BROKEN)
def test_what_came_before_a_break_stays(stand_in_page: Page, stand_in: Any, end: str) -> None:
    stand_in.text, stand_in.broken = "Half an **answer**", end
    ask(stand_in_page)
    expect(stand_in_page.locator(".turn [role=alert]")).to_contain_text(BROKEN[end])
    expect(stand_in_page.locator(".turn .answer strong")).to_have_text("answer")
    stand_in.text, stand_in.broken = "Whole", None
    ask(stand_in_page, "again")
    assert [message["content"] for message in stand_in.requests[-1]["messages"]] == [
        "go",
        "Half an **answer**",
        "again",
    ]


def test_no_connection_is_said(stand_in_page: Page) -> None:
    stand_in_page.context.set_offline(True)
    stand_in_page.route("**/v1/chat/completions", lambda route: route.abort())
    ask(stand_in_page)
    alert = stand_in_page.locator(".turn [role=alert]")
    expect(alert).to_have_text("The server cannot be reached. Is it still running?")


def test_another_model_at_the_same_address_is_found(stand_in_page: Page, stand_in: Any) -> None:
    stand_in.model = stand_in.model | {"id": "successor"}
    stand_in.refusal = (404, {"error": {"message": "no such model", "code": 404}})
    ask(stand_in_page)
    expect(stand_in_page.locator("#state")).to_contain_text("successor")
    stand_in.refusal = None
    ask(stand_in_page, "again")
    assert stand_in.requests[-1]["model"] == "successor"


def test_a_server_that_goes_away_is_said_and_awaited(page: Page, paced: Callable[..., Any]) -> None:
    server = paced(tokens_per_second=20, context=100_000)
    page.goto(server.url)
    page.wait_for_selector("#state[data-state=ready]")
    page.click("#open-settings")
    page.fill("#parameters [name=max_tokens]", "90000")
    page.click("#settings .primary")
    page.fill("#message", "go")
    page.keyboard.press("Enter")
    page.wait_for_selector("#phase[data-phase=decode]")
    server.process.kill()
    alert = page.locator(".turn [role=alert]")
    expect(alert).to_have_text("The connection ended before the answer did.")
    expect(page.locator("#state")).to_have_text("no connection")


def test_a_small_context_needs_no_settings(stand_in_page: Page, stand_in: Any) -> None:
    few = {"monolane": {"backend": "cpu", "dtype": "float32", "max_tokens": 256}}
    stand_in.model = stand_in.model | few
    stand_in_page.reload()
    stand_in_page.wait_for_selector("#state[data-state=ready]")
    ask(stand_in_page)
    assert stand_in.requests[-1]["max_tokens"] == 256
    stand_in_page.click("#open-settings")
    stand_in_page.get_by_role("button", name="Defaults").click()
    expect(stand_in_page.locator("#parameters [name=max_tokens]")).to_have_value("256")


def test_a_model_is_drawn_as_its_authors_say(stand_in_page: Page, stand_in: Any) -> None:
    page = stand_in_page
    ask(page)
    assert {"temperature": 0.7, "min_p": 0.05}.items() <= stand_in.requests[-1].items()
    about = stand_in.model["monolane"] | {"sampling": {"temperature": 0.2, "top_p": 0.9, "seed": 3}}
    stand_in.model = stand_in.model | {"monolane": about}
    page.reload()
    page.wait_for_selector("#state[data-state=ready]")
    ask(page)
    sent = stand_in.requests[-1]
    # Of our own there is nothing beside it: no min_p, and a seed of each answer's own.
    assert (sent["temperature"], sent["top_p"], sent["min_p"]) == (0.2, 0.9, 0)
    assert sent["seed"] != 3
    # What the visitor sets counts all the same, and is kept.
    page.click("#open-settings")
    page.fill("#parameters [name=temperature]", "0.5")
    page.click("#settings .primary")
    page.reload()
    page.wait_for_selector("#state[data-state=ready]")
    ask(page)
    assert stand_in.requests[-1]["temperature"] == 0.5
    assert stand_in.requests[-1]["top_p"] == 0.9


def test_what_is_typed_before_the_page_is_whole_is_kept(page: Page, stand_in: Any) -> None:
    late: list[Any] = []
    page.route("**/app.js", lambda route: late.append(route))
    page.goto("http://playground.localhost", wait_until="commit")
    page.locator("#message").press_sequentially("early")
    while not late:
        page.wait_for_timeout(10)
    late[0].fallback()
    page.wait_for_selector("#state[data-state=ready]")
    page.keyboard.press("Enter")
    expect(page.locator(".turn .prompt")).to_have_text("early")
    expect(page.locator(".turn .answer")).to_have_text("Hello.")


def file_of(conversations: Any, version: int = 2) -> str:
    """The text of a file of the page, whatever is in it."""
    return json.dumps(
        {"format": "monolane-playground", "version": version, "conversations": conversations}
    )


TURN = {"id": "a1", "parent": None, "prompt": "p", "answer": "a"}
FILES = {
    "no JSON": "could not be read",
    "{}": "expected conversations that this page exported (version 1 or 2)",
    file_of([], version=3): "(version 1 or 2)",
    file_of([{"turns": [{"prompt": 1}]}]): "turn 1: expected a prompt and an answer",
    file_of([{"turns": {}}]): "expected a list of turns",
    file_of({}): "expected a list of conversations",
    file_of([{"turns": [TURN, TURN]}]): "turn 2: expected an id of its own",
    file_of([{"turns": [TURN | {"parent": "a1"}]}]): "and a parent before it",
    json.dumps(
        {"format": "monolane-playground", "version": 1, "turns": {}}
    ): "expected a list of turns",
}


def test_a_file_that_is_none_changes_nothing(stand_in_page: Page, tmp_path: Path) -> None:
    ask(stand_in_page)
    file = tmp_path / "chat.json"
    for text, message in FILES.items():
        file.write_text(text)
        stand_in_page.set_input_files("#file", file)
        expect(stand_in_page.locator("#file-error")).to_contain_text(message)
    expect(stand_in_page.locator(".turn")).to_have_count(1)
    expect(stand_in_page.locator("#chat-list li")).to_have_count(1)


def test_a_busy_server_is_asked_again_when_it_said(stand_in_page: Page, stand_in: Any) -> None:
    stand_in.busy = 1
    stand_in_page.fill("#message", "go")
    stand_in_page.keyboard.press("Enter")
    expect(stand_in_page.locator(".notice")).to_contain_text("Asked again in 2 s")
    expect(stand_in_page.locator("#phase")).to_have_text("busy, again in 1 s")
    expect(stand_in_page.locator(".turn .answer")).to_have_text("Hello.")
    expect(stand_in_page.locator(".notice")).to_be_hidden()
    stand_in.busy = 100
    stand_in_page.fill("#message", "go")
    stand_in_page.keyboard.press("Enter")
    expect(stand_in_page.locator(".notice").last).to_contain_text("Asked again")
    stand_in_page.keyboard.press("Escape")
    expect(stand_in_page.locator(".turn .facts").last).to_have_text("stopped")
    assert stand_in.busy == 99


def test_what_another_version_kept_does_no_harm(stand_in_page: Page) -> None:
    stand_in_page.evaluate(
        """() => {
          sessionStorage.setItem("monolane.open", '"gone"');
          sessionStorage.setItem("monolane.comparison", '{"kind": 3}');
          sessionStorage.setItem("monolane.parameters", '"none"');
        }"""
    )
    stand_in_page.reload()
    stand_in_page.wait_for_selector("#state[data-state=ready]")
    ask(stand_in_page)
    expect(stand_in_page.locator(".turn .answer")).to_have_text("Hello.")
