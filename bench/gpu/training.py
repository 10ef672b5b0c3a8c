"""Training on one GPU, 90 seconds of each command: `python bench/gpu/training.py`.

    python studies/delay/prepare.py           # ahead, without a GPU: packages that may be missing
    python bench/gpu/training.py --carried studies/delay/carried --out OUT
    python bench/gpu/training.py --rehearse   # no GPU: tiny models, three steps each
    python bench/gpu/monokernel/run.py --fold OUT/*-training.json    # results into the ledger

`train`, `sft` and `retrofit --distil` run as a user would call them, on models of random weights
and text that means nothing: what is measured is tokens/s, memory and MFU, of `train` beside its
forecast. Each is asked to stop after its time, as by Ctrl-C. Needs torch for the GPU, transformers
and tensorboard; no C++ core, and no network.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

RUN = Path(__file__).resolve()
ROOT = RUN.parents[2]
for folder in (ROOT / "src", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import numpy as np  # noqa: E402

from bench.gpu._campaign import FIRST, Part  # noqa: E402
from bench.gpu._device import device_line, lacks_torch  # noqa: E402
from bench.gpu._packages import provide  # noqa: E402
from bench.gpu._page import number, page, section, with_bounds  # noqa: E402
from bench.gpu._script import Script  # noqa: E402
from bench.gpu._stage import Budget, CheckError, NotMeasuredError, Stage, speed  # noqa: E402
from bench.gpu.monokernel._ledger import CARDS, card_of  # noqa: E402
from monolane._results import Document, Record  # noqa: E402

DEMO = ROOT / "src" / "monolane" / "demo"  # whose vocabulary all models here have
_UNTIMED = 3  # steps at a run's begin: compilation, and the allocator's first blocks
_INTERRUPTED = 130  # a command's exit status after Ctrl-C


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes of a run; lengths in tokens."""

    model: str  # the name in the records
    emulated: bool
    # Of a command, its imports and compilation among them; then it is asked to stop.
    seconds: float
    config: str  # of `train`: a shipped one
    settings: tuple[str, ...] = ()
    steps: int  # of each command at most
    corpus: int
    sft: dict[str, Any]  # a recipe
    chats: int
    turns: tuple[int, int]  # words of a question, and of its answer
    dense: dict[str, Any]  # config.json of the model that is retrofitted
    lanes: int
    window: int
    rows: int  # windows of a step
    texts: int  # of a thousand words, to distil on
    device: str
    precision: str


# SmolLM2-135M's shape.
_DENSE = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": True,
    "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
}  # fmt: skip
FULL = Scale(
    model="laneformer_100m", emulated=False, seconds=90.0, config="laneformer_100m",
    steps=2_000, corpus=48_000_000,
    sft={"precision": "bfloat16", "rows_per_step": 32, "rows_at_once": 8, "too_long": "cut"},
    chats=4_000, turns=(40, 80), dense=_DENSE, lanes=3, window=512, rows=64, texts=4_000,
    device="cuda", precision="bfloat16",
)  # fmt: skip
REHEARSAL = Scale(
    model="tiny", emulated=True, seconds=300.0, config="tiny",
    settings=("model.vocab_size=2048", "compute.threads=1"), steps=_UNTIMED + 2, corpus=20_000,
    sft={"rows_per_step": 2, "too_long": "cut"}, chats=8, turns=(4, 8),
    dense=_DENSE | {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 3,
                    "num_attention_heads": 3, "vocab_size": 2048, "max_position_embeddings": 64},
    lanes=3, window=32, rows=2, texts=2, device="cpu", precision="float32",
)  # fmt: skip


