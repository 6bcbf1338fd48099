"""A cluster over five hosts that are network namespaces: two coordinators, one with Kafka and Redis,
a rollout controller, a train controller. No host sees another one's run directories, so weights
travel by TCP. Links are cut while jobs run, whose ends are those of `tandem run`. Needs iproute2
and rights for namespaces. On Kafka and on a file log that all hosts see, which takes Kafka's part
where there is none. TD_LONG=1: all cases on both, ten times.
hosts.py BIN [--only NAME] [--log file|kafka] [--times N]"""
import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import cluster  # noqa: E402
import jobs  # noqa: E402
import kafka  # noqa: E402
import runs  # noqa: E402
import sandbox  # noqa: E402

SKIPPED = 77
KAFKA_PORT, REDIS_PORT, GRPC_PORT, HTTP_PORT = 9092, 6379, 7400, 7480
# daemons and weights; Kafka; Redis; status pages, which are the test's and never cut
NETWORKS = ("ctl", "log", "kv", "page")
HOSTS = {"a1": NETWORKS, "a2": NETWORKS, "k": ("log", "kv"), "b": ("ctl", "log", "page"),
         "c": ("ctl", "log", "page")}
PLACES = {"coordinator-0": "a1", "coordinator-1": "a2", "rollout-0": "b", "train-0": "c"}
# Runs a command that does not see these folders: FOLDER... -- COMMAND...
HIDDEN = ["sh", "-c", 'while [ "$1" != -- ]; do mount -t tmpfs tmpfs "$1"; shift; done; shift; '
          'exec "$@"', "hidden"]
LONG = os.environ.get("TD_LONG") == "1"
CASES = {}


def case(*kinds, always=()):
    """kinds: logs on which it can run; always: in short runs, too."""
    def add(function):
        CASES[function.__name__] = (function, kinds, always)
        return function
    return add


# ---- hosts ----

def address(host, network):
    return "10.78.%d.%d" % (NETWORKS.index(network), list(HOSTS).index(host) + 1)


