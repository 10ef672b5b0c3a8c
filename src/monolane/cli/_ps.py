"""``monolane ps``: the servers of this user."""

import json
import sys
import time

from monolane.cli import _options as options


def ps(as_json: options.Json = False) -> None:
    """List the servers that run for this user."""
    from monolane.cli._servers import running_servers
    from monolane.cli._table import print_table

    found = running_servers()
    if as_json:
        sys.stdout.write(json.dumps({"servers": found}) + "\n")
        return
    head = ("process", "model", "address", "memory", "since")
    print_table(
        head,
        [
            (
                str(x["process"]),
                x["model"],
                x["url"],
                f"{x['memory_bytes'] / 1e9:,.1f} GB",
                time.strftime("%Y-%m-%d %H:%M", time.localtime(x["began"])),
            )
            for x in found
        ],
    )
