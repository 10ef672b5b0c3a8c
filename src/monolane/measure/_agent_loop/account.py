"""Where the time of an agent's run went, what faster decode would save, and what the run costs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from monolane.measure._agent_loop.call import Call

SCHEMA = 1
FASTER = (1, 2, 4, 8, 16, 32)
_ASKED = ("generation", "prefill", "waiting")  # parts of the time with a request in flight


def account(calls: Sequence[Call], seconds: float, price: float | None) -> dict[str, Any]:
    """Return the account of a run of ``seconds``, with a request or more.

    price: of the model's node, per hour.
    tools: time between requests, so the agent's own work is in it; outside: before the first
    request and behind the last. Where requests overlap, the time that they cover together is
    shared out as their own times are.
    """
    in_flight = _covered(calls)
    own = {part: sum(getattr(call, part) for call in calls) for part in _ASKED}
    together = sum(own.values())
    scale = in_flight / together if together else 0.0
    parts = {part: value * scale for part, value in own.items()}
    outside = min(call.begin for call in calls) + seconds - max(call.end for call in calls)
    parts["tools"] = seconds - in_flight - outside
    bound = max(parts, key=lambda part: parts[part])
    parts["outside"] = outside
    return {
        "schema": SCHEMA,
        "seconds": seconds,
        "parts": parts,
        "shares": {part: value / seconds for part, value in parts.items()},
        "bound_by": bound,
        "steps": [asdict(call) for call in calls],
        "overlapping": together > in_flight * 1.001,
        "unsplit": sum(call.split == "none" for call in calls),
        "failed": sum(call.status != 200 for call in calls),
        "prompt_tokens": sum(call.prompt_tokens or 0 for call in calls),
        "cached_tokens": sum(call.cached or 0 for call in calls),
        "tokens": sum(call.tokens or 0 for call in calls),
        "price_per_hour": price,
        "faster": [_faster(parts, factor, price) for factor in FASTER],
        "most_saved": parts["generation"],
    }


def _faster(parts: Mapping[str, float], factor: float, price: float | None) -> dict[str, Any]:
    """Return what is left of a run whose decode is so many times as fast, and what that costs.

    cost       the node is held for the whole run
    cost_busy  it serves others while no request of this run is in flight
    """
    saved = parts["generation"] * (1 - 1 / factor)
    seconds = sum(parts.values()) - saved
    busy = seconds - parts["tools"] - parts["outside"]
    hour = None if price is None else price / 3600
    return {
        "factor": factor,
        "seconds": seconds,
        "saved": saved,
        "cost": None if hour is None else seconds * hour,
        "cost_busy": None if hour is None else busy * hour,
    }


def _covered(calls: Sequence[Call]) -> float:
    """Return the seconds in which one request or more is in flight."""
    total, until = 0.0, 0.0
    for call in sorted(calls, key=lambda each: each.begin):
        total += max(0.0, call.end - max(call.begin, until))
        until = max(until, call.end)
    return total


def render_account(found: Mapping[str, Any]) -> str:
    """Return an account as Markdown."""
    bound = found["bound_by"]
    head = (
        f"{found['seconds']:.1f} s, {len(found['steps'])} requests, bound by {bound}: "
        f"{100 * found['shares'][bound]:.0f} % of the time."
    )
    lines = [
        *("# Where an agent's time went", "", head, ""),
        *("| part | s | share |", "|---|---:|---:|"),
        *(
            f"| {part} | {value:.2f} | {100 * found['shares'][part]:.1f} % |"
            for part, value in found["parts"].items()
        ),
        *("", "## If decode were faster", ""),
        *("| times | run, s | saved, s | cost, node held | cost, while asked |",),
        "|---:|---:|---:|---:|---:|",
    ]
    for row in found["faster"]:
        cells = [f"{row['factor']}", f"{row['seconds']:.2f}", f"{row['saved']:.2f}"]
        cells += [_money(row["cost"]), _money(row["cost_busy"])]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"No speed of decode saves more than {found['most_saved']:.2f} s.", ""]
    lines += ["## Steps", "", "| step | at, s | tools before, s | waiting | prefill | generation |"]
    lines[-1] += " tokens read | of these cached | drawn |"
    lines.append("|---:" * 9 + "|")
    before = 0.0
    for number, step in enumerate(found["steps"], 1):
        since = max(0.0, step["begin"] - before) if number > 1 else 0.0
        cells = [f"{number}", f"{step['begin']:.2f}", f"{since:.2f}"]
        cells += [f"{step[part]:.2f}" for part in ("waiting", "prefill", "generation")]
        cells += [_count(step[name]) for name in ("prompt_tokens", "cached", "tokens")]
        lines.append(f"| {' | '.join(cells)} |")
        before = max(before, step["end"])
    lines += ["", *_notes(found)]
    return "\n".join(lines).rstrip() + "\n"


def _notes(found: Mapping[str, Any]) -> list[str]:
    meaning = (
        "- tools: the time between requests, the agent's own work included; outside: before the "
        "first request and behind the last."
    )
    notes = [meaning]
    if found["price_per_hour"] is not None:
        notes.append(f"- Costs at {found['price_per_hour']:g} per hour of the node.")
    if found["overlapping"]:
        notes.append("- Requests overlap: the time that they cover is shared out among them.")
    if found["unsplit"]:
        notes.append(
            f"- {found['unsplit']} replies tell neither timings nor a first chunk: all their time "
            "counts as generation, which is too much."
        )
    if found["failed"]:
        notes.append(f"- {found['failed']} requests failed.")
    return notes


def _money(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
