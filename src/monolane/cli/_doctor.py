"""``monolane doctor``: what this machine has, what is missing, and the command that mends it."""

import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from monolane import _env
from monolane._loading import Loading
from monolane.cli import _options as options
from monolane.cli._groups import grouped

if TYPE_CHECKING:
    from monolane.cli._settings import Settings
    from monolane.cuda import GpuInfo

State = Literal["ok", "missing", "broken"]

_TABLE = {variable.name for variable in _env.VARIABLES}
_REINSTALL = "pip install --force-reinstall --no-deps ."
_MARKS = {"ok": "✓", "missing": "–", "broken": "✗"}
# Package -> (what it is for, the extra that brings it).
_OPTIONAL = {
    "torch": ("training, export checks and 'verify'", "hf"),
    "transformers": ("the Transformers-compatible model and 'verify'", "hf"),
}


@dataclass(frozen=True)
class Finding:
    """One line of the report; ``mend`` is a command, or empty where nothing is to be done."""

    section: str
    name: str
    state: State
    value: str
    mend: str = ""


@grouped("doctor")
def doctor(
    *,
    call: typer.Context,
    model: options.Model = "demo",
    loading: Loading,
    as_json: options.Json = False,
) -> None:
    """Show the machine, the backends, the caches and what is missing.

    Of --model it says which backend 'auto' takes for it here, and why not the GPU. Exit code 1 if
    something that monolane itself needs is broken; what is optional does not count.
    """
    from monolane.cli._grammar import settings_of
    from monolane.model import find_format

    dtype = loading.dtype
    if dtype != "auto":
        find_format(dtype)  # RequestError for one that is none
    findings = [*examine(model, dtype), *_settings(settings_of(call))]
    if as_json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings]) + "\n")
    else:
        _print(findings)
    raise typer.Exit(1 if any(finding.state == "broken" for finding in findings) else 0)


def examine(model: str = "demo", dtype: str = "auto") -> Iterator[Finding]:
    """Look at everything, cheapest first."""
    yield from _machine()
    yield from _package()
    yield from _backends(model, dtype)
    yield from _extras()
    yield _code_guard()
    yield from _caches()
    yield from _variables()


def _machine() -> Iterator[Finding]:
    cpu, features = _cpu()
    yield Finding("machine", "system", "ok", f"{platform.system()} {platform.machine()}")
    yield Finding("machine", "cpu", "ok", cpu)
    yield Finding("machine", "vectors", "ok", " ".join(features) or "none that monolane uses")
    if memory := _memory_bytes():
        yield Finding("machine", "memory", "ok", f"{memory / 2**30:.1f} GiB")


def _package() -> Iterator[Finding]:
    from monolane._version import __version__

    python = platform.python_version()
    yield Finding("monolane", "version", "ok", f"{__version__}, Python {python}")
    try:
        from monolane._core import gumbel_noise

        noise = gumbel_noise(0, 0, 0, 1)
        yield Finding("monolane", "native core", "ok", f"answers ({float(noise[0]):.4f})")
    except ImportError as error:
        yield Finding("monolane", "native core", "broken", str(error), _REINSTALL)
    yield _demo()


def _demo() -> Finding:
    from monolane.errors import MonolaneError
    from monolane.model import Checkpoint, Weights, read_config
    from monolane.sources import DEMO, find_model

    try:
        folder = find_model(DEMO)
        config = read_config(folder)
        Weights.load(config, Checkpoint.open(folder))
    except MonolaneError as error:
        return Finding("monolane", "demo model", "broken", str(error), _REINSTALL)
    return Finding(
        "monolane", "demo model", "ok", f"{config.num_parameters / 1e6:.2f} M parameters"
    )


def _backends(model: str, dtype: str) -> Iterator[Finding]:
    yield from _cpu_backend()
    yield Finding("backends", "reference", "ok", "NumPy, float32: the oracle, slow")
    yield from _cuda(model, dtype)


def _cpu_backend() -> Iterator[Finding]:
    from monolane._processor import read_processor
    from monolane.errors import BackendError, ConfigError

    try:
        from monolane._core import kernels
    except ImportError:
        yield Finding("backends", "cpu", "broken", "there is no native core", _REINSTALL)
        return
    sets, workers = ", ".join(kernels.supported()), read_processor().describe()
    from monolane.cpu import find_isa

    try:
        yield Finding("backends", "cpu", "ok", f"{find_isa()} of {sets}; {workers}")
    except (BackendError, ConfigError) as error:
        yield Finding("backends", "cpu", "broken", str(error), f"unset {_env.ISA.name}")
    present, refusal = kernels.amx()
    if present and refusal:
        yield Finding("backends", "cpu tiles", "missing", f"AMX is not used: {refusal}")


def _cuda(model: str, dtype: str) -> Iterator[Finding]:
    """Tell of the GPU, and of everything that keeps the CUDA backend from using it."""
    from monolane.cuda import compiler_version, examine
    from monolane.errors import MissingExtraError

    machine = examine()
    lacks = [(lack.what, lack.mend) for lack in machine.lacks]
    compiler = ""
    if not lacks:
        try:
            compiler = ", NVRTC {}.{}".format(*compiler_version())
        except MissingExtraError as error:
            lacks.append(("no compiler (NVRTC)", f"pip install 'monolane[{error.extra}]'"))
    if machine.gpu is not None and machine.driver is not None:
        gpu, (major, minor) = machine.gpu, machine.driver
        value = (
            f"{gpu.name}, {gpu.sms} SMs of sm_{gpu.compute[0]}{gpu.compute[1]}, "
            # Weights are most of what lies there; a tenth is left for the cache and the driver.
            f"{gpu.total_bytes / 2**30:.0f} GiB: up to {gpu.total_bytes * 0.9 / 2e9:.1f} B "
            f"parameters; driver for CUDA {major}.{minor}{compiler}"
        )
        yield Finding("backends", "cuda", "missing" if lacks else "ok", value)
    for what, mend in lacks:
        yield Finding("backends", "cuda", "missing", what, mend)
    if machine.gpu is not None and not lacks:
        yield _auto(model, dtype, machine.gpu)


