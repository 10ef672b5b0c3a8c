"""The processes of a run, and the command lines that start them on one machine of several."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from monolane.errors import ConfigError


@dataclass(frozen=True)
class Fleet:
    """The processes of a run: how many on this machine, and this machine among others."""

    processes: int = 1  # on each node; on GPUs one each
    nodes: int = 1
    node: int = 0  # which one this is
    address: str = ""  # host:port of node 0, which the others reach it by

    def __post_init__(self) -> None:
        if self.processes < 1 or self.nodes < 1 or not 0 <= self.node < self.nodes:
            raise ConfigError(
                "launch: expected processes and nodes of 1 or more and a node below nodes, got "
                f"{self.processes}, {self.nodes} and {self.node}"
            )
        host, _, port = self.address.rpartition(":")
        if self.nodes > 1 and not (host and port.isdigit()):
            raise ConfigError(
                f"launch: expected the host:port of node 0 for {self.nodes} nodes, got "
                f"{self.address!r}; give --address"
            )

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command line that starts monolane's ``arguments`` in each process."""
        if self.processes == self.nodes == 1:
            return [sys.executable, "-m", "monolane", *arguments]
        host, _, port = self.address.rpartition(":")
        # Fixed ranks: after a restart each node has the rank, and so the rows, that it had.
        where = ["--standalone"]
        if self.nodes > 1:
            where = ["--nnodes", f"{self.nodes}", "--node-rank", f"{self.node}"]
            where += ["--master-addr", host, "--master-port", port]
        return [
            *(sys.executable, "-m", "torch.distributed.run", "--max-restarts", "0"),
            *("--nproc-per-node", f"{self.processes}", *where),
            *("-m", "monolane", *arguments),
        ]
