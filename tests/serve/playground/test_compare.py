"""Side by side: this server with other settings, and a second real server elsewhere."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

READY = "#state[data-state=ready]"
# Of 300 seeds two end "import os" within 20 tokens, and a new seed is drawn for each answer.
SEED = "11"


def compare(page: Page, kind: str, **fields: str) -> None:
    """Choose what answers are compared with."""
    page.click("#open-compare")
    page.check(f"#compare [name=kind][value={kind}]", force=True)
    for name, value in fields.items():
        page.fill(f"#compare [name={name}]", value)
    page.click("#compare .primary")
    expect(page.locator("#compare")).not_to_be_visible()


def ask(page: Page, text: str) -> None:
    page.fill("#message", text)
    page.keyboard.press("Enter")
    expect(page.locator("#send")).to_have_text("Send")
    expect(page.locator(".turn .side")).to_have_count(2)
    expect(page.locator(".turn .side .facts")).to_have_count(2)


def test_other_settings_answer_beside(stand_in_page: Page, stand_in: Any) -> None:
    page = stand_in_page
    compare(page, "settings", temperature="0", system="Be brief.", stop="END")
    expect(page.locator("#race-title")).to_have_text("Against other settings")
    ask(page, "go")
    ours, theirs = stand_in.requests
    assert (ours["temperature"], theirs["temperature"]) == (0.7, 0)
    assert theirs["stop"] == ["END"]
    assert "stop" not in ours
    assert theirs["messages"][0] == {"role": "system", "content": "Be brief."}
    assert ours["messages"] == theirs["messages"][1:]
    expect(page.locator(".side h2")).to_have_text(["Here", "other settings"])
    page.reload()
    page.wait_for_selector(READY)
    expect(page.locator(".side .answer")).to_have_text(["Hello.", "Hello."])
    page.get_by_role("button", name="Regenerate").click()  # the choice stays, too
    expect(page.locator(".steps")).to_contain_text("2/2")
    expect(page.locator(".side .facts")).to_have_count(2)
    compare(page, "pace")
    expect(page.locator("#race-title")).to_have_text("The same text at 100 tokens/s")


def test_a_race_against_a_second_server(page: Page, server: Any, paced: Callable[..., Any]) -> None:
    """The verdict holds each side's own speed, whatever a machine under load makes of the pace."""
    other = paced(tokens_per_second=50, allowed_origins=[server.url])
    page.goto(server.url)
    page.wait_for_selector(READY)
    page.click("#open-settings")
    page.fill("#parameters [name=max_tokens]", "20")
    page.fill("#parameters [name=seed]", SEED)
    page.click("#settings .primary")
    compare(page, "server", url=f"{other.url}/v1")
    ask(page, "import os")
    name = f"paced at {other.url.removeprefix('http://')}"
    expect(page.locator(".side h2")).to_have_text(["Here", name])
    expect(page.locator("#race-title")).to_have_text(f"Against {name}")
    expect(page.locator("#there")).to_have_text("20")
    verdict = page.locator("#verdict[data-final]").inner_text()
    found = re.fullmatch(r".*× faster (\w+): (\S+) tokens/s here, (\S+) there\.", verdict)
    assert found is not None, verdict
    here, there = (float(speed.replace(",", "")) for speed in found.groups()[1:])
    assert found[1] == ("here" if here >= there else "there")
    facts = page.locator(".side .facts").all_inner_texts()
    for side, speed in zip(facts, found.groups()[1:], strict=True):
        assert side.startswith(f"20 tokens · {speed} tokens/s")


@pytest.mark.parametrize("allowed", [True, False])
def test_a_server_that_cannot_be_asked_says_why(
    page: Page, server: Any, paced: Callable[..., Any], allowed: bool
) -> None:
    """A wrong path, and a server that lets no other page ask; the answer here comes anyway."""
    key = {"allowed_origins": [server.url]} if allowed else {}
    other = paced(tokens_per_second=50, **key)
    page.goto(server.url)
    page.wait_for_selector(READY)
    page.click("#open-settings")
    page.fill("#parameters [name=max_tokens]", "8")
    page.fill("#parameters [name=seed]", SEED)
    page.click("#settings .primary")
    url = other.url if not allowed else other.url + "/nowhere"
    compare(page, "server", url=url, model="paced")
    page.fill("#message", "import os")
    page.keyboard.press("Enter")
    expect(page.locator("#phase")).to_have_text("done")
    alert = page.locator(".side [role=alert]")
    expect(alert).to_contain_text("not found" if allowed else "--allow-origin", ignore_case=True)
    expect(page.locator(".side .facts").first).to_contain_text("8 tokens")


