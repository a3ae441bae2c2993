"""Recognises a host that forbids what a jail is made of, and says how to mend it."""

import subprocess
import sys
from pathlib import Path

_PROBE = "import ctypes,sys; sys.exit(ctypes.CDLL(None, use_errno=True).unshare(0x10000000) != 0)"

_SWITCHES = {
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "AppArmor forbids user namespaces to ordinary programs (Ubuntu 23.10 and newer). As root: "
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0; to keep it, write "
        "'kernel.apparmor_restrict_unprivileged_userns = 0' to /etc/sysctl.d/60-spillbox.conf.",
    ),
    "/proc/sys/kernel/unprivileged_userns_clone": (
        "0",
        "The kernel forbids user namespaces to ordinary users. As root: sysctl -w kernel.unprivileged_userns_clone=1; "
        "to keep it, write 'kernel.unprivileged_userns_clone = 1' to /etc/sysctl.d/60-spillbox.conf.",
    ),
    "/proc/sys/user/max_user_namespaces": (
        "0",
        "The kernel allows no user namespaces. As root: sysctl -w user.max_user_namespaces=10000; "
        "to keep it, write 'user.max_user_namespaces = 10000' to /etc/sysctl.d/60-spillbox.conf.",
    ),
}


def cure_for_no_namespaces(switches: dict[str, tuple[str, str]] = _SWITCHES, probe: str = _PROBE) -> str:
    """Why this process can't make user namespaces, with the cure; empty if it can."""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", probe], check=False, capture_output=True)  # noqa: S603
    if done.returncode == 0:
        return ""
    for file, (bad, cure) in switches.items():
        path = Path(file)
        if path.exists() and path.read_text().strip() == bad:
            return cure
    return (
        "This process can't make user namespaces. In a container, its seccomp profile forbids them: start it with "
        "--security-opt seccomp=images/service/seccomp.json --security-opt systempaths=unconfined, as docs/install.md says."
    )
