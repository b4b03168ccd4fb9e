"""Reading a checkpoint of nanoGPT: its weights, its vocabulary, and what is refused."""

import pickle
from pathlib import Path

import pytest
import torch

import sample
import train
from model.nanogpt import load_nanogpt
from model.network import GPTConfig, make_network
from model.run.errors import UserError
from tests.conftest import LINES
from tests.model.test_networks import random_gpt, random_ids

VOCAB = "".join(sorted(set(LINES)))
# The parts of our parameter names, and nanoGPT's.
THEIR_NAMES = {
    "blocks.": "transformer.h.",
    "norm_": "ln_",
    ".attention.": ".attn.",
    "embedding.": "transformer.wte.",
    "position.": "transformer.wpe.",
    "head.": "lm_head.",
    ".fc.": ".c_fc.",
    ".proj.": ".c_proj.",
}


def nanogpt_files(model, **changes) -> tuple[str, str]:
    """ckpt.pt and meta.pkl as nanoGPT writes them for `model`."""
    weights = {}
    for name, weight in model.state_dict().items():
        for ours, theirs in THEIR_NAMES.items():
            name = name.replace(ours, theirs)  # noqa: PLW2901
        name = "transformer.ln_f" + name[4:] if name.startswith("norm.") else name  # noqa: PLW2901
        if ".query." in name:  # one matrix for all three
            parts = [name, name.replace("query", "key"), name.replace("query", "value")]
            ours = [part.replace("transformer.h", "blocks") for part in parts]
            ours = [part.replace("attn", "attention") for part in ours]
            weight = torch.cat([model.state_dict()[part] for part in ours])  # noqa: PLW2901
            name = name.replace("query", "c_attn")  # noqa: PLW2901
        if ".key." not in name and ".value." not in name:
            weights[f"_orig_mod.{name}"] = weight
    sizes = {name: getattr(model.config, name) for name in GPTConfig.__annotations__}
    sizes |= {"vocab_size": len(VOCAB)}
    del sizes["network"]
    values = {"model": weights, "model_args": sizes, "iter_num": 9, "config": {"dtype": "float32"}}
    values |= {"optimizer": {"state": {}}, "best_val_loss": torch.tensor(2.0)}
    torch.save(values | changes, "ckpt.pt")
    meta = {"vocab_size": len(VOCAB), "itos": dict(enumerate(VOCAB))}
    meta["stoi"] = {char: id_ for id_, char in enumerate(VOCAB)}
    with open("meta.pkl", "wb") as file:
        pickle.dump(meta, file)
    return "ckpt.pt", "meta.pkl"


@pytest.mark.parametrize("bias", [False, True])
def test_weights_sizes_and_vocabulary_survive(elsewhere, bias):
    model = random_gpt(len(VOCAB), network="gpt", bias=bias).float()
    saved = load_nanogpt(*nanogpt_files(model))
    assert (saved.vocab, saved.step) == (VOCAB, 9)
    same = make_network(GPTConfig(**saved.config), len(VOCAB)).eval()
    same.load_state_dict(saved.model)
    ids_BT = random_ids(2, 12, V=len(VOCAB))
    assert torch.equal(same(ids_BT), model(ids_BT))


def test_the_mask_that_old_versions_of_pytorch_saved_is_left_out(elsewhere):
    model = random_gpt(len(VOCAB), network="gpt").float()
    path, meta = nanogpt_files(model)
    saved = torch.load(path)
    saved["model"]["transformer.h.0.attn.bias"] = torch.ones(1, 1, 12, 12)
    torch.save(saved, path)
    assert load_nanogpt(path, meta).model.keys() == model.state_dict().keys()


def test_it_is_sampled_scored_and_trained_further(text_file, capsys):
    model = random_gpt(len(VOCAB), network="gpt").float()
    path, meta = nanogpt_files(model)
    assert sample.main([path, "--meta", meta, "--max_new_tokens", "30"]) == 0
    assert len(capsys.readouterr().out) == 30
    assert sample.main([path, "--meta", meta, "--score", "text.txt"]) == 0
    before = float(capsys.readouterr().out.split()[0])
    flags = ["--data=text.txt", "--device=cpu", "--max_iters=30", "--learning_rate=0.003"]
    flags += ["--init_from", path, "--meta", meta, "--out_dir=run"]
    assert train.main(flags) == 0
    assert train.main(["--resume", "run", "--max_iters", "31"]) == 0
    capsys.readouterr()
    assert sample.main(["run", "--which=last", "--score", "text.txt"]) == 0
    assert float(capsys.readouterr().out.split()[0]) < before - 0.3


class Exploit:
    def __reduce__(self):
        return open, ("exploited", "w")


def test_other_files_are_refused_and_no_code_in_them_is_run(elsewhere):
    model = random_gpt(len(VOCAB), network="gpt").float()
    path, meta = nanogpt_files(model)
    content = bytearray(Path(path).read_bytes())
    content[content.index(model.norm.weight.detach().numpy().tobytes())] ^= 1
    Path("flipped.pt").write_bytes(content)
    with pytest.raises(UserError, match="flipped.pt .* is damaged"):
        load_nanogpt("flipped.pt", meta)
    (elsewhere / "exploit").write_bytes(pickle.dumps({"itos": Exploit()}))
    torch.save({"model": Exploit()}, "exploit.pt")
    torch.save({"model": {}}, "other.pt")
    (elsewhere / "text").write_text("abc")
    for pair in (("exploit.pt", meta), ("other.pt", meta), ("text", meta), ("missing", meta)):
        with pytest.raises(UserError, match=pair[0]):
            load_nanogpt(*pair)
    for name in ("exploit", "text", "missing", path):
        with pytest.raises(UserError, match=name):
            load_nanogpt(path, name)
    assert not (elsewhere / "exploited").exists()
    larger = random_gpt(len(VOCAB) + 1, network="gpt").float()
    sizes = {"n_layer": 3, "n_head": 2, "n_embd": 16, "block_size": 12, "bias": False}
    sizes |= {"dropout": 0.0, "vocab_size": len(VOCAB) + 1}
    with pytest.raises(UserError, match="33 tokens"):
        load_nanogpt(*nanogpt_files(larger, model_args=sizes))
    with pytest.raises(UserError, match="ckpt.pt .* needs --meta"):
        train.checkpoint.load("ckpt.pt")
