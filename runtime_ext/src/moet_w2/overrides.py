"""What one machine may change about a recipe, and the one reader of the launcher's own variables."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import api_key, envs
from .errors import ConfigError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000

OWN_PREFIXES = ("MOET_", "W2_")
OWN_VARIABLES = ("MOET_PLANES_CACHE_DIR", "MOET_STORE_DIR", "W2_AUDIT_PATH")
"""The launcher's variables that carry a prefix of ours: a name that is nearly one of them is a mistake."""
SCRIPT_VARIABLES = ("MOET_ENV", "MOET_PYTHON", "MOET_READY_SECONDS", "MOET_ROOT", "MOET_RUN_DIR", "MOET_STOP_SECONDS")
"""Those of scripts/, which are not read here."""


@dataclass(frozen=True)
class Overrides:
    """What one machine may change about a recipe. None keeps the recipe's value, or the default.

    Geometry, layers and limits are not here: they belong to the recipe, and the audit is judged by them.

    Attributes:
        cache_root: folder below which a server keeps what it builds; ``root`` is this or its default.
        has_api_key: whether clients must send a key; the key itself is nowhere in here.
    """

    model_path: Path | None = None
    served_model_name: str | None = None
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    cuda_visible_devices: str | None = None
    audit_path: Path | None = None
    cache_root: Path | None = None
    store_dir: Path | None = None
    planes_cache_dir: Path | None = None
    has_api_key: bool = False
    default_cache_root: Path = field(default_factory=lambda: _default_cache_root({}))

    @property
    def root(self) -> Path:
        """CACHE_ROOT, given or not, absolute."""
        return (self.cache_root or self.default_cache_root).absolute()


def read(environ: Mapping[str, str]) -> Overrides:
    """The launcher's own variables; the only place that reads them (``envs`` reads those of the server).

    The two folders may also be given under the names that the server knows them by.

    Raises:
        ConfigError: PORT is no port, a path begins with ~, or the environment holds an unknown setting of the server
            or a misspelt variable of the launcher.
    """
    for name in sorted(environ):
        if name.startswith(OWN_PREFIXES) and name not in OWN_VARIABLES + SCRIPT_VARIABLES:
            for near in difflib.get_close_matches(name, OWN_VARIABLES, n=1, cutoff=0.8):
                raise ConfigError(f"{name} is not a variable of the launcher: did you mean {near}? Otherwise unset it")
    port = environ.get("PORT") or str(DEFAULT_PORT)
    if not (port.isascii() and port.isdecimal()):
        raise ConfigError(f"PORT={port!r} is not a port; use a number from 1 to 65535")
    settings = envs.read(environ)

    def path(name: str, otherwise: str | None = None) -> Path | None:
        text = environ.get(name) or otherwise
        if text and text.startswith("~"):
            raise ConfigError(f"{name}={text!r} begins with a ~ that no shell has expanded; write the whole path")
        return Path(text) if text else None

    return Overrides(
        model_path=path("MODEL_PATH"),
        served_model_name=environ.get("SERVED_MODEL_NAME") or None,
        host=environ.get("HOST") or DEFAULT_HOST,
        port=int(port),
        cuda_visible_devices=environ.get("CUDA_VISIBLE_DEVICES"),
        audit_path=path("W2_AUDIT_PATH"),
        cache_root=path("CACHE_ROOT"),
        store_dir=path("MOET_STORE_DIR", settings.store_dir),
        planes_cache_dir=path("MOET_PLANES_CACHE_DIR", settings.planes_cache),
        has_api_key=bool(environ.get(api_key.VARIABLE)),
        default_cache_root=_default_cache_root(environ),
    )


def _default_cache_root(environ: Mapping[str, str]) -> Path:
    """CACHE_ROOT where nobody names it, after the XDG base directory specification."""
    home = environ.get("XDG_CACHE_HOME", "")
    # The specification has relative paths ignored.
    return (Path(home) if home.startswith("/") else Path.home() / ".cache") / "moet"
