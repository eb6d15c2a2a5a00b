"""The system calls that a sandbox may not make: a seccomp program, written here so that no library is needed for it.

A program is a sequence of classic BPF instructions (Linux, Documentation/userspace-api/seccomp_filter.rst) over
`struct seccomp_data`: the number at offset 0, the architecture at 4, six arguments of 64 bits from 16. Only forward
jumps exist. Everything is allowed except the listed calls: a sandbox has no capabilities and nothing to reach; the
list removes the calls by which kernels were broken from inside, and memory that no limit counts.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evolvent.errors import IsolationUnavailable

__all__ = ["ALLOW", "BUFFERS", "DENIED", "FAMILIES", "KILL", "MACHINES", "NAMESPACES", "Machine", "errno", "program"]

ALLOW = 0x7FFF0000  # SECCOMP_RET_ALLOW
KILL = 0x80000000  # SECCOMP_RET_KILL_PROCESS
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# offsets; of an argument its lower half, on little-endian machines
_CALL_NUMBER, _ARCH, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 24, 32
_X32 = 0x40000000
_TIOCSTI = 0x5412  # puts characters into a terminal's input

# CLONE_NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET; NEWTIME (0x80) shares its bit with the exit signal
NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
FAMILIES = (1,)  # unix, which event loops and pools of processes use; there is nobody to talk to over the others
BUFFERS = (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF and their FORCE: what waits in a socket is memory of no process

# name: (x86_64, aarch64); None: not there
DENIED: Mapping[str, tuple[int | None, int | None]] = {
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
}


@dataclass(frozen=True, slots=True)
class Machine:
    """Constants of an architecture: AUDIT_ARCH_*, its column, and the calls whose arguments are checked."""

    audit: int
    column: int
    clone: int
    clone3: int
    ioctl: int
    socket: int
    setsockopt: int


MACHINES: Mapping[str, Machine] = {
    "x86_64": Machine(0xC000003E, 0, 56, 435, 16, 41, 54),
    "aarch64": Machine(0xC00000B7, 1, 220, 435, 29, 198, 208),
}


def errno(number: int) -> int:
    """Returns the action that makes a call fail with an error number: SECCOMP_RET_ERRNO."""
    return 0x00050000 | number


def program(machine: str) -> bytes:
    """Returns the program for a machine, as `bwrap --seccomp` reads it: an array of `struct sock_filter`.

    Another architecture's calls (32 bits on x86_64) end the process; x32's, which have their own numbers, are refused.
    clone3 does not exist: its flags lie in memory, where no program can look, and C libraries fall back to clone.

    Args:
        machine: name of the architecture, as `platform.machine()` returns it.

    Raises:
        IsolationUnavailable: no table for this machine.
    """
    machine_constants = MACHINES.get(machine)
    if machine_constants is None:
        raise IsolationUnavailable(
            "unsupported machine for the seccomp filter", value=machine, expected=", ".join(MACHINES)
        )
    rows = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, machine_constants.audit),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _CALL_NUMBER),
    ]
    if machine_constants.column == 0:
        rows += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, errno(_EPERM))]
    for numbers in DENIED.values():
        number = numbers[machine_constants.column]
        if number is not None:
            rows += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, errno(_EPERM))]
    rows += [(_EQUAL, 0, 1, machine_constants.clone3), (_RETURN, 0, 0, errno(_ENOSYS))]
    rows += _filter_argument(
        machine_constants.clone, _FIRST_ARGUMENT, [(_ANY_BIT, 0, 1, NAMESPACES), (_RETURN, 0, 0, errno(_EPERM))]
    )
    rows += _filter_argument(
        machine_constants.ioctl, _SECOND_ARGUMENT, [(_EQUAL, 0, 1, _TIOCSTI), (_RETURN, 0, 0, errno(_EPERM))]
    )
    families = [(_EQUAL, len(FAMILIES) - index, 0, family) for index, family in enumerate(FAMILIES)]
    rows += _filter_argument(
        machine_constants.socket, _FIRST_ARGUMENT, [*families, (_RETURN, 0, 0, errno(_EAFNOSUPPORT))]
    )
    refused = [row for option in BUFFERS for row in ((_EQUAL, 0, 1, option), (_RETURN, 0, 0, errno(_EPERM)))]
    rows += _filter_argument(machine_constants.setsockopt, _THIRD_ARGUMENT, refused)
    rows.append((_RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *row) for row in rows)


def _filter_argument(
    number: int, offset: int, rows: Sequence[tuple[int, int, int, int]]
) -> list[tuple[int, int, int, int]]:
    """Returns rows that check an argument of one call; a call that passes them is allowed."""
    body = [(_LOAD, 0, 0, offset), *rows, (_RETURN, 0, 0, ALLOW)]
    return [(_EQUAL, 0, len(body), number), *body]
