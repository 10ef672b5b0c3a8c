"""Generation state: cached decoding, left padding and position ids against one plain forward."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from monolane.hf import LaneformerForCausalLM

# Logits of size 1 to 10 in float32 (epsilon 1.2e-7), a few hundred sums deep, in another order.
TOLERANCE = 2e-5


@pytest.fixture(params=["eager", "sdpa"])
def model(request: pytest.FixtureRequest, tiny: Callable[..., Any]) -> Any:
    config = tiny()
    config._attn_implementation = request.param
    return LaneformerForCausalLM(config).eval()


def _ids(*shape: int) -> Tensor:
    return torch.randint(0, 22, shape)


@torch.no_grad()
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_cached_equals_full_past_the_window(model: Any, chunk: int) -> None:
    ids_BT = _ids(2, 29)
    assert model.config.sliding_window * 4 < ids_BT.shape[1]
    past = None
    pieces = []
    for part_BT in ids_BT.split(chunk, dim=1):
        output = model(part_BT, past_key_values=past, use_cache=True)
        past = output.past_key_values
        pieces.append(output.logits)
    full_BTV = model(ids_BT, use_cache=False).logits
    torch.testing.assert_close(torch.cat(pieces, 1), full_BTV, atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_a_cache_is_taken_by_either_of_its_names(model: Any) -> None:
    """generate() says past_key_values up to transformers 5.23, and cache from 5.24 on."""
    ids_BT = _ids(2, 11)
    full_BTV = model(ids_BT, use_cache=False).logits[:, 7:]
    for name in ("past_key_values", "cache"):
        past = model(ids_BT[:, :7], use_cache=True).past_key_values
        logits_BTV = model(ids_BT[:, 7:], **{name: past}).logits
        torch.testing.assert_close(logits_BTV, full_BTV, atol=TOLERANCE, rtol=0)
    with pytest.raises(ValueError, match="as cache or as past_key_values, got both"):
        model(ids_BT, past_key_values=past, cache=past)


@torch.no_grad()
def test_the_window_hides_what_lies_before_it(tiny: Callable[..., Any]) -> None:
    model = LaneformerForCausalLM(tiny(swa_layers=[0, 1, 2, 3], num_hidden_layers=4)).eval()
    ids_BT = _ids(1, 24)
    changed_BT = ids_BT.clone()
    changed_BT[0, 0] = (ids_BT[0, 0] + 1) % 22
    moved_T = (model(ids_BT).logits - model(changed_BT).logits).abs().amax((0, 2)) > 0
    # Four layers of window 5 pass a token on over 4 * (5 - 1) positions and no further.
    assert moved_T[:17].all()
    assert not moved_T[17:].any()


@torch.no_grad()
def test_left_padded_batch_equals_unpadded(model: Any) -> None:
    long_T, short_T = _ids(17), _ids(11)
    pad = len(long_T) - len(short_T)
    ids_BT = torch.stack([long_T, torch.cat([torch.zeros(pad, dtype=torch.long), short_T])])
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1, :pad] = 0
    position_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
    logits_BTV = model(ids_BT, attention_mask=mask_BT, position_ids=position_BT).logits
    assert logits_BTV.isfinite().all()  # a NaN of a padded position would reach the others
    for row, alone_T in ((0, long_T), (1, short_T)):
        alone_TV = model(alone_T[None]).logits[0]
        torch.testing.assert_close(
            logits_BTV[row, -len(alone_T) :], alone_TV, atol=TOLERANCE, rtol=0
        )
    # Relative rotation makes the logits blind to a common shift; only unequal ids would show.
    shifted_BTV = model(ids_BT, attention_mask=mask_BT).logits
    torch.testing.assert_close(shifted_BTV[1, pad:], logits_BTV[1, pad:], atol=TOLERANCE, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("cache", [{}, {"cache_implementation": "static"}])
def test_left_padded_generation_equals_unpadded(model: Any, cache: dict[str, str]) -> None:
    long_T, short_T = _ids(13), _ids(6)
    pad = len(long_T) - len(short_T)
    ids_BT = torch.stack([long_T, torch.cat([torch.zeros(pad, dtype=torch.long), short_T])])
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1, :pad] = 0

    def generate(ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
        options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
        return model.generate(ids_BT, attention_mask=mask_BT, pad_token_id=0, **options, **cache)

    together_BT = generate(ids_BT, mask_BT)
    for row, alone_T in ((0, long_T), (1, short_T)):
        alone_BT = generate(alone_T[None], torch.ones_like(alone_T[None]))
        assert torch.equal(together_BT[row, -12:], alone_BT[0, -12:])


@torch.no_grad()
def test_packed_sequences_do_not_see_each_other(model: Any) -> None:
    first_T, second_T = _ids(9), _ids(12)
    position_BT = torch.cat([torch.arange(9), torch.arange(12)])[None]
    packed_BT = torch.cat([first_T, second_T])[None]
    packed_BTV = model(packed_BT, position_ids=position_BT, use_cache=False).logits
    apart_TV = torch.cat([model(x[None]).logits[0] for x in (first_T, second_T)])
    torch.testing.assert_close(packed_BTV[0], apart_TV, atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_beam_search_reorders_the_cache(model: Any) -> None:
    ids_BT = _ids(2, 7)
    beams = [
        model.generate(
            ids_BT,
            attention_mask=torch.ones_like(ids_BT),
            num_beams=3,
            max_new_tokens=9,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            use_cache=use_cache,
        )
        for use_cache in (True, False)
    ]
    assert torch.equal(*beams)


def test_training_keeps_no_cache_unless_asked(model: Any) -> None:
    ids_BT = _ids(1, 6)
    assert model(ids_BT).past_key_values is not None
    model.train()
    assert model(ids_BT).past_key_values is None
    assert model(ids_BT, use_cache=True).past_key_values is not None
