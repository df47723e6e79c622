"""The file that receives a result, looked at before anything is measured for it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def unwritable(path: Path) -> str | None:
    """Why no result could be written there, with the remedy, or None. Makes the file's folder, as the writing would."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        if path.is_dir():
            why = "it is a folder"
        elif path.exists() and not os.access(path, os.W_OK):
            why = "it may not be overwritten"
        else:
            return None
    except OSError as error:
        why = error.strerror
    return f"--out {path} cannot be written ({why}); name a file in a folder that can be written"
