"""The chart that only a prediction has: what would help."""

from __future__ import annotations

from collections.abc import Sequence

from hemiola.core.units import format_duration
from hemiola.cost.prediction import Prediction
from hemiola.cost.whatif import WhatIf
from hemiola.report.chart import Chart, Drawing, words_for
from hemiola.report.job.charts import bars_layout
from hemiola.report.job.words import seconds_scale

__all__ = ["what_if_chart"]


def what_if_chart(answer: Prediction, changes: Sequence[WhatIf]) -> Chart:
    """The iteration under each change, what is exposed apart; as it was asked for on top."""
    rows = [("as asked", answer.iteration_s, answer.exposed_s, "")]
    rows += [(c.change, c.iteration_s, c.exposed_s, f" ({c.relative - 1:+.1%})") for c in changes]
    scale, unit = seconds_scale(max(seconds for _, seconds, _, _ in rows))
    names = [words_for(name, 26) for name, _, _, _ in rows]
    common = {"type": "bar", "orientation": "h", "y": names, "textangle": 0, "hoverinfo": "skip"}
    hidden = {
        **common, "x": [(seconds - exposed) / scale for _, seconds, exposed, _ in rows],
        "name": "computing and overhead", "marker": {"color": "--compute"},
    }  # fmt: skip
    exposed = {
        **common, "x": [exposed / scale for _, _, exposed, _ in rows], "name": "exposed communication",
        "marker": {"color": "--wire"}, "cliponaxis": False, "constraintext": "none",
        "text": [format_duration(seconds) + change for _, seconds, _, change in rows], "textposition": "outside",
        "outsidetextfont": {"color": "--ink"},
    }  # fmt: skip
    layout = bars_layout(f"{unit} per iteration")
    layout["xaxis"]["range"] = [0, 1.3 * max(seconds for _, seconds, _, _ in rows) / scale]
    return Chart(
        id="what-if",
        title="What if",
        about="The iteration predicted again with one change at a time, against what was asked for.",
        drawings={"": Drawing([hidden, exposed], layout)},
        height_px=140 + 30 * len(rows),
    )
