"""Two network namespaces that a veth pair joins: two machines and the cable between them. As root, with iproute2 and tc."""

import contextlib
import ctypes
import os
import pathlib
import subprocess
import time

ADDRESSES = ("10.213.7.1", "10.213.7.2")
DEVICE = "eth0"  # in both
_NEW_NET = 0x40000000


def _run(*command):
    subprocess.run(command, check=True)


@contextlib.contextmanager
def joined_namespaces(rate):
    """The names of both; the ends of the cable send at `rate`, such as 1gbit."""
    names = [f"heddle-{os.getpid()}-{i}" for i in range(2)]
    made = []
    try:
        for name in names:
            _run("ip", "netns", "add", name)
            made.append(name)
        _run("ip", "link", "add", DEVICE, "netns", names[0], "type", "veth", "peer", "name", DEVICE, "netns", names[1])
        for name, address in zip(names, ADDRESSES):
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
            for device in ("lo", DEVICE):
                _run("ip", "-n", name, "link", "set", device, "up")
            _run("tc", "-n", name, "qdisc", "add", "dev", DEVICE, "root", "tbf", "rate", rate, "burst", "16kb",
                 "latency", "100ms")
        wait_until_up(names)
        yield names
    finally:
        for name in made:
            _run("ip", "netns", "delete", name)


def wait_until_up(names):
    """Packets pass before the kernel calls a device up, and UCX uses none that is not."""
    for name in names:
        while "state UP" not in subprocess.check_output(["ip", "-n", name, "link", "show", "dev", DEVICE], text=True):
            time.sleep(0.05)


def inside(name):
    """How a command begins that is to run in the namespace."""
    return ("ip", "netns", "exec", name)


def set_link(name, state):
    """Pulls the cable's end out (down), or puts it in again (up)."""
    _run("ip", "-n", name, "link", "set", DEVICE, state)


def enter(name):
    """This thread, and those that it begins, are in the namespace from now on."""
    with (pathlib.Path("/run/netns") / name).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEW_NET) != 0:
            raise OSError(ctypes.get_errno(), f"the namespace {name} cannot be entered")
