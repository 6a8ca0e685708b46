"""A network of its own for a test: one namespace a node, one for the clients, and a program in the middle that carries the packets.

    with Net(3) as net:                  # the calling thread, and every thread and process it starts, is inside now
        net.command(1, ["queen", ...])   # argv that runs in the namespace of node 1; its address is net.address(1)
        net.cut([1], [2, 3])             # both ways; one_way=True: only packets from the first to the second are lost
        net.slow(1, 2, delay_ms=20)      # per direction; loss, jitter
        net.heal()

Nodes are numbered from 1; CLIENTS is the test itself. Nothing is left on the machine: namespaces and interfaces live as long as
the file descriptors that this process holds. Needs root (of a user namespace will do: `unshare -Ur`), /dev/net/tun and `ip`.
"""
import ctypes
import fcntl
import mmap
import os
import shutil
import struct
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CLIENTS = 0

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MEMBERS_MAX = 16
LINK = struct.Struct("=4I2Q")
MTU = 16000

libc = ctypes.CDLL(None, use_errno=True)


class NotPermitted(Exception):
    """This machine does not let us make namespaces or interfaces; the text says what was missing."""


def switch_path():
    """QUEEN_CHAOS_SWITCH, or one made here by the compiler."""
    named = os.environ.get("QUEEN_CHAOS_SWITCH")
    if named:
        return named
    source = os.path.join(HERE, "switch.c")
    made = os.path.join(tempfile.gettempdir(), f"queen-chaos-switch-{os.getuid()}-{int(os.path.getmtime(source))}")
    if not os.path.exists(made):
        partial = f"{made}.{os.getpid()}"
        subprocess.run(["cc", "-std=gnu17", "-O2", "-Wall", "-Wextra", source, "-o", partial], check=True)
        os.rename(partial, made)
    return made


def enter(fd):
    if libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def make_namespace():
    """A new network namespace for the calling thread; its descriptor."""
    if libc.unshare(CLONE_NEWNET) != 0:
        raise NotPermitted(f"no network namespace may be made here ({os.strerror(ctypes.get_errno())})")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def make_interface(address):
    """A TUN interface in the calling thread's namespace; the descriptor at its other end."""
    try:
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"cluster", IFF_TUN | IFF_NO_PI))
    except OSError as error:
        raise NotPermitted(f"no TUN interface may be made here ({error})") from None
    for words in (["link", "set", "lo", "up"], ["addr", "add", f"{address}/24", "dev", "cluster"],
                  ["link", "set", "cluster", "mtu", str(MTU), "txqueuelen", "5000", "up"]):  # fmt: skip
        subprocess.run(["ip", *words], check=True)
    return fd


class Net:
    def __init__(self, nodes):
        self.nodes = nodes
        self.namespaces = {}
        self.home = self.switch = self.links = None

    def address(self, member):
        return f"10.0.0.{self.place(member) + 1}"

    def place(self, member):
        """The clients come last."""
        return self.nodes if member == CLIENTS else member - 1

    def __enter__(self):
        if shutil.which("ip") is None:
            raise NotPermitted("there is no `ip` (package iproute2)")
        self.home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        tuns = []
        try:
            for member in [*range(1, self.nodes + 1), CLIENTS]:
                self.namespaces[member] = make_namespace()
                tuns.append(make_interface(self.address(member)))
            control = tempfile.TemporaryFile()
            control.truncate(LINK.size * MEMBERS_MAX * MEMBERS_MAX)
            self.links = mmap.mmap(control.fileno(), 0)
            self.switch = subprocess.Popen(
                [switch_path(), f"/proc/self/fd/{control.fileno()}", *map(str, tuns)], stdin=subprocess.PIPE,
                pass_fds=(control.fileno(), *tuns))  # fmt: skip
            control.close()
        except BaseException:
            self.__exit__()
            raise
        finally:
            for fd in tuns:
                os.close(fd)
        return self

    def __exit__(self, *_):
        enter(self.home)
        if self.switch is not None:
            self.switch.stdin.close()
            self.switch.wait(10)
        for fd in [self.home, *self.namespaces.values()]:
            os.close(fd)
        self.namespaces = {}

    def command(self, node, argv):
        """(argv, descriptors to pass): the same process ends up running argv in the node's namespace."""
        fd = self.namespaces[node]
        return ["nsenter", f"--net=/proc/self/fd/{fd}", *argv], (fd,)

    # ---- faults ----

    def change(self, a, b, **fields):
        at = LINK.size * (self.place(a) * MEMBERS_MAX + self.place(b))
        names = ("cut", "delay_us", "jitter_us", "loss_ppm")
        for name, value in fields.items():
            struct.pack_into("=I", self.links, at + 4 * names.index(name), value)

    def counted(self, a, b):
        """(passed, dropped) packets from a to b."""
        at = LINK.size * (self.place(a) * MEMBERS_MAX + self.place(b))
        return struct.unpack_from("=2Q", self.links, at + 16)

    def cut(self, some, others, one_way=False):
        for a in some:
            for b in others:
                self.change(a, b, cut=1)
                if not one_way:
                    self.change(b, a, cut=1)

    def slow(self, a, b, delay_ms=0.0, jitter_ms=0.0, loss=0.0):
        self.change(a, b, delay_us=int(delay_ms * 1000), jitter_us=int(jitter_ms * 1000), loss_ppm=int(loss * 1000000))

    def everyone(self):
        return [*range(1, self.nodes + 1), CLIENTS]

    def heal(self):
        for a in self.everyone():
            for b in self.everyone():
                self.change(a, b, cut=0, delay_us=0, jitter_us=0, loss_ppm=0)
