"""Records what a distributed training job really did: `record` in a script, `hemiola trace` around one.

How it fits together: `hooks` and `kernels` see what PyTorch does and tell the `recorder` (`collectives` connects transfers with those who wait); finished
iterations go to the `keeper`'s thread, which settles their times (`values`), appends them to the rank's part
(`parts`) and counts them (`server`). `peers` keeps the clocks and the pace of the ranks beside each other,
`demands` and `server` take requests while the job runs, and `merge` makes one `JobTimeline` of all parts.
"""

from hemiola.profiler.trace.api import record
from hemiola.profiler.trace.merge import collect
from hemiola.profiler.trace.recorder import IterationRecorder

__all__ = ["IterationRecorder", "collect", "record"]
