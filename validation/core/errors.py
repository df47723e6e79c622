"""Why a validation could not be run or judged, as one line with the thing, the value and the remedy."""

from __future__ import annotations

from moet_w2.errors import MoetError


class CaseError(MoetError):
    """A case file is malformed."""


class RunError(MoetError):
    """A run cannot be started, resumed or written."""


class ServerError(MoetError):
    """The server could not be asked."""


class Refusal(ServerError):
    """What was to be asked cannot be had of this server, however often it is asked."""


class ReplayError(MoetError):
    """A recording is damaged, was edited, or belongs to other cases."""