# ---- what is trained on, and what it should take -------------------------------------------------
def build(stage: Stage, job: str) -> None:
    """The device; a corpus, chats, a text and two models in the folder of work; the forecast."""
    scale: Scale = stage.scale
    stage.emit(device_line(scale.emulated))
    if lacks := lacks_torch(scale.emulated):
        raise NotMeasuredError(lacks)
    rng = np.random.default_rng(0)
    write_ids(stage.work / "corpus", scale.corpus, rng)
    known = json.loads((DEMO / "tokenizer.json").read_text())["model"]["vocab"]
    words = np.array([x for x in sorted(known) if x.isascii() and x.isalpha()])

    def say(count: int) -> str:
        return " ".join(words[rng.integers(0, len(words), count)])

    with (stage.work / "text.jsonl").open("w") as file:
        for _ in range(scale.texts):
            file.write(json.dumps({"text": say(1_000)}) + "\n")
    with (stage.work / "chats.jsonl").open("w") as file:
        for _ in range(scale.chats):
            asked, answered = map(say, scale.turns)
            turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
            file.write(json.dumps({"messages": turns}) + "\n")
    recipe = scale.sft | {"steps": scale.steps}
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in recipe.items()]
    (stage.work / "sft.toml").write_text("".join(lines))
    write_model(stage.work / "dense", scale.dense, rng)
    write_model(stage.work / "laneformer", laneformer(scale), rng)
    stage.attempt("forecast", forecast, scale)


