# Formatting and lint of what is written by hand: ruff, shellcheck, and for Nix files tabs, trailing blanks, line length.
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
    ruff check .
    find scripts bench nix -name '*.sh' -exec shellcheck --external-sources {} + .ci/run
    if grep -nE '[[:blank:]]$|	|.{121}' flake.nix $(find nix -name '*.nix'); then
      echo "nix: error: a tab, a trailing blank or a line over 120 characters" >&2
      exit 1
    fi
    touch $out
  ''
