"""A TCP man in the middle that cuts connections: in the middle of a request, or when its answer is on its way back."""
import random
import select
import socket
import threading


class CutProxy:
    """Forwards connections to 127.0.0.1:target. Of the pieces that pass, a share `cut` ends the connection:

    towards the broker: a part of the piece is passed on, then both sides are closed (a request without its end, mostly);
    towards the client: the piece is dropped and both sides are closed (the answer exists, the client never sees it).

    One thread a connection, in this process. close() ends them all."""

    def __init__(self, target, seed, cut=0.02):
        self.target, self.cut = target, cut
        self.rng = random.Random(seed)
        self.lock = threading.Lock()
        self.requests_cut = self.answers_cut = 0
        self.closing = False
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.listener.settimeout(0.2)
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.accept_loop, daemon=True)
        self.thread.start()

    def close(self):
        self.closing = True
        self.thread.join(10)
        self.listener.close()

    def accept_loop(self):
        while not self.closing:
            try:
                client, _ = self.listener.accept()
            except TimeoutError:
                continue
            threading.Thread(target=self.carry, args=(client,), daemon=True).start()

    def carry(self, client):
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:
            client.close()
            return
        with client, server:
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                while not self.closing and self.carry_once(client, server):
                    pass
            except OSError:
                pass

    def carry_once(self, client, server):
        """Waits for a piece on either side and passes it on. False: the connection is over."""
        ready, _, _ = select.select([client, server], [], [], 0.5)
        for end in ready:
            piece = end.recv(1 << 16)
            if not piece:
                return False
            with self.lock:
                cut = self.rng.random() < self.cut
                part = self.rng.randrange(len(piece)) if cut else len(piece)
                self.requests_cut += cut and end is client
                self.answers_cut += cut and end is server
            if end is client:
                server.sendall(piece[:part])
            elif not cut:
                client.sendall(piece)
            if cut:
                return False
        return True
