"""`tandem run` as a test sees it: start, look, hurt, wait, and compare what is left with what an
undisturbed run left."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback

import jobs
import sandbox

DEADLINE_S = 120
FAILED = 2  # outcome of END
SAMPLED = ("step", "tokens", "reward", "tok", "logp")  # of a rollout record: CRCs of its columns


class Tools:
    """Where the programs are."""

    def __init__(self, bin_dir):
        self.bin_dir = os.path.abspath(bin_dir)
        self.tandem = os.path.join(self.bin_dir, "tandem")

    def dump(self, kind, *where):
        """Records of a log, as log_dump prints them."""
        done = subprocess.run([os.path.join(self.bin_dir, "log_dump"), kind, *where],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        if done.returncode:
            raise AssertionError("log_dump %s: %s" % (where, done.stderr.decode()))
        return [json.loads(line) for line in done.stdout.splitlines()]


def comparable_metrics(lines):
    """metrics.jsonl without what depends on the clock."""
    return [{k: v for k, v in json.loads(line).items()
             if not k.startswith(("timing_s/", "perf/"))} for line in lines]


class Run:
    """One job's folder and the processes that work in it."""

    def __init__(self, tools, folder, spec, make=True):
        self.tools, self.folder, self.spec = tools, folder, spec
        self.pid, self.starts = None, 0
        if make:
            jobs.write_job(folder, spec)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    # ---- processes ----

    def start(self, *arguments, prefix=()):
        self.starts += 1
        command = list(prefix) + [self.tools.tandem, "run", "-f", "job.yaml"] + list(arguments)
        with open(self.path("said.%d" % self.starts), "wb") as said:
            process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL,
                                       stdout=said, stderr=subprocess.STDOUT)
        process.returncode = 0  # reaped by sandbox.reap, not by subprocess
        self.pid = process.pid

    def said(self, start=None):
        with open(self.path("said.%d" % (start or self.starts)), errors="replace") as f:
            return f.read()

    def said_all(self):
        return "".join("--- start %d\n%s" % (i, self.said(i)) for i in range(1, self.starts + 1))

    def exit_code(self):
        return sandbox.exit_code(self.pid)

    def wait(self, seconds=DEADLINE_S, watch=None):
        """Its exit status. watch() is called again and again until then."""
        def ended():
            if watch:
                watch()
            return self.exit_code() is not None
        sandbox.wait_for(ended, seconds, "the run's end")
        return self.exit_code()

    def workers(self, role=None):
        """{seat, such as train-0: pid}"""
        found, known = {}, set()
        for process in sandbox.descendants():  # parents first
            if process.argv and process.argv[0].endswith("tandem-worker"):
                known.add(process.pid)
                if process.parent in known:
                    continue  # the leak check of a sanitizer
                socket = process.argv[process.argv.index("--socket") + 1]
                seat = os.path.basename(socket)[:-len(".sock")]
                if os.path.dirname(os.path.dirname(socket)) == self.path("run") \
                        and (role is None or seat.startswith(role)):
                    found[seat] = process.pid
        return found

    def listening(self):
        """The workers that can be attached."""
        return {seat: pid for seat, pid in self.workers().items()
                if os.path.exists(self.path("run", "workers", seat + ".sock"))}

    def kill_tree(self):
        sandbox.send(self.pid, signal.SIGKILL)
        sandbox.end_all()

    def kill_when(self, condition):
        """Runs until condition(journal records) holds, then kills the whole tree. False: the
        moment had passed before all processes were dead."""
        self.start()
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until and self.exit_code() is None:
            if os.path.exists(self.path("run", "journal", "log")) and condition(self.journal()):
                break
        self.kill_tree()
        return condition(self.journal())

    # ---- what is left ----

    def journal(self):
        return self.tools.dump("journal", self.path("run", "journal"))

    def rollouts(self):
        folder = self.path("run", "rollouts")
        return self.tools.dump("rollouts", folder) if os.path.isdir(folder) else []

    def commits(self):
        """[(step, weight digest, state digest)], in order."""
        return [(r["step"], r["weights"], r["state"]) for r in self.journal()
                if r["name"] == "COMMIT" and r["verdict"] == "accepted"]

    def metrics(self):
        with open(self.path("run", "metrics.jsonl")) as f:
            return comparable_metrics(f)

    def saved(self):
        """{path below out: bytes}"""
        found = {}
        for folder, _, names in os.walk(self.path("out")):
            for name in names:
                path = os.path.join(folder, name)
                with open(path, "rb") as f:
                    found[os.path.relpath(path, self.path("out"))] = f.read()
        return found

    def result(self):
        return {"commits": self.commits(), "metrics": self.metrics(), "saved": self.saved(),
                "rollouts": {(r["epoch"], r["index"]): [r[k] for k in SAMPLED]
                             for r in self.rollouts()}}

    def remove(self):
        shutil.rmtree(self.folder)


