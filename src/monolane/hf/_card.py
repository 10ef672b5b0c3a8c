"""The model card of an exported folder whose source has none: what the config says, no claims."""

from monolane.model import ModelConfig

_TEMPLATE = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- laneformer
- custom_code
---

# {name}

A Laneformer, a decoder whose {lanes} lanes exchange their outputs some layers late. It has \
{parameters:.4g} million parameters in {layers} layers of width {width}, a vocabulary of \
{vocabulary} tokens and a context of {context} tokens.

The folder carries its own modeling code, so loading it needs `trust_remote_code=True`: read \
`modeling_laneformer.py` first, and pin the revision that you read.

```python
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained({name!r}, trust_remote_code=True, dtype={dtype!r})
```

This card was written from config.json. What the model was trained on, how well it does and under \
which licence it may be used are not recorded here.
"""


def model_card(config: ModelConfig, name: str) -> str:
    """Return the text of README.md."""
    return _TEMPLATE.format(
        name=name,
        lanes=config.num_lanes,
        parameters=config.num_parameters / 1e6,
        layers=config.num_layers,
        width=config.hidden_size,
        vocabulary=config.vocab_size,
        context=config.max_positions,
        dtype=config.dtype,
    )
