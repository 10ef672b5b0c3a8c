"""The engine on real models: goldens, text, limits, and use from several threads."""

import gc
import json
import threading
from pathlib import Path

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.errors import (
    BackendError,
    CheckpointError,
    ConfigError,
    EngineClosedError,
    ModelNotFoundError,
    RequestError,
)
from monolane.executor_api import Draw
from monolane.model import SafetensorsFile, parse_config, tensor_specs, write_checkpoint
from monolane.reference import choose

GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=24, temperature=1.2, top_k=50, top_p=0.9, min_p=0.01, seed=11)


@pytest.fixture(scope="module", params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend in turn: the contract is one."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def engine(tiny_model: Path, backend: str) -> Engine:
    return Engine.load(tiny_model, backend)


def test_goldens_through_the_public_face(golden: Path, backend: str) -> None:
    expected = SafetensorsFile(golden / "expected.safetensors")
    greedy = expected["greedy_ids"][0].tolist()
    with Engine.load(golden, backend, dtype="float32") as engine:
        for ids, logits in zip(expected["input_ids"], expected["logits"], strict=True):
            ours = engine.logits(ids)
            assert ours.dtype == np.float32
            assert np.abs(ours - logits).max() < 1e-4
        answer = engine.generate(greedy[:8], SamplingParams(max_tokens=40, ignore_eos=True))
        assert [*greedy[:8], *answer.token_ids] == greedy
        assert (answer.text, answer.finish_reason) == ("", "length")


def test_a_stream_gives_the_same_as_generate(engine: Engine) -> None:
    whole = engine.generate("def f(x):", GREEDY)
    pieces = list(engine.stream("def f(x):", GREEDY))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert sum((piece.token_ids for piece in pieces), ()) == whole.token_ids
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert whole.text == engine.tokenizer.decode(list(whole.token_ids))


def test_text_ids_and_messages_are_prompts(engine: Engine) -> None:
    ids = engine.tokenizer.encode("import os")
    assert ids[0] == 1
    assert engine.prompt_ids("import os") == engine.prompt_ids(np.array(ids)) == tuple(ids)
    chat = engine.prompt_ids([{"role": "user", "content": "import os"}])
    assert "import os" in engine.tokenizer.decode(chat)


def test_equal_seeds_give_equal_texts_whatever_else_runs(tiny_model: Path, backend: str) -> None:
    with Engine.load(tiny_model, backend, max_sequences=3) as engine:
        alone = engine.generate("class A:", SAMPLED)
        answers: list[tuple[int, ...]] = []

        def ask() -> None:
            answers.append(engine.generate("class A:", SAMPLED).token_ids)

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [alone.token_ids] * 6
    other = SamplingParams(max_tokens=24, temperature=1.2, seed=12)
    with Engine.load(tiny_model, backend) as engine:
        assert engine.generate("class A:", other).token_ids != alone.token_ids


def test_sampling_is_the_definition(engine: Engine) -> None:
    """Every token drawn is the one that the definition chooses from teacher-forced logits."""
    prompt = engine.prompt_ids("import sys")
    answer = engine.generate(prompt, SAMPLED)
    logits = engine.logits([*prompt, *answer.token_ids])
    for i, token in enumerate(answer.token_ids):
        draw = Draw(temperature=1.2, top_k=50, top_p=0.9, min_p=0.01, seed=11)
        wanted = choose(logits[len(prompt) + i - 1], draw, len(prompt) + i)
        assert token == wanted


def test_logprobs_are_of_the_model_itself(engine: Engine) -> None:
    params = SamplingParams(max_tokens=5, temperature=2.0, seed=3, logprobs=4, ignore_eos=True)
    prompt = engine.prompt_ids("x = ")
    answer = engine.generate(prompt, params)
    logits = engine.logits([*prompt, *answer.token_ids]).astype(np.float64)
    assert [one.token_id for one in answer.logprobs] == list(answer.token_ids)
    for i, one in enumerate(answer.logprobs):
        row = logits[len(prompt) + i - 1]
        logprob = row - np.log(np.exp(row).sum())
        assert abs(one.logprob - logprob[one.token_id]) < 1e-4
        assert [token for token, _ in one.top] == np.argsort(-logprob, kind="stable")[:4].tolist()


def test_the_context_bounds_prompt_and_answer(engine: Engine) -> None:
    full = [5] * 96
    answer = engine.generate(full[:90], SamplingParams(max_tokens=None, ignore_eos=True))
    assert len(answer.token_ids) == 7  # the last token drawn is never fed
    assert answer.finish_reason == "length"
    assert len(engine.generate(full, SamplingParams(max_tokens=9)).token_ids) == 1
    with pytest.raises(RequestError, match="prompt: expected at most 96 tokens, .* got 97"):
        engine.generate([*full, 5])
    with pytest.raises(RequestError, match="token ids: expected at most 96, .* got 97"):
        engine.logits([*full, 5])


def test_a_smaller_context(tiny_model: Path, backend: str) -> None:
    with Engine.load(tiny_model, backend, context=10) as engine:
        assert len(engine.generate([5] * 8, SamplingParams(ignore_eos=True)).token_ids) == 3
        with pytest.raises(RequestError, match="expected at most 10 tokens"):
            engine.generate([5] * 11)


def test_yarn_allows_a_longer_context_than_the_trained_one(tmp_path: Path, backend: str) -> None:
    """Switched on as Qwen's cards tell, with max_position_embeddings as it was."""
    fields = {
        "model_type": "qwen3",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "vocab_size": 96,
        "max_position_embeddings": 40,
        "torch_dtype": "float32",
    }
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    rng = np.random.default_rng(0)
    specs = tensor_specs(parse_config(fields))
    weights = [(x.name, rng.normal(size=x.shape).astype(np.float32)) for x in specs]
    write_checkpoint(tmp_path, weights)
    (tmp_path / "config.json").write_text(json.dumps(fields | {"rope_scaling": yarn}))
    with Engine.load(tmp_path, backend) as engine:
        assert engine.backend.context == 40
        short = engine.logits(range(40))
    with Engine.load(tmp_path, backend, context=128) as engine:
        assert engine.config.max_positions == 40
        np.testing.assert_array_equal(engine.logits(range(40)), short)
        answer = engine.generate(range(60), SamplingParams(max_tokens=None, ignore_eos=True))
        assert len(answer.token_ids) == 69
    with pytest.raises(RequestError, match="context: expected None or 1 to 128 tokens"):
        Engine.load(tmp_path, backend, context=129)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(RequestError, match="context: expected None or 1 to 40 tokens"):
        Engine.load(tmp_path, backend, context=41)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "expected at least one token, got none"),
        ([320], "expected integers from 0 to 319, got 320"),
        ([-1], "expected integers from 0 to 319, got -1"),
        ([1.5], "expected integers from 0 to 319, got 1.5"),
        ([True], "expected integers from 0 to 319, got True"),
        (["a"], "expected integers from 0 to 319, got 'a'"),
        (17, "expected text, token ids or messages, got int"),
        (b"text", "expected text, token ids or messages, got bytes"),
        (None, "expected text, token ids or messages, got NoneType"),
    ],
)
def test_wrong_prompts_are_named_and_the_engine_stays_usable(
    engine: Engine, prompt: object, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        engine.stream(prompt)  # type: ignore[arg-type]
    assert engine.generate([5], SamplingParams(max_tokens=1)).token_ids


def test_a_folder_without_tokenizer_serves_ids(golden: Path) -> None:
    with Engine.load(golden) as engine:
        with pytest.raises(RequestError, match="has no tokenizer, so text cannot become tokens"):
            engine.generate("text")
        with pytest.raises(RequestError, match="so chat messages cannot become tokens"):
            engine.generate([{"role": "user", "content": "x"}])
        with pytest.raises(RequestError, match="stop: .* use stop_ids"):
            engine.generate([1], SamplingParams(stop=("x",)))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"backend": "gpu"},
            RequestError,
            "backend: expected one of auto, cuda, cpu, reference, got 'gpu'",
        ),
        ({"dtype": "int3"}, RequestError, "dtype: expected one of auto, float32, bfloat16"),
        (
            {"backend": "reference", "dtype": "int8"},
            BackendError,
            "dtype: the reference backend computes in float32 only",
        ),
        ({"context": 0}, RequestError, "context: expected None or 1 to 96 tokens"),
        ({"context": 97}, RequestError, "context: expected None or 1 to 96 tokens"),
        ({"max_sequences": 0}, RequestError, "max_sequences: expected 1 to 64, got 0"),
    ],
)
def test_wrong_options_are_named(
    tiny_model: Path, options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Engine.load(tiny_model, **options)  # type: ignore[arg-type]


def test_models_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ModelNotFoundError, match="expected 'demo', 'smollm2', a folder or a .gguf file"
    ):
        Engine.load("no such thing")
    with pytest.raises(ModelNotFoundError, match="nobody/nothing: not a folder here, not in the"):
        Engine.load("nobody/nothing")
    with pytest.raises(ModelNotFoundError, match="expected a model folder with a config.json"):
        Engine.load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ModelNotFoundError, match="expected the folder .*, got another file"):
        Engine.load(tmp_path / "file")


