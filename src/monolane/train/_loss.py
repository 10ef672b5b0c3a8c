"""The loss of packed rows, as sums: means are taken over the tokens of all devices and passes.

A mean per pass would weigh a pass with few targets as much as one with many, so the same batch cut
otherwise would be another loss.
"""

from torch import Tensor

from monolane.data import IGNORED


def summed_losses(logits_BTV: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return, summed over the targets that count: cross entropy in nats, and logsumexp squared.

    The second is what the z-loss weighs (PaLM, 2022): it holds the normaliser near 1, so that
    logits do not drift to where 16 bits are coarse.
    """
    counts_BT = targets_BT != IGNORED
    logits_BTV = logits_BTV.float()
    normaliser_BT = logits_BTV.logsumexp(-1)
    target_BT = logits_BTV.gather(-1, targets_BT.clamp_min(0)[..., None])[..., 0]
    nats = ((normaliser_BT - target_BT) * counts_BT).sum()
    return nats, (normaliser_BT.square() * counts_BT).sum()
