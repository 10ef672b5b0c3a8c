"""Rendered text and ids against Transformers' own, on templates in the styles of known models."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolane.text import DEFAULT_TEMPLATE, ChatTemplate, Tokenizer

transformers = pytest.importorskip("transformers", reason="needs the extra 'hf'")

Chat = list[dict[str, Any]]
TEMPLATES = {
    "default": DEFAULT_TEMPLATE,
    "chatml": """{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "inst": """{{ bos_token }}{% for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'].strip() + ' [/INST]' }}
    {%- elif message['role'] == 'system' %}
        {{- raise_exception('no system') if loop.index0 > 0 else '<<SYS>>' ~ message.content }}
    {%- else %}
        {{- ' ' + message['content'] | trim + eos_token }}
    {%- endif %}
{%- endfor %}""",
    "methods": """{%- for message in messages %}
{%- set text = message.content.replace('e', 'ee').replace('  ', ' ', 1) %}
{{- '%s|%-5s' % (loop.index, text) }}{{ '{}:{:>4}'.format(loop.index, message.role) }}
{{- ', '.join([text, text | upper]) }}{{ text.center(20) ~ text | length }}{{ text | indent(2) }}
{%- for word in text.split() if word | length > 2 %}{{ word | title }}{% else %}none{% endfor %}
{%- set block %}{{ text | replace('t', 'T') }}{% endset %}{{ block }}{{ [1, 2] + [3] }}{{ -7 % 3 }}
{{- {'a': (1, 2), 'b': none} }}{{ dict(a=1) | items | list }}{{ 2 ** 5 * 3 }}{{ 'ab' * 2 }}
{{- ['b', 'a'] | sort | join('+') }}{{ messages | map(attribute='role') | list }}
{{- messages | selectattr('role', 'equalto', 'user') | list | length }}{{ loop.nextitem is none }}
{%- endfor %}""",
    "tools": """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{ tool | tojson }}{{ tool | tojson(indent=2) }}{% endfor %}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, seen=[]) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- set ns.seen = ns.seen + [message.role] %}
    {%- if message.role == 'user' and not message.content.startswith('x') %}
        {%- set ns.last = index %}{% break %}
    {%- endif %}
{%- endfor %}
{%- macro turn(m, first=false) -%}
    {% generation %}<|im_start|>{{ m.role | upper }}{{ first }}: {{ m.content.split('.')[-1] }}
{% endgeneration %}
{%- endmacro %}
{%- for message in messages %}
    {{- turn(message, first=loop.first) }}{{ ns.last }}{{ ns.seen | join(',') }}
{%- endfor %}""",
}
CHATS: list[Chat] = [
    [{"role": "user", "content": "hi"}],
    [
        {"role": "system", "content": " the cat. "},
        {"role": "user", "content": "  über\n\n"},
        {"role": "assistant", "content": "x <b> & 🙂 "},
        {"role": "user", "content": "the end."},
    ],
]
TOOLS = [{"type": "function", "function": {"name": "é<'\">", "parameters": {"b": 1, "a": [2.5]}}}]
WORDS = st.lists(st.sampled_from(["the", " ", "\n", "é", "<", "|", "x", ".", "日", "{{ x }}"]))


@pytest.fixture(scope="module", params=["llama_folder", "byte_folder"])
def pair(request: pytest.FixtureRequest) -> tuple[Any, Tokenizer]:
    folder: Path = request.getfixturevalue(request.param)
    # tokenizer.json as it is: LlamaTokenizer in the settings would rebuild another normalizer.
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    )
    ours = Tokenizer.open(folder)
    assert ours is not None
    return theirs, ours


def _render(theirs: Any, source: str, chat: Chat, **options: Any) -> str:
    text = theirs.apply_chat_template(chat, chat_template=source, tokenize=False, **options)
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS, ids=["one", "several"])
@pytest.mark.parametrize("prompt", [True, False])
def test_same_text_and_ids(
    pair: tuple[Any, Tokenizer], name: str, chat: Chat, prompt: bool
) -> None:
    theirs, ours = pair
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    template = ChatTemplate(TEMPLATES[name], special_tokens=special)
    text = _render(theirs, TEMPLATES[name], chat, tools=TOOLS, add_generation_prompt=prompt)
    assert template.render(chat, tools=TOOLS, add_generation_prompt=prompt) == text
    if ours.bos_id == 1:  # the other vocabulary has no <s>: there Transformers added one
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert template.encode(ours, chat, tools=TOOLS, add_generation_prompt=prompt) == ids


@given(contents=st.lists(WORDS.map("".join).filter(len), min_size=1, max_size=3))
def test_same_text_whatever_is_said(pair: tuple[Any, Tokenizer], contents: list[str]) -> None:
    theirs, _ = pair
    chat = [{"role": "user", "content": content} for content in contents]
    for source in (DEFAULT_TEMPLATE, TEMPLATES["chatml"]):
        text = _render(theirs, source, chat, add_generation_prompt=True)
        assert ChatTemplate(source).render(chat) == text


@pytest.mark.parametrize("name", ["default", "chatml"])
@pytest.mark.parametrize("said", ["so", "so  ", " so\n"])
def test_same_continuation(pair: tuple[Any, Tokenizer], name: str, said: str) -> None:
    theirs, _ = pair
    chat = [*CHATS[0], {"role": "assistant", "content": said}]
    text = _render(theirs, TEMPLATES[name], chat, continue_final_message=True)
    assert ChatTemplate(TEMPLATES[name]).render(chat, continue_final=True) == text
