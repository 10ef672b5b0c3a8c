"""Layers of experts by kt-kernel, in a Python that has it: timed, one line of JSON for each asked.

    PYTHON bench/_kt_layers.py SIZES

SIZES are JSON: experts, chosen, inner, hidden, layers, threads, most (tokens), and method, a class
of ``kt_kernel_ext.moe``. Weights are random. Then each line of the standard input is a number of
tokens and one of rounds; the answer is the time of a layer in each round, in seconds. Layers take
turns, so that weights come from memory.
"""

import json
import sys
import time

import torch
from kt_kernel import kt_kernel_ext as kt

sizes = json.loads(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(sizes["threads"])
pool = kt.WorkerPoolConfig()
pool.subpool_count, pool.subpool_numa_map = 1, [0]
pool.subpool_thread_count = [sizes["threads"]]
infer = kt.CPUInfer(pool)
order = torch.arange(sizes["experts"], dtype=torch.int64)
on_gpu = torch.zeros(sizes["experts"], dtype=torch.bool)


def make_layer(index):
    """Quantise a layer of random experts, as kt-kernel does it."""
    config = kt.moe.MOEConfig(
        *(sizes[name] for name in ("experts", "chosen", "hidden", "inner")), on_gpu.data_ptr()
    )
    config.layer_idx, config.pool, config.max_len = index, infer.backend_, sizes["most"]
    shape = (sizes["experts"], sizes["inner"], sizes["hidden"])
    parts = [(torch.randn(shape) * sizes["hidden"] ** -0.5).bfloat16() for _ in range(3)]
    config.gate_proj, config.up_proj, config.down_proj = (part.data_ptr() for part in parts)
    moe = getattr(kt.moe, sizes["method"])(config)
    infer.submit(moe.load_weights_task(order.data_ptr()))
    infer.sync()
    return moe


layers = [make_layer(index) for index in range(sizes["layers"])]
for line in sys.stdin:
    width, rounds = map(int, line.split())
    count = torch.tensor([width], dtype=torch.int32)
    x = torch.randn(width, sizes["hidden"]).bfloat16()
    out, times = torch.zeros_like(x), []
    for _ in range(rounds):
        scores = torch.rand(len(layers), width, sizes["experts"])
        ids = scores.topk(sizes["chosen"]).indices.contiguous()
        weights = torch.full(ids.shape, 1 / sizes["chosen"])
        begin = time.perf_counter()
        for layer, moe in enumerate(layers):
            places = (ids[layer].data_ptr(), weights[layer].data_ptr())
            buffers = (x.data_ptr(), out.data_ptr())
            task = moe.forward_task(count.data_ptr(), sizes["chosen"], *places, *buffers, False)
            infer.submit(task)
            infer.sync()
        times.append((time.perf_counter() - begin) / len(layers))
    if not out.float().abs().sum().isfinite() or not out.any():
        raise SystemExit("expected an output of finite numbers, not all zeros")
    print(json.dumps(times), flush=True)
