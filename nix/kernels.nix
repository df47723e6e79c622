# The cubins, compiled again from kernels/src by the pinned compiler, and compared byte for byte with the committed
# ones. Fails and names each that differs.
{ pkgs, pins, python, source, cuda-toolkit, ... }:
pkgs.runCommand "moet-kernels"
  {
    nativeBuildInputs = [ python pkgs.stdenv.cc ];
    CUDA_HOME = cuda-toolkit;
    tree = source "moet-kernels" [ "kernels" "pins.toml" "scripts/lib" ];
  }
  ''
    python3 -B $tree/scripts/lib/kernel_command.py --force --out $out
    diff -rq $out/cubins $tree/kernels/cubins && diff $out/MANIFEST.json $tree/kernels/MANIFEST.json || {
      echo "kernels: error: committed cubins are not what the sources give; run \`make kernels\`" >&2
      exit 1
    }
  ''
