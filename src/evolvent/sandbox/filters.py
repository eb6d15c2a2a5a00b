"""The system calls that a sandbox may not make: a seccomp program, written here so that no library is needed for it.

A program is a sequence of classic BPF instructions (Linux, Documentation/userspace-api/seccomp_filter.rst) over
`struct seccomp_data`: the number at offset 0, the architecture at 4, six arguments of 64 bits from 16. Only forward
jumps exist. Everything is allowed except the listed calls: a sandbox has no capabilities and nothing to reach; the
lists remove the calls by which kernels were broken from inside, memory that no limit counts, and kernel objects that
are counted per user or per machine, so that a sandbox would take them from its host.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evolvent.errors import IsolationUnavailable

__all__ = [
    "ALLOW",
    "ANSWERS",
    "CHECKS",
    "DENIED",
    "KILL",
    "MACHINES",
    "NAMESPACES",
    "UNKNOWN_CALL",
    "ArgumentCheck",
    "Machine",
    "errno",
    "program",
]

ALLOW = 0x7FFF0000  # SECCOMP_RET_ALLOW
KILL = 0x80000000  # SECCOMP_RET_KILL_PROCESS
_EPERM, _EINVAL, _ENOSYS, _EAFNOSUPPORT = 1, 22, 38, 97
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_CALL_NUMBER, _ARCH, _FIRST_ARGUMENT, _ARGUMENT_BYTES = 0, 4, 16, 8  # of an argument the lower half comes first
_X32 = 0x40000000
UNKNOWN_CALL = 470  # the first number that this list does not know: Linux 6.17 ends with file_setattr, 469

# CLONE_NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET; NEWTIME (0x80) shares its bit with the exit signal
NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_CLONE_FILES, _CLONE_THREAD = 0x400, 0x10000

_Numbers = tuple[int | None, int | None]
_Row = tuple[int, int, int, int]

# name: (x86_64, aarch64); None: not there
DENIED: Mapping[str, _Numbers] = {
    # other processes and their memory
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    # parts of the kernel that boxes have no use for
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "uselib": (134, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "lookup_dcookie": (212, 18),
    "vhangup": (153, 58),
    "seccomp": (317, 277),
    "syslog": (103, 116),
    "acct": (163, 89),
    # the machine
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # memory that belongs to no process, so that no limit of the box counts it
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    # objects that the kernel counts for a user or for the machine, and locks on files that are shared with the host
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "inotify_add_watch": (254, 27),
    "io_setup": (206, 0),
    "flock": (73, 32),
}

# Calls that are answered with an error number and not carried out. clone3's flags lie in memory, where no program can
# look, and C libraries fall back to clone. 0 is success: advice, and writing out all files of the machine, are not
# needed for a right result.
ANSWERS: Mapping[str, tuple[_Numbers, int]] = {
    "clone3": ((435, 435), _ENOSYS),
    "sync": ((162, 81), 0),
    "syncfs": ((306, 267), 0),
    "fadvise64": ((221, 223), 0),
}


@dataclass(frozen=True, slots=True)
class ArgumentCheck:
    """A call of which one argument is checked; the lower 32 bits are all that the kernel reads of it, too.

    Args:
        numbers: numbers of the call on x86_64 and aarch64; None: not there.
        argument: index of the argument.
        refused: values that are refused.
        allowed: values that are allowed, all others being refused; None: all that `refused` does not name.
        refused_bits: bits of which none may be set.
        error: error number of a refusal.
    """

    numbers: _Numbers
    argument: int
    refused: tuple[int, ...] = ()
    allowed: tuple[int, ...] | None = None
    refused_bits: int = 0
    error: int = _EPERM

    def rows(self) -> list[_Row]:
        """Returns the instructions, to be followed by one that allows."""
        refuse = (_RETURN, 0, 0, errno(self.error))
        rows = [(_LOAD, 0, 0, _FIRST_ARGUMENT + _ARGUMENT_BYTES * self.argument)]
        rows += [(_ANY_BIT, 0, 1, self.refused_bits), refuse] if self.refused_bits else []
        rows += [row for value in self.refused for row in ((_EQUAL, 0, 1, value), refuse)]
        if self.allowed is not None:
            rows += [(_EQUAL, len(self.allowed) - index, 0, value) for index, value in enumerate(self.allowed)]
            rows.append(refuse)
        return rows


CHECKS: Mapping[str, ArgumentCheck] = {
    # A thread shares its descriptors with its process and nobody else does: what a process holds stays visible.
    "clone": ArgumentCheck((56, 220), 0, refused_bits=NAMESPACES),
    "close_range": ArgumentCheck((436, 436), 2, refused_bits=0x2),  # CLOSE_RANGE_UNSHARE
    "ioctl": ArgumentCheck((16, 29), 1, refused=(0x5412,)),  # TIOCSTI puts characters into a terminal's input
    # Unix sockets alone, which event loops and pools of processes use; there is nobody to talk to over the others.
    "socket": ArgumentCheck((41, 198), 0, allowed=(1,), error=_EAFNOSUPPORT),
    # SO_SNDBUF, SO_RCVBUF and their FORCE, SO_ATTACH_FILTER, _BPF, _REUSEPORT_CBPF and _EBPF: memory of no process
    "setsockopt": ArgumentCheck((54, 208), 2, refused=(7, 8, 32, 33, 26, 50, 51, 52)),
    # F_DUPFD to F_SETLKW, F_DUPFD_CLOEXEC, F_GETPIPE_SZ, F_GET_SEALS: not leases, notices, larger pipes, signals to
    # others, and locks that outlive the process which took them. Unknown commands have the same answer.
    "fcntl": ArgumentCheck((72, 25), 1, allowed=(*range(8), 1030, 1032, 1034), error=_EINVAL),
    "prctl": ArgumentCheck((157, 167), 0, refused=(4, 22, 62)),  # PR_SET_DUMPABLE (hides), _SECCOMP, PR_SCHED_CORE
    "mmap": ArgumentCheck((9, 222), 3, refused_bits=0x40000),  # MAP_HUGETLB: pages that the host has set aside
}


@dataclass(frozen=True, slots=True)
class Machine:
    """Constants of an architecture: AUDIT_ARCH_*, and its column of the tables."""

    audit: int
    column: int


MACHINES: Mapping[str, Machine] = {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1)}


def errno(number: int) -> int:
    """Returns the action that makes a call fail with an error number: SECCOMP_RET_ERRNO. 0 makes it succeed."""
    return 0x00050000 | number


def program(machine: str) -> bytes:
    """Returns the program for a machine, as `bwrap --seccomp` reads it: an array of `struct sock_filter`.

    Another architecture's calls (32 bits on x86_64) end the process; x32's, which have their own numbers, are refused.
    Calls that this list does not know do not exist: a new kernel's objects are refused until they are understood.

    Args:
        machine: name of the architecture, as `platform.machine()` returns it.

    Raises:
        IsolationUnavailable: no table for this machine.
    """
    constants = MACHINES.get(machine)
    if constants is None:
        raise IsolationUnavailable(
            "unsupported machine for the seccomp filter", value=machine, expected=", ".join(MACHINES)
        )
    rows: list[_Row] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, constants.audit),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _CALL_NUMBER),
    ]
    if constants.column == 0:
        rows += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, errno(_EPERM))]
    rows += [(_AT_LEAST, 0, 1, UNKNOWN_CALL), (_RETURN, 0, 0, errno(_ENOSYS))]
    answers = [(numbers, _EPERM) for numbers in DENIED.values()] + list(ANSWERS.values())
    for numbers, error in answers:
        rows += _for_call(numbers[constants.column], [(_RETURN, 0, 0, errno(error))])
    for name, check in CHECKS.items():
        extra = _check_shared_descriptors() if name == "clone" else []
        rows += _for_call(check.numbers[constants.column], [*check.rows(), *extra, (_RETURN, 0, 0, ALLOW)])
    rows.append((_RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *row) for row in rows)


def _for_call(number: int | None, body: Sequence[_Row]) -> list[_Row]:
    """Returns rows that run the body for one call; a call that is not there needs none."""
    return [] if number is None else [(_EQUAL, 0, len(body), number), *body]


def _check_shared_descriptors() -> list[_Row]:
    """Returns rows that refuse clone's flags where one of CLONE_THREAD and CLONE_FILES stands without the other."""
    refuse = (_RETURN, 0, 0, errno(_EPERM))
    return [
        (_ANY_BIT, 0, 2, _CLONE_THREAD),
        (_ANY_BIT, 3, 0, _CLONE_FILES),
        refuse,
        (_ANY_BIT, 0, 1, _CLONE_FILES),
        refuse,
    ]
