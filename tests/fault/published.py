"""Killed between publication and SEAL: nothing is generated again. published.py BIN"""
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

BATCH = 16
ROUND = 2


class Missed(Exception):
    """The round was sealed before the journal could be held."""


def spec_of(rollout_workers):
    """Without validation every generated token belongs to a published group, and without
    checkpoints no record is trimmed."""
    spec = jobs.grpo_spec(1, rollout_workers)
    spec["trainer"].update(test_freq=-1, val_before_train=False)
    spec["tandem"]["checkpoint"]["every"] = 100
    return spec


def drawn(records):
    """The groups of round ROUND are open, and nothing came after."""
    return bool(records) and records[-1]["name"] == "DRAW" and records[-1]["to"] == BATCH * ROUND


def hold_when_drawn(run):
    """Takes the journal's lock once the round is drawn: it cannot be sealed. Returns the lock."""
    lock = None
    while True:
        if run.exit_code() is not None:
            raise Missed
        if not os.path.exists(run.path("run", "journal", "log")):
            continue
        lock = lock or os.open(run.path("run", "journal", "lock"), os.O_RDWR)
        if drawn(run.journal()):
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not drawn(run.journal()):
                raise Missed
            return lock


def round_published(run):
    wanted = {(0, i) for i in range(BATCH * (ROUND - 1), BATCH * ROUND)}
    return wanted <= {(r["epoch"], r["index"]) for r in run.rollouts()}


def counted(said):
    """What the rollout workers of one start say that they generated."""
    return sum(map(int, re.findall(r'event="worker ends" .*generated_tokens=(\d+)', said)))


def kill_and_go_on(run, whole_tree):
    run.start("--verbose")
    lock = hold_when_drawn(run)
    sandbox.wait_for(lambda: round_published(run), 60, "all groups of the round")
    before = run.rollouts()
    time.sleep(0.05)  # let the train controller see the last of them
    if whole_tree:
        run.kill_tree()
    else:
        sandbox.send(run.pid, signal.SIGKILL)
        run.wait()
    assert drawn(run.journal()), "the round was sealed in spite of the lock"
    os.close(lock)
    run.start("--verbose")
    assert run.wait() == 0, "exit status %d" % run.exit_code()
    return before


def check(run, whole_tree, before):
    after = run.rollouts()
    assert [r for r in after if r in before] == before, "the rollout log lost records"
    groups = [(r["epoch"], r["index"]) for r in after]
    assert len(groups) == len(set(groups)) == BATCH * jobs.STEPS, "groups published: %s" % groups
    # A worker that was attached again counts from its own start; one that was killed said nothing.
    records = [r for r in after if not whole_tree or r not in before]
    tokens = sum(r["tokens"] for r in records)
    said = counted(run.said_all())  # a worker writes where it was started
    assert said == tokens, "%d tokens generated, %d published" % (said, tokens)


def undisturbed(tools, folder, spec):
    """Generates each group once, too."""
    run = runs.Run(tools, folder, spec)
    run.start("--verbose")
    assert run.wait() == 0, run.said()
    check(run, True, [])
    result = run.result()
    run.remove()
    return result


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("bin")
    args = parse.parse_args()
    where = sandbox.enter()
    tools = runs.Tools(args.bin)
    for rollout_workers in (1, 2):
        spec = spec_of(rollout_workers)
        for _ in range(3):
            expected = undisturbed(tools, os.path.join(where, "clean"), spec)
        for whole_tree in (True, False):
            tries = 0
            while True:
                tries += 1
                run = runs.Run(tools, os.path.join(where, "run-%d" % tries), spec)
                try:
                    before = kill_and_go_on(run, whole_tree)
                    break
                except Missed:
                    run.kill_tree()
                    run.remove()
                except Exception:
                    print(run.said_all())
                    raise
            check(run, whole_tree, before)
            runs.check_equal(expected, run.result())
            runs.check_nothing_left(run)
            run.remove()
            print("%d rollout workers, %s killed after publication (try %d): nothing generated again"
                  % (rollout_workers, "tree" if whole_tree else "controllers", tries), flush=True)


if __name__ == "__main__":
    sys.exit(main())
