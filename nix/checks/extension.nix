# The built extension imports by itself, knows its pins, and tells the revision that it was built from.
{ pkgs, python, moet-w2, pins, revision, ... }:
pkgs.runCommand "check-extension"
  {
    nativeBuildInputs = [ (python.withPackages (p: [ p.jsonschema p.numpy p.nvidia-ml-py p.pydantic p.pyyaml ])) ];
    expected = builtins.toJSON {
      inherit (revision) dirty;
      revision = revision.id;
      vllm = "${pins.vllm.version}+${pins.project.revision}.cuda";
    };
    site = "${moet-w2}/lib/python${python.pythonVersion}/site-packages";
  }
  ''
    PYTHONPATH=$site python3 -B - <<'END' | tee $out
    import importlib.metadata
    import json
    import os

    from moet_w2 import cli, pinned
    from moet_w2.kernels import cubins

    found = json.loads(importlib.metadata.distribution("moet-w2").read_text("revision.json"))
    found["vllm"] = pinned.load("cuda").vllm
    if found != json.loads(os.environ["expected"]):
        raise SystemExit(f"extension: error: built as {found}, expected {os.environ['expected']}")
    print(f"extension: {cli.__file__} of {found}")
    END
  ''
