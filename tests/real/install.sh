#!/bin/bash
# The real SGLang for the CPU and a tiny model, built once and kept.
#   install.sh           build what is missing, then print the paths
#   install.sh --paths   print the paths; exit 1 if something is not built
# Printed, one a line: the engine's venv, the model, and the home of the venv's python (left out when that is /usr:
# a host brings its own). Bind them read-only into a lab host at the same places.
# PYTHON=...       the python3.11 to use
# DEPLOY_CACHE=... instead of /var/cache/deploy-lab
set -euo pipefail

readonly VERSION=0.5.23
readonly TORCHVISION=0.28.0
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${DEPLOY_CACHE:-/var/cache/deploy-lab}
python=${PYTHON:-python3.11}

say() { printf '%s %s\n' "$(date +%T)" "$*" >&2; }
die() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }
recipe() { cat "$@" | sha256sum | cut -c1-12; }

python_home=$("$python" -c 'import sys; assert sys.version_info[:2] == (3, 11); print(sys.base_prefix)') ||
    die "needs Python 3.11 (tried '$python'; PYTHON=... names another)"
model=$cache/models/tiny
model_recipe=$(recipe "$here/model.py")

engine_built() { [ -x "$engine/bin/python" ]; }
model_built() { [ "$(cat "$model/recipe" 2>/dev/null)" = "$model_recipe" ]; }

print_paths() {
    printf '%s\n' "$engine" "$model"
    [ "$python_home" = /usr ] || printf '%s\n' "$python_home"
}

# Built beside its place and renamed, so that a folder of that name is always whole.
build_engine() {
    local part=$engine.part site
    rm -rf "$part"
    say "engine: sglang $VERSION for the CPU into $engine"
    "$python" -m venv "$part"
    say "engine: requirements"
    "$part/bin/python" -m pip install -qq --no-compile -r "$here/requirements.txt"
    say "engine: sglang and torchvision"
    "$part/bin/python" -m pip install -qq --no-compile --no-deps "sglang==$VERSION" "torchvision==$TORCHVISION"
    site=$("$part/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cp -r "$here"/shims/* "$site"
    echo 'import torchvision_operators' >"$site/torchvision_operators.pth"
    say "engine: byte code"
    # Some packages carry templates and old syntax that do not compile; they are never imported.
    "$part/bin/python" -m compileall -q -j 0 -s "$part" -p "$engine" "$site" >/dev/null || true
    grep -rlI --null "^#!$part/" "$part/bin" | xargs -0r sed -i "1s|^#!$part/|#!$engine/|"
    mv "$part" "$engine"
}

build_model() {
    local part=$model.part
    rm -rf "$part"
    mkdir -p "$part"
    say "model: $model"
    HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1 OMP_NUM_THREADS=1 "$engine/bin/python" "$here/model.py" "$part" >&2
    echo "$model_recipe" >"$part/recipe"
    rm -rf "$model"
    mv "$part" "$model"
}

# The name of the engine's folder tells how it was built, so that a changed recipe builds another one.
engine=$cache/sglang-$VERSION-$({ declare -f build_engine; echo "$VERSION $TORCHVISION $python_home"; } |
    recipe - "$here/requirements.txt" "$here"/shims/*.py "$here"/shims/*/*.py)

if [ "${1:-}" = --paths ]; then
    engine_built && model_built || die "not built: run $here/install.sh"
    print_paths
    exit
fi
[ $# -eq 0 ] || die "unknown argument '$1' (only --paths)"

mkdir -p "$cache/models"
exec 9>"$cache/.sglang.lock"
flock 9
engine_built || build_engine
model_built || build_model
print_paths
