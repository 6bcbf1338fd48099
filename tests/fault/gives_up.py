"""What fails whenever it is tried ends its job with the cause, in bounded time: workers are killed as
often as they are at work. gives_up.py BIN"""
import argparse
import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import jobs  # noqa: E402
import runs  # noqa: E402
import sandbox  # noqa: E402

ATTEMPTS = 3
TRAINS_S = 0.5  # of the processor: that is longer than a train worker's start takes
START_GROUP, CLOSE_GROUP = 2, 4  # of enum td_rolloutc_effect_kind
CAUSES = {
    "rollout": r"row \d+ \(from 0, of those kept\) of data\.train_files failed %d times "
               r"\(tandem\.max_attempts\), at last: worker 0 ended" % ATTEMPTS,
    "train": r"the train workers lost their state %d times in a row behind step 0 "
             r"\(tandem\.max_attempts\), at last: " % ATTEMPTS,
}


def generates(run, _pid):
    """Whether groups are under way on the only rollout worker."""
    kinds = re.findall(r'event="rollout effect" .*?kind=(\d+)', run.said())
    return kinds.count(str(START_GROUP)) > kinds.count(str(CLOSE_GROUP))


def trains(_run, pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            used = f.read().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK") > TRAINS_S


def case(tools, where, role, at_work):
    spec = jobs.grpo_spec()
    spec["trainer"]["val_before_train"] = False
    spec["tandem"]["max_attempts"] = ATTEMPTS
    spec["actor_rollout_ref"]["rollout"].update(n=64, max_num_seqs=64)
    run = runs.Run(tools, os.path.join(where, role), spec)
    # One group, or update, takes long enough to be killed in the middle of it.
    model = dict(jobs.MODEL, hidden_size=128, intermediate_size=512, num_hidden_layers=4)
    jobs.write_json(run.path("model", "config.json"), model)

    def kill():
        for pid in run.workers(role).values():
            if at_work(run, pid):
                sandbox.send(pid, signal.SIGKILL)

    begun = time.monotonic()
    run.start("--verbose")
    code = run.wait(watch=kill)
    said = run.said_all()
    assert code == 1, "exit status %d\n%s" % (code, said)
    assert re.search(CAUSES[role], said), said
    runs.check_nothing_left(run)
    print("%-8s ends after %.1f s" % (role, time.monotonic() - begun), flush=True)


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("bin")
    args = parse.parse_args()
    where, tools = sandbox.enter(), runs.Tools(args.bin)
    case(tools, where, "rollout", generates)
    case(tools, where, "train", trains)
    return 0


if __name__ == "__main__":
    sys.exit(main())
