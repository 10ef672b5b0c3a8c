"""What a model answers in a chat: to be read, not counted."""

from pathlib import Path

from monolane.engine import Engine, SamplingParams

QUESTIONS = (
    "What is the capital of France?",
    "Write a Python function that adds two numbers.",
    "Why is the sky blue?",
)
_TOKENS = 40


def answers(folder: Path) -> dict[str, str]:
    """Return the likeliest answer of 40 tokens to each of QUESTIONS."""
    params = SamplingParams(max_tokens=_TOKENS, temperature=0.0)
    with Engine.load(folder, "cpu") as engine:
        return {
            question: engine.generate([{"role": "user", "content": question}], params).text
            for question in QUESTIONS
        }
