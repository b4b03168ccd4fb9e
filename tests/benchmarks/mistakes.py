"""Does the loss of an edited network mean anything?

Shapes: B batch, T time.
"""

import torch

from configs.settings import GPTConfig
from model.networks import make_network


@torch.no_grad()
def find_mistake(config: GPTConfig, vocab_size: int) -> str:
    """Why the loss of a network means nothing, or "".

    Equal calls may differ, as with a counter; or logits depend on later characters, as they do if
    attention has no mask: then it reads the characters that it should predict.
    """
    model = make_network(config, vocab_size).eval()
    for parameter in model.parameters():  # so that none is zero, as some are at the start
        parameter.add_(0.1 * torch.randn_like(parameter))
    length = min(model.config.block_size, 256)
    start = length // 2 | 1  # odd: no edge of the windows that a network may have
    ids_BT = torch.arange(length)[None] % vocab_size
    other_BT = ids_BT.clone()
    other_BT[:, start:] = (ids_BT[:, start:] + 1) % vocab_size
    logits = []
    for text_BT in (ids_BT, ids_BT, other_BT):
        torch.manual_seed(0)  # for a network that draws random numbers here, too
        logits.append(model(text_BT)[:, :start])
    first, again, other = logits
    if not torch.equal(first, again):
        return "gives different logits in two equal calls, so losses do not compare"
    if (first - other).abs().max() > 1e-5 * first.abs().max():
        return "looks ahead: its logits depend on later characters, so its loss means nothing"
    return ""
