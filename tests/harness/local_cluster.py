"""A cluster of one machine as a test sees it: `tandem up` and the other commands, its processes, and
what is left when it is down."""
import json
import os
import signal
import stat
import subprocess

import runs
import sandbox

SKIPPED = 77
DEADLINE_S = 180
PROGRAMS = ("tandem", "tandem-coordinator", "tandem-rollout", "tandem-train", "tandem-worker")


def missing(bin_dir):
    """Programs that were not built."""
    return [p for p in PROGRAMS if not os.access(os.path.join(bin_dir, p), os.X_OK)]


class Said:
    """How a command ended."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __repr__(self):
        return "exit status %s\n%s\n%s" % (self.code, self.out, self.err)


class Command:
    """One command under way."""

    def __init__(self, tools, arguments, cwd, where):
        self.names = [os.path.join(where, "%s.%s" % (arguments[0], end)) for end in ("out", "err")]
        with open(self.names[0], "wb") as out, open(self.names[1], "wb") as err:
            process = subprocess.Popen([tools.tandem] + list(arguments), cwd=cwd, stdout=out,
                                       stdin=subprocess.DEVNULL, stderr=err)
        process.returncode = 0  # reaped by sandbox.reap, not by subprocess
        self.pid = process.pid

    def read(self, which):
        with open(self.names[which], errors="replace") as f:
            return f.read()

    def end(self, seconds=DEADLINE_S):
        sandbox.wait_for(lambda: sandbox.exit_code(self.pid) is not None, seconds,
                         "the end of a command")
        return Said(sandbox.exit_code(self.pid), self.read(0), self.read(1))


class Cluster:
    def __init__(self, tools, where, name="c"):
        self.tools, self.where = tools, where
        self.dir = os.path.join(where, name)

    # ---- commands ----

    def start(self, *arguments, cwd=None):
        return Command(self.tools, list(arguments) + ["--dir", self.dir], cwd or self.where,
                       self.where)

    def say(self, *arguments, cwd=None, code=0):
        said = self.start(*arguments, cwd=cwd).end()
        assert said.code == code, "tandem %s: %s\n%s" % (" ".join(arguments), said, self.logs())
        return said

    def json(self, *arguments):
        return json.loads(self.say(*arguments, "-o", "json").out)

    def up(self, *arguments):
        return self.say("up", "--fast", "--threads", "1", *arguments)

    def down(self, *arguments):
        self.say("down", *arguments)

    def submit(self, folder, *arguments):
        """The number of a job whose file lies in folder."""
        out = self.say("submit", "-f", "job.yaml", *arguments, cwd=folder).out
        return out.split()[1]

    def logs(self):
        return self.start("logs", "--tail", "10000").end().out

    # ---- processes ----

    def processes(self):
        """{name: pid}"""
        with open(os.path.join(self.dir, "cluster.json")) as f:
            return {p["name"]: p["pid"] for p in json.load(f)["processes"]}

    def leader(self):
        """The name of the coordinator that leads, as `up` tells."""
        lines = self.say("up").out.splitlines()
        return next(line.split()[0] for line in lines if line.endswith(" leads") or
                    " leads " in line)

    def kill(self, *names, signo=signal.SIGKILL):
        pids = self.processes()
        for name in names:
            sandbox.send(pids[name], signo)

    def check_nothing_left(self):
        """After `down`: no process and no socket, and no complaint of a sanitizer in the logs."""
        runs.check_said(self.logs())
        left = sandbox.descendants()
        assert not left, "processes are left: %s" % left
        for folder, _, names in os.walk(self.dir):
            for name in names:
                path = os.path.join(folder, name)
                assert not stat.S_ISSOCK(os.lstat(path).st_mode), "a socket is left: %s" % path
        if sandbox.isolated():
            assert not os.listdir("/dev/shm"), "shared memory is left: %s" % os.listdir("/dev/shm")
