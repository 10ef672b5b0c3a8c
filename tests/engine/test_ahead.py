"""Layers that predict further ahead, from folders and GGUF files: what Transformers' MtpModel
computes of them, on the reference and on the cpu, and that whatever they draft is verified."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolane import Engine, SamplingParams
from monolane.cpu import CpuExecutor
from monolane.errors import BackendError, CheckpointError, ConfigError, RequestError
from monolane.executor_api import Advance, Draw, TokenEvent
from monolane.model import Checkpoint, GgufModel, Role, Weights, read_config
from monolane.plan import build, cpu, interpret, validate
from monolane.reference import ReferenceModel

from .converted import metadata, tensors
from .sizes import DELTA, GLM_MOE, HYBRID, HYBRID_MOE, MLA, ODD, YARN
from .test_gguf import random_model

torch = pytest.importorskip("torch")
load_file = pytest.importorskip("safetensors.torch").load_file
save_file = pytest.importorskip("safetensors.torch").save_file
modeling = pytest.importorskip("transformers.modeling_layers")
cache_utils = pytest.importorskip("transformers.cache_utils")

TOKENS, CHAIN = 40, 4
Write = Callable[..., Path]
Floats = np.ndarray[Any, Any]
# Case: class of Transformers, architecture of GGUF, changes of the config.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "GLM-4.5": ("Glm4Moe", "glm4moe", ODD | GLM_MOE | {"head_dim": 12, "use_qk_norm": True}),
    "DeepSeek-V3": ("DeepseekV3", "deepseek2", MLA),
    "DeepSeek-V3, YaRN": ("DeepseekV3", "deepseek2", MLA | {"rope_parameters": YARN}),
    "Qwen3-Next": ("Qwen3Next", "qwen3next", DELTA),
    "Qwen3.5": ("Qwen3_5Text", "qwen35", HYBRID),
    "Qwen3.5, tied": ("Qwen3_5Text", "qwen35", HYBRID | {"tie_word_embeddings": True}),
    "Qwen3.5, mixtures": ("Qwen3_5MoeText", "qwen35moe", HYBRID_MOE),
}
OWN = ("enorm.weight", "hnorm.weight", "eh_proj.weight", "post_norm.weight")


@dataclass(frozen=True)
class Theirs:
    """A random model of Transformers, and a layer that predicts further ahead of it."""

    model: Any
    ahead: Any
    architecture: str
    ids: Floats  # [TOKENS]
    states: Floats  # [TOKENS, D], what the head reads
    logits: Floats  # [TOKENS - 1, V], of the token behind the next, of all but the last token
    chain: tuple[int, ...]  # what it drafts behind that, each from its own state
    far: Floats  # [CHAIN - 1, V], from which these were drawn, but for the first


@cache
def theirs(case: str) -> Theirs:
    kind, architecture, changes = CASES[case]
    model = random_model(kind, **changes)
    model.config.num_mtp_layers = 1
    if hasattr(model.config, "layer_types"):
        model.config.mtp_layer_types = ["full_attention"]
    torch.manual_seed(1)
    ahead = modeling.MtpModel(model, 1).eval()
    rng = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, x in ahead.layers.named_parameters():
            noise = torch.randn(x.shape, generator=rng)
            x.copy_(x + 0.3 * noise if "norm" in name else 0.15 * noise)
        for name, x in ahead.layers.named_buffers():
            if name.endswith("e_score_correction_bias"):
                x += 0.3 * torch.randn(x.shape, generator=rng)
        ids = torch.from_numpy(np.random.default_rng(0).integers(96, size=TOKENS))[None]
        states = model.model(ids).last_hidden_state
        held = cache_utils.MtpCache(config=model.config.get_mtp_config())

        def step(tokens: Any, state: Any, position: int) -> tuple[Any, Any]:
            positions = torch.arange(position, position + tokens.shape[1])[None]
            found = ahead.forward_layer(0, state, positions, held, input_ids=tokens)
            return found, model.lm_head(found)

        state, logits = step(ids[:, 1:], states[:, :-1], 1)
        drafted, far = [int(logits[0, -1].argmax())], []
        for i in range(CHAIN - 1):
            token = torch.tensor([[drafted[-1]]])
            state, last = step(token, state[:, -1:], TOKENS + i)
            far.append(last[0, -1].numpy())
            drafted.append(int(last[0, -1].argmax()))
    return Theirs(
        model,
        ahead,
        architecture,
        ids[0].numpy(),
        states[0].numpy(),
        logits[0].numpy(),
        tuple(drafted),
        np.stack(far),
    )


def block(it: Theirs) -> dict[str, Any]:
    """The tensors of the layer itself, by their names in it; what is random of mixtures too."""
    named = it.ahead.layers[0].mtp_block.state_dict()
    return {name: x.clone() for name, x in named.items()}


def apart(named: dict[str, Any]) -> dict[str, Any]:
    """Each expert's matrices by themselves, as most families publish them."""
    found = {}
    for name, x in named.items():
        if name == "mlp.experts.gate_up_proj":
            for e, both in enumerate(x):
                gate, up = both.chunk(2)
                found[f"mlp.experts.{e}.gate_proj.weight"] = gate.clone()
                found[f"mlp.experts.{e}.up_proj.weight"] = up.clone()
        elif name == "mlp.experts.down_proj":
            found |= {f"mlp.experts.{e}.down_proj.weight": y.clone() for e, y in enumerate(x)}
        else:
            found[name] = x
    return found


