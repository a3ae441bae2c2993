"""The gateway beside a direct call of the same server, both over standard input and output, and what a large result takes.

python scripts/bench_gateway.py [--data-dir DIR]
"""

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import mcp
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client

SERVER = Path(__file__).with_name("bench") / "mcp_server.py"
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "a tool that does nothing": ("nothing", {}),
    "a query over 400,000 rows": ("query", {"pattern": "%77%"}),
}
_WARM_UP = 20


def measure(guest_root: Path, rounds: int) -> dict[str, Any]:
    """Medians in milliseconds, direct and through the gateway, called in turn; seconds and memory of a result of 100 MB."""
    return asyncio.run(_measure(guest_root.resolve(), rounds))


async def _measure(guest_root: Path, rounds: int) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        data_dir, servers = folder / "data", folder / "servers.json"
        data_dir.mkdir()
        (data_dir / "guest-root").symlink_to(guest_root)
        servers.write_text(
            json.dumps(
                {"mcpServers": {"b": {"command": sys.executable, "args": [str(SERVER.resolve())], "prefix": ""}}}
            )
        )
        log = stack.enter_context((folder / "log").open("w"))
        ours = ["-m", "api", "mcp", "--workspace", "bench", "--data-dir", str(data_dir), "--upstream", str(servers)]

        async def client_of(*arguments: str) -> mcp.Client:
            transport = stdio_client(StdioServerParameters(command=sys.executable, args=list(arguments)), errlog=log)
            return await stack.enter_async_context(mcp.Client(transport))

        direct, gateway = await client_of(str(SERVER)), await client_of(*ours)
        small = {}
        for what, (tool, arguments) in CALLS.items():
            times: dict[str, list[float]] = {"direct": [], "gateway": []}
            for _ in range(rounds + _WARM_UP):
                for name, client in (("direct", direct), ("gateway", gateway)):
                    started = time.perf_counter()
                    result = await client.call_tool(tool, arguments)
                    if result.is_error:
                        raise SystemExit(f"{tool} failed: {result.content}")
                    times[name].append((time.perf_counter() - started) * 1000)
            small[what] = {name: round(statistics.median(one[_WARM_UP:]), 3) for name, one in times.items()}
        process = _process_of(ours)
        before = _peak_mib(process)
        seconds, text = [], ""
        for _ in range(3):
            started = time.perf_counter()
            result = await gateway.call_tool("everything", {})
            seconds.append(time.perf_counter() - started)
            text = result.content[0].text if result.content[0].type == "text" else ""
        size = re.search(r"json, ([\d,]+) bytes", text)
        if size is None:
            raise SystemExit(f"the large result did not spill: {text[:300]}")
        large = {
            "bytes": int(size[1].replace(",", "")), "seconds": round(statistics.median(seconds), 2),
            "mib_before": before, "peak_mib": _peak_mib(process),
        }  # fmt: skip
    return {"small": small, "large": large}


def _process_of(arguments: list[str]) -> Path:
    wanted = [sys.executable, *arguments]
    for process in Path("/proc").glob("[0-9]*"):
        if (process / "cmdline").read_bytes().split(b"\0")[:-1] == [word.encode() for word in wanted]:
            return process
    raise SystemExit("the gateway's process is gone")


def _peak_mib(process: Path) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", (process / "status").read_text())
    return 0 if found is None else int(found[1]) // 1024


def markdown(figures: dict[str, Any]) -> list[str]:
    """What the README says of them."""
    lines = [
        "",
        "The gateway beside a direct call of the same server, a small result, medians:",
        "",
        "| | direct | through the gateway | ratio |",
        "|---|---|---|---|",
    ]
    for what, one in figures["small"].items():
        lines.append(
            f"| {what} | {one['direct']:.1f} ms | {one['gateway']:.1f} ms | {one['gateway'] / one['direct']:.2f} |"
        )
    large = figures["large"]
    return [
        *lines,
        "",
        f"A result of {large['bytes'] / 1e6:.0f} MB through the gateway is a file after {large['seconds']:.1f} s, at a peak of "
        f"{large['peak_mib']} MiB (before it {large['mib_before']}).",
    ]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path(".spillbox"), help="where the guest root is")
    print("\n".join(markdown(measure(parser.parse_args().data_dir / "guest-root", 300))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
