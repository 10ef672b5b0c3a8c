"""How good a model's answers are: code, choices, long context, perplexity, parity; reports.

``make_tasks`` reads what tasks need, ``evaluate`` runs them on a subject (an engine here, or a
server), and ``write_report`` writes what they found. docs/evaluation.md tells more.
"""

from monolane.evaluate._evalplus.guard import Guard, Limits
from monolane.evaluate._intervals import bootstrap, mean_interval, wilson
from monolane.evaluate._journal import Journal
from monolane.evaluate._logprob_sums import Tally
from monolane.evaluate._published import PUBLISHED
from monolane.evaluate._question import Answer, Decoding, Figure, Question
from monolane.evaluate._report import (
    build_report,
    interval,
    number,
    render_markdown,
    render_page,
    write_report,
)
from monolane.evaluate._select_tasks import EvalOptions, evaluate, make_tasks
from monolane.evaluate._target import (
    EngineSubject,
    ScoringSubject,
    ServerSubject,
    Subject,
    open_engine,
)
from monolane.evaluate._task import Outcome, Task
from monolane.evaluate._transformers import transformers_logits
from monolane.evaluate._windows import Text, Window, cut_text, help_topics

__all__ = [
    "PUBLISHED",
    "Answer",
    "Decoding",
    "EngineSubject",
    "EvalOptions",
    "Figure",
    "Guard",
    "Journal",
    "Limits",
    "Outcome",
    "Question",
    "ScoringSubject",
    "ServerSubject",
    "Subject",
    "Tally",
    "Task",
    "Text",
    "Window",
    "bootstrap",
    "build_report",
    "cut_text",
    "evaluate",
    "help_topics",
    "interval",
    "make_tasks",
    "mean_interval",
    "number",
    "open_engine",
    "render_markdown",
    "render_page",
    "transformers_logits",
    "wilson",
    "write_report",
]
