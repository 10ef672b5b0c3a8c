"""How wide the matrices of an operation are: what codes of whole groups of columns ask of it."""

from monolane.ops import Attention, Delta, Experts, Kind, Mlp, Operation


def matrix_columns(operation: Operation, hidden: int, lanes: int) -> list[tuple[str, int]]:
    """Return what a config calls the columns of its matrices, but for the stream's, and numbers."""
    match operation:
        case Attention(latent=latent):
            columns = [("num_heads * head_dim / lanes", operation.out_columns // lanes)]
            names = () if latent is None else ("rank", "plain", "query_rank")
            return columns + [(f"latent.{x}", getattr(latent, x) or 0) for x in names]
        case Delta():
            return [("delta.value_heads * delta.value", operation.columns)]
        case Experts():
            return [("experts.inner", operation.inner), ("experts.shared", operation.shared)]
        case Mlp():
            return [("intermediate_size / lanes", operation.inner // lanes)]
    shapes = operation.tensors(hidden, lanes).items()
    return [(x, shape[-1]) for x, shape in shapes if x.kind is Kind.MATRIX]
