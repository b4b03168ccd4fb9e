"""Is our network gpt that of nanoGPT? Logits and gradients of both, with the same weights.

python -m tests.benchmarks.equal --nanogpt DIR, where DIR is a clone of karpathy/nanoGPT.
"""

import importlib.util
import sys

import torch
import torch.nn.functional as F

from configs.settings import GPTConfig
from model.network import make_network
from tests.benchmarks.convert import convert
from tests.benchmarks.peer import arguments

VOCAB_SIZE = 65


def main() -> None:
    args = arguments()
    spec = importlib.util.spec_from_file_location("nanogpt_model", args.nanogpt / "model.py")
    theirs = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = theirs  # its dataclass looks itself up
    spec.loader.exec_module(theirs)

    print("network, bias     largest difference of logits, of gradients")
    for n_layer, n_head, n_embd, block_size in ((4, 4, 128, 64), (6, 6, 384, 256)):
        for bias in (False, True):
            sizes = {"n_layer": n_layer, "n_head": n_head, "n_embd": n_embd}
            sizes |= {"block_size": block_size, "bias": bias, "dropout": 0.0}
            torch.manual_seed(0)
            their_model = theirs.GPT(theirs.GPTConfig(**sizes, vocab_size=VOCAB_SIZE))
            for parameter in their_model.parameters():  # gains of 1 and biases of 0 hide errors
                torch.nn.init.normal_(parameter, parameter.mean().item(), std=0.05)
            our_model = make_network(GPTConfig("gpt", **sizes), VOCAB_SIZE)
            our_model.load_state_dict(convert(their_model.state_dict()))
            ids_BT = torch.randint(VOCAB_SIZE, (4, block_size + 1))
            x_BT, y_BT = ids_BT[:, :-1], ids_BT[:, 1:].contiguous()

            their_logits_BTV, their_loss = their_model(x_BT, y_BT)
            their_loss.backward()
            our_logits_BTV = our_model(x_BT)
            F.cross_entropy(our_logits_BTV.flatten(0, 1), y_BT.flatten()).backward()
            ours = dict(our_model.named_parameters())
            gradients = convert({name: p.grad for name, p in their_model.named_parameters()})
            differences = [ours[name].grad - gradient for name, gradient in gradients.items()]
            of_logits = (our_logits_BTV - their_logits_BTV).abs().max().item()
            of_gradients = max(difference.abs().max().item() for difference in differences)
            print(f"{n_layer} x {n_embd}, {bias!s:5}    {of_logits:.1e}  {of_gradients:.1e}")
            assert max(of_logits, of_gradients) < 1e-5


if __name__ == "__main__":
    main()