def run_or_fail(argv, text=None):
    done = subprocess.run(argv, input=text and text.encode(), stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise OSError("%s: %s" % (" ".join(argv), done.stderr.decode().strip()))


def ip(lines, host=None):
    run_or_fail(["ip"] + (["-n", host] if host else []) + ["-batch", "-"], "\n".join(lines) + "\n")


def make_hosts():
    """OSError: they cannot be made here."""
    if not sandbox.isolated():
        raise OSError("no namespaces of its own")
    run_or_fail(["mount", "-t", "tmpfs", "tmpfs", "/run"])  # ours: ip keeps its namespaces there
    for i, network in enumerate(NETWORKS):
        ip(["link add br-%s type bridge" % network, "link set br-%s up" % network,
            "address add 10.78.%d.254/24 dev br-%s" % (i, network)])
    for host, networks in HOSTS.items():
        ip(["netns add " + host])
        for n in networks:
            ip(["link add %s-%s type veth peer name %s netns %s" % (host, n, n, host),
                "link set %s-%s master br-%s up" % (host, n, n)])
        ip(["link set lo up"] + [line for n in networks for line in (
            "address add %s/24 dev %s" % (address(host, n), n), "link set %s up" % n)], host)


def inside(host, argv, hidden=()):
    return ["nsenter", "--net=/run/netns/" + host, "unshare", "--mount", *HIDDEN, *hidden, "--",
            *argv]


@contextlib.contextmanager
def cut(host, *networks):
    """As if the cables were pulled."""
    ip(["link set %s-%s down" % (host, n) for n in networks])
    try:
        yield
    finally:
        ip(["link set %s-%s up" % (host, n) for n in networks])


# ---- the cluster ----

class Job(cluster.Job):
    def step(self):
        found = self.cluster.ask("/api/v1/jobs/%d" % self.id)
        return found["step"] if found and found["state"] != "queued" else -1


class Cluster(cluster.Cluster):
    def __init__(self, tools, folder, broker):
        timers = dict(cluster.TIMERS, state_every=0)  # every COMMIT of many jobs is looked at
        super().__init__(tools, folder, rollout=1, kafka=broker, timers=timers)
        self.addresses = ",".join(d.address for d in self.of("coordinator"))

    def _add_redis(self):
        argv = ["redis-server", "--bind", address("k", "kv"), "--port", str(REDIS_PORT), "--dir",
                self.folder, "--save", "", "--protected-mode", "no"]
        self.daemons["redis"] = cluster.Daemon("redis", self.path("redis"), inside("k", argv))

    def _add(self, program, i, addresses):
        super()._add(program, i, addresses)
        d = self.daemons["%s-%d" % (program, i)]
        host = PLACES[d.name]
        d.http = "%s:%d" % (address(host, "page"), HTTP_PORT)
        with open(d.folder + ".yaml") as f:
            settings = jobs.json.load(f)
        settings.update(host=address(host, "ctl"), http=d.http)
        settings["redis"]["address"] = "%s:%d" % (address("k", "kv"), REDIS_PORT)
        if program == "coordinator":
            d.address = settings["listen"] = "%s:%d" % (settings["host"], GRPC_PORT)
        else:
            settings["coordinators"] = ["%s:%d" % (address(h, "ctl"), GRPC_PORT)
                                        for h in ("a1", "a2")]
        jobs.write_json(d.folder + ".yaml", settings)
        for name in PLACES:
            os.makedirs(self.path(name), exist_ok=True)
        d.argv = inside(host, d.argv, [self.path(n) for n in PLACES if n != d.name])

    def job(self, spec):
        self.made += 1
        return Job(self, self.path("job-%d" % self.made), spec)

    def metric(self, daemon, name):
        return int(re.search(r"^%s (\d+)$" % name, daemon.get("/metrics")[1], re.M).group(1))

    def leader(self):
        """Of those that lead by their own account the one of the highest term."""
        found = []
        for d in self.of("coordinator"):
            with contextlib.suppress(OSError):
                if self.metric(d, "tandem_leader"):
                    found.append((self.metric(d, "tandem_term"), d.name, d))
        return max(found)[2] if found else None

    def term(self):
        return self.metric(self.wait_leader(), "tandem_term")

    def wait_step(self, job, step):
        sandbox.wait_for(lambda: job.step() >= step, 60, "step %d of job %d" % (step, job.id))

    def wait_other_leader(self, old):
        return sandbox.wait_for(lambda: self.leader() not in (None, old), 20, "another leader")

    def wait_silent(self, name):
        """The leader has not heard of that member for longer than it may be silent."""
        kind = name.split("-")[0]

        def gone():
            found = (self.ask("/api/v1/members") or {}).get("members")
            return found is not None and not any(
                m["kind"] == kind and m["heard_ms"] <= cluster.TIMERS["member_timeout_ms"]
                for m in found)
        sandbox.wait_for(gone, 20, "silence of " + name)

    def wait_follows(self, daemon):
        """It is a standby that knows what the leader knows."""
        sandbox.wait_for(lambda: not self.metric(daemon, "tandem_leader") and
                         self.metric(daemon, "tandem_term") == self.term(), 20,
                         daemon.name + " as a standby")


class Bench:
    def __init__(self, tools, where):
        self.tools, self.where, self.made = tools, where, 0
        self.cluster, self.kind = None, None
        self.spec = cluster.spec_for("grpo")
        self.expected, _ = cluster.undisturbed(tools, os.path.join(where, "clean"), self.spec)

    def up(self, kind, broker):
        """A cluster for all cases of that kind."""
        self.made += 1
        self.kind = kind
        self.cluster = Cluster(self.tools, os.path.join(self.where, "c%d" % self.made),
                               broker).up()

    def down(self):
        self.cluster.check_quiet()
        self.cluster.stop()
        self.cluster = None

    @contextlib.contextmanager
    def job(self):
        """A job that has committed a step; it ends within, or afterwards, as `tandem run` ends."""
        job = self.cluster.job(self.spec).submit()
        self.cluster.wait_step(job, 1)
        assert job.step() < jobs.STEPS, "the job was faster than the test"
        yield job
        self.check_ended(job)

    def check_ended(self, job):
        assert job.wait_end() == "succeeded", self.cluster.ask("/api/v1/jobs/%d" % job.id)
        runs.check_equal(self.expected, job.result())


# ---- cases ----

@case("file", "kafka", always=("file", "kafka"))
def undisturbed(bench):
    with bench.job():
        pass
    bench.cluster.check_clear()


@case("kafka", always=("kafka",))
def leader_cut_off_from_the_log(bench):
    c = bench.cluster
    old = c.wait_leader()
    with bench.job() as job, cut(PLACES[old.name], "log"):
        c.wait_other_leader(old)
        bench.check_ended(job)
    c.wait_follows(old)


@case("file", "kafka", always=("kafka",))
def leader_cut_off_from_redis(bench):
    c = bench.cluster
    old, term = c.wait_leader(), c.term()
    with bench.job() as job, cut(PLACES[old.name], "kv"):
        sandbox.wait_for(lambda: "[-] store" in old.get("/readyz")[1], 10, "a store that is lost")
        bench.check_ended(job)
    assert (c.leader(), c.term()) == (old, term), "another one leads"
    sandbox.wait_for(lambda: "[+] store" in old.get("/readyz")[1], 20, "the store again")


@case("file", "kafka", always=("kafka",))
def leader_cut_off_from_controllers(bench):
    c = bench.cluster
    old = c.wait_leader()
    with bench.job() as job, cut(PLACES[old.name], "ctl"):
        c.wait_other_leader(old)
        bench.check_ended(job)
    c.wait_follows(old)


@case("file", "kafka", always=("kafka",))
def rollout_controller_cut_off(bench):
    with bench.job(), cut("b", "ctl"):
        bench.cluster.wait_silent("rollout-0")


@case("file", "kafka", always=("kafka",))
def train_controller_cut_off(bench):
    with bench.job(), cut("c", "ctl"):
        bench.cluster.wait_silent("train-0")


@case("kafka")
def hosts_unplugged(bench):
    """One after the other, with all their cables."""
    with bench.job():
        for host, name in (("b", "rollout-0"), ("c", "train-0")):
            with cut(host, "ctl", "log"):
                bench.cluster.wait_silent(name)


# ---- running ----

def run_case(bench, name, start):
    begun = time.monotonic()
    try:
        if not bench.cluster:
            start()
        CASES[name][0](bench)
        seconds = time.monotonic() - begun
        print("ok      %s, %s log (%.1f s)" % (name, bench.kind, seconds), flush=True)
        return True
    except Exception:
        if bench.cluster:
            print(bench.cluster.told_all())
        traceback.print_exc(file=sys.stdout)
        print("FAILED  %s, %s log" % (name, bench.kind), flush=True)
        if bench.cluster:
            bench.cluster.kill_all()
            bench.cluster = None
        return False


def run_kind(bench, kind, names):
    broker, good = None, True
    if kind == "kafka":
        broker = kafka.Kafka(os.path.join(bench.where, "kafka"), KAFKA_PORT, address("k", "log"),
                             lambda argv: inside("k", argv))
    for name in names:
        good = run_case(bench, name, lambda: bench.up(kind, broker)) and good
    if bench.cluster:
        bench.down()
    if broker and broker.alive():
        broker.stop()
    return good


def names_of(kind, args, has_kafka):
    """Without Kafka the file log takes its part."""
    part = "kafka" if args.log or not has_kafka else kind
    return [n for n, (_, kinds, always) in CASES.items() if kind in kinds and
            (n in args.only if args.only else LONG or part in always)]


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("bin")
    parse.add_argument("--only", action="append", choices=sorted(CASES))
    parse.add_argument("--log", choices=("file", "kafka"))
    parse.add_argument("--times", type=int, default=10 if LONG else 1)
    args = parse.parse_args()
    if not shutil.which("ip"):
        print("skipped: there is no ip command (iproute2)")
        return SKIPPED
    has_kafka = kafka.install()
    where = sandbox.enter(network=True)
    try:
        make_hosts()
    except OSError as e:
        print("skipped: no hosts can be made here: %s" % e)
        return SKIPPED
    if not has_kafka:
        print("Java or Kafka is missing (deploy/debian-packages kafka): the file log only")
    bench, good = Bench(runs.Tools(args.bin), where), True
    for kind in ("file", "kafka") if has_kafka else ("file",):
        names = names_of(kind, args, has_kafka)
        if names and args.log in (None, kind):
            good = run_kind(bench, kind, names * args.times) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
