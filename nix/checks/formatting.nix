# Lint of what is written by hand: ruff, shellcheck, and for Nix files tabs, trailing blanks and the length of lines.
{ pkgs, source, ... }:
pkgs.runCommand "check-formatting"
  {
    nativeBuildInputs = [ pkgs.ruff pkgs.shellcheck ];
    tree = source "moet-tree" [
      ".ci" "bench" "demo" "flake.nix" "gpu_tests" "kernels" "nix" "patch" "pytest.ini" "ruff.toml" "runtime_ext"
      "scripts" "validation"
    ];
  }
  ''
    cd $tree
    export RUFF_CACHE_DIR=$TMPDIR/ruff
    failed=
    ruff check . || failed=1
    shellcheck --external-sources .ci/run $(find . -name '*.sh') || failed=1
    if grep -nP '\t|[[:blank:]]$|.{121}' flake.nix $(find nix -name '*.nix'); then
      echo "nix: error: a tab, a trailing blank or a line over 120 characters" >&2
      failed=1
    fi
    [ -z "$failed" ]
    touch $out
  ''
