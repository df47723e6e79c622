# flake.lock is what nix/lock.py writes from pins.toml.
{ pkgs, python, source, ... }:
pkgs.runCommand "check-lock"
  {
    nativeBuildInputs = [ python ];
    tree = source "moet-lock" [ "flake.lock" "nix/lock.py" "pins.toml" "scripts/lib" ];
  }
  ''
    python3 -B $tree/nix/lock.py --check | tee $out
  ''
