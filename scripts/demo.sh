#!/usr/bin/env bash
# Starts the real server on the tiny checkpoint, validates it, prints what it did, and stops it.
#   scripts/demo.sh [--help]
# PORT chooses a port; otherwise a free one is taken.
# Exit status: 0 only when the server became ready on Model Runner V2, every check holds, and it stopped clean; 2 bad input.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
# shellcheck source=scripts/lib/serving.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/serving.sh"

SERVE="$MOET_ROOT/scripts/serve-demo.sh"
RUN_DIR="${MOET_RUN_DIR:-$MOET_ROOT/.native/run/demo}"
RUNNER="Using V2 Model Runner"

free_port() {
  "$1/bin/python" -c 'import socket
with socket.create_server(("127.0.0.1", 0)) as probe:
    print(probe.getsockname()[1])'
}

main() {
  local env
  case "${1:-}" in
    -h | --help)
      usage
      return
      ;;
  esac
  (($# == 0)) || die 2 "it takes no arguments, got: $*; options of the server go to scripts/serve-demo.sh"
  env="$(serving_env cpu)"
  PORT="${PORT:-$(free_port "$env")}"
  export PORT
  "$SERVE" --background
  trap '"$SERVE" --stop || true' EXIT
  grep -qF "$RUNNER" "$RUN_DIR/server.log" || die 1 "the server's log does not say '$RUNNER'"
  printf 'log says: %s\n\n' "$RUNNER"
  "$MOET_ROOT/scripts/validate-api.sh" --recipe "$MOET_ROOT/bench/recipes/demo-cpu.yaml"
  printf '\naudit of the routed experts (%s):\n' "$RUN_DIR/audit.json"
  "$env/bin/moet" audit show "$RUN_DIR/audit.json"
  trap - EXIT
  "$SERVE" --stop || die 1 "the server did not stop by itself"
  printf '\nstopped; everything holds\n'
}

main "$@"
