"""How ranks keep their parameters equal: DDP, FSDP2, a parameter server, by a plan, or not at all. Values, one file each."""

from hemiola.cost.parallelism.ddp import DDP, PLAIN_DDP, assign_buckets
from hemiola.cost.parallelism.fsdp import FSDP
from hemiola.cost.parallelism.none import NoExchange
from hemiola.cost.parallelism.parameter_server import ParameterServer
from hemiola.cost.parallelism.parse import STRATEGIES, parse_strategy
from hemiola.cost.parallelism.planned import Planned
from hemiola.cost.parallelism.parallelism import Parallelism, Transfer

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
