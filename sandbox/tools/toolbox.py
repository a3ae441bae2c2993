"""All tools over one set of workspaces, one runtime and one ledger: what every surface calls."""

import asyncio
import errno
import json
import logging
import os
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ValidationError
from sqlalchemy.exc import SQLAlchemyError

from sandbox import guest_root, retention
from sandbox.approvals import MOST_WAITING, WAIT_SECONDS, Approvals
from sandbox.attachments import Attachments
from sandbox.catalog import Catalog, SavedFileInfo
from sandbox.database import PAUSE_SECONDS, TRIES, opening
from sandbox.documents.check import OFFICE_LIBRARIES, checking
from sandbox.errors import (
    Busy,
    Draining,
    InputNeeded,
    Interrupted,
    InvalidArguments,
    LedgerLocked,
    NotFound,
    ServiceFault,
    ServiceFull,
    SetupFailed,
    SpillboxError,
    error_of,
)
from sandbox.guest_root import Guest, GuestRoot
from sandbox.job import Execution, Job, Limits
from sandbox.observers import Observers
from sandbox.records import Acceptance, Record, Records, State
from sandbox.retention import Cleaned, Gone
from sandbox.runtimes.base import Inspection, Runtime, Wrapper
from sandbox.runtimes.containers import ContainerSettings, DockerRuntime
from sandbox.runtimes.none import NoRuntime
from sandbox.runtimes.nsjail import NsjailRuntime
from sandbox.runtimes.streams import OnOutput
from sandbox.runtimes.warm import WarmRuntime
from sandbox.spills.spill import Reader, Received, Spill, Spiller, SpillSettings
from sandbox.tables.slices import NotJson
from sandbox.threads import on_thread
from sandbox.tools import builders, delegate, files, navigation, run_python, shown
from sandbox.tools.arguments import readable
from sandbox.tools.outer import Approve, Caller, OuterCall, OuterTool, OuterTools
from sandbox.tools.permit import Desk, Expanded, permit
from sandbox.tools.queue import Queue
from sandbox.tools.registry import AnyTool, Call, OnProgress, Sign
from sandbox.workspace import Disk, Workspace, Workspaces
from sandbox.workspace.disk import used_of_tenant

T = TypeVar("T")
Answer = TypeVar("Answer", BaseModel, "Handed")

_log = logging.getLogger(__name__)
_SPARE_DISK_BYTES = 256 << 20
"""Left free on the disk, whatever is written."""
_OF_SAVED = ("path", "format", "rows", "columns", "rows_at", "complete")
_MOST_PAUSE_SECONDS = 5
KEEP_RESULTS = timedelta(days=7)
OUTER, UNKNOWN = "outer", "unknown"
"""What observers are told in the place of names that others chose: of a tool of another program, and of none."""
CALL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


class Claiming(Wrapper):
    """Claims the workspace in the ledger for a run, until its call is finished there."""

    def __init__(self, inner: Runtime, records: Records) -> None:
        super().__init__(inner)
        self._records = records

    async def run(
        self, job: Job, workspace: Workspace, *, run_id: str, on_output: OnOutput | None = None,
        final: Awaitable[Job] | None = None, inspection: Inspection | None = None,
    ) -> Execution:  # fmt: skip
        if job.keeps_outputs:
            await in_ledger(self._records.claim, workspace.id, run_id)
        return await super().run(job, workspace, run_id=run_id, on_output=on_output, final=final, inspection=inspection)


class Watching(Wrapper):
    """Tells observers of the runs of scripts; checks and readers, programs of ours, are a part of their call."""

    def __init__(self, inner: Runtime, observers: Observers) -> None:
        super().__init__(inner)
        self._observers = observers

    async def run(
        self, job: Job, workspace: Workspace, *, run_id: str, on_output: OnOutput | None = None,
        final: Awaitable[Job] | None = None, inspection: Inspection | None = None,
    ) -> Execution:  # fmt: skip
        if not job.keeps_outputs:
            return await super().run(
                job, workspace, run_id=run_id, on_output=on_output, final=final, inspection=inspection
            )
        with self._observers.watch("run", self.name) as running:
            execution = await super().run(
                job, workspace, run_id=run_id, on_output=on_output, final=final, inspection=inspection
            )
            running.name, running.outcome = execution.runtime, execution.status.value
            return execution


