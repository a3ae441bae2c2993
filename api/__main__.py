"""The command line: `spillbox serve`, `mcp`, `run`, `setup`, `doctor`, `clean`, `backup`, `restore`, `keys`, `config`, `tools`."""

import argparse
import asyncio
import gc
import json
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import uvloop
from pydantic import ValidationError
from pydantic_settings import SettingsError

from api import logs
from api.app import VERSION, create_app, gateway_of, prove, toolbox_of
from api.auth import UnsafeBinding, require_safe_binding
from api.config import BadConfiguration, as_toml, config_file, load, problems_in, settings_of, unknown_variables
from api.describe import describe
from api.links import link_secret
from api.mcp.peer import Conversation
from api.mcp.processes import program_of
from api.mcp.server import McpServer
from api.mcp.settings import load as mcp_servers
from api.mcp.stdio import serve
from api.server import Server, require_free
from api.settings import Settings
from api.tracing import tracing
from sandbox import backup, guest_root
from sandbox.database import FILE as LEDGER
from sandbox.database import Database, opening, together_in
from sandbox.doctor.doctor import Finding, examine
from sandbox.errors import NoSandbox, NotFound, SpillboxError
from sandbox.job import Execution, Status
from sandbox.keys import Keys
from sandbox.retention import Cleaned, Gone, make_room
from sandbox.runtimes import container_image
from sandbox.runtimes.container import Engine
from sandbox.runtimes.programs import require_folders
from sandbox.spills.spill import Surface
from sandbox.tools.toolbox import RuntimeName, close_to_others
from sandbox.workspace import Workspace, Workspaces

_EXIT_FAULT = 70  # EX_SOFTWARE of sysexits.h: the service's own fault, not the script's
_EXIT_USAGE = 64
_EXIT_INTERRUPTED = 130
_ROOM_FOR_RECORDS_BYTES = 1 << 20
"""With less on the disk, records may not even be opened: that takes files of their own."""


def main(argv: list[str] | None = None) -> int:
    """Run a command; gives its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        settings = load(config_file(arguments.config), _given(arguments))
        logs.install(settings.log_format)
        result: int = arguments.command(settings, arguments)
    except (UnsafeBinding, BadConfiguration) as fault:
        print(fault, file=sys.stderr)
        return _EXIT_USAGE
    except ValidationError as fault:
        for problem in problems_in(fault, config_file(arguments.config), _given(arguments)):
            print(problem, file=sys.stderr)
        return _EXIT_USAGE
    except SettingsError as fault:
        print(f"A setting is not right: {fault}. Lists and maps are written as JSON.", file=sys.stderr)
        return _EXIT_USAGE
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads what is left in the buffer
        return _EXIT_INTERRUPTED
    except SpillboxError as fault:
        print(f"{fault.code}: {fault}", file=sys.stderr)
        return _EXIT_FAULT
    return result


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Settings that the command line has."""
    return {key: value for key, value in vars(arguments).items() if key in Settings.model_fields and value is not None}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spillbox", description="Sandboxed Python runs and exact documents for agents."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="start the HTTP service")
    serve.add_argument("--host", help="address to listen on (127.0.0.1)")
    serve.add_argument("--port", type=int, help="port to listen on (8750)")
    serve.set_defaults(command=_serve)

    run = commands.add_parser("run", help="run a script in the sandbox")
    run.add_argument("script", help="a script on this machine, or one that is in the workspace")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own arguments")
    run.add_argument("--workspace", default="cli", help="whose files it sees (cli)")
    run.add_argument("--file", action="append", default=[], type=Path, help="first copy this file into the workspace")
    run.add_argument(
        "--json", action="store_true", help="print the whole answer as JSON instead of the script's output"
    )
    run.set_defaults(command=_run)

    setup = commands.add_parser("setup", help="build what guest scripts may use, and try it")
    setup.add_argument("--wheels", type=Path, help="take the office libraries from this folder, not from an index")
    setup.set_defaults(command=_setup)

    doctor = commands.add_parser("doctor", help="prove every wall and limit on this host")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    doctor.set_defaults(command=_doctor)

    clean = commands.add_parser("clean", help="remove saved results and errors whose time is over")
    clean.set_defaults(command=_clean)

    mcp = commands.add_parser("mcp", help="serve the tools to one MCP client over standard input and output")
    mcp.add_argument("--workspace", default="mcp", help="the conversation's workspace (mcp)")
    mcp.add_argument(
        "--upstream", type=Path, dest="mcp_servers", help="a file of other MCP servers to stand in front of"
    )
    mcp.add_argument("--surface", choices=get_args(Surface), default="agent", help="for whom results are (agent)")
    mcp.set_defaults(command=_mcp)

    tools = commands.add_parser("tools", help="print the tools' names, descriptions and schemas as JSON")
    tools.add_argument("--format", choices=["mcp", "openai", "anthropic"], default="mcp", help="whose form (mcp)")
    tools.set_defaults(command=_tools)

    saving = commands.add_parser("backup", help="write the data folder into one file, also while the service goes on")
    saving.add_argument("file", type=Path, help="a new file, such as spillbox.tar.gz")
    saving.set_defaults(command=_backup)
    restoring = commands.add_parser("restore", help="put a backup into a data folder that has no records yet")
    restoring.add_argument("file", type=Path, help="what `backup` wrote")
    restoring.set_defaults(command=_restore)

    keys = commands.add_parser("keys", help="make, list and revoke the API keys of tenants")
    doing = keys.add_subparsers(required=True, metavar="WHAT")
    create = doing.add_parser("create", help="make a key, which is shown this one time")
    create.add_argument("tenant", help="whose workspaces its bearer reaches, and no others")
    create.add_argument("--note", default="", help="what it is for")
    create.add_argument("--approves", action="store_true", help="its bearer may decide over the tenant's approvals")
    create.set_defaults(command=_create_key)
    listing = doing.add_parser("list", help="print all keys, without what only their bearers know")
    listing.set_defaults(command=_list_keys)
    revoke = doing.add_parser("revoke", help="end a key at once")
    revoke.add_argument("id", help="as `list` shows it")
    revoke.set_defaults(command=_revoke_key)

    config = commands.add_parser("config", help="check the settings, or print what there may be in a file of them")
    asking = config.add_subparsers(required=True, metavar="WHAT")
    schema = asking.add_parser("schema", help="print the JSON Schema of a file of settings")
    schema.set_defaults(command=_print_schema)
    check = asking.add_parser("check", help="print all settings, and where each comes from; secrets are not shown")
    check.set_defaults(command=_check_config)

    all_commands = (
        serve, mcp, run, setup, doctor, clean, tools, saving, restoring, create, listing, revoke, schema, check,
    )  # fmt: skip
    for command in all_commands:
        command.add_argument("--config", type=Path, help="a TOML file of settings; the environment comes before it")
        command.add_argument(
            "--data-dir", type=Path, help="where workspaces, records and the guest root are (.spillbox)"
        )
    return parser


