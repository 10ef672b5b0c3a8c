import sys
from typing import Any

import pytest

from monolane.errors import RequestError
from monolane.train import Fleet


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"processes": 0}, "processes and nodes of 1 or more"),
        ({"nodes": 2, "node": 2, "address": "a:1"}, "a node below nodes"),
        ({"nodes": 2}, "host:port of node 0"),
        ({"nodes": 2, "address": "here"}, "give --address"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Fleet(**values)


def test_command_lines() -> None:
    python = sys.executable
    assert Fleet().command(["train"]) == [python, "-m", "monolane", "train"]
    several = Fleet(processes=8, nodes=4, node=3, address="first:29500").command(["train", "x"])
    assert several == [
        *(python, "-m", "torch.distributed.run", "--max-restarts", "0", "--nproc-per-node", "8"),
        *("--nnodes", "4", "--node-rank", "3", "--master-addr", "first", "--master-port", "29500"),
        *("-m", "monolane", "train", "x"),
    ]
    assert "--standalone" in Fleet(processes=2).command([])
