"""The phases of attention, plain and latent, in the order of a pass."""

from monolane.ops.attention.plan import attend, latent, out, qkv

PARTS = (qkv.PART, latent.PART, attend.PART, latent.VALUES, out.PART)