def _backup(settings: Settings, arguments: argparse.Namespace) -> int:
    count = backup.save(settings.data_dir, arguments.file)
    print(f"{arguments.file} has {count:,} files. Keep it where only you can read it: it has everyone's conversations.")
    return 0


def _restore(settings: Settings, arguments: argparse.Namespace) -> int:
    count = backup.restore(arguments.file, settings.data_dir)
    print(f"{settings.data_dir} has {count:,} files now.")
    if settings.guest_root is None:
        print(f"Run `spillbox setup --data-dir {settings.data_dir}` before the service is started.")
    print("Keys are as they were when it was saved: revoke again those that were revoked since.")
    return 0


def _create_key(settings: Settings, arguments: argparse.Namespace) -> int:
    with _keys(settings) as keys:
        key, text = keys.create(arguments.tenant, note=arguments.note, approves=arguments.approves)
    link_secret(settings.data_dir, make=True)
    print(text)
    print(f"This key, {key.id}, is of the tenant {key.tenant}. Keep it: it is not shown again.", file=sys.stderr)
    return 0


def _list_keys(settings: Settings, _: argparse.Namespace) -> int:
    with _keys(settings) as keys:
        for key in keys.all():
            until = "" if key.revoked_at is None else f", revoked {key.revoked_at:%Y-%m-%d %H:%M} UTC"
            may = ", approves" if key.approves else ""
            print(f"{key.id}  {key.tenant}  made {key.made_at:%Y-%m-%d %H:%M} UTC{may}{until}  {key.note}".rstrip())
    return 0


def _revoke_key(settings: Settings, arguments: argparse.Namespace) -> int:
    with _keys(settings) as keys:
        key = keys.revoke(arguments.id)
    print(f"The key {key.id} of the tenant {key.tenant} is revoked.")
    return 0


@contextmanager
def _keys(settings: Settings) -> Iterator[Keys]:
    close_to_others(settings.data_dir)
    with opening(settings.data_dir), closing(Database.in_folder(settings.data_dir)) as database:
        yield Keys(database)


def _print_schema(_: Settings, __: argparse.Namespace) -> int:
    print(json.dumps(Settings.model_json_schema(), indent=2))
    return 0


