"""Ports for programs that are told the number of one, and cannot choose a free one themselves. Standard library only."""

import socket

_kept = []


def reserve_port():
    """A port that the kernel gives to no other listener or connection as long as this process lives.

    A socket keeps it that does not listen: callers are refused, and a server that asks for the port by its number with
    SO_REUSEADDR, as servers do, gets it, also again behind one that has ended. A port that is found free and let go may
    be anybody's a moment later; often it is that of a client's own connection.
    """
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("", 0))
    _kept.append(keeper)
    return keeper.getsockname()[1]
