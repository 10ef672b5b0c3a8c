"""Embeddings of backends that hand out hidden states, and the refusal of one that does not."""

import base64
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest
from openai.types import CreateEmbeddingResponse

from monolane import Engine
from monolane.errors import BackendError
from monolane.measure import paced_engine
from monolane.model import Role
from monolane.reference._model import ReferenceModel

TEXT = "def add(a, b):"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load("demo", "reference") as engine:
        yield engine


def test_hidden_states_are_what_the_head_reads(engine: Engine) -> None:
    ids = engine.prompt_ids(TEXT)
    model = ReferenceModel(engine._files.weights())
    normed_LTD = model._normed(model._residual(ids, model.new_cache(), None))
    heads = zip(normed_LTD, model._outer[Role.HEAD], strict=True)  # of each lane, [V / L, D]
    logits_TV = np.concatenate([y_TD @ head.T for y_TD, head in heads], axis=-1)
    # float32 sums of D terms: the rounding of each is half a unit of the largest partial sum.
    bound = np.abs(logits_TV).max() * engine.config.hidden_size * 2.0**-23
    assert np.abs(logits_TV - engine.logits(ids)).max() <= bound
    hidden_TD = engine.hidden(ids)
    assert hidden_TD.shape == (len(ids), engine.config.hidden_size)
    assert np.array_equal(hidden_TD, normed_LTD.mean(axis=0))


@pytest.fixture(scope="module")
def native() -> Iterator[Engine]:
    with Engine.load("demo", "cpu", dtype="float32") as engine:
        yield engine


def test_the_cpu_backend_has_them_too(engine: Engine, native: Engine) -> None:
    ids = engine.prompt_ids(TEXT * 20)
    wanted_TD, found_TD = engine.hidden(ids), native.hidden(ids)
    # Each of 4 products per layer sums at most F or D terms in another order: 2^-24 of each partial
    # sum, a random walk over terms and products. Factor 8: the largest value, not the typical one.
    config = engine.config
    terms = max(config.hidden_size, config.intermediate_size)
    bound = 8 * 2.0**-24 * np.sqrt(4 * config.num_layers * terms) * np.abs(wanted_TD).max()
    assert np.abs(found_TD - wanted_TD).max() <= bound


def test_bits_do_not_depend_on_how_a_text_is_cut(native: Engine) -> None:
    ids = native.prompt_ids(TEXT * 20)  # more than a pass holds
    whole_TD = native.hidden(ids)
    native.backend.truncate(0, 0)
    cuts = [0, 1, 40, 41, len(ids)]
    parts = [native.backend.hidden(0, ids[a:b]) for a, b in pairwise(cuts)]
    assert np.array_equal(np.concatenate(parts), whole_TD)
    logits_TV = native.logits(ids)  # the other way to read a text still works
    assert logits_TV.shape == (len(ids), native.config.vocab_size)


def test_a_cancelled_text_ends_early(native: Engine) -> None:
    asked = iter((False, True))
    found_TD = native.hidden(native.prompt_ids(TEXT * 20), lambda: next(asked))
    assert found_TD.shape == (64, native.config.hidden_size)


def test_other_backends_say_so() -> None:
    with paced_engine(1000) as engine, pytest.raises(BackendError, match="use 'cpu'"):
        engine.hidden([1, 2])


def test_embeddings(demo_server: Any) -> None:
    with Engine.load("demo", "cpu") as engine:
        ids = list(engine.prompt_ids(TEXT))
        mean_D = engine.hidden(ids).mean(axis=0)
    wanted = mean_D / np.linalg.norm(mean_D)
    with httpx.Client(base_url=demo_server.url, timeout=120) as client:
        reply = client.post("/v1/embeddings", json={"input": [TEXT, ids]}).json()
        CreateEmbeddingResponse.model_validate(reply)
        assert [one["index"] for one in reply["data"]] == [0, 1]
        for one in reply["data"]:
            assert np.array_equal(np.float32(one["embedding"]), np.float32(wanted))
        assert reply["usage"] == {"prompt_tokens": 2 * len(ids), "total_tokens": 2 * len(ids)}
        body = {"input": ids, "encoding_format": "base64", "dimensions": len(wanted)}
        data = client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
        assert np.array_equal(np.frombuffer(base64.b64decode(data), "<f4"), np.float32(wanted))
        for path in ("/embedding", "/embeddings"):
            (native,) = client.post(path, json={"content": TEXT}).json()
            assert np.array_equal(np.float32(native["embedding"][0]), np.float32(wanted))
        for wrong in ({"input": ""}, {"input": []}, {"input": TEXT, "dimensions": 3}, {}):
            reply = client.post("/v1/embeddings", json=wrong)
            assert reply.status_code == 400
            if "dimensions" not in wrong and wrong:
                assert "input: expected a text, token ids" in reply.json()["error"]["message"]


def test_texts_take_turns_with_answers_and_end_with_their_client(
    start: Any, eventually: Callable[..., None]
) -> None:
    server = start("--policy", "latency").wait_ready()
    many = {"input": [TEXT * 100] * 256}  # a minute of work
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/embeddings", json=many, timeout=0.5)
    body = {"prompt": [5], "max_tokens": 2}
    assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).status_code == 200
    eventually(lambda: server.metric("vllm:num_requests_running") == 0)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embedding", "/embeddings"])
def test_a_backend_without_them_is_named(paced: Callable[..., Any], path: str) -> None:
    server = paced(tokens_per_second=1000)
    reply = httpx.post(f"{server.url}{path}", json={"input": [5]}, timeout=120)
    assert reply.status_code == 501
    assert "the paced backend hands out no hidden states" in reply.json()["error"]["message"]
