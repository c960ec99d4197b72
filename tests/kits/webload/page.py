"""A dynamic page: a search, which goes over an index and then over a table of documents, by HTTP/1.1 on connections that stay open.

`page.py PORT KIB plain|regions`: the index and the table of documents have KIB KiB each, in plain memory or in a region each. /ready
exists once it listens."""

import fcntl
import mmap
import os
import select
import socket
import sys

PORT, KIB = (int(word) for word in sys.argv[1:3])
REGIONS = sys.argv[3]
# PALIMPSEST_KIT_CREATE (abi/include/palimpsest.h).
CREATE = 0xC018BA01
# How a page goes over a table; results that it shows, and bytes of each.
PASSES, STEP, SHOWN, PART = 8, 388, 12, 512
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n"


def table(device):
    """Numbers in memory of its own; with the guest kit's device, in a region of its own (docs/sdk.md)."""
    size = KIB * 1024
    if device is None:
        memory = mmap.mmap(-1, size)
    else:
        region = bytearray(24)
        fcntl.ioctl(device, CREATE, region)
        memory = mmap.mmap(device, size, offset=4096 * int.from_bytes(region[:4], "little"))
    block = b"".join((n * 2654435761 % (1 << 32)).to_bytes(8, "little") for n in range(512))
    for at in range(0, size, len(block)):
        memory[at : at + len(block)] = block
    return memoryview(memory).cast("Q")


def scan(numbers, first):
    """The sum of every STEPth entry, from some first ones on: each pass goes over all of the table."""
    return sum(sum(numbers[(first + n * 37) % STEP :: STEP]) for n in range(PASSES))


def page(index, documents, number):
    rank = scan(documents, scan(index, number) + number)
    parts = [b"<p>%0*d</p>" % (PART, rank + n) for n in range(SHOWN)]
    name = b"%08d" % number
    return b"%s<html>%s</html>%s" % (name, b"".join(parts), name)


def serve(listener, index, documents):
    listener.setblocking(False)
    poll, clients = select.poll(), {}
    poll.register(listener, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == listener.fileno():
                try:
                    client, _ = listener.accept()
                except BlockingIOError:
                    continue
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                clients[client.fileno()] = client
                poll.register(client, select.POLLIN)
                continue
            try:
                asked = clients[fd].recv(4096)
            except ConnectionResetError:
                asked = b""
            if not asked:
                poll.unregister(fd)
                clients.pop(fd).close()
                continue
            body = page(index, documents, int(asked.split(b" ", 2)[1].rsplit(b"/", 1)[1]))
            clients[fd].sendall(HEAD % len(body) + body)


listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", PORT))
listener.listen(64)
device = os.open("/dev/palimpsest", os.O_RDWR) if REGIONS == "regions" else None
index, documents = table(device), table(device)
open("/ready", "w").close()
serve(listener, index, documents)
