"""The kinds of phases, a file for each few that belong together, and their order in a pass.

To add a kind: its name in _phase.py, its file here, and its place in the lists below. All that the
builder, the checker, the costs and the interpreter know of it is in that file.
"""

from collections.abc import Mapping

from monolane.plan._kinds import attend, choose, delta, embed, experts, head, latent, mlp, out, qkv
from monolane.plan._kinds.kind import Kind, Part
from monolane.plan._phase import PhaseKind

FIRST = (embed.PART,)
# Of each layer; some are there in place of others.
LAYER = (
    qkv.PART,
    latent.PART,
    attend.PART,
    latent.VALUES,
    out.PART,
    delta.PART,
    mlp.PART,
    experts.PART,
)
LAST = (head.PART, choose.PART)
PARTS: tuple[Part, ...] = (*FIRST, *LAYER, *LAST)
KINDS: Mapping[PhaseKind, Kind] = {
    kind: part.kinds[kind] for kind in PhaseKind for part in PARTS if kind in part.kinds
}

__all__ = ["FIRST", "KINDS", "LAST", "LAYER", "PARTS", "Kind", "Part"]