def write_ids(folder: Path, count: int, rng: np.random.Generator) -> None:
    """A corpus of so many tokens drawn from nothing, in documents of a thousand."""
    from monolane.data import Encoded, write_corpus

    def documents() -> Iterator[Encoded]:
        for _ in range(max(1, count // 1000)):
            ids = np.concatenate([[1], rng.integers(3, 2048, 998), [2]])
            yield Encoded(ids, 4 * len(ids))

    if not folder.exists():  # an earlier command's
        write_corpus(folder, DEMO, {"ids": (documents(), iter(()))})


def write_model(folder: Path, config: dict[str, Any], rng: np.random.Generator) -> None:
    """A model of random weights with the demo's vocabulary."""
    from monolane.model import parse_config, tensor_specs, write_checkpoint

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).write_bytes((DEMO / name).read_bytes())
    specs = tensor_specs(parse_config(config))
    write_checkpoint(
        folder, [(x.name, rng.standard_normal(x.shape, np.float32) / 50) for x in specs]
    )


def settings(scale: Scale, work: Path) -> list[str]:
    """What `train` has besides its config; on random ids a loss says nothing to a guard."""
    return [
        *scale.settings, f"data.corpus={work / 'corpus'}", f"schedule.steps={scale.steps}",
        "schedule.warmup=1", "schedule.decay=1", "validation.every=0", "guard.enabled=false",
        "log.tensorboard=false", f"checkpoint.every={scale.steps}",
    ]  # fmt: skip


def laneformer(scale: Scale) -> dict[str, Any]:
    """config.json of what `train` makes."""
    from monolane.train import load_config
    from monolane.train._config import config_fields

    fields = config_fields(load_config(scale.config, scale.settings).model)
    return {"model_type": "laneformer", **fields, "torch_dtype": "float32"}


def forecast(scale: Scale) -> Record:
    """What `train --dry-run --rehearse` says of one device: memory, and tokens/s at most."""
    import torch

    from monolane.train import forecast, load_config, rehearse

    config = load_config(scale.config, scale.settings)
    step = rehearse(config, 1)
    card = card_of(torch.cuda.get_device_name()) if torch.cuda.is_available() else CARDS[0]
    card = card if card in CARDS else CARDS[0]
    return {
        "memory_gb": forecast(config, 1, 0.25).memory.total / 1e9,
        "step_gb": step.peak_bytes / 1e9,
        "most_tokens_per_s": step.tokens / step.seconds(card),
        "of": card,
    }


# ---- the commands --------------------------------------------------------------------------------
def train(stage: Stage, job: str) -> None:
    """`monolane train`, whose journal says everything."""
    run = place(stage, "trained")
    words = ["train", stage.scale.config, "--output", str(run)]
    for setting in settings(stage.scale, stage.work):
        words += ["--set", setting]

    def figures() -> Record:
        run_command(stage, words)
        steps = journal(run)
        more: Record = {
            "waited": sum(x["waited"] for x in steps) / sum(x["seconds"] for x in steps)
        }
        if "mfu" in steps[0]:
            more["mfu"] = statistics.median(x["mfu"] for x in steps)
        return speed([x["tokens_per_s"] for x in steps]) | memory() | more

    stage.attempt("train", figures)


def sft(stage: Stage, job: str) -> None:
    """`monolane sft`, all weights."""
    words = ["sft", str(stage.work / "chats.jsonl"), "--model", str(stage.work / "laneformer"),
             "--output", str(place(stage, "tuned")), "--recipe", str(stage.work / "sft.toml"),
             "--save-every", str(stage.scale.steps)]  # fmt: skip

    def figures() -> Record:
        run_command(stage, words)
        steps = journal(stage.work / "tuned.run")
        return speed([x["tokens_per_s"] for x in steps]) | memory()

    stage.attempt("sft", figures)


def distil(stage: Stage, job: str) -> None:
    """`monolane retrofit --distil`, which says a line a step and keeps no times."""
    scale: Scale = stage.scale
    words = ["retrofit", "--model", str(stage.work / "dense"), "--output",
             str(place(stage, "distilled")), "--lanes", str(scale.lanes), "--delay", "2",
             "--distil", str(stage.work / "text.jsonl"), "--window", str(scale.window),
             "--rows", str(scale.rows), "--steps", str(scale.steps), "--device", scale.device,
             "--precision", scale.precision, "--save-every", str(scale.steps)]  # fmt: skip

    def figures() -> Record:
        at = [second for second, line in run_command(stage, words) if line.startswith("step ")]
        seconds = np.diff(at[_UNTIMED - 1 :])
        check_steps(len(at))
        return speed([scale.rows * scale.window / x for x in seconds]) | memory()

    stage.attempt("distil", figures)


def place(stage: Stage, name: str) -> Path:
    """Where a command writes; what an earlier one left there is removed."""
    for old in (stage.work / name, stage.work / f"{name}.run"):
        shutil.rmtree(old, ignore_errors=True)
    return stage.work / name


def run_command(stage: Stage, words: Sequence[str]) -> list[tuple[float, str]]:
    """Run a command of monolane here; return what it told, with the second of each line.

    CheckError if it ended in another way than by itself or by the signal that is sent here.
    """
    from monolane.cli import main

    before, sys.argv = sys.argv, ["monolane", *words]
    told: list[tuple[float, str]] = []
    with interrupted_after(stage.scale.seconds) as limit:
        try:
            with limit.listening(), stamped(told):
                main()
        except KeyboardInterrupt:  # of this signal, before the command listens
            if not limit.asked:
                raise
        except SystemExit as end:
            if end.code not in (0, None) and not (limit.asked and end.code == _INTERRUPTED):
                last = " ".join(line for _, line in told[-3:])
                raise CheckError(
                    f"monolane {words[0]}: expected exit status 0, got {end.code}: {last}"
                ) from end
        finally:
            sys.argv = before
    return told


class Limit:
    """Whether a command was asked to end, by a SIGINT, and whether one is there to be asked."""

    def __init__(self) -> None:
        self.asked = False
        self._over = False

    def ask(self) -> None:
        """Send this process a SIGINT."""
        self.asked = True
        os.kill(os.getpid(), signal.SIGINT)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """After this block the signal that was sent comes too late, and ends nothing."""
        try:
            yield
        finally:
            self._over = True

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """End what runs; where nothing does, only somebody else's signal is an interrupt."""
        if not (self._over and self.asked):
            raise KeyboardInterrupt


@contextmanager
def interrupted_after(seconds: float) -> Iterator[Limit]:
    """Send this process a SIGINT after so long, if what the block runs is not over before."""
    limit = Limit()
    # What a shell put in the background inherits that SIGINT is ignored.
    before = signal.signal(signal.SIGINT, limit.interrupt)
    timer = threading.Timer(seconds, limit.ask)
    timer.daemon = True
    timer.start()
    try:
        yield limit
    finally:
        timer.cancel()
        timer.join()  # a signal that is being sent comes while it is listened for
        signal.signal(signal.SIGINT, before)


@contextmanager
def stamped(told: list[tuple[float, str]]) -> Iterator[None]:
    """Note each line that goes to stderr, and when."""
    with redirect_stderr(Stamped(sys.stderr, told)):
        yield


class Stamped:
    """A stream that passes on what it is given, and notes its lines."""

    def __init__(self, stream: TextIO, told: list[tuple[float, str]]) -> None:
        self._stream = stream
        self._told = told
        self._line = ""

    def write(self, text: str) -> int:
        """Pass text on."""
        *whole, self._line = (self._line + text).split("\n")
        now = time.perf_counter()
        self._told.extend((now, line) for line in whole)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def journal(folder: Path) -> list[dict[str, Any]]:
    """The steps of a run but its first ones."""
    lines = [json.loads(x) for x in (folder / "log.jsonl").read_text().splitlines()]
    steps = [x for x in lines if "loss" in x]
    check_steps(len(steps))
    return steps[_UNTIMED:]


def check_steps(count: int) -> None:
    """NotMeasuredError where nothing is left to time."""
    if count <= _UNTIMED:
        raise NotMeasuredError(f"{count} steps were done in its time, and {_UNTIMED} are not timed")


def memory() -> Record:
    """The most that tensors took, and that torch held for them; nothing on a processor."""
    import torch

    if not torch.cuda.is_available():
        return {}
    return {
        "memory_gb": torch.cuda.max_memory_allocated() / 1e9,
        "reserved_gb": torch.cuda.max_memory_reserved() / 1e9,
    }


# ---- the page ------------------------------------------------------------------------------------
def render(document: Document) -> str:
    """The page of a results document."""
    records = document["records"]
    foreseen: Record = next((x for x in records if x["name"] == "forecast" and "step_gb" in x), {})
    found = [x for x in records if x["name"] in ("train", "sft", "distil")]

    def of_forecast(record: Record) -> str:
        if record["name"] != "train" or "memory_gb" not in record or not foreseen:
            return ""
        return number(record["memory_gb"] / foreseen["memory_gb"], ".2f")

    columns = {
        "command": lambda x: x["name"],
        "tokens/s": with_bounds,
        "MFU": lambda x: number(x.get("mfu"), ".1%"),
        "GB of tensors": lambda x: number(x.get("memory_gb")),
        "of the forecast": of_forecast,
        "GB held": lambda x: number(x.get("reserved_gb")),
        "waited for rows": lambda x: number(x.get("waited"), ".1%"),
    }
    lines = section("Each command", columns, found)
    if foreseen:
        said = (
            f"Forecast of `train`: {foreseen['memory_gb']:.1f} GB; one step without numbers takes "
            f"{foreseen['step_gb']:.1f} GB, and {foreseen['most_tokens_per_s']:,.0f} tokens/s of "
            f"an {foreseen['of']} at most."
        )
        lines += ["", said]
    return page("Training", document, lines)


# ---- the command line ----------------------------------------------------------------------------
PARTS = (
    Part(FIRST, "training:build", 150, "models, text and the forecast"),
    Part("training:train", "training:train", 150, "pre-training of 100 M parameters in 8 lanes"),
    Part("training:sft", "training:sft", 150, "fine-tuning of the same on chats"),
    Part("training:distil", "training:distil", 150, "SmolLM2-135M's shape, trained back"),
)


def make_stage(
    part: str, rehearse: bool, work: Path, budget: Budget, emit: Callable[[Record], None]
) -> Stage:
    """The surroundings of a part."""
    scale = REHEARSAL if rehearse else FULL
    return Stage(scale, work, budget, emit, {"engine": "monolane", "model": scale.model})


SCRIPT = Script(
    path=RUN,
    doc=__doc__ or "",
    engine="monolane",
    what="training",
    minutes=8.0,
    parts=lambda rehearse: PARTS,
    stage=make_stage,
    render=render,
)


def main(arguments: list[str]) -> int:
    """Exit status 0: all measured; 1: something failed; 2: usage."""
    options = SCRIPT.parser().parse_args(arguments)
    if options.work is not None:  # a second command finds compiled layers there
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(options.work.resolve() / "inductor"))
    if options.child or options.list or options.carried is None:
        return SCRIPT.main(arguments, options)
    with tempfile.TemporaryDirectory(prefix="packages-") as site:
        if provide(options.carried, Path(site)):
            before = os.environ.get("PYTHONPATH")
            os.environ["PYTHONPATH"] = f"{site}:{before}" if before else site
        return SCRIPT.main(arguments, options)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
