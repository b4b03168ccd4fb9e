"""Reads a checkpoint of nanoGPT (github.com/karpathy/nanoGPT) as one of the network gpt."""

import pickle
import zipfile
from pathlib import Path

import torch
from torch import Tensor

from model.checkpoint import Checkpoint
from model.network import GPTConfig
from model.run.errors import UserError

# Parts of nanoGPT's parameter names, and of ours.
NAMES = {
    "_orig_mod.": "",  # of a compiled network
    "transformer.wte.": "embedding.",
    "transformer.wpe.": "position.",
    "transformer.ln_f.": "norm.",
    "transformer.h.": "blocks.",
    "lm_head.": "head.",
    ".ln_1.": ".norm_1.",
    ".ln_2.": ".norm_2.",
    ".attn.": ".attention.",
    ".c_fc.": ".fc.",
    ".c_proj.": ".proj.",
}
SIZES = ("n_layer", "n_head", "n_embd", "block_size", "bias", "dropout")


def load_nanogpt(path: Path, meta_path: str) -> Checkpoint:
    """Weights, sizes and vocabulary of a ckpt.pt; meta.pkl, beside its data, has the vocabulary.

    No code in the two files is run. Raises UserError if one of them is something else.
    """
    vocab = load_vocab(meta_path)
    try:
        with zipfile.ZipFile(path) as archive:
            if (damaged := archive.testzip()) is not None:  # PyTorch ignores its checksums
                raise ValueError(f"{damaged} is damaged")
        saved = torch.load(path, map_location="cpu", weights_only=True)
        sizes = saved["model_args"]
        config = {"network": "gpt"} | {name: sizes[name] for name in SIZES}
        GPTConfig(**config)
        vocab_size, step = sizes["vocab_size"], int(saved["iter_num"])
        weights = convert(saved["model"])
    except Exception as error:  # a damaged file raises exceptions of many types
        hint = "Leave out --meta for one of Quill."
        raise UserError(f"{path} is not a checkpoint of nanoGPT ({error}). {hint}") from None
    if not vocab_size == len(vocab) == len(set(vocab)):
        raise UserError(f"{path} has {vocab_size} tokens, but {meta_path} {len(vocab)} characters.")
    return Checkpoint(config, vocab, model=weights, step=step)


def convert(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parameters under our names; what it calls c_attn is our query, key and value."""
    converted = {}
    for their_name, weight in weights.items():
        if their_name.endswith(".attn.bias"):  # the mask, with an old PyTorch
            continue
        name = their_name
        for old, new in NAMES.items():
            name = name.replace(old, new)
        parts = ("query", "key", "value") if "c_attn" in name else ("",)
        for part, rows in zip(parts, weight.chunk(len(parts)), strict=True):
            converted[name.replace("c_attn", part)] = rows
    return converted


class PlainUnpickler(pickle.Unpickler):
    """Reads numbers, strings and containers of them; a pickle that needs code is an error."""

    def find_class(self, module: str, name: str) -> None:
        raise pickle.UnpicklingError(f"it needs {module}.{name}")


def load_vocab(path: str) -> str:
    """The characters of a meta.pkl in the order of their ids. Raises UserError."""
    try:
        with open(path, "rb") as file:
            itos = PlainUnpickler(file).load()["itos"]
        return "".join(itos[id_] for id_ in range(len(itos)))
    except Exception as error:
        raise UserError(f"{path} is not a meta.pkl with characters: {error}.") from None
