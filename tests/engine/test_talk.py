"""A talk of an agent with a model that has states or windows: how much is read again in each turn.

A slot cannot go back, so a prompt goes on where a state was kept. Counted is what each of 35 turns
reads, with calls and results, thoughts that the template drops, edits, branches and a restart,
beside what lies behind the last end of a message before the first token that is new.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from tests.random_models import write_random_model

VOCAB = 64
BEGIN, END, LINE, ROLES = 1, 2, 3, {"system": 4, "user": 5, "assistant": 6, "tool": 7}
WORDS = 8  # and all ids from here on
TURNS, RESTART = 35, 25  # before this turn
# Turns that send something before what the turn before has ended with in other words than it had.
CHANGED = (6, 10, 14, 17, 21, 31, 34)
PASS = 64  # tokens: the end of a message that one pass reaches may not be kept

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB,
    "max_position_embeddings": 8192,
    "eos_token_id": END,
    "torch_dtype": "float32",
}
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 6,
    "mamba_expand": 1,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 5,
        "partial_rotary_factor": 0.5,
    },
    "nemotron_h": {
        "hybrid_override_pattern": "M*-",
        "mamba_num_heads": 4,
        "mamba_head_dim": 8,
        "n_groups": 2,
        "ssm_state_size": 6,
    },
    "granitemoehybrid": {
        **MAMBA,
        "layer_types": ["mamba", "attention", "mamba"],
        "shared_intermediate_size": 48,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "gemma3_text": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 16,
    },
    "gpt_oss": {
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
}


def write(folder: Path, kind: str, **fields: Any) -> Path:
    """Write a small random model of a family into a folder."""
    config = SIZES | {"model_type": kind} | CONFIGS[kind] | fields
    return write_random_model(folder, config)


@pytest.fixture(params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A small random model of a family."""
    return write(tmp_path, request.param)


@dataclass(frozen=True)
class Message:
    """What one side says; an assistant may have thought before."""

    role: str
    said: tuple[int, ...]
    thought: tuple[int, ...] = ()


Chat = tuple[Message, ...]


def rendered(chat: Chat) -> list[int]:
    """The ids of a chat, as ChatML has them. Thoughts before the last user's message are left out.

    Most templates of models that think do that, so one more message changes some before it.
    """
    last = max(i for i, message in enumerate(chat) if message.role == "user")
    found: list[int] = []
    for i, message in enumerate(chat):
        thought = message.thought if i > last else ()
        found += [BEGIN, ROLES[message.role], *thought, *message.said, END, LINE]
    return [*found, BEGIN, ROLES["assistant"]]


def chats(rng: np.random.Generator) -> Iterator[tuple[Chat, list[Message]]]:
    """Yield what each turn sends, and a list to which the model's answer is to be added."""

    def words(fewest: int, most: int) -> tuple[int, ...]:
        return tuple(rng.integers(WORDS, VOCAB, size=rng.integers(fewest, most)).tolist())

    chat: Chat = (Message("system", words(250, 300)), Message("user", words(20, 60)))
    elsewhere: Chat = ()  # the other branch
    for turn in range(TURNS):
        answer: list[Message] = []
        yield chat, answer
        chat = (*chat, *answer)
        if turn == 33:  # the very first one is put in other words
            chat = (chat[0], Message("user", words(20, 60)))
        elif turn in (9, 30):  # an earlier message of the user's is put in other words
            at = [i for i, message in enumerate(chat) if message.role == "user"][-2]
            chat = (*chat[:at], Message("user", (*chat[at].said[:15], *words(20, 60))))
        elif turn == 13:  # a tool gives another result: from here on there are two branches
            elsewhere, chat = chat, (*chat[:-6], Message("tool", words(40, 90)))
        elif turn in (16, 20):  # back to the other one
            elsewhere, chat = chat, (*elsewhere, Message("tool", words(20, 300)))
        elif turn % 6 == 5:
            chat = (*chat, Message("user", words(10, 200)))
        else:
            chat = (*chat, Message("tool", words(20, 300)))


def common(first: list[int], second: list[int]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


@dataclass(frozen=True)
class Turn:
    """Tokens of a turn's prompt; how many of them could be known, and how many were.

    ``known``: up to the last end of a message before the first token that no turn before had, or up
    to where a turn had ended, if the prompt begins with all of it.
    """

    prompt: int
    known: int
    cached: int
    goes_on: bool  # behind all that the turn before had


def talk(folder: Path, file: Path, budget: str = "1G", checked: Collection[int] = ()) -> list[Turn]:
    """Hold the talk and return its turns; ``checked`` are compared with prompts read anew."""

    def load() -> Engine:
        return Engine.load(folder, "cpu", prefix_cache=budget, prefix_file=file)

    engine, found = load(), []
    fresh = Engine.load(folder, "cpu", prefix_cache="off")
    held: list[list[int]] = []  # what the slot held at the end of each turn
    for turn, (chat, answers) in enumerate(chats(np.random.default_rng(7))):
        if turn == RESTART:
            engine.close()
            engine = load()
        prompt = rendered(chat)
        params = SamplingParams(max_tokens=12 + 5 * (turn % 7), ignore_eos=True, logprobs=1)
        answer = engine.generate(prompt, params)
        if turn in checked:
            other = fresh.generate(prompt, params)
            assert (answer.token_ids, answer.logprobs) == (other.token_ids, other.logprobs)
        same, most = max(((common(prompt, other), len(other)) for other in held), default=(0, 0))
        same = min(same, len(prompt) - 1)  # the last token is fed in any case
        ends = [i + 1 for i, token in enumerate(prompt[:same]) if token == END]
        known = same if same == most else max(ends, default=0)
        goes_on = bool(held) and same == len(held[-1])
        found.append(Turn(len(prompt), known, answer.timings.cache_n, goes_on))
        held.append([*prompt, *answer.token_ids[:-1]])
        half = len(answer.token_ids) // 2
        answers.append(Message("assistant", answer.token_ids[half:], answer.token_ids[:half]))
    engine.close()
    fresh.close()
    return found


def test_a_turn_reads_what_is_new(folder: Path, tmp_path: Path) -> None:
    """Also the first behind a restart, and those that change or leave what was said before."""
    turns = talk(folder, tmp_path / "prefixes", checked=(*CHANGED, RESTART))
    assert len(turns) == TURNS
    assert [i for i, turn in enumerate(turns) if turn.known - turn.cached >= PASS] == []
    assert [i for i, turn in enumerate(turns) if turn.goes_on and turn.known != turn.cached] == []
    # What has to be read of so many tokens: the talk asks for something.
    assert sum(turn.prompt for turn in turns) > 4 * sum(turn.prompt - turn.known for turn in turns)
    assert not any(turns[i].goes_on for i in CHANGED)


def test_whoever_goes_on_reads_what_is_new_however_scarce_the_memory(tmp_path: Path) -> None:
    """States of 39 kB, in memory for the longest prompt (2,600 tokens of 132 bytes) and three."""
    kind = "qwen3_5_text"
    wide = {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
    turns = talk(write(tmp_path, kind, **wide), tmp_path / "prefixes", "480K")
    assert sum(turn.goes_on for turn in turns) > TURNS / 2
    assert [i for i, turn in enumerate(turns) if turn.goes_on and turn.known != turn.cached] == []
