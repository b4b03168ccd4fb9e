"""Convert a checkpoint of nanoGPT (github.com/karpathy/nanoGPT) to one of Quill.

python -m tests.benchmarks.convert CKPT.pt META.pkl OUT.pt, where META.pkl is the file beside
nanoGPT's data that holds the vocabulary. No code in the two files is run. Then
`python sample.py OUT.pt` and `python train.py --init_from OUT.pt` read the result.
"""

import argparse
import pickle
from pathlib import Path

import torch
from torch import Tensor

from configs.settings import GPTConfig
from model.networks import make_network
from model.run import checkpoint
from model.run.checkpoint import Checkpoint

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


def load_nanogpt(ckpt_path: Path, meta_path: Path) -> Checkpoint:
    """The weights, sizes and vocabulary. Raises UserError if they do not fit together."""
    saved = torch.load(ckpt_path, map_location="cpu", weights_only=True)
    with open(meta_path, "rb") as file:
        itos = PlainUnpickler(file).load()["itos"]
    vocab = "".join(itos[id_] for id_ in range(len(itos)))
    config = {"network": "gpt"} | {name: saved["model_args"][name] for name in SIZES}
    weights, step = convert(saved["model"]), saved["iter_num"]
    loaded = Checkpoint(config=config, vocab=vocab, model=weights, step=step)
    # Checks the shapes
    checkpoint.load_weights(loaded, make_network(GPTConfig(**config), len(vocab)))
    return loaded


def convert(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parameters under our names; nanoGPT's c_attn is our query, key and value."""
    converted = {}
    for their_name, weight in weights.items():
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


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m tests.benchmarks.convert")
    parser.add_argument("ckpt", metavar="CKPT.pt", type=Path)
    parser.add_argument("meta", metavar="META.pkl", type=Path)
    parser.add_argument("out", metavar="OUT.pt", type=Path)
    args = parser.parse_args(argv)
    checkpoint.save(load_nanogpt(args.ckpt, args.meta), args.out)


if __name__ == "__main__":
    main()
