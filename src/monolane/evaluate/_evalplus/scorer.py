"""EvalPlus's own scorer on one sample, in the jail; imports nothing of monolane.

What is not the released scorer's: the mends of HumanEval/32 and of generators, named below, and no
second limit of memory, since the jail has set one; the 60 s of a part come from the job.
"""

import contextlib
import importlib
import inspect
import os
import re
import signal
import sys
import types
from typing import Any

# evalplus 0.3.1, the newest release, ends the check of each of find_zero's inputs before it notes
# that it passed, so HumanEval/32 fails whatever the code does. Upstream's commit 6eb1e19 notes it;
# this is the same mend on the released source.
_BROKEN = "assert abs(_poly(*inp, out)) <= atol\n                            continue"
_MENDED = (
    "assert abs(_poly(*inp, out)) <= atol\n"
    "                            details[i] = True\n"
    "                            progress.value += 1\n"
    "                            continue"
)

# The 60 s that all inputs of a part have together, which a variable can only break: its text is
# compared with a number. Mbpp/599's canonical solution sums 16 ranges of 100,000,000: some 20 s of
# processor, minutes on a busy machine. So a part has twice what that code took just before.
_CAP = re.compile(r"timeout = min\(.+, sum\(time_limits\)\) \+ 1$", re.MULTILINE)
_OUR_CAP = "timeout = min(max(part_seconds, 2 * sum(ref_time)), sum(time_limits)) + 1"

_evalplus: Any = None


def load() -> None:
    """Import the scorer, before the jail closes."""
    # evalplus.data imports `datasets` for another benchmark (EvalPerf); it takes seconds a sample.
    stub: Any = types.ModuleType("datasets")
    stub.load_dataset = None
    sys.modules.setdefault("datasets", stub)
    global _evalplus
    _evalplus = importlib.import_module("evalplus.eval")
    for name in ("sanitize", "data.mbpp", "gen.util", "eval._special_oracle"):
        importlib.import_module(f"evalplus.{name}")
    _evalplus.query_maximum_memory_bytes = lambda: None
    mend(_evalplus)
    uncap(_evalplus)
    keep_generators(sys.modules["evalplus.sanitize"])


def mend(module: Any) -> bool:
    """Mend HumanEval/32 in the scorer; return whether this release needs it."""
    source = inspect.getsource(module.unsafe_execute)
    if source.count(_BROKEN) != 1:
        return False
    exec(compile(source.replace(_BROKEN, _MENDED), module.__file__, "exec"), vars(module))
    return True


def uncap(module: Any) -> None:
    """Have the check of a part read its limit from ``part_seconds`` of the module."""
    source, count = _CAP.subn(_OUR_CAP, inspect.getsource(module.untrusted_check))
    assert count == 1, "evalplus 0.3.1's own limit"
    exec(compile(source, module.__file__, "exec"), vars(module))


def keep_generators(module: Any) -> None:
    """Have ``sanitize`` keep functions that yield, as it keeps those that return.

    As released it drops a helper that never returns, so that sound code fails: the canonical
    solution of Mbpp/630 does. A stub without either is still dropped.
    """
    returns = module.has_return_statement

    def has_result(node: Any) -> bool:
        return returns(node) or any(each.type == "yield" for each in module.traverse_tree(node))

    module.has_return_statement = has_result


def score(job: dict[str, Any]) -> dict[str, Any]:
    """Return "base" and "plus" ("pass", "fail" or "timeout") and the code that was scored.

    Where ``answer`` is the whole answer, and EvalPlus's ``sanitize`` takes other code from it,
    "whole" is the verdict on that.
    """
    name = job["problem"]["entry_point"]
    code = _sanitized(job["code"], name) if job["sanitize"] else job["code"]
    verdict: dict[str, Any] = {"code": code, **_parts(job, code)}
    if job["answer"] is not None and (other := _sanitized(job["answer"], name)) != code:
        found = _parts(job, other)
        passed = found["base"] == found["plus"] == "pass"
        verdict["whole"] = "pass" if passed else "fail"
    return verdict


def _parts(job: dict[str, Any], code: str) -> dict[str, Any]:
    """Return the verdicts on code: "base" and "plus", and the "reason" of a fault."""
    problem, dataset, verdict = job["problem"], job["dataset"], dict[str, Any]()
    data, util = sys.modules["evalplus.data.mbpp"], sys.modules["evalplus.gen.util"]
    oracle = sys.modules["evalplus.eval._special_oracle"]
    for part in ("base", "plus"):
        inputs = problem[f"{part}_input"]
        if dataset == "mbpp":
            inputs = data.mbpp_deserialize_inputs(problem["task_id"], inputs)
        expected, times = util.trusted_exec(
            problem["prompt"] + problem["canonical_solution"],
            inputs,
            problem["entry_point"],
            record_time=True,
            output_not_none=problem["entry_point"] in oracle.MBPP_OUTPUT_NOT_NONE_TASKS,
        )
        try:
            _evalplus.part_seconds = job["limits"]["part_seconds"]
            verdict[part], _ = _evalplus.untrusted_check(
                dataset,
                code,
                inputs,
                problem["entry_point"],
                expected=expected,
                atol=problem["atol"],
                ref_time=times,
                fast_check=True,
                min_time_limit=job["limits"]["least_seconds"],
            )
        except Exception as error:  # what the sample did to the scorer's memory, files or processes
            verdict[part], verdict["reason"] = "fail", f"{type(error).__name__}: {error}"
        if job["guard"] == "full":
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # what it left running: all but us, the first process
    return verdict


def _sanitized(answer: str, entry_point: str) -> str:
    try:
        code: str = sys.modules["evalplus.sanitize"].sanitize(answer, entrypoint=entry_point)
    except Exception:  # what it cannot parse (zero bytes, 1,000 brackets) fails as it is
        return answer
    return code
