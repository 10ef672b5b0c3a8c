"""A copy of a chat template with ``{% generation %}`` around what the assistant says.

Trainers such as TRL's want these marks to mask their loss. Inserting them by hand, per template, is
the usual way; here the shipped template becomes a macro of the copy, and the marks go around what
each answer adds: the chat with it, less the chat opened for it. So the text is the shipped
template's own, whatever that does inside; where its text of a chat's front is not the front of its
text, the copy raises, as no mark could be right.

``monolane sft`` needs no marks (see ``ChatEncoder``); they are for others, and a check on it.
"""

from monolane.errors import TextError

_MARK = "{% generation %}"
# The source stands between its macro's tags as it would stand alone: chat templates are compiled
# with trim_blocks, which takes the line break after the first tag, and "+" keeps the blanks before
# the second.
_COPY = """\
{{% macro monolane_chat(messages, add_generation_prompt) %}}
{source}{{%+ endmacro -%}}
{{%- macro monolane_front(whole, part, place) -%}}
{{%- if whole[:part | length] != part -%}}
{{{{- raise_exception('message ' ~ place ~ ': the template rewrites earlier messages') -}}}}
{{%- endif -%}}
{{%- endmacro -%}}
{{%- set shown = namespace(chars=0) -%}}
{{%- set whole = monolane_chat(messages, false) -%}}
{{%- for message in messages -%}}
{{%- if message.role == 'assistant' -%}}
{{%- set before = monolane_chat(messages[:loop.index0], true) if loop.index0 else '' -%}}
{{%- set after = monolane_chat(messages[:loop.index], false) -%}}
{{{{- monolane_front(whole, before, loop.index0) -}}}}
{{{{- monolane_front(whole, after, loop.index0) -}}}}
{{{{- whole[shown.chars:before | length] -}}}}
{{%- generation -%}}
{{{{- whole[before | length:after | length] -}}}}
{{%- endgeneration -%}}
{{%- set shown.chars = after | length -%}}
{{%- endif -%}}
{{%- endfor -%}}
{{{{- whole[shown.chars:] -}}}}
{{%- if add_generation_prompt -%}}
{{{{- monolane_chat(messages, true)[whole | length:] -}}}}
{{%- endif -%}}
"""


def marked_template(source: str) -> str:
    """Return the training copy of a template; one that has marks is returned as it is."""
    if _MARK in source or "{%- generation" in source:
        return source
    if "{% block" in source or "{% extends" in source:
        raise TextError("expected a template that can be a macro, got one with blocks")
    return _COPY.format(source=source.removesuffix("\n"))  # as Jinja does with a whole template
