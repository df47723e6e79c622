# What the service may not do, in systemd's words. What is left out because it would break serving, such as
# PrivateDevices, stands with its reasons in scripts/systemd/moet-ds4flash.service.
{
  NoNewPrivileges = true;
  CapabilityBoundingSet = "";
  ProtectSystem = "strict";
  ProtectHome = true;
  PrivateTmp = true;
  ProtectControlGroups = true;
  ProtectHostname = true;
  ProtectKernelLogs = true;
  ProtectKernelModules = true;
  ProtectKernelTunables = true;
  LockPersonality = true;
  RestrictNamespaces = true;
  RestrictRealtime = true;
  RestrictSUIDSGID = true;
  RestrictAddressFamilies = "AF_UNIX AF_INET AF_INET6 AF_NETLINK";
  SystemCallArchitectures = "native";
}
