"""What a caller may ask of a forward pass, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from monolane.hf import LaneformerForCausalLM

IDS = torch.tensor([[1, 7, 3, 20, 11, 4], [2, 2, 9, 0, 21, 5]])


@pytest.fixture
def model(tiny: Callable[..., Any]) -> Any:
    return LaneformerForCausalLM(tiny()).eval()


@torch.no_grad()
def test_loss_is_the_mean_over_labelled_next_tokens(model: Any) -> None:
    labels_BT = IDS.clone()
    labels_BT[0, :3] = -100
    output = model(IDS, labels=labels_BT)
    expected = functional.cross_entropy(
        output.logits[:, :-1].flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=-100
    )
    torch.testing.assert_close(output.loss, expected)
    assert not torch.isclose(output.loss, model(IDS, labels=IDS).loss)


@torch.no_grad()
def test_logits_to_keep(model: Any) -> None:
    all_BTV = model(IDS).logits
    assert all_BTV.shape == (2, 6, 22)
    torch.testing.assert_close(model(IDS, logits_to_keep=2).logits, all_BTV[:, -2:])
    some = torch.tensor([0, 4])
    torch.testing.assert_close(model(IDS, logits_to_keep=some).logits, all_BTV[:, some])


@torch.no_grad()
def test_embeddings_in_place_of_ids(model: Any) -> None:
    given_BTD = model.get_input_embeddings()(IDS)
    assert torch.equal(model(inputs_embeds=given_BTD).logits, model(IDS).logits)
    for wrong in ({}, {"input_ids": IDS, "inputs_embeds": given_BTD}):
        with pytest.raises(ValueError, match="either input_ids or inputs_embeds, got"):
            model(**wrong)


@torch.no_grad()
def test_hidden_states_are_the_lanes_side_by_side(model: Any) -> None:
    output = model(IDS, output_hidden_states=True)
    assert len(output.hidden_states) == 5
    embedding_BTD = model.get_input_embeddings()(IDS)
    assert torch.equal(output.hidden_states[0], embedding_BTD.repeat(1, 1, 2))
    last_LBTD = output.hidden_states[-1].unflatten(-1, (2, 16)).permute(2, 0, 1, 3)
    normed_BTX = model.model.norm(last_LBTD).permute(1, 2, 0, 3).flatten(2)
    torch.testing.assert_close(model.lm_head(normed_BTX), output.logits)
    assert model(IDS).hidden_states is None


@torch.no_grad()
def test_tuples_for_those_who_want_them(model: Any) -> None:
    loss, logits_BTV = model(IDS, labels=IDS, return_dict=False, use_cache=False)
    output = model(IDS, labels=IDS)
    assert torch.equal(loss, output.loss)
    assert torch.equal(logits_BTV, output.logits)


@torch.no_grad()
def test_compiles_without_a_graph_break(model: Any) -> None:
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(compiled(IDS, use_cache=False).logits, model(IDS).logits)


def test_attention_weights_are_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="expected output_attentions=False, got True"):
        model(IDS, output_attentions=True)


@pytest.mark.parametrize("kind", ["vocab_parallel", "lane"])
def test_laned_heads_refuse_to_resize(kind: str, tiny: Callable[..., Any]) -> None:
    model = LaneformerForCausalLM(tiny(lm_head_type=kind))
    with pytest.raises(ValueError, match=f"expected lm_head_type 'replicate'.*got '{kind}'"):
        model.resize_token_embeddings(30)
    assert model.resize_token_embeddings() is model.get_input_embeddings()


@torch.no_grad()
@pytest.mark.parametrize("tied", [False, True])
def test_the_replicated_head_resizes(tied: bool, tiny: Callable[..., Any]) -> None:
    model = LaneformerForCausalLM(tiny(lm_head_type="replicate", tie_word_embeddings=tied)).eval()
    before_BTV = model(IDS).logits
    model.resize_token_embeddings(30, mean_resizing=False)
    assert model.config.vocab_size == 30
    torch.testing.assert_close(model(IDS).logits[..., :22], before_BTV)
    assert model(IDS).logits.shape[-1] == 30


def test_initial_weights(tiny: Callable[..., Any]) -> None:
    config = tiny(hidden_size=128, intermediate_size=256, vocab_size=512, initializer_range=0.02)
    model = LaneformerForCausalLM(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
            continue
        narrow = name.endswith(("wo.weight", "w2.weight"))
        expected = 0.02 / (2 * 4) ** 0.5 if narrow else 0.02
        # 8192 draws or more: the spread of a standard deviation is 1 / sqrt(2 * 8192) = 0.8 %.
        assert parameter.std().item() == pytest.approx(expected, rel=0.04), name
        assert abs(parameter.mean().item()) < 5 * expected / parameter.numel() ** 0.5, name
