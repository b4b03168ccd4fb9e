"""Networks and their parts, loss, optimizers, learning-rate schedule, sampling.

To use a trained model:

    from model import load

    model = load("runs/NAME")  # without a name, the newest run
    print(model.write("ROMEO:", 300))
    print(model.loss("The sea is calm"), model.probs("The sea is cal"))
"""


def load(name: str | None = None, which: str = "best", **options):
    """Return the TrainedModel (model/trained.py) of a run directory or a checkpoint."""
    from model.run.checkpoint import resolve  # here, because each part of model/ imports this file
    from model.trained import TrainedModel

    return TrainedModel(resolve(name, which), **options)
