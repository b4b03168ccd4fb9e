"""The default run and nanoGPT's CPU command, one after the other, like with like.

With --nanogpt, two more runs of Quill: the time to the loss at which nanoGPT ends, with an
evaluation each 25 steps, and the loss after nanoGPT's time, by --minutes. Losses are over the whole
validation split, times are of whole processes, evaluations included.
"""

from pathlib import Path

import torch

from configs.flags import make_config
from configs.settings import TrainConfig
from data.corpus import open_corpus
from data.shakespeare import tiny_shakespeare
from model import checkpoint
from model.loss import evaluate
from model.network import make_network
from model.system.device import Machine
from tests.benchmarks.convert import load_nanogpt
from tests.benchmarks.peer import CPU_COMMAND, arguments, machine, nanogpt, quill

A100_LOSS = 1.4697  # what nanoGPT's README reports for about three minutes on an A100


def whole_split_loss(folder: Path) -> float:
    """The loss of nanoGPT's checkpoint over the whole validation split, in float32."""
    data = folder / "data/shakespeare_char"
    saved = load_nanogpt(folder / "out-shakespeare-char/ckpt.pt", data / "meta.pkl")
    config = make_config(TrainConfig, saved.config)
    model = make_network(config, len(saved.vocab))
    checkpoint.restore(saved, model)
    corpus = open_corpus(config, saved.vocab)
    cpu = Machine(torch.device("cpu"), torch.float32)
    windows = corpus.eval_windows(config.block_size, cpu.eval_batch_chars(len(saved.vocab)))
    return evaluate(model, (corpus.gather_examples(*window) for window in windows), cpu)


def main() -> None:
    args = arguments()
    print(machine())
    for seed in args.seeds:
        ours = quill("--seed", seed)
        print(
            f"seed {seed}: default run {ours.wall:.0f} s, loss {ours.summary['val_loss']:.4f}, "
            f"{ours.seconds_to(A100_LOSS):.0f} s to {A100_LOSS}",
            flush=True,
        )
        if not args.nanogpt:
            continue
        theirs = nanogpt(args.nanogpt, tiny_shakespeare(), *CPU_COMMAND, look=whole_split_loss)
        print(f"    nanoGPT (seed 1337) {theirs.wall:.0f} s, loss {theirs.looked:.4f}", flush=True)
        soon = quill("--seed", seed, "--eval_interval", 25, until=theirs.looked)
        seconds, loss = soon.curve[-1]
        ratio = seconds / theirs.wall
        print(f"    Quill's time to that loss {seconds:.0f} s ({loss:.4f}), ratio {ratio:.2f}")
        timed = quill("--seed", seed, "--minutes", theirs.wall / 60)
        loss = timed.summary["best_val_loss"]
        print(f"    Quill's loss after that time {loss:.4f} ({timed.wall:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
