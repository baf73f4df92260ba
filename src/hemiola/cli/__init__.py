"""The command line: a few verbs, each a thin call into the package, one file per family of verbs.

Nothing heavy is imported before the verb that needs it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from cyclopts import App

from hemiola import __version__

__all__ = ["VERBS", "app", "main", "renamed"]

VERBS = {
    "simulate": "simulate:simulate",
    "league": "league:league",
    "policies": "simulate:policies",
    "explain": "simulate:explain",
    "capture": "capture:capture",
    "trace": "trace:trace",
    "inspect": "trace:inspect",
    "calibrate": "calibrate:calibrate",
    "predict": "predict:predict",
    "probe": "collective:probe",
    "collective": "collective:collective",
    "plan": "plan:plan",
    "planners": "plan:planners",
    "run": "run:run",
    "serve": "serve:serve",
    "release": "serve:release",
    "lend": "serve:lend",
    "ranks": "serve:ranks",
    "hold": "on_hosts:hold",
    "counters": "on_hosts:counters",
    "jobs": "live:jobs",
    "nodes": "live:nodes",
    "top": "top:top",
    "doctor": "live:doctor",
    "lab up": "lab:up",
    "lab run": "lab:run",
    "lab status": "lab:status",
    "lab down": "lab:down",
    "lab slurm up": "lab_slurm:up",
    "lab slurm status": "lab_slurm:status",
    "lab slurm env": "lab_slurm:env",
    "lab slurm down": "lab_slurm:down",
}
"""Where the function behind each verb is, "file:function" of this folder, by what is typed; it is imported when it runs.

"lab up" is the verb up of the family lab.
"""


class VerbsApp(App):
    """Verbs that are imported when they run, and all of them when help is asked for, which their docstrings give.

    It takes verbs and options by the names they had, too.
    """

    def __call__(self, tokens: Iterable[str] | str | None = None, **options: Any) -> Any:
        """Run a command line: the process's own unless one is given."""
        words = tokens if tokens is None or isinstance(tokens, str) else renamed(list(tokens))
        return super().__call__(words, **options)

    def help_print(self, *given: Any, **options: Any) -> None:
        """Print help."""
        for family in families.values():
            for name in family:
                family[name]
        super().help_print(*given, **options)


app = VerbsApp(
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


families: dict[str, App] = {"": app}


def _register() -> None:
    for words, about in FAMILIES.items():
        above, _, name = words.rpartition(" ")
        families[words] = App(name=name, help=about)
        families[above].command(families[words])
    for words, function in VERBS.items():
        family, _, name = words.rpartition(" ")
        families[family].command(f"{__name__}.{function}", name=name)


_register()


def main() -> None:
    """Run the command line; errors on purpose become one message and exit status 2."""
    from hemiola.cli.output import fail
    from hemiola.core.errors import HemiolaError, InternalError

    sys.path.append("")  # so that --policy my_module:MyPolicy finds a file of the present folder, hiding none
    sys.argv[1:] = renamed(sys.argv[1:])
    if sys.argv[1:2] == ["run"]:
        from hemiola.cli.run import separated

        sys.argv[1:] = separated(sys.argv[1:])
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


# Verbs and options under the names they had: they work for one release, and say their new names.

OLD_VERBS = {"strategy": "collective"}
"""New names of verbs by old ones."""
OLD_OPTIONS = {"predict": {"--strategy": "--parallelism", "--strategies": "--schedules"}}
"""New names of options by verb and old one."""


def renamed(words: Sequence[str]) -> list[str]:
    """The words of a command line by today's names; what was renamed is said on stderr, a line each.

    Example:
        >>> renamed(["collective", "flat:hosts=2"])
        ['collective', 'flat:hosts=2']
    """
    if not words:
        return []
    verb = OLD_VERBS.get(words[0], words[0])
    if verb != words[0]:
        _say(f"hemiola {words[0]}", f"hemiola {verb}")
    return [verb, *(_option(verb, word) for word in words[1:])]


def _option(verb: str, word: str) -> str:
    old, equals, value = word.partition("=")
    new = OLD_OPTIONS.get(verb, {}).get(old, old)
    if new != old:
        _say(old, new)
    return f"{new}{equals}{value}"


def _say(old: str, new: str) -> None:
    print(f"note: {old} is now {new}; the old name works until the next release", file=sys.stderr)
