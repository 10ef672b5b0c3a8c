"""Document masks: proven by disturbing another document, and held against each other."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_mask

from monolane.hf import LaneformerConfig, LaneformerForCausalLM
from monolane.train._attention import _predicate, document_masks

_CUTS = (5, 21, 40)  # where documents of the first row begin, besides 0; the window is 8
_LENGTH = 48


@pytest.fixture(scope="module")
def model() -> LaneformerForCausalLM:
    torch.manual_seed(0)
    config = LaneformerConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=_LENGTH,
        num_lanes=2,
        sliding_window=8,
        swa_layers=[0, 1],
    )
    return LaneformerForCausalLM(config).eval()


def _documents() -> torch.Tensor:
    """Document numbers [2, T]: four documents in the first row, one in the second."""
    place_T = torch.arange(_LENGTH)
    first_T = sum((place_T >= cut).int() for cut in _CUTS)
    assert isinstance(first_T, torch.Tensor)
    return torch.stack([first_T, torch.zeros_like(first_T)])


@torch.no_grad()
def _logits(model: LaneformerForCausalLM, ids_BT: torch.Tensor, masked: bool) -> torch.Tensor:
    masks = document_masks(model.config, _documents(), flex=False) if masked else None
    logits: torch.Tensor = model(input_ids=ids_BT, attention_mask=masks, use_cache=False).logits
    return logits


@pytest.mark.parametrize("disturbed", range(len(_CUTS) + 1))
def test_no_document_sees_another(model: LaneformerForCausalLM, disturbed: int) -> None:
    torch.manual_seed(1)
    ids_BT = torch.randint(0, 64, (2, _LENGTH))
    other_BT = ids_BT.clone()
    here_BT = _documents() == disturbed
    here_BT[1] = False
    other_BT[here_BT] = (other_BT[here_BT] + 1) % 64
    same = torch.eq(_logits(model, ids_BT, True), _logits(model, other_BT, True)).all(-1)
    assert same[~here_BT].all()  # bit for bit
    assert not same[here_BT].any()


def test_without_the_mask_they_do(model: LaneformerForCausalLM) -> None:
    torch.manual_seed(1)
    ids_BT = torch.randint(0, 64, (2, _LENGTH))
    other_BT = ids_BT.clone()
    other_BT[0, 0] = (other_BT[0, 0] + 1) % 64
    same = torch.eq(_logits(model, ids_BT, False), _logits(model, other_BT, False)).all(-1)
    assert not same[0, _LENGTH - 1]


def test_a_document_in_a_packed_row_is_the_document_alone(model: LaneformerForCausalLM) -> None:
    torch.manual_seed(2)
    ids_BT = torch.randint(0, 64, (2, _LENGTH))
    packed = _logits(model, ids_BT, True)
    with torch.no_grad():
        alone = model(input_ids=ids_BT[:1, 21:40], use_cache=False).logits
    # Rotary angles count from the row's start; only their differences matter, to float32.
    torch.testing.assert_close(packed[0, 21:40], alone[0], rtol=1e-4, atol=1e-5)


def test_the_predicate_for_gpus_is_the_matrix_for_cpus(model: LaneformerForCausalLM) -> None:
    documents_BT = _documents()
    matrices = document_masks(model.config, documents_BT, flex=False)
    for kind, window in (("sliding_attention", 8), ("full_attention", None)):
        dense = create_mask(_predicate(documents_BT, window), 2, None, _LENGTH, _LENGTH, "cpu")
        assert torch.equal(dense, matrices[kind])


def test_the_block_masks_keep_every_visible_pair(model: LaneformerForCausalLM) -> None:
    documents_BT = _documents()
    matrices = document_masks(model.config, documents_BT, flex=False)
    blocks = document_masks(model.config, documents_BT, flex=True)
    assert blocks.keys() == matrices.keys()
    for kind, mask in blocks.items():
        assert mask.shape == (2, 1, _LENGTH, _LENGTH)
        blocky = mask.to_dense().bool()  # [2, 1, blocks, blocks]
        assert blocky.all() == matrices[kind].any()


@pytest.mark.filterwarnings("ignore")  # torch's compiler, only imported here, warns of torch
def test_the_path_for_gpus_gives_the_same_logits(model: LaneformerForCausalLM) -> None:
    """In eager mode, forward only: flex_attention trains on GPUs, where its kernel is compiled."""
    torch.manual_seed(3)
    ids_BT = torch.randint(0, 64, (2, _LENGTH))
    expected = _logits(model, ids_BT, True)
    masks = document_masks(model.config, _documents(), flex=True)
    before = model.config._attn_implementation
    model.config._attn_implementation = "flex_attention"
    try:
        with torch.compiler.set_stance("force_eager"), torch.no_grad():
            got = model(input_ids=ids_BT, attention_mask=masks, use_cache=False).logits
    finally:
        model.config._attn_implementation = before
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
