"""The channels of an answer in harmony's format: what is analysis, and that cuts change nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolane.text._harmony import MARKS, ChannelSplit

NEXT = "<|end|><|start|>assistant"
CALL = "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>"
THINKS, COMMENTS = "<|channel|>analysis<|message|>", "<|channel|>commentary"
CASES = [
    ("<|channel|>analysis<|message|>Hm.", "Hm.", ""),
    (
        f"<|channel|>analysis<|message|>Hm.{NEXT}<|channel|>final<|message|>Yes. \n",
        "Hm.",
        "Yes. \n",
    ),
    ("<|channel|>final<|message|>Yes.<|return|>", "", "Yes."),
    (
        THINKS + "a" + NEXT + COMMENTS + " to=functions.f <|constrain|>json<|message|>[1]<|call|>",
        "a",
        CALL + "[1]",
    ),
    (' to=functions.f<|channel|>commentary json<|message|>{"b": 1}', "", CALL + '{"b": 1}'),
    (
        f"{COMMENTS}<|message|>I look.{NEXT}{THINKS}b{NEXT} to=functions.f{COMMENTS}<|message|>[]",
        "b",
        "I look." + CALL + "[]",
    ),
    ("no channels", "", "no channels"),
    ("", "", ""),
    (" two", "", " two"),
    ("<|chan", "", "<|chan"),
    ("<|channel|>analy", "", ""),
    ("<|channel|>analysis<|message|>a <|en", "a <|en", ""),
    ("<|channel|>analysis<|message|>a <|endless|>", "a <|endless|>", ""),
    ("<|channel|>" + "x" * 400, "", "<|channel|>" + "x" * 400),
]


def split(*texts: str) -> tuple[str, str, bool]:
    reader = ChannelSplit()
    parts = [*(reader.push(text) for text in texts), reader.finish()]
    return "".join(x for x, _ in parts), "".join(x for _, x in parts), reader.begun


@pytest.mark.parametrize(("text", "thought", "content"), CASES)
def test_what_is_analysis_and_what_is_content(text: str, thought: str, content: str) -> None:
    assert split(text) == (thought, content, "analysis<|message|>" in text)
    assert split(*text) == split(text)


PARTS = (*MARKS, "analysis", "commentary", "final", " to=functions.f", "a", "<|", "|>", " ")


@given(st.lists(st.sampled_from(PARTS), max_size=12), st.data())
def test_cuts_change_nothing(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cut = data.draw(st.integers(0, len(text)))
    assert split(text[:cut], text[cut:]) == split(text) == split(*text)


def test_what_is_certain_leaves_at_once() -> None:
    reader = ChannelSplit()
    assert reader.push("<|channel|>analysis<|message|>Hm") == ("Hm", "")
    assert (reader.begun, reader.over) == (True, False)
    assert reader.push(f".{NEXT}<|channel|>final<|message|>Y") == (".", "Y")
    assert reader.over
