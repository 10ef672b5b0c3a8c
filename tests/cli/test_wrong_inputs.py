"""Every command with what is not there, of another kind, or broken: one line, no traceback."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from monolane.cli import main

# The test makes a folder, files of nothing, of bytes, of broken TOML and JSON, and an empty model.
LINES = [
    *(f"generate x -m {name}" for name in ("folder", "bad.toml", "bytes", "empty", "x.gguf")),
    *("generate x -m model", "generate x -m /dev/null", "generate x --prefix-file folder"),
    *(f"generate x --generation-config {name}" for name in ("folder", "bytes", "bad.json")),
    *("generate x --heads bytes --backend cpu", "generate x --draft folder --backend cpu"),
    *(f"generate x --ranks 127.0.0.1:1 --key-file {name}" for name in ("folder", "none")),
    *("chat -m folder", "chat", "chat --system x"),
    *(f"serve --api-keys {name}" for name in ("folder", "none", "bytes", "bad.toml")),
    *("serve --tls-cert folder", "serve --tls-cert empty", "serve --host 1.2.3.4.5"),
    *("serve --generation-config bad.json", "serve --override-generation-config [1]"),
    *("key folder", "key nofolder/x", "key bytes", "key keys --name /"),
    *("verify -m folder", "verify -m model", "verify"),
    *(f"verify -m demo --lossless --prompts {name}" for name in ("folder", "none", "bytes")),
    *("export -m folder -o out", "export -m demo -o bytes", "export -m demo -o /proc/x"),
    *("quantize -m model -o out --dtype int8", "quantize -m demo -o bytes --dtype int8"),
    *(f"train {name} -o out" for name in ("folder", "bad.toml", "bytes")),
    *("train tiny -o bytes", "train tiny -o out --set a=1", "train tiny -o out --from folder"),
    *("launch bad.toml -o out", "launch folder -o out"),
    *(f"sft {name} -m demo -o out" for name in ("none", "folder", "bytes")),
    *(f"sft bad.json -m demo -o out --recipe {name}" for name in ("folder", "bad.toml", "none")),
    *("retrofit -m demo -o out", "retrofit -m model -o out", "retrofit -m folder -o out"),
    *("sim -m folder", "sim --trace folder", "sim --plot folder", "sim --device abacus"),
    *("trace -m folder -o out", "trace -o folder", "doctor --dtype int3"),
    *("plan -m folder", "plan -m bytes", "plan demo", "plan --device abacus"),
    *(f"data prepare {name} -o out" for name in ("none", "folder", "bad.toml", "bytes")),
    *(f"data report {name}" for name in ("none", "folder", "bytes")),
    *("data show none", "data show folder", "tune heads -m folder -o out"),
    *("tune heads -m demo -o bytes", "bench -o nofolder/x", "bench --synthetic huge"),
    *("bench serve http://127.0.0.1:1", "bench serve ftp://x", "bench serve nonsense"),
    *("bench serve --plot folder", "bench serv", "eval --tasks nonsense -o out"),
    *("eval --tasks perplexity -o bytes", "eval --tasks perplexity -o out --text none"),
    *("eval --tasks core -o out --data none", "eval agent-loop -o bytes true"),
    *("eval agent-loop -o out nosuchprogram", "eval agent-loop -o out --base-url x true"),
    *("rank --listen nonsense", "rank --listen 127.0.0.1:0 --key-file folder"),
    *("rm nonsense", "alias --remove", "alias a/b demo", "alias nobody", "pull nonsense"),
    *(f"--config {name} ps" for name in ("folder", "none", "bytes", "bad.toml")),
    *("srve", "serve --prot 1", "serve --port", "chat --thinking=1", "data", "export a b c"),
]
NEEDS_TORCH = ("train", "launch", "sft", "retrofit", "tune", "verify")


@pytest.mark.parametrize("line", LINES)
def test_wrong_inputs_are_told_on_a_line(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if line.split()[0] in NEEDS_TORCH and find_spec("torch") is None:
        pytest.skip("needs torch: pip install 'monolane[sft]'")
    monkeypatch.chdir(tmp_path)
    for name in ("folder", "model"):
        (tmp_path / name).mkdir()
    files = {
        "bytes": b"\xff\xfe\x00",
        "empty": b"",
        "x.gguf": b"\0\0\0\0",
        "model/config.json": b"{}",
    }
    for name, data in {**files, "bad.toml": b"a = [1", "bad.json": b"{"}.items():
        (tmp_path / name).write_bytes(data)
    monkeypatch.setattr(sys, "argv", ["monolane", *line.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err
    assert ended.value.code in (1, 2), told
    if line == "data":  # which lists its commands
        return
    last = told.splitlines()[-1]
    assert last.startswith("monolane"), told
    assert re.search(r"expected|cannot|already|wants", last), told
    notes = [one for one in told.splitlines()[:-1] if one.startswith("monolane")]
    assert notes == []


def test_what_nobody_thought_of_is_a_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr("monolane.cli._servers.running_servers", fails)
    monkeypatch.setattr(sys, "argv", ["monolane", "ps"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "monolane: /some/file: expected that to work, got: Permission denied; check its path, its "
        "rights and the disk\n"
    )
