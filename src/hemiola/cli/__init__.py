"""The command line: a few verbs, each a thin call into the package, one file per family of verbs.

Nothing heavy is imported before the verb that needs it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from cyclopts import App

from hemiola import __version__
from hemiola.cli import lab, lab_slurm
from hemiola.cli.calibrate import calibrate
from hemiola.cli.capture import capture
from hemiola.cli.collective import collective, probe
from hemiola.cli.inspect import inspect
from hemiola.cli.live import doctor, jobs, nodes
from hemiola.cli.on_hosts import counters, hold
from hemiola.cli.output import fail
from hemiola.cli.plan import plan, planners
from hemiola.cli.predict import predict
from hemiola.cli.renamed import renamed
from hemiola.cli.run import run, separated
from hemiola.cli.serve import lend, ranks, release, serve
from hemiola.cli.simulate import explain, policies, simulate
from hemiola.cli.top import top
from hemiola.cli.trace import trace

__all__ = ["VERBS", "app", "main"]

VERBS: dict[str, Callable[..., None]] = {
    "simulate": simulate,
    "policies": policies,
    "explain": explain,
    "capture": capture,
    "trace": trace,
    "inspect": inspect,
    "calibrate": calibrate,
    "predict": predict,
    "probe": probe,
    "collective": collective,
    "plan": plan,
    "planners": planners,
    "run": run,
    "serve": serve,
    "release": release,
    "lend": lend,
    "ranks": ranks,
    "hold": hold,
    "counters": counters,
    "jobs": jobs,
    "nodes": nodes,
    "top": top,
    "doctor": doctor,
    "lab up": lab.up,
    "lab run": lab.run,
    "lab status": lab.status,
    "lab down": lab.down,
    "lab slurm up": lab_slurm.up,
    "lab slurm status": lab_slurm.status,
    "lab slurm env": lab_slurm.env,
    "lab slurm down": lab_slurm.down,
}
"""The functions behind the verbs, by what is typed; "lab up" is the verb up of the family lab."""


class _App(App):
    """Takes verbs and options by the names they had, too."""

    def __call__(self, tokens: Iterable[str] | str | None = None, **options: Any) -> Any:
        """Run a command line: the process's own unless one is given."""
        words = tokens if tokens is None or isinstance(tokens, str) else renamed(list(tokens))
        return super().__call__(words, **options)


app = _App(
    name="hemiola",
    help="Schedules distributed machine learning on every clock.",
    version=__version__,
    version_flags=["--version"],
)

FAMILIES = {
    "lab": "Several hosts on this machine, joined by links of the rates you choose (needs root).",
    "lab slurm": "A whole Slurm on this machine, with nodes, GPUs and racks.",
}
"""What a family of verbs is about, by the words before them; a family within one comes after it."""


def _register() -> None:
    families: dict[str, App] = {"": app}
    for words, about in FAMILIES.items():
        above, _, name = words.rpartition(" ")
        families[words] = App(name=name, help=about)
        families[above].command(families[words])
    for words, function in VERBS.items():
        family, _, name = words.rpartition(" ")
        families[family].command(function, name=name)


_register()


def main() -> None:
    """Run the command line; errors on purpose become one message and exit status 2."""
    from hemiola.core.errors import HemiolaError, InternalError

    sys.path.append(
        ""
    )  # so that --policy my_module:MyPolicy (or --planner) finds a file in the present folder, hiding none
    sys.argv[1:] = separated(renamed(sys.argv[1:]))
    try:
        app()
    except HemiolaError as error:
        status = fail(error.what, error.remedy)
        sys.exit(1 if isinstance(error, InternalError) else status)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except KeyboardInterrupt:
        sys.exit(130)
