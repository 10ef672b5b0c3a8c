"""Where a model comes from: what is asked of the Hub, by its own library, on a local server."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane.errors import ModelNotFoundError
from monolane.sources import find_model
from tests.sources.hub import COMMIT, Hub, serving

RANDOM = np.random.default_rng(0)
# A model repository, as the card of the released model describes its files, and what must stay.
WANTED = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "chat_template.jinja",
    "README.md",
    "LICENSE",
    "NOTICE",
    "THIRD_PARTY_LICENSES/LLAMA2_LICENSE",
)
LEFT = (
    "pytorch_model.bin",
    "modeling_laneformer.py",
    "original/consolidated.00.pth",
    "original/model.safetensors",
    "metal/model.safetensors",
    "consolidated.safetensors",
    "model.Q8_0.gguf",
)
FOLDER = {name: name.encode() for name in (*WANTED, *LEFT)}
SPLIT = tuple(f"BF16/big-BF16-0000{i}-of-00002.gguf" for i in (1, 2))
GGUFS = {
    "README.md": b"a card",
    "config.json": b"{}",  # as some have: it says nothing without weights
    "small-Q4_K_M.gguf": RANDOM.bytes(300_000),
    "small-UD-Q4_K_M.gguf": RANDOM.bytes(310_000),
    "small-Q8_0.gguf": RANDOM.bytes(600_000),
    "mmproj-F16.gguf": RANDOM.bytes(700_000),
    "imatrix.gguf": RANDOM.bytes(1000),
    **{name: RANDOM.bytes(500_000) for name in SPLIT},
}
LARGE = RANDOM.bytes(25 << 20)  # the Hub's library writes 10 MB at a time
REPOS = {
    "org/folder": FOLDER,
    "org/some-GGUF": GGUFS,
    "org/large": {"README.md": b"a card", "large-Q8_0.gguf": LARGE},
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(REPOS) as found:
        yield found


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """An environment without network but the local Hub, and without models of this machine."""
    given = {x: y for x, y in os.environ.items() if not x.startswith(("HF_", "HUGGING"))}
    given = {x: y for x, y in given.items() if not x.lower().endswith("_proxy")}
    here = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub"), "HOME": str(tmp_path)}
    return given | here | {"MONOLANE_CACHE": str(tmp_path / "cache")}


@pytest.fixture
def pull(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs 'monolane pull' in a process of its own: the Hub's library reads its variables once."""

    def run(name: str, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "monolane", "pull", name, *options]
        return subprocess.run(
            command,
            env=environment | more,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


def blobs(tmp_path: Path, repo: str = "org/some-GGUF") -> Path:
    return tmp_path / "hub" / "hub" / f"models--{repo.replace('/', '--')}" / "blobs"


def fetched(hub: Hub, repo: str) -> set[str]:
    """The files whose bytes were sent."""
    begin = f"GET /{repo}/resolve/{COMMIT}/"
    return {x.removeprefix(begin) for x in hub.asked if x.startswith(begin)}


def test_a_fetch_takes_the_terms_along_and_no_code(hub: Hub, pull: Any) -> None:
    told = pull("org/folder")
    assert told.returncode == 0, told.stderr
    assert fetched(hub, "org/folder") == set(WANTED)
    folder = Path(told.stdout.strip())
    for name in WANTED:
        assert (folder / name).read_bytes() == name.encode()
    assert "monolane: fetching org/folder from the Hub" in told.stderr
    hub.asked.clear()
    assert pull("org/folder").stdout == told.stdout
    assert hub.asked == []  # later calls say no word to the network


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("org/some-GGUF:Q4_K_M", ("small-Q4_K_M.gguf",)),
        ("org/some-GGUF:q8_0", ("small-Q8_0.gguf",)),
        ("org/some-GGUF:UD-Q4_K_M@main", ("small-UD-Q4_K_M.gguf",)),
        ("hf.co/org/some-GGUF:BF16", SPLIT),
        ("org/some-GGUF/small-Q8_0.gguf", ("small-Q8_0.gguf",)),
        (f"org/some-GGUF/{SPLIT[0]}@{COMMIT}", SPLIT),
        ("https://huggingface.co/org/some-GGUF/blob/main/small-Q8_0.gguf", ("small-Q8_0.gguf",)),
        ("org/folder:Q8_0", ("model.Q8_0.gguf",)),
    ],
)
def test_a_file_is_named_by_its_tag_or_by_itself(
    name: str, files: tuple[str, ...], hub: Hub, pull: Any
) -> None:
    told = pull(name)
    assert told.returncode == 0, told.stderr
    path = Path(told.stdout.strip())
    assert path.as_posix().endswith(f"{COMMIT}/{files[0]}")
    repo = "org/folder" if "folder" in name else "org/some-GGUF"
    snapshot = Path(told.stdout.partition(COMMIT)[0] + COMMIT)
    for file in files:
        assert (snapshot / file).read_bytes() == REPOS[repo][file]
    assert {x for x in fetched(hub, repo) if x.endswith(".gguf")} == set(files)
    assert "README.md" in fetched(hub, repo)
    hub.asked.clear()
    assert pull(name, MONOLANE_OFFLINE="1").stdout == told.stdout
    assert hub.asked == []


