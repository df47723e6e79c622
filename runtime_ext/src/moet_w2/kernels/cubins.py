"""Which compiled file a device gets, and whether it is the one that was built.

Cubins are compiled ahead of time from kernels/src (scripts/kernels.sh); kernels/MANIFEST.json names each with its
sha256. Both appear in this package below ``prebuilt``: links in a source tree, copies in an installed wheel.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from ..errors import KernelError

PREBUILT = Path(__file__).parent / "prebuilt"
FORMAT = 1
"""Of the manifest."""


def find(source: str, capability: tuple[int, int], folder: Path = PREBUILT) -> bytes:
    """The cubin of one kernel source for one device.

    Args:
        source: a file of kernels/src, without its suffix.
        capability: the device's compute capability, (major, minor).
        folder: holds MANIFEST.json and ``cubins/<architecture>/<source>.cubin``.

    Raises:
        KernelError: there is no such source, none of its cubins runs on the device, or the file is missing or not
            the one that the manifest names.
    """
    built = _manifest(folder)
    names = {arch: name for name in built for arch, _, of in [name.partition("/")] if of == source}
    if not names:
        known = ", ".join(sorted({name.partition("/")[2] for name in built})) or "none"
        raise KernelError(f"{folder / 'MANIFEST.json'} has no kernel source {source!r}; it has: {known}")
    arch = architecture(capability, list(names))
    if arch is None:
        raise KernelError(
            f"kernels of {source!r} do not run on compute capability {capability[0]}.{capability[1]}: compiled are "
            f"{', '.join(names)}; add the architecture to cuda.kernel_architectures in pins.toml and run "
            "`make kernels`, or serve without --quantization moet_w2"
        )
    return _read(folder / "cubins" / arch / f"{source}.cubin", built[names[arch]])


def architecture(capability: tuple[int, int], available: list[str]) -> str | None:
    """The best of some architectures for a device, or None if code of none of them runs there.

    A cubin runs on its own architecture and on later minor versions of the same major one; one whose name ends in
    ``a`` uses features of exactly one architecture and runs on no other (CUDA C++ Programming Guide, "Binary
    Compatibility" and "Architecture-Specific Features").

    Args:
        capability: (major, minor).
        available: names such as ``sm_90a``.

    Raises:
        KernelError: a name is none of an architecture.
    """
    best: tuple[int, bool, str] | None = None
    for name in available:
        parts = re.fullmatch(r"sm_(\d+)(\d)(a?)", name)
        if not parts:
            raise KernelError(f"{name!r} is no architecture such as sm_80 or sm_90a; run `make kernels` again")
        major, minor, specific = int(parts[1]), int(parts[2]), bool(parts[3])
        runs = (major, minor) == capability if specific else major == capability[0] and minor <= capability[1]
        if runs and (best is None or (minor, specific) > best[:2]):
            best = (minor, specific, name)
    return best[2] if best else None


def _manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """``architecture/source`` -> its entry."""
    path = folder / "MANIFEST.json"
    remedy = "run `make kernels`, or install the distribution again"
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise KernelError(f"{path} does not exist; {remedy}") from None
    except ValueError as error:
        raise KernelError(f"{path} is not JSON ({error}); {remedy}") from None
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise KernelError(f"{path} has format {found}, this version reads {FORMAT}; {remedy}")
    return content["cubins"]


def _read(path: Path, entry: dict[str, Any]) -> bytes:
    """The file's bytes, which are those that the manifest names."""
    remedy = "restore it from git or run `make kernels`, or install the distribution again"
    try:
        image = path.read_bytes()
    except OSError as error:
        raise KernelError(f"{path} cannot be read ({error.strerror}); {remedy}") from None
    actual = hashlib.sha256(image).hexdigest()
    if actual != entry["sha256"]:
        raise KernelError(f"{path} has sha256 {actual}, the manifest says {entry['sha256']}; {remedy}")
    return image
