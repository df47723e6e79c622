# What serves: the Python environment, vLLM compiled natively, and the extension, with bin/moet, bin/vllm and
# bin/python. Compilers that vLLM runs while it serves (Triton, DeepGEMM) find gcc and nvcc.
{ pkgs, pins, lib, python, pinned, revision, cuda-toolkit, moet-w2, python-cuda, vllm, ... }:
pkgs.runCommand "moet-${pins.vllm.version}-${pins.project.revision}"
  {
    nativeBuildInputs = [ python ];
    site = "lib/python${python.pythonVersion}/site-packages";
    path = lib.makeBinPath [ pkgs.stdenv.cc pkgs.coreutils pkgs.ninja ];
    passthru = { inherit revision vllm; };
  }
  ''
    mkdir -p $out/bin
    PYTHONPATH=${pinned "tools.pip"} python3 -m pip install --no-deps --no-index --no-compile --no-cache-dir \
      --target $out/$site ${vllm}/*.whl
    cp -r ${moet-w2}/$site/. $out/$site
    for entry in python: python3: 'moet:-m moet_w2.cli' 'vllm:-m vllm.entrypoints.cli.main'; do
      {
        echo '#!${pkgs.runtimeShell}'
        echo "export PYTHONPATH=$out/$site\''${PYTHONPATH:+:\$PYTHONPATH}"
        echo "export PATH=$out/bin:\$PATH:$path"
        echo 'export CUDA_HOME="''${CUDA_HOME:-${cuda-toolkit}}"'
        echo 'export LD_LIBRARY_PATH="/run/opengl-driver/lib''${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"'
        echo "exec ${python-cuda}/bin/python3 ''${entry#*:} \"\$@\""
      } >$out/bin/''${entry%%:*}
    done
    chmod +x $out/bin/*
  ''
