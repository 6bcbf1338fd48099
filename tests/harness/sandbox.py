"""A test's own world: where the system allows it a PID and a mount namespace with a tmpfs to work
in, so that what is left behind can be counted; else its descendants, found through /proc."""
import atexit
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

MARK = "TD_SANDBOX"
PR_SET_CHILD_SUBREAPER = 36
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
_leave_orphans = False
_exited = {}  # pid -> wait status, of every child that was reaped


def _unshare(user):
    flags = ["unshare", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child"]
    return flags + (["--user", "--map-root-user"] if user else [])


def _raise_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        flags, = struct.unpack_from("16xh", fcntl.ioctl(s, SIOCGIFFLAGS,
                                                        struct.pack("16s16x", b"lo")))
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def enter(network=False):
    """Runs this program again in namespaces of its own, once. Returns where a test may work.
    network: with ports and a loopback of its own, too."""
    if MARK not in os.environ:
        root = os.geteuid() == 0
        for kind, flags in (("root" if root else "user", _unshare(not root)), ("none", [])):
            flags += ["--net"] if network and flags else []
            probe = flags + ["mount", "-t", "tmpfs", "tmpfs", "/mnt"]
            if not flags or subprocess.run(probe, stderr=subprocess.DEVNULL).returncode == 0:
                argv = flags + [sys.executable, "-B"] + sys.argv
                os.execvpe(argv[0], argv, dict(os.environ, **{MARK: kind}))
    if network and isolated():
        _raise_loopback()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = tempfile.mkdtemp(prefix="td-")
    atexit.register(_leave, folder)
    if isolated():
        for target in (folder, "/dev/shm"):
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", target], check=True)
    return folder


def _leave(folder):
    end_all()
    if isolated():
        subprocess.run(["umount", "-l", folder], check=False)
    shutil.rmtree(folder, ignore_errors=True)


def isolated():
    return os.environ[MARK] != "none"


def is_root():
    """Really root, who can become somebody else."""
    return os.environ[MARK] == "root" or (os.environ[MARK] == "none" and os.geteuid() == 0)


def leave_orphans(leave):
    """Whether orphans that end stay zombies, as in a container whose first process waits for
    nobody."""
    global _leave_orphans
    _leave_orphans = leave


def reap(flags=os.WNOHANG):
    """Collects whatever has ended, orphans that came to this process included."""
    while not _leave_orphans:
        try:
            pid, status = os.waitpid(-1, flags)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _exited[pid] = os.waitstatus_to_exitcode(status)


def exit_code(pid):
    """None while it runs; negative: ended by that signal."""
    reap()
    if _leave_orphans and pid not in _exited:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            _exited[pid] = os.waitstatus_to_exitcode(status)
    return _exited.get(pid)


class Process:
    def __init__(self, pid):
        self.pid = pid
        with open("/proc/%d/stat" % pid) as f:
            fields = f.read().rsplit(")", 1)[1].split()
        self.state, self.parent = fields[0], int(fields[1])
        with open("/proc/%d/cmdline" % pid) as f:
            self.argv = f.read().split("\0")[:-1]

    def __repr__(self):
        return "%d %s" % (self.pid, " ".join(self.argv))


def descendants():
    """Every living process that this one started, directly or not."""
    reap()
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                process = Process(int(name))
            except (OSError, IndexError):
                continue
            found[process.pid] = process
    result, known = [], {os.getpid()}
    grown = True
    while grown:
        grown = False
        for process in found.values():
            if process.pid not in known and process.parent in known:
                known.add(process.pid)
                result.append(process)
                grown = True
    return [p for p in result if p.state not in "ZX"]


def send(pid, signo):
    """False: it had gone."""
    try:
        os.kill(pid, signo)
        return True
    except ProcessLookupError:
        return False


def end_all():
    while True:
        left = descendants()
        if not left:
            reap(0)  # one with many threads is still on its way out, with its ports
            return
        for process in left:
            send(process.pid, signal.SIGKILL)
        time.sleep(0.002)


def wait_for(condition, seconds, what):
    """The condition's first true value; AssertionError naming what when it stays false."""
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError("%s: not within %g s" % (what, seconds))
        time.sleep(0.005)
