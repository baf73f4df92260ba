"""DeepProphet: what one training iteration takes, from its graph, the hardware and the network."""

from hemiola._moved import renamed
from hemiola.cost.prediction.predict import predict
from hemiola.cost.prediction.setting import USUAL, PredictionOptions
from hemiola.cost.prediction.value import Breakdown, LinkUse, PathStep, Prediction, ScheduleUse, TransferUse

__all__ = [
    "USUAL",
    "Breakdown",
    "LinkUse",
    "PathStep",
    "Prediction",
    "PredictionOptions",
    "ScheduleUse",
    "TransferUse",
    "predict",
]

__getattr__ = renamed(__name__)
