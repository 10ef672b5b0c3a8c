"""An exported folder loads and computes the same where monolane does not exist."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import AutoModelForCausalLM

from monolane.hf import export_hub_layout

from .child import PREAMBLE, run_child

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDERS = ("early_comm", "replicate_head", "shared_norm_scale")

CHILD = """
import json
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

results = {}
for folder in sys.argv[2:]:
    options = {"trust_remote_code": True, "dtype": torch.float32}
    model = AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    assert type(config).__module__.startswith("transformers_modules."), type(config)
    assert AutoModel.from_pretrained(folder, **options).config.num_lanes == config.num_lanes
    expected = load_file(folder + "/../" + folder.rsplit("/", 1)[1] + ".expected")
    with torch.no_grad():
        results[folder.rsplit("/", 1)[1] + ".logits"] = model(expected["input_ids"]).logits
    prompt = expected["greedy_ids"][:, :8]
    results[folder.rsplit("/", 1)[1] + ".ids"] = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=40, do_sample=False,
        eos_token_id=None, pad_token_id=0,
    )
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2], trust_remote_code=True)
texts = json.load(open(sys.argv[1] + "/texts.json"))
with open(sys.argv[1] + "/encoded.json", "w") as file:
    json.dump([tokenizer.encode(text) for text in texts], file)
chat = tokenizer.apply_chat_template(
    [{"role": "user", "content": "hi"}], return_dict=True, add_generation_prompt=True
)
assert tokenizer.decode(chat["input_ids"]), chat
assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
assert not any(name.partition(".")[0] == "monolane" for name in sys.modules)
save_file(results, sys.argv[1] + "/results")
"""

# A rebuilt Llama pipeline encodes some otherwise: leading spaces, text after a control token.
TEXTS = ["a b", " a", "  a b ", "</s>a b", "<s>a</s> b", "a\nb", "", "é"]


def _llama_shaped_tokenizer() -> Tokenizer:
    """As Llama 2 spells spaces: one in front of the text, then each becomes U+2581."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "▁a", "▁b", "▁▁"]
    merges = [("▁", "a"), ("▁", "b"), ("▁", "▁")]
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def test_loads_and_computes_without_monolane(tmp_path: Path) -> None:
    tokenizer = _llama_shaped_tokenizer()
    for name in FOLDERS:
        out = export_hub_layout(GOLDEN / name, tmp_path / name)
        (tmp_path / f"{name}.expected").symlink_to(GOLDEN / name / "expected.safetensors")
    source = tmp_path / "with_tokenizer"
    shutil.copytree(GOLDEN / FOLDERS[0], source)
    tokenizer.save(str(source / "tokenizer.json"))
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    template = "{% for m in messages %}{{ m.content }}{% endfor %}a"
    (source / "chat_template.jinja").write_text(template)
    out = export_hub_layout(source, tmp_path / FOLDERS[0], overwrite=True)
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))

    done = run_child(CHILD, [tmp_path, *(tmp_path / name for name in FOLDERS)], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr

    results = load_file(tmp_path / "results")
    for name in FOLDERS:
        expected = load_file(GOLDEN / name / "expected.safetensors")
        here = AutoModelForCausalLM.from_pretrained(GOLDEN / name, dtype=torch.float32).eval()
        with torch.no_grad():
            assert torch.equal(results[f"{name}.logits"], here(expected["input_ids"]).logits)
        assert (results[f"{name}.logits"] - expected["logits"]).abs().max() < 1e-4
        assert torch.equal(results[f"{name}.ids"], expected["greedy_ids"])
    encoded = json.loads((tmp_path / "encoded.json").read_text())
    assert encoded == [tokenizer.encode(text).ids for text in TEXTS]
    assert (out / "modeling_laneformer.py").is_file()


def test_the_child_notices_a_package_that_it_could_import(tmp_path: Path) -> None:
    open_door = PREAMBLE.replace(
        "sys.meta_path.insert(0, Refuse())", "sys.modules['monolane'] = sys"
    )
    done = run_child("", [], tmp_path, open_door)
    assert done.returncode != 0
    assert "this test proves nothing" in done.stderr


def test_the_child_notices_another_transformers(tmp_path: Path) -> None:
    other = PREAMBLE.replace("sys.argv.pop(1)", "'4.0.0'")
    done = run_child("", [], tmp_path, other)
    assert done.returncode != 0
    assert "another Transformers is imported" in done.stderr
