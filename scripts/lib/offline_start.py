"""Entry of a bundle's install.pyz: unpacks the tree that the bundle carries and goes on with its own installer.

    python3 BUNDLE/install.pyz FOLDER

FOLDER must not exist. The rest is `FOLDER/scripts/offline-bundle.sh install BUNDLE`, which may be run again by itself.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

import offline_manifest
import offline_parts
import offline_tree
from build_errors import FAILED, MISSING, USAGE, BuildError

SCRIPT = Path("scripts") / "offline-bundle.sh"


def require_machine(manifest: offline_manifest.Manifest) -> None:
    """Raise BuildError on a machine, or with a Python, that the bundle's packages are not for."""
    here = (platform.system(), platform.machine())
    if here != (manifest.system, manifest.machine):
        raise BuildError(f"the bundle is for {manifest.system} {manifest.machine}; this is {' '.join(here)}", MISSING)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != manifest.python:
        raise BuildError(f"the bundle is for Python {manifest.python}, this is {version}; run it with that", MISSING)


def start(bundle: Path, folder: Path) -> Path:
    """Unpack the tree to `folder`. Returns its installer. Raises BuildError."""
    manifest = offline_manifest.read(bundle)
    require_machine(manifest)
    if folder.exists():
        raise BuildError(f"{folder} exists; name a folder that does not, or run {folder / SCRIPT} install {bundle}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = folder.with_name(f".{folder.name}.parts")
    offline_parts.join(manifest, bundle, work, lambda text: print(f"offline: {text}", file=sys.stderr))
    offline_tree.unpack(work / offline_manifest.TREE, folder)
    # The installer goes on with these very files: they are moved, not made again.
    keep = folder / ".native" / "offline" / "install"
    keep.parent.mkdir(parents=True)
    shutil.move(work, keep)
    return folder / SCRIPT


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__, file=sys.stderr)
        sys.exit(USAGE)
    bundle, folder = Path(sys.argv[0]).resolve().parent, Path(sys.argv[1]).absolute()
    try:
        script = start(bundle, folder)
    except BuildError as error:
        print(f"offline: error: {error}", file=sys.stderr)
        sys.exit(error.code)
    except OSError as error:
        print(f"offline: error: {error}", file=sys.stderr)
        sys.exit(FAILED)
    os.environ["MOET_PYTHON"] = sys.executable
    os.execv(script, [str(script), "install", str(bundle)])
