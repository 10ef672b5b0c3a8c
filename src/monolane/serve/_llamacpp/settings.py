"""How an answer was drawn, and how fast, in llama.cpp's words."""

import math
from typing import Any

from monolane.engine import Engine, SamplingParams
from monolane.serve._http.fields import SAMPLERS

Json = dict[str, Any]
# Samplers that are off here, at the values that say so there.
_OFF: Json = {
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "typical_p": 1.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "dry_sequence_breakers": [],
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
    "n_keep": 0,
    "n_discard": 0,
    "min_keep": 0,
    "post_sampling_probs": False,
    "backend_sampling": False,
    "lora": [],
}


def generation_settings(params: SamplingParams, engine: Engine, max_tokens: int | None) -> Json:
    """Return ``generation_settings``; ``max_tokens`` None: as many as fit, which is -1 there."""
    limit = -1 if max_tokens is None else max_tokens
    biases = dict(params.logit_bias)
    if params.ignore_eos:  # as llama.cpp does it: a ban
        biases |= dict.fromkeys(sorted(engine.eos_ids), -math.inf)
    return {
        **_OFF,
        "seed": params.seed,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_last_n": -1,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "stop": list(params.stop),
        "max_tokens": limit,
        "n_predict": limit,
        "ignore_eos": params.ignore_eos,
        "logit_bias": [
            {"bias": bias if math.isfinite(bias) else None, "token": token}
            for token, bias in biases.items()
        ],
        "n_probs": params.logprobs or 0,
        "samplers": SAMPLERS,
    }


def native_timings(timings: Json) -> Json:
    """Return ``timings`` as this API has them: there, ``prompt_n`` leaves out what was kept."""
    read, spent = timings["prompt_n"] - timings["cache_n"], timings["prompt_ms"]
    told = {name: value for name, value in timings.items() if value is not None}
    return told | {"prompt_n": read, "prompt_per_token_ms": round(spent / max(1, read), 4)}
