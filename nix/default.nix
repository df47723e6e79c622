# The flake's outputs, put together. Each file here takes what it needs from `scope` and says above its first line
# what it is for.
{ self, nixpkgs, deepgemm }:
let
  pins = builtins.fromTOML (builtins.readFile ../pins.toml);
  inherit (builtins) replaceStrings;
  system = replaceStrings [ "Linux" ] [ "${pins.platform.machine}-linux" ] pins.platform.system;
  pkgs = import nixpkgs {
    inherit system;
    config.allowUnfree = true; # CUDA
  };

  call = file: import file scope;
  scope = {
    inherit pkgs pins deepgemm;
    inherit (nixpkgs) lib;
    # A stand-in for nixpkgs may bring its own, since this one asks the network while it is evaluated.
    fetchGit = nixpkgs.lib.fetchGit or builtins.fetchGit;
    lock = builtins.fromJSON (builtins.readFile ../flake.lock);
    python = pkgs."python${replaceStrings [ "." ] [ "" ] pins.python.cuda}";
    revision = import ./revision.nix { inherit self; };
    source = import ./source.nix;
    pinned = call ./pinned.nix;
    module = import ./module self;

    vllm-source = call ./vllm-source.nix;
    cuda-toolkit = call ./cuda-toolkit.nix;
    kernels = call ./kernels.nix;
    moet-w2 = call ./moet-w2.nix;
    python-cuda = call ./python-cuda.nix;
    cmake-sources = call ./cmake-sources.nix;
    vllm = call ./vllm.nix;
    moet = call ./moet.nix;
  };
  app = file: {
    type = "app";
    program = "${call file}/bin/${baseNameOf (toString (call file).name)}";
  };
in
{
  packages.${system} = {
    inherit (scope) vllm-source kernels moet-w2;
    default = scope.moet;
  };
  apps.${system} = {
    serve = app ./apps/serve.nix;
    validate = app ./apps/validate.nix;
    doctor = app ./apps/doctor.nix;
    default = app ./apps/serve.nix;
  };
  devShells.${system}.default = call ./shell.nix;
  checks.${system} = {
    extension = call ./checks/extension.nix;
    formatting = call ./checks/formatting.nix;
    kernel-manifest = call ./checks/kernel-manifest.nix;
    lock = call ./checks/lock.nix;
    patch = call ./checks/patch.nix;
    service = call ./checks/service.nix;
    unit-tests = call ./checks/unit-tests.nix;
    inherit (scope) vllm-source;
  };
  nixosModules.default = scope.module;
}