class Toolbox:
    """The tools of a service or an agent loop. Use it in an ``async with``; `open_toolbox` makes one.

    `call` validates arguments, records the call, and gives the tool's output; a mistake of the caller is a `SpillboxError`.
    """

    def __init__(
        self, *, workspaces: Workspaces, runtime: Runtime, records: Records, catalog: Catalog, attachments: Attachments,
        guest: Guest | None, spills: SpillSettings = SpillSettings(), slots: int | None = None,  # noqa: B008  frozen
        queue_length: int = 128, tenant_slots: int | None = None,
        keep_results: timedelta = KEEP_RESULTS, sign: Sign = str, approve: Approve | None = None,
        approval_seconds: float = WAIT_SECONDS, tenant_approvals: int = MOST_WAITING,
    ) -> None:  # fmt: skip
        self.workspaces = workspaces
        self.records = records
        self.catalog = catalog
        self.attachments = attachments
        self.spiller = Spiller(spills)
        self.keep_results = keep_results
        self.sign = sign
        self.queue = Queue(slots=slots or os.cpu_count() or 1, length=queue_length, tenant_slots=tenant_slots)
        self.limits = workspaces.limits
        self._guest = guest
        self.observers = Observers()
        self.runtime: Runtime = Watching(Claiming(runtime, records), self.observers)
        scripts = [] if guest is None else [run_python.tool(guest.python_version, guest.libraries, self.limits)]
        all_of_them = (*scripts, *files.TOOLS, *navigation.TOOLS, *builders.TOOLS, *shown.TOOLS)
        self.tools: dict[str, AnyTool] = {tool.name: tool for tool in all_of_them}
        self.outer: OuterTools | None = None
        """Tools of other programs, if someone offers them: see `OuterTools`."""
        self.approvals = Approvals(records.database, wait_seconds=approval_seconds, most_waiting=tenant_approvals)
        self.desk = Desk(self.approvals, approve)
        calling = delegate.Delegation(self.tools, lambda: self.outer, self.desk, records, self._hand_out)
        self.tools[delegate.NAME] = delegate.tool(calling)
        self._under_way: dict[tuple[str, str], asyncio.Task[BaseModel]] = {}
        self._under_way_outer: dict[asyncio.Future[None], asyncio.Timeout] = {}
        """Calls in their callers' own tasks: when each ends, and the clock that stops it."""
        self._paying: asyncio.Task[None] | None = None
        self.is_draining = False
        self.drained = asyncio.Event()
        """For what would go on without end: no call is under way any more, and there will be none."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop calls that are under way, and let go of the runtime and the ledger."""
        await self.drain(0)
        if self._paying is not None:
            self._paying.cancel()
        with suppress(SQLAlchemyError, Busy, ServiceFull):
            await in_ledger(self.records.pay)
        await self.runtime.close()
        self.records.close()

    async def drain(self, seconds: float) -> int:
        """Take no more calls, wait so long for those that are under way, and stop the rest; gives how many these were."""
        self.is_draining = True
        calls: set[asyncio.Future[Any]] = {*self._under_way.values(), *self._under_way_outer}
        late = (await asyncio.wait(calls, timeout=seconds))[1] if calls else set()
        for task in self._under_way.values():
            task.cancel()
        for clock in self._under_way_outer.values():
            if not clock.expired():
                clock.reschedule(0)
        if late:
            await asyncio.wait(late)
        self.drained.set()
        return len(late)

    def _why_stopped(self) -> str:
        if self.is_draining:
            return "The service was stopped before the call was done. Try it again with a new id when the service is up again."
        return "The call was stopped."

    def require_taking(self) -> None:
        """Raises `Draining` if no more calls are taken."""
        if self.is_draining:
            raise Draining("The service is being stopped and takes no new calls. Try again when it is up again.")

    async def call(
        self, name: str, workspace_id: str, arguments: Mapping[str, Any], *,
        call_id: str | None = None, on_output: OnOutput | None = None, on_progress: OnProgress | None = None,
        caller: Caller = Caller(),  # noqa: B008  frozen
    ) -> BaseModel:  # fmt: skip
        """Call a tool by name. The same ``call_id`` again gives the same answer without doing it again.

        If the caller is cancelled, a call that has begun is still finished and recorded; `cancel` stops it, and whoever waits
        for it then gets `Interrupted`.
        """
        checked = self.check_call(name, workspace_id, arguments)
        with self.observers.watch("tool", name) as calling:
            output = await self._called(*checked, arguments, call_id, on_output, on_progress, caller)
            calling.outcome = _status_of(output)
            return output

    async def _called(
        self, tool: AnyTool, given: BaseModel, workspace: Workspace, arguments: Mapping[str, Any], call_id: str | None,
        on_output: OnOutput | None, on_progress: OnProgress | None, caller: Caller,
    ) -> BaseModel:  # fmt: skip
        if call_id is None:
            call_id = new_call_id()
        elif not CALL_ID.fullmatch(call_id):
            raise InvalidArguments("The id of a call is 1 to 128 letters, digits, '.', '_', ':' or '-'.")
        try:
            acceptance = await self._accept(call_id, workspace.id, tool.name, arguments, caller.identity)
        except RecursionError:
            raise InvalidArguments(f"The arguments of {tool.name} are nested too deeply.") from None
        if acceptance is Acceptance.DONE:
            return _answer_again(tool, self.records.get(workspace.id, call_id))
        if acceptance is Acceptance.MINE:
            call = self.call_of(call_id, workspace, on_output=on_output, on_progress=on_progress, caller=caller)
            task = asyncio.create_task(self._recorded(call.workspace.id, call_id, lambda: tool.function(call, given)))
            self._under_way[workspace.id, call_id] = task
            task.add_done_callback(partial(self._note_ended, (workspace.id, call_id)))
        elif (workspace.id, call_id) in self._under_way:
            task = self._under_way[workspace.id, call_id]
        else:
            raise Busy(f"The call {call_id} is being done by another service.")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if _is_cancelled_itself():
                raise
            raise Interrupted(self._why_stopped()) from None

    def _note_ended(self, key: tuple[str, str], task: asyncio.Task[BaseModel]) -> None:
        if self._under_way.get(key) is task:  # its id may have been taken on again while it waited for the ledger
            del self._under_way[key]

    async def cancel(self, workspace_id: str, call_id: str) -> None:
        """Stop a call that is under way, and wait until it has stopped; without effect if there is none."""
        task = self._under_way.get((workspace_id, call_id))
        if task is not None:
            await asyncio.sleep(0)  # a task that has not begun would end without a word in the ledger
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def call_of(
        self, call_id: str, workspace: Workspace, *, on_output: OnOutput | None = None,
        on_progress: OnProgress | None = None, caller: Caller = Caller(),  # noqa: B008  frozen
    ) -> Call:  # fmt: skip
        """What a tool's function is given."""
        return Call(
            call_id, workspace, self.runtime, self.queue, self.limits, self.catalog, self.attachments, self.sign,
            on_output, on_progress, caller, self.observers,
        )  # fmt: skip

    async def call_outer(self, tool: OuterTool, outer_call: OuterCall) -> "Handed":
        """Call a tool of another program for an agent: judged, recorded, its long result saved.

        Raises what `permit` and the tool's ``send`` raise. If the caller is cancelled, so is the call, which saves nothing
        afterwards.
        """
        self.require_taking()
        workspace = self.workspaces.open(outer_call.workspace_id)
        call_id = new_call_id()
        caller = outer_call.caller
        await self._accept(call_id, workspace.id, tool.name, outer_call.arguments, caller.identity)

        async def work() -> Handed:
            expanded = Expanded(outer_call.arguments)
            grant = await permit(
                self.desk, tool.name, tool.permission, expanded,
                workspace_id=workspace.id, call_id=call_id, caller=caller,
            )  # fmt: skip
            received = await grant.spend(expanded, lambda: tool.send(outer_call))
            if not tool.spill or caller.surface not in self.spiller.settings.surfaces:
                return Handed(received, None)
            return Handed(received, await self._spilled(tool, outer_call, received, sees_pictures=True))

        with self.observers.watch("tool", OUTER):
            async with self._stoppable():
                return await self._recorded(workspace.id, call_id, work)

    @asynccontextmanager
    async def _stoppable(self) -> AsyncIterator[None]:
        """For a call in its caller's own task, so that `drain` knows of it."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        clock = asyncio.timeout(None)
        try:
            async with clock:
                self._under_way_outer[ended] = clock
                yield
        except TimeoutError:
            if not clock.expired():
                raise
            raise Interrupted(self._why_stopped()) from None
        finally:
            del self._under_way_outer[ended]
            ended.set_result(None)

    async def _hand_out(self, tool: OuterTool, outer_call: OuterCall) -> Spill:
        return await self._spilled(tool, outer_call, await tool.send(outer_call))

    async def _spilled(
        self, tool: OuterTool, outer_call: OuterCall, received: Received, *, sees_pictures: bool = False
    ) -> Spill:
        caller = outer_call.caller
        reader = Reader(caller.surface, caller.name, caller.is_mcp, tool.inline_bytes, sees_pictures)
        return await self._spill(outer_call.workspace_id, received, reader)

    async def spill(self, workspace_id: str, received: Received, reader: Reader = Reader()) -> Spill:  # noqa: B008  frozen
        """Save a tool's result if it is long; gives what to hand to the model. See `Spiller.spill`.

        Raises `InvalidArguments` for a ``result`` that is no MCP tool result.
        """
        self.require_taking()
        return await self._spill(workspace_id, received, reader)

    async def _spill(self, workspace_id: str, received: Received, reader: Reader) -> Spill:
        with self.observers.watch("spill", "spill") as spilling:
            spill = await self._saved(workspace_id, received, reader)
            spilling.outcome = "saved" if spill.spilled else "inline"
            if spill.spilled:
                spilling.amounts = {"bytes": spill.bytes}
            return spill

    async def _saved(self, workspace_id: str, received: Received, reader: Reader) -> Spill:
        workspace = self.workspaces.open(workspace_id)

        def work() -> Spill:
            try:
                spill = self.spiller.spill(workspace, received, reader)
            except NotJson as fault:
                raise InvalidArguments(f"result is not JSON: {fault}.") from None
            return spill if spill.path is None else self._with_its_files_known(workspace, received.tool, spill)

        if received.size <= self.spiller.settings.over_characters:
            return work()  # it is no file, and takes less than handing it to a thread
        # The tool has done its work: its result is not refused.
        async with self.queue.memory(workspace.id, received.size, always=True):
            return await on_thread(work)

    def _with_its_files_known(self, workspace: Workspace, tool: str, spill: Spill) -> Spill:
        """The spill, its files being noted in the catalog; where that fails it says so."""
        now = datetime.now(UTC)
        try:
            known = SavedFileInfo(tool=tool, saved_at=now, **spill.model_dump(include=set(_OF_SAVED)))
            self.catalog.add_saved(workspace.id, known)
            for file in spill.also:
                self.catalog.add_saved(workspace.id, SavedFileInfo(path=file.path, tool=tool, saved_at=now))
        except (SQLAlchemyError, LedgerLocked, ServiceFull) as fault:
            _log.exception("the result %s of the workspace %s is not in the catalog", spill.path, workspace.id)
            note = (
                f"What is known of {spill.path} could not be kept ({type(fault).__name__}); builders may need rows_at."
            )
            return spill.model_copy(update={"warnings": (*spill.warnings, note)})
        return spill

    async def clean(self, gone: Gone = ()) -> Cleaned:
        """Remove saved results and errors whose time is over, and what crashes left; see `retention.clean`."""
        with self.observers.watch("clean", "clean") as cleaning:
            cleaned = await asyncio.to_thread(
                retention.clean, self.workspaces, self.catalog, self.attachments, keep=self.keep_results, gone=gone
            )
            cleaning.amounts = {"files": cleaned.files, "bytes": cleaned.bytes}
            return cleaned

    def check_call(
        self, name: str, workspace_id: str, arguments: Mapping[str, Any]
    ) -> tuple[AnyTool, BaseModel, Workspace]:
        """The tool, its validated input, and the workspace of a call; raises what `call` would raise before doing it."""
        try:
            self.require_taking()
            return self._checked(name, workspace_id, arguments)
        except SpillboxError:
            with self.observers.watch("tool", name if name in self.tools else UNKNOWN):
                raise

    def _checked(
        self, name: str, workspace_id: str, arguments: Mapping[str, Any]
    ) -> tuple[AnyTool, BaseModel, Workspace]:
        tool = self.tools.get(name)
        if tool is None:
            raise NotFound(f"There is no tool {name[:80]!a}. There are: {', '.join(self.tools)}.")
        try:
            given = tool.input.model_validate(dict(arguments))
        except ValidationError as fault:
            raise InvalidArguments(readable(name, tool.input, fault)) from None
        return tool, given, self.workspaces.open(workspace_id)

    def require_guest_root(self) -> None:
        """Raises `GuestRootMissing` if jails are made of one, and it is gone since the start."""
        if isinstance(self._guest, GuestRoot):
            guest_root.load(self._guest.path)

    async def try_documents(self) -> Execution:
        """Build one document of each kind in a jail and check them."""
        with self.workspaces.scratch() as workspace:
            job = Job(script_path=f"{guest_root.PROGRAMS}/try_documents.py", libraries=OFFICE_LIBRARIES)
            async with checking(self.runtime, workspace, (), run_id="try") as check:
                execution = await self.runtime.run(job, workspace, run_id="try", inspection=check.inspection)
                documents = await check.of(execution.files)
        return execution.model_copy(update={"documents": documents})

    async def _recorded(self, workspace_id: str, call_id: str, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Do what was accepted under this id, and write down what came of it."""
        status = "internal_error"
        answer = _problem(status, "The service made a mistake. Use a new id to try again.")
        is_begun = True
        try:
            output = await work()
            status = _status_of(output)
            answer = output.model_dump_json()
        except (Busy, ServiceFault, InputNeeded):
            # Not begun, or by no fault of the call: the same id can be tried again.
            is_begun = False
            raise
        except SpillboxError as fault:
            status, answer = fault.code, _problem(fault.code, str(fault))
            raise
        except asyncio.CancelledError:
            status, answer = "interrupted", _problem("interrupted", self._why_stopped())
            raise
        finally:
            this = (workspace_id, call_id)
            how = (
                partial(self.records.finish, *this, status, answer) if is_begun else partial(self.records.forget, *this)
            )
            self._settle(call_id, how)
        return output

    async def _accept(
        self, call_id: str, workspace_id: str, tool: str, arguments: Mapping[str, Any], identity: str | None
    ) -> Acceptance:
        acceptance = await in_ledger(self.records.accept, call_id, workspace_id, tool, arguments, identity)
        if acceptance is Acceptance.MINE and self.is_draining:  # since it waited for the ledger
            self._settle(call_id, partial(self.records.forget, workspace_id, call_id))
            self.require_taking()
        return acceptance

    def _settle(self, call_id: str, how: Callable[[], None]) -> None:
        """Write down how a call ended; the answer does not wait for room, or for another program that has the ledger locked."""
        try:
            how()
        except LedgerLocked:
            pass  # as it is for moments, where several services have one folder
        except (SQLAlchemyError, ServiceFull):
            _log.exception("the answer of the call %s could not be recorded yet; it is given all the same", call_id)
        if self.records.owes and (self._paying is None or self._paying.done()):
            self._paying = asyncio.create_task(self._pay())

    async def _pay(self) -> None:
        """Write what the ledger is owed: until then no other service runs in the workspace."""
        seconds = PAUSE_SECONDS
        while self.records.owes:
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, _MOST_PAUSE_SECONDS)
            with suppress(SQLAlchemyError, Busy, ServiceFull):
                self.records.pay()


