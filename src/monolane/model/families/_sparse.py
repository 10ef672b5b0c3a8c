"""Which layers of a model are mixtures of experts, where dense ones come first."""

from monolane.model._fields import Fields
from monolane.model.families._family import layer_count

SPARSE, DENSE = "sparse", "dense"


def read_sparse(fields: Fields, dense: int = 1) -> list[bool]:
    """Tell of each layer whether it is a mixture, as ``mlp_layer_types`` says.

    Without that field all are from layer ``first_k_dense_replace`` on, by default from ``dense``.
    """
    count, kinds = layer_count(fields), fields.raw.get("mlp_layer_types")
    if kinds is None:
        first = fields.size("first_k_dense_replace", dense, minimum=0)
        return [i >= first for i in range(count)]
    known = isinstance(kinds, list) and all(kind in (SPARSE, DENSE) for kind in kinds)
    if not known or len(kinds) != count:
        expected = f"a list of {count} kinds of MLPs, one a layer: {SPARSE!r} or {DENSE!r}"
        raise fields.fault("mlp_layer_types", expected)
    return [kind == SPARSE for kind in kinds]
