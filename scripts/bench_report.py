"""The benchmark's figures as a table, as a chart, and as the part of the README that they are."""

from typing import Any

import bench_docker
import bench_gateway
import pygal

BARE = "bare python"
_COUNTS = ("1", "2", "8", "64")


def table(figures: dict[str, Any]) -> str:
    """Times with their ratios to the bare interpreter, then runs a second, memory and start."""
    lines = [figures["machine"], ""]
    measured = {f"{script}, idle": values for script, values in figures["idle"].items()}
    measured["print.py, back to back"] = figures["back to back"]
    for what, contenders in measured.items():
        lines.append(f"{what:<26}{'p50':>10}{'p95':>10}{'p99':>10}{'spread':>10}{'ratio':>8}")
        for name, one in contenders.items():
            cells = "".join(f"{one[key]:>7.1f} ms" for key in ("p50", "p95", "p99", "spread"))
            lines.append(f"  {name:<24}{cells}{one['p50'] / contenders[BARE]['p50']:>8.2f}")
        lines.append("")
    for script, contenders in figures["clients"].items():
        lines.append(f"{script + ', clients':<26}{'runs/s':>10}{'p50':>10}{'p95':>10}{'p99':>10}{'lost':>8}")
        for name, counts in contenders.items():
            for count, one in counts.items():
                cells = "".join(f"{one[key]:>7.1f} ms" for key in ("p50", "p95", "p99"))
                lines.append(f"  {name + ', ' + count:<24}{one['runs_per_second']:>10.1f}{cells}{one['lost']:>8}")
        lines.append("")
    for kind, one in figures["memory"].items():
        lines.append(
            f"{kind} launcher: {one['launcher_mib']:.1f} MiB, of which its jails share all but {one['jail_own_mib']:.1f} MiB each "
            f"({one['launchers']} launchers, {one['spare_jails']} spare jails)"
        )
    starts = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in figures["start seconds"].items())
    lines.append(f"from the start of the service to the answer of a first run: {starts}")
    lines.append("")
    data = figures["data"]
    for name, one in data["measured"].items():
        ratio = f"{data['ratios'][name]:>7.2f} x {data['against'][name]}" if name in data["ratios"] else ""
        lines.append(f"{name:<30}{one['seconds']:>8.3f} s{one['peak_mib']:>7} MiB {ratio}")
    lines += bench_docker.markdown(figures["docker"])
    return "\n".join([*lines, *bench_gateway.markdown(figures["gateway"])])


def chart(figures: dict[str, Any]) -> bytes:
    """An SVG of the ratios to the bare interpreter, on an idle machine."""
    style = pygal.style.CleanStyle(font_family="sans-serif", background="#ffffff")
    drawn = pygal.HorizontalBar(
        style=style, js=[], width=900, height=460, print_values=True, legend_at_bottom=True, legend_at_bottom_columns=4,
        logarithmic=True, range=(0.1, 50), zero=0.1, value_formatter=lambda ratio: f"{ratio:.2f}",
        title="Time of a run through HTTP, as a multiple of a bare python script.py (less is faster)",
    )  # fmt: skip
    drawn.x_labels = list(figures["idle"])
    shown = [name for name in next(iter(figures["idle"].values())) if name != BARE and "library" not in name]
    for name in shown:
        drawn.add(name, [one[name]["p50"] / one[BARE]["p50"] for one in figures["idle"].values()])
    rendered: bytes = drawn.render()
    return rendered


def markdown(figures: dict[str, Any]) -> str:
    """What the README says of them."""
    names = [name for name in next(iter(figures["idle"].values())) if "library" not in name]
    others = [name for name in names if name != BARE]
    lines = [
        f"Medians on {figures['machine']}; the machine was idle before each run, but where another thing is said.",
        "",
        f"| script | {BARE} |" + "".join(f" {name} | ratio |" for name in others),
        "|---" * (2 + 2 * len(others)) + "|",
    ]
    measured = {f"`{script}`": one for script, one in figures["idle"].items()}
    measured["`print.py`, one after another"] = figures["back to back"]
    for what, one in measured.items():
        bare = one[BARE]["p50"]
        cells = "".join(f" {one[name]['p50']:.1f} ms | {one[name]['p50'] / bare:.2f} |" for name in others)
        lines.append(f"| {what} | {bare:.1f} ms |{cells}")
    lines += [
        "",
        "| runs a second, by clients at the same time | " + " | ".join(_COUNTS) + " |",
        "|---" * (1 + len(_COUNTS)) + "|",
    ]
    for script, contenders in figures["clients"].items():
        for name, counts in contenders.items():
            cells = " | ".join(
                f"{counts[count]['runs_per_second']:.0f}" if count in counts else "" for count in _COUNTS
            )
            lines.append(f"| `{script}`, {name} | {cells} |")
    memory, starts = figures["memory"], figures["start seconds"]
    for kind, one in memory.items():
        lines += [
            "",
            f"A launcher of {kind} jails takes {one['launcher_mib']:.0f} MiB, each of its jails {one['jail_own_mib']:.1f} MiB "
            f"more; there are {one['launchers']} launchers and {one['spare_jails']} spare jails.",
        ]
    lines += [
        "",
        f"A first run is answered {starts['warm']:.1f} s after the service was started, its walls having been tried.",
    ]
    lines += bench_docker.markdown(figures["docker"])
    data = figures["data"]
    lines += [
        "",
        f"The data's path, over a table of {data['rows']:,} rows in {data['bytes'] / 1e6:.0f} MB of JSON (workbooks: its first "
        f"{data['workbook_rows']:,} rows), each in a process of its own:",
        "",
        "| | time | peak memory | compared with |",
        "|---|---|---|---|",
    ]
    for name, one in data["measured"].items():
        against = f"{data['ratios'][name]:.2f} x `{data['against'][name]}`" if name in data["ratios"] else ""
        lines.append(f"| `{name}` | {one['seconds']:.2f} s | {one['peak_mib']} MiB | {against} |")
    lines += bench_gateway.markdown(figures["gateway"])
    return "\n".join(lines) + "\n"
