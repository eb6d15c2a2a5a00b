"""The attacks on a box, as a table; `attack_base` says what each of them wants.

`attack_answers` holds the lies, `attack_kernel` what a box would take from its host, `attack_texts` what nobody could
print.
"""

from __future__ import annotations

from attack_answers import ANSWERS
from attack_base import GONE, LIBC, Attack, f
from attack_kernel import KERNEL
from attack_texts import TEXTS

from evolvent.sandbox.limits import SandboxLimits

SIGNALLED = ("value", "raised", "killed")
_LOOP = "while True:\n    pass"


def _syscall(name: str, x86: int, arm: int, *args: object) -> Attack:
    given = "".join(f", {arg}" for arg in args)
    return Attack(f"system call {name}", f(f"return call({x86}, {arm}{given})", LIBC))


FILES = [
    Attack("host file", f("return open('@FILE@').read()")),
    Attack("host file through /proc/1/root", f("return open('/proc/1/root@FILE@').read()")),
    Attack("host file through /proc/1/cwd", f("return open('/proc/1/cwd/' + '../' * 9 + '@FILE@').read()")),
    Attack("host file through a link", f("os.symlink('@FILE@', 'x'); return open('x').read()", "import os")),
    Attack("hard link", f("os.link('@FILE@', 'x'); return open('x').read()", "import os")),
    Attack(
        "host folders", f("return 'escaped' if os.path.exists('@FOLDER@') or os.listdir('/home') else 0", "import os")
    ),
    Attack("/etc/passwd", f("return 'escaped' if open('/etc/passwd').read() else 0")),
    Attack("write to the secret", f("open('@FILE@', 'w').write('x'); return 'escaped'")),
    Attack("write to /usr", f("open('/usr/evolvent', 'w').write('x'); return 'escaped'")),
    Attack("write to /", f("open('/evolvent', 'w').write('x'); return 'escaped'")),
    Attack("write to /dev", f("open('/dev/evolvent', 'w').write('x'); return 'escaped'")),
    Attack(
        "write to child.py",
        f(
            """
        open(sys.modules["evolvent.sandbox.child"].__file__, "a").write("#")
        return 'escaped'""",
            "import sys",
        ),
    ),
    Attack("write to the standard library", f("open(os.__file__, 'a').write('#'); return 'escaped'", "import os")),
    Attack("write to the kernel's settings", f("open('/proc/sys/kernel/core_pattern', 'r+'); return 'escaped'")),
    Attack("sysrq", f("open('/proc/sysrq-trigger', 'w'); return 'escaped'")),
    Attack(
        "block device",
        f("os.mknod('x', 0o60666, os.makedev(254, 0)); open('x', 'rb').read(1); return 'escaped'", "import os"),
    ),
    Attack(
        "descriptors left open",
        f(
            """
        seen = ""
        for name in os.listdir("/proc/self/fd"):
            try:
                os.set_blocking(int(name), False)
                seen += os.read(int(name), 100000).decode("utf-8", "replace")
            except OSError:
                pass
            seen += str(os.path.exists("/proc/self/fd/" + name + "@FILE@"))
        return "escaped" if "True" in seen else seen""",
            "import os",
        ),
    ),
    Attack(
        "/proc of others",
        f(
            """
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) == @PARENT@:
                return "escaped" if b"pytest" in open(f"/proc/{name}/cmdline", "rb").read() else 0""",
            "import os",
        ),
    ),
]
ENVIRONMENT = [
    Attack("environment", f("return os.environ.get('EVOLVENT_SECRET')", "import os")),
    Attack(
        "environment of /proc/1",
        f("""
        text = open("/proc/1/environ").read()
        return text.split("EVOLVENT_SECRET=")[1].split("\\0")[0] if "EVOLVENT_SECRET=" in text else text"""),
    ),
    Attack(
        "environment of all processes",
        f(
            """
        text = "".join(open(f"/proc/{name}/environ").read() for name in os.listdir("/proc") if name.isdigit())
        return text.split("EVOLVENT_SECRET=")[1].split("\\0")[0] if "EVOLVENT_SECRET=" in text else text""",
            "import os",
        ),
    ),
]
NETWORK = [
    Attack(
        "TCP to the host",
        f("return socket.create_connection(('127.0.0.1', @PORT@), 1).recv(99).decode()", "import socket"),
    ),
    Attack("TCP elsewhere", f("socket.create_connection(('1.1.1.1', 53), 1); return 'escaped'", "import socket")),
    Attack("UDP elsewhere", f("socket.socket(2, 2).sendto(b'x', ('8.8.8.8', 53)); return 'escaped'", "import socket")),
    Attack("names of hosts", f("return 'escaped' if socket.gethostbyname('example.com') else 0", "import socket")),
    Attack(
        "abstract socket",
        f(
            """
        line = socket.socket(socket.AF_UNIX)
        line.connect("\\0@ABSTRACT@")
        return line.recv(99).decode()""",
            "import socket",
        ),
    ),
    Attack("vsock", f("socket.socket(40, 1); return 'escaped'", "import socket")),
    Attack("netlink", f("socket.socket(16, 3); return 'escaped'", "import socket")),
    Attack("raw socket", f("socket.socket(2, 3, 1); return 'escaped'", "import socket")),
]
RESOURCES = [
    Attack("fork bomb", f("while True:\n    os.fork()", "import os"), (*GONE, "raised", "malformed")),
    Attack(
        "thread bomb",
        f("while True:\n    threading.Thread(target=time.sleep, args=(60,)).start()", "import threading, time"),
        ("limit", "raised", "killed", "timeout"),
    ),
    Attack("memory at once", f("return len(bytearray(10 * 2**30))"), ("raised",)),
    Attack("memory slowly", f("kept = []\nwhile True:\n    kept.append(bytearray(2**20))"), ("raised", *GONE)),
    Attack(
        "memory over many processes",
        f(
            """
        for _ in range(16):
            if os.fork() == 0:
                kept = bytearray(os.urandom(2**20)) * 100
                time.sleep(60)
        time.sleep(60)""",
            "import os, time",
        ),
        GONE,
    ),
    Attack("memory that belongs to no process", f("return 'escaped' if os.memfd_create('x') else 0", "import os")),
    Attack(
        "memory in sockets",
        f(
            """
        kept = socket.socketpair()
        kept[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**30)
        return 'escaped'""",
            "import socket",
        ),
    ),
    Attack(
        "memory in sockets of many processes",
        f(
            """
        for _ in range(16):
            if os.fork() == 0:
                kept = [end for _ in range(28) for end in socket.socketpair()]
                for end in kept:
                    end.setblocking(False)
                    try:
                        while True:
                            end.send(bytes(65536))
                    except BlockingIOError:
                        pass
                time.sleep(60)
        time.sleep(60)""",
            "import os, socket, time",
        ),
        ("limit",),
        SandboxLimits(total_mb=128),
    ),
    Attack(
        "shared memory",
        f("""
        for number in range(100):
            open(f"/dev/shm/{number}", "wb").write(bytes(2**20))
        return 'escaped'"""),
    ),
    Attack("spin", f(_LOOP), GONE),
    Attack("spin over the CPU limit", f(_LOOP), ("limit", "timeout"), SandboxLimits(cpu_s=1, wall_s=8)),
    Attack(
        "spin, and ignore SIGXCPU",
        f(_LOOP, "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)"),
        GONE,
        SandboxLimits(cpu_s=1, wall_s=4),
    ),
    Attack("spin in C", f("return 'escaped' if 9**9**9 else 0"), GONE),
    Attack("spin while loading", f"{_LOOP}\ndef f(): return 0", GONE),
    Attack("sleep", f("time.sleep(60)", "import time"), ("timeout",)),
    Attack(
        "sleep, and ignore all signals",
        f(
            """
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        while True:
            time.sleep(60)""",
            "import signal, time",
        ),
        ("timeout",),
    ),
    Attack("endless output", f("while True:\n    print('x' * 1000)"), GONE),
    Attack("endless output past Python", f("while True:\n    os.write(1, b'x' * 4096)", "import os"), GONE),
    Attack("endless errors", f("while True:\n    os.write(2, b'x' * 4096)", "import os"), GONE),
    Attack(
        "big file",
        f("""
        with open("x", "wb") as file:
            for _ in range(100):
                file.write(bytes(2**20))
        return 'escaped'"""),
    ),
    Attack(
        "full working folder",
        f("""
        for number in range(1000):
            open(str(number), "wb").write(bytes(2**20))
        return 'escaped'"""),
    ),
    Attack(
        "endless names",
        f("number = 0\nwhile True:\n    open(str(number), 'w').close()\n    number += 1"),
        ("raised", *GONE),
    ),
    Attack("all descriptors", f("kept = [open('/dev/null') for _ in range(1000)]\nreturn 'escaped'")),
    Attack(
        "zip bomb",
        f(
            """
        small = zlib.compress(bytes(2**28))
        return len(zlib.decompress(small) * 40)""",
            "import zlib",
        ),
        ("raised", *GONE),
    ),
    Attack("recursion", f("return f()"), ("raised",)),
    Attack(
        "recursion past the limit",
        f("sys.setrecursionlimit(10**9); return g()", "import sys\ndef g(): return [g() for _ in (1,)]"),
        ("raised", *GONE),
    ),
    Attack("segmentation fault", f("return ctypes.string_at(0)", "import ctypes"), ("killed",)),
]
PROCESSES = [
    Attack(
        "daemon",
        f(
            """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                open("alive", "w").close()
                time.sleep(600)
            os._exit(0)
        while not os.path.exists("alive"):
            time.sleep(0.01)
        return 0""",
            "import os, time",
        ),
    ),
    Attack("kill the parent", f("os.kill(os.getppid(), 9); return 'not escaped'", "import os"), SIGNALLED),
    Attack("kill process 1", f("os.kill(1, 9); return 'not escaped'", "import os"), SIGNALLED),
    Attack("kill all", f("os.kill(-1, 9); return 'not escaped'", "import os"), SIGNALLED),
    Attack("kill the host's process", f("os.kill(@PARENT@, 15); return 'escaped'", "import os")),
    _syscall("ptrace of 1", 101, 117, 16, 1, 0, 0),
    Attack("ptrace of the parent", f("return call(101, 117, 16, os.getppid(), 0, 0)", LIBC)),
    _syscall("process_vm_readv", 310, 270, 1, 0, 0, 0, 0, 0),
    _syscall("unshare of users", 272, 97, 0x10000000),
    _syscall("unshare of mounts", 272, 97, 0x20000),
    _syscall("clone of users", 56, 220, 0x10000011, 0, 0, 0, 0),
    _syscall("clone3", 435, 435, 0, 0),
    _syscall("setns", 308, 268, 0, 0),
    _syscall("mount", 165, 40, "b'none'", "b'/tmp'", "b'tmpfs'", 0, 0),
    _syscall("umount", 166, 39, "b'/proc'", 2),
    _syscall("fsopen", 430, 430, "b'tmpfs'", 0),
    _syscall("pivot_root", 155, 41, "b'.'", "b'.'"),
    _syscall("chroot", 161, 51, "b'/tmp'"),
    _syscall("bpf", 321, 280, 0, 0, 0),
    _syscall("perf_event_open", 298, 241, 0, 0, -1, -1, 0),
    _syscall("keyctl", 250, 219, 0, -3, 1),
    _syscall("add_key", 248, 217, "b'user'", "b'x'", "b'y'", 1, -3),
    _syscall("userfaultfd", 323, 282, 1),
    _syscall("io_uring_setup", 425, 425, 8, "ctypes.create_string_buffer(120)"),
    _syscall("kexec_load", 246, 104, 0, 0, 0, 0),
    _syscall("init_module", 175, 105, 0, 0, "b''"),
    _syscall("personality", 135, 92, 0xFFFFFFFF),
    _syscall("open_by_handle_at", 304, 265, -100, 0, 0),
    _syscall(
        "name_to_handle_at",
        303,
        264,
        -100,
        "b'/'",
        "ctypes.create_string_buffer(200)",
        "ctypes.create_string_buffer(8)",
        0,
    ),
    Attack(
        "system call by the numbers of x32",
        f(
            """
        return call(0x40000000 + 102, 174) if platform.machine() == "x86_64" else 0""",
            LIBC,
        ),
    ),
    Attack("become root", f("os.setuid(0); return 'escaped' if os.getuid() == 0 else 0", "import os")),
    Attack(
        "raise own limits",
        f(
            """
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
        return 'escaped'""",
            "import resource",
        ),
    ),
    Attack("put keys into a terminal", f("fcntl.ioctl(0, 0x5412, b'x'); return 'escaped'", "import fcntl")),
]
PLAIN = (*FILES, *ENVIRONMENT, *NETWORK, *RESOURCES, *PROCESSES, *ANSWERS)
ATTACKS = (*PLAIN, *KERNEL, *TEXTS)
