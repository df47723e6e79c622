#!/usr/bin/env bash
# Compiles kernels/src with the pinned CUDA compiler. This revision has no kernels: its routed experts run
# by the torch reference path.
# Exit status: 0 done, or nothing to do and said so; 1 sources without a way to build them.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

main() {
  cd "$MOET_ROOT"
  if compgen -G 'kernels/src/*.cu' >/dev/null; then
    die 1 "kernels/src has sources, but this script does not know yet how to compile them"
  fi
  note "kernels: kernels/src has no sources in this revision; nothing was compiled"
}

main "$@"
