import json
from pathlib import Path

import pytest

from monolane.errors import ConfigError, TextError
from monolane.model import read_config
from monolane.tune import SftRecipe, chat_encoder, prepare_material, read_chats
from monolane.tune._material import trained_context

from .conftest import CHATS, DEMO, write_chats


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 3: expected JSON, got"),
        ("[1]", "line 3: expected an object with a list 'messages' .* got list"),
        ('{"text": "x"}', r"line 3: expected an object with a list 'messages' .* got \['text'\]"),
        ('{"messages": [], "tools": {}}', "line 3: tools: expected a list, got dict"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = write_chats(tmp_path / "chats.jsonl", CHATS[:1])
    path.write_text(path.read_text() + "\n" + line + "\n")
    with pytest.raises(TextError, match=message):
        list(read_chats(path))


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "line 2: expected at least one message, got an empty list"),
        ([{"role": "user", "content": 3}, CHATS[0][1]], "line 2: message 0: expected content"),
        (["hi"], "line 2: message 0: expected an object with role and content, got str"),
    ],
)
def test_a_chat_that_does_not_render_is_named(
    messages: list[object], message: str, tmp_path: Path
) -> None:
    path = write_chats(tmp_path / "chats.jsonl", [CHATS[0], messages])  # type: ignore[list-item]
    encoder = chat_encoder(DEMO, read_config(DEMO))
    with pytest.raises(TextError, match=message):
        prepare_material(path, encoder, 1024, SftRecipe())


def test_a_byte_order_mark_is_no_part_of_the_first_chat(tmp_path: Path) -> None:
    path = write_chats(tmp_path / "chats.jsonl", CHATS[:1])
    path.write_text(path.read_text(), encoding="utf-8-sig")
    [chat] = read_chats(path)
    assert list(chat.messages) == CHATS[0]


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="expected a file of JSON lines, got: No such file"):
        list(read_chats(tmp_path / "none.jsonl"))
    (tmp_path / "latin").write_bytes(b'{"messages": ["\xff"]}')
    with pytest.raises(TextError, match="expected JSON lines in UTF-8"):
        list(read_chats(tmp_path / "latin"))


def test_chats_that_are_too_long(tmp_path: Path) -> None:
    """Refused by default; left out or cut, and counted, where the recipe says so."""
    long = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "x y " * 90}]
    longer = [{"role": "user", "content": "q " * 200}, {"role": "assistant", "content": "a"}]
    path = write_chats(tmp_path / "chats.jsonl", [CHATS[0], long, longer])
    encoder = chat_encoder(DEMO, read_config(DEMO))
    with pytest.raises(TextError, match="line 2: expected at most 64 tokens, got .* set too_long"):
        prepare_material(path, encoder, 64, SftRecipe())
    dropped = prepare_material(path, encoder, 64, SftRecipe(too_long="drop"))
    assert (dropped.chats, dropped.dropped, dropped.cut) == (1, 2, 0)
    cut = prepare_material(path, encoder, 64, SftRecipe(too_long="cut", packing=False))
    # Of the third nothing would be left that the assistant says.
    assert (cut.chats, cut.dropped, cut.cut) == (2, 1, 1)
    [kept] = cut.rows[1].chats
    assert len(kept) == 64
    whole = encoder.encode(long)
    assert list(kept.ids) == list(whole.ids[:64])
    assert kept.spoken[-1]  # no end token was put where the answer does not end


def test_rows_are_not_longer_than_the_model() -> None:
    config = read_config(DEMO)
    assert trained_context(config, SftRecipe()) == 1024
    with pytest.raises(ConfigError, match="context: expected at most the model's 1024 tokens"):
        trained_context(config, SftRecipe(context=2048))


def test_other_fields_of_a_line_are_of_no_account(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": CHATS[0], "id": 7, "source": "x"}) + "\n")
    [chat] = read_chats(path)
    assert (chat.line, list(chat.messages), chat.tools) == (1, CHATS[0], None)