def test_without_a_tag_the_best_that_fits_is_fetched_once(hub: Hub, pull: Any) -> None:
    told = pull("org/some-GGUF")
    assert told.stdout.strip().endswith("/small-Q8_0.gguf"), told.stderr  # not BF16, not mmproj
    assert "small-Q8_0.gguf (0.0 GB) is the best that fits the memory that is free" in told.stderr
    assert fetched(hub, "org/some-GGUF") == {"small-Q8_0.gguf", "README.md"}
    hub.asked.clear()
    assert pull("org/some-GGUF").stdout == told.stdout
    assert hub.asked == []


def test_what_a_repository_lacks_is_told_with_what_it_has(pull: Any) -> None:
    told = pull("org/some-GGUF:Q5_K_S")
    assert told.returncode == 1
    assert "org/some-GGUF:Q5_K_S: expected one of BF16 (0.0 GB), Q8_0" in told.stderr
    assert "mmproj" not in told.stderr
    told = pull("org/some-GFUF")
    assert told.returncode == 1
    assert "the Hub did not give it: 404" in told.stderr
    pull("org/some-GGUF:Q4_K_M")
    assert "Did you mean org/some-GGUF:Q4_K_M?" in pull("org/some-GFUF").stderr
    told = pull("org/some-GGUF:Q4_K_M@other")
    assert "the Hub did not give it: 404" in told.stderr


