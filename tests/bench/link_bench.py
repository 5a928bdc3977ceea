"""What two ranks' messages take over a slow network: two network namespaces, joined by a veth pair whose ends send at --rate. As root.

    link_bench.py RANKS_BENCH [--rate 1gbit]

A message should take its bytes at the rate and a round trip, as measured beside it with plain TCP; 1.15 times that is the goal.
"""

import argparse
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "parallel"))
from namespaces import ADDRESSES, DEVICE, inside, joined_namespaces  # noqa: E402

PORT = 7007
PINGS = 2000


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


def round_trip_us(names):
    own = [[*inside(name), sys.executable, __file__] for name in names]
    with subprocess.Popen([*own[1], "--echo"], stdout=subprocess.PIPE, text=True) as server:
        server.stdout.readline()
        return float(subprocess.run([*own[0], "--ping"], check=True, capture_output=True, text=True).stdout)


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
        trip = round_trip_us(names)
        environment = {**os.environ, "UCX_NET_DEVICES": DEVICE}
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
