"""What people and other programs see of `hemiola serve`: a page, an API, metrics. Needs the extra `serve`.

Everything here looks on; the loop never waits for it. The one thing it can change is the kill switch.
"""