def write_folder(it: Theirs, folder: Path, merged: bool = False) -> Path:
    """The model as Transformers saves it, and the layer as its makers publish it."""
    it.model.save_pretrained(folder)
    own = {name: it.ahead.layers[0].state_dict()[name].clone() for name in OWN}
    named, count = block(it), it.model.config.num_hidden_layers
    named = named if merged else apart(named)
    if it.architecture.startswith("qwen"):
        layer, outer = "mtp.layers.0.", "mtp."
        names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
    else:
        layer = outer = f"model.layers.{count}."
        names = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
        # Published beside them: copies of what the model has.
        own |= {
            "embed_tokens.weight": it.model.model.embed_tokens.weight.detach().clone(),
            "shared_head.head.weight": it.model.lm_head.weight.detach().clone(),
        }
    spelled = {f"{mine}": f"{name}.weight" for mine, name in zip(OWN, names, strict=True)}
    more = {layer + name: x for name, x in named.items()}
    more |= {outer + spelled.get(name, name): x for name, x in own.items()}
    stored = load_file(folder / "model.safetensors")
    save_file(stored | more, folder / "model.safetensors", {"format": "pt"})
    return folder


class _Longer:
    """A model with one layer more, for the converter."""

    def __init__(self, it: Theirs) -> None:
        self.config = type(it.model.config).from_dict(it.model.config.to_dict())
        self.config.num_hidden_layers = it.model.config.num_hidden_layers + 1
        self.model = it.model.model
        prefix = f"model.layers.{it.model.config.num_hidden_layers}."
        more = {prefix + name: x for name, x in block(it).items()}
        self._state = it.model.state_dict() | more

    def state_dict(self) -> dict[str, Any]:
        return self._state


def write_file(it: Theirs, path: Path, write_gguf: Write, final_norm: bool = True) -> Path:
    count = it.model.config.num_hidden_layers
    said = metadata(it.model.config, it.architecture)
    said[f"{it.architecture}.block_count"] = count + 1
    said[f"{it.architecture}.nextn_predict_layers"] = 1
    if f"{it.architecture}.attention.recurrent_layers" in said:
        said[f"{it.architecture}.attention.recurrent_layers"] += [False]
    stored = tensors(_Longer(it), it.architecture)
    own = {name: it.ahead.layers[0].state_dict()[name].numpy() for name in OWN}
    offset = it.architecture.startswith("qwen")  # the converter adds it to every norm
    names = ("enorm", "hnorm", "eh_proj", "shared_head_norm")
    for mine, name in zip(OWN, names, strict=True):
        array = own[mine] + 1 if offset and "norm" in name else own[mine]
        if final_norm or name != "shared_head_norm":
            stored[f"blk.{count}.nextn.{name}.weight"] = array
    return write_gguf(path, said, stored)


