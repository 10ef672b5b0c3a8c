"""The playground against a real server with the demo model: ask, watch, stop, come back."""

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from .waiting import wait_until

# Notes what the big number and the phase chip show, from the first frame on.
WATCH = """() => {
  window.seen = { rate: [], phase: [] };
  for (const id of ["rate", "phase"]) {
    const element = document.getElementById(id);
    const note = () => window.seen[id].push(element.textContent);
    const all = { childList: true, characterData: true, subtree: true };
    new MutationObserver(note).observe(element, all);
  }
}"""
READY = "#state[data-state=ready]"


def set_field(page: Page, name: str, value: str) -> None:
    """Set a field of the settings."""
    page.click("#open-settings")
    page.fill(f"#parameters [name={name}]", value)
    page.click("#settings .primary")
    expect(page.locator("#settings")).not_to_be_visible()


def ask(page: Page, text: str) -> None:
    """Send a message and wait until the answer is complete."""
    page.fill("#message", text)
    page.keyboard.press("Enter")
    expect(page.locator("#send")).to_have_text("Send")
    page.wait_for_selector("#phase[data-phase=done]")


def copied_curl(page: Page) -> str:
    """Click the button, and return what the clipboard holds once it has been written."""
    page.evaluate("navigator.clipboard.writeText('')")
    page.get_by_role("button", name="Copy as curl").click()
    command = wait_until(page, "navigator.clipboard.readText()")
    assert isinstance(command, str)
    return command


