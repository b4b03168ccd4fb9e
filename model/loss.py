"""The loss of training and of evaluation, in nats per character.

The loss of a character is -ln p nats, if the network gave it the probability p.

Shapes: B batch, T time (characters), V vocabulary.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.system.device import Machine


def training_loss(
    logits_BTV: Tensor, y_BT: Tensor, temperature: float, average_BTV: Tensor | None = None
) -> Tensor:
    """Return the mean loss in nats per character.

    A temperature below 1 sharpens the predictions in training only. Therefore the predictions in
    evaluation and sampling are less confident, as they should be after many epochs. (Guo et al.
    2017, "On calibration", fit a temperature after training.) `average_BTV` holds the logits of a
    running average of the network. With it, half of the loss measures the distance to the
    predictions of the average (Tarvainen and Valpola 2017, "Mean teachers are better role models").
    """
    logits_BTV = logits_BTV / temperature
    loss = cross_entropy(logits_BTV, y_BT)
    if average_BTV is None:
        return loss
    probs_BTV = (average_BTV.detach().float() / temperature).softmax(dim=-1)
    return (loss + cross_entropy(logits_BTV, probs_BTV)) / 2


def cross_entropy(logits_BTV: Tensor, target: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of characters y_BT, or of probabilities probs_BTV."""
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), target.flatten(0, 1))


@torch.no_grad()  # with inference_mode, a network could not use its tensors in training later
def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], machine: Machine) -> float:
    """Return the mean loss over the characters of all batches (x_BT, y_BT) of all processes.

    `model` must be in eval mode.
    """
    nats, chars = [], 0
    with machine.autocast():
        for batch in batches:
            x_BT, y_BT = machine.to_device(*batch)
            nats.append(cross_entropy(model(x_BT), y_BT) * y_BT.numel())
            chars += y_BT.numel()
    # Convert the losses to numbers only here, because each conversion waits for the device.
    return machine.processes.sum(sum(map(float, nats))) / machine.processes.sum(chars)
