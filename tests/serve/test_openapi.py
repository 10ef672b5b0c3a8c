"""The API's own description: true, and a source of requests that nobody thought of."""

import json
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from monolane.serve import ServerOptions

LIMIT = ServerOptions().max_body_bytes


def no_server_fault(context: Any, response: Any, case: Any) -> bool | None:
    """Whether the server failed; 501 says that this backend has no such thing, embeddings here."""
    if response.status_code == 501:
        return None
    return not_a_server_error(context, response, case)


# What a description cannot say (a token id below the vocabulary's size, messages with content) is
# refused with 400, so ``positive_data_acceptance`` does not hold.
CHECKS = [
    no_server_fault,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
GETS = ["/health", "/ping", "/version", "/v1/models", "/props", "/slots"]
POSTS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]
FURTHER = ["/v1/responses", "/apply-template", "/v1/messages", "/v1/messages/count_tokens"]
FURTHER += ["/completion", "/infill", "/v1/embeddings", "/embedding"]
FURTHER += ["/v1/chat/completions/input_tokens", "/v1/responses/input_tokens"]
POSTS += FURTHER
STORED = [("GET", "/v1/responses/{id}"), ("DELETE", "/v1/responses/{id}")]
STORED += [("GET", "/v1/responses/{id}/input_items"), ("POST", "/v1/responses/{id}/cancel")]
OPERATIONS = [("GET", path) for path in GETS] + [("POST", path) for path in POSTS] + STORED


def test_every_operation_is_described(demo_server: Any) -> None:
    paths = httpx.get(f"{demo_server.url}/openapi.json", timeout=120).json()["paths"]
    found = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert found == set(OPERATIONS)


def explore(
    server: Any, method: str, path: str, checks: list[Any], examples: int, **headers: str
) -> None:
    """Send requests made from the description of an operation, good and bad; check the replies."""
    document = httpx.get(f"{server.url}/openapi.json", headers=headers, timeout=120).json()
    operation = schemathesis.openapi.from_dict(document)[path][method]
    modes = [GenerationMode.POSITIVE] + [GenerationMode.NEGATIVE] * (method == "POST")
    for mode in modes:

        @settings(
            max_examples=examples,
            derandomize=True,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def test(case: Any) -> None:
            if isinstance(case.body, dict):
                case.body.pop("deadline", None)  # a tiny one is met by a 504, and no fault
                # A 413 is no answer that these checks know.
                assume(len(json.dumps(case.body, default=str)) < LIMIT)
            case.call_and_validate(server.url, headers=headers, checks=checks, timeout=300)

        test()


# Requests are derived from the description, the same in each run: 60 of either mode go through
# every field of a body some times over. 200 are for whoever changes the API.
@pytest.mark.slow
@pytest.mark.parametrize("most", [60, pytest.param(200, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_replies_are_as_described(
    keyed_server: Any, api_key: str, method: str, path: str, most: int
) -> None:
    # The further APIs share what is behind their bodies with the first ones.
    examples = 3 if method != "POST" else min(most, 25) if path in FURTHER else most
    key = f"Bearer {api_key}"
    explore(keyed_server, method, path, CHECKS, examples, Authorization=key)
    assert keyed_server.health() == (200, "ok")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_other_methods_and_keys_are_refused(
    keyed_server: Any, api_key: str, method: str, path: str
) -> None:
    checks = [unsupported_method]
    if path not in ("/health", "/ping"):
        checks.append(ignored_auth)
    explore(keyed_server, method, path, checks, 2, Authorization=f"Bearer {api_key}")
