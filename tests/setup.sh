#!/usr/bin/env bash
# Install what the demo and the tests need: tests/setup.sh PYTHON VENV. Root installs Debian packages; others are told.
set -euo pipefail
python=$1
venv=$2

packages=()
need() { command -v "$1" >/dev/null 2>&1 || packages+=("$2"); }
need systemd-nspawn systemd-container
need mmdebstrap mmdebstrap
need ip iproute2
need ssh openssh-client
need curl curl
need fish fish  # login shells that tests speak through
need tcsh tcsh
need zsh zsh
"$python" -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
[ -x /usr/sbin/sshd ] || packages+=(openssh-server)
browser=()
command -v chromedriver >/dev/null 2>&1 || browser=(chromium chromium-driver)

if [ ${#packages[@]} -gt 0 ] || { [ ${#browser[@]} -gt 0 ] && [ "$(id -u)" -eq 0 ]; }; then
    if [ "$(id -u)" -ne 0 ]; then
        echo "these packages are missing: ${packages[*]} (apt-get install as root)" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    # A server that a package brings must not start on this machine.
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d.deploy
    chmod 755 /usr/sbin/policy-rc.d.deploy
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        mv /usr/sbin/policy-rc.d.deploy /usr/sbin/policy-rc.d
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    else
        rm -f /usr/sbin/policy-rc.d.deploy
    fi
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
    # Ubuntu has its Chromium as a snap only; there the tests of reports in a browser are skipped.
    apt-get install -y -qq --no-install-recommends "${browser[@]}" >/dev/null ||
        echo "no ${browser[*]} here: reports are not looked at in a browser" >&2
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "$python is too old: deploy needs Python 3.11 (make PYTHON=python3.11 ...)" >&2
    exit 1
}
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
