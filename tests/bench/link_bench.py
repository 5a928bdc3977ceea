"""What two ranks' messages take over a slow network: two network namespaces, joined by a veth pair whose ends send at --rate. As root.

    link_bench.py RANKS_BENCH [--rate 1gbit]

A message should take its bytes at the rate and a round trip, as measured beside it with plain TCP; 1.15 times that is the goal.
"""

import argparse
import contextlib
import os
import re
import socket
import statistics
import subprocess
import sys
import time

ADDRESSES = ("10.213.7.1", "10.213.7.2")
PORT = 7007
PINGS = 2000


def run(*command):
    subprocess.run(command, check=True)


@contextlib.contextmanager
def joined_namespaces(rate):
    names = [f"heddle-{os.getpid()}-{i}" for i in range(2)]
    made = []
    try:
        for name in names:
            run("ip", "netns", "add", name)
            made.append(name)
        run("ip", "link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for name, address in zip(names, ADDRESSES):
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", name, "link", "set", device, "up")
            run("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "16kb", "latency", "100ms")
        yield names
    finally:
        for name in made:
            run("ip", "netns", "delete", name)


def echo():
    with socket.create_server((ADDRESSES[1], PORT)) as listener:
        print("listening", flush=True)
        peer, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := peer.recv(1):
            peer.sendall(data)


def ping():
    with socket.create_connection((ADDRESSES[1], PORT)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        took = []
        for _ in range(PINGS):
            begin = time.perf_counter()
            peer.sendall(b"x")
            peer.recv(1)
            took.append(time.perf_counter() - begin)
        print(1e6 * statistics.median(took))


def wait_until_up(names):
    """Packets pass before the kernel calls a device up, and UCX uses none that is not."""
    for name in names:
        while "state UP" not in subprocess.check_output(["ip", "-n", name, "link", "show", "dev", "eth0"], text=True):
            time.sleep(0.05)


def round_trip_us(names):
    inside = [["ip", "netns", "exec", name, sys.executable, __file__] for name in names]
    with subprocess.Popen([*inside[1], "--echo"], stdout=subprocess.PIPE, text=True) as server:
        server.stdout.readline()
        return float(subprocess.run([*inside[0], "--ping"], check=True, capture_output=True, text=True).stdout)


def bits_per_us(rate):
    number, unit = re.fullmatch(r"(\d+)([mg])bit", rate).groups()
    return int(number) * {"m": 1, "g": 1000}[unit]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench", nargs="?")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ping", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.echo:
        return echo()
    if arguments.ping:
        return ping()
    with joined_namespaces(arguments.rate) as names:
        wait_until_up(names)
        trip = round_trip_us(names)
        environment = {**os.environ, "UCX_NET_DEVICES": "eth0"}
        text = subprocess.run([arguments.bench, "2", "1", "processes", *names], env=environment, check=True,
                              stdout=subprocess.PIPE, text=True).stdout
        trip = min(trip, round_trip_us(names))
    print(text, end="")
    print(f"round trip {trip:.1f} us")
    for layout, hops, size, took in re.findall(r"token (\w+): (\d+) hops of (\d+) bytes, p50 ([\d.]+)", text):
        expected = int(hops) * (8 * int(size) / bits_per_us(arguments.rate) + trip)
        print(f"{layout} 2: {took} us, {expected:.0f} us expected, {float(took) / expected:.2f}")


if __name__ == "__main__":
    main()
