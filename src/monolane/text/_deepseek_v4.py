"""The chat template of DeepSeek-V4, whose folders have a Python program in its place.

It says what that program, encoding/encoding_dsv4.py of deepseek-ai/DeepSeek-V4-Flash, makes of the
same chat; tests/text/test_deepseek_v4.py holds it to texts that the program made. ``thinking`` (or
``enable_thinking``) switches thinking on, and so does a ``reasoning_effort`` other than "none", if
neither is said; "max" asks for more. What an assistant thought is shown behind the last message of
the user, and everywhere in a chat with tools. Results of calls are the user's, in the order of the
calls. A system message stands at the beginning, and tools are told in it.
"""

TOKENS = ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")  # which the vocabulary has
TEMPLATE = """\
{%- macro told(tools) -%}
## Tools

You have access to a set of tools to help answer the user's question. \
You can invoke tools by writing a "<｜DSML｜tool_calls>" block like the following:

<｜DSML｜tool_calls>
<｜DSML｜invoke name="$TOOL_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$TOOL_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types \
(numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside \
<think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{% for tool in tools %}
{{- tool.function | tojson }}
{% endfor %}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
{% endmacro -%}
{%- macro called(calls) -%}
{{- '\\n\\n<｜DSML｜tool_calls>\\n' -}}
{%- for call in calls -%}
{{- '<｜DSML｜invoke name="' + call.function.name + '">\\n' -}}
{%- set given = call.function.arguments -%}
{%- if given is not mapping -%}
{%- set given = {'arguments': given} -%}
{%- endif -%}
{%- for key, value in given.items() -%}
{{- '<｜DSML｜parameter name="' + key + '" string="' -}}
{{- ('true">' + value) if value is string else ('false">' + (value | tojson)) -}}
{{- '</｜DSML｜parameter>' + ('' if loop.last else '\\n') -}}
{%- endfor -%}
{{- '\\n</｜DSML｜invoke>\\n' -}}
{%- endfor -%}
{{- '</｜DSML｜tool_calls>' -}}
{%- endmacro -%}
{%- set effort = reasoning_effort if reasoning_effort is defined else none -%}
{%- if thinking is defined -%}
{%- set thinks = thinking -%}
{%- elif enable_thinking is defined -%}
{%- set thinks = enable_thinking -%}
{%- else -%}
{%- set thinks = effort is not none and effort != 'none' -%}
{%- endif -%}
{%- set at = namespace(user=-1, inside=false, calls=[], results=[], next=0) -%}
{%- for message in messages -%}
{%- if message.role in ('user', 'tool') -%}
{%- set at.user = loop.index0 -%}
{%- elif message.role == 'system' and not loop.first -%}
{{- raise_exception('expected a system message at the beginning alone') -}}
{%- elif message.role not in ('system', 'assistant') -%}
{{- raise_exception('expected no message of the role ' + message.role) -}}
{%- endif -%}
{%- endfor -%}
{{- '<｜begin▁of▁sentence｜>' -}}
{%- if thinks and effort == 'max' -%}
{{- 'Reasoning Effort: Absolute maximum with no shortcuts permitted.\\n' -}}
{{- 'You MUST be very thorough in your thinking and comprehensively decompose the problem to \
resolve the root cause, rigorously stress-testing your logic against all potential paths, edge \
cases, and adversarial scenarios.\\n' -}}
{{- 'Explicitly write out your entire deliberation process, documenting every intermediate step, \
considered alternative, and rejected hypothesis to ensure absolutely no assumption is left \
unchecked.\\n\\n' -}}
{%- endif -%}
{%- if messages[0].role == 'system' -%}
{{- messages[0].content -}}
{%- endif -%}
{%- if tools -%}
{{- '\\n\\n' + told(tools) -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role in ('user', 'tool') -%}
{{- '\\n\\n' if at.inside else '<｜User｜>' -}}
{%- if not at.inside -%}
{#- The results of this turn, in the order of the calls. -#}
{%- set turn = namespace(open=true, found=[]) -%}
{%- for other in messages[loop.index0:] -%}
{%- if other.role not in ('user', 'tool') -%}
{%- set turn.open = false -%}
{%- elif turn.open and other.role == 'tool' -%}
{%- set turn.found = turn.found + [other] -%}
{%- endif -%}
{%- endfor -%}
{%- set at.results = turn.found -%}
{%- if at.calls and turn.found | length > 1 -%}
{%- set sorted = namespace(found=[]) -%}
{%- for id in at.calls -%}
{%- set place = loop.index0 -%}
{%- for result in turn.found -%}
{%- set own = namespace(place=0) -%}
{%- for other in at.calls -%}
{%- if other == result.tool_call_id -%}
{%- set own.place = loop.index0 -%}
{%- endif -%}
{%- endfor -%}
{%- if own.place == place -%}
{%- set sorted.found = sorted.found + [result] -%}
{%- endif -%}
{%- endfor -%}
{%- endfor -%}
{%- set at.results = sorted.found -%}
{%- endif -%}
{%- set at.next = 0 -%}
{%- set at.inside = true -%}
{%- endif -%}
{%- if message.role == 'user' -%}
{{- message.content -}}
{%- else -%}
{{- '<tool_result>' + at.results[at.next].content + '</tool_result>' -}}
{%- set at.next = at.next + 1 -%}
{%- endif -%}
{%- elif message.role == 'assistant' -%}
{%- set shown = thinks and (tools or loop.index0 > at.user) -%}
{%- if at.inside -%}
{{- '<｜Assistant｜>' + ('<think>' if shown else '</think>') -}}
{%- endif -%}
{%- set at.inside = false -%}
{%- if shown -%}
{{- (message.reasoning_content or '') + '</think>' -}}
{%- endif -%}
{{- message.content or '' -}}
{%- if message.tool_calls -%}
{{- called(message.tool_calls) -}}
{%- set at.calls = message.tool_calls | map(attribute='id') | list -%}
{%- endif -%}
{{- '<｜end▁of▁sentence｜>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<｜Assistant｜>' + ('<think>' if thinks else '</think>') -}}
{%- endif -%}
"""
