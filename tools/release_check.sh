#!/usr/bin/env bash
# Is what would be published whole? Builds sdist and wheel, looks at both, installs the wheel in empty environments, with
# the newest and the oldest packages that pyproject.toml allows, and uses it there.
#
#   tools/release_check.sh            all of it: minutes, and a few hundred megabytes
#   tools/release_check.sh --quick    the packages, and the wheel alone with the versions of constraints.txt
#   PYTHON=python3.12 tools/release_check.sh
#   TOOLS=.venv tools/release_check.sh     with build, twine and check-wheel-contents of an environment that has them
#
# torch is what constraints.txt says in every environment: another build of it may be gigabytes.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
extras=torch,plots,parquet,secure
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
grep '^torch==' constraints.txt > "$work/torch.txt"
pip() { "$1/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}"; }

echo "== build"
tools=${TOOLS:-$work/tools}
if [ -z "${TOOLS:-}" ]; then
  "$python" -m venv "$tools"
  pip "$tools" --constraint constraints.txt build check-wheel-contents twine
fi
"$tools/bin/python" -m build --outdir "$work/dist" . > "$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
"$tools/bin/twine" check --strict "$work"/dist/*
"$tools/bin/check-wheel-contents" "$work"/dist/*.whl
ls -l "$work/dist"

# $1: name of the environment; $2: extras, or nothing; the rest: arguments of pip.
try() {
  local name=$1 wheel
  wheel=$(ls "$work"/dist/*.whl)
  echo "== $name"
  "$python" -m venv "$work/$name"
  pip "$work/$name" "${@:3}" "$wheel${2:+[$2]}"
  (
    cd "$work"
    export GDPFED_CACHE="$work/$name.cache" HOME="$work" PYTHONWARNINGS=error::DeprecationWarning:gdpfed
    local gdpfed=$work/$name/bin/gdpfed
    "$gdpfed" --version
    "$gdpfed" plan fmnist --out "$name.toml" > /dev/null
    "$gdpfed" verify "$name.toml" > /dev/null
    "$gdpfed" account --rate 0.02 --rounds 50 --epsilon 0.5 --delta 1e-5
    # The paper's experiments are in the repository only, and the program says so.
    if "$gdpfed" reproduce sampling 2> /dev/null; then exit 1; fi
    if [ -n "$2" ]; then
      "$gdpfed" train --method pooled --rounds 2 --out "$name-run" | tail -n 2
      "$gdpfed" train --method pooled --rounds 1 --secure --out "$name-secure" | tail -n 1
      "$gdpfed" report "$name-run" -o "$name.html" > /dev/null
      "$gdpfed" plot "$name-run" -o "$name-figures" > /dev/null
    fi
  )
}

try alone "" --constraint constraints.txt
if [ "${1:-}" != --quick ]; then
  "$python" tools/oldest.py ${extras//,/ } > "$work/oldest.txt"
  cat "$work/oldest.txt"
  try newest "$extras" --upgrade --constraint "$work/torch.txt"
  try oldest "$extras" --constraint "$work/torch.txt" --constraint "$work/oldest.txt"
fi
echo "== whole"
