"""Text: tokenizer, chat template, incremental detokenizing, stop strings. No torch, no network."""

from monolane.text._detokenizer import Detokenizer
from monolane.text._files import MODEL_INPUTS, read_object
from monolane.text._fim_tokens import InfillTokens, find_infill
from monolane.text._gguf import GgufText
from monolane.text._gguf_folder import write_text_files
from monolane.text._messages import is_thought, joined_texts, spoken_messages
from monolane.text._repetition import Loop, Repetition, find_loop
from monolane.text._stand_in import stand_in
from monolane.text._stop import StopStrings
from monolane.text._template import DEFAULT_TEMPLATE, ChatTemplate
from monolane.text._thinking import Thinking, ThinkingSplit, find_thinking, thinking_switch
from monolane.text._tokenizer import Tokenizer

__all__ = [
    "DEFAULT_TEMPLATE",
    "MODEL_INPUTS",
    "ChatTemplate",
    "Detokenizer",
    "GgufText",
    "InfillTokens",
    "Loop",
    "Repetition",
    "StopStrings",
    "Thinking",
    "ThinkingSplit",
    "Tokenizer",
    "find_infill",
    "find_loop",
    "find_thinking",
    "is_thought",
    "joined_texts",
    "read_object",
    "spoken_messages",
    "stand_in",
    "thinking_switch",
    "write_text_files",
]
