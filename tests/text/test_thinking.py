"""The thinking part of an answer: where it begins and ends, and that cuts change nothing."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolane.text import (
    ChatTemplate,
    Thinking,
    ThinkingSplit,
    Tokenizer,
    find_thinking,
    thinking_switch,
)
from monolane.text._control_token_search import Spellings

ASKED = Thinking("<think>", "</think>")
OPENED = Thinking("<think>", "</think>", opened=True)
WRAPPED = Thinking("<think>", "</think>", answer=("<answer>", "</answer>"))
CLOSED = replace(WRAPPED, closed=True)
COMMAND = Thinking(
    "<|START_THINKING|>", "<|END_THINKING|>", answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>")
)
APRIEL = Thinking(
    "Here are my reasoning steps:",
    "[BEGIN FINAL RESPONSE]",
    opened=True,
    answer=("", "[END FINAL RESPONSE]"),
)
ANSWERS = [  # what follows a thinking part, and what of it is content
    ("\n<answer>\nb </b> \n</answer>\n", "b </b>"),
    ("<answer>b", "b"),
    ("<answer>b</ans", "b</ans"),
    ("<answer></answer>", ""),
    ("<answer>b</answer> \n<tool_call>", "b<tool_call>"),
    ("\nb</answer>", "b</answer>"),
    ("\n<ans", "<ans"),
]
CASES = [
    (ASKED, "no thought", "", "no thought"),
    (ASKED, "", "", ""),
    (ASKED, "  spaces stay \n", "", "  spaces stay \n"),
    (ASKED, "<think>\nHm, a < b.\n</think>\n\nYes. \n", "Hm, a < b.", "Yes. \n"),
    (ASKED, " \n<think>a</think>b", "a", "b"),
    (ASKED, "<think>\n\n</think>\n\nYes.", "", "Yes."),
    (ASKED, "<think>a", "a", ""),
    (ASKED, "<think>a \n", "a", ""),
    (ASKED, "<think> \n", "", ""),
    (ASKED, "<think>a</thi", "a</thi", ""),
    (ASKED, "<think>a</think>", "a", ""),
    (ASKED, "<think>a</think> \n ", "a", ""),
    (ASKED, "<think>a<think>b</think>c</think>", "a<think>b", "c</think>"),
    (ASKED, "<thi", "", "<thi"),
    (ASKED, "<thinking> aloud", "", "<thinking> aloud"),
    (ASKED, "The mark <think> begins it, </think> ends it.", "", None),
    (ASKED, " " * 100 + "<think>a</think>", "", None),
    (OPENED, "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
    (OPENED, "</think>Yes.", "", "Yes."),
    (OPENED, "never ends", "never ends", ""),
    (OPENED, "a\n\nb</think>c", "a\n\nb", "c"),
    (OPENED, "", "", ""),
    (ASKED, "</think>\n\nYes.", "", "Yes."),  # it says that it does not think
    (ASKED, "</thi", "", "</thi"),
    *((WRAPPED, f"<think>a</think>{said}", "a", answer) for said, answer in ANSWERS),
    *((CLOSED, said, "", answer) for said, answer in ANSWERS),
    (WRAPPED, "<answer>b</answer>", "", "<answer>b</answer>"),  # what somebody asked for
    (WRAPPED, "<think>a", "a", ""),
    (COMMAND, "<|START_RESPONSE|>b<|END_RESPONSE|>", "", "b"),
    (APRIEL, "So.\n[BEGIN FINAL RESPONSE]\nYes.\n[END FINAL RESPONSE]", "So.", "Yes."),
    (APRIEL, "So.\n[BEGIN FINAL RESPONSE]\nYes.", "So.", "Yes."),
]


def split(thinking: Thinking, *texts: str) -> tuple[str, str]:
    reader = ThinkingSplit(thinking)
    parts = [*(reader.push(text) for text in texts), reader.finish()]
    contents = [content for _, content in parts]
    # All thinking comes before all content.
    begun = next((i for i, content in enumerate(contents) if content), len(parts))
    assert not any(thought for thought, _ in parts[begun + 1 :])
    return "".join(thought for thought, _ in parts), "".join(contents)


@pytest.mark.parametrize(("thinking", "text", "thought", "content"), CASES)
def test_what_is_thinking_and_what_is_content(
    thinking: Thinking, text: str, thought: str, content: str | None
) -> None:
    expected = (thought, text if content is None else content)
    assert split(thinking, text) == expected
    assert split(thinking, *text) == expected


PARTS = (
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "<",
    "</",
    "think",
    ">",
    " ",
    "\n",
    "a",
    "Hm. ",
    "</think",
)


@given(
    thinking=st.sampled_from([ASKED, OPENED, WRAPPED, CLOSED]),
    text=st.lists(st.sampled_from(PARTS), max_size=10).map("".join),
    cuts=st.lists(st.integers(0, 80), max_size=8),
)
def test_cuts_change_nothing(thinking: Thinking, text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in pairwise(places)]
    whole = split(thinking, text)
    assert split(thinking, *pieces) == whole


def test_thoughts_leave_while_they_are_written() -> None:
    reader = ThinkingSplit(ASKED)
    assert reader.push("<think>\nFirst ") == ("First", "")
    assert reader.push("then <") == (" then", "")
    assert reader.push("b></") == (" <b>", "")
    assert not reader.over
    assert reader.push("think>\n\nSo ") == ("", "So ")
    assert reader.over
    assert reader.push("it is.\n") == ("", "it is.\n")


def test_long_thoughts_take_linear_time() -> None:
    # Quadratic work on a megabyte would take minutes.
    for text in ("</think" * 150_000, " a" * 500_000, "<" * 1_000_000):
        reader = ThinkingSplit(OPENED)
        parts = [reader.push(text[i : i + 100]) for i in range(0, len(text), 100)]
        assert "".join(thought for thought, _ in [*parts, reader.finish()]) == text.lstrip()


@pytest.mark.parametrize(
    ("source", "tail", "thinking"),
    [
        ("<|inner_prefix|>", "", Thinking("<|inner_prefix|>", "<|inner_suffix|>")),  # Apertus
        ("<|channel>thought", "", Thinking("<|channel>thought", "<channel|>")),  # Gemma 4
        ("<|channel>thought", "<|channel>thought\n<channel|>", None),
        ("<mm:think>", "<mm:think>", Thinking("<mm:think>", "</mm:think>", opened=True)),
        ("<think> content.split('</answer>')", "", WRAPPED),  # Hunyuan
        ("<think> content.split('</answer>')", "<think>\n\n</think>\n", CLOSED),
        # Granite is asked for marks; MiniMax-M2 has results of tools in them.
        (
            "<think></think>, <response></response>",
            "",
            Thinking("<think>", "</think>", answer=("<response>", "</response>")),
        ),
        ("<think> <response>\n", "", Thinking("<think>", "</think>")),
        ("<|START_THINKING|> <|START_RESPONSE|>", "", COMMAND),
        ("<|START_THINKING|> <|START_RESPONSE|>", COMMAND.end, replace(COMMAND, closed=True)),
        ("[BEGIN FINAL RESPONSE]", "Here are my reasoning steps:\n", APRIEL),
    ],
)
def test_marks_are_found_in_the_template(source: str, tail: str, thinking: Thinking | None) -> None:
    tokenizer = SimpleNamespace(
        control_spellings=Spellings(()), decode=lambda _, skip_special_tokens: tail
    )
    found = find_thinking(ChatTemplate(f"{{# {source} #}}"), cast(Tokenizer, tokenizer), ())
    assert found == thinking


@pytest.mark.parametrize(
    ("source", "switch"),
    [
        (
            "{% if enable_thinking is defined and not enable_thinking %}x{% endif %}",
            "enable_thinking",
        ),
        (
            "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ thinking }}",
            "thinking",
        ),
        ("{% for message in messages %}{{ message.thinking }}{% endfor %}", None),
        ("{# enable_thinking #}{{ messages }}", None),
        ("{% set enable_thinking = true %}{{ enable_thinking }}", None),
    ],
)
def test_the_switch_is_a_variable_that_the_template_reads(source: str, switch: str | None) -> None:
    assert thinking_switch(ChatTemplate(source)) == switch
