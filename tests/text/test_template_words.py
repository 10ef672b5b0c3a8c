"""A template is bounded by its words before it is compiled, and parsed once."""

import pytest

from monolane.errors import TextError
from monolane.text import ChatTemplate
from monolane.text._sandbox import _MOST_WORDS, Sandbox


def test_a_template_of_many_words_is_refused_before_it_is_parsed() -> None:
    """Each ``{{a}}`` is three words, and five characters of the million that there may be."""
    with pytest.raises(TextError, match=f"more than {_MOST_WORDS} words"):
        ChatTemplate("{{a}}" * 199_000)
    template = ChatTemplate("{{a}}" * (_MOST_WORDS // 3))
    assert template.variables == {"a"}


def test_a_long_text_is_one_word() -> None:
    assert ChatTemplate("x" * 900_000).render([{"role": "user", "content": "hi"}]) == "x" * 900_000


def test_a_template_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = Sandbox.parse
    monkeypatch.setattr(
        Sandbox, "parse", lambda self, source: parsed.append(source) or parse(self, source)
    )
    source = "{% set a = b %}{% for m in messages %}{{ m.content }}{{ a }}{% endfor %}"
    template = ChatTemplate(source)
    assert template.render([{"role": "user", "content": "hi"}], b="!") == "hi!"
    assert template.variables >= {"b", "messages"}
    assert parsed == [source]
