# NixOS module: DeepSeek-V4-Flash as a service. The same unit as scripts/systemd/moet-ds4flash.service, which says why
# each of its settings is there; checks.service holds the two together.
#   services.moet = { enable = true; modelPath = "/srv/models/DeepSeek-V4-Flash-0731"; profile = "512k"; };
self:
{ config, lib, pkgs, ... }:
let
  inherit (lib) mkEnableOption mkIf mkOption optionalAttrs types;
  cfg = config.services.moet;
  name = "moet-ds4flash";
  recipes = ../../bench/recipes;
in
{
  options.services.moet = {
    enable = mkEnableOption "DeepSeek-V4-Flash on one 96 GB GPU";
    package = mkOption {
      type = types.package;
      default = self.packages.${pkgs.stdenv.hostPlatform.system}.default;
      description = "What serves: bin/moet with vLLM and the extension.";
    };
    profile = mkOption {
      type = types.enum [ "512k" "300k" ];
      default = "512k";
      description = "Tokens of context; a recipe bench/recipes/pro6000-PROFILE.yaml.";
    };
    recipe = mkOption {
      type = types.path;
      default = recipes + "/pro6000-${cfg.profile}.yaml";
      description = "A recipe of your own instead of the profile's.";
    };
    modelPath = mkOption {
      type = types.str;
      description = "Folder of the checkpoint. Not in the store: it is 160 GB.";
    };
    host = mkOption {
      type = types.str;
      default = "127.0.0.1";
      description = "Address to listen on.";
    };
    port = mkOption {
      type = types.port;
      default = 8000;
      description = "Port to listen on.";
    };
    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = "Open the port in the firewall.";
    };
    environmentFile = mkOption {
      type = types.nullOr types.str;
      default = null;
      description = "File that systemd reads as root, for VLLM_API_KEY=...; not in the store, which everybody reads.";
    };
    memlock = mkOption {
      type = types.str;
      default = "infinity";
      description = "Limit of locked memory, as LimitMEMLOCK takes it: mapped layers need 7.25 GB (512k) or 5.44 GB.";
    };
    environment = mkOption {
      type = types.attrsOf types.str;
      default = { };
      description = "More variables of the launcher, such as SERVED_MODEL_NAME or CUDA_VISIBLE_DEVICES.";
    };
    extraArgs = mkOption {
      type = types.listOf types.str;
      default = [ ];
      description = "More options of `moet serve`.";
    };
  };

  config = mkIf cfg.enable {
    users.users.moet = {
      isSystemUser = true;
      group = "moet";
    };
    users.groups.moet = { };
    networking.firewall.allowedTCPPorts = if cfg.openFirewall then [ cfg.port ] else [ ];
    systemd.services.${name} = {
      description = "DeepSeek-V4-Flash on one 96 GB GPU";
      wantedBy = [ "multi-user.target" ];
      wants = [ "network-online.target" ];
      after = [ "network-online.target" "nvidia-persistenced.service" ];
      unitConfig = {
        StartLimitIntervalSec = "1h";
        StartLimitBurst = 5;
      };
      environment = {
        MODEL_PATH = cfg.modelPath;
        HOST = cfg.host;
        PORT = toString cfg.port;
        CACHE_ROOT = "/var/cache/moet";
        HOME = "/var/cache/moet";
        W2_AUDIT_PATH = "/run/${name}/audit.json";
      } // cfg.environment;
      serviceConfig = {
        Type = "exec";
        User = "moet";
        Group = "moet";
        # The note of what is served goes below --root.
        WorkingDirectory = "/run/${name}";
        ExecStart = lib.escapeShellArgs (
          [ "${cfg.package}/bin/moet" "serve" "--recipe" "${cfg.recipe}" "--root" "/run/${name}" ] ++ cfg.extraArgs
        );
        LimitMEMLOCK = cfg.memlock;
        LimitNOFILE = 65536;
        Restart = "on-failure";
        RestartSec = 30;
        SuccessExitStatus = 143;
        KillMode = "mixed";
        TimeoutStopSec = 30;
        CacheDirectory = "moet";
        RuntimeDirectory = name;
        UMask = "0027";
      }
      // optionalAttrs (cfg.environmentFile != null) { EnvironmentFile = cfg.environmentFile; }
      // import ./hardening.nix;
    };
  };
}
