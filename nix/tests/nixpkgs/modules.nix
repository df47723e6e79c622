# A small evalModules: options, definitions of several modules, mkIf, the types that our module uses, and the three
# complaints of the real one (no such option, not of type, no value). No priorities, submodules or freeform types.
let
  inherit (builtins)
    all
    attrNames
    concatLists
    concatStringsSep
    elem
    foldl'
    head
    isAttrs
    isFunction
    isPath
    isString
    length
    listToAttrs
    map
    tail
    ;
  kind = value: if isAttrs value then value._type or "" else "";
  dotted = concatStringsSep ".";

  # Definitions of the option at `path` in one module's config, with the conditions that they stand under. A condition
  # is not looked at on the way down: it may depend on other options.
  definitions =
    path: conditions: value:
    if kind value == "if" then
      definitions path (conditions ++ [ value.condition ]) value.content
    else if path == [ ] then
      [ { inherit conditions value; } ]
    else if isAttrs value && value ? ${head path} then
      definitions (tail path) conditions value.${head path}
    else
      [ ];

  # Paths that a config defines and for which there is no option.
  unknown =
    options: path: value:
    if kind options == "option" then
      [ ]
    else if kind value == "if" then
      unknown options path value.content
    else if isAttrs value then
      concatLists (
        map (
          name:
          if options ? ${name} then unknown options.${name} (path ++ [ name ]) value.${name} else [ (path ++ [ name ]) ]
        ) (attrNames value)
      )
    else
      [ path ];

  union =
    left: right:
    if isAttrs left && isAttrs right && kind left != "option" then
      left // builtins.mapAttrs (name: value: if left ? ${name} then union left.${name} value else value) right
    else
      right;

  type = name: check: { inherit name check; merge = one; };
  one =
    path: values:
    if all (value: value == head values) values then
      head values
    else
      throw "The option `${dotted path}' has conflicting definition values";
in
rec {
  mkOption = attributes: attributes // { _type = "option"; };
  mkEnableOption =
    what:
    mkOption {
      type = types.bool;
      default = false;
      description = "Whether to enable ${what}.";
    };
  mkIf = condition: content: { _type = "if"; inherit condition content; };

  types = rec {
    bool = type "boolean" builtins.isBool;
    str = type "string" isString;
    port = type "16 bit unsigned integer" (value: builtins.isInt value && 0 <= value && value <= 65535);
    path = type "absolute path" (value: isPath value || isString value && builtins.substring 0 1 value == "/");
    package = type "package" (value: isAttrs value && value.type or "" == "derivation");
    enum = values: type "one of ${builtins.toJSON values}" (value: elem value values);
    nullOr = inner: type "null or ${inner.name}" (value: value == null || inner.check value);
    listOf = inner: type "list of ${inner.name}" (value: builtins.isList value && all inner.check value) // {
      merge = _path: concatLists;
    };
    attrsOf = inner:
      type "attribute set of ${inner.name}" (
        value: isAttrs value && all (name: inner.check value.${name}) (attrNames value)
      )
      // { merge = _path: foldl' union { }; };
    anything = type "anything" (_value: true) // { merge = _path: foldl' union { }; };
  };

  evalModules =
    { modules, specialArgs ? { } }:
    let
      arguments = specialArgs // { inherit config options; lib = import ./lib.nix; };
      load =
        module:
        let
          value = if isPath module then import module else module;
          called = if isFunction value then value arguments else value;
        in
        if called ? config || called ? options then
          { config = called.config or { }; options = called.options or { }; }
        else
          { config = called; options = { }; };
      loaded = map load modules;
      options = foldl' union { } (map (module: module.options) loaded);
      strangers = concatLists (map (module: unknown options [ ] module.config) loaded);
      value =
        path: option:
        let
          found = concatLists (map (module: definitions path [ ] module.config) loaded);
          held = builtins.filter (definition: all (condition: condition) definition.conditions) found;
          values = map (definition: definition.value) held;
          wrong = builtins.filter (candidate: !option.type.check candidate) values;
        in
        if wrong != [ ] then
          throw "A definition for option `${dotted path}' is not of type `${option.type.name}'"
        else if values != [ ] then
          option.type.merge path values
        else
          option.default or (throw "The option `${dotted path}' was accessed but has no value defined");
      walk =
        path: set:
        if kind set == "option" then
          value path set
        else
          listToAttrs (map (name: { inherit name; value = walk (path ++ [ name ]) set.${name}; }) (attrNames set));
      config =
        if length strangers > 0 then
          throw "The option `${dotted (head strangers)}' does not exist"
        else
          walk [ ] options;
    in
    { inherit config options; };
}
