#!/usr/bin/env bash
# Run the tests that need Slurm on the Slurm (and Python) of another Debian, in a folder of its own:
#
#     tools/other_slurm.sh trixie /var/tmp/trixie [arguments of pytest]
#
# Needs root, debootstrap and a network; the folder takes 1.5 GB and is used again. Debian 13 (trixie) has Slurm 24.11,
# sid a newer one. The test that trains is left out: PyTorch is not installed there.
set -euo pipefail

make_root() {
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" http://deb.debian.org/debian
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/" # as this machine trusts
    chroot "$root" apt-get update -qq
    DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get install -qq -y --no-install-recommends \
        slurmctld slurmd slurmrestd slurm-client slurm-wlm-basic-plugins slurm-wlm-jwt-plugin munge \
        postgresql python3-venv iproute2 procps openssl
}

in_root() { # the mounts go with the process
    mount --bind "$root" "$root" # a host of the lab has to find that / is a mount
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mkdir -p "$root/hemiola"
    mount --bind "$here" "$root/hemiola"
    exec chroot "$root" env -i HOME=/root LANG=C.UTF-8 PATH=/root/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        bash /hemiola/tools/other_slurm.sh --test "$@"
}

run_tests() {
    cd /hemiola
    slurmctld -V
    [ -d /root/venv ] || python3 -m venv /root/venv
    pip install -q --cert /etc/ssl/certs/ca-certificates.crt -e '.[serve,postgres,lab]' \
        pytest pytest-xdist hypothesis schemathesis httpx playwright
    # shellcheck disable=SC2046
    exec python -m pytest -p no:cacheprovider -n 2 --dist loadgroup tests/system/lab/test_lab_slurm.py tests/system/chaos \
        $(grep -lE 'live_slurm|need_slurm' tests/system/live/test_*.py) \
        --deselect tests/system/live/test_slurm_live.py::test_a_job_that_trains_is_learnt_and_its_successor_is_known "$@"
}

case ${1:-} in
--test) shift && run_tests "$@" ;;
--root) root=$2 here=$3 && shift 3 && in_root "$@" ;;
*)
    suite=${1:?which Debian? trixie, sid, ...} root=${2:?in which folder?}
    shift 2
    here=$(cd "$(dirname "$0")/.." && pwd)
    [ -x "$root/usr/sbin/slurmctld" ] || make_root
    cp /etc/resolv.conf "$root/etc/"
    exec unshare --mount --propagation private "$0" --root "$root" "$here" "$@"
    ;;
esac
