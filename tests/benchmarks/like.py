"""configs/nanogpt.toml against nanoGPT's own 6 x 384 model: seconds a step, and loss after as many characters."""

import re
from statistics import median

from data.download import tiny_shakespeare
from tests.benchmarks.peer import arguments, machine, nanogpt, quill


def main() -> None:
    given = arguments(steps=40, batch=64, device="cpu")
    print(machine())
    print(
        f"{given.steps} steps of {given.batch} x 256 characters, 6 layers of 384; seconds a step without evaluation"
    )
    steps, batch = int(given.steps), int(given.batch)
    for seed in given.seeds:
        flags = (
            "--batch_size",
            batch,
            "--max_iters",
            steps,
            "--eval_interval",
            steps,
            "--device",
            given.device,
        )
        ours = quill("configs/nanogpt.toml", *flags, "--seed", seed)
        seconds = batch * 256 / ours.summary["chars_per_second"]
        line = f"seed {seed}: Quill {seconds:.3f} s, loss {ours.summary['best_val_loss']:.4f}"
        if given.nanogpt:
            flags = (
                f"--batch_size={batch}",
                f"--max_iters={steps}",
                f"--lr_decay_iters={steps}",
            )
            flags += (
                f"--eval_interval={steps}",
                f"--device={given.device}",
                "--eval_iters=20",
                "--log_interval=1",
            )
            flags += (
                f"--compile={given.device != 'cpu'}",
                f"--warmup_iters={min(100, steps // 10)}",
            )
            theirs = nanogpt(given.nanogpt, tiny_shakespeare(), *flags)
            between = median(map(float, re.findall(r"time ([\d.]+)ms", theirs.said))) / 1000
            line += f" | nanoGPT {between:.3f} s, loss {theirs.curve[-1][1]:.4f}: {between / seconds:.2f} times as fast"
        print(line, flush=True)


if __name__ == "__main__":
    main()
