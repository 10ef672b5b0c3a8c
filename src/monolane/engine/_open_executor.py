"""From files and options to an executor: drafters opened, bytes read, sizes held against the model.

``Engine.load`` does this, and ``monolane.measure`` for models that no engine drives.
"""

from dataclasses import replace

from monolane._loading import Loading
from monolane.engine._adapters import Adapters
from monolane.engine._draft_model import DraftModel
from monolane.engine._files import ModelFiles
from monolane.engine._memory import expert_budget
from monolane.errors import RequestError
from monolane.executor_api import Executor, MakeExecutor
from monolane.model import ModelConfig, Weights
from monolane.text import Tokenizer


def open_executor(
    make: MakeExecutor,
    asked: Loading,
    files: ModelFiles,
    weights: Weights,
    tokenizer: Tokenizer | None = None,
) -> Executor:
    """Have ``make``, as ``find_backend`` found it, make an executor of a model's weights.

    ``tokenizer``: the model's, read if a draft model is to be held against it and None is given.
    """
    context = find_context(asked.context, files.config)
    weights = replace(weights, config=weights.config.for_context(context))
    memory = asked.expert_memory
    if memory is not None:
        memory = expert_budget(memory, weights)
    told = replace(asked, context=context, expert_memory=memory).told()
    if asked.lora is not None:
        told["lora"] = Adapters.open(asked.lora, files).loaded
    if asked.heads is not None:
        told["draft"] = DraftModel.open_heads(asked.heads, files).weights
    elif asked.draft is not None:
        tokens = tokenizer or files.tokenizer()
        found = DraftModel.open(asked.draft, files, weights, tokens)
        told |= {"draft": found.weights, "draft_dtype": found.dtype or asked.dtype}
        files.mapped += found.mapped  # watched, as the model's own are
    return make(weights, **told)


def find_context(context: int | None, config: ModelConfig) -> int:
    """Return how many tokens a sequence may hold; RequestError for more than the model's."""
    if context is None:
        return config.max_positions
    most = config.longest_context
    if type(context) is not int or not 1 <= context <= most:
        raise RequestError(
            f"context: expected None or 1 to {most} tokens, on which the model was trained, "
            f"or to which it is stretched, got {context!r}"
        )
    return context
