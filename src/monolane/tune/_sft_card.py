"""The model card of a tuned folder: what was done, from the numbers of the run; no claims."""

from pathlib import Path

from monolane.tune._material import Material
from monolane.tune._recipe import SftRecipe
from monolane.tune._staging import licence_lines

_TEMPLATE = """---
library_name: transformers
pipeline_tag: text-generation
base_model: {source}
{licence}tags:
- laneformer
- custom_code
---

# {name}

`{source}` after supervised fine-tuning by `monolane sft`: {steps} steps of {rows} rows,
{passes:.2f} passes over {chats} chats ({tokens:,} tokens, of which {spoken:,} are the assistant's;
only these count in the loss). {fate}

Training loss in nats per token, mean of the first and of the last tenth of the steps: {first:.3f}
and {last:.3f}. What the model says after it has not been measured here.

| field | value |
|---|---|
{fields}
| data, SHA-256 | `{digest}` |
"""


def sft_card(
    source: Path,
    out: Path,
    recipe: SftRecipe,
    material: Material,
    steps: int,
    losses: list[float],
) -> str:
    """Return the text of README.md."""
    tenth = max(1, len(losses) // 10)
    known = losses or [float("nan")]  # a run that was resumed at its end has no step of its own
    fields = [f"| `{name}` | {value} |" for name, value in recipe.to_dict().items()]
    return _TEMPLATE.format(
        source=source.name,
        licence=licence_lines(source),
        name=out.name,
        steps=steps,
        rows=recipe.rows_per_step,
        passes=steps * recipe.rows_per_step / len(material.rows),
        chats=material.chats,
        tokens=material.tokens,
        spoken=material.spoken,
        fate=_fate(material),
        first=sum(known[:tenth]) / len(known[:tenth]),
        last=sum(known[-tenth:]) / len(known[-tenth:]),
        fields="\n".join(fields),
        digest=material.digest,
    )


def _fate(material: Material) -> str:
    if not material.dropped and not material.cut:
        return "No chat was left out or cut."
    return f"Too long for a row: {material.dropped} chats left out, {material.cut} cut at its end."
