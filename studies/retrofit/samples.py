"""What a model answers in a chat: to be read, not counted."""

from collections.abc import Sequence
from pathlib import Path

from monolane.engine import Engine, SamplingParams

QUESTIONS = (
    "What is the capital of France?",
    "Write a Python function that adds two numbers.",
    "Why is the sky blue?",
)
FIFTY = (
    *QUESTIONS,
    "What is two plus two?",
    "Name three colours.",
    "What is the largest planet of the solar system?",
    "Who wrote Hamlet?",
    "What do bees make?",
    "How many days has a week?",
    "What is the opposite of hot?",
    "Translate 'good morning' into French.",
    "What is a noun?",
    "Write a sentence about a dog.",
    "What is photosynthesis?",
    "Which animal is called man's best friend?",
    "What is the boiling point of water in degrees Celsius?",
    "Give me a tip for sleeping better.",
    "What is a list in Python?",
    "Write a Python function that returns the larger of two numbers.",
    "What does the len function of Python do?",
    "How do I read a file in Python?",
    "What is a loop?",
    "What is an operating system?",
    "What is a Debian package?",
    "What is version control?",
    "Explain recursion in one sentence.",
    "What does HTTP stand for?",
    "Write a haiku about the sea.",
    "What is the capital of Japan?",
    "What is gravity?",
    "Who was Albert Einstein?",
    "When did the Second World War end?",
    "What is the longest river in Africa?",
    "How many legs has a spider?",
    "What is the square of seven?",
    "Is seventeen a prime number?",
    "What is the chemical symbol of gold?",
    "What do plants need to grow?",
    "Name a fruit that is yellow.",
    "What is a democracy?",
    "Give me a recipe for pancakes.",
    "How does a vaccine work?",
    "What is the difference between weather and climate?",
    "Summarise the story of Cinderella in a sentence.",
    "What is the past tense of to go?",
    "Correct this sentence: he go to school.",
    "What should I pack for a day in the mountains?",
    "How do I say no politely?",
    "What is a metaphor?",
    "Tell me a joke.",
)
_TOKENS = 40


def answers(folder: Path, questions: Sequence[str] = QUESTIONS) -> dict[str, str]:
    """Return the likeliest answer of 40 tokens to each question."""
    params = SamplingParams(max_tokens=_TOKENS, temperature=0.0)
    with Engine.load(folder, "cpu") as engine:
        return {
            question: engine.generate([{"role": "user", "content": question}], params).text
            for question in questions
        }
