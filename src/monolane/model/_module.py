"""What executors read of a layer: a list of modules, each an operation with sizes of its own.

A config says sizes as families do, for all layers alike, and what differs in one of them. In its
modules both are put together: whoever computes a layer asks them, and never the config for a size.
"""

from dataclasses import dataclass

from monolane.model._reduce import Reduce
from monolane.ops import Operation


@dataclass(frozen=True, slots=True)
class Module:
    """An operation, and the rule by which it reads the streams and what it says joins them."""

    operation: Operation
    reduce: Reduce
    scale: float  # of what a stream gains from it, reduced and, where it is normed, normed
    norm_before: bool  # what it reads is normed
    norm_after: bool  # what a stream gains from it, reduced, is normed
    stream_scale: bool = False  # behind it the streams are multiplied by the layer's LAYER_SCALE
    # What it says, normed where it is, joins the streams with what the next module says: their sum
    # is normed by the layer's JOINT_NORM, and that is what is scaled.
    held: bool = False
    joint_norm: bool = False  # the other way round: of it and the module before
    beside: bool = False  # it reads what the module before it reads: both join the streams after it
    same_norm: bool = False  # by that one's norm: what both read is one and the same
    replaces: bool = False  # the streams begin anew with what it says
    stream_factor: float = 1.0  # behind it the streams are multiplied by it
    aside: bool = False  # what it says joins all streams of AltUp but the one that layers work on
