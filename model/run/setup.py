"""Prepares the training loop: the command line, the run directory, the text, the settings."""

import os
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from configs.errors import UserError
from configs.flags import ConfigParser, make_config
from configs.recipe import Budget, block_parameters, recipe, step_flops
from configs.settings import INHERITED, RESUMABLE, TrainConfig, marked
from data.corpus import Corpus, open_corpus
from model.loss import cross_entropy
from model.networks import count_heads, make_network
from model.optim import make_optimizers
from model.run.checkpoint import Checkpoint, load, resolve
from model.system.device import Machine
from model.system.files import lock_run_dir, new_run_dir
from model.system.processes import Processes

Values = dict[str, Any]  # the values of settings, by name
BY_RECIPE = recipe(Budget()).keys()  # the names of the settings that the recipe chooses
USAGE = """\
python train.py [PRESET.toml] [--key value ...]
       python train.py --resume RUN_DIR [--key value ...]"""
DESCRIPTION = """\
Train a character-level GPT on a text. The recipe (configs/recipe.py) chooses settings, a preset (a
TOML file) replaces some of these, and a flag replaces both."""


def parse_train_command(argv: list[str]) -> Values:
    """Return the values of the flags and the preset by name, "preset" and "resume" included."""
    parser = ConfigParser(TrainConfig, USAGE, DESCRIPTION, by_recipe=BY_RECIPE)
    parser.add_argument("preset", nargs="?", metavar="PRESET.toml", help="a TOML file of settings")
    resumable = marked(TrainConfig, RESUMABLE)
    resume_help = f"continue a run; only these settings may change: {', '.join(resumable)}"
    parser.add_argument("--resume", metavar="RUN_DIR", type=os.path.expanduser, help=resume_help)
    given = parser.parse(argv)
    if "resume" in given:
        for name in sorted(given.keys() - {"resume", *resumable}):
            raise UserError(f"{name} cannot be changed in a resumed run.")
    if "preset" in given:
        given = parser.parse_preset(given["preset"]) | given
    paths = given.get("data", ())
    if len(paths) > 1 and paths[-1].endswith(".toml"):
        raise UserError(f"data includes {paths[-1]}. Put a preset before the flags.")
    return given


def open_run_dir(given: Values, processes: Processes) -> AbstractContextManager[Path | None]:
    """Open the directory of --resume, or a new one, for `with`. Only the main process locks it."""
    if "resume" in given:
        run_dir = Path(given["resume"].removesuffix("/last.pt"))
        return lock_run_dir(run_dir) if processes.is_main else nullcontext(run_dir)
    return new_run_dir(given.get("out_dir")) if processes.is_main else nullcontext()


def load_start(given: Values, run_dir: Path) -> tuple[Checkpoint, Values]:
    """Return the checkpoint to start from, and its settings, replaced by the `given` settings.

    --resume takes everything from a checkpoint, --init_from only what belongs to the weights.
    Without these flags, the checkpoint is empty.
    """
    if "resume" in given:
        saved = load(run_dir / "last.pt")
        theirs = vars(TrainConfig(**saved.config))
        path = run_dir / "best.pt"  # newer if the run was killed between the two saves
        if path.exists():
            best = load(path)
            saved.best_val_loss, saved.best_step = best.best_val_loss, best.best_step
        # --max_iters replaces the time limit of the saved run.
        limit = {"minutes": 0.0} if "max_iters" in given else {}
        return saved, theirs | limit | given
    if "init_from" not in given:
        return Checkpoint(), given
    saved = load(resolve(given["init_from"], "best"))
    theirs = vars(make_config(TrainConfig, saved.config))
    kept = marked(TrainConfig, INHERITED)
    for name in kept:
        if given.get(name, theirs[name]) != theirs[name]:
            raise UserError(f"{name} must be {theirs[name]}, as in {given['init_from']}.")
    inherited = {name: theirs[name] for name in (*kept, "block_size")}  # a flag may set block_size
    saved = Checkpoint(config=saved.config, vocab=saved.vocab, model=saved.model)
    return saved, inherited | given


def open_text(config: TrainConfig, saved: Checkpoint, processes: Processes) -> Corpus:
    """Return the text. Raises UserError if a run is resumed with another text.

    The main process reads it and hands it on, because standard input can be read only once.
    """
    corpus = open_corpus(config, saved.vocab) if processes.is_main else None
    corpus = processes.from_main(corpus)
    if saved.data_sha256 not in ("", corpus.sha256):
        raise UserError(
            f"{corpus.name} is not the text of this run. Start a new run, with --init_from for "
            "another text, without --init_from for a new version of the same text."
        )
    return corpus


def full_config(
    draft: TrainConfig, known: Values, saved: Checkpoint, corpus: Corpus, machine: Machine
) -> TrainConfig:
    """Return all settings of a run: the recipe's choice, replaced by the `known` settings.

    `draft` has the known settings only. The recipe reads the length of the text, the device, the
    time limit and the weights in `saved`. Raises UserError if the text is too short.
    """
    config, processes = draft, machine.processes
    if BY_RECIPE - known.keys():  # else there is nothing to choose
        blocks = [x.numel() for name, x in saved.model.items() if name.startswith("blocks.")]
        budget = Budget(
            train_chars=max(1, int(len(corpus.ids_N) * (1 - draft.val_fraction))),  # for any split
            minutes=draft.minutes,
            device=machine.device.type,
            parameters=sum(blocks),
            block_size=saved.config.get("block_size", 0),
        )
        if draft.minutes:
            speed = measure_speed(machine, len(corpus.tokenizer.vocab))
            seconds = max(60 * draft.minutes - processes.seconds(), 1e-9)
            budget = replace(budget, flops=speed * seconds)
        config = make_config(TrainConfig, recipe(processes.from_main(budget)) | known)
    corpus.require_length(config.block_size)
    facts = {"n_head": count_heads(config), "dtype": machine.dtype_name}
    return replace(config, **facts, out_dir=None)  # the directory may be moved


def measure_speed(machine: Machine, vocab_size: int) -> float:
    """Train the default network for a second. Return floating-point operations per second."""
    config = make_config(TrainConfig, recipe(Budget(device=machine.device.type)))
    model = make_network(config, vocab_size).to(machine.device)
    x_BT = torch.randint(vocab_size, (config.batch_size, config.block_size), device=machine.device)
    optimizers = make_optimizers(model, config, machine.dtype, machine.uses_cuda_graph(config))
    forward = machine.prepare(config, model)
    seconds: list[float] = []
    while len(seconds) < 2 or sum(seconds) < 1:
        step_start = time.perf_counter()
        cross_entropy(forward(x_BT), x_BT).backward()
        for optimizer in optimizers:
            optimizer.step()
        machine.synchronize()
        seconds.append(time.perf_counter() - step_start)
    flops = step_flops(block_parameters(config.n_layer, config.n_embd), x_BT.numel())
    return machine.processes.world_size * flops / statistics.median(seconds)


def validation_batches(config: TrainConfig, corpus: Corpus, machine: Machine) -> list[list[Tensor]]:
    """Return the batches of validation text that this process evaluates, on its device."""
    processes, chars = machine.processes, machine.eval_batch_chars(len(corpus.tokenizer.vocab))
    batches = corpus.eval_batches(config.block_size, chars, processes.rank, processes.world_size)
    return [machine.to_device(*batch) for batch in batches]
