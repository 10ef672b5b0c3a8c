"""A learned residual of low rank, as its definition."""

from monolane.ops._names import Role
from monolane.ops.laurel.spec import Laurel
from monolane.reference import Computation, Floats, LayerPass, linear


def _run(o: Laurel, p: LayerPass, x_1TD: Floats) -> Floats:
    del o
    made = linear(linear(x_1TD, p.weights[Role.LAUREL_LEFT]), p.weights[Role.LAUREL_RIGHT])
    return x_1TD + p.norm(made, p.weights[Role.LAUREL_NORM])


COMPUTATION = Computation(Laurel, _run)
