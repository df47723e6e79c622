# A stand-in for `import nixpkgs { ... }`, for machines that can reach neither nixpkgs nor a cache. What is real: Nix
# itself, its fixed-output fetches (of file:// copies of the pinned archives), its store, its sandbox-free builds, and
# that a derivation finds only the programs and Python packages that it names. What is not: the tools are the host's
# (each package is a folder of wrappers round the programs of PATH), autoPatchelf does nothing, and anything that needs
# CUDA, a C library of nixpkgs or a network is only evaluated. host.nix is written by nix_host.py.
{ system, config ? { } }:
let
  host = import ./host.nix;
  lib = import ./lib.nix;
  inherit (builtins) concatStringsSep;

  build =
    name: environment: script:
    derivation (
      environment
      // {
        inherit name system;
        builder = "/bin/bash";
        # The shell must outlive its last program: Nix takes the end of the log for the end of the build.
        args = [ "-c" "set -euo pipefail\n${script}\n:" ];
      }
    );

  # A package of host programs: wrappers, so that a program finds the files beside itself.
  tools =
    name: programs:
    build name { PATH = host.path; inherit programs; } ''
      mkdir -p $out/bin
      for program in $programs; do
        real=$(type -P $program) || { echo "stand-in: this machine has no $program" >&2; exit 1; }
        printf '#!/bin/sh\nexec %s "$@"\n' "$real" >$out/bin/$program
        chmod +x $out/bin/$program
      done
    '';
  same = name: tools name [ name ];
  nothing = name: build name { PATH = host.path; } "mkdir -p $out/bin";

  base = tools "stand-in-stdenv" [
    "awk" "basename" "bash" "cat" "chmod" "cmp" "cp" "cut" "date" "diff" "dirname" "env" "find" "grep" "gzip" "head"
    "id" "install" "ln" "ls" "mkdir" "mktemp" "mv" "nproc" "patch" "readlink" "realpath" "rm" "sed" "sh" "sha256sum"
    "sleep" "sort" "stat" "tail" "tar" "tee" "touch" "tr" "true" "uname" "uniq" "wc" "xargs" "xz"
  ];

  runCommand =
    name: environment: script:
    let
      inputs = (environment.nativeBuildInputs or [ ]) ++ [ base ];
      path = concatStringsSep ":" (map (input: "${input}/bin") inputs);
    in
    build name (removeAttrs environment [ "passthru" ]) "export PATH=${path}\n${script}"
    // (environment.passthru or { });

  # The interpreter without its site packages; withPackages gives it copies of the named distributions and of what
  # these require, and nothing else.
  interpreter =
    name: site:
    build name { PATH = host.path; } ''
      mkdir -p $out/bin
      {
        echo '#!/bin/sh'
        ${if site == null then ":" else "echo 'export PYTHONPATH=\"\${PYTHONPATH:+$PYTHONPATH:}${site}\"'"}
        echo 'exec ${host.python} -s -S "$@"'
      } >$out/bin/python3
      chmod +x $out/bin/python3
    '';
  python = interpreter "python3" null // {
    inherit (host) pythonVersion;
    withPackages =
      choose:
      interpreter "python3-env" (
        build "python3-site" { PATH = host.path; } ''
          ${host.environment}/bin/python -B ${./copy_distributions.py} $out ${
            concatStringsSep " " (choose distributions)
          }
        ''
      );
  };
  distributions = lib.genAttrs [
    "hypothesis" "jsonschema" "numpy" "nvidia-ml-py" "pydantic" "pytest" "pytest-timeout" "pyyaml" "setuptools"
  ] (name: name);
in
assert config == { allowUnfree = true; };
{
  inherit runCommand lib;
  runtimeShell = "/bin/bash";
  "python${builtins.replaceStrings [ "." ] [ "" ] host.pythonVersion}" = python;
  "cudaPackages_${host.cudaRelease}" = {
    cuda_nvcc.version = host.cudaCompiler;
    cudatoolkit = nothing "cudatoolkit";
  };

  # Nix's own fetcher, told to read the copy that `make setup` or scripts/lib/fetch.py has put on this machine.
  fetchurl =
    { url, sha256, name ? baseNameOf url }:
    derivation {
      inherit name;
      system = "builtin";
      builder = "builtin:fetchurl";
      url = "file://${host.downloads}/${name}";
      urls = [ ];
      unpack = false;
      executable = false;
      outputHashMode = "flat";
      outputHashAlgo = "sha256";
      outputHash = sha256;
      preferLocalBuild = true;
    };

  fetchgit =
    { url, rev, hash, fetchSubmodules }:
    assert hash != "" && fetchSubmodules;
    nothing "source-${baseNameOf url}-${baseNameOf rev}";

  writeShellApplication =
    { name, text }:
    build name { PATH = host.path; inherit text; } ''
      mkdir -p $out/bin
      printf '#!/bin/bash\nset -euo pipefail\n%s' "$text" >$out/bin/${name}
      bash -n $out/bin/${name}
      chmod +x $out/bin/${name}
    '';
  mkShell =
    { packages, shellHook }:
    build "shell" { PATH = host.path; inherit packages shellHook; } "touch $out";

  stdenv.hostPlatform = { inherit system; };
  stdenv.cc = tools "gcc" [ "gcc" "g++" "cc" "c++" "cpp" "as" "ld" "ar" "nm" ] // {
    cc.lib = nothing "gcc-lib";
  };
  autoPatchelfHook = build "auto-patchelf-hook" { PATH = host.path; } ''
    mkdir -p $out/bin
    ln -s $(type -P true) $out/bin/autoPatchelf
  '';
  coreutils = base;
  gcc = tools "gcc" [ "gcc" "g++" ];
  git = same "git";
  gnumake = tools "gnumake" [ "make" ];
  ruff = same "ruff";
  shellcheck = same "shellcheck";
  unzip = build "unzip" { PATH = host.path; } ''
    mkdir -p $out/bin
    cat >$out/bin/unzip <<'END'
    #!/bin/sh
    # unzip -q -o ARCHIVE -d FOLDER
    exec ${host.python} -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[3]).extractall(sys.argv[5])' "$@"
    END
    chmod +x $out/bin/unzip
  '';
  cacert = nothing "cacert";
  ninja = nothing "ninja";
  nix = nothing "nix";
  numactl = nothing "numactl";
  zlib = nothing "zlib";
}