def test_a_model_folder_that_is_not_whole(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((tiny_model / "config.json").read_text())
    with pytest.raises(CheckpointError, match="expected model.safetensors"):
        Engine.load(tmp_path)


def test_generation_config_names_the_end(tiny_model: Path, tmp_path: Path) -> None:
    for path in tiny_model.iterdir():
        (tmp_path / path.name).symlink_to(path)
    settings = tmp_path / "generation_config.json"
    settings.write_text('{"eos_token_id": [7, 9]}')
    assert Engine.load(tmp_path).eos_ids == {7, 9}
    settings.write_text('{"eos_token_id": [7, 900]}')
    with pytest.raises(ConfigError, match="eos_token_id: expected token ids below 320"):
        Engine.load(tmp_path)
    settings.unlink()
    assert Engine.load(tmp_path).eos_ids == {2}


def test_a_closed_engine_says_so(tiny_model: Path) -> None:
    engine = Engine.load(tiny_model)
    engine.close()
    engine.close()
    with pytest.raises(EngineClosedError, match="this engine is closed"):
        engine.generate("x")


def test_waiting_for_oneself_is_an_error_and_closing_frees(tiny_model: Path) -> None:
    # The reference gives a token at a time; the CPU may be done before its first piece is read.
    engine = Engine.load(tiny_model, "reference")
    stream = engine.stream("def f(x):", GREEDY)
    next(stream)
    with pytest.raises(RequestError, match="open streams of this same thread"):
        engine.generate("x")
    stream.close()
    assert stream.finish_reason == "cancelled"
    assert list(stream) == []
    assert engine.generate("x", GREEDY).token_ids


def test_the_last_piece_holds_no_slot(engine: Engine) -> None:
    stream = engine.stream("def f(x):", GREEDY)
    while next(stream).finish_reason is None:
        pass
    assert engine.generate("x", GREEDY).token_ids


def test_an_abandoned_stream_gives_its_slot_back(engine: Engine) -> None:
    next(engine.stream("def f(x):", GREEDY))
    gc.collect()
    assert engine.generate("x", GREEDY).token_ids
    assert not [thread for thread in threading.enumerate() if thread.name == "monolane-reference"]


def test_timings_add_up(engine: Engine) -> None:
    stream = engine.stream("def f(x):", GREEDY)
    answer = stream.result()
    timings = answer.timings
    assert timings == stream.timings
    assert timings.prompt_tokens == len(engine.prompt_ids("def f(x):"))
    assert timings.generated_tokens == 24
    assert timings.time_to_first_token > 0
    assert timings.tokens_per_second == pytest.approx(23 / timings.decode_seconds)


def test_streams_that_come_and_go_do_not_touch_each_other(tiny_model: Path, backend: str) -> None:
    """Threads open, abandon and finish streams on shared slots; every answer stays its own."""
    params = [
        SamplingParams(max_tokens=30, temperature=1.0, seed=s, ignore_eos=True) for s in range(4)
    ]
    with Engine.load(tiny_model, backend, max_sequences=3) as engine:
        alone = [engine.generate("def f(x):", p).token_ids for p in params]
        failures: list[str] = []

        def ask(worker: int) -> None:
            rng = np.random.default_rng(worker)
            for _ in range(6):
                which, keep = int(rng.integers(4)), int(rng.integers(1, 40))
                got: tuple[int, ...] = ()
                with engine.stream("def f(x):", params[which]) as stream:
                    for piece in stream:
                        got += piece.token_ids
                        if len(got) >= keep:
                            break
                if got != alone[which][: len(got)] or not got:
                    failures.append(f"{which}: {got}")

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert engine.generate("def f(x):", params[0]).token_ids == alone[0]
