"""Makes a training job faster: its gradients ordered, pre-empted and overlapped with the next forward by a plan."""

from hemiola.train.accelerate.api import accelerate
from hemiola.train.accelerate.model import Accelerated

__all__ = ["Accelerated", "accelerate"]
