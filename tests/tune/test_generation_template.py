"""The training copy of a template: the same text, and marks that agree with our mask."""

from pathlib import Path

import pytest
import transformers

from monolane.errors import TextError
from monolane.text import DEFAULT_TEMPLATE, ChatTemplate, Tokenizer
from monolane.tune import ChatEncoder, marked_template

from .conftest import CHATS, TEMPLATES

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
PLAIN = [
    [{**m, "content": m["content"].replace("</s>", "x").replace("<|im_end|>", "y")} for m in c]
    for c in CHATS
]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("chat", [*CHATS, CHATS[1][:3], CHATS[1][:1]])
@pytest.mark.parametrize("opened", [False, True])
def test_both_render_the_same_text(name: str, chat: list[dict[str, str]], opened: bool) -> None:
    source = TEMPLATES[name] or DEFAULT_TEMPLATE
    texts = [
        ChatTemplate(text, special_tokens=TOKENS).render(chat, add_generation_prompt=opened)
        for text in (source, marked_template(source))
    ]
    assert texts[0] == texts[1] != ""


@pytest.mark.parametrize("chat", PLAIN)
def test_transformers_finds_our_mask(chat: list[dict[str, str]], template_folder: Path) -> None:
    """Two ways to the same tokens: marks in the rendered text here, ids of its fronts there."""
    tokenizer = Tokenizer.open(template_folder)
    assert tokenizer is not None
    assert tokenizer.eos_id is not None
    template = ChatTemplate.open(template_folder)
    ours = ChatEncoder(template, tokenizer, frozenset({tokenizer.eos_id})).encode(chat)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(template_folder / "tokenizer.json"),
        bos_token="<s>",
        eos_token="<|im_end|>" if tokenizer.eos_id == tokenizer.id_of("<|im_end|>") else "</s>",
    )
    found = theirs.apply_chat_template(
        chat,
        chat_template=marked_template(template.source),
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    assert found["input_ids"] == list(ours.ids)
    masks = list(zip(found["assistant_masks"], ours.spoken, found["input_ids"], strict=True))
    # ChatML's line break after the end token is between the marks; no model needs to learn it.
    after_end = [i for i, (mark, ours_, _) in enumerate(masks) if mark and not ours_]
    assert all(ours_ <= bool(mark) for mark, ours_, _ in masks)
    assert all(theirs.decode([masks[i][2]]) == "\n" for i in after_end)
    assert not after_end or "im_start" in template.source


def test_marks_that_are_there_stay() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert marked_template(source) == source


def test_a_template_that_rewrites_earlier_messages_raises() -> None:
    source = "{% for m in messages %}{{ m.content if loop.last else '' }}{% endfor %}"
    chat = [*CHATS[0], *CHATS[0]]
    with pytest.raises(TextError, match="refuses .* message 1: the template rewrites"):
        ChatTemplate(marked_template(source)).render(chat, add_generation_prompt=False)


def test_a_template_of_blocks_cannot_be_a_macro() -> None:
    with pytest.raises(TextError, match="got one with blocks"):
        marked_template("{% block a %}{% endblock %}")
