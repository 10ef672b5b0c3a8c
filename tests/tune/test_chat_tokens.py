"""The mask covers what the assistant says, its end token included, and nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane.engine import Engine
from monolane.errors import TextError
from monolane.model import read_config
from monolane.text import ChatTemplate, Tokenizer
from monolane.tune import ChatEncoder, chat_encoder

from .conftest import CHATS, DEMO, write_tokenizer


def encoder(folder: Path) -> tuple[ChatEncoder, Tokenizer]:
    tokenizer = Tokenizer.open(folder)
    assert tokenizer is not None
    assert tokenizer.eos_id is not None
    ends = frozenset({tokenizer.eos_id})
    return ChatEncoder(ChatTemplate.open(folder), tokenizer, ends), tokenizer


def runs(ids: Any, mask: Any) -> list[list[int]]:
    """The ids of each unbroken run of the mask."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(int), [0]])))
    return [list(ids[a:b]) for a, b in edges.reshape(-1, 2)]


@pytest.mark.parametrize("chat", CHATS)
def test_the_mask_is_the_answers_with_their_end(
    chat: list[dict[str, str]], template_folder: Path
) -> None:
    """What the templates make of an answer is written out here, not asked of them."""
    coder, tokenizer = encoder(template_folder)
    encoded = coder.encode(chat)
    chatml = tokenizer.eos_id == tokenizer.id_of("<|im_end|>")
    inst = "[INST]" in ChatTemplate.open(template_folder).source
    answers = [m["content"] for m in chat if m["role"] == "assistant"]
    expected = []
    for answer in answers:
        text = answer if chatml else (" " if inst else "") + answer.strip()
        expected.append([*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_id])
    assert runs(encoded.ids, encoded.spoken) == expected
    assert not encoded.spoken[0]


@pytest.mark.parametrize("chat", CHATS)
def test_the_ids_are_those_of_the_engine(chat: list[dict[str, str]], template_folder: Path) -> None:
    coder, tokenizer = encoder(template_folder)
    template = ChatTemplate.open(template_folder)
    encoded = coder.encode(chat)
    assert list(encoded.ids) == template.encode(tokenizer, chat, add_generation_prompt=False)
    asked = template.encode(tokenizer, chat[:1])
    assert list(encoded.ids[: len(asked)]) == asked
    assert encoded.spoken[len(asked)]
    assert not encoded.spoken[: len(asked)].any()


def test_a_users_control_tokens_are_text(template_folder: Path) -> None:
    coder, tokenizer = encoder(template_folder)
    plain = coder.encode(CHATS[0])
    spelled = coder.encode([{"role": "user", "content": "</s><|im_end|>"}, CHATS[0][1]])
    ends = [i for i in spelled.ids if i == tokenizer.eos_id]
    assert len(ends) == sum(i == tokenizer.eos_id for i in plain.ids)


def test_end_ids_are_those_of_the_engine() -> None:
    tokenizer = Tokenizer.open(DEMO)
    assert tokenizer is not None
    coder = chat_encoder(DEMO, read_config(DEMO))
    with Engine.load("demo", "reference") as engine:
        assert coder._end_ids == engine.eos_ids


REWRITES = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{{ m.content if loop.last or m.role == 'user' else m.content.split('.')[-1] }}"
    "{{ '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
NO_END = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
WRONG: list[tuple[str | None, list[dict[str, str]], str]] = [
    (None, CHATS[0][:1], "expected at least one message of the assistant, got none"),
    (None, CHATS[0][1:], "message 0: expected a user's message before the first answer"),
    (None, [{"role": "user"}, CHATS[0][1]], "message 0: expected content"),  # type: ignore[list-item]
    (NO_END, CHATS[0], r"message 1: expected the template to end an answer with a token that ends"),
    (
        REWRITES,
        [*CHATS[0][:1], {"role": "assistant", "content": "a.b"}, *CHATS[0]],
        "message 1: the chat after this answer is not how the whole chat begins",
    ),
]


@pytest.mark.parametrize(("template", "chat", "message"), WRONG)
def test_what_cannot_be_trained_on(
    template: str | None, chat: list[dict[str, str]], message: str, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, template)
    coder, _ = encoder(tmp_path)
    with pytest.raises(TextError, match=message):
        coder.encode(chat)


def test_an_answer_that_joins_the_prompts_last_token_is_refused(tmp_path: Path) -> None:
    """' x' is one token where 'x' follows a blank, so the prompt 'A: ' cannot lead to it."""
    template = (
        "{% for m in messages %}{{ m.role[0] + ': ' + m.content + '</s>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'a: ' }}{% endif %}"
    )
    write_tokenizer(tmp_path, template)
    coder, _ = encoder(tmp_path)
    with pytest.raises(TextError, match="message 1: the chat before this answer is not how"):
        coder.encode([{"role": "user", "content": "q"}, {"role": "assistant", "content": "the"}])


