"""Errors meant for the person at the keyboard: one line that names the thing, the value and the remedy."""


class MoetError(Exception):
    """Base of every error of this package that a user can mend. ``str(error)`` is the whole message."""


class ConfigError(MoetError):
    """A setting is unknown, malformed or contradicts another one."""


class CheckpointError(MoetError):
    """The checkpoint on disk is not what its configuration says, or not what this package serves."""


class UnsupportedError(MoetError):
    """A combination that this package refuses rather than runs wrong."""


class HostMemoryError(MoetError):
    """Locked, NUMA-local host memory could not be had as asked for."""


class RecipeError(MoetError):
    """A recipe file is malformed or asks for something its profile does not allow."""


class CacheError(MoetError):
    """A cache folder is missing, in use, or not what it says."""


class AuditError(MoetError):
    """An audit file is missing, malformed or disagrees with the recipe."""


class KernelError(MoetError):
    """A compiled CUDA kernel is missing, is not the one that was built, or does not run on this GPU."""
