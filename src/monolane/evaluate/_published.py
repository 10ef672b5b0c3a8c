"""Figures that a model's makers published, to stand beside ours of the same model.

From the model card of kogai/laneformer-2b-it, section "Evaluation": June 2026, their own serving
endpoint, FP16, batch size 1. Percent.
"""

from collections.abc import Mapping

_LONG = {
    "niah_single_1": (100.00, 100.00),
    "niah_single_2": (100.00, 100.00),
    "niah_single_3": (99.80, 91.60),
    "niah_multikey_1": (99.20, 83.40),
    "niah_multikey_2": (97.80, 60.00),
    "niah_multikey_3": (91.80, 91.20),
    "niah_multiquery": (95.40, 69.70),
    "niah_multivalue": (94.60, 82.20),
    "vt": (77.92, 3.92),
    "cwe": (24.72, 78.14),
    "fwe": (78.80, 64.73),
}
# Model -> (task, metric) -> figure.
PUBLISHED: Mapping[str, Mapping[tuple[str, str], float]] = {
    "kogai/laneformer-2b-it": {
        ("humaneval+", "pass@1"): 45.1,
        ("mbpp+", "pass@1"): 51.6,
        ("arc_challenge", "acc_norm"): 31.06,
        ("arc_easy", "acc_norm"): 47.90,
        **{
            ("ruler", f"{task} at {length}"): figure
            for task, figures in _LONG.items()
            for length, figure in zip((2048, 4096), figures, strict=True)
        },
    }
}
# The tasks of that card, in its order.
CARD_TASKS = tuple(dict.fromkeys(task for task, _ in PUBLISHED["kogai/laneformer-2b-it"]))


def published(model: str, task: str, metric: str) -> float | None:
    """Return what the makers of a model (``name@revision`` too) published, or None."""
    return PUBLISHED.get(model.partition("@")[0], {}).get((task, metric))