def metric(url: str, name: str) -> float:
    """Read one gauge or counter of /metrics, summed over its labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        text = response.read().decode()
    values = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    assert values, f"/metrics has no {name}"
    return sum(map(float, values))


def test_an_answer_streams_and_is_measured(
    page: Page, slow_server: Any, picture: Callable[[str], None]
) -> None:
    page.goto(slow_server.url)
    page.wait_for_selector(READY)
    picture("empty")
    assert page.locator("[name=mode]:checked").get_attribute("value") == "continue"
    assert "continues code" in (page.locator("#note").text_content() or "")
    set_field(page, "max_tokens", "900")
    set_field(page, "seed", "11")  # which does not end before, at these two
    set_field(page, "temperature", "1.15")
    set_field(page, "frequency_penalty", "0")
    page.evaluate(WATCH)
    ask(page, "class Stack:")
    seen = page.evaluate("window.seen")
    speeds = [float(text.replace(",", "")) for text in seen["rate"] if text != "–"]
    assert len(set(speeds)) >= 2, "the number stood still"
    assert all(speed > 0 for speed in speeds)
    assert seen["phase"][0] == "sent"
    assert seen["phase"][-1] == "done"
    assert "decode" in seen["phase"]
    assert (page.locator("#curve .curve").get_attribute("d") or "").startswith("M")
    assert re.fullmatch(r"[\d.]+ m?s", page.locator("#first").inner_text())
    assert page.locator("#tokens").inner_text() == "6 + 900"
    facts = page.locator(".turn .facts").inner_text()
    assert f"{page.locator('#rate').inner_text()} tokens/s" in facts
    assert "seed 11" in facts
    answer = page.locator(".turn .answer").inner_text()
    assert answer.startswith("class Stack:\n")
    assert len(answer) > 200
    picture("answer")


def test_the_replay_lags_and_then_arrives(
    page: Page, server: Any, picture: Callable[[str], None]
) -> None:
    """By a clock that the test moves: how long the answer took, and the test, is no matter."""
    page.clock.install(time=0)
    page.goto(server.url)
    page.wait_for_selector(READY)
    set_field(page, "max_tokens", "150")
    set_field(page, "seed", "11")
    page.clock.pause_at(3600)
    ask(page, "def fibonacci(n):")
    live = page.locator(".turn .answer").inner_text()
    expect(page.locator("#tokens")).to_contain_text("+ 150")
    replay = page.locator("#replay")
    page.clock.run_for(500)  # ms: 50 of 150 tokens
    early = replay.inner_text()
    assert live.startswith(early.rstrip())
    assert len("def fibonacci(n):") < len(early) < len(live)
    expect(page.locator("#verdict")).to_contain_text("tokens to go there")
    picture("race")
    page.clock.run_for(1500)
    verdict = page.locator("#verdict[data-final]")
    expect(verdict).to_contain_text(re.compile("faster:|Slower than the replay:"))
    assert replay.inner_text() == live


def test_stop_ends_the_decode_and_frees_the_server(page: Page, paced: Callable[..., Any]) -> None:
    # 50 tokens a second: the whole answer takes 2,000 s, so that no stall of the browser can make
    # Stop come too late, and a server that went on would still be at it when the 60 s are over.
    server = paced(tokens_per_second=50)
    page.goto(server.url)
    page.wait_for_selector(READY)
    set_field(page, "max_tokens", "100000")
    page.fill("#message", "import os")
    page.keyboard.press("Enter")
    page.wait_for_selector("#phase[data-phase=decode]")
    page.click("#send")
    page.wait_for_selector("#phase[data-phase=stopped]")
    expect(page.locator(".turn .facts")).to_contain_text("stopped")
    drawn = int(page.locator("#tokens").inner_text().split(" + ")[1].replace(",", ""))
    assert 0 < drawn < 100_000
    end = time.monotonic() + 60
    while metric(server.url, "vllm:num_requests_running") > 0:
        assert time.monotonic() < end, "the server goes on"
        time.sleep(0.05)
    set_field(page, "max_tokens", "5")
    ask(page, "import sys")
    expect(page.locator("#tokens")).to_contain_text("+ 5")


def test_regenerate_and_edit_take_the_place_of_the_last(server_page: Page) -> None:
    page = server_page
    set_field(page, "max_tokens", "30")
    ask(page, "def first():")
    ask(page, "def second():")
    expect(page.get_by_role("button", name="Regenerate")).to_have_count(1)
    before = page.locator(".turn").last.inner_text()
    page.get_by_role("button", name="Regenerate").click()
    page.wait_for_selector("#phase[data-phase=done]")
    expect(page.locator(".turn")).to_have_count(2)
    assert page.locator(".turn").last.inner_text() != before  # a new seed was drawn
    page.get_by_role("button", name="Edit", exact=True).last.click()
    assert page.input_value("#message") == "def second():"
    ask(page, "def third():")
    expect(page.locator(".turn")).to_have_count(2)
    assert page.locator(".turn .answer").last.inner_text().startswith("def third():")
    assert page.locator(".turn .answer").first.inner_text().startswith("def first():")


def test_the_conversation_survives_a_reload_and_a_new_one_does_not_see_it(
    server_page: Page, server: Any
) -> None:
    page = server_page
    set_field(page, "max_tokens", "40")
    set_field(page, "system", "Be brief.")
    set_field(page, "key", "secret-key")
    ask(page, "import re\n")
    shown = page.locator("#transcript").inner_text()
    rate = page.locator("#rate").inner_text()
    page.reload()
    page.wait_for_selector(READY)
    assert page.locator("#transcript").inner_text() == shown
    assert page.locator("#rate").inner_text() == rate
    assert page.input_value("#parameters [name=system]") == "Be brief."
    assert page.input_value("[name=key]") == "secret-key"
    assert page.evaluate("JSON.stringify({...localStorage}) + document.cookie") == "{}"
    other = page.context.new_page()  # another tab
    other.goto(server.url)
    other.wait_for_selector(READY)
    assert other.locator(".turn").count() == 0
    assert other.input_value("[name=key]") == ""
    page.click("#new")
    expect(page.locator(".turn")).to_have_count(0)
    assert page.locator(".turn").count() == 0
    page.reload()
    assert page.locator(".turn").count() == 0


def test_copied_curl_gives_the_same_answer(server_page: Page) -> None:
    page = server_page
    set_field(page, "max_tokens", "60")
    set_field(page, "seed", "11")
    ask(page, "print('it''s', \"$HOME\", `x`)  # \\ ü")
    shown = page.locator(".turn .answer").inner_text()
    command = copied_curl(page)
    assert command.startswith("curl ")
    assert "Authorization" not in command
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    chunks = [
        json.loads(line.removeprefix("data: "))
        for line in done.stdout.splitlines()
        if line.startswith("data: {")
    ]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert ("print('it''s', \"$HOME\", `x`)  # \\ ü" + text).rstrip("\n") == shown.rstrip("\n")


def test_a_key_is_asked_for_and_never_copied(page: Page, locked: Any) -> None:
    page.goto(locked.url)
    expect(page.locator("#settings")).to_be_visible()
    expect(page.locator("[name=key]")).to_be_focused()
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_have_text("needs an API key")
    page.fill("[name=key]", locked.key)
    page.keyboard.press("Enter")
    page.wait_for_selector(READY)
    expect(page.locator("#settings")).not_to_be_visible()
    set_field(page, "max_tokens", "8")
    ask(page, "import os")
    command = copied_curl(page)
    assert locked.key not in command
    environment = {"MONOLANE_API_KEY": locked.key, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120, env=environment
    )
    assert "data: [DONE]" in done.stdout
    assert locked.key not in page.evaluate("JSON.stringify({...localStorage})")


def test_a_chat_goes_out_as_one_and_comes_back_from_a_file(
    server_page: Page, tmp_path: Path, picture: Callable[[str], None]
) -> None:
    page = server_page
    set_field(page, "max_tokens", "30")
    page.check("[value=chat]", force=True)
    set_field(page, "key", "secret-key")
    assert page.locator("[name=mode]:checked").get_attribute("value") == "chat"
    ask(page, "Hello?")
    ask(page, "And again?")
    picture("chat")
    shown = page.locator("#transcript").inner_text()
    with page.expect_download() as download:
        page.click("#export")
    file = tmp_path / "chat.json"
    download.value.save_as(file)
    chat = json.loads(file.read_text())
    assert "secret-key" not in file.read_text()
    turns = chat["conversations"][0]["turns"]
    assert [turn["prompt"] for turn in turns] == ["Hello?", "And again?"]
    roles = [message["role"] for message in turns[1]["request"]["body"]["messages"]]
    assert roles == ["user", "assistant", "user"]
    page.click("#new")
    page.set_input_files("#file", file)
    expect(page.locator(".turn")).to_have_count(2)
    assert page.locator("#transcript").inner_text() == shown