def ahead_of(path: Path) -> Weights:
    if path.is_dir():
        found = Weights.load_ahead(read_config(path), Checkpoint.open(path))
    else:
        found = Weights.ahead_of_gguf(GgufModel(path))
    assert found is not None
    return found


def bound(logits: Floats) -> float:
    """As in test_dense.py, of 9 products with sums of at most 120 terms, and of one layer."""
    sums, angles = 6 * np.sqrt(2 * 9 * 120), 6 * TOKENS
    return float((sums + angles) * 2.0**-24 * logits.std())


@pytest.mark.parametrize("kind", ["folder", "file"])
@pytest.mark.parametrize("case", CASES)
def test_the_reference_computes_what_transformers_does(
    case: str, kind: str, write_gguf: Write, tmp_path: Path
) -> None:
    it = theirs(case)
    path = tmp_path / ("x.gguf" if kind == "file" else "x")
    write_file(it, path, write_gguf) if kind == "file" else write_folder(it, path)
    weights = ahead_of(path)
    model = ReferenceModel(weights)
    held = model.new_cache()
    tokens, states = it.ids[1:], it.states[:-1]
    logits = model.forward(tokens, held, states)
    assert it.logits.std() > 0.5
    assert np.abs(logits - it.logits).max() < bound(it.logits)
    # Token by token, and then from its own states.
    again = model.new_cache()
    for i, token in enumerate(tokens):
        state = model.hidden([token], again, states[i : i + 1])
    for i, token in enumerate(it.chain[:-1]):
        both = model.forward([token], held, state), model.hidden([token], again, state)
        assert np.abs(both[0][0] - it.far[i]).max() < bound(it.far)
        state = both[1]
        assert int(both[0][0].argmax()) == it.chain[i + 1]


@pytest.mark.parametrize("case", CASES)
def test_the_executor_computes_what_the_reference_does(case: str, tmp_path: Path) -> None:
    it = theirs(case)
    weights = ahead_of(write_folder(it, tmp_path / "x"))
    tokens, states = it.ids[1:].tolist(), it.states[:-1]
    model = ReferenceModel(weights)
    expected = model.forward(tokens, model.new_cache(), states)
    hidden = model.hidden(tokens, model.new_cache(), states)
    for workers in (1, 3):
        executor = CpuExecutor(weights, context=60, slots=2, workers=workers, dtype="float32")
        found = executor.logits(0, tokens, states)
        assert np.abs(found - expected).max() < 2 * bound(expected)  # two evaluations
        executor.truncate(0, 0)
        assert np.abs(executor.hidden(0, tokens, states) - hidden).max() < 1e-3
        parts = [
            executor.logits(1, tokens[i : i + 9], states[i : i + 9])
            for i in range(0, len(tokens), 9)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), found)


@pytest.mark.parametrize("case", ["GLM-4.5", "DeepSeek-V3", "Qwen3.5"])
def test_the_plan_is_sound_and_the_interpreter_agrees(case: str, tmp_path: Path) -> None:
    it = theirs(case)
    weights = ahead_of(write_folder(it, tmp_path / "x"))
    plan = build(weights.config, cpu(3), "float32", max_width=8)
    validate(plan)
    cuts = [slice(1, 9), slice(9, 14), slice(14, 15)]
    passes = [it.ids[cut].tolist() for cut in cuts]
    states = [it.states[cut.start - 1 : cut.stop - 1] for cut in cuts]
    found = interpret(plan, weights, passes, states=states).logits
    assert np.abs(found - it.logits[:14]).max() < 2 * bound(it.logits)


def test_experts_in_one_tensor_are_the_same(tmp_path: Path) -> None:
    it = theirs("Qwen3.5, mixtures")
    each, merged = (ahead_of(write_folder(it, tmp_path / str(x), x)) for x in (False, True))
    for place, matrices in each.experts.items():
        for mine, other in zip(matrices, merged.experts[place], strict=True):
            np.testing.assert_array_equal(mine, other)


