# Shared by the scripts that serve and validate. Source it after common.sh; it runs nothing by itself.
# shellcheck shell=bash

# What makes the environment of each kind of device.
declare -A SETUP=([cpu]="make setup" [cuda]="scripts/build-native.sh cuda")

# serving_env KIND...: prints the environment to serve or validate with: the first of these kinds that is there.
# MOET_ENV chooses another one.
serving_env() {
  local kind env="${MOET_ENV:-}"
  for kind in "$@"; do
    [[ -z "${MOET_ENV:-}" ]] || continue
    env="$MOET_ROOT/.native/venv-$kind"
    [[ ! -x "$env/bin/python" ]] || break
  done
  [[ -x "$env/bin/python" ]] || die 1 "no environment at $env; make it with: ${SETUP[$kind]}"
  printf '%s\n' "$env"
}

# is_server PID: whether a process is there and is a server of ours. A number that the system has given to
# another process since it was written down is not.
is_server() {
  [[ "$1" =~ ^[0-9]+$ && -r "/proc/$1/cmdline" ]] && tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | grep -Eq '(moet|vllm).* serve '
}
