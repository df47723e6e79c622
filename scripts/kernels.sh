#!/usr/bin/env bash
# Compiles kernels/src to kernels/cubins with the pinned CUDA compiler; `--help` lists the options.
# Exit status: 0 done; 1 failed, or --check found a difference; 2 usage; 3 a tool is missing.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

main() {
  local python
  python="$(find_python)"
  exec "$python" "$MOET_ROOT/scripts/lib/kernel_command.py" "$@"
}

main "$@"
