"""Which calls of the kernel generated code may make: an allow-list, as a seccomp filter.

A list of what is forbidden is out of date with each new kernel: key rings, io_uring, userfaultfd,
vsock and netlink came in that way. So here is what Python, NumPy, threads, processes and files
need; anything else is answered as by a kernel that does not have it (ENOSYS), after which a C
library tries the older call. Calls of another kind (32-bit by ``int 0x80``, x32) are not listed, so
they are answered likewise. What is there in part (sockets, some of ``ioctl``) is refused (EPERM).

The filter is classic BPF, put together here: libseccomp is one more library to install, and does
not make a list of 200 numbers simpler. Used by ``jail.py``; imports nothing of monolane.
Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux 6.12.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence

# name  x86-64  AArch64; "-": not there
_ALLOWED = """
read 0 63                        write 1 64                       open 2 -
close 3 57                       stat 4 -                         fstat 5 80
lstat 6 -                        poll 7 -                         lseek 8 62
mmap 9 222                       mprotect 10 226                  munmap 11 215
brk 12 214                       rt_sigaction 13 134              rt_sigprocmask 14 135
rt_sigreturn 15 139              pread64 17 67                    pwrite64 18 68
readv 19 65                      writev 20 66                     access 21 -
pipe 22 -                        select 23 -                      sched_yield 24 124
mremap 25 216                    msync 26 227                     mincore 27 232
madvise 28 233                   dup 32 23                        dup2 33 -
pause 34 -                       nanosleep 35 101                 getitimer 36 102
alarm 37 -                       setitimer 38 103                 getpid 39 172
sendfile 40 71                   sendto 44 206                    recvfrom 45 207
sendmsg 46 211                   recvmsg 47 212                   shutdown 48 210
getsockname 51 204               getpeername 52 205               setsockopt 54 208
getsockopt 55 209                fork 57 -                        vfork 58 -
execve 59 221                    exit 60 93                       wait4 61 260
kill 62 129                      uname 63 160                     fcntl 72 25
flock 73 32                      fsync 74 82                      fdatasync 75 83
truncate 76 45                   ftruncate 77 46                  getdents 78 -
getcwd 79 17                     chdir 80 49                      fchdir 81 50
rename 82 -                      mkdir 83 -                       rmdir 84 -
creat 85 -                       link 86 -                        unlink 87 -
symlink 88 -                     readlink 89 -                    chmod 90 -
fchmod 91 52                     umask 95 166                     gettimeofday 96 169
getrlimit 97 163                 getrusage 98 165                 sysinfo 99 179
times 100 153                    getuid 102 174                   getgid 104 176
geteuid 107 175                  getegid 108 177                  setpgid 109 154
getppid 110 173                  getpgrp 111 -                    setsid 112 157
getgroups 115 158                getresuid 118 148                getresgid 120 150
getpgid 121 155                  getsid 124 156                   rt_sigpending 127 136
rt_sigtimedwait 128 137          rt_sigsuspend 130 133            sigaltstack 131 132
utime 132 -                      statfs 137 43                    fstatfs 138 44
getpriority 140 141              setpriority 141 140              sched_getparam 143 121
sched_getscheduler 145 120       sched_get_priority_max 146 125   sched_get_priority_min 147 126
arch_prctl 158 -                 setrlimit 160 164                gettid 186 178
tkill 200 130                    time 201 -                       futex 202 98
sched_setaffinity 203 122        sched_getaffinity 204 123        epoll_create 213 -
getdents64 217 61                set_tid_address 218 96           restart_syscall 219 128
fadvise64 221 223                timer_create 222 107             timer_settime 223 110
timer_gettime 224 108            timer_getoverrun 225 109         timer_delete 226 111
clock_gettime 228 113            clock_getres 229 114             clock_nanosleep 230 115
exit_group 231 94                epoll_wait 232 -                 epoll_ctl 233 21
tgkill 234 131                   utimes 235 -                     waitid 247 95
openat 257 56                    mkdirat 258 34                   newfstatat 262 79
unlinkat 263 35                  renameat 264 38                  linkat 265 37
symlinkat 266 36                 readlinkat 267 78                fchmodat 268 53
faccessat 269 48                 pselect6 270 72                  ppoll 271 73
set_robust_list 273 99           get_robust_list 274 100          utimensat 280 88
epoll_pwait 281 22               timerfd_create 283 85            eventfd 284 -
fallocate 285 47                 timerfd_settime 286 86           timerfd_gettime 287 87
eventfd2 290 19                  epoll_create1 291 20             dup3 292 24
pipe2 293 59                     preadv 295 69                    pwritev 296 70
getcpu 309 168                   renameat2 316 276                getrandom 318 278
memfd_create 319 279             membarrier 324 283               copy_file_range 326 285
preadv2 327 286                  pwritev2 328 287                 statx 332 291
rseq 334 293                     close_range 436 436              faccessat2 439 439
fchmodat2 452 452
"""
# Allowed if an argument is one of some values: name  x86-64  AArch64  argument  values.
_CLOSED = (0x5450, 0x5451, 0x541B, 0x5421, 0x5401, 0x5413)  # FIO(N)CLEX, FIONREAD, -NBIO, of a tty
_IF = (
    ("ioctl", 16, 29, 1, _CLOSED),
    ("socket", 41, 198, 0, ()),
    ("socketpair", 53, 199, 0, (1,)),  # AF_UNIX
    ("prctl", 157, 167, 0, (3, 15, 16)),  # PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME
    ("prlimit64", 302, 261, 0, (0,)),  # of this process
)
# The flags of clone that make namespaces; without them it makes a thread or a process.
_CLONE, _NAMESPACES = (56, 220), 0x7E020000
# By platform.machine(): the column above, AUDIT_ARCH, the number of seccomp, and of keyctl.
_MACHINES = {"x86_64": (0, 0xC000003E, 317, 250), "aarch64": (1, 0xC00000B7, 277, 219)}

_LOAD, _EQUAL, _ANY, _RETURN = 0x20, 0x15, 0x45, 0x06  # BPF: LD W ABS, JEQ K, JSET K, RET K
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16  # places in struct seccomp_data; arguments have 8 bytes each
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_SET_FILTER, _ALL_THREADS = 1, 1
_JOIN_SESSION = 1  # KEYCTL_JOIN_SESSION_KEYRING

Instruction = tuple[int, int, int, int]  # code, steps to jump over if so, if not, value


def _answer(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERROR | number)


def _either(values: Sequence[int]) -> list[Instruction]:
    """Allow what is loaded if it is one of these."""
    return [each for value in values for each in ((_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW))]


def _if_call(number: int, block: Sequence[Instruction]) -> list[Instruction]:
    """Run a block, which returns, for one call; for others what is loaded stays the number."""
    return [(_EQUAL, 0, len(block), number), *block]


def allowed(machine: str) -> dict[str, int]:
    """Return names and numbers of the calls that are allowed whatever their arguments are."""
    words, column = _ALLOWED.split(), _MACHINES[machine][0]
    rows = zip(words[::3], words[1 + column :: 3], strict=True)
    return {name: int(number) for name, number in rows if number != "-"}


def program(machine: str) -> list[Instruction]:
    """Return the filter of a kind of processor."""
    column, arch, *_ = _MACHINES[machine]
    refused = _answer(errno.EPERM)
    found = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, arch),
        _answer(errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
        *_either(list(allowed(machine).values())),
    ]
    # Low words, which is all that the kernel reads of these arguments.
    flags = (_LOAD, 0, 0, _ARGUMENTS)
    block = [flags, (_ANY, 1, 0, _NAMESPACES), (_RETURN, 0, 0, _ALLOW), refused]
    found += _if_call(_CLONE[column], block)
    for _, *numbers, argument, values in _IF:
        where = (_LOAD, 0, 0, _ARGUMENTS + 8 * argument)
        found += _if_call(numbers[column], [where, *_either(values), refused])
    return [*found, _answer(errno.ENOSYS)]


def restrict() -> str:
    """Keep this process to the list for good, and from the user's keys; what it starts, too.

    Returns why not, or "". It must have no_new_privs, or be root.
    """
    machine = platform.machine()
    if machine not in _MACHINES:
        return f"expected a processor of {' or '.join(_MACHINES)}, got {machine}"
    _, _, seccomp, keyctl = _MACHINES[machine]
    libc = ctypes.CDLL(None, use_errno=True)
    # A new session keyring, empty: the filter keeps every call of keys from it, and this what was
    # inherited. A kernel without keys, or a container that forbids them, has nothing to hide.
    libc.syscall(keyctl, ctypes.c_long(_JOIN_SESSION), None)
    code = b"".join(struct.pack("=HBBI", *each) for each in program(machine))
    held = ctypes.create_string_buffer(code)
    header = struct.pack("@HP", len(code) // 8, ctypes.addressof(held))
    if libc.syscall(seccomp, ctypes.c_long(_SET_FILTER), ctypes.c_long(_ALL_THREADS), header) != 0:
        return f"seccomp: {os.strerror(ctypes.get_errno())}"
    return ""
