#!/bin/sh
# Make a virtual environment, also where Debian ships Python without ensurepip.
#   tools/venv.sh PYTHON FOLDER
set -eu
python=$1
folder=$2

fail() {
    printf 'error: %s\n  hint: %s\n' "$1" "$2" >&2
    exit 1
}

[ -x "$folder/bin/python" ] && "$folder/bin/python" -m pip --version >/dev/null 2>&1 && exit 0
command -v "$python" >/dev/null 2>&1 ||
    fail "there is no $python" "install Python 3.11 or later, or name one: make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old" "Hemiola needs 3.11 or later: make PYTHON=/path/to/python3.11"

rm -rf "$folder"
if "$python" -c 'import ensurepip' 2>/dev/null; then
    "$python" -m venv "$folder"
elif "$python" -m pip --version >/dev/null 2>&1; then
    # ensurepip is missing (Debian without python3-venv): the system's pip puts pip into it.
    "$python" -m venv --without-pip "$folder"
    "$python" -m pip --quiet --python "$folder/bin/python" install pip
else
    fail "$python has neither ensurepip nor pip" "apt-get install python3-venv"
fi
