"""Conversations: kept in the browser, in step across tabs, searched, renamed, deleted, branched."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect

from .waiting import wait_until

ORIGIN = "http://playground.localhost"  # as in conftest.py
READY = "#state[data-state=ready]"


def ask(page: Page, text: str, turns: int) -> None:
    """Send a message, and wait until its answer, the last of so many, is over."""
    page.fill("#message", text)
    page.keyboard.press("Enter")
    expect(page.locator(".turn")).to_have_count(turns)
    expect(page.locator("#send")).to_have_text("Send")
    page.wait_for_selector("#phase[data-phase=done]")


def reload(page: Page) -> None:
    page.reload()
    page.wait_for_selector(READY)


def names(page: Page) -> Locator:
    return page.locator("#chat-list .name")


def two_chats(page: Page, stand_in: Any) -> None:
    stand_in.text = "About the Alps."
    ask(page, "Mountains?", 1)
    expect(names(page)).to_have_text(["Mountains?"])
    page.click("#new")
    stand_in.text = "About the Aare."
    ask(page, "Rivers?", 1)
    expect(names(page)).to_have_text(["Rivers?", "Mountains?"])


def test_conversations_are_kept_and_found(stand_in_page: Page, stand_in: Any) -> None:
    page = stand_in_page
    two_chats(page, stand_in)
    reload(page)
    expect(names(page)).to_have_text(["Rivers?", "Mountains?"])
    expect(page.locator(".turn .answer")).to_have_text("About the Aare.")  # this tab's
    page.fill("#search", "alps ABOUT")
    expect(names(page)).to_have_text(["Mountains?"])
    page.fill("#search", "Rhine")
    expect(page.locator("#chat-count")).to_have_text("Nothing found.")
    page.fill("#search", "")
    page.locator("#chat-list .open", has_text="Mountains?").click()
    expect(page.locator(".turn .answer")).to_have_text("About the Alps.")
    ask(page, "Higher?", 2)
    expect(names(page)).to_have_text(["Mountains?", "Rivers?"])  # the last changed first


def test_rename_delete_and_undo_by_keyboard(stand_in_page: Page, stand_in: Any) -> None:
    page, press = stand_in_page, stand_in_page.keyboard.press
    two_chats(page, stand_in)
    page.locator("#chat-list .open").first.focus()
    press("ArrowDown")
    press("F2")
    expect(page.get_by_label("Name of the conversation")).to_have_value("Mountains?")
    page.keyboard.type("Peaks")
    press("Enter")
    expect(names(page)).to_have_text(["Rivers?", "Peaks"])
    expect(page.locator("#chat-list [data-id]:has-text('Peaks') .open")).to_be_focused()
    press("F2")
    page.keyboard.type("Never")
    press("Escape")
    expect(names(page)).to_have_text(["Rivers?", "Peaks"])
    press("Delete")
    expect(names(page)).to_have_text(["Rivers?"])
    expect(page.get_by_role("button", name="Undo")).to_be_focused()
    expect(page.locator("#deleted")).to_contain_text("Deleted “Peaks”.")
    press("Enter")
    expect(names(page)).to_have_text(["Rivers?", "Peaks"])
    expect(page.locator(".turn .answer")).to_have_text("About the Alps.")
    expect(page.locator("#deleted")).to_be_empty()
    expect(page.locator("#chat-list [data-id]:has-text('Peaks') .open")).to_be_focused()
    press("Delete")  # of the conversation that is shown: the page is empty then
    expect(page.locator(".turn")).to_have_count(0)
    reload(page)
    expect(names(page)).to_have_text(["Rivers?"])


def test_tabs_are_in_step(stand_in_page: Page, stand_in: Any) -> None:
    one = stand_in_page
    ask(one, "First", 1)
    other = one.context.new_page()
    other.goto(ORIGIN)
    other.wait_for_selector(READY)
    expect(other.locator(".turn")).to_have_count(0)  # a new tab begins anew
    other.locator("#chat-list .open").click()
    expect(other.locator(".turn")).to_have_count(1)
    ask(other, "Second", 2)
    expect(one.locator(".turn")).to_have_count(2)
    ask(one, "Third", 3)
    expect(other.locator(".turn .prompt")).to_have_text(["First", "Second", "Third"])
    other.locator("#chat-list .open").focus()
    other.keyboard.press("Delete")
    expect(one.locator(".turn")).to_have_count(0)
    expect(names(one)).to_have_count(0)


def test_what_two_tabs_add_at_once_is_all_kept(workbench: Page) -> None:
    found = workbench.evaluate(
        """async () => {
          const { Library } = await import("/library.js");
          const { Conversation } = await import("/conversation.js");
          const [one, two] = [await Library.open(), await Library.open()];
          const ours = new Conversation();
          ours.add("chat", "first");
          await one.save(ours);
          const theirs = Conversation.from(await two.get(ours.id));
          ours.add("chat", "ours");
          theirs.add("chat", "theirs");
          await Promise.all([one.save(ours), two.save(theirs)]);
          await one.save(ours);
          const { turns } = await one.get(ours.id);
          await one.remove(ours.id);
          return [turns.map((turn) => turn.prompt).sort(), (await two.list()).length];
        }"""
    )
    assert found == [["first", "ours", "theirs"], 0]


def test_an_edited_message_is_another_version(stand_in_page: Page, stand_in: Any) -> None:
    page = stand_in_page
    ask(page, "one", 1)
    ask(page, "two", 2)
    page.locator(".turn").first.get_by_role("button", name="Edit").click()
    expect(page.locator("#message")).to_have_value("one")
    stand_in.text = "Other."
    ask(page, "uno", 1)
    assert [m["content"] for m in stand_in.requests[-1]["messages"]] == ["uno"]
    expect(page.locator(".steps")).to_contain_text("2/2")
    expect(page.get_by_label("Version after")).to_be_disabled()
    page.get_by_label("Version before").click()
    expect(page.locator(".turn .prompt")).to_have_text(["one", "two"])
    expect(page.get_by_label("Version before")).to_be_disabled()
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".steps")).to_have_text(["‹1/2›", "‹2/2›"])
    expect(page.locator(".turn .answer")).to_have_text(["Hello.", "Other."])
    expect(page.locator("#send")).to_have_text("Send")
    reload(page)
    expect(page.locator(".steps")).to_have_text(["‹1/2›", "‹2/2›"])  # the branch that was shown
    page.get_by_label("Version after").first.click()
    expect(page.locator(".turn .answer")).to_have_text(["Other."])


def test_an_edit_gives_back_what_was_being_written(stand_in_page: Page, stand_in: Any) -> None:
    page, message = stand_in_page, stand_in_page.locator("#message")
    ask(page, "one", 1)
    page.check("[value=continue]", force=True)
    page.fill("#message", "half a thought")
    page.get_by_role("button", name="Edit").click()
    expect(message).to_have_value("one")
    expect(page.locator("[value=chat]")).to_be_checked()
    page.keyboard.press("Escape")
    expect(message).to_have_value("half a thought")
    expect(page.locator("[value=continue]")).to_be_checked()
    page.get_by_role("button", name="Edit").click()
    ask(page, "uno", 1)
    expect(page.locator(".turn .prompt")).to_have_text("uno")
    expect(message).to_have_value("half a thought")
    page.get_by_role("button", name="Edit").click()
    page.click("#new")
    expect(page.locator(".turn")).to_have_count(0)
    expect(message).to_have_value("half a thought")


def test_an_edit_outlives_what_another_tab_adds(stand_in_page: Page, stand_in: Any) -> None:
    one = stand_in_page
    ask(one, "First", 1)
    other = one.context.new_page()
    other.goto(ORIGIN)
    other.wait_for_selector(READY)
    other.locator("#chat-list .open").click()
    expect(other.locator(".turn")).to_have_count(1)
    one.get_by_role("button", name="Edit").click()
    one.fill("#message", "Uno")
    ask(other, "Second", 2)
    expect(one.locator(".turn")).to_have_count(2)
    expect(one.locator("#editing")).to_be_visible()
    expect(one.locator("#message")).to_have_value("Uno")
    one.focus("#message")
    one.keyboard.press("Enter")
    expect(one.locator(".turn .prompt")).to_have_text(["Uno"])
    expect(one.locator(".steps")).to_contain_text("2/2")
    expect(other.locator(".turn .prompt")).to_have_text(["Uno"])
    other.locator("#chat-list .open").focus()
    one.get_by_role("button", name="Edit").click()
    other.keyboard.press("Delete")
    expect(one.locator(".turn")).to_have_count(0)
    expect(one.locator("#editing")).to_be_hidden()  # of what is no longer there


def rename(page: Page, name: str) -> None:
    """Name the conversation on top of the list."""
    page.locator("#chat-list .open").first.focus()
    page.keyboard.press("F2")
    page.keyboard.type(name)


def send(page: Page, text: str) -> None:
    """Send a message whose answer is held."""
    page.fill("#message", text)
    page.keyboard.press("Enter")
    expect(page.locator("#send")).to_have_text("Stop")


# A disk that is slow: what is written is told of once the test says so.
SLOW_DISK = """() => {
  const told = Object.getOwnPropertyDescriptor(IDBTransaction.prototype, "oncomplete");
  window.held = [];
  Object.defineProperty(IDBTransaction.prototype, "oncomplete", {
    ...told,
    set(tell) {
      told.set.call(this, () => (window.held === null ? tell() : window.held.push(tell)));
    },
  });
}"""
FIRST_WRITTEN = """async (count) => {
  for (const tell of window.held.splice(0, count)) tell();
  await new Promise((told) => setTimeout(told));
}"""
WRITTEN = """() => {
  const held = window.held;
  window.held = null;
  for (const tell of held) tell();
}"""


def test_an_answer_is_on_the_disk_before_the_page_says_that_it_is_over(
    stand_in_page: Page,
) -> None:
    page = stand_in_page
    page.evaluate(SLOW_DISK)
    page.fill("#message", "one")
    page.keyboard.press("Enter")
    page.wait_for_selector("#phase[data-phase=done]")
    wait_until(page, "window.held.length > 1")  # the question's, and the answer's
    assert page.locator("#send").inner_text() == "Stop"
    page.evaluate(WRITTEN)
    expect(page.locator("#send")).to_have_text("Send")
    reload(page)
    expect(page.locator(".turn .answer")).to_have_text("Hello.")


def test_a_slow_disk_keeps_nobody_from_the_next_answer(stand_in_page: Page, stand_in: Any) -> None:
    page = stand_in_page
    page.evaluate(SLOW_DISK)
    page.fill("#message", "one")
    page.keyboard.press("Enter")
    page.wait_for_selector("#phase[data-phase=done]")
    page.keyboard.press("ArrowUp")
    assert page.input_value("#message") == "one"
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".steps")).to_contain_text("2/2")
    page.evaluate(WRITTEN)
    expect(page.locator("#send")).to_have_text("Send")
    assert len(stand_in.requests) == 2
    reload(page)
    expect(page.locator(".steps")).to_contain_text("2/2")


def test_a_slow_disk_keeps_nobody_from_the_next_message(stand_in_page: Page, stand_in: Any) -> None:
    page = stand_in_page
    page.evaluate(SLOW_DISK)
    page.fill("#message", "one")
    page.keyboard.press("Enter")
    page.wait_for_selector("#phase[data-phase=done]")
    wait_until(page, "window.held.length > 1")  # the question's, and the answer's
    of_the_first = page.evaluate("window.held.length")
    page.fill("#message", "two")
    page.keyboard.press("Enter")
    expect(page.locator(".turn [data-phase=done]")).to_have_count(2)
    wait_until(page, f"window.held.length > {of_the_first} + 1")
    page.evaluate(FIRST_WRITTEN, of_the_first)
    assert page.locator("#send").inner_text() == "Stop"  # the second answer is not kept yet
    page.evaluate(WRITTEN)
    expect(page.locator("#send")).to_have_text("Send")
    assert len(stand_in.requests) == 2


def test_a_name_outlives_the_next_answer(stand_in_page: Page, stand_in: Any) -> None:
    page = stand_in_page
    ask(page, "one", 1)
    rename(page, "Mine")
    page.keyboard.press("Enter")
    expect(names(page)).to_have_text(["Mine"])
    ask(page, "two", 2)
    reload(page)
    expect(names(page)).to_have_text(["Mine"])
    expect(page.locator(".turn")).to_have_count(2)


def test_a_name_given_while_an_answer_ends_loses_nothing(
    stand_in_page: Page, stand_in: Any
) -> None:
    page = stand_in_page
    ask(page, "one", 1)
    stand_in.hold = True
    send(page, "two")
    rename(page, "Mine")
    stand_in.release()
    expect(page.locator("#send")).to_have_text("Send")
    page.keyboard.press("Enter")
    expect(names(page)).to_have_text(["Mine"])
    reload(page)
    expect(page.locator(".turn .answer")).to_have_text(["Hello.", "Hello."])


def test_what_is_deleted_while_it_is_answered_stays_deleted(
    stand_in_page: Page, stand_in: Any
) -> None:
    page = stand_in_page
    stand_in.hold = True
    send(page, "one")
    page.locator("#chat-list .open").focus()
    page.keyboard.press("Delete")
    expect(page.locator("#send")).to_have_text("Send")  # it was stopped
    expect(page.locator(".turn")).to_have_count(0)
    stand_in.hold = False
    ask(page, "two", 1)
    expect(names(page)).to_have_text(["two"])
    page.get_by_role("button", name="Undo").click()
    expect(names(page)).to_have_count(2)
    expect(page.locator(".turn .prompt")).to_have_text("one")


def test_a_page_closed_in_the_middle_keeps_what_came(page: Page, paced: Callable[..., Any]) -> None:
    server = paced(tokens_per_second=20, context=100_000)
    page.goto(server.url)
    page.wait_for_selector(READY)
    page.click("#open-settings")
    page.fill("#parameters [name=max_tokens]", "90000")
    page.click("#settings .primary")
    send(page, "a long story")
    expect(names(page)).to_have_text(["a long story"])  # it is kept from the first moment
    answered = """async () => {
      const { Library } = await import("/library.js");
      const [record] = await (await Library.open()).list();
      return record.turns[0].answer.length;
    }"""
    while page.evaluate(answered) == 0:
        page.wait_for_timeout(100)
    reload(page)
    expect(page.locator(".turn .prompt")).to_have_text("a long story")
    expect(page.locator(".turn .answer")).not_to_be_empty()
    expect(page.locator(".turn .facts")).to_contain_text("unfinished")


def test_a_turn_that_ended_elsewhere_is_not_undone(workbench: Page) -> None:
    """Another tab that has read half an answer does not keep that half in place of the whole."""
    found = workbench.evaluate(
        """async () => {
          const { Conversation } = await import("/conversation.js");
          const ours = new Conversation();
          const turn = ours.add("chat", "one");
          turn.answer = "half";
          const theirs = Conversation.from(structuredClone(ours.record));
          Object.assign(turn, { answer: "whole", finish: "stop" });
          theirs.add("chat", "two");
          theirs.merge(structuredClone(ours.record));
          ours.merge(structuredClone(theirs.record));
          return [ours, theirs].map((it) => it.record.turns.map((turn) => turn.answer));
        }"""
    )
    assert found == [["whole", ""], ["whole", ""]]


FULL = """full => {
  const put = IDBObjectStore.prototype.put;
  window.full = full;
  IDBObjectStore.prototype.put = function (record) {
    if (window.full) throw new DOMException("the disk is full", "QuotaExceededError");
    return put.call(this, record);
  };
}"""


def test_a_browser_that_keeps_no_more_is_said(
    stand_in_page: Page, stand_in: Any, tmp_path: Path
) -> None:
    page = stand_in_page
    ask(page, "one", 1)
    page.evaluate(FULL, True)
    page.click("#new")
    ask(page, "two", 1)
    expect(page.locator("#keep-error")).to_contain_text("the disk is full")
    page.click("#new")
    expect(page.locator(".turn")).to_have_count(0)
    expect(names(page)).to_have_text(["two", "one"])
    with page.expect_download() as download:
        page.click("#export")
    download.value.save_as(tmp_path / "chats.json")
    assert len(json.loads((tmp_path / "chats.json").read_text())["conversations"]) == 2
    page.evaluate("() => { window.full = false; }")
    page.locator("#chat-list .open").last.focus()
    page.keyboard.press("Delete")  # makes room
    expect(page.locator("#keep-error")).to_be_empty()
    reload(page)
    expect(names(page)).to_have_text(["two"])


def test_files_hold_all_and_old_ones_are_read(
    stand_in_page: Page, stand_in: Any, tmp_path: Path
) -> None:
    page = stand_in_page
    two_chats(page, stand_in)
    page.get_by_role("button", name="Edit").click()
    ask(page, "Streams?", 1)
    with page.expect_download() as download:
        page.click("#export")
    file = tmp_path / "chats.json"
    download.value.save_as(file)
    page.set_input_files("#file", file)
    expect(names(page)).to_have_count(4)  # beside those that are there
    expect(page.locator(".steps")).to_contain_text("2/2")
    turns = [
        {"mode": "chat", "prompt": text, "answer": text.upper(), "finish": "stop"} for text in "ab"
    ]
    file.write_text(json.dumps({"format": "monolane-playground", "version": 1, "turns": turns}))
    page.set_input_files("#file", file)
    expect(page.locator(".turn .answer")).to_have_text(["A", "B"])


def test_what_was_exported_is_read_however_much_it_is(workbench: Page) -> None:
    found = workbench.evaluate(
        """async () => {
          const { readFile } = await import("/chat_file.js");
          const turns = [];
          for (let at = 0; at < 1001; at += 1) turns.push({ prompt: "p", answer: "a" });
          const one = { turns: [{ prompt: "p", answer: "a" }] };
          const conversations = [{ turns }, ...Array(1000).fill(one)];
          const file = { format: "monolane-playground", version: 2, conversations };
          const read = readFile(JSON.stringify(file));
          return [read.length, read[0].path.length];
        }"""
    )
    assert found == [1001, 1001]


def test_an_import_is_told_of_once(workbench: Page) -> None:
    """A list that is read anew for each of 400 conversations took a minute."""
    found = workbench.evaluate(
        """async () => {
          const { Library } = await import("/library.js");
          const { Conversation } = await import("/conversation.js");
          const library = await Library.open();
          let told = 0;
          library.onChange(() => (told += 1));
          const records = [];
          for (let at = 0; at < 5; at += 1) {
            const one = new Conversation();
            one.add("chat", `${at}`);
            records.push(one.record);
          }
          await library.putAll(records);
          const found = [told, (await library.list()).length];
          for (const { id } of records) await library.remove(id);
          return found;
        }"""
    )
    assert found == [1, 5]