def test_a_model_with_a_tower_has_it_by_the_same_names(tmp_path: Path) -> None:
    folder = write_folder(theirs("Qwen3.5"), tmp_path / "x")
    plain = ahead_of(folder)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "text_config": raw}))
    renamed = {
        name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: x
        for name, x in load_file(folder / "model.safetensors").items()
    }
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    Weights.open(folder)  # which leaves it alone
    found = ahead_of(folder)
    for mine, other in zip((plain.outer, *plain.layers), (found.outer, *found.layers), strict=True):
        assert mine.keys() == other.keys()
        for role, array in mine.items():
            np.testing.assert_array_equal(array, other[role])


def test_a_file_without_a_last_norm_has_the_model_s(write_gguf: Write, tmp_path: Path) -> None:
    path = write_file(theirs("Qwen3.5"), tmp_path / "x.gguf", write_gguf, final_norm=False)
    found, model = ahead_of(path), Weights.open(path)
    np.testing.assert_array_equal(found.outer[Role.FINAL_NORM], model.outer[Role.FINAL_NORM])


def test_what_is_missing_or_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = write_folder(theirs("GLM-4.5"), tmp_path / "x")
    stored = load_file(folder / "model.safetensors")
    joined = "model.layers.3.eh_proj.weight"
    wrong = {**stored, joined: torch.zeros(60, 60)}
    save_file(wrong, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"eh_proj.*expected shape \[60, 120\]"):
        ahead_of(folder)
    del wrong[joined]
    save_file(wrong, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="1 are missing: 'model.layers.3.eh_proj.weight'"):
        ahead_of(folder)
    plain = {name: x for name, x in stored.items() if not name.startswith("model.layers.3.")}
    save_file(plain, folder / "model.safetensors", {"format": "pt"})
    assert Weights.load_ahead(read_config(folder), Checkpoint.open(folder)) is None
    with pytest.raises(ConfigError, match="expected layers that predict further ahead"):
        Engine.load(folder, "cpu", draft="mtp")


def test_states_are_asked_for_where_they_are_read(tmp_path: Path) -> None:
    it = theirs("Qwen3.5")
    folder = write_folder(it, tmp_path / "x")
    weights = ahead_of(folder)
    model, plain = ReferenceModel(weights), ReferenceModel(Weights.open(folder))
    with pytest.raises(RequestError, match=r"states: expected \[2, 60\] with 2 tokens, got none"):
        model.forward([1, 2], model.new_cache())
    with pytest.raises(RequestError, match=r"states: expected none .*, got \[2, 60\]"):
        plain.forward([1, 2], plain.new_cache(), it.states[:2])
    executor = CpuExecutor(weights, context=60, slots=1, workers=1)
    for states in (None, it.states[:1]):
        with pytest.raises(RequestError, match="states: expected 120 numbers"):
            executor.logits(0, [1, 2], states)
    own = CpuExecutor(Weights.open(folder), context=60, slots=1, workers=1)
    with pytest.raises(RequestError, match="states: expected 0 numbers"):
        own.logits(0, [1, 2], it.states[:2])
    others = [name for name in weights.config.features if name != "operations.Ahead"]
    with pytest.raises(BackendError, match="operations.Ahead: the cuda backend does not compute"):
        weights.config.check_features("cuda", *others)


# ---- As drafters ----


def run(executor: CpuExecutor, advance: Advance) -> list[TokenEvent]:
    executor.truncate(advance.slot, 0)
    return finish(executor, advance)


def finish(executor: CpuExecutor, *advances: Advance) -> list[TokenEvent]:
    executor.start(advances)
    events: list[TokenEvent] = []
    over = False
    while not over:
        over = executor.read(1.0)
        events += executor.take()
    return events


@cache
def drafting(case: str, folder: Path, dtype: str = "float32") -> CpuExecutor:
    weights = Weights.open(folder)
    return CpuExecutor(
        weights,
        context=60,
        slots=2,
        workers=2,
        dtype=dtype,
        draft=ahead_of(folder),
        draft_dtype=dtype,
    )


@pytest.fixture(scope="module", params=CASES)
def drafter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("ahead")
    write_folder(theirs(request.param), folder / "x")
    return request.param, drafting(request.param, folder / "x"), folder / "x"


PROMPT = [5, 9, 31, 4, 77, 50, 12, 12, 3, 60]


ASKED = 4  # drafts of a pass


