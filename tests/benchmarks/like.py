"""configs/nanogpt.toml and the 6 x 384 model of nanoGPT: seconds per step, and loss after training.

Both in float32, then both in bfloat16. --steps, --batch, --device: the length of the training, its
batch size, and the device of both.
"""

import re
from statistics import median

from data.shakespeare import tiny_shakespeare
from tests.benchmarks.peer import arguments, machine, nanogpt, quill

# nanoGPT stops its clock while a GPU still computes, and trains in float32 on a CPU, whatever
# --dtype says. Quill waits for the device before it stops its clock.
NANOGPT_EDITS = {
    "    t1 = time.time()\n": "    device_type == 'cpu' or torch.accelerator.synchronize()\n"
    "    t1 = time.time()\n",
    "nullcontext() if device_type == 'cpu' else": "nullcontext() if dtype == 'float32' else",
}


def main() -> None:
    args = arguments(steps=40, batch=64, device="cpu")
    steps, batch_size = int(args.steps), int(args.batch)
    print(machine())
    print(f"{steps} steps of {batch_size} x 256 characters, 4 blocks of 384 channels, nanoGPT 6;")
    print("seconds per step without evaluation")
    for seed in args.seeds:
        for dtype in ("float32", "bfloat16"):
            flags = {"batch_size": batch_size, "max_iters": steps, "eval_interval": steps}
            flags |= {"device": args.device, "dtype": dtype}
            given = [f"--{name}={value}" for name, value in flags.items()]
            ours = quill("configs/nanogpt.toml", *given, "--seed", seed)
            seconds = batch_size * 256 / ours.summary["chars_per_second"]
            line = f"seed {seed}, {dtype}: Quill {seconds:.3f} s"
            line += f", loss {ours.summary['best_val_loss']:.4f}"
            if args.nanogpt:
                flags |= {"lr_decay_iters": steps, "warmup_iters": min(100, steps // 10)}
                flags |= {"eval_iters": 20, "log_interval": 1, "compile": args.device != "cpu"}
                given = [f"--{name}={value}" for name, value in flags.items()]
                text = tiny_shakespeare()
                theirs = nanogpt(args.nanogpt, text, *given, edits=NANOGPT_EDITS)
                step_times = map(float, re.findall(r"time ([\d.]+)ms", theirs.output))
                their_seconds, loss = median(step_times) / 1000, theirs.curve[-1][1]
                line += f" | nanoGPT {their_seconds:.3f} s, loss {loss:.4f}"
                line += f": {their_seconds / seconds:.2f} times as fast"
            print(line, flush=True)


if __name__ == "__main__":
    main()
