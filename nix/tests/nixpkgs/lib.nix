# The functions of nixpkgs' lib that the flake uses, each as documented there, over Nix's builtins.
let
  inherit (builtins)
    attrNames
    concatStringsSep
    elemAt
    filter
    genList
    head
    isList
    length
    listToAttrs
    split
    substring
    tail
    ;
in
rec {
  inherit concatStringsSep filter substring;
  fakeHash = "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
  genAttrs = names: value: listToAttrs (map (name: { inherit name; value = value name; }) names);
  mapAttrs' = entry: set: listToAttrs (map (name: entry name set.${name}) (attrNames set));
  optionalAttrs = condition: set: if condition then set else { };
  take = count: list: genList (elemAt list) (if count < length list then count else length list);
  splitString =
    separator: text: filter (part: !isList part) (split (builtins.replaceStrings [ "." ] [ "\\." ] separator) text);
  attrByPath =
    path: default: set:
    if path == [ ] then
      set
    else if builtins.isAttrs set && set ? ${head path} then
      attrByPath (tail path) default set.${head path}
    else
      default;
  makeBinPath = packages: concatStringsSep ":" (map (package: "${package}/bin") packages);
  escapeShellArg =
    text:
    if builtins.match "[[:alnum:],._+:@%/-]+" (toString text) != null then
      toString text
    else
      "'${builtins.replaceStrings [ "'" ] [ "'\\''" ] (toString text)}'";
  escapeShellArgs = list: concatStringsSep " " (map escapeShellArg list);
  # Not one of nixpkgs: see fetchGit in ../../default.nix. Evaluation needs a value, and nothing here is built from it.
  fetchGit = { url, rev, ... }: "${url}@${rev}";

  inherit (import ./modules.nix) evalModules mkEnableOption mkIf mkOption types;
}
