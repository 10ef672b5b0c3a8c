"""The options of loading: checked, refused and passed on as their one description says."""

import importlib.util
import inspect
import json
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

import pytest

from monolane._loading import OPTIONS, Loading
from monolane._options import BACKENDS, COMMANDS, option, options_of
from monolane.engine import Engine
from monolane.errors import BackendError, MonolaneError, RequestError
from monolane.executor_api import RankAddresses

ROOT = Path(__file__).parents[1]
ADDRESSES = RankAddresses(("127.0.0.1:7000", "127.0.0.1:7001"), b"a key of 16 bytes")


def test_every_field_is_described() -> None:
    assert list(OPTIONS) == [x.name for x in fields(Loading)]
    for name, said in OPTIONS.items():
        assert said.help or said.meaning, name
        assert set(said.refused or ()) <= set(BACKENDS), name
        assert said.auto in ("chooses", "falls", "refuses", "opens"), name
        assert not said.page or (ROOT / "docs" / said.page).is_file(), name


def test_the_page_has_the_table_of_them() -> None:
    path = ROOT / "scripts" / "loading_table.py"
    spec = importlib.util.spec_from_file_location("loading_table", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    (written,) = script.TABLE.findall(script.PAGE.read_text())
    assert written == script.table(), "run: python scripts/loading_table.py"


def test_engine_load_takes_each_as_a_keyword_or_in_its_old_place() -> None:
    taken = inspect.signature(Engine.load).parameters
    assert {name: x.default for name, x in taken.items()} == {
        x.name: x.default for x in fields(Loading)
    }
    places = [x.name for x in taken.values() if x.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert places[:5] == ["model", "backend", "dtype", "context", "max_sequences"]
    assert places[5:] == ["prefix_cache", "prefix_file"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'spin'"):
        Engine.load("demo", spin=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_sequences": 0}, "max_sequences: expected 1 to 64, got 0"),
        ({"max_sequences": 65}, "max_sequences: expected 1 to 64, got 65"),
        ({"max_sequences": True}, "max_sequences: expected 1 to 64, got True"),
        ({"max_sequences": None}, "max_sequences: expected 1 to 64, got None"),
        ({"devices": 0}, "devices: expected a number of GPUs from 1 on, got 0"),
        ({"devices": "2"}, "devices: expected a number of GPUs from 1 on, got '2'"),
    ],
)
def test_numbers_out_of_their_ranges(given: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Loading(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("backend", "given", "error", "message"),
    [
        ("cuda", {"cache_dtype": "int8"}, BackendError, "cache_dtype: the cuda backend keeps keys"),
        (
            "cuda",
            {"workers": 3},
            BackendError,
            r"workers \(--threads\): the plan of a GPU says how many, got 3",
        ),
        ("cuda", {"ranks": ADDRESSES}, RequestError, "processes, got 'cuda' and 3 ranks"),
        ("reference", {"ranks": 2}, RequestError, "processes, got 'reference' and 2 ranks"),
        ("reference", {"draft": "int4"}, RequestError, "draft: expected backend cpu, for which"),
        ("auto", {"draft": "int4"}, BackendError, "draft: expected backend cpu, .* got 'auto'"),
        ("reference", {"expert_memory": 5}, BackendError, "expert_memory: expected the cpu back"),
        ("cpu", {"devices": 2}, RequestError, "got 'cpu', ranks of 1 and 2 devices"),
    ],
)
def test_a_backend_refuses_what_it_does_not_honour(
    backend: str, given: dict[str, object], error: type[MonolaneError], message: str
) -> None:
    asked = Loading(**given)  # type: ignore[arg-type]
    with pytest.raises(error, match=message):
        asked.check_backend(backend)
    for other in BACKENDS:
        if all(other in OPTIONS[name].honoured_by for name in given):
            asked.check_backend(other)
    Loading().check_backend(backend)


@dataclass(frozen=True, slots=True)
class Wider(Loading):
    """With an option that nobody else names."""

    spin: int = option(3, refused={"cuda": ""}, ranks=True)


def test_a_new_option_is_refused_in_a_plain_sentence() -> None:
    said = options_of(Wider)["spin"]
    assert said.commands == COMMANDS
    wrong = said.refusal("spin", "cuda", Wider(spin=4))
    assert type(wrong) is RequestError
    assert str(wrong) == (
        "spin: expected backend cpu or reference, got 'cuda'; use that, or leave spin out"
    )


def test_an_executor_is_told_what_was_given() -> None:
    asked = Loading("demo", "cpu", "int8", 64, 3, "off", workers=2, expert_memory=1 << 20)
    assert asked.told() == {
        "dtype": "int8",
        "context": 64,
        "slots": 3,
        "workers": 2,
        "expert_memory": 1 << 20,
    }
    again = Loading.of("cpu", "int8", 64, 3, {"workers": 2, "expert_memory": 1 << 20})
    assert again.told() == asked.told()
    with pytest.raises(TypeError, match="spin"):
        Loading.of("cpu", "int8", 64, 3, {"spin": 2})


def test_other_ranks_are_told_plain_values() -> None:
    asked = Loading("demo", "cpu", "int8", 64, 3, ranks=2, workers=4, expert_memory=5)
    crossing = asked.crossing()
    assert set(crossing) == {name for name, said in OPTIONS.items() if said.ranks}
    there = Loading(**json.loads(json.dumps(crossing)))
    assert there.crossing() == crossing
    assert {name for name, said in OPTIONS.items() if said.kind} <= set(crossing)


def test_defaults_are_those_of_the_fields() -> None:
    assert Loading().given() == {}
    assert all(x.default is not MISSING for x in fields(Loading))
