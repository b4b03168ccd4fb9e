"""Prepares the training loop: the command line, the run directory, the text, the settings."""

import os
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from configs.flags import ConfigParser, make_config
from configs.recipe import Budget, block_parameters, recipe, step_flops
from configs.settings import INHERITED, RESUMABLE, TrainConfig, marked
from data.corpus import Corpus, open_corpus
from data.reader import is_pipe
from model.loss import cross_entropy
from model.networks import count_heads, make_network
from model.optim import make_optimizers
from model.run.checkpoint import Checkpoint, load, resolve
from model.system.device import Machine, training_machine
from model.system.errors import UserError, quote
from model.system.files import lock_run_dir, new_run_dir
from model.system.processes import Processes

Values = dict[str, Any]  # the values of settings, by name
USAGE = """\
python train.py [PRESET.toml] [--key value ...]
       python train.py --resume RUN_DIR [--key value ...]"""
DESCRIPTION = """\
Train a character-level GPT on a text. A preset is a TOML file of settings. With a preset, all other
settings have their defaults. Without a preset, the recipe (configs/recipe.py) chooses some of the
settings. Each flag replaces one setting. (With n_head 0, there is a head for every 64 channels.)"""


def parse_train_command(argv: list[str]) -> Values:
    """Return the values of the flags and the preset by name, "preset" and "resume" included."""
    parser = ConfigParser(TrainConfig, USAGE, DESCRIPTION, by_recipe=recipe(Budget()))
    parser.add_argument("preset", nargs="?", metavar="PRESET.toml", help="a TOML file of settings")
    resumable = marked(TrainConfig, RESUMABLE)
    resume_help = f"continue a run; only these settings may change: {', '.join(resumable)}"
    parser.add_argument("--resume", metavar="RUN_DIR", type=os.path.expanduser, help=resume_help)
    given = parser.parse(argv)
    if "resume" in given:
        for name in sorted(given.keys() - {"resume", *resumable}):
            parser.error(f"{name} cannot be changed in a resumed run.")
    if "preset" in given:
        given = parser.parse_preset(given["preset"]) | given
    paths = given.get("data", ())
    if len(paths) > 1 and paths[-1].endswith(".toml"):
        parser.error(f"data includes {paths[-1]}. Put a preset before the flags.")
    return given


def open_run_dir(given: Values, processes: Processes) -> AbstractContextManager[Path | None]:
    """Open the directory of --resume, or a new one, for `with`. Only the main process locks it."""
    if "resume" in given:
        run_dir = Path(given["resume"].removesuffix("/last.pt"))
        return lock_run_dir(run_dir) if processes.is_main else nullcontext(run_dir)
    return new_run_dir(given.get("out_dir")) if processes.is_main else nullcontext()


def set_up(
    given: Values, run_dir: Path, processes: Processes
) -> tuple[TrainConfig, Checkpoint, Corpus, Machine]:
    """Return the settings, the checkpoint to start from, the text and the machine."""
    saved, inherited = load_start(given, run_dir)
    settings = inherited | given
    config = make_config(TrainConfig, settings)  # the recipe may still change it
    machine = training_machine(config, processes)
    if processes.world_size > 1 and any(map(is_pipe, config.data or ())):
        raise UserError("several processes cannot read the same stream. Name files with --data.")
    corpus = open_corpus(config, saved.vocab)
    if "resume" in given and saved.data_sha256 != corpus.sha256:
        raise UserError(
            f"{corpus.name} is not the text of this run. Start a new run, with --init_from for "
            "another text, without --init_from for a new version of the same text."
        )
    corpus.require_length(config.block_size)
    if "preset" not in given and "resume" not in given:
        settings = choose_settings(config, saved, corpus, machine) | settings
    config = make_config(TrainConfig, settings)
    facts = {"n_head": count_heads(config), "dtype": machine.dtype_name}
    facts["out_dir"] = None  # the directory may be moved
    return replace(config, **facts), saved, corpus, machine


def load_start(given: Values, run_dir: Path) -> tuple[Checkpoint, Values]:
    """Return the checkpoint to start from, and the settings that the run inherits from it.

    --resume takes everything from a checkpoint. --init_from takes the weights, the vocabulary and
    the settings that belong to them. Without these flags, the checkpoint is empty.
    """
    if "resume" in given:
        saved = load(run_dir / "last.pt")
        if unknown := saved.config.keys() - vars(TrainConfig()).keys():
            hint = f"Start a new run from its weights: --init_from {quote(run_dir)}"
            raise UserError(f"the run has the setting {min(unknown)}, which is unknown. {hint}")
        path = run_dir / "best.pt"  # newer if the run was killed between the two saves
        best = load(path) if path.exists() else Checkpoint()
        saved.best_val_loss, saved.best_step = best.best_val_loss, best.best_step
        # --max_iters replaces the time limit of the saved run.
        return saved, saved.config | ({"minutes": 0.0} if "max_iters" in given else {})
    if "init_from" not in given:
        return Checkpoint(), {}
    saved = load(resolve(given["init_from"], "best"))
    theirs = vars(make_config(TrainConfig, saved.config))
    kept = marked(TrainConfig, INHERITED)
    for name in kept:
        if given.get(name, theirs[name]) != theirs[name]:
            raise UserError(f"{name} must be {theirs[name]}, as in {given['init_from']}.")
    inherited = {name: theirs[name] for name in (*kept, "block_size")}  # a flag may set block_size
    return Checkpoint(config=saved.config, vocab=saved.vocab, model=saved.model), inherited


def choose_settings(
    config: TrainConfig, saved: Checkpoint, corpus: Corpus, machine: Machine
) -> Values:
    """Return the recipe's settings for the text, the device, the time limit and the weights."""
    budget = Budget(
        train_chars=int(len(corpus.ids_N) * (1 - config.val_fraction)),  # for any val_split
        minutes=config.minutes,
        device=machine.device.type,
        parameters=sum(x.numel() for name, x in saved.model.items() if name.startswith("blocks.")),
        block_size=saved.config.get("block_size", 0),
    )
    if config.minutes:
        speed = measure_speed(machine, len(corpus.tokenizer.vocab))
        [seconds] = machine.processes.max(machine.processes.seconds())
        budget = replace(budget, flops=speed * max(60 * config.minutes - seconds, 1e-9))
    return recipe(budget)


def measure_speed(machine: Machine, vocab_size: int) -> float:
    """Train the default network for a second. Return floating-point operations per second."""
    config = make_config(TrainConfig, recipe(Budget(device=machine.device.type)))
    model = make_network(config, vocab_size).to(machine.device)
    optimizers = make_optimizers(model, config, muon_dtype=machine.dtype)
    x_BT = torch.randint(vocab_size, (config.batch_size, config.block_size), device=machine.device)
    machine = replace(machine, fast={})  # a copy that is dropped together with this network
    machine.prepare(config, model)
    seconds: list[float] = []
    while len(seconds) < 2 or sum(seconds) < 1:
        step_start = time.perf_counter()
        cross_entropy(machine.forward(model, x_BT), x_BT).backward()
        for optimizer in optimizers:
            optimizer.step()
        machine.synchronize()
        seconds.append(time.perf_counter() - step_start)
    [step_seconds] = machine.processes.max(statistics.median(seconds))
    flops = step_flops(block_parameters(config.n_layer, config.n_embd), x_BT.numel())
    return machine.processes.world_size * flops / step_seconds
