"""A kind of phase is described in one file, and passes have the phases that docs/plan.md tells."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from monolane.model import ModelConfig
from monolane.ops import modules
from monolane.plan import DeviceDescription, PhaseKind, build
from monolane.plan._kinds import LAST, first_parts, kinds, parts_before

SOURCES = Path(__file__).parents[2] / "src" / "monolane"
DENSE = "GATE_UP DOWN"
MIXTURE = "ROUTE EXPERT_GATE_UP EXPERT_DOWN"
OUTER = "QKV ATTEND OUT"
STATES = "DELTA_IN DELTA DELTA_OUT"
CONV = "CONV_IN CONV CONV_OUT"
KDA = "KDA_IN KDA_UP KDA KDA_OUT"
MAMBA = "MAMBA_IN MAMBA MAMBA_OUT"
PER_LAYER = "PER_LAYER_GATE PER_LAYER_OUT"
LAUREL = "LAUREL_LEFT LAUREL_RIGHT LAUREL_NORM"
SPARSE = "SPARSE_GATE_UP SPARSE_DOWN"
LATENT = "LATENT EXPAND ATTEND VALUES OUT"


@pytest.mark.parametrize(
    ("name", "layers", "last"),
    [
        ("dense", [f"{OUTER} {DENSE}"] * 3, "HEAD CHOOSE"),
        ("late_norms_of_lanes", [f"QKV NORM_QK ATTEND OUT {DENSE}"] * 3, "HEAD CHOOSE"),
        ("mixture", [f"{OUTER} {one}" for one in (MIXTURE, DENSE, MIXTURE)], "HEAD CHOOSE"),
        ("latent", [f"{LATENT} {DENSE}"] * 3, "HEAD CHOOSE"),
        (
            "latent_mixture",
            [f"{LATENT} {one}" for one in (DENSE, MIXTURE, MIXTURE)],
            "HEAD CHOOSE",
        ),
        ("delta", [f"{one} {DENSE}" for one in (STATES, OUTER, STATES)], "HEAD CHOOSE"),
        (
            "delta_mixture",
            [f"{OUTER} {MIXTURE}", f"{STATES} {MIXTURE}", f"{OUTER} {DENSE}", f"{STATES} {DENSE}"],
            "HEAD CHOOSE",
        ),
        ("kda", [f"{KDA} {DENSE}", f"{LATENT} {DENSE}", KDA], "HEAD CHOOSE"),
        ("conv", [f"{CONV} {DENSE}", f"{OUTER} {DENSE}", CONV], "HEAD CHOOSE"),
        (
            "mamba",
            [MAMBA, f"{OUTER} {MAMBA} {DENSE}", DENSE, f"{MAMBA} {MIXTURE}"],
            "HEAD CHOOSE",
        ),
        (
            "per_layer",
            [*[f"{OUTER} {DENSE} {PER_LAYER}"] * 2, f"{PER_LAYER} {OUTER} {DENSE}"],
            "HEAD CHOOSE",
        ),
        (
            "altup",
            [
                f"ALTUP_PREDICT {OUTER} {LAUREL} {mlp} ALTUP_CORRECT {PER_LAYER}"
                for mlp in (SPARSE, DENSE, SPARSE)
            ],
            "ALTUP_OUT ALTUP_MEAN HEAD CHOOSE",
        ),
        ("laurel", [f"{LAUREL} {DENSE}", f"{OUTER} {LAUREL} {SPARSE}"], "HEAD CHOOSE"),
        (
            "beside",
            [f"{OUTER} {DENSE} {MIXTURE}", f"{STATES} {OUTER} {MIXTURE} {DENSE}"],
            "HEAD CHOOSE",
        ),
        ("sum_head", [f"{OUTER} {DENSE}"] * 2, "GATHER HEAD CHOOSE"),
    ],
)
def test_the_phases_of_a_pass(
    configs: dict[str, ModelConfig],
    device_of: Callable[..., DeviceDescription],
    name: str,
    layers: list[str],
    last: str,
) -> None:
    """Stated anew: builder and checker read the order of the parts from one list."""
    plan = build(configs[name], device_of(2), "float32")
    first = ["EMBED"] + ["PER_LAYER_INPUTS"] * (name in ("per_layer", "altup"))
    first += ["ALTUP_IN"] * (name == "altup")
    assert " ".join(phase.kind.name for phase in plan.phases) == " ".join((*first, *layers, last))
    inside = [phase.layer for phase in plan.phases if phase.layer >= 0]
    assert inside == [i for i, kinds in enumerate(layers) for _ in kinds.split()]


def test_every_kind_is_described_once() -> None:
    layer = [part for place in range(4) for part in parts_before(place)]
    layer += [part for module in modules("plan") for part in module.PARTS]
    described = [kind for part in (*first_parts(), *layer, *LAST) for kind in part.kinds]
    assert sorted(described) == sorted(PhaseKind)
    assert list(kinds()) == list(PhaseKind)


def test_only_its_own_file_names_a_kind() -> None:
    """What builds, checks, costs, lays out and interprets plans knows no kind by its name."""
    found = {
        path.relative_to(SOURCES): set(re.findall(r"\bPhaseKind\.([A-Z_]+)\b", path.read_text()))
        for package in ("plan", "ops")
        for path in (SOURCES / package).rglob("*.py")
    }
    files = {
        kind.name: [file for file, names in found.items() if kind.name in names] for kind in kinds()
    }
    assert {name: len(each) for name, each in files.items()} == dict.fromkeys(files, 1), files
    for file in (file for each in files.values() for file in each):
        assert file.parts[0] == "ops" or file.parent.name == "_kinds", file