def _check_config(settings: Settings, arguments: argparse.Namespace) -> int:
    for name, value, source in settings_of(settings, config_file(arguments.config), _given(arguments)):
        print(f"# {name} is not set" if value is None else f"{name} = {as_toml(value)}  # {source}")
    problems = [*unknown_variables(), *_refused(settings)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return _EXIT_USAGE if problems else 0


def _refused(settings: Settings) -> Iterator[str]:
    """What `serve` would not start with, as far as the settings alone tell."""
    try:
        require_safe_binding(settings.host, has_keys=_may_have_keys(settings))
    except UnsafeBinding as fault:
        yield str(fault)
    try:
        if settings.mcp_servers is not None:
            for program in filter(None, map(program_of, mcp_servers(settings.mcp_servers).values())):
                with suppress(PermissionError):  # the service's user sees what is there
                    require_folders(program)
    except SpillboxError as fault:
        yield str(fault)


def _may_have_keys(settings: Settings) -> bool:
    """Where there are records there may be keys of tenants; to look, the records would be brought up to this version."""
    try:
        return bool(settings.api_key or settings.oidc_issuer or (settings.data_dir / LEDGER).exists())
    except PermissionError:  # the service's user sees what is there
        return True


def _serve(settings: Settings, _: argparse.Namespace) -> int:
    _allow_many_descriptors()
    with logs.unhurried(settings.log_format), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve_until_stopped(settings))


async def _serve_until_stopped(settings: Settings) -> int:
    require_free(settings.host, settings.port)
    async with AsyncExitStack() as stack:
        box = toolbox_of(settings)
        try:
            await stack.enter_async_context(tracing(settings, box.observers, version=VERSION))
            app = create_app(settings, box, await prove(box))
        except BaseException:
            await box.close()
            raise
        server = Server(app, settings, box)
        gc.freeze()  # what is there now stays; the collector need not look at it again for each few requests
        await server.serve()
    return 0 if server.started else _EXIT_FAULT


def _mcp(settings: Settings, arguments: argparse.Namespace) -> int:
    _allow_many_descriptors()
    with logs.unhurried(settings.log_format), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve_over_stdio(settings, Conversation(arguments.workspace, arguments.surface)))


async def _serve_over_stdio(settings: Settings, conversation: Conversation) -> int:
    async with AsyncExitStack() as stack:
        box = await stack.enter_async_context(toolbox_of(settings))
        box.workspaces.open(conversation.workspace_id or "")  # a name that none can have is told now
        await stack.enter_async_context(tracing(settings, box.observers, version=VERSION))
        await prove(box)
        gateway = gateway_of(settings, box.observers)
        if gateway is not None:
            box.outer = await stack.enter_async_context(gateway)
        await serve(McpServer(box, gateway, version=VERSION, conversation=conversation))
    return 0


def _allow_many_descriptors() -> None:
    """Each run has some. And an ordinary user's guests, whose own limit is lower, can't use up what may be on its way."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _run(settings: Settings, arguments: argparse.Namespace) -> int:
    execution = asyncio.run(_run_script(settings, arguments))
    if arguments.json:
        print(execution.model_dump_json(indent=2))
    else:
        _report(execution, settings.data_dir / "workspaces" / arguments.workspace / "files")
    if execution.status is Status.SUCCEEDED:
        return 0
    return execution.exit_code or 1


def _put(workspace: Workspace, arguments: argparse.Namespace) -> str:
    """Copy what the command line names into the workspace; gives the script's path there."""
    for file in arguments.file:
        if not file.is_file():
            raise NotFound(f"There is no file {file} on this machine.")
        workspace.write(file.name, file.read_bytes())
    script = Path(arguments.script)
    if script.is_file():
        return workspace.write(f"scripts/{script.name}", script.read_bytes()).path
    if not workspace.exists(arguments.script):
        raise NotFound(f"There is no script {script} on this machine, nor in the workspace {arguments.workspace}.")
    return str(arguments.script)


async def _run_script(settings: Settings, arguments: argparse.Namespace) -> Execution:
    async with toolbox_of(settings, runtime=_for_one_script(settings)) as box:
        path = _put(box.workspaces.open(arguments.workspace), arguments)
        print_live = None if arguments.json else _print_live
        call: dict[str, Any] = {"path": path, "arguments": arguments.arguments}
        output = await box.call("run_python", arguments.workspace, call, on_output=print_live)
        assert isinstance(output, Execution)  # noqa: S101  the tool's output model
        return output


def _for_one_script(settings: Settings) -> RuntimeName:
    """There is nothing to keep warm for it."""
    return "docker" if settings.runtime == "docker" else "nsjail"


