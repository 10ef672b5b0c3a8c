"""The spellings of tool calls that are known: a row for each family that has its own."""

from dataclasses import replace
from functools import lru_cache

from monolane.engine import Engine
from monolane.errors import RequestError
from monolane.serve._tools.format import ToolFormat
from monolane.serve._tools.keyed import Keyed
from monolane.serve._tools.named import NAME, Named
from monolane.serve._tools.objects import ByName, Objects
from monolane.serve._tools.scan import GEMMA as GEMMA_NOTATION
from monolane.serve._tools.scan import PYTHON
from monolane.serve._tools.tagged import Tagged

AUTO = "auto"  # the format that the model shows

HERMES = ToolFormat(
    "hermes",
    "<tool_call>",
    Objects(),
    also=("<tools>",),  # Qwen2.5-Coder's, in place of the mark that it was shown
    ends=("</tool_call>", "</tools>"),
    before="<tool_call>\n",
    between="\n</tool_call>\n<tool_call>\n",
    after="\n</tool_call>",
    shown=("<tool_call>",),
    padded=True,
)
XML = replace(HERMES, name="xml", shape=Tagged(), shown=("<tool_call>", "<function="))
SEED = replace(
    XML,
    name="seed",
    begin="<seed:tool_call>",
    also=(),
    shape=Tagged(key="<parameter={}>", end_value="</parameter>\n"),
    ends=("</seed:tool_call>",),
    before="<seed:tool_call>\n",
    between="\n</seed:tool_call>\n<seed:tool_call>\n",
    after="\n</seed:tool_call>",
    shown=("<seed:tool_call>",),
    padded=False,
)
_GLM_MARKS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>")
# GLM-4.5 and 4.6; a template without line breaks is GLM-4.7's, Laguna's and others'.
GLM = ToolFormat(
    "glm",
    "<tool_call>",
    Tagged(
        begin="{}\n",
        key="<arg_key>{}</arg_key>\n<arg_value>",
        end_value="</arg_value>\n",
        end="</tool_call>",
    ),
    ends=("</tool_call>",),
    before="<tool_call>",
    between="\n<tool_call>",
    shown=("<tool_call>", "<arg_key>"),
    marks=_GLM_MARKS,
)
GLM_FLAT = replace(
    GLM,
    name="glm-flat",
    shape=Tagged(
        begin="{}",
        key="<arg_key>{}</arg_key><arg_value>",
        end_value="</arg_value>",
        end="</tool_call>",
    ),
    between="<tool_call>",
    shown=("<tool_call>", "</arg_key><arg_value>"),
)
_HUNYUAN = ":opensource"
HUNYUAN = replace(
    GLM,
    name="hunyuan",
    begin=f"<tool_calls{_HUNYUAN}>",
    also=(f"<tool_call{_HUNYUAN}>",),
    shape=Tagged(
        begin=f"{{}}<tool_sep{_HUNYUAN}>\n",
        key=f"<arg_key{_HUNYUAN}>{{}}</arg_key{_HUNYUAN}>\n<arg_value{_HUNYUAN}>",
        end_value=f"</arg_value{_HUNYUAN}>\n",
        end=f"</tool_call{_HUNYUAN}>\n",
    ),
    ends=(f"</tool_calls{_HUNYUAN}>",),
    before=f"<tool_calls{_HUNYUAN}>\n<tool_call{_HUNYUAN}>",
    between=f"<tool_call{_HUNYUAN}>",
    after=f"</tool_calls{_HUNYUAN}>",
    shown=("<tool_calls{}>", _HUNYUAN),
    marks=tuple(
        f"<{end}{name}{_HUNYUAN}>"
        for name in ("tool_call", "tool_sep", "arg_key", "arg_value")
        for end in ("", "/")
    ),
)
MINIMAX = ToolFormat(
    "minimax",
    "<minimax:tool_call>",
    Tagged(
        begin='<invoke name="{}">\n',
        key='<parameter name="{}">',
        end_value="</parameter>\n",
        end="</invoke>\n",
    ),
    ends=("</minimax:tool_call>",),
    before="<minimax:tool_call>\n",
    after="</minimax:tool_call>",
    shown=("<minimax:tool_call>",),
)
_DSML = "｜DSML｜"
DEEPSEEK_DSML = ToolFormat(
    "deepseek-v3.2",
    f"<{_DSML}function_calls>",
    Tagged(
        begin=f'<{_DSML}invoke name="{{}}">\n',
        key=f'<{_DSML}parameter name="{{}}" string="false">',
        texts=f'<{_DSML}parameter name="{{}}" string="true">',
        end_value=f"</{_DSML}parameter>\n",
        end=f"</{_DSML}invoke>\n",
    ),
    ends=(f"</{_DSML}function_calls>",),
    before=f"<{_DSML}function_calls>\n",
    after=f"</{_DSML}function_calls>",
    shown=(_DSML, "function_calls>"),
    marks=(_DSML,),
)
DEEPSEEK_V4 = replace(
    DEEPSEEK_DSML,
    name="deepseek-v4",
    begin=f"<{_DSML}tool_calls>",
    ends=(f"</{_DSML}tool_calls>",),
    before=f"<{_DSML}tool_calls>\n",
    after=f"</{_DSML}tool_calls>",
    shown=(_DSML, "tool_calls>"),
)
ATEM = replace(
    MINIMAX,
    name="atem",
    begin="<atem:function_calls>",
    shape=Tagged(
        begin='<atem:invoke name="{}">\n',
        key='<atem:parameter name="{}">',
        end_value="</atem:parameter>\n",
        end="</atem:invoke>\n",
    ),
    ends=("</atem:function_calls>",),
    before="<atem:function_calls>\n",
    after="</atem:function_calls>",
    shown=("<atem:function_calls>",),
    many=False,  # several calls are messages of their own
)
_SEP, _CALLS_BEGIN, _CALL_BEGIN = (
    "<｜tool▁sep｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
)
_CALLS_END, _CALL_END = "<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>"
# DeepSeek V3 and R1.
_DEEPSEEK_HEAD = rf"(?:function{_SEP})?{NAME}\s*(?:{_SEP}|\n```(?:json)?)\s*"
DEEPSEEK = ToolFormat(
    "deepseek",
    _CALLS_BEGIN,
    Named(
        lead=f"function{_SEP}",
        args="\n```json\n",
        tail="\n```",
        head=_DEEPSEEK_HEAD,
        last="```json",
        told=True,
    ),
    also=(_CALL_BEGIN,),
    ends=("```", _CALL_END, _CALLS_END),
    before=_CALLS_BEGIN + _CALL_BEGIN,
    between=f"{_CALL_END}\n{_CALL_BEGIN}",
    after=_CALL_END + _CALLS_END,
    shown=(_CALLS_BEGIN,),
    token=True,
    marks=(_SEP,),
)
DEEPSEEK_V3_1 = replace(
    DEEPSEEK,
    name="deepseek-v3.1",
    shape=Named(args=_SEP, head=_DEEPSEEK_HEAD, last=_SEP),
    between=_CALL_END + _CALL_BEGIN,
    lacks=("```json",),
)
_ARGUMENTS = "<|tool_call_argument_begin|>"
KIMI = ToolFormat(
    "kimi-k2",
    "<|tool_calls_section_begin|>",
    Named(
        lead="functions.",
        told=True,
        args=":0" + _ARGUMENTS,
        head=rf"(?:functions\.)?{NAME}(?::\d+)?\s*{_ARGUMENTS.replace('|', '[|]')}\s*",
        last=_ARGUMENTS,
    ),
    also=("<|tool_call_section_begin|>", "<|tool_call_begin|>"),  # the model writes either
    ends=("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
    before="<|tool_calls_section_begin|><|tool_call_begin|>",
    between="<|tool_call_end|><|tool_call_begin|>",
    after="<|tool_call_end|><|tool_calls_section_end|>",
    shown=("<|tool_calls_section_begin|>",),
    token=True,
    marks=(_ARGUMENTS,),
)
_MISTRAL_NAMED = Named(
    args="[ARGS]",
    head=rf"\s*{NAME}\s*(?:\[CALL_ID\][^\[\]{{]*)?(?:\[ARGS\])?\s*",
    last="[ARGS]",
)
MISTRAL = ToolFormat(
    "mistral",
    "[TOOL_CALLS]",
    Objects(),
    named=_MISTRAL_NAMED,
    before="[TOOL_CALLS][",
    between=", ",
    after="]",
    shown=("[TOOL_CALLS]",),
    spaced=True,
    marks=("[ARGS]", "[CALL_ID]"),
    short_ids=True,
)
MISTRAL_NAMED = replace(
    MISTRAL,
    name="mistral-named",
    shape=_MISTRAL_NAMED,
    before="[TOOL_CALLS]",
    between="[TOOL_CALLS]",
    after="",
    shown=("[TOOL_CALLS]", "[ARGS]"),
    spaced=False,
)
# GPT-OSS's, behind "<|start|>assistant", with which the prompt ends. A model may write a header
# otherwise: text/_harmony.py brings it into this spelling, and puts that beginning before it.
HARMONY = ToolFormat(
    "harmony",
    "<|start|>assistant to=functions.",
    Named(
        args="<|channel|>commentary json<|message|>",
        head=rf"{NAME}\s*<.{{0,100}}<\|message\|>\s*",
        last="<|message|>",
    ),
    before="to=functions.",
    after="<|call|>",
    shown=("<|channel|>analysis<|message|>", "functions."),
    spaced=True,
    marks=("<|start|>", "<|channel|>", "<|message|>", "<|call|>"),
    many=False,
)
LLAMA = ToolFormat(
    "llama",
    "<|python_tag|>",
    Objects(key="parameters"),
    # What the family was taught for tools of one's own; it may leave the bracket out.
    named=Named(args=">", head=rf"{NAME}>?\s*", last=">"),
    also=("<function=",),
    ends=("</function>",),
    between="; ",
    shown=("<|python_tag|>",),
    token=True,
    bare=True,
    many=False,
)
# Llama 3.2 and 4, where the prompt asks for it so.
PYTHONIC = ToolFormat(
    "pythonic",
    "<|python_start|>",
    Keyed(PYTHON),
    ends=("<|python_end|>",),
    before="[",
    between=", ",
    after="]",
    shown=("[func_name1(",),
    token=True,
    bare=True,
)
LFM2 = replace(
    PYTHONIC,
    name="lfm2",
    begin="<|tool_call_start|>",
    ends=("<|tool_call_end|>",),
    before="<|tool_call_start|>[",
    after="]<|tool_call_end|>",
    shown=("<|tool_call_start|>",),
    bare=False,
)
GEMMA = ToolFormat(
    "gemma",
    "<|tool_call>",
    Keyed(GEMMA_NOTATION, lead="call:", open="{", close="}", colon=":", comma=","),
    ends=("<tool_call|>",),
    before="<|tool_call>",
    between="<tool_call|><|tool_call>",
    after="<tool_call|>",
    shown=("<|tool_call>call:",),
    marks=('<|"|>',),
)


def _listed(name: str, begin: str, end: str = "", **more: object) -> ToolFormat:
    """Return the row of a format that has a list of objects between two marks."""
    return ToolFormat(
        name,
        begin,
        Objects(),
        ends=(end,) if end else (),
        before=f"{begin}[",
        between=", ",
        after=f"]{end}",
        shown=(begin,),
        **more,  # type: ignore[arg-type]
    )


NEMOTRON = _listed("nemotron", "<TOOLCALL>", "</TOOLCALL>")
GRANITE = _listed("granite", "<|tool_call|>", token=True)
FIREFUNCTION = _listed("firefunction", "functools")
APRIEL = replace(_listed("apriel", "<tool_calls>", "</tool_calls>"), shown=("<tool_calls>[",))
# MiniMax M1 and Text.
MINIMAX_M1 = replace(
    APRIEL,
    name="minimax-m1",
    before="<tool_calls>\n",
    between="\n",
    after="\n</tool_calls>",
    shown=("<tool_calls>",),
)
COHERE = replace(
    _listed("cohere", "<|START_ACTION|>", "<|END_ACTION|>"),
    shape=Objects(name="tool_name", key="parameters"),
)
COMMAND_R = replace(
    COHERE,
    name="command-r",
    begin="Action:\n```json\n",
    ends=("```",),
    before="Action:\n```json\n[",
    after="\n]```",
    shown=("Action:\\n```json\\n",),
)
APERTUS = replace(_listed("apertus", "<|tools_prefix|>", "<|tools_suffix|>"), shape=ByName())
GIGACHAT = ToolFormat(
    "gigachat",
    "<|function_call|>",
    Objects(),
    before="<|function_call|>",
    shown=("<|function_call|>",),
    many=False,
)
GIGACHAT3 = replace(
    GIGACHAT,
    name="gigachat3",
    begin="function call<|role_sep|>\n",
    before="function call<|role_sep|>\n",
    shown=("'function call'", "<|role_sep|>"),
    marks=("<|role_sep|>",),
)
SOLAR = ToolFormat(
    "solar",
    "<|tool_calls|>",
    Named(
        lead="a1b2c3d4e5<|tool_call:name|>",
        args="<|tool_call:args|>",
        head=rf"[^<{{]*<\|tool_call:name\|>{NAME}<\|tool_call:args\|>\s*",
        last="<|tool_call:args|>",
    ),
    also=("<|tool_call:begin|>",),
    ends=("<|tool_call:end|>", "<|calls|>"),
    before="<|tool_calls|><|tool_call:begin|>",
    between="<|tool_call:end|><|tool_call:begin|>",
    after="<|tool_call:end|>",
    shown=("<|tool_call:begin|>",),
    marks=("<|tool_call:name|>", "<|tool_call:args|>"),
)
# Functionary 3.1: arguments are JSON, within a tag.
FUNCTIONARY_TAG = ToolFormat(
    "functionary-v3.1",
    "<function=",
    Named(args=">", head=rf"{NAME}>\s*", last=">", tail="</function>"),
    ends=("</function>",),
    before="<function=",
    between="<function=",
    shown=("<function=",),
)
# Functionary 3.2: each part of an answer begins with its recipient, of which "all" is the user.
FUNCTIONARY = ToolFormat(
    "functionary-v3.2",
    ">>>",
    Named(args="\n", head=rf"{NAME}\n\s*"),
    between=">>>",
    shown=(">>>",),
    opened=True,
    text="all\n",
)
MINICPM = ToolFormat(
    "minicpm5",
    "",
    Tagged(
        begin='<function name="{}">',
        key='<param name="{}">',
        end_value="</param>",
        end="</function>",
    ),
    between="\n",
    shown=('<function name="', "<param name="),
)
# SmolLM2 was trained on lists; its template knows no tools, but names the model.
SMOLLM = replace(
    HERMES,
    name="smollm",
    before="<tool_call>[",
    between=", ",
    after="]</tool_call>",
    shown=("named SmolLM, trained by Hugging Face<|im_end|>",),
)
# Where the model shows nothing: what Hermes models write, and plain JSON.
GENERIC = replace(HERMES, name="generic", shown=(), bare=True)
# The first that fits.
FORMATS = (
    *(DEEPSEEK_DSML, DEEPSEEK_V4, DEEPSEEK_V3_1, DEEPSEEK, KIMI, MINIMAX, SEED, ATEM, HUNYUAN),
    *(SOLAR, LFM2, GEMMA, NEMOTRON, GRANITE, COHERE, COMMAND_R, APERTUS, GIGACHAT, GIGACHAT3),
    *(APRIEL, MINIMAX_M1, FIREFUNCTION, MINICPM),
    *(GLM_FLAT, GLM, XML, HERMES, FUNCTIONARY_TAG, MISTRAL_NAMED, MISTRAL),
    *(FUNCTIONARY, PYTHONIC, LLAMA, SMOLLM, HARMONY, GENERIC),
)


def format_of(engine: Engine, name: str = AUTO) -> ToolFormat:
    """Return the format of this name; "auto": the one that template or vocabulary shows.

    RequestError for a name that is none.
    """
    if name != AUTO:
        return format_named(name)
    source = engine.chat_template.for_tools.source
    if found := _shown_by(source):
        return found
    if engine.tokenizer is not None and "tools" in source:
        for tool_format in FORMATS:
            if tool_format.token and engine.tokenizer.id_of(tool_format.begin) is not None:
                return tool_format
    return GENERIC


@lru_cache(maxsize=64)  # a request has one of few templates, and 70 marks are looked for
def _shown_by(source: str) -> ToolFormat | None:
    for tool_format in FORMATS:
        shown = bool(tool_format.shown) and all(mark in source for mark in tool_format.shown)
        if shown and not any(mark in source for mark in tool_format.lacks):
            return tool_format
    return None


def format_named(name: str) -> ToolFormat:
    """Return the format of this name; RequestError names those that there are."""
    for tool_format in FORMATS:
        if tool_format.name == name:
            return tool_format
    names = ", ".join((AUTO, *(tool_format.name for tool_format in FORMATS)))
    raise RequestError(f"tool_format: expected one of {names}, got {name!r:.80}")


def mark_ids(tool_format: ToolFormat, engine: Engine) -> dict[str, int]:
    """Return the format's marks that are control tokens of this vocabulary, and their ids."""
    tokenizer = engine.tokenizer
    if tokenizer is None:
        return {}
    marks = {
        *tool_format.begins,
        *tool_format.ends,
        *tool_format.marks,
    } & tokenizer.control_spellings.all
    found = {mark: tokenizer.id_of(mark) for mark in marks}
    return {mark: token for mark, token in found.items() if token is not None}
