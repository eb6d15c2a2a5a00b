"""Attacks on objects that the kernel counts for a user or for the machine, so that a box would take them from its host.

Most are one system call that has to be refused; some create objects in small numbers until the box's own limit is met,
which is far below what the host has, and hold what they took, so that watching from outside has to see it. Nothing is
changed if a box should not contain one of them: a file gets the name and the rights that it has.
"""

from __future__ import annotations

import textwrap

from attack_base import DENIED, LIBC, Attack, f

from evolvent.sandbox.limits import SandboxLimits

_HOST_FILE = "open(os.__file__)"  # of Python's library, read-only and shared with the host
_WIDE = SandboxLimits(wall_s=4.0, cpu_s=5, memory_mb=256, total_mb=256, processes=24)


def _refused(name: str, x86: int, arm: int, *args: object, before: str = "") -> Attack:
    """A call that is refused whatever its arguments are: any other failure is one of the arguments, and an escape."""
    given = "".join(f", {arg}" for arg in args)
    return Attack(f"kernel: {name}", f(f"return refused({x86}, {arm}{given})", f"{LIBC}\n{before}"))


def _tried(name: str, body: str, before: str = "", ends: tuple[str, ...] = DENIED) -> Attack:
    return Attack(f"kernel: {name}", f(body, f"{LIBC}\nimport fcntl, resource, signal, socket, time\n{before}"), ends)


def _held(
    name: str, body: str, before: str = "", limits: SandboxLimits = _WIDE, ends: tuple[str, ...] = ("limit",)
) -> Attack:
    """Takes objects, holds them for a while, and says that it got away with it."""
    imports = "import fcntl, os, select, signal, socket, threading, time"
    body = f"{textwrap.dedent(body)}\ntime.sleep(2)\nreturn 'escaped'"
    return Attack(f"kernel: {name}", f(body, f"{imports}\n{before}"), ends, limits)


