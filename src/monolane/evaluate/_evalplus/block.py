"""Which part of an answer is scored: the block of code that holds the function asked for."""

import re

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.M | re.S)


def target_function(answer: str, name: str) -> str:
    """Return the first block of code that defines ``name``, else the first that mentions it.

    Without such a block, the whole answer: EvalPlus's own preprocessing then takes its longest part
    that is Python. A last block may lack its closing fence, as where the answer was cut.
    """
    blocks = [found[2] for found in _FENCE.finditer(answer)]
    word = re.escape(name)
    for pattern in (rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{word}[ \t]*\(", rf"\b{word}\b"):
        for block in blocks:
            if re.search(pattern, block, re.M):
                return block
    return answer
