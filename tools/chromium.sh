#!/usr/bin/env bash
# Chromium and its driver for the tests of the report, from Debian's or Ubuntu's packages. Does nothing where both are
# there already. Where it may not install, it says what to do: the tests that need a browser are then skipped, and fail
# where CI=true.
set -euo pipefail

found() {
  { command -v chromium || command -v chromium-browser || command -v google-chrome; } > /dev/null 2>&1 &&
    command -v chromedriver > /dev/null 2>&1
}

install() {
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2> /dev/null || return 1
    as_root=(sudo -n)
  fi
  command -v apt-get > /dev/null || return 1
  echo "installing chromium and chromium-driver" >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq > /dev/null || true
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq --yes --no-install-recommends chromium chromium-driver > /dev/null
}

found && exit 0
install || true
if ! found; then
  echo "no Chromium: the tests of the report in a browser are skipped (they fail where CI=true)." >&2
  echo "To run them: sudo apt-get install chromium chromium-driver, or put both on the PATH." >&2
fi
exit 0
