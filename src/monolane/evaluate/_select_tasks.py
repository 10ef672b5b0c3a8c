"""Which tasks a run does, from names and options; all is checked before a model loads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from monolane.engine import SamplingParams
from monolane.errors import DataError, MissingExtraError, RequestError
from monolane.evaluate._bfcl.task import BFCL_TASKS, TOOL_CHOICES, CallsTask
from monolane.evaluate._core.task import CoreTask
from monolane.evaluate._evalplus.guard import Guard
from monolane.evaluate._evalplus.problems import HUMANEVAL, MBPP
from monolane.evaluate._evalplus.task import CodeTask
from monolane.evaluate._harness.task import HarnessTask
from monolane.evaluate._missing import MissingTask
from monolane.evaluate._parity import ParityTask
from monolane.evaluate._perplexity import PerplexityTask
from monolane.evaluate._published import CARD_TASKS
from monolane.evaluate._question import Decoding
from monolane.evaluate._report import Report, build_report, with_earlier
from monolane.evaluate._ruler.task import LongContextTask
from monolane.evaluate._ruler.tasks import LONG_TASKS
from monolane.evaluate._target import Subject
from monolane.evaluate._task import Outcome, Progress, Task

_LONG = frozenset(task.name for task in LONG_TASKS)
CARD = "card"  # all tasks of the released model's card
TASK_NAMES = (
    *(CARD, "humaneval+", "mbpp+", "core", "perplexity", "parity"),
    *("bfcl", *BFCL_TASKS),
    *("ruler", *sorted(_LONG)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalOptions:
    """What a run is to do; each option counts for the tasks that know it.

    limit        items of a task; of each length of a long-context task
    samples      answers of each code problem, for pass@k
    temperature  of code answers; None: 0 for one sample, 0.8 for several
    tool_choice  of the tool calls: "auto", or "required": an answer is nothing but calls
    data         files or folders with the problems of HumanEval+ and MBPP+, or CORE's bundle
    text         files to score; without, Python's help topics
    window       tokens of context that perplexity and parity have
    lengths      tokens of long prompts, their answers counted
    against      what parity compares with
    include      folders of task files for lm-eval, beside its own
    few_shot     solved examples before each item of lm-eval's tasks; None: as the task says
    skip_missing what a task needs and is not here is named in the report, and ends nothing
    """

    tasks: tuple[str, ...]
    limit: int | None = None
    samples: int = 1
    max_tokens: int = 768
    tool_choice: str = "auto"
    temperature: float | None = None
    top_p: float = 1.0
    seed: int = 0
    data: tuple[Path, ...] = ()
    text: tuple[Path, ...] = ()
    window: int = 512
    lengths: tuple[int, ...] = (2048, 4096)
    against: tuple[str, ...] = ()
    include: tuple[Path, ...] = ()
    few_shot: int | None = None
    skip_missing: bool = False
    guard: Guard = field(default_factory=Guard)

    def __post_init__(self) -> None:
        for name in self.tasks:
            if name not in TASK_NAMES and find_spec("lm_eval") is None and not self.skip_missing:
                raise RequestError(
                    f"--tasks: expected some of {', '.join(TASK_NAMES)}, got {name!r}; lm-eval's "
                    "tasks (arc_easy, hellaswag, mmlu, ...) need pip install 'monolane[lmeval]'"
                )
        if not self.tasks:
            raise RequestError(f"--tasks: expected some of {', '.join(TASK_NAMES)}, got none")
        for option, value in (("limit", self.limit), ("samples", self.samples)):
            if value is not None and value < 1:
                raise RequestError(f"--{option}: expected 1 or more, got {value}")
        if self.tool_choice not in TOOL_CHOICES:
            raise RequestError(
                f"--tool-choice: expected {' or '.join(TOOL_CHOICES)}, got {self.tool_choice!r}"
            )
        if self.few_shot is not None and self.few_shot < 0:
            raise RequestError(f"--few-shot: expected 0 or more, got {self.few_shot}")
        if self.samples > 1 and self.temperature == 0:
            raise RequestError(
                "--samples: expected a --temperature above 0, at which samples differ, got 0"
            )
        drawn = self.decoding  # whose ranges are the engine's
        SamplingParams(
            max_tokens=drawn.max_tokens,
            temperature=drawn.temperature,
            top_p=drawn.top_p,
            seed=drawn.seed,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The tasks, each once, with those of the card in the place of its name."""
        spelt = [CARD_TASKS if name == CARD else (name,) for name in self.tasks]
        return tuple(dict.fromkeys(name for names in spelt for name in names))

    @property
    def decoding(self) -> Decoding:
        """How code answers are drawn."""
        temperature = self.temperature
        if temperature is None:
            temperature = 0.0 if self.samples == 1 else 0.8
        return Decoding(self.max_tokens, temperature, self.top_p, self.seed)


def make_tasks(options: EvalOptions) -> list[Task]:
    """Return the tasks with their data read: ours as they were named, lm-eval's, tool calls, long
    context.

    DataError, MissingExtraError: what a task needs is not here, and ``skip_missing`` is not set.
    """
    o = options

    def made(name: str, make: Callable[[], Task]) -> Task:
        try:
            return make()
        except (DataError, MissingExtraError) as error:
            if not o.skip_missing:
                raise
            return MissingTask(name, str(error))

    def code(benchmark: object) -> Task:
        which = HUMANEVAL if benchmark is HUMANEVAL else MBPP
        return CodeTask(which, o.data, o.limit, o.samples, o.decoding, o.guard)

    makers: dict[str, Callable[[], Task]] = {
        "humaneval+": lambda: code(HUMANEVAL),
        "mbpp+": lambda: code(MBPP),
        "core": lambda: CoreTask(o.data, o.limit),
        "perplexity": lambda: PerplexityTask(o.text, o.limit, o.window),
        "parity": lambda: ParityTask(o.against, o.text, o.limit, o.window),
    }
    found = [made(name, makers[name]) for name in o.names if name in makers]
    found += [
        made(name, partial(HarnessTask, name, o.include, o.few_shot, o.limit))
        for name in o.names
        if name not in TASK_NAMES
    ]
    asked = [name for name in o.names if name == "bfcl" or name in BFCL_TASKS]
    if asked:
        names = [] if "bfcl" in asked else asked
        calls = partial(CallsTask, names, o.limit, o.decoding, o.tool_choice, o.skip_missing)
        found.append(made("bfcl", calls))
    asked = [name for name in o.names if name in _LONG or name == "ruler"]
    if asked:
        names = [] if "ruler" in asked else asked
        found.append(LongContextTask(names, o.lengths, o.limit, o.seed))
    return found


def evaluate(
    subject: Subject,
    tasks: Sequence[Task],
    folder: Path,
    progress: Progress = lambda *_: None,
    *,
    command: str = "",
    of: str | None = None,
) -> Report:
    """Run tasks, each answer kept in ``folder`` as it comes, and return the report.

    Called again with the same folder and settings, it goes on where it was. What the report there
    has of other tasks of the same subject stays in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"--output {folder}: expected a folder: {error.strerror}") from None
    outcomes: list[Outcome] = [task.run(subject, folder, progress) for task in tasks]
    return with_earlier(build_report(subject.about, outcomes, command, of), folder)
