"""Jobs that must give the same bits: however many rollout workers and threads, resumed or not, and
built with sanitizers or optimised. equal.py BIN [--other BIN]"""
import argparse
import copy
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import jobs  # noqa: E402
import runs  # noqa: E402
import sandbox  # noqa: E402

SKIPPED = 77
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Bench:
    def __init__(self, tools, other, where):
        self.tools, self.other, self.where, self.made = tools, other, where, 0

    def ends(self, spec, *arguments, tools=None, hurt=None):
        """What the job leaves. hurt(run): called when two steps are committed."""
        self.made += 1
        run = runs.Run(tools or self.tools, os.path.join(self.where, "job-%d" % self.made), spec)
        run.start(*arguments)
        if hurt:
            sandbox.wait_for(lambda: os.path.exists(run.path("run", "journal", "log")) and
                             len(run.commits()) > 2, 60, "two steps")
            hurt(run)
        code = run.wait(300)
        assert code == 0, "exit status %d:\n%s" % (code, run.said_all())
        runs.check_nothing_left(run)
        result = run.result()
        run.remove()
        return result


def more_shapes():
    """GRPO with the other settings of the loss, and SFT, of two train workers."""
    spec = jobs.grpo_spec()
    spec["actor_rollout_ref"]["actor"].update(use_kl_loss=False, clip_ratio_high=0.28,
                                              ppo_epochs=2)
    spec["actor_rollout_ref"]["rollout"].update(temperature=0.7, top_k=20, top_p=0.95)
    return [jobs.grpo_spec(), spec, jobs.grpo_spec(2, 2), jobs.sft_spec(), jobs.sft_spec(2)]


@case
def rollout_workers(bench):
    for spec in (jobs.grpo_spec(), jobs.grpo_spec(2)):
        expected = bench.ends(spec)
        for n in (2, 3):
            runs.check_equal(expected, bench.ends(spec, "tandem.rollout.workers=%d" % n))


@case
def threads(bench):
    for spec in (jobs.grpo_spec(), jobs.sft_spec(2)):
        expected = bench.ends(spec)
        for n in (2, 5):
            runs.check_equal(expected, bench.ends(spec, "tandem.threads=%d" % n))


@case
def batching(bench):
    """How many sequences are decoded together, how they are handed out: no token depends on it."""
    spec = jobs.grpo_spec()
    expected = bench.ends(spec)
    other = copy.deepcopy(spec)
    other["actor_rollout_ref"]["rollout"].update(max_num_seqs=5, max_num_batched_tokens=64)
    other["tandem"]["rollout"]["unit_groups"] = 3
    runs.check_equal(expected, bench.ends(other))


@case
def resumed(bench):
    """Killed in the middle and going on with other workers and threads."""
    spec = jobs.grpo_spec()

    def go_on_with_more(run):
        run.kill_tree()
        run.start("tandem.rollout.workers=2", "tandem.threads=2")

    def interrupt(run):
        sandbox.send(run.pid, signal.SIGINT)
        run.wait(15)
        run.start("tandem.rollout.workers=3")

    expected = bench.ends(spec)
    for hurt in (go_on_with_more, interrupt):
        runs.check_equal(expected, bench.ends(spec, hurt=hurt))


def builds(bench):
    """The two builds, and a job that one began and the other ended."""
    for spec in more_shapes():
        expected = bench.ends(spec)
        runs.check_equal(expected, bench.ends(spec, tools=bench.other))

        def go_on_with_this(run):
            run.kill_tree()
            run.tools = bench.tools
            run.start()

        runs.check_equal(expected, bench.ends(spec, tools=bench.other, hurt=go_on_with_this))


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("bin")
    parse.add_argument("--other", help="bin folder of another build")
    parse.add_argument("--only", action="append", choices=sorted(CASES) + ["builds"])
    args = parse.parse_args()
    if args.other:
        CASES["builds"] = builds
        if not os.path.exists(os.path.join(args.other, "tandem")):
            print("no build in %s" % args.other)
            return SKIPPED
    where = sandbox.enter()
    other = runs.Tools(args.other) if args.other else None
    bench = Bench(runs.Tools(args.bin), other, where)
    return runs.run_cases({n: CASES[n] for n in args.only or CASES}, bench)


if __name__ == "__main__":
    sys.exit(main())
