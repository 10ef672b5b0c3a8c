"""What renderings cost: reads templates, JSON on stdin; prints one JSON row for each.

Each is rendered in a fork of this process, so that what one takes is not another's. A row has
"mb", the most that the fork grew by in 10^6 bytes, and "outcome": "" or the error's text.
"""

import json
import os
import resource
import sys
from pathlib import Path

from monolane.text import ChatTemplate

HI = [{"role": "user", "content": "hi"}]
ROOM = 1_000_000_000  # bytes that a rendering may map beyond what is there: the machine is ours too

SECONDS = 60  # of processor time, after which the kernel ends what no count did


def status(field: str) -> int:
    """Return bytes of /proc/self/status."""
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) * 1024


def cost(source: str) -> dict[str, object]:
    """Render, and return the row; only in a fork."""
    template = ChatTemplate(source)
    most, before = status("VmSize") + ROOM, status("VmRSS")
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    try:
        template.render(HI)
        outcome = ""
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    return {"mb": (status("VmHWM") - before) / 1e6, "outcome": outcome[:300]}


def main() -> None:
    """Render each in a fork."""
    ChatTemplate("{{ [1] | tojson }}").render(HI)  # what is imported once
    for source in json.load(sys.stdin):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                row = json.dumps(cost(source))
            except BaseException as error:
                row = json.dumps({"mb": 0, "outcome": f"{type(error).__name__}: {error}"[:300]})
            os.write(write, row.encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            row = pipe.read()
        _, code = os.waitpid(child, 0)
        sys.stdout.write(row or json.dumps({"mb": 0, "outcome": f"ended with status {code}"}))
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
