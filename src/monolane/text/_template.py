"""Turns chat messages into the text, or the token ids, that a model was trained to answer.

The folder's own Jinja template does it, as in Transformers, but the template is a stranger's
program and the messages are a stranger's text: the first runs in a sandbox with a budget, and the
second never becomes a control token, whatever it spells.

Jinja is imported by the first template, not with this module: it takes as long as all of Python's
own start, and a text that is only to be continued needs none.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from monolane.errors import TextError
from monolane.text._files import named_token, read_settings, read_text
from monolane.text._gguf import GgufText
from monolane.text._messages import is_thought, joined_texts, plain, plain_messages
from monolane.text._tokenizer import Tokenizer
from monolane.text._untrusted_spans import Marks

if TYPE_CHECKING:
    from jinja2 import Template

# The released convention: a header, a blank line, the trimmed content, </s>. System messages are
# not part of it and are left out.
DEFAULT_TEMPLATE = """\
{%- for message in messages if message.role in ('user', 'assistant') -%}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' -}}
{%- if message.content is string -%}
{{- message.content | trim -}}
{%- else -%}
{{- message.content | map(attribute='text') | join | trim -}}
{%- endif -%}
{{- '</s>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
{%- endif -%}
"""
_LONGEST = 1_000_000  # characters of a template; the longest in use have about 30,000
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
# Developers and models write these: they may use <think> and the like, see ChatTemplate.encode.
_TRUSTED = ("assistant", "system", "developer")
# Ends the last message while it is rendered. The space tells whether the template trims.
_END = "\ufdefend\ufdef "
_PROBE = ("first-part-3f1c", "second-part-9b27")  # texts that no template has of its own
_ROLES = ("user", "assistant")


class ChatTemplate:
    """One chat template; immutable, and safe to share between threads."""

    def __init__(
        self,
        source: str = DEFAULT_TEMPLATE,
        *,
        special_tokens: Mapping[str, str] = MappingProxyType({}),
        name: str = "chat template",
        tool_use: "ChatTemplate | None" = None,
        found: bool = True,
        begins: bool = False,
    ) -> None:
        """Compile the template; TextError when it is no Jinja.

        ``special_tokens`` are what ``bos_token`` and the like stand for; ``name`` is for messages.
        ``variables`` are the names that the template reads and that a caller may set. ``for_tools``
        is the template of chats with tools: ``tool_use``, or this one. ``found``: the model's files
        hold it. ``begins``: a chat begins with one bos, whether the template writes it or not.
        """
        if len(source) > _LONGEST:
            raise TextError(f"{name}: expected at most {_LONGEST} characters, got {len(source)}")
        self.source = source
        self.is_default = source == DEFAULT_TEMPLATE
        self.for_tools: ChatTemplate = tool_use or self
        self.found = found and not self.is_default
        self._begins = begins
        self._name = name
        self._characters = frozenset(source)
        self._special_tokens = dict(special_tokens)
        self._compiled, self.variables = _compile(source, name)
        self._ends: tuple[Tokenizer, frozenset[int]] | None = None  # found once

    @staticmethod
    def open(folder: Path) -> "ChatTemplate":
        """Return the folder's template, or the default where it has none.

        chat_template.jinja comes before ``chat_template`` of tokenizer_config.json, of which a
        list gives its template "default". One for chats with tools is named "tool_use" there, or
        stands in additional_chat_templates. TextError names a file that is malformed.
        """
        settings = read_settings(folder)
        found = ((key, named_token(settings, key, folder)) for key in _TOKENS)
        tokens = {key: token for key, token in found if token is not None}
        path = folder / "chat_template.jinja"
        more = folder / "additional_chat_templates" / "tool_use.jinja"
        if path.is_file():
            tools = None
            if more.is_file():
                tools = ChatTemplate(read_text(more), special_tokens=tokens, name=more.name)
            source = read_text(path)
            return ChatTemplate(source, special_tokens=tokens, name=path.name, tool_use=tools)
        named = _listed(settings.get("chat_template"), folder)
        if named is None:
            return ChatTemplate(special_tokens=tokens)
        name, tools, second = "tokenizer_config.json", None, named.get("tool_use")
        if isinstance(second, str):
            tools = ChatTemplate(second, special_tokens=tokens, name=f"{name}, tool_use")
        return ChatTemplate(named["default"], special_tokens=tokens, name=name, tool_use=tools)

    @staticmethod
    def of_gguf(text: GgufText) -> "ChatTemplate":
        """Return the template in a GGUF file's metadata, or the default where it has none."""
        found = ((key, text.settings.get(key)) for key in _TOKENS)
        tokens = {key: token for key, token in found if token is not None}
        source = text.settings["chat_template"]
        if source is None:
            return ChatTemplate(special_tokens=tokens)
        name, tools = f"{text.path.name}: tokenizer.chat_template", None
        # llama.cpp takes a template's own bos away, and encodes the rest with the file's.
        begins = bool(text.settings["add_bos_token"])
        named = _listed(source, text.path) or {}
        if isinstance(second := named.get("tool_use"), str):
            tools = ChatTemplate(
                second, special_tokens=tokens, name=f"{name}.tool_use", begins=begins
            )
        return ChatTemplate(
            named["default"], special_tokens=tokens, name=name, tool_use=tools, begins=begins
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """Return the text of the chat, as Transformers' ``apply_chat_template`` does.

        ``continue_final`` leaves the last message open for the model to go on with; it must be the
        assistant's, and no generation prompt is added. ``kwargs`` are further variables.
        TextError: malformed messages, a template that refuses them, fails or runs away.
        """
        chat = self._chat(messages)
        extra = self._extra(tools, kwargs)
        return self._run(chat, extra, add_generation_prompt, continue_final)

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Return the ids of the rendered chat, control tokens from the template alone.

        Special tokens that any message, tool or variable spells are encoded as text. So are the
        other control tokens (added tokens in brackets), except where assistant, system and
        developer messages and tools spell them: ``<think>`` in a replayed answer is that token
        again. A chat of a folder begins as its template says, one of a GGUF file with the bos that
        the file asks for. TextError as for ``render``.
        """
        chat = self._chat(messages)
        extra = self._extra(tools, kwargs)
        marks = Marks([chat, extra], self._characters)
        special, control = tokenizer.special_spellings, tokenizer.control_spellings
        chat = [marks.put(m, special if m["role"] in _TRUSTED else control) for m in chat]
        extra = {
            key: marks.put(value, special if key == "tools" else control)
            for key, value in extra.items()
        }
        text = self._run(chat, extra, add_generation_prompt, continue_final)
        ids = tokenizer.encode_rendered(marks.unescape(text), marks.chars)
        return self._begun(ids, tokenizer.bos_id) if self._begins else ids

    def message_ends(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Return the control tokens that come first behind a user's and an assistant's text.

        None where the template refuses such a chat, or has no such tokens.
        """
        if self._ends is None or self._ends[0] is not tokenizer:
            self._ends = tokenizer, frozenset(self._find_ends(tokenizer))
        return self._ends[1]

    def _find_ends(self, tokenizer: Tokenizer) -> Iterator[int]:
        asked, said = (
            {"role": role, "content": text} for role, text in zip(_ROLES, _PROBE, strict=True)
        )
        try:
            text = self._rendered(self._chat([asked, said, asked]), self._extra(None, {}), True)
        except TextError:
            return
        for part in _PROBE:
            spelled = tokenizer.control_spellings.first(text.partition(part)[2])
            if spelled is not None and (token := tokenizer.id_of(spelled)) is not None:
                yield token

    @staticmethod
    def _begun(ids: list[int], bos: int | None) -> list[int]:
        """Return ids with one bos at their beginning."""
        if bos is None:
            return ids
        own = next((i for i, token in enumerate(ids) if token != bos), len(ids))
        return [bos, *ids[own:]]

    def _extra(
        self, tools: Sequence[Mapping[str, Any]] | None, kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        for key in kwargs:
            if key == "messages" or key.endswith("_token") or key in self._compiled.globals:
                raise TextError(f"expected variables of the template's own, got {key!r:.80}")
        return {
            "tools": None if tools is None else plain(tools, "tools"),
            "documents": None,
            **{key: plain(value, f"variable {key:.80}") for key, value in kwargs.items()},
        }

    def _run(
        self,
        chat: list[dict[str, Any]],
        extra: Mapping[str, Any],
        add_generation_prompt: bool,
        continue_final: bool,
    ) -> str:
        if continue_final:
            chat = [*chat[:-1], _opened(chat[-1], len(chat) - 1)]
        text = self._rendered(chat, extra, add_generation_prompt and not continue_final)
        return _cut(text, self._name) if continue_final else text

    def _chat(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return a checked copy, with contents in the form that the template takes."""
        chat = plain_messages(messages)
        if any(isinstance(m.get("content"), list) for m in chat) and not self._takes_parts:
            # Before any text is looked over: parts may spell a control token together.
            chat = [_joined(message) for message in chat]
        return chat

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template shows a list of text parts as their texts.

        Most know text alone: they fail on a list, or show it as Python or JSON would spell it.
        """
        content = [{"type": "text", "text": text} for text in _PROBE]
        try:
            text = self._rendered(
                [{"role": "user", "content": content}], self._extra(None, {}), True
            )
        except TextError:
            return False
        spelled = "{'type'" in text or '{"type"' in text
        return not spelled and all(text.count(part) == 1 for part in _PROBE)

    def _rendered(
        self, chat: list[dict[str, Any]], extra: Mapping[str, Any], add_generation_prompt: bool
    ) -> str:
        from monolane.text._sandbox import RefusedError
        from monolane.text._template_limits import start_budget

        variables = {
            **self._special_tokens,
            **extra,
            "messages": chat,
            "add_generation_prompt": add_generation_prompt,
        }
        start_budget(variables)
        try:
            return self._compiled.render(variables)
        except RefusedError as error:
            raise TextError(f"the chat template refuses these messages: {error!s:.500}") from None
        except Exception as error:  # whatever a template may provoke
            raise TextError(
                f"{self._name}: the template fails: {type(error).__name__}: {error!s:.500}"
            ) from None


def _compile(source: str, name: str) -> "tuple[Template, frozenset[str]]":
    """Return the template and the names it reads; those that it sets in one branch are among them.

    TextError when it is no Jinja.
    """
    from jinja2 import TemplateSyntaxError, meta

    from monolane.text._sandbox import Sandbox

    sandbox = Sandbox()
    try:
        tree = sandbox.parse(source)
        names = frozenset(meta.find_undeclared_variables(tree))  # before the sandbox adds its own
        code = sandbox.compile(tree)
        found: Template = sandbox.template_class.from_code(sandbox, code, sandbox.make_globals({}))
        return found, names
    except TemplateSyntaxError as error:
        raise TextError(f"{name}, line {error.lineno}: no valid Jinja: {error!s:.500}") from None
    except Exception as error:  # the parser recurses, and Python's compiler has limits of its own
        raise TextError(
            f"{name}: the template cannot be compiled: {type(error).__name__}: {error!s:.500}"
        ) from None


def _listed(value: Any, folder: Path) -> dict[str, Any] | None:
    """Return the templates in tokenizer_config.json by name; a string is the default."""
    if value is None:
        return None
    if isinstance(value, str):
        return {"default": value}
    named = {}
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        named = {str(entry.get("name")): entry.get("template") for entry in value}
    found = named.get("default")
    if not isinstance(found, str):
        raise TextError(
            f"{folder / 'tokenizer_config.json'}: expected chat_template to be a string, or a list "
            f"of templates with one named 'default'; got {type(value).__name__} "
            f"{sorted(named)!r:.200}"
        )
    return named


def _joined(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose content is one text."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = [part["text"] for part in content if not is_thought(part)]
    # An answer's parts are pieces of one text.
    text = "".join(texts) if message["role"] == "assistant" else joined_texts(texts)
    return {**message, "content": text}


def _opened(message: dict[str, Any], place: int) -> dict[str, Any]:
    """Return the last message with the end mark after its last text."""
    content = message.get("content")
    if message["role"] != "assistant" or not content or is_thought(content[-1]):
        raise TextError(f"message {place}: expected an assistant's text to continue as the last")
    if isinstance(content, str):
        return {**message, "content": content + _END}
    last = {**content[-1], "text": content[-1]["text"] + _END}
    return {**message, "content": [*content[:-1], last]}


def _cut(text: str, name: str) -> str:
    """Return the text up to the end mark, trimmed where the template trimmed the message."""
    end = text.rfind(_END.strip())
    if end < 0:
        raise TextError(f"{name}: the chat template leaves out the message that is to be continued")
    kept = text[:end]
    return kept if text.startswith(_END, end) else kept.rstrip()