def chain(
    model: ReferenceModel, ahead: ReferenceModel, tokens: list[int], begin: int = 0
) -> list[int]:
    """What is drafted behind a sequence whose last token was drawn, but is not fed yet.

    By the states from ``begin`` on.
    """
    states = model.hidden(tokens[:-1], model.new_cache())
    held = ahead.new_cache()
    if len(tokens) > begin + 2:
        ahead.forward(tokens[begin + 1 : -1], held, states[begin:-1])
    token, state, found = tokens[-1], states[-1:], []
    for _ in range(ASKED):
        logits = ahead.forward([token], held, state)
        held.truncate(held.length - 1)
        state = ahead.hidden([token], held, state)
        token = int(logits[0].argmax())
        found.append(token)
    return found


def test_it_begins_where_states_were_kept(tmp_path: Path) -> None:
    """Of a prompt of 300 tokens those of the newest 256 (csrc/draft/kept_states.h)."""
    folder = write_folder(theirs("Qwen3.5"), tmp_path / "x")
    both = [Weights.open(folder), ahead_of(folder)]
    weights, own = (replace(x, config=replace(x.config, max_positions=400)) for x in both)
    model, ahead = ReferenceModel(weights), ReferenceModel(own)
    executor = CpuExecutor(
        weights,
        context=400,
        slots=1,
        workers=2,
        dtype="float32",
        draft=own,
        draft_dtype="float32",
    )
    rng = np.random.default_rng(6)
    apart = 0
    for _ in range(4):
        prompt = rng.integers(96, size=300).tolist()
        drafted = chain(model, ahead, [*prompt, 7], begin=300 - 256)
        apart += drafted != chain(model, ahead, [*prompt, 7])
        # The first token is drawn without drafts; the second pass has those of the newest states.
        text = [*prompt, 7, *drafted, 11]
        executor.script(0, drafts=[], draws=text)
        events = run(
            executor,
            Advance(slot=0, token_ids=tuple(prompt), budget=6, drafts=ASKED, drafter="heads"),
        )
        assert [event.token_id for event in events] == text[300:]
        assert max(event.accepted for event in events) == ASKED
    assert apart > 0  # or all of the prompt would do as well


def test_it_drafts_the_chain_that_the_reference_draws(drafter: Any) -> None:
    """What is drawn is scripted: so many of a pass's drafts are right, and then one is wrong.

    Whether one is follows from what the reference drafts of the states up to there: those of tokens
    that were drafted and right are the model's own from then on, and no more the drafter's.
    """
    _, executor, folder = drafter
    ahead, model = ReferenceModel(ahead_of(folder)), ReferenceModel(Weights.open(folder))
    vocab, rights = model.config.vocab_size, [0, 3, 1, 4, 2, 4, 0, 2]
    text = [*PROMPT, 7]
    for right in rights:
        drafted = chain(model, ahead, text)
        text += drafted[:right]
        # A wrong token, or the one behind all of them.
        text.append((drafted[right] + 1) % vocab if right < ASKED else 11)
    executor.script(0, drafts=[], draws=text)
    budget = len(text) - len(PROMPT)
    advance = Advance(slot=0, token_ids=tuple(PROMPT), budget=budget, drafts=ASKED, drafter="heads")
    events = run(executor, advance)
    executor.script(0, drafts=[], draws=[])
    assert [event.token_id for event in events] == text[len(PROMPT) :]
    found, passes = [], [i for i, event in enumerate(events) if event.drafted]
    for first, last in zip(passes, [*passes[1:], len(events)], strict=True):
        found.append(max(event.accepted for event in events[first:last]))
    # The last passes may draft less, where the budget ends.
    assert found[: len(rights) - 1] == rights[: len(rights) - 1]


