"""From the command line of train.py to the run directory, the settings, the text, the machine.

The recipe (configs/recipe.py) chooses the settings that no flag gives.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from configs.flags import ConfigParser, make_config
from configs.recipe import DEFAULT_FLOPS, Budget, block_parameters, recipe, step_flops
from configs.settings import GPTConfig, TrainConfig
from data.corpus import Corpus, open_corpus
from data.reader import is_pipe
from model.loss import cross_entropy
from model.networks import count_heads, make_network, network_class, require_consistent
from model.optim import make_optimizers
from model.run import checkpoint
from model.run.checkpoint import Checkpoint
from model.system.device import Machine, device_kind, training_machine
from model.system.errors import UserError
from model.system.files import lock_run_dir, new_run_dir
from model.system.processes import Processes
from model.system.terminal import quote

USAGE = """\
python train.py [PRESET.toml] [--key value ...]
       python train.py --resume RUN_DIR [--key value ...]"""
DESCRIPTION = """\
Train a character-level GPT. Without a preset, the recipe (configs/recipe.py) chooses settings from
the length of the text, the kind of device, --minutes, and whether there is an --init_from. Every
other flag changes one setting and no other. A preset states what differs from the defaults."""
RESUMABLE = ("data", "max_iters", "minutes", "eval_interval", "log_interval")
RESUMABLE += ("device", "dtype", "compile", "gradient_accumulation_steps")
# --init_from cannot change these: the weights would not fit, or would mean something else.
FIXED = ("network", "n_layer", "n_head", "n_embd", "bias")


class Command(NamedTuple):
    """The command line of train.py."""

    resume: Path | None  # the directory of the run that goes on
    uses_recipe: bool  # a new run without a preset: the recipe chooses what is not given
    given: dict[str, Any]  # the keys of the preset, and the flags


def parse_train_command(argv: list[str]) -> Command:
    """The command line of train.py. What is wrong in it ends the program."""
    parser = ConfigParser(TrainConfig, USAGE, DESCRIPTION, by_recipe=recipe(Budget()))
    parser.add_argument("preset", nargs="?", metavar="PRESET.toml", help="a file of keys")
    resume_help = f"continue a run; may change {', '.join(RESUMABLE)}"
    parser.add_argument("--resume", metavar="RUN_DIR", help=resume_help)
    flags = parser.parse(argv)
    preset, resume = flags.pop("preset", None), flags.pop("resume", None)
    if preset in ("True", "False"):  # as in --bias True
        parser.refuse(f"unexpected argument {preset!r}. A switch takes no value: --bias, --no-bias")
    if resume is not None:
        resume = Path(os.path.expanduser(resume))
        if resume.name == "last.pt":
            resume = resume.parent
        elif resume.suffix == ".pt":
            parser.refuse(f"--resume takes a run directory, or its last.pt. {go_on_from(resume)}")
        if preset is not None:
            parser.refuse(f"--resume takes all keys from the checkpoint. Leave out {preset!r}.")
        if fixed := sorted(flags.keys() - set(RESUMABLE)):
            parser.refuse(
                f"{fixed[0]} cannot be changed in a resumed run. Only {', '.join(RESUMABLE)} can."
            )
    elif preset is not None:
        flags = parser.parse_preset(preset) | flags
    paths = flags.get("data", ())
    if "" in paths:
        parser.refuse("data is ''. Name a file or folder.")
    if len(paths) > 1 and paths[-1].endswith(".toml"):
        parser.refuse(
            f"--data takes every path that follows, including {paths[-1]}. Put a preset before the "
            "flags."
        )
    if paths:
        flags["data"] = tuple(path if path == "-" else absolute_path(path) for path in paths)
    if "init_from" in flags:
        flags["init_from"] = absolute_path(flags["init_from"])
    return Command(resume, resume is None and preset is None, flags)


def absolute_path(path: str) -> str:
    """So that a run can be resumed from another folder. A shell leaves the ~ in --data=~/a.txt."""
    return os.path.abspath(os.path.expanduser(path))


@contextlib.contextmanager
def open_run_dir(command: Command, processes: Processes) -> Iterator[Path]:
    """The run directory, that of --resume or a new one. The main process locks it."""
    opened = contextlib.nullcontext(command.resume)
    if processes.is_main and command.resume is None:
        opened = new_run_dir(command.given.get("out_dir"))
    elif processes.is_main:
        opened = lock_run_dir(command.resume)
    with opened as run_dir:
        yield processes.broadcast(run_dir)


def load_saved(command: Command) -> Checkpoint:
    """The checkpoint of --resume or --init_from, or an empty one."""
    if command.resume is not None:
        saved = load_run(command.resume)
        max_iters = command.given.get("max_iters", saved.config["max_iters"])
        if max_iters < saved.step:
            raise UserError(f"max_iters is {max_iters}, but the run has made {saved.step} steps.")
        return saved
    if "init_from" in command.given:
        return checkpoint.load(checkpoint.resolve(command.given["init_from"], "best"))
    return Checkpoint()


def load_run(run_dir: Path) -> Checkpoint:
    """The last.pt of a run, with the best loss of its best.pt: a kill may come between the two.

    Without best.pt, the run counts as not evaluated: its next evaluation writes it.
    """
    last, best = run_dir / "last.pt", run_dir / "best.pt"
    has_best = os.path.exists(best)
    try:
        saved = checkpoint.load(last)
    except UserError as error:
        raise UserError(f"{error} {go_on_from(best) if has_best else ''}") from None
    if unknown := sorted(saved.config.keys() - {f.name for f in fields(TrainConfig)}):
        raise UserError(
            f"{last} has the setting {unknown[0]}, which this version of Quill lacks. Start a new "
            f"run from its weights: --init_from {quote(run_dir)}"
        )
    kept = checkpoint.load(best) if has_best else Checkpoint()
    saved.best_val_loss, saved.best_step = kept.best_val_loss, kept.best_step
    if not has_best:
        saved.val_loss = saved.val_step = None
    return saved


def go_on_from(path: Path) -> str:
    """What to type: --resume takes no such file, since it could overwrite what lies beside it."""
    file = quote(path)
    return (
        f"To go on from {file}: mkdir NEW && cp {file} NEW/last.pt, then --resume NEW. To train "
        f"its weights on another text: --init_from {file}"
    )


def set_up(
    command: Command, saved: Checkpoint, processes: Processes
) -> tuple[TrainConfig, Corpus, Machine]:
    """The settings, the text, the machine. Raises UserError if they do not fit together.

    `saved` is the checkpoint of --resume or --init_from, or empty.
    """
    config = merge_settings(command, saved.config)
    network_class(config.network)  # an unknown name is refused before the text is read
    machine = training_machine(config, processes)
    if processes.world_size > 1 and any(map(is_pipe, config.data or ())):
        raise UserError("several processes cannot read the same stream. Name files with --data.")
    corpus = open_corpus(config, saved.vocab)
    require_same_text(command, saved, corpus)
    corpus.require_length(config.block_size)
    if command.uses_recipe:
        chosen = choose_settings(config, saved, corpus, machine)
        config = merge_settings(command, saved.config, chosen)
    require_consistent(config)
    config = replace(config, n_head=count_heads(config), dtype=machine.dtype_name)
    if config.min_lr > config.learning_rate:
        raise UserError(
            f"min_lr is {config.min_lr:g}, above learning_rate, which is {config.learning_rate:g}."
        )
    return config, corpus, machine


def merge_settings(
    command: Command, saved_config: dict[str, Any], chosen: dict[str, Any] | None = None
) -> TrainConfig:
    """The settings: what is given, over those of a checkpoint, over what the recipe has chosen.

    For --resume all keys of the checkpoint count, for --init_from those of the network, except
    dropout. out_dir is left out: a run may be moved. Raises UserError if a key in FIXED is given
    differently.
    """
    given, inherited = dict(command.given), saved_config
    given.pop("out_dir", None)
    if command.resume is not None:
        if "-" in saved_config.get("data", ()) and "data" not in given:
            raise UserError(
                "the text of this run came from standard input. Name a file with the same text: "
                "--data FILE."
            )
    elif saved_config:
        base = make_config(TrainConfig, saved_config)
        for name in FIXED:
            if given.get(name, getattr(base, name)) != getattr(base, name):
                raise UserError(
                    f"{name} is {given[name]}, but {given['init_from']} has {getattr(base, name)}, "
                    f"which cannot be changed. Leave {name} out of the flags and the preset."
                )
        names = [f.name for f in fields(GPTConfig) if f.name != "dropout"]
        inherited = {name: getattr(base, name) for name in names}
    return make_config(TrainConfig, (chosen or {}) | inherited | given)


def require_same_text(command: Command, saved: Checkpoint, corpus: Corpus) -> None:
    """Raise UserError if a resumed run has another text, or a new one validates on what it knows.

    `saved` is the checkpoint that it begins with.
    """
    is_same = saved.data_sha256 == corpus.sha256
    if command.resume is not None and not is_same:
        raise UserError(
            f"{corpus.name} is not the text of this run. For another text, start a new run with "
            f"--init_from {quote(command.resume)}; for a changed version of the same text, "
            "start one without: these weights may know its validation text."
        )
    theirs = make_config(TrainConfig, saved.config)
    split = (theirs.val_fraction, theirs.val_split)
    if command.resume is None and is_same and split != (corpus.val_fraction, corpus.val_split):
        raise UserError(
            f"{command.given['init_from']} was trained on this text, but with other validation "
            f"text. Use the same: --val_fraction {split[0]} --val_split {split[1]}."
        )


def choose_settings(
    config: TrainConfig, saved: Checkpoint, corpus: Corpus, machine: Machine
) -> dict[str, Any]:
    """What the recipe says for this text, machine and time, and for the weights to start with."""
    kind = device_kind(machine.device)
    budget = Budget(
        train_chars=int(len(corpus.ids_N) * (1 - config.val_fraction)),  # for every val_split
        flops=DEFAULT_FLOPS[kind],
        minutes=config.minutes,
        device=kind,
    )
    if saved.model:
        weights = (x for name, x in saved.model.items() if name.startswith("blocks."))
        parameters = max(1, sum(x.numel() for x in weights))
        block_size = saved.config["block_size"]
        budget = replace(budget, parameters=parameters, block_size=block_size)
    if config.minutes:
        speed = measure_speed(machine, len(corpus.tokenizer.vocab))
        [seconds] = machine.processes.max(machine.processes.seconds())
        budget = replace(budget, flops=speed * max(60 * config.minutes - seconds, 0.0))
    return recipe(budget)


def measure_speed(machine: Machine, vocab_size: int) -> float:
    """Roughly, the floating-point operations per second of the default network.

    It takes two to ten training steps, and about a second.
    """
    kind, processes = device_kind(machine.device), machine.processes
    config = make_config(TrainConfig, recipe(Budget(flops=DEFAULT_FLOPS[kind], device=kind)))
    model = make_network(config, vocab_size).to(machine.device)
    optimizers = make_optimizers(model, config, muon_dtype=machine.dtype)
    x_BT = torch.randint(vocab_size, (config.batch_size, config.block_size), device=machine.device)
    machine = replace(machine, fast={})
    machine.prepare(config, model)
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) < 10 and sum(seconds) < 1):
        step_start = time.perf_counter()
        loss = cross_entropy(machine.forward(model, x_BT), x_BT)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        machine.synchronize()
        seconds.append(time.perf_counter() - step_start)
    parameters = block_parameters(config.n_layer, config.n_embd)
    flops = step_flops(parameters, config.batch_size * config.block_size)
    [step_seconds] = processes.max(float(np.median(seconds)))
    return processes.world_size * flops / step_seconds
