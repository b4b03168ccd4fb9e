"""Like with like: nanoGPT's network and recipe in both programs, one after the other.

First the loss after configs/nanogpt_cpu.toml and after the CPU command of nanoGPT's README: both
over the whole validation split, by `train.evaluate`. Then the speed in float32 and bfloat16, at 4 x
128 and 6 x 384. --steps: of a speed measurement of the small network; --rounds, --device.
"""

import re
from pathlib import Path
from statistics import mean, median, stdev

import torch

import train
from configs.flags import make_config
from configs.settings import DataConfig
from data.corpus import open_corpus
from data.shakespeare import tiny_shakespeare
from model import checkpoint
from model.network import make_network
from model.system.device import Machine
from tests.benchmarks.convert import load_nanogpt
from tests.benchmarks.peer import CPU_COMMAND, arguments, machine, nanogpt, quill

# nanoGPT stops its clock while a GPU still computes, and trains in float32 on a CPU, whatever
# --dtype says. Quill waits for the device before it stops its clock.
NANOGPT_EDITS = {
    "    t1 = time.time()\n": "    device_type == 'cpu' or torch.accelerator.synchronize()\n"
    "    t1 = time.time()\n",
    "nullcontext() if device_type == 'cpu' else": "nullcontext() if dtype == 'float32' else",
}
# Of a network: preset, batch size, characters of an example, factor of --steps.
SIZES = {"4 x 128": ("nanogpt_cpu", 12, 64, 1.0), "6 x 384": ("nanogpt", 16, 256, 0.05)}


def whole_split_loss(folder: Path) -> float:
    """The loss of nanoGPT's checkpoint over the whole validation split, in float32."""
    data = folder / "data/shakespeare_char"
    saved = load_nanogpt(folder / "out-shakespeare-char/ckpt.pt", data / "meta.pkl")
    model = make_network(make_config(train.TrainConfig, saved.config).model, len(saved.vocab))
    checkpoint.restore(saved, model)
    corpus = open_corpus(DataConfig(), saved.vocab)
    return train.evaluate(model, corpus, Machine(torch.device("cpu"), torch.float32))


def compare_losses(clone: Path, seeds: list[int]) -> None:
    """Print the losses after the same steps, and how far apart their means are."""
    ours, theirs = [], []
    for seed in seeds:
        ours.append(quill("configs/nanogpt_cpu.toml", "--seed", seed).summary["val_loss"])
        flags = (*CPU_COMMAND, "--always_save_checkpoint=True")
        edits = {"1337 + seed_offset": f"{seed} + seed_offset"}
        run = nanogpt(clone, tiny_shakespeare(), *flags, edits=edits, look=whole_split_loss)
        theirs.append(run.looked)
        print(f"seed {seed}: Quill {ours[-1]:.4f}, nanoGPT {theirs[-1]:.4f}", flush=True)
    error = ((stdev(ours) ** 2 + stdev(theirs) ** 2) / len(seeds)) ** 0.5
    difference = mean(ours) - mean(theirs)
    print(f"difference of the means {difference:+.4f}, {difference / error:+.1f} standard errors")


def compare_speeds(clone: Path, steps: int, rounds: int, device: str) -> None:
    """Print training characters a second of both, in turn."""
    for name, (preset, batch_size, block_size, share) in SIZES.items():
        for dtype in ("float32", "bfloat16"):
            count, ratios = round(steps * share), []
            for _ in range(rounds):
                flags = {"batch_size": batch_size, "max_iters": count, "eval_interval": count}
                flags |= {"device": device, "dtype": dtype, "dropout": 0.0}
                flags |= {"compile": device != "cpu", "lr_decay_iters": count, "warmup_iters": 0}
                given = [f"--{key}={value}" for key, value in flags.items()]
                ours = quill(f"configs/{preset}.toml", *given).summary["chars_per_second"]
                given += [] if preset == "nanogpt" else ["--n_layer=4", "--n_head=4"]
                given += [] if preset == "nanogpt" else ["--n_embd=128", "--block_size=64"]
                given += ["--eval_iters=1", "--log_interval=1"]
                run = nanogpt(clone, tiny_shakespeare(), *given, edits=NANOGPT_EDITS)
                seconds = median(map(float, re.findall(r"time ([\d.]+)ms", run.output))) / 1000
                theirs = batch_size * block_size / seconds
                ratios.append(ours / theirs)
                line = f"{name}, {dtype}: Quill {ours:,.0f} characters/s, nanoGPT {theirs:,.0f}"
                print(f"{line}, ratio {ratios[-1]:.2f}", flush=True)
            print(f"{name}, {dtype}: median ratio {median(ratios):.2f}", flush=True)


def main() -> None:
    args = arguments(steps=400, rounds=3, device="cpu")
    print(machine())
    compare_losses(args.nanogpt, args.seeds)
    compare_speeds(args.nanogpt, int(args.steps), int(args.rounds), args.device)


if __name__ == "__main__":
    main()