ELSEWHERE = "http://elsewhere.localhost/v1"
TEXT = 'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": null}]}'
END = 'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "error": null}'
CORS = {"Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "*"}
SPELLINGS = {  # of one stream, by servers of other makes
    "plain": f"{TEXT}\n\n{END}\n\ndata: [DONE]\n\n",
    "CRLF": f"{TEXT}\r\n\r\n{END}\r\n\r\ndata: [DONE]\r\n\r\n",
    "no space": f"{TEXT}\n\n{END}\n\ndata: [DONE]\n\n".replace("data: ", "data:"),
    "an error as text": TEXT + '\n\ndata: {"error": "out of memory"}\n\n',
}


def elsewhere(page: Page, models: list[dict[str, str]], stream: str) -> list[dict[str, Any]]:
    """Let a stand-in be the other server, and compare with it; return what it will be asked."""
    asked: list[dict[str, Any]] = []

    def answer(route: Route) -> None:
        if route.request.url.endswith("/models"):
            route.fulfill(json={"data": models}, headers=CORS)
        else:
            if route.request.method == "POST":
                asked.append(json.loads(route.request.post_data or ""))
            route.fulfill(body=stream, headers=CORS | {"Content-Type": "text/event-stream"})

    page.route(f"{ELSEWHERE}/**", answer)
    compare(page, "server", url=ELSEWHERE)
    return asked


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_streams_of_other_servers_are_read(
    stand_in_page: Page, stand_in: Any, spelling: str
) -> None:
    elsewhere(stand_in_page, [{"id": "other"}], SPELLINGS[spelling])
    ask(stand_in_page, "go")
    side = stand_in_page.locator(".side").last
    expect(side.locator(".answer")).to_have_text("Hi")
    error = ["out of memory"] if "error" in spelling else []
    expect(side.locator("[role=alert]")).to_have_text(error)


def test_what_openai_does_not_know_is_sent_where_it_was_set(
    stand_in_page: Page, stand_in: Any
) -> None:
    page, ours = stand_in_page, stand_in.requests
    theirs = elsewhere(page, [{"id": "other"}], SPELLINGS["plain"])
    ask(page, "go")
    assert ours[-1]["min_p"] == 0.05  # by default
    assert not {"min_p", "top_k"} & theirs[-1].keys()
    assert theirs[-1]["temperature"] == 0.7
    page.click("#new")
    page.click("#open-settings")
    page.fill("#parameters [name=min_p]", "0.1")
    page.fill("#parameters [name=top_k]", "40")
    page.click("#settings .primary")
    ask(page, "go")
    for sent in (ours[-1], theirs[-1]):
        assert (sent["min_p"], sent["top_k"]) == (0.1, 40)


def test_a_server_without_a_model_is_said(stand_in_page: Page, stand_in: Any) -> None:
    elsewhere(stand_in_page, [], "")
    stand_in_page.fill("#message", "go")
    stand_in_page.keyboard.press("Enter")
    alert = stand_in_page.locator(".side [role=alert]")
    expect(alert).to_have_text("http://elsewhere.localhost/v1/models lists no model.")


def test_stop_does_not_wait_for_a_server_that_says_nothing(
    stand_in_page: Page, stand_in: Any
) -> None:
    page = stand_in_page
    page.route(f"{ELSEWHERE}/**", lambda route: None)
    compare(page, "server", url=ELSEWHERE)
    page.fill("#message", "go")
    page.keyboard.press("Enter")
    expect(page.locator("#send")).to_have_text("Stop")
    page.keyboard.press("Escape")
    expect(page.locator("#send")).to_have_text("Send")
    expect(page.locator(".side .facts")).to_have_text(["stopped", "stopped"])
    page.click("#new")
    expect(page.locator(".turn")).to_have_count(0)
