"""What process 1 of a jail does, whoever made the jail.

It forks the process that runs the script, buries whatever dies in the jail, and says how the script ended; then it may do so
again, for a program of ours over what the script left. It never runs guest code. Modules are taken bare (`_socket`, not
`socket`) and late, since in a cold jail its time is part of every run.
"""

import _socket
import os
import sys

import kernel
import wire

_MAX_WAITING_SIGNALS = 1024  # the kernel counts them for the user of the host who made the jail
LAST_FD = 0x7FFFFFFF


def say_ready(control):
    """Hand the service the folders that the run writes to."""
    folders = [os.open(place, os.O_RDONLY | os.O_DIRECTORY) for place in ("/workspace", "/run/report")]
    descriptors = b"".join(fd.to_bytes(4, sys.byteorder) for fd in folders)
    control.sendmsg([wire.READY], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
    for fd in folders:
        os.close(fd)


def become_first():
    """Make this process one that no guest can trace, read or end; gives a descriptor that can be read when a child has died."""
    import _signal
    import resource

    end_stdin()
    _, most = resource.getrlimit(resource.RLIMIT_SIGPENDING)
    if not 0 <= most <= _MAX_WAITING_SIGNALS:
        resource.setrlimit(resource.RLIMIT_SIGPENDING, (_MAX_WAITING_SIGNALS, _MAX_WAITING_SIGNALS))
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)  # a guest may send it; it may send no other to process 1
    # Not dumpable: no other process of the jail, though of the same uid, can trace or read this one or open its
    # descriptors under /proc. The script's process becomes an ordinary one again.
    kernel.set_dumpable(0)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    _signal.signal(_signal.SIGCHLD, _nothing)
    _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    return wake_read


def end_stdin():
    """Make stdin one that is at its end, and nobody else's: others would see what is written to a shared one, and its flags."""
    nothing, closed = os.pipe()
    os.dup2(nothing, 0)
    os.close(nothing)
    os.close(closed)


def fork_script(enter):
    """Fork the process that will run the script; gives its id and the wire to it when it is STANDING, without privilege.

    ``enter`` is called in it first. Raises RuntimeError if it does not come to stand; it has said why on stderr.
    """
    gate, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        gate.detach()
        message = _stand(theirs, enter)
        _run(message)
    theirs.close()
    if gate.recv(len(wire.STANDING)) != wire.STANDING:
        raise RuntimeError("the script's process did not come to stand")
    return child, gate


def _stand(theirs, enter):
    import _signal

    _signal.set_wakeup_fd(-1)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    enter()
    os.dup2(theirs.fileno(), 3)
    theirs.detach()
    os.closerange(4, LAST_FD)
    gate = _socket.socket(fileno=3)
    gate.send(wire.STANDING)
    message = gate.recv(wire.MAX_MESSAGE_BYTES)
    gate.close()
    if not message:
        os._exit(1)
    return message


def _run(message):
    import resource

    import run

    cpu_seconds, interpreter, script_path, arguments = wire.decode_go(message)
    # SIGXCPU says why; a script that does not let itself be told is killed a second later.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    if interpreter == wire.FRESH:
        os.execv(sys.executable, [sys.executable, "-S", "/opt/spillbox/fresh.pyc", script_path, *arguments])
    run.run_script(script_path, arguments)


def see_through(control, wake_read, enter, standing=None, idle_bytes=0):
    """At GO let the script's process go, wait for its end, end whatever else is in the jail, say DONE; does not return.

    ``standing`` is what `fork_script` gave, if the process is there already; else, and after AGAIN, one is forked, in which
    ``enter`` is called first. ``idle_bytes`` of the memory that the kernel counts for a child were there before the run.
    """
    import resource

    while message := control.recv(wire.MAX_MESSAGE_BYTES):
        if message == wire.AGAIN:
            standing = fork_script(enter)
            continue
        child, gate = standing or fork_script(enter)
        standing = None
        control.send(wire.BEGUN)
        gate.send(message)
        wait_status = wait_for(child, control.fileno(), wake_read)
        if wait_status is None:
            break
        gate.close()
        bury_all()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        memory_bytes = max(0, used.ru_maxrss * 1024 - idle_bytes)
        control.send(wire.encode_done(wait_status, used.ru_utime + used.ru_stime, memory_bytes))
    os._exit(0)


def wait_for(child, service_fd, wake_read):
    """The wait status of a child, or None if the service, which has the other end of a descriptor, went away first."""
    import select

    poll = select.poll()
    poll.register(service_fd, select.POLLIN)
    poll.register(wake_read, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == service_fd:
                return None
            os.read(wake_read, 4096)
            for pid, wait_status, _ in ended():
                if pid == child:
                    return wait_status


def ended():
    """Bury what has died by now: id, wait status and the largest memory in KiB of each."""
    while True:
        try:
            pid, wait_status, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, wait_status, used.ru_maxrss


def kill_all():
    """Kill every other process of the jail."""
    if os.getpid() != 1:
        return  # a control of the doctor's, without a process namespace: the same call would end the user's own processes
    try:
        os.kill(-1, 9)
    except ProcessLookupError:
        pass


def bury_all():
    """Kill every other process of the jail and wait for its end: then the tree that it wrote to is still.

    Gives the largest memory of one of them, in KiB.
    """
    peak_kib = 0
    while os.getpid() == 1:
        kill_all()
        try:
            peak_kib = max(peak_kib, os.wait4(-1, 0)[2].ru_maxrss)
        except ChildProcessError:
            break
    return peak_kib


def _nothing(_signal_number, _frame):
    """The wakeup descriptor does the work."""
