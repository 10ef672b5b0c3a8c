"""What the tests of ``monolane.tune`` share: tiny models, tokenizers and chats."""

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

import monolane

DEMO = Path(monolane.__file__).parent / "demo"
if find_spec("torch") and find_spec("transformers"):
    import torch

    # Tests of several packages may run at once; one thread each is also the reproducible choice.
    torch.set_num_threads(1)

    @pytest.fixture(autouse=True)
    def _seed() -> None:
        torch.manual_seed(0)


CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
INST = (
    "{{ bos_token }}{% for message in messages %}"
    "{%- if message['role'] == 'user' %}{{- '[INST] ' + message['content'].strip() + ' [/INST]' }}"
    "{%- else %}{{- ' ' + message['content'] | trim + eos_token }}{%- endif %}{%- endfor %}"
)
# Indented and with comments, as people write them; it keeps its state in a namespace.
ROLES = """{#- roles in brackets -#}
{%- set ns = namespace(turn=0) %}
{%- for message in messages %}
    {%- set ns.turn = ns.turn + 1 %}
    {%- if message.role == 'assistant' %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- message.content | trim + eos_token }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
        {{- ns.turn ~ '. ' ~ message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
TEMPLATES: dict[str, str | None] = {
    "default": None,
    "chatml": CHATML,
    "inst": INST,
    "roles": ROLES,
}
CONTROL = ("<unk>", "<s>", "</s>", "<|start_header_id|>", "<|end_header_id|>")

CHATS: list[list[dict[str, str]]] = [
    [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "def f(x):\n    return x"},
    ],
    [
        {"role": "user", "content": " Say </s> and <|im_end|> twice. "},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "Again?"},
        {"role": "assistant", "content": " two, three\n"},
    ],
]


def write_chats(path: Path, chats: list[list[dict[str, str]]]) -> Path:
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    return path


def write_tokenizer(folder: Path, template: str | None, size: int = 320) -> None:
    """A byte-level tokenizer with the control tokens of all templates here, and the template."""
    library = Tokenizer(models.BPE(unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[*CONTROL, "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator([Path(__file__).read_text()], trainer)
    library.add_special_tokens([AddedToken(t, special=True) for t in CONTROL])
    library.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)


@pytest.fixture(params=TEMPLATES)
def template_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with tokenizer and chat template, of each kind in turn."""
    folder = tmp_path / "text"
    folder.mkdir()
    write_tokenizer(folder, TEMPLATES[request.param])
    if request.param == "chatml":
        settings = {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture
def chat_model(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny model, with the tokens of the default template in its vocabulary."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    write_tokenizer(folder, None)
    return folder


@pytest.fixture
def llama(tmp_path: Path) -> Callable[..., Path]:
    """Writes a random Llama as Transformers saves it, small enough for milliseconds."""
    import transformers

    def make(kind: str = "Llama", dtype: str = "float32", **changes: Any) -> Path:
        fields: dict[str, Any] = {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "vocab_size": 320,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "initializer_range": 0.15,  # large enough for softmax and silu to bend
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": None,
        }
        config = getattr(transformers, f"{kind}Config")(**fields | changes)
        model = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "norm" in name:  # off one, so that a scale in the wrong place shows
                    parameter += 0.3 * torch.randn_like(parameter)
        folder = tmp_path / "dense"
        model.to(getattr(torch, dtype)).save_pretrained(folder)
        write_tokenizer(folder, None)
        return folder

    return make
