"""OpenVINO GenAI in the words of llama-bench, so that peers.py runs it as it runs the others.

    PYTHON bench/_openvino.py -m MODEL.gguf -t 2 -p 512 -n 0 -d 0 -r 1 -ngl 0 -o json

PYTHON is one that has the package openvino-genai; nothing of ours is needed there, and our own
Python needs none of OpenVINO. Precisions of activations, keys
and values are OpenVINO's own choice, which is for speed.
"""

import argparse
import json
import sys
from typing import Any


def main() -> None:
    """Run one test, decode behind a context or prefill of a prompt, and print it as JSON."""
    options = _options()
    try:
        import numpy as np
        import openvino
        import openvino_genai
    except ModuleNotFoundError as error:
        sys.exit(f"{sys.executable}: {error}; expected openvino-genai: pip install openvino-genai")
    pipeline = openvino_genai.LLMPipeline(
        options.m,
        "CPU",
        PERFORMANCE_HINT="LATENCY",
        INFERENCE_NUM_THREADS=options.t,
        ENABLE_CPU_PINNING=True,
    )

    def run(first: int) -> Any:
        """Answer a prompt with a first id of its own: OpenVINO keeps the prefixes it has read."""
        length = options.p or options.d
        # Low ids: bytes and short words, which every vocabulary has.
        ids = [[first, *(3 + 7 * i % 256 for i in range(length - 1))]]
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = options.n + 1  # the first comes of the prompt
        config.ignore_eos = True
        config.do_sample = False
        return pipeline.generate(openvino.Tensor(np.array(ids, np.int64)), config).perf_metrics

    run(1)  # shapes that are new are compiled
    found = run(2)
    if found.get_num_generated_tokens() != options.n + 1:
        said = found.get_num_generated_tokens()
        sys.exit(f"expected {options.n + 1} tokens of OpenVINO, got {said}")
    milliseconds = found.get_tpot().mean if options.n else found.get_ttft().mean / options.p
    row = {
        "n_prompt": options.p,
        "n_gen": options.n,
        "n_depth": options.d,
        "avg_ts": 1e3 / milliseconds,
        "build_commit": openvino_genai.__version__,
    }
    print(json.dumps([row]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", required=True, help="GGUF file")
    parser.add_argument("-t", type=int, required=True, help="threads")
    parser.add_argument("-p", type=int, default=0, help="tokens of a prompt; 0: decode")
    parser.add_argument("-n", type=int, default=0, help="tokens to generate")
    parser.add_argument("-d", "--n-depth", dest="d", type=int, default=0, help="before them")
    parser.add_argument("-r", type=int, choices=[1], default=1, help="times")
    parser.add_argument("-ngl", type=int, choices=[0], default=0, help="layers on a GPU")
    parser.add_argument("-o", choices=["json"], default="json", help="form of what is printed")
    options = parser.parse_args()
    if (options.p > 0) == (options.n > 0) or (options.n and options.d < 1):
        parser.error("expected -p TOKENS, or -n TOKENS behind -d TOKENS")
    return options


if __name__ == "__main__":
    main()