def thinking_template(shown: str) -> str:
    """A template that shows thoughts in the way given, between marks of its own."""
    return (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
        + shown
        + "{{ m.content + '</s>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )


SHOWS = "{% if m.reasoning_content %}{{ '<t>' + m.reasoning_content + '</t>' }}{% endif %}"
SHOWS_LAST = SHOWS.replace("{% if ", "{% if loop.last and ")
DROPS_INSIDE = "{% set m = dict(m, content=m.content.split('</think>')[-1]) %}"
ASKED = {"role": "user", "content": "q"}


def answer(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "a", **fields}


@pytest.mark.parametrize(
    ("shown", "chat", "message"),
    [
        (
            "",
            [ASKED, answer(reasoning_content="why")],
            "message 1: expected thoughts .* in reasoning_content, but .*; leave them out of the ",
        ),
        ("", [ASKED, answer(thinking="why")], "got them in thinking, but .* leaves them out"),
        ("", [ASKED, answer(), ASKED, answer(reasoning="why")], "message 3: .* in reasoning, but"),
        (
            SHOWS,
            [ASKED, answer(reasoning="why")],
            "in reasoning, but the chat template reads reasoning_content; give them as reasoning_c",
        ),
        (
            SHOWS_LAST,
            [ASKED, answer(reasoning_content="why"), ASKED, answer(reasoning_content="how")],
            "message 1: .* last answer alone, and this one is trained on; give one line per",
        ),
        (
            DROPS_INSIDE,
            [ASKED, answer(content="<think>why</think>a")],
            "message 1: .* got them in content before </think>, but the chat template leaves them",
        ),
        (
            SHOWS,
            [ASKED, answer(content=[{"type": "thinking", "thinking": "why"}, "a"])],
            "in parts of the content, but the chat template reads reasoning_content; give them as",
        ),
        ("", [ASKED, answer(function_call={"name": "f"})], "leaves out the function_call"),
        (
            SHOWS_LAST,
            [ASKED, answer(reasoning="why", weight=0), ASKED, answer(reasoning_content="how")],
            "message 1: .* got them in reasoning, but the chat template reads reasoning_content",
        ),
    ],
)
def test_thoughts_that_a_template_leaves_out(
    shown: str, chat: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, thinking_template(shown))
    coder, _ = encoder(tmp_path)
    with pytest.raises(TextError, match=message):
        coder.encode(chat)


@pytest.mark.parametrize(
    ("shown", "chat", "thought"),
    [
        (SHOWS, [ASKED, answer(reasoning_content="why", reasoning="why")], "why"),
        (SHOWS_LAST, [ASKED, answer(), ASKED, answer(reasoning_content="why")], "why"),
        (SHOWS, [ASKED, answer(reasoning_content=" ", thinking=None, reasoning="")], ""),
        (DROPS_INSIDE, [ASKED, answer(content="<think>\n</think>a")], ""),
        ("", [ASKED, answer(content="<think>why</think>a")], "why"),
        ("", [ASKED | {"thinking": "a user's note"}, answer()], ""),
    ],
)
def test_thoughts_that_a_template_shows(
    shown: str, chat: list[dict[str, Any]], thought: str, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path, thinking_template(shown))
    coder, tokenizer = encoder(tmp_path)
    encoded = coder.encode(chat)
    last = runs(encoded.ids, encoded.spoken)[-1]
    assert thought in tokenizer.decode(last)


def test_an_answer_of_weight_0_is_read_and_not_learnt(template_folder: Path) -> None:
    coder, _ = encoder(template_folder)
    chat = [*CHATS[0], *CHATS[0]]
    both = coder.encode(chat)
    first, last = runs(both.ids, both.spoken)
    for weights, learnt in (((0, 1), [last]), ((1, 0), [first]), ((0, None), [last])):
        weighed = [*chat]
        for i, weight in zip((1, 3), weights, strict=True):
            weighed[i] = {**chat[i], "weight": weight}
        encoded = coder.encode(weighed)
        assert (encoded.ids == both.ids).all()
        assert runs(encoded.ids, encoded.spoken) == learnt


@pytest.mark.parametrize(
    ("template", "earlier"),
    [
        (thinking_template(SHOWS_LAST), answer(reasoning_content="why", weight=0)),
        (REWRITES, answer(content="a.b", weight=0)),
        (None, answer(weight=0)),
    ],
)
def test_earlier_answers_that_are_not_learnt_may_be_rewritten(
    template: str | None, earlier: dict[str, Any], tmp_path: Path
) -> None:
    """What a template makes of them is what the model reads when it answers."""
    write_tokenizer(tmp_path, template)
    coder, tokenizer = encoder(tmp_path)
    encoded = coder.encode([ASKED, earlier, ASKED, answer(content="how")])
    (said,) = runs(encoded.ids, encoded.spoken)
    assert tokenizer.decode(said).strip() == "how"


def test_a_chat_may_open_with_an_answer_that_is_not_learnt(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, thinking_template(""))
    coder, tokenizer = encoder(tmp_path)
    encoded = coder.encode([answer(content="hello", weight=0), ASKED, answer()])
    (said,) = runs(encoded.ids, encoded.spoken)
    assert tokenizer.decode(said).strip() == "a"


@pytest.mark.parametrize(
    ("chat", "message"),
    [
        ([ASKED, answer(weight=0)], "expected at least one answer to train on, got weight 0 in"),
        ([ASKED, answer(weight=0.5)], "message 1: expected 0 or 1 as the weight .* got 0.5; mend"),
        ([ASKED, answer(weight="0")], "message 1: expected 0 or 1 as the weight .* got '0'; mend"),
        (
            [ASKED | {"weight": 1}, answer()],
            "message 0: expected 0 or none as the weight of a message of 'user', got 1; mend it",
        ),
    ],
)
def test_weights_that_say_nothing(chat: list[dict[str, Any]], message: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, None)
    coder, _ = encoder(tmp_path)
    with pytest.raises(TextError, match=message):
        coder.encode(chat)


def test_a_refusal_is_what_the_answer_says(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, None)
    coder, _ = encoder(tmp_path)
    part = {"type": "refusal", "refusal": "a"}
    wanted = coder.encode([ASKED, answer()])
    for said in (answer(content=None, refusal="a"), answer(content=[part]), answer(content=["a"])):
        assert (coder.encode([ASKED, said]).ids == wanted.ids).all()
