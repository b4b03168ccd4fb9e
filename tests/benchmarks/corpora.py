"""The default run on other texts, in at most the time of nanoGPT's CPU command on each.

--texts FILE ...: the texts. Where Quill takes longer, it runs again with fewer steps.
"""

from pathlib import Path

from tests.benchmarks.peer import CPU_COMMAND, arguments, machine, nanogpt, quill


def main() -> None:
    args = arguments(texts=[])
    print(machine())
    print(
        f"{'text':>20} {'steps':>6} {'wall':>6} {'best':>7} | "
        f"{'nanoGPT wall':>12} {'loss':>7} | lower by"
    )
    for text in map(Path, args.texts):
        max_wall = float("inf")
        if args.nanogpt:
            theirs = nanogpt(args.nanogpt, text, *CPU_COMMAND)
            max_wall = theirs.wall
        ours = quill("--data", text.absolute())
        steps = ours.summary["iters"]
        while ours.wall > max_wall:
            # About 8 seconds are for starting and evaluating.
            steps = int(steps * min(0.97, (max_wall - 8) / (ours.wall - 8)))
            ours = quill("--data", text.absolute(), "--max_iters", steps)
        best = ours.summary["best_val_loss"]
        line = f"{text.name:>20} {steps:>6} {ours.wall:>5.0f}s {best:>7.4f} |"
        if args.nanogpt:
            line += f" {max_wall:>11.0f}s {theirs.best:>7.4f} | {theirs.best - best:.3f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
