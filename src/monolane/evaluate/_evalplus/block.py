"""Which part of an answer is scored: the block of code that holds the function asked for.

What a block is, CommonMark says, and markdown-it-py reads it: a fence inside a docstring, indented
by four spaces, does not close the block around it, and in a list the block's own indentation is
taken off its lines.
"""

import re

from markdown_it import MarkdownIt

_MARKDOWN = MarkdownIt("commonmark")


def target_function(answer: str, name: str) -> str:
    """Return the first block of code that defines ``name``, else the first that mentions it.

    Without such a block, the whole answer: EvalPlus's own preprocessing then takes its longest part
    that is Python. A last block may lack its closing fence, as where the answer was cut.
    """
    blocks = [token.content for token in _MARKDOWN.parse(answer) if token.type == "fence"]
    word = re.escape(name)
    for pattern in (rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{word}[ \t]*\(", rf"\b{word}\b"):
        for block in blocks:
            if re.search(pattern, block, re.M):
                return block
    return answer