def _auto(model: str, dtype: str, gpu: "GpuInfo") -> Finding:
    """Tell which backend a model gets here; of the GPU's memory all is taken to be free."""
    from monolane.cuda import check_fit
    from monolane.errors import BackendError, MonolaneError
    from monolane.model import read_config
    from monolane.sources import find_model

    try:
        config = read_config(find_model(model))
    except MonolaneError as error:
        return Finding("backends", "auto", "missing", f"{model}: {error}")
    whole = replace(gpu, free_bytes=gpu.total_bytes)
    try:
        check_fit(config, dtype, whole, context=config.max_positions, slots=1)
    except BackendError as error:
        return Finding("backends", "auto", "ok", f"cpu for {model}, because {error}")
    return Finding("backends", "auto", "ok", f"cuda for {model}")


def _extras() -> Iterator[Finding]:
    from importlib.metadata import version

    for name, (purpose, extra) in _OPTIONAL.items():
        if importlib.util.find_spec(name) is None:
            mend = f"pip install 'monolane[{extra}]'"
            yield Finding("optional", name, "missing", f"for {purpose}", mend)
        else:
            yield Finding("optional", name, "ok", version(name))


def _code_guard() -> Finding:
    from monolane.evaluate import Guard

    guard = Guard()
    if reason := guard.refusal():
        value = f"for 'eval' of code: {reason}"
        return Finding("optional", "code guard", "missing", value, "monolane eval --weak-guard")
    return Finding("optional", "code guard", "ok", guard.describe())


def _caches() -> Iterator[Finding]:
    from huggingface_hub.constants import HF_HUB_CACHE

    from monolane.errors import ConfigError

    places = [("Hub models", "HF_HUB_CACHE", Path(HF_HUB_CACHE))]
    with suppress(ConfigError):  # which stands with the variables
        places.append(("monolane", _env.CACHE.name, _env.CACHE.get()))
    for name, variable, folder in places:
        if folder.exists() and not folder.is_dir():
            said = f"{folder}: expected a folder, got a file"
            yield Finding("caches", name, "broken", said, f"export {variable}=FOLDER")
            continue
        if not folder.is_dir():
            yield Finding("caches", name, "ok", f"{folder} (empty)")
            continue
        free = shutil.disk_usage(folder).free / 2**30
        yield Finding("caches", name, "ok", f"{folder} ({free:.0f} GiB free)")


def _variables() -> Iterator[Finding]:
    from monolane.errors import ConfigError

    for variable in _env.VARIABLES:
        try:
            value = f"{variable.get()}" + ("" if variable.name in os.environ else " (default)")
            yield Finding("environment", variable.name, "ok", value)
        except ConfigError as error:
            yield Finding(
                "environment", variable.name, "broken", str(error), f"unset {variable.name}"
            )


def _settings(named: "Settings | None") -> Iterator[Finding]:
    """Tell of the variables that options are set by, and of each section of the config file."""
    from monolane.cli._app import app
    from monolane.cli._grammar import every_command
    from monolane.cli._names import ALL
    from monolane.cli._settings import Settings, is_set_elsewhere, unread_variables, variables_of
    from monolane.errors import ConfigError

    commands = [
        (path, [x for x in command.params if is_set_elsewhere(x)], inner)
        for path, command, inner in every_command(typer.main.get_command(app))
    ]
    known = {
        name: x for path, options, _ in commands for x in options for name in variables_of(path, x)
    }
    for name in sorted(known.keys() & os.environ.keys()):
        if name not in _TABLE:
            option = max(known[name].opts, key=len)
            yield Finding("environment", name, "ok", f"{os.environ[name]} ({option})")
    for name, meant in unread_variables(known):
        yield Finding("environment", name, "missing", "nothing reads it", meant or f"unset {name}")
    try:
        settings = named or Settings.read(None)
        settings.check_sections(ALL)
        for path, options, inner in commands:
            settings.values(path, options, inner)
    except ConfigError as error:
        yield Finding("environment", "config file", "broken", str(error))
        return
    state = f"{settings.path} ({len(settings.table) or 'no'} keys and sections)"
    yield Finding("environment", "config file", "ok", state)


def _cpu() -> tuple[str, list[str]]:
    """Return the processor's name and the vector extensions that kernels may use."""
    known = (
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512_bf16",
        "avx512_vnni",
        "amx_tile",
        "amx_int8",
        "amx_bf16",
        "asimd",
    )
    name, flags = platform.machine(), set[str]()
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else []:
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "model name":
            name = value
        elif key in ("flags", "Features"):
            flags = set(value.split())
    return name, [flag for flag in known if flag in flags]


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0


def _print(findings: list[Finding]) -> None:
    section = ""
    for finding in findings:
        if finding.section != section:
            section = finding.section
            sys.stdout.write(f"{section}\n")
        sys.stdout.write(f"  {_MARKS[finding.state]} {finding.name:18} {finding.value}\n")
        if finding.mend:
            sys.stdout.write(f"      mend: {finding.mend}\n")
