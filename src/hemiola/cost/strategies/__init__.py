"""How ranks keep their parameters equal: DDP, FSDP2, a parameter server, by a plan, or not at all. Values, one file each."""

from hemiola.cost.strategies.ddp import DDP, PLAIN_DDP, assign_buckets
from hemiola.cost.strategies.fsdp import FSDP
from hemiola.cost.strategies.none import NoExchange
from hemiola.cost.strategies.parameter_server import ParameterServer
from hemiola.cost.strategies.parse import STRATEGIES, parse_strategy
from hemiola.cost.strategies.planned import Planned
from hemiola.cost.strategies.strategy import Parallelism, Transfer

__all__ = [
    "DDP",
    "FSDP",
    "PLAIN_DDP",
    "STRATEGIES",
    "NoExchange",
    "ParameterServer",
    "Planned",
    "Parallelism",
    "Transfer",
    "assign_buckets",
    "parse_strategy",
]
