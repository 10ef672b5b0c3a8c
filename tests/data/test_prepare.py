"""Preparation on planted files: what must go goes, for the reason planted; what is close stays."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from monolane._processor import Core, Processor
from monolane.data import (
    Blend,
    Corpus,
    CorpusRecipe,
    _prepare,
    prepare,
    read_recipe,
)
from monolane.data._prepare_state import alone, plan_work
from monolane.data._recipe import SourceRecipe, TokenizerRecipe
from monolane.errors import ConfigError, DataError, MissingExtraError

if not find_spec("datatrove"):
    pytest.skip("needs datatrove: pip install 'monolane[data]'", allow_module_level=True)

from .planted import DROPPED, KEPT, plant


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("planted"))


def test_there_are_as_many_workers_as_a_container_has_cores_for(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Processor(tuple(Core((i,)) for i in range(8)), share=2.0)
    monkeypatch.setattr(_prepare, "read_processor", lambda: found)
    asked = []

    def make(_: object, __: object, workers: int, *rest: object) -> None:
        asked.append(workers)
        raise DataError("enough")

    monkeypatch.setattr(_prepare, "_make", make)
    with pytest.raises(DataError, match="enough"):
        prepare(planted, tmp_path / "out", progress=False)
    assert asked == [2]


@pytest.fixture(scope="module")
def corpus(planted: Path) -> Corpus:
    return prepare(planted, planted.parent / "corpus", workers=1, progress=False)


def texts(corpus: Corpus, source: str) -> list[str]:
    files = corpus.train(source)
    ids = [files.document(number) for number in range(files.documents)]
    return [corpus.tokenizer.decode(i.tolist()) for i in ids] + [
        corpus.tokenizer.decode(document.ids.tolist()) for document in corpus.held_out(source)
    ]


def test_what_should_stay_is_there_once(corpus: Corpus) -> None:
    for source, kept in KEPT.items():
        assert sorted(texts(corpus, source)) == sorted(kept.values()), source
    corpus.verify()


def test_each_planted_fault_was_found_by_its_own_filter(corpus: Corpus) -> None:
    report = json.loads((corpus.folder / "report.json").read_text())
    for source, planted_faults in DROPPED.items():
        expected: dict[str, set[str]] = {}
        for name, (why, _) in planted_faults.items():
            expected.setdefault(why, set()).add(name)
        if source == "notes":
            expected["not UTF-8"] = {"latin1.txt"}
        if source == "lines":
            expected["not UTF-8"] = {"lines.jsonl:2"}
        found = {
            why: {example["name"] for example in dropped["examples"]}
            for why, dropped in report["sources"][source]["dropped"].items()
            if dropped["documents"]
        }
        assert found == expected, source
        counts = {why: n for why, n in corpus.sources[source].dropped.items() if n}
        assert counts == {why: len(names) for why, names in expected.items()}
        assert corpus.sources[source].read == len(KEPT[source]) + sum(counts.values())


def test_the_report_says_why(corpus: Corpus) -> None:
    report = json.loads((corpus.folder / "report.json").read_text())
    dropped = report["sources"]["notes"]["dropped"]
    (leak,) = dropped["contaminated"]["examples"]
    assert leak["why"].startswith("stars: return the seventeen brightest stars of a southern sky")
    assert dropped["contaminated"]["reasons"] == {"stars": 1}
    # 3 of the question's 15 words, and 6 more with up to 6 of the answer's sevens at their end: of
    # those with 7, fewer than half are words.
    assert report["evaluation"] == [{"name": "stars", "tasks": 1, "short": 0, "ngrams": 9}]
    lengths = report["sources"]["notes"]["lengths"]
    files = corpus.train("notes")
    assert sum(lengths["train"]) == files.documents
    logs = np.log2(files.lengths()).astype(int)
    assert lengths["train"][: logs.max() + 1] == np.bincount(logs).tolist()


def test_held_out_documents_know_their_bytes_and_are_in_no_row(corpus: Corpus) -> None:
    held_out = [document for source in KEPT for document in corpus.held_out(source)]
    assert held_out
    for document in held_out:
        text = corpus.tokenizer.decode(document.ids.tolist())
        assert document.bytes == len(text.encode())
        assert (document.ids[0], document.ids[-1]) == (1, 2)
    for source in KEPT:
        trained = texts(corpus, source)[: corpus.train(source).documents]
        assert {corpus.tokenizer.decode(d.ids.tolist()) for d in held_out}.isdisjoint(trained)
        bytes_ = sum(len(text.encode()) for text in trained)
        assert corpus.sources[source].train.bytes == bytes_


def test_documents_to_train_on_are_shuffled(corpus: Corpus) -> None:
    trained = texts(corpus, "notes")[: corpus.train("notes").documents]
    by_name = [text for _, text in sorted(KEPT["notes"].items()) if text in trained]
    assert sorted(trained) == sorted(by_name)
    assert trained != by_name


def test_stages_are_blends(corpus: Corpus) -> None:
    blend = Blend(corpus, corpus.manifest.stages["late"], 32, 0)
    assert blend.before(8) == {"programs": 2, "table": 6}
    assert corpus.manifest.recipe["seed"] == 3


def test_nothing_of_the_work_is_left(corpus: Corpus) -> None:
    names = {path.relative_to(corpus.folder).parts[0] for path in corpus.folder.rglob("*")}
    files = {"corpus.json", "report.json", "tokenizer.json", "tokenizer_config.json"}
    files.add("special_tokens_map.json")
    assert names == files | set(KEPT)
    assert not corpus.folder.with_name("corpus.partial").exists()


# A preparation in a process of its own, in shards of a few documents. Behind a task, "exact-00001",
# it waits for as long as there is a file of that name: whoever looks at it, or kills it, amid its
# work then comes in time, however late. Its workers run this too.
SCRIPT = """
import sys, time
from pathlib import Path
import monolane.data._prepare_state as work
from monolane.data import prepare

