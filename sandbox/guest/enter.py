"""Process 1 of the jail of a program. Usage: python -S enter.pyc FILTER_FD LIFE_FD COMMAND [ARGUMENT …]

It starts the program behind the seccomp filter, buries whatever dies in the jail, and ends with the program, with its status;
and at once, with all that is in the jail, where the other end of LIFE_FD closes, since then the service is gone.
"""

import _signal
import os
import sys

import first
import kernel

_NO_SUCH_COMMAND, _SIGNALLED = 127, 128  # as shells have it


def main():
    filter_fd, life_fd, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    with open(filter_fd, "rb") as file:
        program = file.read()
    kernel.set_dumpable(0)  # the program, though of the same uid, can't trace it or open its descriptors
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    _signal.signal(_signal.SIGCHLD, lambda *_: None)
    _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    child = os.fork()
    if child == 0:
        os.close(life_fd)
        _become(command, program)
    for fd in (0, 1, 2):  # they are the program's: who reads them is to see their end with it
        os.close(fd)
    status = first.wait_for(child, life_fd, wake_read)
    first.bury_all()
    code = 0 if status is None else os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else _SIGNALLED - code)


def _become(command, program):
    _signal.set_wakeup_fd(-1)
    for changed in (_signal.SIGCHLD, _signal.SIGPIPE, _signal.SIGXFSZ):  # by Python, and above
        _signal.signal(changed, _signal.SIG_DFL)
    try:
        kernel.load_filter(program)
        os.execvp(command[0], command)
    except OSError as fault:
        shown = "Behind its walls there are only /usr and the folders of `read` and `write`."
        os.write(2, f"{command[0]}: {fault.strerror}. {shown}\n".encode("utf-8", "surrogateescape"))
    os._exit(_NO_SUCH_COMMAND)


if __name__ == "__main__":
    main()
