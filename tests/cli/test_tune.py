"""``monolane sft`` and ``monolane retrofit`` as a user runs them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import monolane
from monolane.cli import app
from monolane.errors import TextError
from monolane.model import Checkpoint, write_checkpoint
from monolane.sources import unpack_gguf

transformers = pytest.importorskip("transformers", reason="needs the extra 'sft'")
pytest.importorskip("torch", reason="needs the extra 'sft'")
pytest.importorskip("accelerate", reason="needs the extra 'sft'")

PROGRAM = [sys.executable, "-W", "error", "-c", "from monolane.cli import main; main()"]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )


# What takes seconds to load must not have been when a model is refused.
LIGHT = """
import sys
from monolane.cli import main
try:
    main()
finally:
    heavy = {"torch", "transformers"} & sys.modules.keys()
    sys.stderr.write(f"loaded: {sorted(heavy)}")
"""
DENSE = "expected a Laneformer to VERB, got a model of the family 'llama'; 'monolane retrofit'"
FILE = "expected the folder of a Laneformer to VERB, got a .gguf file; 'monolane retrofit'"
MISSING = "1 are missing: 'model.layers.0."
REFUSED = [
    ("sft MODEL DATA OUT", "llama", DENSE.replace("VERB", "tune")),
    ("sft MODEL DATA OUT", "gguf", FILE.replace("VERB", "tune")),
    ("sft MODEL DATA OUT", "holed", MISSING),
    ("train tiny OUT --from MODEL", "llama", DENSE.replace("VERB", "begin with")),
    ("train tiny OUT --from MODEL", "holed", MISSING),
    ("train demo OUT --from MODEL", "gguf", FILE.replace("VERB", "begin with")),
    ("tune heads MODEL OUT", "holed", MISSING),
    ("tune eagle -m MODEL -o OUT", "holed", MISSING),
    ("tune nextn -m MODEL -o OUT", "holed", MISSING),
    ("retrofit MODEL OUT --distil DATA", "demo", "expected a dense model, got 8 lanes"),
    ("retrofit MODEL OUT --lanes 2 --distil DATA", "holed llama", MISSING),
]


@pytest.mark.parametrize(("command", "model", "message"), REFUSED)
def test_what_cannot_be_trained_is_refused_before_anything_heavy_is_loaded(
    command: str, model: str, message: str, llama_gguf: Path, tmp_path: Path
) -> None:
    llama = tmp_path / "llama"
    unpack_gguf(llama_gguf, llama)
    holed = tmp_path / "holed"
    source = llama if "llama" in model else Path(monolane.__file__).parent / "demo"
    shutil.copytree(source, holed)
    tensors = dict(Checkpoint.open(source))
    del tensors[next(name for name in tensors if name.startswith("model.layers.0."))]
    write_checkpoint(holed, tensors.items())
    places = {"llama": llama, "gguf": llama_gguf, "demo": "demo"}
    words = {"MODEL": places.get(model, holed), "DATA": tmp_path / "x", "OUT": tmp_path / "out"}
    (tmp_path / "x").write_text("text")
    said = subprocess.run(
        [sys.executable, "-c", LIGHT, *(str(words.get(word, word)) for word in command.split())],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert said.returncode == 1
    assert message in said.stderr
    assert said.stderr.endswith("loaded: []")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.slow
def test_the_demo_is_tuned_and_chats(tmp_path: Path) -> None:
    data, out = tmp_path / "chats.jsonl", tmp_path / "tuned"
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "import os"}]
    data.write_text(json.dumps({"messages": chat}) + "\n")
    made = run(
        "sft", data, "-m", "demo", "-o", out, "--steps", 12, "--rows", 1, "--learning-rate", 3e-3
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout == f"{out}\n"
    assert "step 12  end: all steps are done" in made.stderr
    assert (tmp_path / "tuned.run" / "board").is_dir()
    assert "12 steps on 1 chats in 1 rows" in made.stderr
    said = subprocess.run(
        [*PROGRAM, "chat", "-m", str(out), "-t", "0"],
        input="hi\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert said.stdout == "import os\n"


def test_a_bad_row_is_one_message(tmp_path: Path) -> None:
    data = tmp_path / "chats.jsonl"
    data.write_text('{"messages": [{"role": "user", "content": "hi"}]}\n')
    result = run("sft", data, "-m", "demo", "-o", tmp_path / "out")
    assert result.returncode == 1
    assert result.stdout == ""
    assert "chats.jsonl, line 1: expected at least one message of the assistant" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_rank_on_the_command_line_leaves_the_rest_of_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from monolane.tune import LoraRecipe

    asked: list[Any] = []

    def tune(*arguments: Any, **_: Any) -> None:
        asked.append(arguments[3])
        raise TextError("enough")

    monkeypatch.setattr("monolane.tune.tune_folder", tune)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[lora]\nrank = 4\nalpha = 4.0\nmatrices = ['wq', 'w2']\n")
    for options in ((), ("--recipe", str(recipe))):
        line = [
            "sft",
            "chats.jsonl",
            "-m",
            "demo",
            "-o",
            str(tmp_path / "out"),
            "--lora",
            "8",
            *options,
        ]
        assert str(CliRunner().invoke(app, line).exception) == "enough"
    assert [x.lora for x in asked] == [
        LoraRecipe(rank=8, alpha=16.0),
        LoraRecipe(rank=8, alpha=8.0, matrices=("wq", "w2")),
    ]


@pytest.mark.slow
def test_retrofit_and_distil(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=62,  # four lanes have 16, 16, 15 and 15 of them
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        vocab_size=2048,
        max_position_embeddings=64,
    )
    source = tmp_path / "llama"
    transformers.LlamaForCausalLM(config).save_pretrained(source)
    demo = Path(__file__).parents[2] / "src" / "monolane" / "demo"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / name).write_bytes((demo / name).read_bytes())
    exact = run("retrofit", "-m", source, "-o", tmp_path / "exact", "--lanes", 4)
    assert (exact.returncode, exact.stdout) == (0, f"{tmp_path / 'exact'}\n"), exact.stderr
    told = [line for line in exact.stderr.splitlines() if not line.endswith(" s so far")]
    assert told == ["the MLP has 66 inner units more, of zeros, so that each lane has as many"]
    late = run("retrofit", "-m", source, "-o", tmp_path / "late", "--lanes", 4, "--delay", 1)
    assert "the delay changes what is computed" in late.stderr
    healed = run(
        "retrofit",
        *("-m", source, "-o", tmp_path / "healed"),
        "--lanes",
        4,
        "--delay",
        1,
        "--distil",
        __file__,
        "--steps",
        2,
        "--window",
        16,
        "--rows",
        1,
    )
    assert healed.returncode == 0, healed.stderr
    assert "held-out loss, nats per token:" in healed.stderr
    trained = Checkpoint.open(tmp_path / "healed")
    for matrix in ("w1", "w2", "w3"):
        name = f"model.layers.1.feed_forward.{matrix}.weight"
        lanes_LFD = trained[name].swapaxes(1, 2) if matrix == "w2" else trained[name]
        for lane_FD, units in zip(lanes_LFD, (16, 16, 15, 15), strict=True):
            assert np.all(np.any(lane_FD[:units], axis=1))
            assert not np.any(lane_FD[units:])
    wrong = run("retrofit", "-m", source, "-o", tmp_path / "wrong", "--lanes", 3)
    assert wrong.returncode == 1
    assert "lanes: expected a number that divides" in wrong.stderr


def test_heads_are_trained_and_draft(tmp_path: Path) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "heads"
    text.write_text("import os\n" * 400)
    made = run(
        *("tune", "heads", "-m", "demo", "-o", out, "--text", text, "--texts", 3, "--window", 32),
        *("--steps", 50, "--vocabulary", 64, "--inner", 32, "--depth", 2, "--threads", 1),
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout == f"{out}\n"
    assert "step 50: loss" in made.stderr
    assert "held-out drafts after training, right by place:" in made.stderr
    said = run("generate", "import os\n" * 8, "--heads", out, "--speculation", "heads", "-n", 20)
    plain = run("generate", "import os\n" * 8, "--speculation", "off", "-n", 20)
    assert said.returncode == 0, said.stderr
    assert said.stdout == plain.stdout
    for kind in ("eagle", "nextn"):
        lanes = run("tune", kind, "-m", "demo", "-o", tmp_path / kind, "--text", text)
        assert lanes.returncode == 1
        assert "expected a model of one lane" in lanes.stderr
        assert "reading texts" not in lanes.stderr
    wrong = run("generate", "x", "--heads", tmp_path)
    assert wrong.returncode == 1
    assert "heads: expected a folder that 'monolane tune heads' wrote" in wrong.stderr
