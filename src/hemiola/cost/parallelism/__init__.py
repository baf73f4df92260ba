"""How ranks keep their parameters equal: DDP, FSDP2, a parameter server, by a plan, or not at all. Values, one file each."""

from hemiola.cost.parallelism.ddp import DDP, PLAIN_DDP, NoExchange, Planned, assign_buckets
from hemiola.cost.parallelism.fsdp import FSDP
from hemiola.cost.parallelism.parallelism import Parallelism, Transfer
from hemiola.cost.parallelism.parameter_server import ParameterServer
from hemiola.cost.parallelism.parse import PARALLELISMS, parse_parallelism

__all__ = [
    "DDP",
    "FSDP",
    "PARALLELISMS",
    "PLAIN_DDP",
    "NoExchange",
    "Parallelism",
    "ParameterServer",
    "Planned",
    "Transfer",
    "assign_buckets",
    "parse_parallelism",
]
