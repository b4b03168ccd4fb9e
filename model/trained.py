"""A trained model that writes text, measures a loss and predicts, for Python and for sample.py.

Shapes: N characters of a text, B windows of a text, T time, V vocabulary.
"""

from collections.abc import Iterator
from itertools import starmap
from pathlib import Path

import numpy as np
import torch

from configs.errors import UserError
from configs.flags import make_config
from configs.settings import DeviceConfig, TrainConfig
from data.corpus import cut_windows, gather_examples
from data.tokenizer import CharTokenizer
from model.generate import GenerationConfig, first_character, generate
from model.inspect.page import attention_page
from model.loss import evaluate
from model.networks import count_parameters, make_network
from model.run import checkpoint
from model.system.device import sampling_machine


class TrainedModel:
    """A network in eval mode, with its vocabulary and the machine that computes it.

    A text may have only characters of the vocabulary. A UserError names all other characters.
    """

    def __init__(self, path: Path, device: str = "auto", dtype: str = "auto") -> None:
        """Load the network of a checkpoint."""
        saved = checkpoint.load(path)
        config, self.vocab = make_config(TrainConfig, saved.config), saved.vocab
        self.network = make_network(config, len(saved.vocab)).eval()
        checkpoint.load_weights(self.network, saved.model, len(saved.vocab))
        self.tokenizer = CharTokenizer(saved.vocab)
        self.machine = sampling_machine(DeviceConfig(device, dtype), count_parameters(self.network))
        self.network.to(self.machine.device)
        self.about = f"{path}, step {saved.step}, on {self.machine.device}"
        self.title = f"{path.absolute().parent.name}/{path.name}, step {saved.step}"  # of the page

    def write(self, prompt: str = "", length: int = 500, stop: str = "", **settings) -> str:
        """Return the prompt and `length` more characters, or fewer if the text reaches `stop`.

        `settings` are fields of GenerationConfig: temperature, top_k, top_p, seed.
        """
        config = GenerationConfig(max_new_tokens=length, **settings)
        return prompt + "".join(piece for i, piece in self.generate(prompt, config, stop) if i == 0)

    def generate(
        self, prompt: str, config: GenerationConfig, stop: str = ""
    ) -> Iterator[tuple[int, str]]:
        """Yield (0, character) while the first text is written, then (i, text) for the others."""
        ids = self.tokenizer.encode(prompt or first_character(self.vocab), "the prompt").tolist()
        stop = self.tokenizer.decode(self.tokenizer.encode(stop))  # in the form of the vocabulary
        pieces = generate(self.network, self.vocab, ids, config, stop)
        while True:
            with torch.inference_mode(), self.machine.autocast():  # not in the caller's code
                piece = next(pieces, None)
            if piece is None:
                return
            yield piece

    def loss(self, text: str) -> float:
        """Return the mean loss in nats, in windows of block_size. The first character has none."""
        ids_N = self.tokenizer.encode(text)
        if len(ids_N) < 2:
            raise UserError(f"the text is {text!r}. A loss needs two characters or more.")
        chars = self.machine.eval_batch_chars(len(self.vocab))
        windows = cut_windows(len(ids_N), self.network.config.block_size, chars)
        batches = (gather_examples(ids_N, starts_B, T) for starts_B, T in windows)
        with torch.inference_mode(), self.machine.autocast():
            nats, chars = evaluate(self.network, starmap(self.machine.to_device, batches))
        return nats / chars

    def probs(self, text: str = "") -> dict[str, float]:
        """Return how probable each character is after the last block_size ones, sorted."""
        ids_T = self.tokenizer.encode(text or first_character(self.vocab)).astype(np.int64)
        ids_T = torch.from_numpy(ids_T[-self.network.config.block_size :]).to(self.machine.device)
        with torch.inference_mode(), self.machine.autocast():
            probs_V = self.network(ids_T[None])[0, -1].float().softmax(dim=-1)
        order_V = probs_V.argsort(descending=True).tolist()
        return {self.vocab[i]: probs_V[i].item() for i in order_V}

    def attention_page(self, text: str, n_typed: int | None = None) -> str:
        """Return an HTML page that holds the network, and shows what it does with the text.

        The model wrote the text, except the first `n_typed` characters. By default, it wrote none.
        """
        ids = self.tokenizer.encode(text).tolist()
        return attention_page(self.network, self.vocab, ids, self.title, n_typed)
