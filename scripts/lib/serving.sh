# Shared by the scripts that serve and validate. Source it after common.sh; it runs nothing by itself.
# shellcheck shell=bash

# serving_env: prints the environment to serve and validate with; MOET_ENV chooses another one.
serving_env() {
  local env="${MOET_ENV:-$MOET_ROOT/.native/venv-cpu}"
  [[ -x "$env/bin/python" ]] || die 1 "no environment at $env; make it with: make setup"
  printf '%s\n' "$env"
}

# alive PID: whether a process is there.
alive() {
  [[ "$1" =~ ^[0-9]+$ ]] && kill -0 "$1" 2>/dev/null
}
