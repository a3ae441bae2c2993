"""Process 1 of a cold jail. Usage: python -S init.pyc CONTROL_FD [MODULE …]

The jail stands already, made by nsjail, and this process has no privilege. MODULEs are imported while it waits for GO.
Its time is part of every run: what is not needed to say READY comes later, while the service fills the workspace.
"""

import _socket
import os
import sys

import first
import wire


def main():
    control = _socket.socket(fileno=int(sys.argv[1]))
    first.say_ready(control)
    do_what_site_does()
    import gc

    import kernel

    wake_read = first.become_first()
    for module in sys.argv[2:]:
        __import__(module)
    program, _ = wire.decode_filters(control.recv(wire.MAX_MESSAGE_BYTES))
    kernel.load_filter(program)  # the script's process has it from here
    # What is there now will never be looked at by the garbage collector, so its pages stay shared.
    gc.freeze()
    # Not before GO is a process forked: this one may not be in the run's control group yet.
    first.see_through(control, wake_read, lambda: kernel.set_dumpable(1))


def do_what_site_does():
    """The interpreter starts with -S, since looking for what a guest root does not have takes `site` 2 ms of each run."""
    import site

    prefix = os.path.dirname(os.path.dirname(sys.executable))
    sys.path.append(f"{prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages")
    sys.prefix = sys.exec_prefix = prefix
    site.setquit()
    site.setcopyright()
    site.sethelper()


if __name__ == "__main__":
    main()
