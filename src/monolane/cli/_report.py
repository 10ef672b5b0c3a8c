"""What a person is told about an answer, on stderr."""

import sys

from monolane.engine import Engine, Timings


def print_report(engine: Engine, timings: Timings) -> None:
    """Print speed and time to first token of an answer on one line of stderr."""
    count = timings.generated_tokens
    parts = [f"{count} token{'s' * (count != 1)}"]
    if timings.tokens_per_second:
        parts.append(f"{timings.tokens_per_second:,.1f} tokens/s")
    if count:
        parts.append(f"first after {timings.time_to_first_token * 1e3:,.0f} ms")
    if timings.cache_n:
        parts.append(f"{timings.cache_n:,} of {timings.prompt_tokens:,} prompt tokens kept")
    if timings.draft_n:
        parts.append(f"{timings.draft_n_accepted:,} of {timings.draft_n:,} drafted tokens drawn")
        if len(timings.drafters) > 1:
            each = (f"{name} {of['draft_n_accepted']:,}" for name, of in timings.drafters.items())
            parts[-1] += f" ({', '.join(each)})"
    parts.append(f"loaded in {engine.load_seconds:,.2f} s")
    parts.append(f"{engine.backend.name} {engine.backend.dtype}")
    sys.stderr.write(dim(" · ".join(parts)) + "\n")
    sys.stderr.flush()


def print_note(text: str) -> None:
    """Print a line for people on stderr."""
    sys.stderr.write(dim(text) + "\n")
    sys.stderr.flush()


def echo_prompt(text: str) -> None:
    """Show a person the prompt before its completion; a program that reads stdout gets none."""
    if sys.stdout.isatty() and sys.stderr.isatty():
        sys.stderr.write(dim(text))
        sys.stderr.flush()


def dim(text: str) -> str:
    """Return a text for stderr, dimmed if that is a terminal."""
    return f"\x1b[2m{text}\x1b[0m" if sys.stderr.isatty() else text
