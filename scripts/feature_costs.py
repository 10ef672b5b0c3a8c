"""What features cost, from git: `python scripts/feature_costs.py` writes CONTRIBUTING.md's table.

    python scripts/feature_costs.py             # anew, where the clone has the history
    python scripts/feature_costs.py REV NAME    # one commit, or a range, that is not in the list

Counts source files that a commit changed and made by hand: in src/ and csrc/, without tests, pages,
generated headers and stubs. A goal is no use if only the best case is shown, so each table ends
with medians. The second table is of features since an operation is a folder: the goal is six
existing files in the median, and no file of csrc in more than a quarter of them.
"""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
TABLE = re.compile(r"(?<=<!-- costs -->\n).*?(?=<!-- /costs -->)", re.DOTALL)
BY_HAND = re.compile(r"^(src|csrc)/(?!tests/|.*_abi\.h$|.*\.pyi$)")

FEATURES = {  # commit, or a range of them: what it brought
    "e3c8f7b": "layer: query and key norms, on reference alone",
    "79343d8": "layer: mixtures of experts",
    "e8d8474": "layer: GPT-OSS, MXFP4",
    "c153f38": "layer: latent attention",
    "395007e": "layer: a shared expert's gate",
    "c796d4b": "layer: gated delta rules",
    "71299b7": "layer: a gated short convolution, on reference and cpu",
    "9706bbe": "draw: three penalties",
    "7a9e195": "load: KV cache in int8 and int4",
    "035781b": "load: experts in a file",
    "910477b": "load: ranks of one host",
    "c844350": "load: ranks by TCP",
    "0036f77": "speculation: drafts verified in the pass",
    "6d42ae0": "speculation: drafts of guided answers",
    "4785659": "server: Responses",
    "7389f89": "server: Messages",
    "616db61": "server: llama.cpp's API",
}

SINCE = {  # the same, since an operation is a folder
    "b30aeb8": "family: LFM2 and LFM2-MoE",
    "ff9a147": "families: Granite, Seed-OSS, Ernie 4.5, EXAONE 4, OLMo 3",
    "e8f1cb4": "families: Phi-3, GLM-4, GLM-4.5's mixtures, MiniMax-M2",
    "7c3227e": "GGUF: Phi-3, GLM-4, EXAONE 4",
    "53545a9": "GGUF: GLM-4.5's mixtures, MiniMax-M2",
    "5ae038f": "families: Qwen3.5, Ministral 3, Hunyuan, GLM-4.7-Flash, Gemma 2 and three more",
    "ff36b46": "families: Command-R, R7B and A, Ernie 4.5's mixtures, Llama 4",
    "a008e1c": "families: Mistral 4, Kimi-K2.5's text",
    "c341e18": "layer: Gemma 4's normed values, keys that are values, scales",
    "7e9f469": "layer: per-layer embeddings",
    "cd7cdaa": "layer: Gemma 4's experts beside an MLP",
    "a0411d0": "layer: Mamba-2",
    "9b30fde": "families: Granite 4, Nemotron-H and 3, Falcon-H1, Bamba",
    "4039d70": "layer and family: Kimi Linear",
    "42a411c": "layer and family: Gemma 3n, on reference",
    "88a649e": "layer: Gemma 3n's streams, on interpreter and cpu",
    "afebb13": "GGUF: Gemma 3n",
    "2894486": "layer and family: DeepSeek-V3.2 and GLM-5, on reference",
    "f48fc7c": "layer and family: DeepSeek-V4, on reference",
    "2368ea3": "chat: DeepSeek-V4",
    "ef4f84d": "files: DeepSeek-V4's own",
    "7290ada": "files: IQ, TQ, Q2_K, Q3_K, NVFP4 of GGUF",
    "bea7a84": "files: MLX in 4 bits",
    "edc749d": "files: NVFP4 folders, MLX in other bits",
    "33b19b9": "files: NAME.scale of GGUF",
    "3f3a840": "models by the names people have for them",
    "06bd49c": "drafts: nextn heads",
    "0ac6b7c": "drafts: EAGLE-3",
    "579b4c9": "drafts: tune eagle",
    "16caedd": "drafts: Gemma 4's assistants",
    "cce8d06": "GGUF: Mistral 4, DeepSeek-V3.2, GLM-5, DeepSeek-V4",
    "d96724d": "family: Gemma 4 unified, and its assistants",
    "c9a5048": "families: Gemma, EXAONE 3, GLM, OLMoE, Arcee, Helium, Ministral, CWM",
    "5b5c524": "families: Granite 3's mixtures",
    "2e1b20d": "draw: tokens that are never drawn",
    "8daa872": "families: dots.llm1, Solar Open, Youtu-LLM, IQuest-Coder, HyperCLOVA X, 3 more",
    "db07545": "drafts: DFlash",
}


@dataclass(frozen=True)
class Cost:
    """Source files of one feature: how many were changed and are new, and which of csrc changed."""

    changed: int
    new: int
    csrc: tuple[str, ...]


def cost(revision: str) -> Cost:
    """Count the files of a commit, or of a range `A..B`."""
    span = revision if ".." in revision else f"{revision}^..{revision}"
    command = ["git", "-C", str(ROOT), "diff", "--name-status", "--no-renames", span]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split("\t") for line in said.splitlines()]
    changed = [path for kind, path in rows if kind == "M" and BY_HAND.search(path)]
    new = [path for kind, path in rows if kind == "A" and BY_HAND.search(path)]
    return Cost(len(changed), len(new), tuple(path for path in changed if path.startswith("csrc")))


def table(features: dict[str, str]) -> str:
    """Return the rows, the medians last."""
    costs = {revision: cost(revision) for revision in features}
    lines = ["| feature | existing files | new files | commit |", "|---|---|---|---|"]
    for revision, name in features.items():
        lines.append(f"| {name} | {costs[revision].changed} | {costs[revision].new} | {revision} |")
    changed, new = (
        median(getattr(x, which) for x in costs.values()) for which in ("changed", "new")
    )
    lines.append(f"| **median of {len(costs)}** | **{changed:g}** | **{new:g}** | |")
    return "\n".join(lines) + "\n"


def busiest(features: dict[str, str]) -> str:
    """Return which file of csrc most of them changed."""
    path, count = Counter(
        path for revision in features for path in cost(revision).csrc
    ).most_common(1)[0]
    return f"Of csrc, `{path}` was changed by most of these {len(features)}: by {count}.\n"


def main(arguments: list[str]) -> int:
    """Exit status 2: usage."""
    if len(arguments) == 2:
        print(table({arguments[0]: arguments[1]}))
        return 0
    if arguments:
        print(__doc__)
        return 2
    since = "Since an operation is a folder (`71299b7`); a commit of several families counts once:"
    tables = "\n".join((table(FEATURES), since, "", table(SINCE), busiest(SINCE)))
    PAGE.write_text(TABLE.sub(lambda _: tables, PAGE.read_text()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
