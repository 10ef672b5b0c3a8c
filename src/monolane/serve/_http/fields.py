"""Fields of other servers' requests that are not ours: which change nothing, and which are refused.

A client's setting must never be dropped in silence. The fields that are honoured are those of the
bodies' models, and those of ``_grammar.structured``. Every other field of the chat and
completion requests of OpenAI, vLLM and llama.cpp stands here. Fields that no such server has are
accepted, since clients send notes of their own.
"""

import json
from collections.abc import Mapping
from typing import Any

from monolane.errors import RequestError

# As a request's settings and /props tell them.
SAMPLERS = ["penalties", "temperature", "top_k", "top_p", "min_p"]
# They name the sender, a cache, an order or another place of work, or adjust what is refused below.
HARMLESS = frozenset(
    (
        *("user", "metadata", "store", "safety_identifier", "service_tier", "request_id"),
        *("session_id", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
        *(
            "prediction",
            "priority",
            "cache_salt",
            "stream_interval",
            "spaces_between_special_tokens",
        ),
        *("truncation_side", "routed_experts_prompt_start", "return_mm_kwargs"),
        *("return_token_offsets", "guided_decoding_backend"),
        # llama.cpp: its cache and slots, and parameters of samplers that must be off.
        *("cache_prompt", "id_slot", "n_cache_reuse", "n_keep", "n_discard", "backend_sampling"),
        *("speculative.n_max", "speculative.n_min", "speculative.p_min", "speculative.type"),
        *("speculative.ngram_size_n", "speculative.ngram_size_m", "speculative.ngram_m_hits"),
        *("dynatemp_exponent", "mirostat_tau", "mirostat_eta", "xtc_threshold"),
        *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
        *("adaptive_decay", "grammar_triggers", "preserved_tokens", "chat_format", "chat_parser"),
        *("reasoning_budget_start_tag", "reasoning_budget_end_tag", "reasoning_budget_message"),
        "reasoning_budget_arm_immediately",
    )
)
# Values of fields of ours that stand for their absence in one of these APIs, and so do in all of
# ours (docs/serving.md has the table). Of a seed: vLLM's and llama.cpp's, also without its sign.
NEW_SEEDS = (-1, (1 << 32) - 1)
# Values besides null that change nothing; any other is a 400 that names the field.
REFUSED: Mapping[str, tuple[Any, ...]] = {
    # Sampling that no executor defines.
    "length_penalty": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "watermarking": (False,),
    "repetition_detection": (),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "typical_p": (1,),
    "top_n_sigma": (-1, 0),
    "typ_p": (1,),
    "tfs_z": (1,),
    "min_keep": (0,),
    "mirostat": (0,),
    "dynatemp_range": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "adaptive_target": (-1,),
    # The order of docs/sampling.md, and what /props says of it.
    "samplers": (["temperature", "top_k", "top_p", "min_p"], SAMPLERS),
    "lora": ([],),
    "n_indent": (0,),
    "t_max_predict_ms": (0, -1),
    "grammar_lazy": (False,),
    # Prompts of other kinds, and other ways to make them.
    "suffix": ("",),
    "prompt_embeds": (),
    "truncate_prompt_tokens": (-1,),
    "add_special_tokens": (False,),  # of a chat: the template says what comes first
    "chat_template": (),
    "documents": ([],),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "web_search_options": (),
    # Answers of other kinds.
    "audio": (),
    "modalities": (["text"],),
    "verbosity": ("low", "medium", "high"),  # no model here can be told
    "moderation": (),
    "echo": (False,),  # of a chat
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "include_reasoning": (True,),
    "thinking_token_budget": (-1,),
    "reasoning_budget_tokens": (-1,),
    "reasoning_format": ("auto", "deepseek"),
    "thinking_forced_open": (False,),
    "parse_tool_calls": (True,),
    "prompt_logprobs": (),
    "logprob_token_ids": (),
    "post_sampling_probs": (False,),
    "return_tokens_as_token_ids": (False,),
    "return_tokens": (False,),
    "return_prompt_text": (False,),
    "response_fields": ([],),
    "kv_transfer_params": ({},),
    "ec_transfer_params": ({},),
    "vllm_xargs": ({},),
    "n_cmpl": (1,),
}


def check_fields(extra: Mapping[str, Any]) -> None:
    """Raise RequestError for the first field that asks for what is not done.

    ``extra`` are the fields of a request that its model does not have.
    """
    for name, value in extra.items():
        neutral = REFUSED.get(name)
        if neutral is not None and value is not None and value not in neutral:
            allowed = ", ".join(["null", *map(json.dumps, neutral)])
            got = json.dumps(value, ensure_ascii=False)
            raise RequestError(f"{name}: not supported; expected {allowed}, got {got:.80}")