def _print_live(stream: str, data: bytes) -> None:
    target = sys.stdout if stream == "stdout" else sys.stderr
    with suppress(BrokenPipeError):  # nobody reads any more; the run goes on and is recorded
        target.buffer.write(data)
        target.flush()


def _report(execution: Execution, folder: Path) -> None:
    def say(text: str) -> None:
        print(text, file=sys.stderr)

    if execution.error is not None and execution.error.type != "ExitCode":
        say(f"--- {execution.status} ---\n{execution.error.summary}")
    for change in execution.files:
        say(f"{change.change}: {folder / change.path} ({change.bytes:,} bytes)")
    for result in execution.documents:
        say(f"checked: {result.path}: {'ok' if result.ok else result.problem}")
    for warning in execution.warnings:
        say(f"warning: {warning}")


def _setup(settings: Settings, arguments: argparse.Namespace) -> int:
    close_to_others(settings.data_dir)
    root = guest_root.build(settings.guest_root_folder, wheels=arguments.wheels)
    if settings.runtime == "docker":
        container_image.make(Engine(), settings.docker_image, root)
    execution = asyncio.run(_try_guest(settings))
    if execution.status is not Status.SUCCEEDED or not all(result.ok for result in execution.documents):
        print(execution.model_dump_json(indent=2), file=sys.stderr)
        return _EXIT_FAULT
    made = ", ".join(f"{result.path} (checked: ok)" for result in execution.documents)
    print(f"The guest root is at {root.path}: Python {root.python_version} with")
    print("  " + ", ".join(f"{name} {version}" for name, version in root.libraries.items()))
    print(f"Tried in {execution.runtime}: {made}.")
    for warning in execution.warnings:
        print(f"warning: {warning}")
    return 0


async def _try_guest(settings: Settings) -> Execution:
    async with toolbox_of(settings, runtime=_for_one_script(settings)) as box:
        return await box.try_documents()


def _doctor(settings: Settings, arguments: argparse.Namespace) -> int:
    findings = asyncio.run(_examine(settings))
    if arguments.json:
        print(json.dumps([finding.model_dump() for finding in findings], indent=2))
    else:
        for finding in findings:
            word = "WEAKER" if finding.weaker and finding.is_real else "ok" if finding.is_real else "NOT REAL"
            print(f"{word:<9}{finding.what} ({finding.runtime})")
            print(f"         by: {finding.enforced_by}\n         seen: {finding.proof}")
            if finding.known:
                print(f"         known: {finding.known}")
        for cure in dict.fromkeys(finding.cure for finding in findings if finding.cure):
            print(f"\n{cure}")
        real = sum(finding.is_real for finding in findings)
        weaker = sum(finding.weaker for finding in findings)
        print(f"\n{real} of {len(findings)} proved on this host, {weaker} of them weaker than promised.")
    return 0 if all(finding.is_real for finding in findings) else 1


async def _examine(settings: Settings) -> list[Finding]:
    if settings.runtime == "none":
        raise NoSandbox("The service runs no scripts, by SPILLBOX_RUNTIME=none: there are no walls to prove.")
    async with toolbox_of(settings) as box:
        root = None if settings.runtime == "docker" else guest_root.load(settings.guest_root_folder)
        return [finding async for finding in examine(root, box.workspaces, box.runtime)]


def _clean(settings: Settings, _: argparse.Namespace) -> int:
    cleaned = asyncio.run(_clean_up(settings))
    print(
        f"Removed {cleaned.files:,} files of {cleaned.bytes:,} bytes, older than {settings.keep_results_days:g} days."
    )
    return 0


async def _clean_up(settings: Settings) -> Cleaned:
    folder, keep = settings.data_dir / "workspaces", timedelta(days=settings.keep_results_days)
    gone: Gone = ()
    if folder.exists() and shutil.disk_usage(folder).free < _ROOM_FOR_RECORDS_BYTES:
        with together_in(settings.data_dir):
            gone = make_room(Workspaces(folder, limits=settings.limits), keep=keep)
    try:
        with opening(settings.data_dir):
            async with toolbox_of(settings, runtime="none") as box:
                return await box.clean(gone)
    except Exception:
        if gone:
            size = sum(info.bytes for _, info in gone)
            print(
                f"Removed {len(gone):,} files of {size:,} bytes; that they expired may not be noted.", file=sys.stderr
            )
        raise


def _tools(settings: Settings, arguments: argparse.Namespace) -> int:
    box = toolbox_of(settings, runtime="none" if settings.runtime == "none" else _for_one_script(settings))
    print(json.dumps([describe(tool, arguments.format) for tool in box.tools.values()], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
