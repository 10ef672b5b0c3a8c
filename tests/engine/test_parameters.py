import re
from typing import Any

import pytest

from monolane import SamplingParams
from monolane.errors import RequestError


def test_defaults_are_greedy() -> None:
    params = SamplingParams()
    assert (params.max_tokens, params.temperature, params.stop) == (64, 0.0, ())


def test_one_stop_text_may_be_given_as_it_is() -> None:
    assert SamplingParams(stop="END").stop == ("END",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "drawn"), [(1e-40, 0.0), (9e-7, 0.0), (1e-6, 1e-6), (1, 1)])
def test_temperatures_near_zero_are_greedy(given: float, drawn: float) -> None:
    assert SamplingParams(temperature=given).draw.temperature == drawn


def test_biases_are_sorted_for_the_draw_and_leave_parameters_hashable() -> None:
    params = SamplingParams(logit_bias={9: 1, 2: float("-inf")})
    assert params.draw.logit_bias == ((2, float("-inf")), (9, 1))
    assert params != SamplingParams()
    assert len({params, SamplingParams(logit_bias={2: float("-inf"), 9: 1})}) == 1


def test_negative_seeds_are_64_bit_words() -> None:
    assert SamplingParams(seed=-1).draw.seed == 2**64 - 1


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("max_tokens", 0, "an integer from 1 to"),
        ("max_tokens", -1, "an integer from 1 to"),
        ("max_tokens", True, "an integer from 1 to"),
        ("max_tokens", 2.5, "an integer from 1 to"),
        ("temperature", -0.1, "a number from 0 to 100"),
        ("temperature", float("nan"), "a number from 0 to 100"),
        ("temperature", float("inf"), "a number from 0 to 100"),
        ("temperature", "1", "a number from 0 to 100"),
        ("temperature", 10**400, "a number from 0 to 100"),
        ("top_k", -1, "an integer from 0 to"),
        ("top_p", 1.1, "a number from 0 to 1"),
        ("min_p", -1, "a number from 0 to 1"),
        ("frequency_penalty", 2.1, "a number from -2 to 2"),
        ("presence_penalty", -2.1, "a number from -2 to 2"),
        ("repetition_penalty", 0, "a number from 0.01 to 100"),
        ("seed", 1 << 64, "an integer from -9223372036854775808 to 18446744073709551615"),
        ("stop", ("",), "texts of 1 to 1024 characters"),
        ("stop", ("x" * 1025,), "texts of 1 to 1024 characters"),
        ("stop", (3,), "texts of 1 to 1024 characters"),
        ("stop", ("x",) * 65, "at most 64 texts"),
        ("stop", None, "a list, got None"),
        ("stop_ids", None, "a list, got None"),
        ("stop_ids", 5, "a list, got 5"),
        ("stop_ids", (-1,), "an integer from 0"),
        ("logprobs", 21, "an integer from 0 to 20"),
        ("logit_bias", {-1: 1}, "an integer from 0"),
        ("logit_bias", {"1": 1}, "an integer from 0"),
        ("logit_bias", {1: 100.5}, "a number from -100 to 100"),
        ("logit_bias", {1: float("inf")}, "a number from -100 to 100"),
        ("logit_bias", {1: float("nan")}, "a number from -100 to 100"),
        ("logit_bias", {1: "5"}, "a number from -100 to 100"),
        ("logit_bias", dict.fromkeys(range(1025), 1), "a mapping of at most 1024 token ids"),
        ("logit_bias", [(1, 1)], "a mapping of at most 1024 token ids"),
        ("visible_ids", (-1,), "an integer from 0"),
    ],
)
def test_values_outside_their_range_are_named(field: str, value: Any, expected: str) -> None:
    with pytest.raises(RequestError, match=f"^{field}: expected {re.escape(expected)}"):
        SamplingParams(**{field: value})