finish = work.Work.finish

def held(self, stage, rank, record):
    finish(self, stage, rank, record)
    while Path(__file__).with_name(f"{stage}-{rank:05d}").exists():
        time.sleep(0.01)

work._SHARD, work.Work.finish = 3000, held
if __name__ == "__main__":
    recipe, out, workers = sys.argv[1:]
    prepare(Path(recipe), Path(out), workers=int(workers), progress=False)
"""


def script(tmp_path: Path) -> list[str]:
    path = tmp_path / "prepare.py"
    path.write_text(SCRIPT)
    return [sys.executable, str(path)]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_a_killed_preparation_goes_on_and_ends_the_same(planted: Path, tmp_path: Path) -> None:
    command = script(tmp_path)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*command, planted, whole, "2"], check=True, capture_output=True, timeout=600)
    done = tmp_path / "killed.partial" / "work" / "done"
    hold_at(tmp_path / "exact-00001", done, [*command, planted, killed, "1"])
    assert not killed.exists()
    with pytest.raises(DataError, match="expected a prepared corpus"):
        Corpus.open(killed)
    kept = {path: path.stat().st_mtime_ns for path in done.glob("filter-*.json")}
    assert kept
    hold_at(tmp_path / "encode-00000", done, [*command, planted, killed, "1"])
    # What was done was not done again.
    assert {path: path.stat().st_mtime_ns for path in done.glob("filter-*.json")} == kept
    subprocess.run([*command, planted, killed, "1"], check=True, capture_output=True, timeout=600)
    assert contents(killed) == contents(whole)


def hold_at(task: Path, done: Path, command: list[str | Path]) -> None:
    """Start a preparation and kill it when it waits behind a task."""
    task.touch()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: (done / f"{task.name}.json").exists() or process.poll() is not None)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        task.unlink()


def test_workers_end_with_a_killed_parent(planted: Path, tmp_path: Path) -> None:
    command = [*script(tmp_path), str(planted), str(tmp_path / "out"), "2"]
    (tmp_path / "filter-00000").touch()
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    children: list[int] = []

    def started() -> bool:
        path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        children[:] = [int(pid) for pid in path.read_text().split()] if path.exists() else []
        return len(children) >= 2 and (tmp_path / "out.partial/work/done").is_dir()

    try:
        wait_for(started)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for(lambda: not any(alive(pid) for pid in children))
    finally:
        (tmp_path / "filter-00000").unlink()


def test_a_worker_that_is_killed_is_said_and_nothing_done_is_lost(
    planted: Path, tmp_path: Path
) -> None:
    command = [*script(tmp_path), str(planted), str(tmp_path / "out"), "1"]
    (tmp_path / "filter-00000").touch()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    done = tmp_path / "out.partial/work/done"
    wait_for(lambda: any(done.glob("filter-*.json")))
    # The resource tracker is a child too, and lives through it.
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text():
            os.kill(int(pid), signal.SIGKILL)
    (tmp_path / "filter-00000").unlink()
    _, err = process.communicate(timeout=300)
    assert "DataError: " in err
    assert "expected every process to live" in err
    assert "with fewer --processes" in err
    assert any(done.glob("filter-*.json"))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: object, seconds: float = 300) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_half_of_another_preparation_is_not_gone_on_with(planted: Path, tmp_path: Path) -> None:
    recipe = read_recipe(planted)
    (tmp_path / "out.partial/work").mkdir(parents=True)
    (tmp_path / "out.partial/work/recipe.sha256").write_text("of another")
    with pytest.raises(DataError, match="found another preparation; remove the folder"):
        prepare(recipe, tmp_path / "out", workers=1, progress=False)


def test_a_whole_corpus_without_its_name_gets_it(
    planted: Path, corpus: Corpus, tmp_path: Path
) -> None:
    """Killed between the manifest and the name: the next run only gives the name, to its own."""
    shutil.copytree(corpus.folder, tmp_path / "out.partial")
    other = replace(read_recipe(planted), seed=4)
    with pytest.raises(DataError, match="found a corpus of another"):
        prepare(other, tmp_path / "out", progress=False)
    prepare(planted, tmp_path / "out", progress=False)
    assert contents(tmp_path / "out") == contents(corpus.folder)


def test_errors_come_before_any_work(planted: Path, corpus: Corpus, tmp_path: Path) -> None:
    recipe = read_recipe(planted)
    with pytest.raises(DataError, match="expected no folder there yet"):
        prepare(recipe, corpus.folder)
    with pytest.raises(ConfigError, match="workers: expected 1 or more, got 0"):
        prepare(recipe, tmp_path / "out", workers=0)
    first, *others = recipe.sources
    nothing = replace(recipe, sources=(replace(first, pattern=("*.none",)), *others))
    with pytest.raises(DataError, match=r"sources.notes: expected files \*.none below"):
        prepare(nothing, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_machine_without_datatrove_says_what_to_install(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monolane.data._prepare._NEEDED", ("no_such_module",))
    with pytest.raises(MissingExtraError, match=r"pip install 'monolane\[data\]'"):
        prepare(planted, tmp_path / "out")


def test_a_disk_that_refuses_is_told(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "out.partial")

    monkeypatch.setattr(_prepare, "_make", refuse)
    words = "the disk refuses: Read-only file system: out.partial; .*run the same command again"
    with pytest.raises(DataError, match=words):
        prepare(planted, tmp_path / "out", progress=False)


def test_a_full_disk_is_found_before_it_is_full(
    planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 10

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    said: list[str] = []
    with pytest.raises(DataError, match=r"expected .* kB free for the corpus alone, got 10 B"):
        prepare(planted, tmp_path / "out", say=said.append)
    (line,) = said
    assert "shards" in line
    assert "of text to read; about" in line


def test_one_process_at_a_time_prepares_a_corpus(planted: Path, tmp_path: Path) -> None:
    work = plan_work(read_recipe(planted), tmp_path / "out.partial")
    with alone(work), pytest.raises(DataError, match=rf"nobody .* process {os.getpid()} does"):
        prepare(planted, tmp_path / "out", progress=False)
    with alone(work):  # whoever was refused took nothing away
        pass


def test_names_that_are_no_utf8_and_empty_files_are_read(tmp_path: Path, tiny_model: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    try:
        Path(os.fsdecode(os.fsencode(folder) + b"/b\xe9zier.txt")).write_text("a named text")
    except OSError:
        pytest.skip("this file system takes names in UTF-8 only")
    (folder / "empty.txt").touch()
    recipe = CorpusRecipe(
        sources=(SourceRecipe("texts", "text", str(folder), min_characters=0, max_line=5),),
        tokenizer=TokenizerRecipe(path=str(tiny_model)),
        held_out=0.0,
    )
    made = prepare(recipe, tmp_path / "out", workers=1, progress=False)
    assert made.train("texts").documents == 1
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert "b\\\\xe9zier.txt" in json.dumps(report)


def test_a_broken_file_stops_it_and_names_the_line(planted: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"text": "fine"}\n{"text": "cut sh')
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        "[tokenizer]\nvocabulary = 300\n"
        "[[sources]]\nname = 'a'\nkind = 'jsonl'\npath = 'broken.jsonl'\n"
    )
    with pytest.raises(DataError, match="broken.jsonl, line 2: expected a JSON object, got"):
        prepare(recipe, tmp_path / "out", workers=1, progress=False)
