"""Kills and stops processes of a run at random moments, starts it again until the job ends, and
compares every digest with an undisturbed run. kills.py BIN --kind sft|grpo --layout TRAIN,ROLLOUT"""
import argparse
import os
import random
import signal
import sys
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import jobs  # noqa: E402
import runs  # noqa: E402
import sandbox  # noqa: E402

HURTS_MAX = 3  # in one run
FAULTS = {"sft": ("tree", "controllers", "pause", "kill-train", "stop-train", "mixed"),
          "grpo": ("tree", "controllers", "pause", "kill-train", "stop-train", "kill-rollout",
                   "stop-rollout", "mixed")}


class Missed(Exception):
    """The job had ended, or had no such worker, when the fault was due."""


def check_attached(run):
    """Workers that outlived their controllers serve the new ones. No promise for two that train
    together: one may wait in an update of which the other was never told, until its time is up."""
    together = run.spec["tandem"]["train"]["workers"] > 1
    now = run.workers()
    for seat, pid in run.survivors.items():
        if together and seat.startswith("train"):
            continue
        assert now.get(seat, pid) == pid, "%s: worker %d was replaced by %d" % (seat, pid,
                                                                               now[seat])


def kill_controllers(run, pick):
    check_attached(run)
    run.survivors = run.listening() if run.promised else {}
    if not sandbox.send(run.pid, signal.SIGKILL):
        raise Missed
    sandbox.wait_for(lambda: run.exit_code() is not None, 10, "the end of a killed process")
    run.generation = generation_to_stay(run)
    time.sleep(pick.choice((0, 0, 0.05)))  # workers may fall alone while nobody serves them
    run.start()


def generation_to_stay(run):
    """One train worker that holds a version loses nothing with its controllers; of two, one may
    have begun an update that the other was never told of. 0: no promise."""
    records = run.journal() if os.path.exists(run.path("run", "journal", "log")) else []
    generations = [r["generation"] for r in records if r["name"] == "GANG"]
    if run.spec["tandem"]["train"]["workers"] > 1 or not generations or not run.promised:
        return 0
    last = max(i for i, r in enumerate(records) if r["name"] == "GANG")
    return generations[-1] if any(r["name"] == "COMMIT" for r in records[last:]) else 0


def hurt(run, fault, pick):
    """One fault, now. A run that ended by it is started again."""
    if run.exit_code() is not None:
        raise Missed
    if fault == "mixed":
        fault = pick.choice(FAULTS[run.spec["tandem"]["kind"]][:-1])
    if fault == "tree":
        run.kill_tree()
        run.start()
        return
    if fault == "controllers":
        kill_controllers(run, pick)
        return
    if fault == "pause":  # longer than the time after which a worker counts as silent, too
        sandbox.send(run.pid, signal.SIGSTOP)
        time.sleep(pick.choice((0.1, 0.3, 3)))
        sandbox.send(run.pid, signal.SIGCONT)
        return
    how, role = fault.split("-")
    workers = run.workers(role)
    if not workers:
        raise Missed
    pid = workers[pick.choice(sorted(workers))]
    if not sandbox.send(pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP):
        raise Missed


def attempt(run, fault, seconds, pick):
    """The job once, hurt up to HURTS_MAX times. Returns how often it was."""
    hurts = pick.choice((1, 1, 2, HURTS_MAX))
    run.survivors, run.generation, done = {}, 0, 0
    run.promised = fault == "controllers"  # that all workers were well before
    run.start()
    for _ in range(hurts):
        time.sleep(pick.uniform(0, seconds))
        try:
            hurt(run, fault, pick)
            done += 1
        except Missed:
            break
    code = run.wait(watch=lambda: check_attached(run))
    assert code == 0, "exit status %d" % code
    last = max(r["generation"] for r in run.journal() if r["name"] == "GANG")
    assert run.generation in (0, last), "the train state of generation %d was given up" \
        % run.generation
    return done


def one_case(tools, folder, spec, fault, expected, seconds, seed):
    """Until a fault has met the run."""
    pick = random.Random(seed)
    while True:
        run = runs.Run(tools, folder, spec)
        try:
            done = attempt(run, fault, seconds, pick)
            runs.check_equal(expected, run.result())
            runs.check_nothing_left(run)
        except Exception:
            print(run.said_all())
            sandbox.end_all()
            raise
        run.remove()
        if done:
            return done


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("bin")
    parse.add_argument("--kind", choices=sorted(FAULTS), required=True)
    parse.add_argument("--layout", default="1,1",
                       help="train workers, or train,rollout workers")
    parse.add_argument("--fault", help="only this one")
    parse.add_argument("--count", type=int, default=int(os.environ.get("TD_FAULT_COUNT", 5)))
    parse.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    args = parse.parse_args()
    where = sandbox.enter()
    tools = runs.Tools(args.bin)
    train, rollout = map(int, (args.layout + ",1").split(",")[:2])
    spec = jobs.sft_spec(train) if args.kind == "sft" else jobs.grpo_spec(train, rollout)
    expected, seconds = runs.undisturbed(tools, os.path.join(where, "clean"), spec)
    print("%s, %d train, %d rollout workers: %.2f s undisturbed; --seed %d"
          % (args.kind, train, rollout, seconds, args.seed), flush=True)
    failed = 0
    for fault in [args.fault] if args.fault else FAULTS[args.kind]:
        met, begun = 0, time.monotonic()
        for i in range(args.count):
            seed = args.seed + i
            try:
                met += one_case(tools, os.path.join(where, "%s-%d" % (fault, i)), spec, fault,
                                expected, seconds, seed)
            except Exception:
                traceback.print_exc(file=sys.stdout)
                print("FAILED: %s, --seed %d" % (fault, seed), flush=True)
                failed += 1
        print("%-13s %d runs, %d faults, %.1f s" % (fault, args.count, met,
                                                    time.monotonic() - begun), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