@pytest.mark.parametrize(
    "draw",
    [
        Draw(temperature=0.0),
        Draw(temperature=0.8, seed=3),
        Draw(temperature=1.0, seed=4, top_k=20, repetition_penalty=1.2),
    ],
    ids=["greedy", "sampled", "penalised"],
)
def test_the_bits_are_those_of_plain_decoding(drafter: Any, draw: Draw) -> None:
    _, executor, _ = drafter
    advance = Advance(
        slot=1, token_ids=tuple(PROMPT), budget=40, draw=draw, prompt=len(PROMPT), logprobs=2
    )
    plain = run(executor, advance)
    for count in (1, 6, -1):
        got = run(executor, replace(advance, drafts=count, drafter="heads"))
        told = [[(x.token_id, x.logprob) for x in events] for events in (got, plain)]
        assert told[0] == told[1], count
        assert count < 0 or any(event.drafted for event in got)


def test_a_sampled_chain_draws_with_the_sequence_s_noise(tmp_path: Path) -> None:
    """A layer whose head says what the model's does is right of sampled tokens too.

    It gets there with a layer that adds nothing, and a product that hands on what the model's own
    embedding says: of a model whose layers add nothing either, that is all that its head reads.
    """
    it = theirs("Qwen3.5")
    folder = write_folder(it, tmp_path / "x")
    weights, ahead = Weights.open(folder), ahead_of(folder)
    silent = (Role.O, Role.DOWN, Role.DELTA_OUT)

    def quiet(found: Weights) -> tuple[dict[Role, Any], ...]:
        return tuple(
            {role: x * (role not in silent) for role, x in layer.items()} for layer in found.layers
        )

    hidden = weights.config.hidden_size
    begin, layer = quiet(ahead)
    begin[Role.AHEAD_IN] = np.eye(hidden, 2 * hidden, dtype=np.float32)[None]
    begin[Role.AHEAD_TOKEN_NORM] = np.zeros((1, hidden), np.float32)  # an offset of one is added
    outer = ahead.outer | {Role.FINAL_NORM: weights.outer[Role.FINAL_NORM]}
    executor = CpuExecutor(
        replace(weights, layers=quiet(weights)),
        context=60,
        slots=1,
        workers=2,
        dtype="float32",
        draft=replace(ahead, layers=(begin, layer), outer=outer),
        draft_dtype="float32",
    )
    advance = Advance(
        slot=0,
        token_ids=tuple(PROMPT),
        budget=40,
        draw=Draw(temperature=1.0, seed=8),
        drafts=3,
        drafter="heads",
    )
    events = run(executor, advance)
    drafted = sum(event.drafted for event in events)
    accepted = sum(event.accepted > 0 for event in events)
    # The embedding is normed twice on one side, which only epsilon tells from once.
    assert drafted >= 27
    assert accepted >= drafted - 1


def test_it_goes_on_behind_what_it_never_saw(drafter: Any) -> None:
    """Behind a kept prefix, in another epoch, and of another sequence in its slot."""
    _, executor, _ = drafter
    long = [(7 * i + 3) % 90 for i in range(30)]
    asked = Advance(slot=0, token_ids=tuple(long), budget=20, drafts=3, drafter="heads")
    plain = [event.token_id for event in run(executor, replace(asked, drafts=0))]
    assert [event.token_id for event in run(executor, asked)] == plain
    executor.truncate(1, 0)
    executor.copy(0, 1)
    executor.truncate(1, 0)
    for begin in (1, 12, 29):
        executor.truncate(1, 0)
        run(executor, replace(asked, slot=1, token_ids=tuple(long[:begin]), budget=1, drafts=0))
        rest = replace(asked, slot=1, token_ids=tuple(long[begin:]), history=tuple(long[:begin]))
        got = finish(executor, rest)
        assert [event.token_id for event in got] == plain
        assert any(event.drafted for event in got)


def test_an_engine_is_told_by_name(tmp_path: Path) -> None:
    folder = write_folder(theirs("Qwen3.5, mixtures"), tmp_path / "x")
    params = SamplingParams(max_tokens=20, logit_bias={2: -np.inf})
    with Engine.load(folder, "cpu") as engine:
        plain = engine.generate(PROMPT, params)
        with pytest.raises(RequestError, match="'heads' needs heads"):
            engine.generate(PROMPT, replace(params, speculation="heads"))
    with Engine.load(folder, "cpu", draft="mtp") as engine:
        for speculation in ("auto", "heads", "off"):
            found = engine.generate(PROMPT, replace(params, speculation=speculation))
            assert found.token_ids == plain.token_ids
