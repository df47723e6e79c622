# The NixOS module gives the unit that scripts/systemd/moet-ds4flash.service describes, and refuses what is no setting.
{ pkgs, lib, python, module, source, ... }:
let
  inherit (lib) mkOption types;
  nixos = {
    options = lib.genAttrs [ "networking" "users" ] (
      _name: mkOption { type = types.attrsOf types.anything; default = { }; }
    ) // {
      systemd.services = mkOption { type = types.attrsOf types.anything; default = { }; };
    };
  };
  evaluate =
    settings:
    (lib.evalModules {
      specialArgs = { inherit pkgs; };
      modules = [ module nixos { services.moet = settings; } ];
    }).config;
  settings = {
    enable = true;
    package = python;
    modelPath = "/srv/models/DeepSeek-V4-Flash-0731";
    environmentFile = "-/etc/moet-ds4flash.env";
  };
  refused =
    change: !(builtins.tryEval (builtins.toJSON (evaluate (settings // change)).systemd.services)).success;
  service = change: (evaluate (settings // change)).systemd.services.moet-ds4flash;
in
assert (evaluate { enable = false; }).systemd.services == { };
assert refused { profile = "1m"; };
assert refused { port = 70000; };
assert refused { modelPath = null; };
assert refused { prot = 8000; };
assert !(refused { port = 9000; });
assert (service { memlock = "8G"; }).serviceConfig.LimitMEMLOCK == "8G";
assert (evaluate (settings // { openFirewall = true; port = 9000; })).networking.firewall.allowedTCPPorts == [ 9000 ];
pkgs.runCommand "check-service"
  {
    nativeBuildInputs = [ python ];
    tree = source "moet-unit" [ "nix/checks/compare_unit.py" "scripts/systemd" ];
    service = builtins.toJSON (service { profile = "300k"; });
  }
  ''
    python3 -B $tree/nix/checks/compare_unit.py $tree/scripts/systemd/moet-ds4flash.service "$service" | tee $out
  ''
