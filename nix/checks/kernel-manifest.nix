# Kernel manifest: each committed cubin is of the sources, headers, flags and compiler that the tree has, by hash.
# Compiling them again is packages.kernels.
{ pkgs, python, source, ... }:
pkgs.runCommand "check-kernel-manifest"
  {
    nativeBuildInputs = [ python ];
    tree = source "moet-kernels" [ "kernels" "pins.toml" "scripts/lib" ];
  }
  ''
    cd $tree
    PYTHONPATH=scripts/lib python3 -B - <<'END' | tee $out
    import sys
    from pathlib import Path

    import kernel_manifest
    import pins

    table, root = pins.load(), Path.cwd()
    wanted = table.get("cuda.compiler"), table.get("cuda.kernel_architectures")
    problems = kernel_manifest.stale(root, root / "kernels", *wanted)
    print("\n".join(problems) or "kernels: every cubin is of these sources")
    sys.exit(bool(problems))
    END
  ''