_FORKED = """
def forked(count, work):
    for _ in range(count):
        if os.fork() == 0:
            kept = work()
            time.sleep(60)
"""
COUNTED = [
    _refused("inotify_init1", 294, 26, 0),
    _tried("inotify_init", "return refused(253, 10**6) if platform.machine() == 'x86_64' else 0"),
    _refused("inotify_add_watch", 254, 27, -1, "b'/usr'", 2),
    _refused("fanotify_init for everybody", 300, 262, 0x200, 0),
    _refused("request_key", 249, 218, "b'user'", "b'x'", 0, 0),
    _refused("keyctl: join a session", 250, 219, 1, 0),
    _refused("io_setup", 206, 0, 1, "ctypes.create_string_buffer(8)"),
    _refused("mq_open", 240, 180, "b'evolvent'", 0o102, 0o600, 0),
    _refused("shmget", 29, 194, 0, 4096, 0o1600),
    _refused("semget", 64, 190, 0, 1, 0o1600),
    _refused("msgget", 68, 186, 0, 0o1600),
    _refused("memfd_secret", 447, 447, 0),
    _refused("a filter of its own", 317, 277, 1, 0, 0),
    _refused("a filter of its own by prctl", 157, 167, 22, 2, 0, 0, 0),
    _refused("a listener on a filter", 317, 277, 1, 8, 0),
    _refused("to be hidden from watching", 157, 167, 4, 0, 0, 0, 0),
    _refused("a processor core for itself", 157, 167, 62, 1, 0, 0, 0),
    _refused("pages set aside by the host", 9, 222, 0, 2**21, 3, 0x40022, -1, 0),
    _refused("a thread with descriptors of its own", 56, 220, 0x10900, 0, 0, 0, 0),
    _refused("a process with descriptors of another", 56, 220, 0x411, 0, 0, 0, 0),
    _refused("a copy of the descriptors", 436, 436, 2**31, 2**31, 2),
    _refused("open_tree_attr", 467, 467, -100, "b'/usr'", 1, 0, 0),
    _refused("mount_setattr", 442, 442, -100, "b'/usr'", 0, 0, 0),
    _refused("a call of a newer kernel", 480, 480),
    _tried("write out all files", "return 'escaped' if raw(306, 267, -1) == -1 else raw(162, 81)"),
    _tried("empty the cache of a file", "return 'escaped' if raw(221, 223, -1, 0, 0, 4) == -1 else 0"),
]
LOCKS = [
    _tried(
        "exclusive lock on a file of the host",
        f"fcntl.flock({_HOST_FILE}, fcntl.LOCK_EX | fcntl.LOCK_NB); return 'escaped'",
    ),
    _tried(
        "shared lock on a file of the host",
        f"fcntl.flock({_HOST_FILE}, fcntl.LOCK_SH | fcntl.LOCK_NB); return 'escaped'",
    ),
    _tried(
        "lock on a folder of the host",
        "fcntl.flock(os.open('/usr', os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB); return 'escaped'",
    ),
    _tried(
        "lease on a file of the host", f"fcntl.fcntl({_HOST_FILE}, fcntl.F_SETLEASE, fcntl.F_RDLCK); return 'escaped'"
    ),
    _tried(
        "notices about a folder of the host",
        "fcntl.fcntl(os.open('/usr', os.O_RDONLY), fcntl.F_NOTIFY, 1); return 'escaped'",
    ),
    _tried("lock of an open file of the host", f"fcntl.fcntl({_HOST_FILE}, 37, bytes(32)); return 'escaped'"),
    _tried("signals of a file to others", "fcntl.fcntl(1, fcntl.F_SETOWN, -1); return 'escaped'"),
    _held("range lock on a file of the host", f"kept = {_HOST_FILE}\nfcntl.lockf(kept, fcntl.LOCK_SH | fcntl.LOCK_NB)"),
    _held(
        "range lock on a file of the host by another process",
        f"if os.fork() == 0:\n    kept = {_HOST_FILE}\n    fcntl.lockf(kept, fcntl.LOCK_SH)\n    time.sleep(60)",
    ),
    _held("range lock on a device of the host", "kept = open('/dev/null', 'r+')\nfcntl.lockf(kept, fcntl.LOCK_EX)"),
    _held(
        "endless locks on its own file",
        "kept = open('x', 'w')\nfor place in range(3000):\n    fcntl.lockf(kept, fcntl.LOCK_EX, 1, 2 * place)",
    ),
]
HELD = [
    _held(
        "endless pipes",
        "forked(8, lambda: [os.pipe() for _ in range(20)])",
        _FORKED,
    ),
    _held(
        "endless named pipes",
        """
        for number in range(90):
            os.mkfifo(str(number))
        for part in range(3):
            if os.fork() == 0:
                kept = [os.open(str(30 * part + k), os.O_RDWR) for k in range(30)]
                time.sleep(60)""",
    ),
    _held(
        "watches of epoll",
        """
        def take():
            polls, ends = [select.epoll() for _ in range(20)], os.pipe()
            for poll in polls:
                poll.register(ends[0])
            return polls, ends
        forked(6, take)""",
        _FORKED,
    ),
    _held(
        "memory in connections that nobody accepts",
        """
        door = socket.socket(socket.AF_UNIX)
        door.bind("door")
        door.listen(2000)
        for _ in range(1500):
            with socket.socket(socket.AF_UNIX) as line:
                line.connect("door")
                line.setblocking(False)
                line.send(b"x")""",
    ),
    _held(
        "memory in datagrams of senders that are gone",
        """
        def take():
            kept = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(30)]
            for number, door in enumerate(kept):
                name = f"{os.getpid()}-{number}"
                door.bind(name)
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                    line.sendto(b"x", name)
            return kept
        forked(4, take)""",
        _FORKED,
    ),
    _held(
        "sockets under way in a socket",
        """
        kept = socket.socketpair()
        for _ in range(2):
            ends = [end for _ in range(14) for end in socket.socketpair()]
            socket.send_fds(kept[0], [b"x"], [end.fileno() for end in ends])
            for end in ends:
                end.close()
        """,
        limits=SandboxLimits(wall_s=4.0, processes=24, total_mb=16),
    ),
    _held(
        "memory of processes whose first threads have ended",
        """
        for _ in range(6):
            if os.fork() == 0:
                def stay():
                    time.sleep(0.3)
                    kept = bytearray(os.urandom(2**20)) * 60
                    time.sleep(60)
                threading.Thread(target=stay).start()
                ctypes.CDLL(None).syscall(ctypes.c_long(60 if platform.machine() == "x86_64" else 93), 0)""",
        "import ctypes, platform",
    ),
    _held(
        "threads of a process whose first thread has ended",
        """
        if os.fork() == 0:
            for _ in range(30):
                threading.Thread(target=time.sleep, args=(60,)).start()
            ctypes.CDLL(None).syscall(ctypes.c_long(60 if platform.machine() == "x86_64" else 93), 0)""",
        "import ctypes, platform",
        ends=("limit", "raised"),
    ),
]
LOWERED = [
    _tried(
        "timers",
        """
        made = 0
        while made < 200 and raw(222, 107, 1, 0, ctypes.create_string_buffer(8)) == 0:
            made += 1
        return "escaped" if made > 64 else made""",
    ),
    _tried(
        "signals that wait",
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
        sent = 0
        while sent < 200 and libc.sigqueue(os.getpid(), int(signal.SIGRTMIN), None) == 0:
            sent += 1
        return "escaped" if sent > 64 else sent""",
    ),
    _tried("memory that cannot be swapped", "return call(149, 228, id(call) & ~4095, 4096)"),
    _tried("all memory that cannot be swapped", "return call(151, 230, 2)"),
    _tried("memory that cannot be swapped when it is used", "return call(325, 284, id(call) & ~4095, 4096, 1)"),
    _tried(
        "mapped memory that cannot be swapped",
        "mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x2000); return 'escaped'",
        "import mmap",
    ),
    *(
        _tried(f"more {name.lower()}", f"resource.setrlimit(resource.RLIMIT_{name}, (2**20, 2**20)); return 'escaped'")
        for name in ("MEMLOCK", "SIGPENDING", "MSGQUEUE", "NPROC", "NOFILE", "RTPRIO", "NICE", "CPU")
    ),
    _tried("a larger pipe", "fcntl.fcntl(os.pipe()[0], 1031, 2**20); return 'escaped'"),
    _tried(
        "a filter on a socket",
        """
        program = ctypes.create_string_buffer(bytes([6, 0, 0, 0, 255, 255, 0, 0]))
        head = (1).to_bytes(8, "little") + ctypes.addressof(program).to_bytes(8, "little")
        socket.socket(socket.AF_UNIX).setsockopt(socket.SOL_SOCKET, 26, head)
        return 'escaped'""",
    ),
    _tried("a larger buffer by force", "socket.socket(socket.AF_UNIX).setsockopt(1, 32, 2**24); return 'escaped'"),
    _tried("a terminal", "os.openpty(); return 'escaped'"),
    _tried("the maker of terminals", "open('/dev/pts/ptmx', 'r+b', 0); return 'escaped'"),
    _tried("a file system of terminals", "os.mkdir('/dev/pts/x'); return 'escaped'"),
    _tried(
        "devices of the machine",
        """
        names = ("mem", "kmsg", "kvm", "fuse", "loop-control", "net/tun", "userfaultfd", "mapper/control", "snd", "dri")
        return "escaped" if any(os.path.exists("/dev/" + name) for name in names) else 0""",
    ),
]
HOST = [
    _tried("priority of all processes of the user", "os.setpriority(os.PRIO_USER, 0, 1); return 0"),
    _tried("a higher priority", "os.setpriority(os.PRIO_PROCESS, 0, -1); return 'escaped'"),
    _tried("priority of the host's process", "os.setpriority(os.PRIO_PROCESS, @PARENT@, 1); return 'escaped'"),
    _tried("the real-time scheduler", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); return 'escaped'"),
    _tried(
        "processors of the host's process", "os.sched_setaffinity(@PARENT@, os.sched_getaffinity(0)); return 'escaped'"
    ),
    _tried("limits of the host's process", "resource.prlimit(@PARENT@, resource.RLIMIT_CORE); return 'escaped'"),
    _tried("a descriptor for the host's process", "os.pidfd_open(@PARENT@); return 'escaped'"),
    _tried("a signal to a thread of the host", "return call(234, 131, @PARENT@, @PARENT@, 0)"),
    _tried("a queued signal to the host", "return call(129, 138, @PARENT@, 0, ctypes.create_string_buffer(128))"),
    _tried("memory of the host's process", "return call(448, 448, @PARENT@, 0)"),
    _tried(
        "a trace of threads of the host",
        "return call(274, 100, @PARENT@, ctypes.create_string_buffer(8), ctypes.create_string_buffer(8))",
    ),
    _tried("to stop the first process", "os.kill(1, signal.SIGSTOP); return 0"),
    _tried("to stop itself", "os.kill(os.getpid(), signal.SIGSTOP)", ends=("timeout",)),
    _tried("to move into another group", "open('/sys/fs/cgroup/cgroup.procs', 'w').write('0'); return 'escaped'"),
    _tried("users of its own", "open('/proc/self/uid_map', 'w').write('0 0 1'); return 'escaped'"),
    _tried("to be killed last", "open('/proc/self/oom_score_adj', 'w').write('-1'); return 'escaped'"),
    _tried("memory of the first process", "open('/proc/1/mem', 'r+b', 0).write(b''); return 'escaped'"),
    _tried("more watches of inotify", "open('/proc/sys/fs/inotify/max_user_instances', 'r+'); return 'escaped'"),
    _tried("keys of the host", "return 'escaped' if '@PARENT@' in open('/proc/keys').read().split() else 0"),
    _tried(
        "times of a file of the host", "os.utime(os.__file__, (10**9, os.stat(os.__file__).st_mtime)); return 'escaped'"
    ),
    _tried("rights of a file of the host", "os.chmod(os.__file__, os.stat(os.__file__).st_mode); return 'escaped'"),
    _tried("a name of a file of the host", "os.rename(os.__file__, os.__file__); return 'escaped'"),
    _tried(
        "an attribute of a file of the host",
        """
        if raw(197, 14, os.__file__.encode(), b"user.evolvent") == 0 or ctypes.get_errno() == errno.ENODATA:
            return "escaped"  # there is none to remove, and it would have been removed""",
    ),
    _tried("a file without a name beside the host's", "os.open('/usr', os.O_TMPFILE | os.O_RDWR); return 'escaped'"),
    _tried("a device node", "os.mknod('x', 0o20600, os.makedev(1, 1)); open('x', 'rb').read(1); return 'escaped'"),
    _tried(
        "a program of root",
        """
        import subprocess
        for name in ("/usr/bin/su", "/usr/bin/sudo", "/usr/bin/mount", "/usr/bin/passwd"):
            if os.path.exists(name):
                subprocess.run([name, "--version"], capture_output=True, timeout=1)
        found = subprocess.run(["/usr/bin/id", "-u"], capture_output=True).stdout
        return "escaped" if found.strip() != b"65534" else 0""",
    ),
]
KERNEL = (*COUNTED, *LOCKS, *HELD, *LOWERED, *HOST)
