"""DeepProphet: what one training iteration takes, from its graph, the hardware and the network."""

from hemiola.cost.prediction.predict import predict
from hemiola.cost.prediction.setting import USUAL, Options
from hemiola.cost.prediction.value import Breakdown, LinkUse, PathStep, Prediction, StrategyUse, TransferUse

__all__ = [
    "USUAL",
    "Breakdown",
    "LinkUse",
    "Options",
    "PathStep",
    "Prediction",
    "StrategyUse",
    "TransferUse",
    "predict",
]
