"""Post-training: chats to a model that answers, and dense models to Laneformers.

Conversion needs no torch. Fine-tuning and distillation need ``pip install 'monolane[sft]'``;
``monolane sft`` and ``monolane retrofit`` run them.
"""

from typing import TYPE_CHECKING

from monolane._lazy import torch_names
from monolane.tune._chat_tokens import ChatEncoder
from monolane.tune._generation_template import marked_template
from monolane.tune._lanes import HeadName
from monolane.tune._material import chat_encoder, prepare_material, read_chats
from monolane.tune._recipe import (
    AnnealRecipe,
    LoraRecipe,
    SftRecipe,
    read_recipe,
    shipped_recipes,
)
from monolane.tune._retrofit import retrofit_config, retrofit_folder
from monolane.tune._stdlib_pairs import library_requests, write_requests
from monolane.tune._windows import Windows, read_windows

if TYPE_CHECKING:
    from monolane.tune._distil import annealed, distil_folder, heal, held_out_loss, layer_share
    from monolane.tune._divergence import divergence
    from monolane.tune._eagle import EagleRecipe, TrainedEagle, train_eagle
    from monolane.tune._fast_cpu_model import keep_freed_memory, swift
    from monolane.tune._heads import HeadsRecipe, TrainedHeads, train_heads
    from monolane.tune._lora import add_lora, merge_adapter
    from monolane.tune._nextn import NextNRecipe, TrainedNextN, train_nextn
    from monolane.tune._precision import products_dtype
    from monolane.tune._sft import tune_folder
    from monolane.tune._teacher_topk import BestTokens
else:
    _MODULES = {
        "_teacher_topk": ("BestTokens",),
        "_distil": ("annealed", "distil_folder", "heal", "held_out_loss", "layer_share"),
        "_divergence": ("divergence",),
        "_eagle": ("EagleRecipe", "TrainedEagle", "train_eagle"),
        "_heads": ("HeadsRecipe", "TrainedHeads", "train_heads"),
        "_lora": ("add_lora", "merge_adapter"),
        "_nextn": ("NextNRecipe", "TrainedNextN", "train_nextn"),
        "_precision": ("products_dtype",),
        "_sft": ("tune_folder",),
        "_fast_cpu_model": ("keep_freed_memory", "swift"),
    }
    __getattr__ = torch_names(__name__, _MODULES, "fine-tuning (monolane.tune)", "sft")


__all__ = [
    "AnnealRecipe",
    "BestTokens",
    "ChatEncoder",
    "EagleRecipe",
    "HeadName",
    "HeadsRecipe",
    "LoraRecipe",
    "NextNRecipe",
    "SftRecipe",
    "TrainedEagle",
    "TrainedHeads",
    "TrainedNextN",
    "Windows",
    "add_lora",
    "annealed",
    "chat_encoder",
    "distil_folder",
    "divergence",
    "heal",
    "held_out_loss",
    "keep_freed_memory",
    "layer_share",
    "library_requests",
    "marked_template",
    "merge_adapter",
    "prepare_material",
    "products_dtype",
    "read_chats",
    "read_recipe",
    "read_windows",
    "retrofit_config",
    "retrofit_folder",
    "shipped_recipes",
    "swift",
    "train_eagle",
    "train_heads",
    "train_nextn",
    "tune_folder",
    "write_requests",
]
