"""Which workers serve which lanes.

Lanes exchange rarely, so the workers that share a lane's rows are kept few: there are
gcd(lanes, workers) groups, each with as many consecutive lanes and as many consecutive workers.
Eight lanes on 2 workers are 2 groups of 4 lanes x 1 worker; on 128 workers 8 groups of 1 x 16; on
3 workers one group of 8 x 3. A dense model is one lane, hence one group.
"""

from dataclasses import dataclass
from math import gcd


@dataclass(frozen=True, slots=True)
class Groups:
    """The partition of lanes and workers into groups."""

    lanes: int  # L
    workers: int  # W

    @property
    def count(self) -> int:
        """Number of groups, G."""
        return gcd(self.lanes, self.workers)

    @property
    def lanes_each(self) -> int:
        """Lanes of a group."""
        return self.lanes // self.count

    @property
    def workers_each(self) -> int:
        """Workers of a group."""
        return self.workers // self.count

    def of(self, worker: int) -> int:
        """Return the group of a worker."""
        return worker // self.workers_each

    def lanes_of(self, group: int) -> range:
        """Return the lanes of a group."""
        return range(group * self.lanes_each, (group + 1) * self.lanes_each)

    def workers_of(self, group: int) -> range:
        """Return the workers of a group."""
        return range(group * self.workers_each, (group + 1) * self.workers_each)