def test_a_download_that_was_killed_goes_on(
    hub: Hub, pull: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    name, most = "large-Q8_0.gguf", 21 << 20
    hub.hold_after = most
    command = [sys.executable, "-m", "monolane", "pull", "org/large:Q8_0"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        assert hub.held.wait(60)
        part = wait_for(lambda: next(blobs(tmp_path, "org/large").glob("*.part"), None))
        wait_for(lambda: part.stat().st_size)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    come = part.stat().st_size
    assert 0 < come <= most
    listed = subprocess.run(
        [sys.executable, "-m", "monolane", "list", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    (row,) = (x for x in json.loads(listed.stdout)["models"] if x["model"] == "org/large")
    assert "not whole yet: 'monolane pull org/large' goes on" in row["fault"]
    hub.hold_after = None
    hub.gone_on.set()
    told = pull("org/large:Q8_0")
    assert told.returncode == 0, told.stderr
    assert hub.sent[name] == [0, come]
    assert Path(told.stdout.strip()).read_bytes() == LARGE
    assert list(blobs(tmp_path, "org/large").glob("*.part")) == []


def wait_for(look: Callable[[], Any]) -> Any:
    """What a look finds, once it finds something: writing is behind sending."""
    for _ in range(600):
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError("nothing came within a minute")


def test_a_server_without_ranges_sends_it_whole(hub: Hub, pull: Any, tmp_path: Path) -> None:
    whole = GGUFS["small-Q8_0.gguf"]
    part = blobs(tmp_path) / f"{hashlib.sha256(whole).hexdigest()}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(whole[:1000])
    hub.without_ranges = True
    told = pull("org/some-GGUF:Q8_0")
    assert Path(told.stdout.strip()).read_bytes() == whole, told.stderr


def test_damaged_bytes_are_thrown_away(hub: Hub, pull: Any, tmp_path: Path) -> None:
    hub.damaged = True
    told = pull("org/some-GGUF:Q8_0")
    assert told.returncode == 1
    assert "small-Q8_0.gguf: expected SHA-256" in told.stderr
    assert "what came is damaged and was thrown away: try again" in told.stderr
    assert list(blobs(tmp_path).iterdir()) == []


def test_two_at_once_fetch_it_once(hub: Hub, environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "monolane", "pull", "org/some-GGUF:Q8_0"]
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    paths = {x.communicate(timeout=120)[0].strip() for x in both}
    assert len(paths) == 1
    assert Path(paths.pop()).read_bytes() == GGUFS["small-Q8_0.gguf"]
    assert hub.sent["small-Q8_0.gguf"] == [0]
    assert list(blobs(tmp_path).glob("*.part")) == []


def test_a_disk_without_room_is_told_before_a_byte_comes(
    hub: Hub, environment: dict[str, str]
) -> None:
    """A disk of which a quarter of a megabyte is free: this machine's own has more."""
    program = (
        "import shutil, sys\n"
        "free = shutil.disk_usage('/')._replace(free=250_000)\n"
        "shutil.disk_usage = lambda _: free\n"
        "from monolane.cli import main\n"
        "sys.argv = ['monolane', 'pull', sys.argv[1]]\n"
        "main()"
    )
    for name in ("org/some-GGUF:Q4_K_M", "org/some-GGUF:BF16"):
        told = subprocess.run(
            [sys.executable, "-c", program, name],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 1
        assert "MB free to fetch it to" in told.stderr
        assert "make room ('monolane list', 'monolane rm')" in told.stderr
    assert hub.sent == {}


def test_nothing_is_fetched_where_that_is_forbidden(hub: Hub, pull: Any) -> None:
    told = pull("org/some-GGUF:Q8_0", MONOLANE_OFFLINE="1")
    assert told.returncode == 1
    assert "MONOLANE_OFFLINE forbids downloads; unset it, or pass a folder" in told.stderr
    told = pull("org/some-GGUF:Q8_0", HF_HUB_OFFLINE="1")
    assert "the Hub did not give it" in told.stderr
    assert hub.asked == []


MODEL = ("config.json", "model.safetensors")  # what Transformers leaves of a model alone


@pytest.mark.parametrize(
    ("cached", "asks"),
    [
        ((*MODEL, "tokenizer.json", "README.md"), False),
        (MODEL, True),
        ((*MODEL, "tokenizer.json", "tokenizer_config.json"), True),  # and no template, maybe
        ((*MODEL, "README.md"), True),
    ],
)
@pytest.mark.parametrize("reachable", [True, False])
def test_the_hub_is_asked_for_what_the_cache_may_lack(
    cached: tuple[str, ...], asks: bool, reachable: bool, hub: Hub, pull: Any, tmp_path: Path
) -> None:
    repo = tmp_path / "hub" / "hub" / "models--org--folder"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    for name in cached:
        (snapshot / name).write_bytes(FOLDER.get(name, b"{}"))
    there = hub.url if reachable else "http://127.0.0.1:9"
    assert pull("org/folder", HF_ENDPOINT=there).stdout.strip() == str(snapshot)
    if reachable:
        assert bool(hub.asked) == asks
        assert (snapshot / "LICENSE").exists() == asks
    hub.asked.clear()
    offline = pull("org/folder", MONOLANE_OFFLINE="1")
    assert offline.stdout.strip() == str(snapshot)
    assert hub.asked == []


@pytest.mark.parametrize("name", ["~nobody-of-this-name/model", "x" * 300])
def test_a_path_that_none_can_be_is_no_model(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match=f"{name[:80]}: expected a path to a file or fol"):
        find_model(name)
