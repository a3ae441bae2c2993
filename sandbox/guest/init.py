"""Process 1 of a jail. Usage: python -S init.pyc CONTROL_FD [MODULE …]

It hands the service the folders that the run writes to, waits for GO, forks the process that runs the script, buries
whatever dies in the jail, and says how the script ended. It never runs guest code. It leaves as soon as the script has
ended or the service is gone, and with it the kernel kills everything else in the jail. MODULEs are imported while it waits.

Its time is part of every run. So modules are taken bare (`_socket`, not `socket`) and late: those that are not needed to
say READY while the service fills the workspace, and those that are not needed to fork while the script runs.
"""

import _socket
import os
import sys

import wire

_PR_SET_DUMPABLE = 4
_MAX_WAITING_SIGNALS = 1024  # the kernel counts them for the user of the host who made the jail


def main():
    control = _socket.socket(fileno=int(sys.argv[1]))
    folders = [os.open(place, os.O_RDONLY | os.O_DIRECTORY) for place in ("/workspace", "/run/report")]
    descriptors = b"".join(fd.to_bytes(4, sys.byteorder) for fd in folders)
    control.sendmsg([wire.READY], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
    for fd in folders:
        os.close(fd)
    _do_what_site_does()
    import _signal
    import gc
    import resource

    import run

    resource.setrlimit(resource.RLIMIT_SIGPENDING, (_MAX_WAITING_SIGNALS, _MAX_WAITING_SIGNALS))
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)  # a guest may send it; it may send no other to process 1
    # Not dumpable: no other process of the jail, though of the same uid, can trace or read this one or open its
    # descriptors under /proc. The script's process becomes an ordinary one again.
    _set_dumpable(0)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    _signal.signal(_signal.SIGCHLD, _nothing)
    _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for module in sys.argv[2:]:
        __import__(module)
    message = control.recv(wire.MAX_MESSAGE_BYTES)
    if not message:
        return
    script_path, arguments = wire.decode_go(message)
    # What is there now will never be looked at by the garbage collector, so its pages stay shared.
    gc.freeze()
    child = os.fork()
    if child == 0:
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        control.detach()
        os.closerange(3, 0x7FFFFFFF)
        _set_dumpable(1)
        run.run_script(script_path, arguments)
    wait_status = _wait_for(child, control, wake_read)
    if wait_status is not None:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        control.send(wire.encode_done(wait_status, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024))
    os._exit(0)


def _do_what_site_does():
    """The interpreter starts with -S, since looking for what a guest root does not have takes `site` 2 ms of each run."""
    import site

    prefix = os.path.dirname(os.path.dirname(sys.executable))
    sys.path.append(f"{prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")
    sys.prefix = sys.exec_prefix = prefix
    site.setquit()
    site.setcopyright()
    site.sethelper()


def _wait_for(child, control, wake_read):
    """The wait status of the script's process, or None if the service went away first."""
    import select

    poll = select.poll()
    poll.register(control.fileno(), select.POLLIN)
    poll.register(wake_read, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == control.fileno():
                return None
            os.read(wake_read, 4096)
            while True:
                try:
                    pid, wait_status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    break
                if pid == child:
                    return wait_status
                if pid == 0:
                    break


def _nothing(_signal_number, _frame):
    """The wakeup descriptor does the work."""


def _set_dumpable(value):
    import _ctypes

    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")
    _ctypes.call_function(prctl, (_PR_SET_DUMPABLE, value, 0, 0, 0))


if __name__ == "__main__":
    main()
