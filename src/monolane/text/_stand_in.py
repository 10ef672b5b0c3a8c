"""The template of a model whose files have none.

A Laneformer has the released convention, and a DeepSeek-V4 that of the program which its folder has
in a template's place. Any other model was trained on words that are not known:
to ask it in another model's would be a silent error. ChatML, where the vocabulary has its tokens,
is what such models most often were trained on, so it is taken with a warning, as in llama.cpp.
Else there is no chat.
"""

import logging
from pathlib import Path

from monolane.text import _deepseek_v4
from monolane.text._template import DEFAULT_TEMPLATE, ChatTemplate
from monolane.text._tokenizer import Tokenizer

log = logging.getLogger("monolane.text")

_CHATML = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
_KNOWN = (
    (("<|im_start|>", "<|im_end|>"), _CHATML, "ChatML"),
    (("<|start_header_id|>", "<|end_header_id|>", "</s>"), DEFAULT_TEMPLATE, "Laneformer's"),
)
# Of families whose own convention is known: tokens, and the template.
_OWN = {"deepseek_v4": (_deepseek_v4.TOKENS, _deepseek_v4.TEMPLATE, "DeepSeek-V4's")}
_NONE = (
    "this model's files have no chat template, and its vocabulary has the tokens of none that is "
    "known. Use /v1/completions, or a model that was trained to chat; a folder may get a "
    "chat_template.jinja"
)


def stand_in(tokenizer: Tokenizer | None, path: Path, family: str = "") -> ChatTemplate:
    """Return a template whose tokens the vocabulary has, or one that refuses every chat.

    ``family``: the model's, whose own convention may be known.
    """
    vocabulary = {} if tokenizer is None else tokenizer.vocabulary()
    if family in _OWN:
        own, template, called = _OWN[family]
        if all(token in vocabulary for token in own):
            return ChatTemplate(template, name=called)
    for tokens, source, name in _KNOWN:
        if all(token in vocabulary for token in tokens):
            log.warning(
                "%s: no chat template: chats are told in %s, which this model may not have been "
                "trained on; take files with a template, or use /v1/completions",
                *(path, name),
            )
            return ChatTemplate(source, name=name, found=False)
    log.warning("%s: no chat template, so chats are refused", path)
    return ChatTemplate(f"{{{{ raise_exception({_NONE!r}) }}}}", found=False)
