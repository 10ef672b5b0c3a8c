"""A table that tells each token's experts, checked: it comes out of files that others wrote."""

from monolane.errors import CheckpointError
from monolane.model._safetensors import Array
from monolane.ops import Experts


def check_table(table: Array, experts: Experts | None, place: str) -> None:
    """Refuse a table of other numbers than experts have; ``place`` names file and tensor."""
    assert experts is not None
    for wrong in (int(table.min()), int(table.max())):
        if not 0 <= wrong < experts.count:
            raise CheckpointError(
                f"{place}: expected numbers of experts, 0 to {experts.count - 1}, got {wrong}; "
                "fetch the file again"
            )
