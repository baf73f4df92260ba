"""`hemiola hold`: a Ray job waits for the place that Hemiola gives it."""

from __future__ import annotations

__all__ = ["hold"]


def hold(*command: str, grace: str = "30s", when_silent: str = "") -> None:
    """Within a Ray job: wait until Hemiola has placed it, then run a command there.

    ray job submit --metadata-json '{"hemiola": "gpus=16 hosts=2"}' -- hemiola hold -- python train.py

    Parameters
    ----------
    command
        What to run. It finds its placement group's name in HEMIOLA_PLACEMENT_GROUP.
    grace
        When its place is taken away, the command gets SIGTERM, and SIGKILL so much later.
    when_silent
        Let Ray place the job if Hemiola has said nothing for so long: 60s, 5min. Never unless given.
    """
    import os

    from hemiola.live.engines.ray.hold import Hold, job_around, main_exit
    from hemiola.core.errors import InputError
    from hemiola.core.units import parse_duration

    if not command:
        raise InputError("there is no command to run", "write it at the end: hemiola hold -- python train.py")
    address, job, wish = job_around(os.environ)
    silent_s = parse_duration(when_silent) if when_silent else None
    held = Hold(address, job, wish, command, grace_s=parse_duration(grace), silent_s=silent_s)
    main_exit(held.run())
