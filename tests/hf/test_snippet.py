"""The snippets of cards run, word by word, on every kind of folder that the project writes.

Where monolane does not exist, and on the Transformers that the tests run on: scripts/check has the
oldest one and the newest.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import monolane
from monolane.data import train_vocabulary, write_corpus, write_vocabulary
from monolane.hf import export_hub_layout
from monolane.sources import unpack_gguf

from .child import run_child

SNIPPET = (Path(__file__).with_name("released_snippet.txt")).read_text("utf-8")
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
DEMO = Path(monolane.__file__).parent / "demo"
CHAT = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
Make = Callable[[Path, Path], Any]


def export(_: Path, out: Path) -> None:
    export_hub_layout(DEMO, out)


def export_bare(folder: Path, out: Path) -> None:
    """Of a source whose tokenizer has no settings beside it."""
    source = folder / "source"
    source.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copyfile(DEMO / name, source / name)  # a link out of it would be left out
    export_hub_layout(source, out)


def export_with_types(folder: Path, out: Path) -> None:
    """Of a source whose settings ask for token types."""
    source = folder / "source"
    shutil.copytree(DEMO, source)
    settings = source / "tokenizer_config.json"
    text = settings.read_text().replace('"attention_mask"', '"token_type_ids", "attention_mask"')
    settings.unlink()
    settings.write_text(text)
    export_hub_layout(source, out)


def export_gguf(folder: Path, out: Path) -> None:
    unpack_gguf(folder / "llama.gguf", out)


def retrofit(folder: Path, out: Path) -> None:
    from monolane.tune import retrofit_folder

    unpack_gguf(folder / "llama.gguf", folder / "dense")
    retrofit_folder(folder / "dense", out, lanes=2, delay=1)


def sft(folder: Path, out: Path) -> None:
    pytest.importorskip("accelerate", reason="needs the extra 'sft'")
    from monolane.tune import SftRecipe, tune_folder

    (folder / "chats.jsonl").write_text(CHAT)
    recipe = SftRecipe(steps=1, rows_per_step=1, context=64)
    tune_folder(DEMO, folder / "chats.jsonl", out, recipe)


def train(folder: Path, out: Path) -> None:
    pytest.importorskip("tomli_w", reason="needs the extra 'train'")
    import numpy as np

    from monolane.data import Encoded
    from monolane.train import export_run, load_config, train_run

    text = Path(__file__).read_text("utf-8")
    write_vocabulary(train_vocabulary([text], 300), folder / "vocabulary", 64)
    documents = [Encoded(np.arange(5, 105), 100)] * 40
    write_corpus(folder / "corpus", folder / "vocabulary", {"one": (documents, documents[:2])})
    settings = [f"data.corpus={folder / 'corpus'}", "log.tensorboard=false", "schedule.steps=1"]
    settings += ["schedule.warmup=0", "schedule.decay=0"]
    train_run(load_config("tiny", settings), folder / "run", lambda start: ())
    export_run(folder / "run", out)


KINDS: dict[str, Make] = {
    make.__name__: make
    for make in (export, export_bare, export_with_types, export_gguf, retrofit, sft, train)
}


# All in one process, which takes seconds to load what the snippets need.
EACH = """
for place in sys.argv[1:]:
    print("of", place, flush=True)
    exec(compile(open(place).read(), place, "exec"), {"__name__": "__main__"})
"""


def test_snippets_of_cards_run_as_they_stand(llama_gguf: Path, tmp_path: Path) -> None:
    snippets = []
    for kind, make in KINDS.items():
        folder = tmp_path / kind
        folder.mkdir()
        (folder / llama_gguf.name).symlink_to(llama_gguf)
        make(folder, folder / "out")
        if not (folder / "out" / "chat_template.jinja").is_file():
            (folder / "out" / "chat_template.jinja").write_text(TEMPLATE)
        code = SNIPPET.replace('"kogai/laneformer-2b-it"', repr(str(folder / "out")))
        code = code.replace("max_new_tokens=1024", "max_new_tokens=4")
        assert code.count(str(folder)) == code.count("max_new_tokens=4") == 1
        snippets.append(folder / "released.py")
        snippets[-1].write_text(code)
    (tmp_path / "export" / "out" / "README.md").unlink()
    export_hub_layout(tmp_path / "export" / "out", tmp_path / "again")  # with a card of ours
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "again/README.md").read_text(), re.S)
    snippets.append(tmp_path / "ours.py")
    snippets[-1].write_text(code)
    done = run_child(EACH, snippets, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Generated response:") == len(KINDS)
