"""Converting a checkpoint of nanoGPT: its logits, the commands that read it, untrusted files."""

import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from configs.settings import GPTConfig
from model.networks import make_network
from model.run import checkpoint
from model.system.errors import UserError
from tests.benchmarks import convert
from tests.conftest import LINES

VOCAB = "".join(sorted(set(LINES)))
V, C, L, H, BLOCK_SIZE = len(VOCAB), 16, 3, 2, 12
FILES = ["ckpt.pt", "meta.pkl", "out.pt"]


def random_weights(bias: bool = False) -> dict[str, Tensor]:
    """The parameters of a network of nanoGPT, under its names."""
    shapes = {"transformer.wte.weight": (V, C), "transformer.wpe.weight": (BLOCK_SIZE, C)}
    for i in range(L):
        block = f"transformer.h.{i}."
        shapes |= {f"{block}ln_1.weight": (C,), f"{block}ln_2.weight": (C,)}
        shapes |= {f"{block}attn.c_attn.weight": (3 * C, C), f"{block}attn.c_proj.weight": (C, C)}
        shapes |= {f"{block}mlp.c_fc.weight": (4 * C, C), f"{block}mlp.c_proj.weight": (C, 4 * C)}
    shapes["transformer.ln_f.weight"] = (C,)
    if bias:
        in_blocks = [name for name in shapes if ".h." in name] + ["transformer.ln_f.weight"]
        shapes |= {name.replace("weight", "bias"): shapes[name][:1] for name in in_blocks}
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: 0.3 * torch.randn(shape, generator=generator) + float("ln_" in name)
        for name, shape in shapes.items()
    }
    return weights | {"lm_head.weight": weights["transformer.wte.weight"]}


def nanogpt_logits(weights: dict[str, Tensor], ids_BT: Tensor) -> Tensor:
    """The forward pass of nanoGPT's model.py."""

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (C,), weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def split_heads(x_BTC: Tensor) -> Tensor:
        return x_BTC.unflatten(2, (H, C // H)).transpose(1, 2)

    x_BTC = weights["transformer.wte.weight"][ids_BT]
    x_BTC = x_BTC + weights["transformer.wpe.weight"][: ids_BT.size(1)]
    for i in range(L):
        block = f"transformer.h.{i}"
        qkv = linear(norm(x_BTC, f"{block}.ln_1"), f"{block}.attn.c_attn")
        q_BHTD, k_BHTD, v_BHTD = map(split_heads, qkv.split(C, dim=2))
        out_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        x_BTC = x_BTC + linear(out_BHTD.transpose(1, 2).flatten(2), f"{block}.attn.c_proj")
        h_BTC = F.gelu(linear(norm(x_BTC, f"{block}.ln_2"), f"{block}.mlp.c_fc"))
        x_BTC = x_BTC + linear(h_BTC, f"{block}.mlp.c_proj")
    return linear(norm(x_BTC, "transformer.ln_f"), "lm_head")


def write_files(weights: dict[str, Tensor], bias: bool = False, vocab: str = VOCAB) -> None:
    """ckpt.pt and meta.pkl as nanoGPT writes them for a compiled network."""
    sizes = {"n_layer": L, "n_head": H, "n_embd": C, "block_size": BLOCK_SIZE}
    sizes |= {"bias": bias, "dropout": 0.0, "vocab_size": V}
    values = {"model": {f"_orig_mod.{name}": weight for name, weight in weights.items()}}
    values |= {"model_args": sizes, "iter_num": 9, "config": {"dtype": "float32"}}
    values |= {"optimizer": {"state": {}}, "best_val_loss": torch.tensor(2.0)}
    torch.save(values, "ckpt.pt")
    meta = {"vocab_size": len(vocab), "itos": dict(enumerate(vocab))}
    meta["stoi"] = {char: id_ for id_, char in enumerate(vocab)}
    with open("meta.pkl", "wb") as file:
        pickle.dump(meta, file)


@pytest.mark.parametrize("bias", [False, True])
def test_converted_checkpoint_gives_the_logits_of_nanogpt(elsewhere, bias):
    weights = random_weights(bias)
    write_files(weights, bias)
    convert.main(FILES)
    saved = checkpoint.load("out.pt")
    assert (saved.vocab, saved.step) == (VOCAB, 9)
    model = make_network(GPTConfig(**saved.config), V).eval()
    checkpoint.load_weights(saved, model)
    ids_BT = torch.randint(V, (2, BLOCK_SIZE), generator=torch.Generator().manual_seed(0))
    double_weights = {name: weight.double() for name, weight in weights.items()}
    torch.testing.assert_close(model.double()(ids_BT), nanogpt_logits(double_weights, ids_BT))


def test_vocabulary_of_another_size_is_refused(elsewhere):
    write_files(random_weights(), vocab=VOCAB[:-1])
    with pytest.raises(UserError, match="size mismatch for embedding.weight"):
        convert.main(FILES)


class Exploit:
    def __reduce__(self):
        return open, ("exploited", "w")


@pytest.mark.parametrize("name", ["ckpt.pt", "meta.pkl"])
def test_code_in_a_file_is_not_run(elsewhere, name):
    write_files(random_weights())
    if name == "ckpt.pt":
        torch.save({"model": Exploit()}, name)
    else:
        (elsewhere / name).write_bytes(pickle.dumps({"itos": Exploit()}))
    with pytest.raises(pickle.UnpicklingError):
        convert.main(FILES)
    assert not (elsewhere / "exploited").exists()
    assert not (elsewhere / "out.pt").exists()
