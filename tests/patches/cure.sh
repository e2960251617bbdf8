#!/bin/bash
# An interpreter with torch for the CPU and all that SGLang imports: the one of tests/real, built when it is missing.
#   cure.sh          build what is missing, then print the interpreter
#   cure.sh --path   print the interpreter; exit 1 if there is none
# DEPLOY_CURE_PYTHON=... names another one.
set -euo pipefail
install=$(cd "$(dirname "${BASH_SOURCE[0]}")/../real" && pwd)/install.sh

if [ -n "${DEPLOY_CURE_PYTHON:-}" ]; then
    echo "$DEPLOY_CURE_PYTHON"
elif [ "${1:-}" = --path ]; then
    paths=$("$install" --paths)
    echo "$(head -n 1 <<<"$paths")/bin/python"
else
    paths=$("$install")
    echo "$(head -n 1 <<<"$paths")/bin/python"
fi
