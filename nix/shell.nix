# `nix develop`: what `make` and the tests take from a machine. Everything else they fetch and pin themselves.
{ pkgs, python, ... }:
pkgs.mkShell {
  packages = [ python pkgs.git pkgs.gnumake pkgs.gcc pkgs.nix ];
  shellHook = ''
    export MOET_PYTHON=${python}/bin/python3
  '';
}
