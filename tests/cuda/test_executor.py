"""The executor on an emulated GPU: the very kernels, the very epochs, no GPU."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu
from models import random_weights

from monolane.cuda import _launch
from monolane.cuda._device import Launch
from monolane.cuda._executor import CudaExecutor
from monolane.cuda._params import EPOCH_DTYPE
from monolane.errors import BackendError, RequestError
from monolane.executor_api import Advance, Draw, TokenEvent
from monolane.model import Weights
from monolane.reference import ReferenceModel, choose, log_probabilities

SLOTS = 10  # two more than a kernel serves at once
PROMPT = (1, 17, 33, 5, 60, 2, 91, 44, 8, 71, 30)
MakeGpu = Callable[..., EmulatedGpu]


@pytest.fixture(scope="module")
def weights() -> Weights:
    return random_weights()


@pytest.fixture
def gpu(make_gpu: MakeGpu) -> EmulatedGpu:
    return make_gpu(sms=4)


@pytest.fixture
def executor(gpu: EmulatedGpu, weights: Weights) -> Iterator[CudaExecutor]:
    made = CudaExecutor(weights, "auto", gpu, context=200, slots=SLOTS)
    gpu.launches.clear()
    yield made
    made.close()


def run(executor: CudaExecutor, *advances: Advance) -> list[TokenEvent]:
    executor.start(advances)
    while not executor.read(1.0):
        pass
    return executor.take()


def tokens(drawn: Sequence[TokenEvent], slot: int = 0) -> list[int]:
    return [x.token_id for x in drawn if x.slot == slot]


def greedy(slot: int = 0, budget: int = 12, prompt: tuple[int, ...] = PROMPT) -> Advance:
    return Advance(slot=slot, token_ids=prompt, budget=budget)


def test_a_prompt_runs_wide_and_its_answer_narrow(executor: CudaExecutor, gpu: EmulatedGpu) -> None:
    drawn = run(executor, greedy())
    assert len(drawn) == 12
    assert executor.length(0) == len(PROMPT) + 11  # the last one is not fed
    assert len({shape.shared_bytes for _, shape in gpu.launches}) == 2, "both kernels"
    assert all(shape.cooperative and shape.blocks == 4 for _, shape in gpu.launches)
    assert len(gpu.launches) == 2, "one launch of each, and the host in between says nothing"
    between = gpu.read(executor._resident.mailbox._at("epoch_between1"), EPOCH_DTYPE.itemsize)
    handed = between.view(EPOCH_DTYPE)[0]
    assert (handed["pass_number"], handed["events"], handed["over"]) == (2, 1, 0)
    assert executor._resident.pass_number == 2 + 11
    gpu.launches.clear()
    more = run(executor, Advance(slot=0, token_ids=(drawn[-1].token_id,), budget=3))
    assert len(gpu.launches) == 1, "one token to feed needs no wide kernel"
    executor.truncate(0, 0)
    assert tokens(run(executor, greedy(budget=15))) == tokens([*drawn, *more])


def test_a_draw_depends_on_its_own_sequence_alone(executor: CudaExecutor) -> None:
    draw = Draw(temperature=1.3, top_k=40, top_p=0.9, min_p=0.02, seed=(1 << 64) - 3)
    wish = Advance(slot=0, token_ids=PROMPT, budget=9, draw=draw)
    alone = tokens(run(executor, wish))
    executor.truncate(0, 0)
    advances = [replace(wish, slot=slot) for slot in range(4)]
    advances[1] = replace(greedy(1), token_ids=PROMPT[:3])
    advances[2] = replace(advances[2], token_ids=PROMPT[:1], budget=2)
    together = run(executor, *advances)
    assert tokens(together, 0) == tokens(together, 3) == alone
    assert len(tokens(together, 1)) == 12
    assert len(tokens(together, 2)) == 2
    assert [executor.length(slot) for slot in range(4)] == [19, 14, 2, 19]


def test_draws_are_the_oracles(executor: CudaExecutor) -> None:
    logits = executor.logits(0, PROMPT)
    executor.truncate(0, 0)
    for temperature, top_k, top_p, min_p in ((0.0, 0, 1, 0), (0.7, 0, 1, 0), (1.5, 20, 0.8, 0.05)):
        for seed in (0, 1, (5 << 32) + 1, (1 << 64) - 1):
            draw = Draw(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
            (drawn,) = run(executor, Advance(slot=0, token_ids=PROMPT, budget=1, draw=draw))
            executor.truncate(0, 0)
            expected = choose(logits[-1], draw, len(PROMPT))
            assert drawn.token_id == expected


def test_tokens_that_nobody_took_are_still_there(executor: CudaExecutor) -> None:
    for slot in (0, 1):
        executor.start([greedy(slot, budget=3)])
        while not executor.read(1.0):
            pass
    assert [x.slot for x in executor.take()] == [0, 0, 0, 1, 1, 1]
    assert executor.take() == []


def test_stop_ids_end_an_answer(executor: CudaExecutor) -> None:
    answer = tokens(run(executor, greedy()))
    executor.truncate(0, 0)
    stop = answer[4]
    end = answer.index(stop) + 1
    wish = replace(greedy(), stop_ids=frozenset((stop, 5000)))
    assert tokens(run(executor, wish)) == answer[:end]
    assert executor.length(0) == len(PROMPT) + end - 1


def test_logits_are_the_references_in_pieces_too(
    executor: CudaExecutor, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [i % 96 for i in range(3, 3 + 40)]
    whole = executor.logits(0, ids)
    assert whole.shape == (40, 96)
    assert executor.length(0) == 40
    model = ReferenceModel(weights)
    reference = model.forward(ids, model.new_cache(200))
    # bfloat16 rounds each activation by 2^-9 at most, in four layers of two modules.
    assert np.abs(whole - reference).max() < 8 * 2**-9 * np.abs(reference).max()
    executor.truncate(0, 0)
    monkeypatch.setattr(executor._resident, "rows", 17)
    np.testing.assert_array_equal(executor.logits(0, ids), whole)
    executor.truncate(0, 0)
    rows = [executor.logits(0, [token]) for token in ids]
    np.testing.assert_array_equal(np.concatenate(rows), whole)  # no bit depends on the width


def test_logprobs_are_those_of_the_logits(
    executor: CudaExecutor, gpu: EmulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_launch, "_LOGPROB_ROWS", 3)  # several launches
    wish = replace(greedy(budget=8), logprobs=3)
    executor.start([wish, replace(greedy(1, budget=7), token_ids=PROMPT[:5])])
    both: list[TokenEvent] = []
    while not executor.read(1.0):
        both += executor.take()
    both += executor.take()
    assert len(gpu.launches) >= 3
    assert [x.logprob for x in both if x.slot == 1] == [None] * 7
    drawn = [x for x in both if x.slot == 0]
    executor.truncate(0, 0)
    ids = [*PROMPT, *tokens(drawn)]
    logits = executor.logits(0, ids[:-1])[len(PROMPT) - 1 :]
    assert len(drawn) == 8
    for found, row in zip(drawn, logits, strict=True):
        expected = log_probabilities(row)
        assert found.logprob is not None
        best = np.argsort(-expected, kind="stable")[:3]
        assert [token for token, _ in found.logprob.top] == best.tolist()
        # float32 against float64 summed: some units in the last place of numbers up to 16.
        assert abs(found.logprob.logprob - expected[found.token_id]) < 1e-5
        assert abs(found.logprob.top[2][1] - expected[best[2]]) < 1e-5
    assert run(executor, Advance(slot=2, token_ids=(1,), budget=1, logprobs=0))[0].logprob.top == ()


def test_more_requests_than_a_kernel_serves(executor: CudaExecutor) -> None:
    lone = tokens(run(executor, greedy(0, budget=10)))
    executor.truncate(0, 0)
    drawn = run(executor, *(greedy(slot, budget=4 + slot % 7) for slot in range(SLOTS)))
    for slot in range(SLOTS):
        assert tokens(drawn, slot) == lone[: 4 + slot % 7]
        assert executor.length(slot) == len(PROMPT) + 3 + slot % 7


def test_whoever_is_left_alone_goes_on_in_the_narrow_kernel(
    executor: CudaExecutor, gpu: EmulatedGpu
) -> None:
    drawn = run(executor, greedy(0, budget=2), greedy(1, budget=40))
    assert len(tokens(drawn, 1)) == 40
    narrow = min(shape.shared_bytes for _, shape in gpu.launches)
    assert gpu.launches[0][1].shared_bytes > narrow
    assert gpu.launches[-1][1].shared_bytes == narrow


def test_three_widths_hand_over_to_each_other(make_gpu: MakeGpu, weights: Weights) -> None:
    class Wide(CudaExecutor):
        WIDTHS = (1, 8, 24)

    ids = [i * 7 % 96 for i in range(70)]
    gpu = make_gpu(sms=4)
    executor = CudaExecutor(weights, "auto", gpu, context=200, slots=2)
    logits, answer = (
        executor.logits(0, ids),
        tokens(run(executor, greedy(1, 5, tuple(ids))), slot=1),
    )
    gpu = make_gpu(sms=4)
    wide = Wide(weights, "auto", gpu, context=200, slots=2)
    gpu.launches.clear()
    np.testing.assert_array_equal(wide.logits(0, ids), logits)
    assert len(gpu.launches) == 3
    assert tokens(run(wide, greedy(1, 5, tuple(ids))), slot=1) == answer


def test_an_interrupted_epoch_can_be_taken_up_again(executor: CudaExecutor) -> None:
    whole = tokens(run(executor, greedy(budget=40)))
    executor.truncate(0, 0)
    executor.start([greedy(budget=40)])
    drawn: list[TokenEvent] = []
    while len(drawn) < 3:
        executor.read(1.0)
        drawn += executor.take()
    executor.interrupt()
    while not executor.read(1.0):
        pass
    drawn += executor.take()
    assert 3 <= len(drawn) < 40
    assert executor.length(0) == len(PROMPT) + len(drawn) - 1
    rest = Advance(slot=0, token_ids=(drawn[-1].token_id,), budget=40 - len(drawn))
    assert tokens([*drawn, *run(executor, rest)]) == whole


def test_a_prompt_can_be_interrupted(executor: CudaExecutor) -> None:
    whole = tokens(run(executor, greedy(prompt=PROMPT * 12)))
    executor.truncate(0, 0)
    executor.start([greedy(prompt=PROMPT * 12)])
    executor.interrupt()
    while not executor.read(1.0):
        pass
    fed = executor.length(0)
    assert executor.take() == []
    assert 0 < fed < 132
    assert fed % 8 == 0
    rest = (PROMPT * 12)[fed:]
    assert tokens(run(executor, greedy(prompt=rest))) == whole


def test_an_epoch_longer_than_the_ring_goes_on(
    executor: CudaExecutor, gpu: EmulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tokens(run(executor, greedy(budget=20)))
    executor.truncate(0, 0)
    gpu.launches.clear()
    monkeypatch.setattr(_launch, "EVENTS", 6)
    assert tokens(run(executor, greedy(budget=20))) == whole
    assert len(gpu.launches) == 2 + 3


def test_stamps_never_wrap(executor: CudaExecutor) -> None:
    whole = tokens(run(executor, greedy()))
    executor.truncate(0, 0)
    # A pass takes 2 N + 2 = 10 stamps: the next epoch would pass 2^31.
    executor._resident.pass_number = (1 << 31) // 10 - 15
    assert tokens(run(executor, greedy())) == whole
    assert executor._resident.pass_number < 100
    executor.truncate(0, 0)
    executor._resident.pass_number = (1 << 31) // 10 - 200  # room enough: nothing is cleared
    assert tokens(run(executor, greedy())) == whole
    assert executor._resident.pass_number > 1 << 27


def test_a_starved_kernel_is_told_and_survived(
    executor: CudaExecutor, gpu: EmulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tokens(run(executor, greedy()))
    run(executor, greedy(1, budget=1))
    monkeypatch.setattr(executor, "WATCHDOG_SECONDS", 0.1)
    gpu.sabotage = lambda _, shape: replace(shape, blocks=shape.blocks - 1)
    for _ in range(8):  # whichever wait starves first, the kernel finds its end
        with pytest.raises(
            BackendError,
            match=r"cuda: block \d \(lane \d, SM \d\) waited in vain for .* lanes?, in \w+ \d of "
            r"pass \d+.* All sequences are empty now, and the engine can be used again",
        ):
            run(executor, greedy(2))
        assert [executor.length(slot) for slot in range(3)] == [0, 0, 0]
    monkeypatch.undo()
    gpu.sabotage = None
    assert executor.read(0.0)
    assert executor.take() == []
    assert tokens(run(executor, greedy())) == whole


def test_a_lost_gpu_says_so_from_then_on(executor: CudaExecutor, gpu: EmulatedGpu) -> None:
    gpu.fault = "an illegal memory access"
    with pytest.raises(BackendError, match="this GPU can no longer be used from this process"):
        run(executor, greedy())
    for action in (lambda: run(executor, greedy()), lambda: executor.truncate(0, 0)):
        with pytest.raises(BackendError, match="can no longer be used"):
            action()
    assert executor.read(0.0)
    executor.close()


def test_a_launch_that_the_driver_refuses_costs_the_sequences_only(
    executor: CudaExecutor, gpu: EmulatedGpu
) -> None:
    whole = tokens(run(executor, greedy()))

    def refuse(name: str, shape: Launch) -> Launch:
        raise BackendError("no")

    gpu.sabotage = refuse
    with pytest.raises(BackendError, match="no"):
        executor.start([greedy(1)])
    gpu.sabotage = None
    assert executor.length(0) == 0
    assert tokens(run(executor, greedy())) == whole


def test_ctrl_c_amid_a_launch_costs_the_sequences_only(
    executor: CudaExecutor, gpu: EmulatedGpu
) -> None:
    whole = tokens(run(executor, greedy()))

    def press(name: str, shape: Launch) -> Launch:
        if len(gpu.launches) % 2 == 0:  # the wide kernel has been launched, the narrow one not
            raise KeyboardInterrupt
        return shape

    gpu.launches.clear()
    gpu.sabotage = press
    with pytest.raises(KeyboardInterrupt):
        executor.start([greedy(1, budget=50)])
    gpu.sabotage = None
    with pytest.raises(BackendError, match="a launch was not completed.*all sequences are empty"):
        executor.read(1.0)  # as whoever waited for the epoch does
    assert executor.read(1.0)
    assert [executor.length(slot) for slot in range(2)] == [0, 0]
    assert tokens(run(executor, greedy())) == whole


def test_ctrl_c_amid_logits_ends_them(
    executor: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = executor.logits(0, PROMPT)
    executor.truncate(0, 0)
    presses = [True]

    def press(seconds: float) -> bool:
        if presses:
            presses.pop()
            raise KeyboardInterrupt
        return CudaExecutor.read(executor, seconds)

    monkeypatch.setattr(executor, "read", press)
    with pytest.raises(KeyboardInterrupt):
        executor.logits(0, PROMPT * 10)
    executor.truncate(0, 0)
    np.testing.assert_array_equal(executor.logits(0, PROMPT), whole)


def test_blocks_say_when_they_were_where(executor: CudaExecutor) -> None:
    with pytest.raises(BackendError, match="expected set_trace"):
        executor.take_trace()
    executor.set_trace(True)
    run(executor, greedy(budget=5))  # passes 0 and 1 feed the prompt
    notes = executor.take_trace()
    assert notes.shape == (64, 5 * 4 + 2, 4, 3)
    assert (notes[6:] == 0).all()
    assert (np.diff(notes[:6].astype(np.int64), axis=-1) >= 0).all(), "arrived, begun, ended"
    assert (np.diff(notes[:6, :, :, 2].astype(np.int64), axis=1) >= 0).all(), "phase after phase"
    assert not executor.take_trace().any()
    executor.set_trace(False)
    run(executor, greedy(1, budget=2))


def test_wrong_requests_are_refused(executor: CudaExecutor) -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: executor.start([]), "advances: expected 1 to 10, got 0"),
        (lambda: run(executor, greedy(0), greedy(0)), "advances: a slot occurs twice"),
        (lambda: run(executor, greedy(10)), "slot: expected 0 to 9, got 10"),
        (lambda: run(executor, greedy(budget=0)), "budget: expected at least 1, got 0"),
        (lambda: run(executor, greedy(prompt=())), "tokens: expected at least one"),
        (lambda: executor.logits(0, []), "tokens: expected at least one"),
        (lambda: executor.logits(0, [96]), "tokens: expected ids from 0 to 95, got 96"),
        (lambda: run(executor, greedy(prompt=(-1,))), "tokens: expected ids from 0 to 95, got -1"),
        (
            lambda: run(executor, greedy(budget=191)),
            "context: expected at most 200 tokens in a slot, got 0 there and 201 more",
        ),
        (
            lambda: executor.truncate(0, 1),
            "length: expected 0 to 0, the tokens in this slot, got 1",
        ),
        (lambda: executor.truncate(-1, 0), "slot: expected 0 to 9, got -1"),
    ]
    for action, message in cases:
        with pytest.raises(RequestError, match=message):
            action()
    assert len(run(executor, greedy(budget=190))) == 190  # just fits
    executor.start([greedy(1)])
    for action in (lambda: executor.truncate(0, 0), lambda: executor.start([greedy(2)])):
        with pytest.raises(BackendError, match="an epoch is running; read it to its end"):
            action()


def test_windowed_layers_limit_how_far_back_one_can_go(executor: CudaExecutor) -> None:
    ids = [i % 96 for i in range(150)]
    logits = executor.logits(0, ids)
    # Windows of 16 keep 16 + 64 positions; the 15 before the next one must be among them.
    with pytest.raises(RequestError, match="dropped the keys before position 70; truncate to 0"):
        executor.truncate(0, 84)
    executor.truncate(0, 85)
    np.testing.assert_array_equal(executor.logits(0, ids[85:]), logits[85:])
    executor.truncate(0, 85)
    executor.logits(0, ids[85:87])  # what lay behind is gone all the same
    with pytest.raises(RequestError, match="dropped the keys before position 70"):
        executor.truncate(0, 84)
    executor.truncate(0, 0)
    np.testing.assert_array_equal(executor.logits(0, ids[:9]), logits[:9])
    executor.truncate(0, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compute": (7, 5)}, "expected compute capability 8.0 or later .* got 7.5 of Emulated"),
        ({"sms": 1}, "expected at least 2 SMs, one for each lane of the model, got 1 on Emulated"),
        ({"free_bytes": 1 << 20}, r"expected 0.4 GiB free on Emulated .* use a smaller context"),
        ({"shared_bytes": 8 << 10}, "expected room for at least 2 ring slots .* on Emulated"),
    ],
)
def test_what_a_gpu_lacks_is_said(
    gpu: EmulatedGpu, weights: Weights, changes: dict[str, object], message: str
) -> None:
    gpu.info = replace(gpu.info, **changes)
    with pytest.raises(BackendError, match=f"cuda: {message}"):
        CudaExecutor(weights, "auto", gpu, context=200, slots=1)


@pytest.mark.parametrize("dtype", ["float32", "int8", "int4"])
def test_dtypes_that_a_gpu_does_not_take_are_refused(
    gpu: EmulatedGpu, weights: Weights, dtype: str
) -> None:
    with pytest.raises(
        BackendError, match="dtype: expected one of auto, bfloat16, float16, float8"
    ):
        CudaExecutor(weights, dtype, gpu, context=200, slots=1)


def test_everything_is_given_back(make_gpu: MakeGpu, weights: Weights) -> None:
    gpu = make_gpu(sms=4)
    executor = CudaExecutor(weights, "auto", gpu, context=200, slots=1)
    executor.start([greedy(budget=100)])
    executor.close()  # ends the epoch first
    assert gpu.closed
