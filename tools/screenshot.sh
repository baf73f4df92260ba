#!/bin/sh
# Take the picture of the report that the README shows: the upper part of the page, as a browser draws it.
#   tools/screenshot.sh REPORT.html PICTURE.png [WIDTH,HEIGHT]
set -eu
[ -s "$1" ] || { echo "error: there is no report at $1" >&2; exit 1; }
page=$(realpath "$1")
picture=$(realpath "$2")
chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=20000 \
    --window-size="${3:-1280,1345}" --screenshot="$picture" "file://$page" 2>/dev/null
