"""Networks and their parts, loss, optimizers, schedule, sampling; run/, inspect/, system/.

from model import load

model = load("runs/NAME")  # without a name, the newest run
print(model.write("ROMEO:", 300))
print(model.loss("The sea is calm"), model.probs("The sea is cal"))
"""


def load(name: str | None = None, which: str = "best", **options):
    """The trained model of a run directory or a checkpoint: a TrainedModel (model/trained.py)."""
    from model.run.checkpoint import resolve  # here, because each part of model/ imports this file
    from model.trained import TrainedModel

    return TrainedModel(resolve(name, which), **options)
