"""A GGUF file's tokenizer and chat template as the files of a folder in Hub layout."""

import json
from pathlib import Path

import tokenizers
from tokenizers.processors import TemplateProcessing

from monolane.text._files import MODEL_INPUTS
from monolane.text._gguf import GgufText
from monolane.text._tokenizer import Tokenizer


def write_text_files(text: GgufText, folder: Path, longest: int) -> None:
    """Write tokenizer.json, and tokenizer_config.json with the chat template.

    ``longest`` is the model's context, in tokens. TextError as ``Tokenizer.of_gguf``.
    """
    Tokenizer.of_gguf(text)  # every check of it, before a file is there
    library = tokenizers.Tokenizer.from_str(json.dumps(text.data))
    settings = {name: value for name, value in text.settings.items() if value is not None}
    # Other readers look at the post-processor for what goes before and behind a text.
    before, after = (
        [settings[f"{name}_token"]] * settings[f"add_{name}_token"] for name in ("bos", "eos")
    )
    if before or after:
        library.post_processor = TemplateProcessing(
            single=[*before, "$A", *after],
            special_tokens=[(token, library.token_to_id(token)) for token in {*before, *after}],
        )
    library.save(str(folder / "tokenizer.json"))
    settings |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "model_input_names": list(MODEL_INPUTS),
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
