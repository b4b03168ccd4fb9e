"""Dropout that draws fewer random numbers on a CPU."""

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """nn.Dropout; on a CPU, one random number of 64 bits gives a byte to each of eight elements.

    PyTorch draws one number per element, in a single thread on processors that are not Intel's.
    A compiled step of 4 blocks of 160 channels takes 0.85 of the time in bfloat16, 0.96 in float32
    on AVX2 (docs/experiments.md).
    """

    def forward(self, x: Tensor) -> Tensor:
        """x to out, of any shape. On a CPU, p is rounded to 1/256, 2/256 .. 255/256."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return super().forward(x)
        count = (x.numel() + 7) // 8
        random = torch.randint(-(2**63), 2**63 - 1, (count,))
        random_bytes = random.view(torch.uint8)[: x.numel()].view_as(x)
        threshold = min(max(round(256 * self.p), 1), 255)  # this many values of a byte mean drop
        return x * (random_bytes >= threshold) * (256 / (256 - threshold))
