#!/usr/bin/env bash
# Runs a script with the Python that pins.toml names, without any environment:
#   scripts/run-python.sh SCRIPT [ARGUMENT...]
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

main() {
  (($# > 0)) || die 2 "usage: run-python.sh SCRIPT [ARGUMENT...]"
  local python
  python="$(find_python)"
  cd "$MOET_ROOT"
  exec "$python" "$@"
}

main "$@"
