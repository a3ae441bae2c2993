"""Exceptions: a mistake of the caller, or a fault of our own. A guest's failure is never one (see `job.Execution`).

    SpillboxError
    ├── BadRequest                  the caller must change something
    │   ├── InvalidPath
    │   ├── InvalidWorkspace
    │   ├── InvalidArguments
    │   ├── InvalidSource
    │   ├── NotFound
    │   │   ├── Expired
    │   │   └── NoSuchElement
    │   ├── ReadOnly
    │   ├── TooLarge
    │   ├── QuotaExceeded
    │   │   └── TenantFull
    │   ├── EditMismatch
    │   ├── IdReused
    │   ├── Interrupted
    │   ├── Denied
    │   ├── NotApproved
    │   └── ArgumentsChanged
    ├── InputNeeded                 the caller is asked something first, and calls again
    ├── OuterFailed                 a tool of another program could not be called, or did not answer
    │   ├── OuterError
    │   └── OuterTimeout
    ├── Busy                        try again later
    │   ├── Draining
    │   ├── LedgerLocked
    │   └── TooManyCalls
    └── ServiceFault                the operator must change something
        ├── ServiceFull
        ├── NoSandbox
        ├── GuestRootMissing
        ├── SetupFailed
        └── JailFailed
            └── JailLost

Each class has a stable ``code`` that clients may test; the message says what to do next.
"""

from typing import Any


class SpillboxError(Exception):
    """Base of all; ``code`` is stable, the message is for people and models."""

    code = "internal_error"


class BadRequest(SpillboxError):
    """The caller asked for something that can't be done as asked."""

    code = "bad_request"


class InvalidPath(BadRequest):
    """A path outside the workspace, or one that no file can have."""

    code = "invalid_path"


class InvalidWorkspace(BadRequest):
    """A workspace id that is not ``[A-Za-z0-9][A-Za-z0-9._-]{0,127}``."""

    code = "invalid_workspace"


class InvalidArguments(BadRequest):
    """Arguments that do not fit the tool's schema."""

    code = "invalid_arguments"


class NotFound(BadRequest):
    """No such file, workspace, tool or record."""

    code = "not_found"


class InvalidSource(BadRequest):
    """A file that is not the table it is taken for: the message names the byte, or what to say."""

    code = "invalid_source"


class Expired(NotFound):
    """A file under ``results/`` or ``errors/`` whose time is over."""

    code = "expired"


class NoSuchElement(NotFound):
    """A path expression that leads nowhere in its document."""

    code = "no_such_element"


class ReadOnly(BadRequest):
    """A path under ``results/`` or ``errors/``, which only the service writes."""

    code = "read_only"


class TooLarge(BadRequest):
    """Content over a size limit."""

    code = "too_large"


class QuotaExceeded(BadRequest):
    """The workspace would hold more bytes or files than its quota."""

    code = "quota_exceeded"


class TenantFull(QuotaExceeded):
    """The tenant would hold more bytes than its disk quota, in all of its workspaces and attachments together."""

    code = "tenant_full"


class EditMismatch(BadRequest):
    """The text to replace is not in the file exactly once."""

    code = "edit_mismatch"


class IdReused(BadRequest):
    """The id of a call was given before to another call of the workspace."""

    code = "id_reused"


class Interrupted(BadRequest):
    """The call of that id was begun and never finished."""

    code = "interrupted"


class Denied(BadRequest):
    """A tool that the settings forbid."""

    code = "denied"


class NotApproved(BadRequest):
    """A tool that needs a person's approval, and nobody gave it."""

    code = "not_approved"


class ArgumentsChanged(NotApproved):
    """What was approved is not what would be sent now."""

    code = "arguments_changed"


class InputNeeded(SpillboxError):
    """The call has not begun: ``request`` is what to ask the caller's user first, in the surface's own form.

    ``approval_id`` names an approval that stands for the next round.
    """

    code = "input_needed"

    def __init__(self, message: str, *, request: Any = None, approval_id: str | None = None) -> None:
        super().__init__(message)
        self.request = request
        self.approval_id = approval_id


class OuterFailed(SpillboxError):
    """A tool of another program could not be called; the message says whether it may have done its work."""

    code = "upstream_failed"


class OuterError(OuterFailed):
    """The other program answered with an error of its protocol: its number, its words, its data."""

    code = "upstream_error"

    def __init__(self, message: str, *, number: int = -32603, data: Any = None) -> None:
        super().__init__(message)
        self.number = number
        self.data = data


class OuterTimeout(OuterFailed):
    """The other program did not answer in time; it was told to stop."""

    code = "upstream_timeout"


class Busy(SpillboxError):
    """All slots are taken and the queue is full."""

    code = "busy"

    def __init__(self, message: str, *, retry_after_seconds: int = 2) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Draining(Busy):
    """The service is being stopped: it finishes the calls under way and takes no new ones."""

    code = "draining"


class LedgerLocked(Busy):
    """Another program holds the records locked; the same again may succeed at once."""


class TooManyCalls(Busy):
    """The tenant has made as many calls as it may in a minute."""

    code = "rate_limited"


class ServiceFault(SpillboxError):
    """A fault of the service or its host."""

    code = "internal_error"


class ServiceFull(ServiceFault):
    """The disk quota of the whole service is used up, or its disk is full."""

    code = "service_full"


class NoSandbox(ServiceFault):
    """This service runs no scripts, by its settings."""

    code = "no_sandbox"


class GuestRootMissing(ServiceFault):
    """`spillbox setup` has not been run, or was run by another version."""

    code = "setup_needed"


class SetupFailed(ServiceFault):
    """The guest root could not be built."""

    code = "setup_failed"


class JailFailed(ServiceFault):
    """The jail could not be started."""

    code = "jail_failed"


class JailLost(JailFailed):
    """The jail ended before its script could start; another one can run it."""


def error_of(code: str, message: str) -> SpillboxError:
    """An error of the class that has this code, as when an answer is given again."""

    def below(kind: type[SpillboxError]) -> list[type[SpillboxError]]:
        return [kind, *(inner for child in kind.__subclasses__() for inner in below(child))]

    return next((kind for kind in below(SpillboxError) if kind.code == code), SpillboxError)(message)
