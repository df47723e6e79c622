# Shared by the scripts that serve and validate. Source it after common.sh; it runs nothing by itself.
# shellcheck shell=bash

# serving_env: prints the environment to serve and validate with; MOET_ENV chooses another one.
serving_env() {
  local env="${MOET_ENV:-$MOET_ROOT/.native/venv-cpu}"
  [[ -x "$env/bin/python" ]] || die 1 "no environment at $env; make it with: make setup"
  printf '%s\n' "$env"
}

# is_server PID: whether a process is there and is a server of ours. A number that the system has given to
# another process since it was written down is not.
is_server() {
  [[ "$1" =~ ^[0-9]+$ && -r "/proc/$1/cmdline" ]] && tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | grep -Eq '(moet|vllm).* serve '
}
