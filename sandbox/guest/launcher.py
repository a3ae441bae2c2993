"""The launcher of warm jails, process 1 of an outer nsjail. Usage: python -S launcher.pyc LINK_FD plain|office

It imports the libraries once. For each SPAWN it forks process 1 of a jail, which has all of its memory and none of its
descriptors, builds the jail around itself, forks the script's process, and stands there until FOR and GO. A jail is used once.

Who may do what: the launcher and process 1 have capabilities in the user namespace of the outer nsjail, and process 1 has
them until FOR, since only then it is known which workspace's read-only folders to mount. The mount namespace of a jail
belongs to that outer user namespace, in which the guest has nothing: the guest's own user namespace is inside of it.
"""

import _signal
import _socket
import os
import resource
import sys

import first
import init
import kernel
import run
import wire

_GUEST_UID = 1000
_HIDDEN = "/run/launcher"
"""What only launchers and process 1 before FOR see: their /proc, and the folder of all workspaces."""
_SPAWN_DESCRIPTORS = 3
_HUGE_BYTES = 2 << 20
_STILL = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_RDONLY


def main():
    link = _socket.socket(fileno=int(sys.argv[1]))
    init.do_what_site_does()
    bare = set(sys.modules)
    _preload(sys.argv[2])
    names = sorted({name.partition(".")[0] for name in sys.modules if name not in bare})
    own_namespace = os.open(f"{_HIDDEN}/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)  # the kernel buries them
    link.send(wire.encode_up(names))
    program, _ = wire.decode_filters(link.recv(wire.MAX_MESSAGE_BYTES))
    kernel.load_filter(program)  # for process 1 of each jail too
    while True:
        message, ancillary, _, _ = link.recvmsg(wire.MAX_MESSAGE_BYTES, _socket.CMSG_SPACE(4 * _SPAWN_DESCRIPTORS))
        if not message:
            os._exit(0)
        shape = wire.decode_spawn(message)
        ((_, _, data),) = ancillary
        fds = [int.from_bytes(data[n : n + 4], sys.byteorder) for n in range(0, 4 * _SPAWN_DESCRIPTORS, 4)]
        try:
            kernel.call("unshare", kernel.CLONE_NEWPID)  # for the next child only
            if os.fork() == 0:
                _become_jail(shape, *fds)
        except OSError as fault:  # there is no room now; scripts may be running in the jails that are there
            os.write(fds[2], f"no process could be made: {fault}\n".encode())
        kernel.call("setns", own_namespace, kernel.CLONE_NEWPID)
        for fd in fds:
            os.close(fd)


def _preload(kind):
    """Import and use the libraries once; what this leaves for children to see is as if they had only imported them."""
    import gc

    kernel.call("mount", b"tmpfs", b"/tmp", b"tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, None)
    __import__(f"preload_{kind}").preload()
    run.rehearse()
    kernel.call("umount2", b"/tmp", kernel.MNT_DETACH)
    gc.collect()
    gc.freeze()  # the collector of a child never touches what is there now, so that its pages stay shared
    _use_huge_pages()


def _use_huge_pages():
    """Lay the memory out in pages of 2 MiB, where the kernel can (6.1 and newer): a fork and its end take half the time."""
    with open(f"{_HIDDEN}/proc/self/maps") as file:
        lines = [line.split() for line in file]
    for place, rights, *_, name in lines:
        start, end = (int(address, 16) for address in place.split("-"))
        start, end = -(-start // _HUGE_BYTES) * _HUGE_BYTES, end // _HUGE_BYTES * _HUGE_BYTES
        if rights == "rw-p" and (name == "[heap]" or not name.startswith(("/", "["))) and start < end:
            try:
                kernel.call("madvise", start, end - start, kernel.MADV_COLLAPSE)
            except OSError:
                pass  # it is only slower without


def _become_jail(shape, control_fd, stdout_fd, stderr_fd):
    """Go on as process 1 of a jail; does not return."""
    os.dup2(stderr_fd, 2)
    try:
        os.dup2(stdout_fd, 1)
        os.dup2(control_fd, 3)
        os.closerange(4, first.LAST_FD)
        _stand_and_run(shape, _socket.socket(fileno=3))
    except BaseException as fault:
        os.write(2, f"{type(fault).__name__}: {fault}\n".encode("utf-8", "replace"))
    os._exit(1)


def _stand_and_run(shape, control):
    control.send(wire.BORN)
    message = control.recv(wire.MAX_MESSAGE_BYTES)
    if not message:
        return
    _, program = wire.decode_filters(message)
    os.setsid()
    wake_read = first.become_first()
    kernel.call("unshare", shape["namespaces"])
    hostname = shape["hostname"].encode()
    kernel.call("sethostname", hostname, len(hostname))
    kernel.call("mount", b"proc", b"/proc", b"proc", _STILL | kernel.MS_NOEXEC, None)
    for place, options, executable in shape["tmpfs"]:
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | (0 if executable else kernel.MS_NOEXEC)
        owner = f",uid={shape['uid']},gid={shape['uid']}"
        kernel.call("mount", b"tmpfs", place.encode(), b"tmpfs", flags, (options + owner).encode())
    os.chdir("/workspace")
    idle_bytes = _pages()[1] * resource.getpagesize()
    _bind(f"{_HIDDEN}/workspaces", "/tmp")
    kernel.call("umount2", b"/tmp", kernel.MNT_DETACH)
    standing = first.fork_script(lambda: _enter_first(shape, program))
    first.say_ready(control)
    message = control.recv(wire.MAX_MESSAGE_BYTES)
    if not message:
        return
    folder = wire.decode_for(message)
    for name in shape["read_only"]:
        _bind(f"{_HIDDEN}/workspaces/{folder}/{name}", f"/workspace/{name}")
    kernel.call("umount2", _HIDDEN.encode(), kernel.MNT_DETACH)
    _change_user(shape["uid"])
    kernel.drop_capabilities()
    kernel.set_dumpable(0)
    users = os.open(f"/proc/{standing[0]}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    first.see_through(control, wake_read, lambda: _enter_again(shape, program, users), standing, idle_bytes)


def _enter_first(shape, program):
    """In the script's process: it stands in a user namespace of its own, and has done once what any script does."""
    _change_user(shape["uid"])
    kernel.set_dumpable(1)  # or its files under /proc would not be its own
    for name in shape["read_only"]:
        os.mkdir(f"/workspace/{name}")
    kernel.call("unshare", kernel.CLONE_NEWUSER)
    for file, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{_GUEST_UID} {shape['uid']} 1"),
        ("gid_map", f"{_GUEST_UID} {shape['uid']} 1"),
    ):
        with open(f"{_HIDDEN}/proc/self/{file}", "w") as target:
            target.write(text)
    _give_everything_up(shape, program)
    run.rehearse()


def _enter_again(shape, program, users):
    """In the process of a program of ours, when the script's has ended: in the user namespace that was the script's."""
    kernel.set_dumpable(1)
    kernel.call("setns", users, kernel.CLONE_NEWUSER)
    _give_everything_up(shape, program)


def _give_everything_up(shape, program):
    """The limits, no capability in any user namespace, the filter."""
    for name, value in shape["rlimits"].items():
        kind = getattr(resource, f"RLIMIT_{name.upper()}")
        if kind == resource.RLIMIT_AS:
            value += _pages()[0] * resource.getpagesize()  # what it has of the launcher is not the script's
        resource.setrlimit(kind, (value, value))
    kernel.bound_capabilities()
    kernel.drop_capabilities()
    kernel.load_filter(program)


def _change_user(uid):
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _bind(source, target):
    """Mount a folder of the hidden mount, which is read-only; what is bound has the flags of what it comes from."""
    kernel.call("mount", source.encode(), target.encode(), None, kernel.MS_BIND, None)


def _pages():
    """Of this process: of its address space, and in memory."""
    with open("/proc/self/statm") as file:
        return [int(word) for word in file.read().split()[:2]]


if __name__ == "__main__":
    main()
