#!/usr/bin/env bash
# Serves the tiny checkpoint of demo/ on the CPU as bench/recipes/demo-cpu.yaml says.
#   serve-demo.sh [OPTION...]               in the foreground, until Ctrl-C; options go to `moet serve`
#   serve-demo.sh --background [OPTION...]  returns when the server is ready, or fails with the end of its log
#   serve-demo.sh --stop                    stops the server that --background started, and waits for its end
# Variables: PORT, HOST, MODEL_PATH and the others of `moet serve --help`; MOET_RUN_DIR (default
# .native/run/demo) holds server.pid, server.log and audit.json; MOET_READY_SECONDS
# (default 300) and MOET_STOP_SECONDS (default 30) bound the waiting.
# Exit status: 0 done, 1 the server did not start or stop as it should, 2 bad input.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"
# shellcheck source=scripts/lib/serving.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/serving.sh"

RECIPE="$MOET_ROOT/bench/recipes/demo-cpu.yaml"
RUN_DIR="${MOET_RUN_DIR:-$MOET_ROOT/.native/run/demo}"
PID_FILE="$RUN_DIR/server.pid"
LOG="$RUN_DIR/server.log"
READY_SECONDS="${MOET_READY_SECONDS:-300}"
STOP_SECONDS="${MOET_STOP_SECONDS:-30}"

start() {
  local env="$1" word rendered url pid seconds status=0
  shift
  for word in "$@"; do
    case "$word" in
      -h | --help) exec "$env/bin/moet" serve --help ;;
      --dry-run | --print | --print=*) die 2 "$word starts no server; leave out --background" ;;
    esac
  done
  if [[ -f "$PID_FILE" ]] && is_server "$(<"$PID_FILE")"; then
    die 1 "a server already runs here (process $(<"$PID_FILE")); stop it with scripts/serve-demo.sh --stop"
  fi
  rendered="$("$env/bin/moet" serve --recipe "$RECIPE" --dry-run --print json "$@")" || exit $? # 2 for bad input
  url="$("$env/bin/python" -c 'import json, sys; print(json.load(sys.stdin)["base_url"])' <<<"$rendered")"
  # Its answers would pass for those of the server that is to be started, and cannot have the port.
  if PYTHONPATH="$MOET_ROOT" "$env/bin/python" -m validation.ready --base-url "$url" --timeout 0 >/dev/null 2>&1; then
    die 1 "a server answers at $url already; stop it, or choose another PORT"
  fi
  mkdir -p "$RUN_DIR"
  setsid "$env/bin/moet" serve --recipe "$RECIPE" "$@" >"$LOG" 2>&1 </dev/null &
  pid=$!
  printf '%s\n' "$pid" >"$PID_FILE"
  trap 'stop "$env" || true' EXIT
  seconds="$(PYTHONPATH="$MOET_ROOT" "$env/bin/python" -m validation.ready \
    --base-url "$url" --timeout "$READY_SECONDS" --pid "$pid")" || status=$?
  ((status != 130)) || exit 130 # interrupted, and said so
  if ((status != 0)); then
    # An error of ours is one line somewhere in a worker's traceback; without one, the end of the log must do.
    grep -oE 'moet_w2\.errors\.[A-Za-z]+: .*' "$LOG" | tail -n 1 >&2 || tail -n 25 "$LOG" >&2
    die 1 "the server did not become ready; all of its log: $LOG"
  fi
  trap - EXIT
  printf 'ready after %s s at %s (process %s, log %s)\n' "$seconds" "$url" "$pid" "$LOG"
}

stop() {
  local env="$1" pid status=0
  [[ -f "$PID_FILE" ]] || {
    note "no server was started here with --background"
    return 0
  }
  pid="$(<"$PID_FILE")"
  if kill -0 "$pid" 2>/dev/null && ! is_server "$pid"; then
    note "process $pid is not the server that was started here; it is left alone"
  else
    "$env/bin/python" "$MOET_ROOT/scripts/lib/stop_session.py" "$pid" "$STOP_SECONDS" || status=$?
  fi
  rm -f "$PID_FILE"
  return "$status"
}

# check_seconds NAME VALUE: before anything is started or stopped by it.
check_seconds() {
  [[ "$2" =~ ^[0-9]+(\.[0-9]+)?$ ]] || die 2 "$1=$2 is no number of seconds; give one, such as 60, or unset it"
}

main() {
  local env
  case "${1:-}" in
    --background)
      check_seconds MOET_READY_SECONDS "$READY_SECONDS"
      check_seconds MOET_STOP_SECONDS "$STOP_SECONDS" # a server that is not ready in time is stopped
      ;;
    --stop)
      (($# == 1)) || die 2 "--stop takes nothing after it, got: ${*:2}; nothing was stopped"
      check_seconds MOET_STOP_SECONDS "$STOP_SECONDS"
      ;;
  esac
  env="$(serving_env cpu)"
  export W2_AUDIT_PATH="${W2_AUDIT_PATH:-$RUN_DIR/audit.json}"
  case "${1:-}" in
    --background)
      shift
      start "$env" "$@"
      ;;
    --stop) stop "$env" ;;
    *) exec "$env/bin/moet" serve --recipe "$RECIPE" "$@" ;;
  esac
}

main "$@"
