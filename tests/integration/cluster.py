"""The daemons as a user starts them: jobs that end with the bits of `tandem run`, several at once,
cancelled, after a stop; and what is wrong said clearly. cluster.py BIN [--only NAME]"""
import argparse
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import cluster  # noqa: E402
import jobs  # noqa: E402
import runs  # noqa: E402
import sandbox  # noqa: E402

OK, FAILED, USAGE, CONFIG = 0, 1, 2, 78
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Bench:
    def __init__(self, tools, where):
        self.tools, self.where, self.made, self.clusters = tools, where, 0, []
        # Of `tandem run`. No rollouts among it: a cluster deletes its rollout logs.
        self.expected = {kind: cluster.undisturbed(tools, os.path.join(where, "clean"),
                                                   cluster.spec_for(kind))[0]
                         for kind in ("grpo", "sft")}

    def cluster(self, **shape):
        self.made += 1
        made = cluster.Cluster(self.tools, os.path.join(self.where, "c%d" % self.made), **shape)
        self.clusters.append(made)
        return made

    def ended_equal(self, *ended):
        """These jobs succeeded, as in one process, and left nothing."""
        for job in ended:
            assert job.wait_end() == "succeeded", job.cluster.ask("/api/v1/jobs/%d" % job.id)
            runs.check_equal(self.expected[job.spec["tandem"]["kind"]], job.result())
        ended[0].cluster.check_clear()
        ended[0].cluster.check_quiet()


@case
def equal(bench):
    """Jobs of both kinds, one after the other on the same daemons."""
    c = bench.cluster().up()
    for kind in ("grpo", "sft"):
        bench.ended_equal(c.job(cluster.spec_for(kind)).submit())
    c.stop()


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("bin")
    parse.add_argument("--only", action="append", choices=sorted(CASES))
    args = parse.parse_args()
    bench = Bench(runs.Tools(args.bin), sandbox.enter(network=True))
    return cluster.run_cases({n: CASES[n] for n in args.only or CASES}, bench)


if __name__ == "__main__":
    sys.exit(main())
