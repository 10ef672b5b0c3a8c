"""What a block needs, made ahead without a GPU: `python studies/delay/prepare.py`.

Fetches the packages below, takes their source files, learns a vocabulary from them, and writes
token ids, compressed, into one folder that git ignores; with it the wheels that the machine may
lack. At most 35 MB. --rehearse makes a tiny one of Python's own library, and fetches nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.parser import Parser
from hashlib import sha256
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT / "src", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import numpy as np  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from monolane.data import train_vocabulary  # noqa: E402
from studies.delay.sizes import SIZES  # noqa: E402
from studies.delay.sources import (  # noqa: E402
    ENDINGS,
    EXAM,
    MANIFEST,
    MOST_BYTES,
    TOKENIZER,
    WHEELS,
    decoded,
    encode,
    fresh,
    licence_line,
    write_ids,
)

MOST = 35 * 10**6  # bytes of the whole folder
VOCABULARY_BYTES = 24 * 10**6  # of text that the vocabulary is learnt from
# cp312 on x86-64 Linux: what monolane.train imports and the machine has not.
PACKAGES = ("pydantic==2.14.4", "pydantic-core==2.50.5", "annotated-types", "typing-inspection",
            "tomli-w")  # fmt: skip
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


@dataclass(frozen=True)
class Source:
    """A package: its text is under a licence that allows this use, and not in the image."""

    name: str
    version: str
    licence: str  # as its authors say it; the manifest has its metadata's words beside it


# Trained on, as far as they fit, in this order.
TRAINED = (
    Source("astropy", "8.0.1", "BSD-3-Clause"),
    Source("twisted", "26.4.0", "MIT"),
    Source("keras", "3.15.1", "Apache-2.0"),
    Source("music21", "10.5.0", "BSD-3-Clause"),
    Source("mypy", "2.4.0", "MIT"),
    Source("sqlalchemy", "2.1.1", "MIT"),
    Source("langchain-community", "0.4.2", "MIT"),
    Source("django", "5.2.17", "BSD-3-Clause"),
    Source("dask", "2026.8.0", "BSD-3-Clause"),
    Source("nltk", "3.10.3", "Apache-2.0"),
    Source("biopython", "1.88", "Biopython License or BSD-3-Clause"),
    Source("streamlit", "1.64.0", "Apache-2.0"),
    Source("yt-dlp", "2026.8.19", "Unlicense"),
    Source("ray", "2.58.0", "Apache-2.0"),
    Source("spacy", "3.8.16", "MIT"),
    Source("cvxpy", "1.9.3", "Apache-2.0"),
    Source("sphinx", "9.0.4", "BSD-2-Clause"),
    Source("bokeh", "3.9.2", "BSD-3-Clause"),
    Source("beartype", "0.22.9", "MIT"),
    Source("pandapower", "3.5.4", "BSD-3-Clause"),
    Source("selenium", "4.50.0", "Apache-2.0"),
    Source("reportlab", "5.0.1", "BSD-3-Clause"),
    Source("trl", "1.13.0", "Apache-2.0"),
    Source("polars", "1.44.2", "MIT"),
    Source("wandb", "0.30.0", "MIT"),
    Source("thermo", "0.6.1", "MIT"),
    Source("control", "0.10.2", "BSD-3-Clause"),
    Source("scikit-rf", "2.1.0", "BSD-3-Clause"),
    Source("nibabel", "5.4.2", "MIT"),
    Source("fluids", "1.3.1", "MIT"),
    Source("chemicals", "1.5.2", "MIT"),
    Source("ipython", "9.17.1", "BSD-3-Clause"),
    Source("datasets", "5.0.1", "Apache-2.0"),
    Source("rdflib", "7.6.0", "BSD-3-Clause"),
    Source("pymongo", "4.18.2", "Apache-2.0"),
    Source("redis", "8.1.0", "MIT"),
    Source("langchain-core", "1.6.5", "MIT"),
    Source("trio", "0.34.0", "MIT or Apache-2.0"),
    Source("geopandas", "1.2.0", "BSD-3-Clause"),
    Source("arviz", "0.23.4", "Apache-2.0"),
    Source("pandera", "0.33.1", "MIT"),
    Source("elasticsearch", "9.5.1", "Apache-2.0"),
)
# Never trained on: the exam.
HELD_OUT = (
    Source("tornado", "6.5.10", "Apache-2.0"),
    Source("trimesh", "5.1.0", "MIT"),
    Source("pypsa", "1.3.0", "MIT"),
    Source("optuna", "5.0.0", "MIT"),
)
REHEARSED = ("asyncio", "email", "unittest", "importlib", "multiprocessing"), ("json", "logging")


@dataclass
class Job:
    """One preparation."""

    out: Path
    tools: Path
    rehearse: bool
    seen: set[str]
    packages: list[dict[str, Any]]

    @property
    def vocab(self) -> int:
        """Tokens of the vocabulary."""
        return SIZES["tiny" if self.rehearse else "17M"].vocab

    def main(self) -> int:
        """Exit status 0: all is there and small enough."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        exam = self.texts("held out")  # first: what is in both is not trained on
        train = self.texts("trained on")
        tokenizer = self.vocabulary([text for texts in train.values() for text in texts])
        tokenizer.save(str(self.out / TOKENIZER))
        about = {x["name"]: x for x in self.packages if x["use"] == "held out"}
        parts = []
        for name, found in exam.items():
            parts.append(encode(tokenizer, found))
            about[name]["tokens"] = len(parts[-1])
        ids = np.concatenate(parts)
        write_ids(self.out / EXAM, ids)
        size = sum(len(text.encode()) for texts in exam.values() for text in texts)
        if not self.rehearse:
            self.wheels()
        shards = self.shards(tokenizer, train)
        self.manifest(shards, {"tokens": len(ids), "bytes": size})
        total = self.bytes()
        for package in self.packages:
            say(f"{package['name']:22} {package['version']:12} {package['use']:10} "
                f"{package['tokens'] / 1e6:7.2f} M  {package['licence']}")  # fmt: skip
        say(f"{sum(x.get('tokens', 0) for x in self.packages) / 1e6:.1f} M tokens, "
            f"{total / 1e6:.2f} MB in {self.out}")  # fmt: skip
        if total > MOST:
            say(f"expected at most {MOST / 1e6:.0f} MB, got {total / 1e6:.2f}; leave packages out")
            return 1
        return 0

    # ---- texts -----------------------------------------------------------------------------------
    def texts(self, use: str) -> dict[str, list[str]]:
        """The texts of each package of one use."""
        held_out = use == "held out"
        found: dict[str, list[str]] = {}
        if self.rehearse:
            library = Path(sysconfig.get_path("stdlib"))
            for name in REHEARSED[held_out]:
                about = {"version": sysconfig.get_python_version(), "licence": "PSF-2.0"}
                found[name] = self.taken(name, use, about, folder_texts(library / name))
            return found
        for source in HELD_OUT if held_out else TRAINED:
            wheel = self.wheel(f"{source.name}=={source.version}")
            about = {"licence": source.licence, **wheel_metadata(wheel)}
            found[source.name] = self.taken(source.name, use, about, wheel_texts(wheel))
        return found

    def taken(self, name: str, use: str, about: dict[str, str], texts: Iterator[str]) -> list[str]:
        """The texts that were not there before; the package is noted."""
        kept = [text for text in texts if fresh(text, self.seen)]
        self.packages.append({"name": name, "use": use, **about, "documents": len(kept)})
        return kept

    def wheel(self, wish: str) -> Path:
        """A package's wheel, fetched once."""
        folder = self.tools / wish
        if not list(folder.glob("*.whl")):
            fetch(folder, [wish])
        (wheel,) = folder.glob("*.whl")
        return wheel

    def vocabulary(self, texts: Sequence[str]) -> Tokenizer:
        """A vocabulary of a sample that is spread evenly over the texts."""
        every = max(1, sum(map(len, texts)) // VOCABULARY_BYTES)
        return train_vocabulary(texts[::every], self.vocab)

    # ---- what travels ----------------------------------------------------------------------------
    def wheels(self) -> None:
        """Packages for the other machine's Python."""
        fetch(self.out / WHEELS, PACKAGES, "--python-version", "3.12", "--implementation", "cp",
              *(word for x in PLATFORMS for word in ("--platform", x)))  # fmt: skip

    def shards(self, tokenizer: Tokenizer, train: dict[str, list[str]]) -> list[str]:
        """A compressed shard for each package, while they fit; the names of the files."""
        names: list[str] = []
        about = {x["name"]: x for x in self.packages if x["use"] == "trained on"}
        for name, texts in train.items():
            ids = encode(tokenizer, texts)
            path = self.out / f"{name}.xz"
            write_ids(path, ids)
            if self.bytes() + 200_000 > MOST:  # the manifest comes, too
                path.unlink()
                self.packages.remove(about[name])
                say(f"{name}: left out, it would be too much")
                continue
            about[name] |= {"tokens": len(ids), "packed_bytes": path.stat().st_size}
            names.append(path.name)
        return names

    def manifest(self, shards: Sequence[str], exam: dict[str, int]) -> None:
        """What the folder is made of."""
        files = {
            str(x.relative_to(self.out)): sha256(x.read_bytes()).hexdigest()
            for x in sorted(self.out.rglob("*")) if x.is_file()
        }  # fmt: skip
        made = {
            "vocab": self.vocab, "shards": list(shards), "exam": exam, "packages": self.packages,
            "files": files,
        }  # fmt: skip
        text = json.dumps(made, indent=1) + "\n"
        (self.out / MANIFEST).write_text(text, encoding="utf-8")

    def bytes(self) -> int:
        """What the folder weighs."""
        return sum(x.stat().st_size for x in self.out.rglob("*") if x.is_file())


def table() -> str:
    """The packages that are carried, as README.md has them."""
    rows = ["| use | licence | packages |", "|---|---|---|"]
    for use, found in (("trained on", TRAINED), ("held out", HELD_OUT)):
        for licence in sorted({source.licence for source in found}):
            names = [f"{x.name} {x.version}" for x in found if x.licence == licence]
            rows.append(f"| {use} | {licence} | {', '.join(names)} |")
    return "\n".join(rows)


def fetch(folder: Path, names: Sequence[str], *words: str) -> None:
    """Download wheels, and nothing that they need."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps",
               "--only-binary=:all:", "-d", str(folder), *words, *names]  # fmt: skip
    subprocess.run(command, check=True)


def wheel_texts(wheel: Path) -> Iterator[str]:
    """Yield the source files of a wheel, sorted by name."""
    with zipfile.ZipFile(wheel) as archive:
        for info in sorted(archive.infolist(), key=lambda x: x.filename):
            if info.filename.endswith(ENDINGS) and info.file_size <= MOST_BYTES:
                try:
                    yield archive.read(info).decode("utf-8")
                except UnicodeDecodeError:
                    continue  # a test of other encodings


def wheel_metadata(wheel: Path) -> dict[str, str]:
    """Return the version of a wheel, and what its metadata says of its licence."""
    with zipfile.ZipFile(wheel) as archive:
        # A wheel may hold other packages whole: its own metadata is at the top.
        (name,) = (
            x for x in archive.namelist() if x.endswith(".dist-info/METADATA") and x.count("/") == 1
        )
        said = Parser().parsestr(archive.read(name).decode("utf-8"), headersonly=True)
    line = licence_line(said.get_all("License-Expression"), said.get_all("Classifier"),
                        said.get_all("License"))  # fmt: skip
    return {"version": str(said["Version"]), "metadata_licence": line}


def folder_texts(folder: Path) -> Iterator[str]:
    """Yield the source files of a folder, sorted by name."""
    for path in sorted(folder.rglob("*.py")):
        text = decoded(path)
        if text is not None:
            yield text


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0: all is there and small enough."""
    p = argparse.ArgumentParser(prog="prepare.py", description=(__doc__ or "").split("\n\n")[0])
    p.add_argument("--out", type=Path, default=Path(__file__).parent / "carried")
    p.add_argument("--tools", type=Path, default=ROOT / "runs" / "delay-packages",
                   help="folder of the packages; it does not travel")  # fmt: skip
    p.add_argument("--rehearse", action="store_true", help="a tiny one; nothing is fetched")
    options = p.parse_args(arguments)
    return Job(options.out.resolve(), options.tools.resolve(), options.rehearse, set(), []).main()


if __name__ == "__main__":
    raise SystemExit(main())