@dataclass(frozen=True)
class Handed:
    """What an outer tool gave: the result as it was received, and what to hand to the model, if it is saved by rule."""

    received: Received
    spill: Spill | None

    def model_dump_json(self) -> str:
        """What is recorded: where the result is, or how large it was."""
        if self.spill is not None and self.spill.spilled:
            return self.spill.model_dump_json(exclude={"text", "shape", "preview"})
        return json.dumps({"bytes": self.received.size, "is_error": self.received.is_error})


def new_call_id() -> str:
    """An id that no other call has."""
    return secrets.token_urlsafe(12).replace("_", "a").replace("-", "b")


def _status_of(output: object) -> str:
    """Of a run, how it ended; else ``ok``."""
    return output.status.value if isinstance(output, Execution) else "ok"


def _is_cancelled_itself() -> bool:
    """Whether the task that asks was cancelled, and not only what it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _problem(code: str, message: str) -> str:
    return json.dumps({"code": code, "message": message})


async def in_ledger(work: Callable[..., T], *arguments: Any) -> T:
    """Do something in the ledger: at once, since it takes less than handing it to a thread, and again while it is locked."""
    for _ in range(TRIES):
        try:
            return work(*arguments)
        except LedgerLocked:
            await asyncio.sleep(PAUSE_SECONDS)
    return work(*arguments)


RuntimeName = Literal["warm", "nsjail", "docker", "none"]


def open_toolbox(
    data_folder: str | Path, *, limits: Limits = Limits(), slots: int | None = None, queue_length: int = 128,  # noqa: B008
    tenant_slots: int | None = None, runtime: RuntimeName = "warm", spills: SpillSettings = SpillSettings(),  # noqa: B008
    keep_results: timedelta = KEEP_RESULTS,
    disk_bytes: int | None = None, sign: Sign = str, approve: Approve | None = None, approval_seconds: float = WAIT_SECONDS,
    tenant_approvals: int = MOST_WAITING, tenant_disk_bytes: int | None = None,
    containers: ContainerSettings = ContainerSettings(),  # noqa: B008  frozen
    guest: Path | None = None,
) -> Toolbox:  # fmt: skip
    """A toolbox over a data folder, with jailed runs; what an agent loop embeds.

    Needs the guest root of `spillbox setup`, in the data folder or at ``guest`` (`GuestRootMissing` says so), but for ``none``,
    which has no `run_python`, and for ``docker``, which needs the image that ``containers`` name. Calls that an ended process
    left unfinished are marked as interrupted. ``warm`` keeps interpreters that have the libraries, about a second after the
    start, and runs go into fresh ``nsjail`` jails until then and where that can't be; each answer says which it was.
    """
    folder = Path(data_folder)
    close_to_others(folder)
    root = guest_root.load(guest or folder / guest_root.FOLDER) if runtime in ("warm", "nsjail") else None
    docker = DockerRuntime(containers) if runtime == "docker" else None
    with opening(folder):
        records = Records.in_folder(folder)
        interrupted = records.recover()
        catalog = Catalog(records.database)
    if interrupted:
        _log.warning(
            "%d calls were under way when a service before this one ended; they are interrupted", len(interrupted)
        )
    disk = Disk(
        folder, quota_bytes=disk_bytes, spare_bytes=_SPARE_DISK_BYTES, tenant_bytes=tenant_disk_bytes,
        tenant_used=lambda tenant: used_of_tenant(folder / "workspaces", tenant) + catalog.attached_bytes(tenant),
    )  # fmt: skip
    workspaces = Workspaces(folder / "workspaces", limits=limits, disk=disk, expired_at=catalog.expired_at)
    workspaces.sweep()
    made: Runtime = docker or NoRuntime()
    if root is not None:
        made = WarmRuntime(root, workspaces.root, limits=limits) if runtime == "warm" else NsjailRuntime(root)
    return Toolbox(
        workspaces=workspaces, runtime=made, records=records, catalog=catalog,
        attachments=Attachments(folder / "attachments", catalog, disk), spills=spills, slots=slots,
        guest=root if docker is None else docker.guest,
        queue_length=queue_length, tenant_slots=tenant_slots,
        keep_results=keep_results, sign=sign, approve=approve, approval_seconds=approval_seconds,
        tenant_approvals=tenant_approvals,
    )  # fmt: skip


def close_to_others(folder: Path) -> None:
    """Make a data folder if it is not there, and let no other user of this machine read the conversations in one of ours.

    Raises `SetupFailed` where there can be none, or one that can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(0o700)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as fault:
        raise SetupFailed(
            f"The data folder {folder} can't be used ({fault.strerror}). Name another with --data-dir or SPILLBOX_DATA_DIR, or let "
            "this user write there."
        ) from None


def _answer_again(tool: AnyTool, record: Record) -> BaseModel:
    """What was answered before: the output, or the error of the same class."""
    answer = record.answer
    if record.state is State.INTERRUPTED or answer is None:
        raise Interrupted(
            f"The service was stopped while the call {record.id} was being done. Use a new id to try again."
        )
    if "code" in answer:
        raise error_of(answer["code"], answer["message"])
    output: BaseModel = tool.output.model_validate(answer)
    return output
