# A file of pins.toml by its key: `pinned "vllm.sdist"` is the archive, of the pinned sha256 or not there at all.
{ pkgs, pins, lib, ... }:
key:
let
  pin = lib.attrByPath (lib.splitString "." key) (throw "pins.toml has no ${key}") pins;
in
pkgs.fetchurl {
  name = pin.filename;
  inherit (pin) url sha256;
}
