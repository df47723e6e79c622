#!/usr/bin/env bash
# Validates a running server of any profile: import, /health, /v1/models, every audit field, one sum, one tool
# call. By default the one that was served last from this checkout, by the recipe that it serves; see --help.
# Each check prints a line as it begins and one when it has passed; with --json there is one document at the end.
# Exit status: 0 everything holds, 1 a check failed (one line says which and why), 2 bad input.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
# shellcheck source=scripts/lib/serving.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/serving.sh"

main() {
  local env
  env="$(serving_env cuda cpu)"
  PYTHONPATH="$MOET_ROOT" exec "$env/bin/python" -m validation.smoke "$@"
}

main "$@"
