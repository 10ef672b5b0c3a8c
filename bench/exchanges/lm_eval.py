"""lm-eval: its OpenAI completions model, with texts; a log-likelihood, and a generation."""

import os

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

model = LocalCompletionsAPI(
    base_url=f"{os.environ['OPENAI_BASE_URL']}/completions",
    model=os.environ["MODEL"],
    tokenizer_backend="huggingface",
    tokenizer=os.environ["TOKENIZER"],
    tokenized_requests=False,
    max_length=500,
)
(loglikelihood,) = model.loglikelihood(
    [Instance("loglikelihood", {}, ("The capital of France is", " Paris"), 0)]
)
assert loglikelihood[0] < 0
print("loglikelihood")
(text,) = model.generate_until(
    [Instance("generate_until", {}, ("Say hello.", {"until": ["."], "max_gen_toks": 20}), 0)]
)
assert isinstance(text, str)
print("generation")
