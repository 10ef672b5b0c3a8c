"""Embeddings of a backend that hands out hidden states, and the refusal of one that does not."""

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from openai.types import CreateEmbeddingResponse

from monolane import Engine
from monolane.errors import BackendError
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
    normed_LTD = model._normed(model._residual(ids, model.new_cache()))
    heads = zip(normed_LTD, model._outer[Role.HEAD], strict=True)  # of each lane, [V / L, D]
    logits_TV = np.concatenate([y_TD @ head.T for y_TD, head in heads], axis=-1)
    # float32 sums of D terms: the rounding of each is half a unit of the largest partial sum.
    bound = np.abs(logits_TV).max() * engine.config.hidden_size * 2.0**-23
    assert np.abs(logits_TV - engine.logits(ids)).max() <= bound
    hidden_TD = engine.hidden(ids)
    assert hidden_TD.shape == (len(ids), engine.config.hidden_size)
    assert np.array_equal(hidden_TD, normed_LTD.mean(axis=0))


def test_other_backends_say_so() -> None:
    with Engine.load("demo", "cpu") as engine, pytest.raises(BackendError, match="use 'reference'"):
        engine.hidden([1, 2])


def test_embeddings(start: Any, engine: Engine) -> None:
    server = start("--backend", "reference").wait_ready()
    ids = list(engine.prompt_ids(TEXT))
    mean_D = engine.hidden(ids).mean(axis=0)
    wanted = mean_D / np.linalg.norm(mean_D)
    with httpx.Client(base_url=server.url, timeout=120) as client:
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


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embedding", "/embeddings"])
def test_a_backend_without_them_is_named(demo_server: Any, path: str) -> None:
    body = {"input": TEXT}
    reply = httpx.post(f"{demo_server.url}{path}", json=body, timeout=120)
    assert reply.status_code == 501
    assert "the cpu backend hands out no hidden states" in reply.json()["error"]["message"]
