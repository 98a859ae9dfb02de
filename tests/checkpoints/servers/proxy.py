"""A network that can fail: a relay between a client and a server, cut whenever a test says so."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PIECE_BYTES = 16 << 10


class Relay:
    """Breaks the next connections after so many bytes of an answer (`cuts`), or goes down for good (`lasts`)."""

    def __init__(self, behind: int) -> None:
        self._behind = behind
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self.cuts: list[int] = []
        self.lasts: int | None = None  # so many bytes more, either way
        self.sent = 0  # bytes from clients to the server
        self.broken = 0

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @contextmanager
    def running(self) -> Iterator["Relay"]:
        thread = threading.Thread(target=self._accept)
        thread.start()
        try:
            yield self
        finally:
            self._listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._behind))
            with self._lock:
                budget = self.cuts.pop(0) if self.cuts else None
            threading.Thread(target=self._relay, args=(client, server, None, True), daemon=True).start()
            threading.Thread(target=self._relay, args=(server, client, budget, False), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket, budget: int | None, requests: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                passed += len(piece)
                if not self._passes(len(piece), requests) or (budget is not None and passed > budget):
                    self.broken += 1
                    break
                target.sendall(piece)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        if not requests:
            source.close()
            target.close()

    def _passes(self, count: int, requests: bool) -> bool:
        with self._lock:
            if self.lasts is not None:
                self.lasts -= count
                if self.lasts < 0:
                    return False
            self.sent += count if requests else 0
            return True
