"""How the rows of a phase's products fall on the warps of a block.

Weights are multiplied as tiles of 16 rows x 16 columns, one matrix instruction each. A *unit* is
what a warp sums on its own: ``group`` row tiles, one below the other, over one of the ``parts``
into which the columns are cut. The same activations serve all row tiles of a unit, so
larger groups read shared memory less. The parts of a row are added in ascending order afterwards,
whatever the width of the pass: that is what makes a row's bits independent of it.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

TILE = 16  # rows and columns of a tile: the A operand of mma.m16n8k16
# Accumulators of a unit: group * 4 registers for each 8 tokens of the pass.
MAX_GROUP = 4
EVEN_ENOUGH = 0.9  # tiles of the block that has fewest, of the busiest one's


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """The units of one kind of phase; the same for every block, the busiest one's rows decide.

    Unit u belongs to warp u % warps in round u // warps; it is part u % parts of row-tile group
    u // parts, which begins at row 16 * group * (u // parts). Column tile k of part p is tile
    p * depth + k of the row. Rows and columns beyond the real ones are zeros in the weights.
    """

    rows: int  # of the busiest block, the phase's matrices one below the other
    columns: int
    warps: int
    group: int  # R: row tiles of a unit
    parts: int  # P
    rounds: int  # units that a warp takes one after the other
    step: int  # J: column tiles of a unit that lie in one ring slot
    steps: int  # ring slots of a round

    @property
    def depth(self) -> int:
        """Column tiles of a part."""
        return self.step * self.steps

    @property
    def round_rows(self) -> int:
        """Rows that the units of a round cover."""
        return self.warps // self.parts * self.group * TILE

    @property
    def padded_rows(self) -> int:
        """Rows that the units cover."""
        return -(-self.rounds * self.warps // self.parts) * self.group * TILE

    @property
    def padded_columns(self) -> int:
        """Columns that the parts cover."""
        return self.parts * self.depth * TILE

    def rounds_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the rounds that blocks with so many rows need."""
        units = -(-rows // (self.group * TILE)) * self.parts
        found: npt.NDArray[np.int64] = -(-units // self.warps)
        return found

    @property
    def slots(self) -> int:
        """Ring slots that the phase fills in a pass."""
        return self.rounds * self.steps

    def slot_bytes(self, tile_bytes: int) -> int:
        """Bytes in each of them; slot s of round n holds [warp][step][group] tiles."""
        return self.warps * self.step * self.group * tile_bytes

    def run_bytes(self, tile_bytes: int) -> int:
        """Bytes that a block streams in the phase."""
        return self.slots * self.slot_bytes(tile_bytes)


def in_smaller_slots(tiling: Tiling, capacity: int) -> Tiling:
    """Return the same units, and so the same sums, over ring slots of ``capacity`` tiles.

    As it is where even one column of a unit's tiles is more.
    """
    most = capacity // (tiling.warps * tiling.group)
    step = next((x for x in range(most, 0, -1) if tiling.depth % x == 0), tiling.step)
    return replace(tiling, step=step, steps=tiling.depth // step)


def find_tiling(
    rows: int, columns: int, warps: int, capacity: int, least: int | None = None
) -> Tiling:
    """Return the units that stream the fewest bytes; ``capacity``: tiles that a ring slot holds.

    ``least``: rows of the block that has fewest. Where it has far fewer tiles than the busiest,
    rounds are of single tiles, so that no block streams more than it has.

    Among equals the one that fills the ring's slots better, then the one that shares activations
    among more row tiles, then the one with fewer parts.
    """
    row_tiles, column_tiles = -(-rows // TILE), -(-columns // TILE)
    uneven = least is not None and -(-least // TILE) < EVEN_ENOUGH * row_tiles
    best: tuple[tuple[float, ...], Tiling] | None = None
    most = 1 if uneven else min(MAX_GROUP, row_tiles, capacity // warps)
    for group in range(1, most + 1):
        for parts in (p for p in range(warps if uneven else 1, warps + 1) if warps % p == 0):
            units = -(-row_tiles // group) * parts
            rounds = -(-units // warps)
            depth = -(-column_tiles // parts)
            for step in range(1, min(capacity // (warps * group), depth) + 1):
                steps = -(-depth // step)
                streamed = rounds * warps * group * step * steps
                fill = min(0.9, warps * group * step / capacity)
                score = (streamed, -fill, -group, parts, -step)
                if best is None or score < best[0]:
                    tiling = Tiling(
                        rows=rows,
                        columns=columns,
                        warps=warps,
                        group=group,
                        parts=parts,
                        rounds=rounds,
                        step=step,
                        steps=steps,
                    )
                    best = (score, tiling)
    assert best is not None, "a ring slot holds at least one tile per warp"
    return best[1]
