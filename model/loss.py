"""The loss of training and of evaluation, in nats per character.

The loss of a character is -ln p nats, if the network gave it the probability p.

Shapes: B batch, T time (characters), V vocabulary.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def training_loss(
    logits_BTV: Tensor, y_BT: Tensor, temperature: float, teacher_BTV: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the mean loss to minimize, and the mean cross-entropy for the training curve.

    They differ with a temperature or a teacher. A temperature below 1 sharpens the predictions in
    training only. Therefore the predictions in evaluation and sampling are less confident, as they
    should be after many epochs. (Guo et al. 2017, "On calibration", fit a temperature after
    training.) `teacher_BTV` holds the logits of a running average of the network. With it, half of
    the loss measures the distance to the predictions of the average (Tarvainen and Valpola 2017,
    "Mean teachers are better role models").
    """
    if temperature == 1 and teacher_BTV is None:
        loss = cross_entropy(logits_BTV, y_BT)
        return loss, loss.detach()
    nats = cross_entropy(logits_BTV.detach(), y_BT)
    logits_BTV = logits_BTV / temperature
    loss = cross_entropy(logits_BTV, y_BT)
    if teacher_BTV is None:
        return loss, nats
    probs_BTV = (teacher_BTV.detach().float() / temperature).softmax(dim=-1)
    return (loss + cross_entropy(logits_BTV, probs_BTV)) / 2, nats


def cross_entropy(logits_BTV: Tensor, target: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of characters y_BT, or of probabilities probs_BTV."""
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), target.flatten(0, 1))


@torch.no_grad()  # with inference_mode, a network could not use its tensors in training later
def evaluate(model: nn.Module, batches: Iterable[Sequence[Tensor]]) -> tuple[float, int]:
    """Return the sum of the losses over batches of x_BT and y_BT, and the number of losses.

    `model` must be in eval mode, and the batches on its device.
    """
    nats, chars = [], 0
    for x_BT, y_BT in batches:
        nats.append(cross_entropy(model(x_BT), y_BT) * y_BT.numel())
        chars += y_BT.numel()
    # Convert the losses to numbers only here, because each conversion waits for the device.
    return sum(map(float, nats)), chars
