"""configs/nanogpt.toml and the 6 x 384 model of nanoGPT: seconds per step, and loss after training.

--steps, --batch, --device: the length of the training, its batch size, and the device of both.
"""

import re
from statistics import median

from data.download import tiny_shakespeare
from tests.benchmarks.peer import arguments, machine, nanogpt, quill


def main() -> None:
    args = arguments(steps=40, batch=64, device="cpu")
    steps, batch_size, device = int(args.steps), int(args.batch), args.device
    print(machine())
    print(f"{steps} steps of {batch_size} x 256 characters, 4 blocks of 384 channels, nanoGPT 6;")
    print("seconds per step without evaluation")
    for seed in args.seeds:
        flags = {
            "batch_size": batch_size,
            "max_iters": steps,
            "eval_interval": steps,
            "device": device,
        }
        given = [f"--{name}={value}" for name, value in flags.items()]
        ours = quill("configs/nanogpt.toml", *given, "--seed", seed)
        seconds = batch_size * 256 / ours.summary["chars_per_second"]
        line = f"seed {seed}: Quill {seconds:.3f} s, loss {ours.summary['best_val_loss']:.4f}"
        if args.nanogpt:
            flags |= {
                "lr_decay_iters": steps,
                "eval_iters": 20,
                "log_interval": 1,
                "compile": device != "cpu",
                "warmup_iters": min(100, steps // 10),
            }
            given = [f"--{name}={value}" for name, value in flags.items()]
            theirs = nanogpt(args.nanogpt, tiny_shakespeare(), *given)
            step_times = map(float, re.findall(r"time ([\d.]+)ms", theirs.output))
            their_seconds, loss = median(step_times) / 1000, theirs.curve[-1][1]
            line += f" | nanoGPT {their_seconds:.3f} s, loss {loss:.4f}"
            line += f": {their_seconds / seconds:.2f} times as fast"
        print(line, flush=True)


if __name__ == "__main__":
    main()
