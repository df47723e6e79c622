#!/usr/bin/env bash
# Builds the image of Containerfile and runs it, with docker or podman.
#   scripts/container.sh [--print] build
#   scripts/container.sh [--print] run CHECKPOINT CACHE [--port N] [--seccomp FILE] [-- SERVER OPTION...]
#
# CHECKPOINT and CACHE are folders of the host; CACHE (user 10001 writes there) keeps planes, pack and compiled kernels.
# --print shows the command and runs nothing. CONTAINER_ENGINE names the program; VLLM_API_KEY is handed on if it is set.
#
# Mapped layers are locked and bound to the GPU's NUMA node, which an engine's defaults forbid:
#   --ulimit memlock=-1      since the limit of a container is often 64 KiB
#   --cap-add SYS_NICE       since the default seccomp profiles of docker and podman allow mbind only with that capability
#   --security-opt seccomp=  instead of it, with --seccomp FILE: no default profile allows move_pages, by which the lie of
#                            every page is proven. On a machine with one NUMA node serving goes on without that proof and
#                            the audit says so; on one with several nodes it does not. scripts/seccomp-profile.sh writes FILE.
# Exit status: that of the engine; 2 usage, 3 there is no engine.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/common.sh"

usage() {
  die 2 "$1; usage: container.sh [--print] build | run CHECKPOINT CACHE [--port N] [--seccomp FILE] [-- OPTION...]"
}

pin() {
  "$PYTHON" "$MOET_ROOT/scripts/lib/pins.py" get "$1"
}

# image NAME: prints a base image of pins.toml, by digest if there is one.
image() {
  local name digest
  name="$(pin "container.$1.image")"
  digest="$(pin "container.$1.digest")"
  [[ -n "$digest" ]] || note "container: $name is pinned by its tag alone; container.$1.digest in pins.toml is empty"
  printf '%s\n' "$name${digest:+@$digest}"
}

find_engine() {
  local name
  for name in ${CONTAINER_ENGINE:-docker podman}; do
    if command -v "$name" >/dev/null; then
      printf '%s\n' "$name"
      return
    fi
  done
  [[ -n "$PRINT" ]] || die 3 "neither docker nor podman is on PATH; install one, or set CONTAINER_ENGINE"
  printf '%s\n' docker
}

tag() {
  printf 'moet-w2:%s-%s\n' "$(pin vllm.version)" "$(pin project.revision)"
}

folder() {
  [[ -d "$1" ]] || usage "'$1' is no folder"
  (cd "$1" && pwd)
}

run_it() {
  if [[ -n "$PRINT" ]]; then
    printf '%q ' "$@"
    printf '\n'
    return
  fi
  exec "$@"
}

build() {
  (($# == 0)) || usage "build takes nothing, not '$1'"
  local base toolkit revision
  base="$(image base)"
  toolkit="$(image toolkit)"
  revision="$(git -C "$MOET_ROOT" describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null || printf 'unknown')"
  run_it "$ENGINE" build --file "$MOET_ROOT/Containerfile" --build-arg "BASE=$base" --build-arg "TOOLKIT=$toolkit" \
    --build-arg "REVISION=$revision" --tag "$(tag)" "$MOET_ROOT"
}

run() {
  local checkpoint cache port=8000 seccomp=""
  (($# >= 2)) || usage "run needs CHECKPOINT and CACHE"
  checkpoint="$(folder "$1")"
  cache="$(folder "$2")"
  shift 2
  while (($# > 0)) && [[ "$1" != -- ]]; do
    (($# >= 2)) || usage "$1 needs a value"
    case "$1" in
      --port) port="$2" ;;
      --seccomp) seccomp="$2" ;;
      *) usage "'$1' is not an option; those of the server come after --" ;;
    esac
    shift 2
  done
  [[ "${1:-}" != -- ]] || shift
  [[ "$port" =~ ^[0-9]+$ ]] || usage "--port '$port' is not a number"
  [[ -z "$seccomp" || -f "$seccomp" ]] || usage "--seccomp '$seccomp' is no file; scripts/seccomp-profile.sh writes one"
  local -a flags=(--rm --init --ulimit memlock=-1)
  if [[ -n "$seccomp" ]]; then
    flags+=(--security-opt "seccomp=$seccomp")
  else
    flags+=(--cap-add SYS_NICE)
  fi
  if [[ "$(basename "$ENGINE")" == podman ]]; then
    flags+=(--device nvidia.com/gpu=all)
  else
    flags+=(--gpus all)
  fi
  flags+=(--volume "$checkpoint:/models/checkpoint:ro" --volume "$cache:/var/cache/moet")
  flags+=(--publish "127.0.0.1:$port:8000")
  [[ -z "${VLLM_API_KEY:-}" ]] || flags+=(--env VLLM_API_KEY)
  run_it "$ENGINE" run "${flags[@]}" "$(tag)" "$@"
}

main() {
  PRINT=""
  if [[ "${1:-}" == --print ]]; then
    PRINT=1
    shift
  fi
  PYTHON="$(find_python)"
  ENGINE="$(find_engine)"
  case "${1:-}" in
    build | run) "$@" ;;
    *) usage "'${1:-}' is not a verb" ;;
  esac
}

main "$@"
