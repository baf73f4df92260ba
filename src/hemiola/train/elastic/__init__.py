"""Training that goes on when ranks are lost or join: every entry of the data once, whoever is there to train on it."""

from hemiola.train.elastic.cursor import Agreement, Cursor, Deck, agreed
from hemiola.train.elastic.membership import Membership
from hemiola.train.elastic.sampler import ElasticSampler, EmptyAsNone
from hemiola.train.elastic.state import TrainingState

__all__ = [
    "Agreement",
    "Cursor",
    "Deck",
    "ElasticSampler",
    "EmptyAsNone",
    "Membership",
    "TrainingState",
    "agreed",
]