def check_equal(expected, found):
    """Both as Run.result gives them."""
    for key in ("commits", "metrics"):
        for a, b in zip(expected[key], found[key]):
            assert a == b, "%s differ: undisturbed %s, here %s" % (key, a, b)
        assert len(expected[key]) == len(found[key]), "%d %s, undisturbed %d" % (
            len(found[key]), key, len(expected[key]))
    # Both logs are trimmed, not always at the same group.
    for group in set(expected["rollouts"]) & set(found["rollouts"]):
        a, b = expected["rollouts"][group], found["rollouts"][group]
        assert a == b, "group %s: %s undisturbed %s, here %s" % (group, SAMPLED, a, b)
    assert sorted(expected["saved"]) == sorted(found["saved"]), \
        "files for users: %s, undisturbed %s" % (sorted(found["saved"]), sorted(expected["saved"]))
    for path, content in expected["saved"].items():
        assert found["saved"][path] == content, "out/%s differs" % path


def check_said(text):
    assert not re.search(r"Sanitizer|runtime error:|Assert|assertion", text), text


def check_nothing_left(run):
    """After a run's end: no process, socket, shared memory or half-made file, and no process that
    a check ended unseen (its replacement would have gone on)."""
    check_said(run.said_all())
    sandbox.wait_for(lambda: not sandbox.descendants(), 5,
                     "the end of %s" % sandbox.descendants())
    if sandbox.isolated():
        assert not os.listdir("/dev/shm"), "shared memory is left: %s" % os.listdir("/dev/shm")
    top = set(os.listdir(run.path("run")))
    extra = top - {"journal", "rollouts", "checkpoints", "workers", "lock", "metrics.jsonl",
                   "metrics.staged.json", "announced"}
    assert not extra, "files are left: %s" % extra
    assert not os.listdir(run.path("run", "workers")), "sockets are left"
    kept = {r["folder"] for r in run.journal()
            if r["name"] == "CHECKPOINT" and r["verdict"] == "accepted"}
    folders = set(os.listdir(run.path("run", "checkpoints")))
    assert len(folders) <= 2 and folders <= kept, "checkpoints are left: %s" % folders
    assert any(r["name"] == "END" for r in run.journal()), "the journal has no END"


def undisturbed(tools, folder, spec):
    """Runs the job once without faults: (result, seconds)."""
    run = Run(tools, folder, spec)
    begun = time.monotonic()
    run.start()
    code = run.wait()
    seconds = time.monotonic() - begun
    assert code == 0, "the undisturbed run failed (%d):\n%s" % (code, run.said())
    check_nothing_left(run)
    result = run.result()
    assert [c[0] for c in result["commits"]] == list(range(jobs.STEPS + 1)), result["commits"]
    assert [m["step"] for m in result["metrics"]] == list(range(jobs.STEPS + 1))
    run.remove()
    return result, seconds


def run_cases(cases, bench):
    """Calls each of {name: function(bench)}; the exit status."""
    failed = []
    for name, function in cases.items():
        begun = time.monotonic()
        try:
            function(bench)
            print("ok      %s (%.1f s)" % (name, time.monotonic() - begun), flush=True)
        except Exception:
            traceback.print_exc(file=sys.stdout)
            print("FAILED  %s" % name, flush=True)
            failed.append(name)
            sandbox.end_all()
    return 1 if failed else 0
