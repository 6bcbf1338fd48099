"""One run directory, one job: stopping, going on, starting over. run_again.py BIN [--only NAME]"""
import argparse
import fcntl
import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import jobs  # noqa: E402
import runs  # noqa: E402
import sandbox  # noqa: E402

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Bench:
    def __init__(self, tools, where):
        self.tools, self.where, self.made, self.clean = tools, where, 0, {}

    def job(self, spec):
        self.made += 1
        return runs.Run(self.tools, os.path.join(self.where, "job-%d" % self.made), spec)

    def expected(self, spec):
        key = repr(spec)
        if key not in self.clean:
            self.clean[key], _ = runs.undisturbed(self.tools, os.path.join(self.where, "clean"),
                                                  spec)
        return self.clean[key]

    def ends_equal(self, run, *arguments):
        run.start(*arguments)
        assert run.wait() == OK, "exit status %d:\n%s" % (run.exit_code(), run.said())
        runs.check_equal(self.expected(run.spec), run.result())
        runs.check_nothing_left(run)


BOTH_KINDS = (jobs.sft_spec, jobs.grpo_spec)


def started(run, steps=2):
    """Runs until so many steps are committed."""
    run.start()
    sandbox.wait_for(lambda: os.path.exists(run.path("run", "journal", "log")) and
                     len(run.commits()) > steps, 30, "%d steps" % steps)


def said(run, *patterns):
    for pattern in patterns:
        assert re.search(pattern, run.said()), "not said: %s\n%s" % (pattern, run.said())


@case
def finished(bench):
    """A finished job prints its result and exits 0, as often as one likes."""
    run = bench.job(jobs.sft_spec())
    run.start()
    assert run.wait() == OK
    for _ in range(2):
        run.start()
        assert run.wait() == OK, run.said()
        said(run, r"finished before: 6 steps", r"checkpoint: .*global_step_6", r"metrics\.jsonl")
    runs.check_equal(bench.expected(run.spec), run.result())
    runs.check_nothing_left(run)


