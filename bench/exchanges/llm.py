"""Simon Willison's llm: a model of extra-openai-models.yaml, text and a stream."""

import os
import subprocess
from pathlib import Path

home = Path(os.environ["HOME"]) / "llm"
home.mkdir(exist_ok=True)
(home / "extra-openai-models.yaml").write_text(
    f"- model_id: local\n  model_name: {os.environ['MODEL']}\n"
    f"  api_base: {os.environ['OPENAI_BASE_URL']}\n"
)
for name, more in (("text", ["--no-stream"]), ("stream", [])):
    command = ["llm", "-m", "local", "-o", "max_tokens", "20", *more, "Say hello."]
    said = subprocess.run(
        command, env=os.environ | {"LLM_USER_PATH": str(home)}, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip()
    print(name)
