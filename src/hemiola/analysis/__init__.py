"""Functions of a timeline: metrics, critical paths, breakdowns. Knows no files and no screens."""
