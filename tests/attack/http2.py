"""Just enough of HTTP/2 to break its rules: frames by hand over a socket. Standard library only.

Source: RFC 9113 (frames), RFC 7541 (header blocks; here literals without indexing alone).
"""

import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
CANCEL, ENHANCE_YOUR_CALM = 8, 11


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(value):
    data = value.encode() if isinstance(value, str) else value
    assert len(data) < 127
    return bytes([len(data)]) + data


def literal(name, value):
    return b"\x00" + _text(name) + _text(value)


def header_block(path, extra=()):
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"),
              ("te", "trailers"), ("content-type", "application/grpc"), *extra]
    return b"".join(literal(name, value) for name, value in fields)


def message(payload, compressed=0):
    """A gRPC message: a flag and its length before it."""
    return struct.pack(">BI", compressed, len(payload)) + payload


class Connection:
    def __init__(self, port, preface=True, timeout=10):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.rest = b""
        self.next_stream = 1
        if preface:
            self.send(PREFACE + frame(SETTINGS, 0, 0))

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.socket.close()

    def send(self, data):
        """False: the server has closed the connection."""
        try:
            self.socket.sendall(data)
            return True
        except (BrokenPipeError, ConnectionResetError):
            return False

    def open(self, path, extra=(), flags=0):
        """The bytes that open a stream, and its number."""
        stream, self.next_stream = self.next_stream, self.next_stream + 2
        return frame(HEADERS, END_HEADERS | flags, stream, header_block(path, extra)), stream

    def read_frame(self):
        """(kind, flags, stream, payload), or None at the end of the connection."""
        try:
            while len(self.rest) < 9 or len(self.rest) < 9 + int.from_bytes(self.rest[:3], "big"):
                data = self.socket.recv(65536)
                if not data:
                    return None
                self.rest += data
        except ConnectionResetError:
            return None
        length = int.from_bytes(self.rest[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", self.rest[3:9])
        payload, self.rest = self.rest[9:9 + length], self.rest[9 + length:]
        return kind, flags, stream, payload

    def read_until(self, wanted):
        """Frames up to the first for which `wanted` holds; None: the connection ended first."""
        while True:
            found = self.read_frame()
            if found is None or wanted(*found):
                return found

    def grpc_status(self, stream):
        """The number in the trailers, where they are plain literals; None: reset or closed."""
        while True:
            found = self.read_frame()
            if found is None:
                return None
            kind, flags, number, payload = found
            if number != stream:
                continue
            if kind == RST_STREAM:
                return None
            if kind == HEADERS and flags & END_STREAM:
                return payload
