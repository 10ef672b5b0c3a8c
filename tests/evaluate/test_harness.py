"""lm-eval on tasks of one's own: in process and by its own client, to equal numbers."""

import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import harness_parity as parity
import numpy as np
import pytest

from monolane import Engine
from monolane.errors import BackendError, DataError, RequestError
from monolane.evaluate import (
    EngineSubject,
    EvalOptions,
    ServerSubject,
    evaluate,
    make_tasks,
)
from monolane.sources import find_model

pytestmark = [
    pytest.mark.skipif(
        find_spec("lm_eval") is None, reason="needs lm-eval: pip install 'monolane[lmeval]'"
    ),
    pytest.mark.filterwarnings("ignore"),  # of the packages that lm-eval imports
]

CHOICES = [
    {"q": "for i in range(10", "options": ["):", " banana", ")"], "answer": 0},
    {"q": "def add(a, b):\n    return a", "options": [" + b", " elephant", "("], "answer": 0},
    {"q": "import", "options": [" os", " 7", "\n\n\n"], "answer": 1},
    {"q": "The capital of France is", "options": [" Paris", " é"], "answer": 0},
]
TEXTS = ["import os\nimport sys\n", "def f(x):\n    return x\n" * 3]
TASKS = {
    "local_choices": """
output_type: multiple_choice
doc_to_text: "{{q}}"
doc_to_choice: "{{options}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list:
  - metric: acc
  - metric: acc_norm
""",
    "local_rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: bits_per_byte
""",
    "local_answers": """
output_type: generate_until
doc_to_text: "{{q}}"
doc_to_target: "{{options[0]}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 8
  do_sample: false
metric_list:
  - metric: exact_match
""",
}
GROUP = """
group: local_all
task: [local_choices, local_again]
aggregate_metric_list:
  - metric: acc
"""


@pytest.fixture(scope="module")
def include(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of task files, and their data."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "choices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CHOICES))
    (folder / "texts.jsonl").write_text("".join(f'{{"text": {json.dumps(t)}}}\n' for t in TEXTS))
    for name, text in {**TASKS, "local_again": TASKS["local_choices"]}.items():
        rows = "texts" if "rolling" in name else "choices"
        (folder / f"{name}.yaml").write_text(
            f"task: {name}\ndataset_path: json\ntest_split: test\n"
            f"dataset_kwargs:\n  data_files:\n    test: {folder}/{rows}.jsonl\n"
            f"  cache_dir: {folder}/cache\n{text}"
        )
    (folder / "group.yaml").write_text(GROUP)
    return folder


@pytest.fixture(scope="module")
def subject() -> Iterator[EngineSubject]:
    with Engine.load("demo") as engine:
        yield EngineSubject(engine, "demo")


def lines(folder: Path) -> list[Any]:
    return [json.loads(line) for line in folder.read_text().splitlines()[1:]]


def expected(engine: Engine, context: str, ending: str) -> tuple[float, bool]:
    """The engine's log-likelihood of an ending, from its logits alone."""
    given, whole = engine.prompt_ids(context), engine.prompt_ids(context + ending)
    logits_TV = engine.logits(whole).astype(np.float64)
    logprobs_TV = logits_TV - np.log(np.exp(logits_TV).sum(-1, keepdims=True))
    places = range(len(given), len(whole))
    greedy = all(logits_TV[i - 1].argmax() == whole[i] for i in places)
    return sum(logprobs_TV[i - 1, whole[i]] for i in places), greedy


def test_the_proxy_that_lm_evals_client_asks_is_named(
    include: Path, server_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes by the environment; the other requests to the server go straight there."""
    for name in [x for x in os.environ if x.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:9")
    tasks = make_tasks(EvalOptions(tasks=("local_choices",), include=(include,)))
    with pytest.raises(BackendError) as caught:
        evaluate(ServerSubject(server_url), tasks, tmp_path)
    said = " It goes through the proxy http://127.0.0.1:9 of http_proxy: check that, too"
    assert str(caught.value).endswith(said)
    assert "secret" not in str(caught.value)


def test_both_ways_give_the_engines_log_likelihoods(
    include: Path, subject: EngineSubject, server_url: str, tmp_path: Path
) -> None:
    options = EvalOptions(tasks=tuple(TASKS), include=(include,))
    tasks = make_tasks(options)
    ours = evaluate(subject, tasks, tmp_path / "engine")
    theirs = evaluate(ServerSubject(server_url), tasks, tmp_path / "server")
    found = {
        kind: [line["found"] for line in lines(tmp_path / kind / "local_choices.jsonl")]
        for kind in ("engine", "server")
    }
    wanted = [
        expected(subject.engine, row["q"], option) for row in CHOICES for option in row["options"]
    ]
    for pairs in found.values():
        assert [greedy for _, greedy in pairs] == [greedy for _, greedy in wanted]
        assert [n for n, _ in pairs] == pytest.approx([n for n, _ in wanted], abs=1e-4)
    for one, other in zip(ours["tasks"], theirs["tasks"], strict=True):
        assert one["settings"] == other["settings"]
        for figure, same in zip(one["figures"], other["figures"], strict=True):
            assert figure["value"] == pytest.approx(same["value"], abs=1e-4)
            assert figure["count"] == len(CHOICES if "rolling" not in one["task"] else TEXTS)
    assert lines(tmp_path / "engine" / "local_answers.jsonl") == lines(
        tmp_path / "server" / "local_answers.jsonl"
    )
    nats = sum(line["found"] for line in lines(tmp_path / "engine" / "local_rolling.jsonl"))
    bits = -nats / np.log(2) / sum(len(text.encode()) for text in TEXTS)
    rolling = next(task for task in ours["tasks"] if task["task"] == "local_rolling")
    assert rolling["figures"][0]["value"] == pytest.approx(bits)
    # Each text is one sequence behind one bos, which is not scored.
    whole = sum(expected(subject.engine, "", text)[0] for text in TEXTS)
    assert nats == pytest.approx(whole, abs=1e-3)


def test_accuracy_is_that_of_the_most_probable_choices(
    include: Path, subject: EngineSubject, tmp_path: Path
) -> None:
    options = EvalOptions(tasks=("local_all",), include=(include,), limit=3)
    (task,) = evaluate(subject, make_tasks(options), tmp_path)["tasks"]
    right = 0
    for row in CHOICES[:3]:
        nats = [expected(subject.engine, row["q"], option)[0] for option in row["options"]]
        right += int(np.argmax(nats) == row["answer"])
    found = {figure["metric"]: figure for figure in task["figures"]}
    assert found["local_choices: acc"]["value"] == pytest.approx(100 * right / 3)
    assert found["acc"]["value"] == found["local_choices: acc"]["value"]
    assert (found["acc"]["count"], found["local_choices: acc"]["count"]) == (6, 3)
    assert found["acc"]["interval"].startswith("Wilson")
    assert "The first 3 items" in task["notes"][0]


def test_a_run_goes_on_where_its_journal_ends(
    include: Path, subject: EngineSubject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = EvalOptions(tasks=("local_choices",), include=(include,))
    (whole,) = evaluate(subject, make_tasks(options), tmp_path)["tasks"]
    journal = tmp_path / "local_choices.jsonl"
    before = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(before[:6]))
    asked = []
    logits = Engine.logits
    monkeypatch.setattr(Engine, "logits", lambda *a: asked.append(1) or logits(*a))
    (again,) = evaluate(subject, make_tasks(options), tmp_path)["tasks"]
    assert again == whole
    assert len(asked) <= len(before) - 6
    assert journal.read_bytes() == b"".join(before)


def test_data_that_cannot_be_had_and_wrong_folders_are_named(include: Path, tmp_path: Path) -> None:
    text = (include / "local_choices.yaml").read_text().replace("local_choices", "local_gone")
    (tmp_path / "gone.yaml").write_text(text.replace("choices.jsonl", "gone.jsonl"))
    with pytest.raises(DataError, match="local_gone: lm-eval could not load its data"):
        make_tasks(EvalOptions(tasks=("local_gone",), include=(tmp_path,)))
    with pytest.raises(RequestError, match="--include /nowhere"):
        make_tasks(EvalOptions(tasks=("local_gone",), include=(Path("/nowhere"),)))


@pytest.mark.slow
def test_log_likelihoods_are_those_of_lm_evals_own_transformers_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'monolane[hf]'")
    from lm_eval.models.huggingface import HFLM
    from transformers import PreTrainedTokenizerFast

    from monolane.evaluate._harness.models import EngineModel
    from monolane.hf import LaneformerForCausalLM

    parity.write_tasks(tmp_path, 4)
    folder = find_model("demo")
    loaded = LaneformerForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = HFLM(
        pretrained=loaded, tokenizer=PreTrainedTokenizerFast.from_pretrained(folder), batch_size=1
    )
    with Engine.load(folder, "cpu", "float32") as engine:
        ours = EngineModel(engine)
        # Not the whole texts: there lm-eval's model has two bos, where ours has one.
        sizes = {parity.CHOICE: parity.sizes_of(ours, tmp_path)[parity.CHOICE]}
        (record,) = parity.compare(
            engine.config, parity.ask(ours, tmp_path), parity.ask(theirs, tmp_path), sizes
        )
    assert record["largest_difference_nats_per_token"] <= record["allowed_nats_per_token"]
    assert record["requests"] == record["same_greedy"] == 16
    assert record["acc_ours"] == record["acc_hf"]