def stop_at_its_end(bench, spec):
    """A run whose job has ended and whose workers are stopped before they could. The journal's
    lock keeps the last COMMIT back until they have nothing more to do."""
    while True:
        run = bench.job(spec)
        run.start()
        last = None
        while run.exit_code() is None and last != ("SEAL", jobs.STEPS):
            if os.path.exists(run.path("run", "journal", "log")):
                last = [(r["name"], r.get("round")) for r in run.journal()][-1:]
                last = last[0] if last else None
        with open(run.path("run", "journal", "lock"), "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if run.exit_code() is None and run.journal()[-1]["name"] == "SEAL":
                time.sleep(0.5)
                for pid in run.workers().values():
                    sandbox.send(pid, signal.SIGSTOP)
                break
        run.kill_tree()
    sandbox.wait_for(lambda: run.journal()[-1]["name"] == "END", 10, "END")
    return run


@case
def killed_at_its_end(bench):
    """Killed between END and the workers' end: the next start ends them."""
    spec = jobs.sft_spec(2)
    spec["trainer"]["save_freq"] = -1
    spec["tandem"]["checkpoint"]["every"] = 100
    for whole_tree in (True, False):
        run = stop_at_its_end(bench, spec)
        if whole_tree:
            run.kill_tree()
        else:
            sandbox.send(run.pid, signal.SIGKILL)
            run.wait()
            assert run.workers(), "the workers ended"
        assert os.listdir(run.path("run", "workers")), "no sockets were left"
        bench.ends_equal(run)
        said(run, r"finished before: 6 steps")


def met_by(signo, bench, spec, step=1):
    """A run that the signal met on its way. On a busy machine the job is sometimes faster."""
    for _ in range(10):
        run = bench.job(spec)
        started(run, step)
        sandbox.send(run.pid, signo)
        if run.wait(15) != OK and (signo != signal.SIGKILL or run.workers()):
            return run
        sandbox.wait_for(lambda: not sandbox.descendants(), 10, "the workers' end")
    raise AssertionError("no job was met by signal %d on its way" % signo)


@case
def interrupted(bench):
    """SIGINT and SIGTERM stop cleanly and say how to go on."""
    for make in BOTH_KINDS:
        for signo in (signal.SIGINT, signal.SIGTERM):
            run = met_by(signo, bench, make(), 0)
            assert run.exit_code() == INTERRUPTED, "exit status %d" % run.exit_code()
            said(run, r"the same command goes on")
            sandbox.wait_for(lambda: not sandbox.descendants(), 5, "the end of the workers")
            assert not os.listdir(run.path("run", "workers")), "sockets are left"
            bench.ends_equal(run)


@case
def interrupted_at_once(bench):
    """While it starts, and at any other moment."""
    for delay in (0.01, 0.03, 0.06, 0.1, 0.2, 0.4):
        run = bench.job(jobs.grpo_spec())
        run.start()
        time.sleep(delay)
        sandbox.send(run.pid, signal.SIGINT)
        code = run.wait(15)
        # Before its handler is there the signal simply ends it; on a quick machine all is done.
        assert (code in (INTERRUPTED, -signal.SIGINT) or code == 0 and "done: " in run.said()), \
            "exit status %d:\n%s" % (code, run.said())
        sandbox.wait_for(lambda: not sandbox.descendants(), 5, "the end of the workers")
        bench.ends_equal(run)


def stop_its_worker(bench, spec):
    """(run, pid of its worker, which is stopped before the job's end): the journal's lock keeps
    that back."""
    while True:
        run = bench.job(spec)
        started(run, 1)
        with open(run.path("run", "journal", "lock"), "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if run.exit_code() is None and run.journal()[-1]["name"] != "END":
                worker, = run.workers().values()
                sandbox.send(worker, signal.SIGSTOP)
                return run, worker
        run.wait()


@case
def interrupted_twice(bench):
    """The second signal does not wait for a worker that does not answer."""
    spec = jobs.sft_spec()
    spec["tandem"].update(worker_timeout_s=60, worker_grace_s=2)
    run, worker = stop_its_worker(bench, spec)
    sandbox.send(run.pid, signal.SIGINT)
    sandbox.wait_for(lambda: "once more" in run.said(), 5, "the word after the first signal")
    sandbox.send(run.pid, signal.SIGINT)
    assert run.wait(2) == INTERRUPTED, run.exit_code()
    sandbox.send(worker, signal.SIGCONT)
    sandbox.wait_for(lambda: not sandbox.descendants(), 10, "the worker's end after its grace time")
    bench.ends_equal(run)


@case
def abandoned(bench):
    """Workers whose controllers never come back end after the grace time, sockets and all."""
    for make in BOTH_KINDS:
        spec = make()
        spec["tandem"]["worker_grace_s"] = 2
        run = met_by(signal.SIGKILL, bench, spec)
        sandbox.wait_for(lambda: not sandbox.descendants(), 10, "the workers' end")
        assert not os.listdir(run.path("run", "workers")), "sockets are left"
        bench.ends_equal(run)


@case
def nobody_reaps(bench):
    """Workers of an earlier start whose ends nobody collects are not waited for."""
    run = bench.job(jobs.grpo_spec())
    sandbox.leave_orphans(True)
    try:
        started(run)
        sandbox.send(run.pid, signal.SIGKILL)
        run.wait()
        run.start()
        sandbox.wait_for(lambda: len(run.commits()) > jobs.STEPS, 30, "the last step")
        assert run.wait(4) == OK, run.said_all()
    finally:
        sandbox.leave_orphans(False)
    sandbox.reap()
    runs.check_equal(bench.expected(run.spec), run.result())
    runs.check_nothing_left(run)


@case
def second_run(bench):
    """The run directory is held by one process; another is refused, and disturbs nothing."""
    run = bench.job(jobs.grpo_spec())
    started(run, 1)
    first = run.pid
    sandbox.send(first, signal.SIGSTOP)  # or it ends while the second one waits for the lock
    run.start()
    assert run.wait(10) == FAILED, "exit status %d:\n%s" % (run.exit_code(), run.said())
    said(run, r"\b%d\b" % first)
    run.start("--fresh")
    assert run.wait(10) == FAILED, "exit status %d:\n%s" % (run.exit_code(), run.said())
    sandbox.send(first, signal.SIGCONT)
    run.pid = first
    assert run.wait() == OK, run.said_all()
    runs.check_equal(bench.expected(run.spec), run.result())
    runs.check_nothing_left(run)


@case
def changed_settings(bench):
    """Refused with the keys that differ; those of the process may change."""
    run = bench.job(jobs.sft_spec())
    started(run)
    run.kill_tree()
    run.start("optim.lr=0.01", "tandem.seed=4", "tandem.threads=2")
    assert run.wait(10) == USAGE, "exit status %d:\n%s" % (run.exit_code(), run.said())
    said(run, r"optim\.lr", r"tandem\.seed", r"--fresh")
    assert "tandem.threads" not in run.said() and "data." not in run.said(), run.said()
    bench.ends_equal(run, "tandem.threads=2", "tandem.worker_grace_s=30")


@case
def fresh(bench):
    """Starts over, and ends workers that outlived their controllers."""
    for make in BOTH_KINDS:
        run = bench.job(make())
        started(run)
        sandbox.send(run.pid, signal.SIGKILL)
        run.wait()
        survivors = set(run.workers().values())
        assert survivors
        run.start("--fresh")
        sandbox.wait_for(lambda: " job in " in run.said(), 30, "the new start")
        assert not survivors & set(run.workers().values()), "workers of the old run live on"
        assert run.wait() == OK, run.said()
        assert {r["generation"] for r in run.journal() if r["name"] == "GANG"} == {1}
        runs.check_equal(bench.expected(run.spec), run.result())
        runs.check_nothing_left(run)
    run.start("--fresh", "tandem.seed=8")  # after its end, with other settings
    assert run.wait() == OK, run.said()
    assert run.commits() != bench.expected(run.spec)["commits"]


@case
def fresh_keeps_the_rest(bench):
    """Only what a run made is deleted."""
    run = bench.job(jobs.sft_spec())
    run.start()
    assert run.wait() == OK
    for path in ("run/notes.txt", "out/notes.txt"):
        with open(run.path(path), "w") as f:
            f.write("mine")
    run.start("--fresh")
    assert run.wait() == OK, run.said()
    for path in ("run/notes.txt", "out/notes.txt"):
        os.remove(run.path(path))
    runs.check_equal(bench.expected(run.spec), run.result())
    runs.check_nothing_left(run)


@case
def stalled(bench):
    """A line names what a round waits for, and since when."""
    spec = jobs.grpo_spec()
    spec["tandem"]["worker_timeout_s"] = 60
    run = bench.job(spec)
    started(run)
    worker, = run.workers("rollout").values()
    sandbox.send(worker, signal.SIGSTOP)
    sandbox.wait_for(lambda: re.search(r"round \d+ waits for [\d.]+ s: .*", run.said()), 20,
                     "a line about the stalled round")
    sandbox.send(worker, signal.SIGCONT)
    assert run.wait() == OK, run.said()
    runs.check_equal(bench.expected(spec), run.result())


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("bin")
    parse.add_argument("--only", action="append", choices=sorted(CASES))
    args = parse.parse_args()
    bench = Bench(runs.Tools(args.bin), sandbox.enter())
    return runs.run_cases({n: CASES[n] for n in args.only or CASES}, bench)


if __name__ == "__main__":
    sys.exit(main())
