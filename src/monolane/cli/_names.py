"""The names of all commands, which is all that most starts know of them."""

# As ``--help`` shows them. A file has one function, or one Typer of several, of its own name.
HEADS = {
    "Answers": ("generate", "chat", "serve", "ps", "key", "rank"),
    "Models on this disk": ("pull", "list", "rm", "alias"),
    "Making models": (
        *("data", "train", "launch", "sft", "retrofit", "tune", "quantize", "export"),
    ),
    "Looking and measuring": (
        *("doctor", "verify", "bench", "eval", "plan", "sim", "trace", "board"),
    ),
}
GROUPS = ("plan", "data", "tune", "bench", "eval")
COMMANDS = tuple(x for names in HEADS.values() for x in names if x not in GROUPS)
OTHER_WORDS = {"fetch": "pull"}  # not in ``--help``
ALL = (*COMMANDS, *OTHER_WORDS, *GROUPS)
