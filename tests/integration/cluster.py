"""The daemons as a user starts them: jobs that end with the bits of `tandem run`, several at once,
cancelled, after a stop; and what is wrong said clearly. On file logs, or on Kafka.
cluster.py BIN [--only NAME] [--log file|kafka]"""
import argparse
import collections
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import cluster  # noqa: E402
import jobs  # noqa: E402
import kafka  # noqa: E402
import runs  # noqa: E402
import sandbox  # noqa: E402

SKIPPED = 77
OK, FAILED, USAGE, NOT_FOUND, UNAVAILABLE, CONFIG = 0, 1, 2, 3, 4, 78
OK_HTTP = 200
CASES = {}


def case(*logs):
    """logs: the kinds on which it is run."""
    def add(function):
        CASES[function.__name__] = (function, logs)
        return function
    return add


class Bench:
    def __init__(self, tools, where, broker):
        self.tools, self.where, self.made, self.clusters = tools, where, 0, []
        self.broker = broker
        # Of `tandem run`. No rollouts among it: a cluster deletes its rollout logs.
        self.expected = {kind: cluster.undisturbed(tools, os.path.join(where, "clean"),
                                                   cluster.spec_for(kind))[0]
                         for kind in ("grpo", "sft")}

    def cluster(self, **shape):
        self.made += 1
        made = cluster.Cluster(self.tools, os.path.join(self.where, "c%d" % self.made),
                               kafka=self.broker, **shape)
        self.clusters.append(made)
        return made

    def ended_equal(self, *ended):
        """These jobs succeeded, as in one process, and left nothing."""
        for job in ended:
            assert job.wait_end() == "succeeded", job.cluster.ask("/api/v1/jobs/%d" % job.id)
            runs.check_equal(self.expected[job.spec["tandem"]["kind"]], job.result())
        ended[0].cluster.check_clear()
        ended[0].cluster.check_quiet()


@case("file", "kafka")
def equal(bench):
    """Jobs of both kinds, one after the other on the same daemons."""
    c = bench.cluster().up()
    for kind in ("grpo", "sft"):
        bench.ended_equal(c.job(cluster.spec_for(kind)).submit())
    c.stop()


# ---- several jobs ----

@case("file", "kafka")
def two_at_once(bench):
    """Two train controllers, and rollout controllers shared out; a third job waits for its turn."""
    c = bench.cluster(train=2).up()
    first, second = c.job(cluster.spec_for("grpo")).submit(), c.job(cluster.spec_for("grpo")).submit()
    third = c.job(cluster.spec_for("sft")).submit()
    assert third.state() == "queued" or first.state() in cluster.ENDED, third.state()
    bench.ended_equal(first, second, third)
    order = [r["job"] for r in c.journal() if r["name"] == "END"]
    begun = [r["job"] for r in c.journal() if r["name"] == "GANG"]
    assert begun[:2] in ([1, 2], [2, 1]) and begun[2] == 3 and len(order) == 3, (begun, order)
    c.stop()


@case("file", "kafka")
def queue(bench):
    """One train controller: jobs run one after the other, in the order of their submission."""
    c = bench.cluster().up()
    ran = [c.job(cluster.spec_for(kind)).submit() for kind in ("sft", "grpo", "sft")]
    bench.ended_equal(*ran)
    marks = [(r["name"], r["job"]) for r in c.journal() if r["name"] in ("GANG", "END")]
    assert marks == [(name, job.id) for job in ran for name in ("GANG", "END")], marks
    c.stop()


@case("file", "kafka")
def same_request(bench):
    """A request id names one job, however often it is sent."""
    c = bench.cluster().up()
    job = c.job(cluster.spec_for("sft"))
    job.submit("--request-id", "abc")
    first = job.id
    job.id = None
    assert job.submit("--request-id", "abc").id == first
    bench.ended_equal(job)
    job.id = None
    assert job.submit("--request-id", "abc").id == first
    assert len(c.ask("/api/v1/jobs")["jobs"]) == 1


# ---- stopping and going on ----

@case("file", "kafka")
def stopped(bench):
    """SIGTERM ends daemons and workers at any moment; started again they go on."""
    c = bench.cluster().up()
    for kind, step in (("grpo", 2), ("sft", 2), ("grpo", -1)):
        job = c.job(cluster.spec_for(kind)).submit()
        sandbox.wait_for(lambda: job.steps() >= step, 30, "step %d" % step)
        c.stop()
        assert not c.sockets(), c.sockets()
        for path in (job.path("out", "latest_checkpointed_iteration.txt"),
                     job.shared("metrics.staged.json"), job.shared("announced")):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + ".tmp.4711", "wb") as f:
                f.write(b"as kill -9 leaves it")
        c.start()
        bench.ended_equal(job)
        assert not [n for n in os.listdir(job.shared()) if ".tmp." in n], os.listdir(job.shared())
    c.stop()


@case("file")
def asked_while_they_stop(bench):
    """Whoever asks for pages until the end does no harm."""
    paths = ("/readyz", "/metrics", "/status", "/api/v1/jobs", "/api/v1/members", "/api/v1/status")
    c = bench.cluster(redis=False)

    def ask(daemon):
        while daemon.alive():
            for path in paths:
                with contextlib.suppress(OSError):
                    daemon.get(path)

    for _ in range(10):
        c.up()
        asking = [threading.Thread(target=ask, args=(d,)) for d in c.daemons.values() for _ in range(4)]
        for t in asking:
            t.start()
        c.stop()
        for t in asking:
            t.join()


@case("file", "kafka")
def without_coordinators(bench):
    """Controllers that are stopped while no coordinator runs, and are started before one does."""
    c = bench.cluster().up()
    job = c.job(cluster.spec_for("grpo")).submit()
    sandbox.wait_for(lambda: job.steps() >= 1, 30, "step 1")
    for d in c.of("coordinator"):
        d.kill()
    c.stop()
    for d in c.of("train") + c.of("rollout"):
        d.start()
    c.start()
    bench.ended_equal(job)


# ---- cancelling ----

def cancelled(job):
    code, out, err = job.cluster.tandem("cancel", job.id)
    assert (code, out) == (OK, "job %d cancelled\n" % job.id), (code, out, err)
    assert job.state() == "cancelled"
    job.cluster.check_clear()


def long_job(kind):
    """Does nothing but generate, or train, for a minute."""
    spec = cluster.spec_for(kind)
    if kind == "grpo":
        spec["actor_rollout_ref"]["rollout"].update(n=1024, max_num_seqs=1024)
        spec["trainer"].update(val_before_train=False, rollout_data_dir=None)
    else:
        spec["trainer"].update(total_epochs=10000, save_freq=-1)
    spec["tandem"]["step_timeout_s"] = 600
    return spec


@case("file", "kafka")
def cancel(bench):
    """While it is loaded, generates, trains, with a worker that does not answer, and queued."""
    c = bench.cluster().up()

    def train_daemon_is(state):
        return c.of("train")[0].json("/api/v1/status")["state"] == state

    job = c.job(long_job("grpo")).submit()
    cancelled(job)  # at once
    job = c.job(long_job("grpo")).submit()
    sandbox.wait_for(lambda: not train_daemon_is("none"), 20, "the job to be taken up")
    cancelled(job)
    job = c.job(long_job("grpo")).submit()
    sandbox.wait_for(lambda: "units are leased: its workers to generate" in job.waits_for(), 20, "units")
    queued = c.job(cluster.spec_for("sft")).submit()
    cancelled_in_queue(queued)
    cancelled(job)
    job = c.job(long_job("sft")).submit()
    sandbox.wait_for(lambda: job.steps() > 2, 20, "a step")
    cancelled(job)
    job = c.job(long_job("sft")).submit()
    sandbox.wait_for(lambda: job.steps() > 2, 20, "a step")
    for pid in c.workers("train-0").values():
        sandbox.send(pid, signal.SIGSTOP)
    cancelled(job)
    bench.ended_equal(c.job(cluster.spec_for("grpo")).submit())
    code, out, err = c.tandem("cancel", job.id + 1)
    assert code == OK and "had ended before: SUCCEEDED" in out, (code, out, err)
    code, out, err = c.tandem("cancel", 99)
    assert code == NOT_FOUND and "no job 99" in err, (code, out, err)
    c.stop()


def cancelled_in_queue(job):
    assert job.state() == "queued", job.state()
    code, out, err = job.cluster.tandem("cancel", job.id)
    assert (code, out) == (OK, "job %d cancelled\n" % job.id), (code, out, err)
    assert job.state() == "cancelled" and not any(r["name"] == "GANG" for r in job.journal())


# ---- what is wrong ----

def refused(daemon, status, *patterns):
    """It ends with that status and says all the patterns."""
    code = daemon.wait()
    assert code == status, "%s: exit status %d:\n%s" % (daemon.name, code, daemon.said())
    runs.check_said(daemon.said())
    for pattern in patterns:
        assert re.search(pattern, daemon.said()), "not said: %s\n%s" % (pattern, daemon.said())


@case("file")
def port_in_use(bench):
    c = bench.cluster(redis=False)
    for d in c.daemons.values():
        for address in filter(None, (d.http, d.address)):
            with socket.socket() as s:
                s.bind(("127.0.0.1", int(address.split(":")[1])))
                s.listen()
                d.start()
                refused(d, FAILED, re.escape(address) + r".*in use")
    c.up()  # and nothing is in the way afterwards
    c.stop()


@case("file")
def wrong_settings(bench):
    """The line of the file is named."""
    c = bench.cluster(redis=False)
    for d in c.daemons.values():
        path = d.argv[-1]
        with open(path) as f:
            right = f.read()
        lines = ["%s: %s" % (key, json.dumps(value)) for key, value in json.loads(right).items()]
        end = len(lines) + 1
        for wrong, line, pattern in (("cluser: x", end, "cluser.*cluster"),
                                     ("verbose: 3", end, "verbose"),
                                     ("verbose: [", end + 1, "not YAML")):
            with open(path, "w") as f:
                f.write("\n".join(lines + [wrong]) + "\n")
            d.start()
            refused(d, CONFIG, r"\.yaml:%s:.*%s" % (line, pattern))
        with open(path, "w") as f:
            f.write(right)
    c.up()
    c.stop()


@case("file")
def second_daemon(bench):
    """In the run directory of another: refused, and the first one goes on."""
    c = bench.cluster(redis=False).up()
    job = c.job(cluster.spec_for("grpo")).submit()
    first = {d: d.pid for d in c.daemons.values()}
    for d in first:
        d.start()
    for d, pid in first.items():
        refused(d, FAILED, r"lock is held by process %d\b" % pid)
        d.pid = pid
    bench.ended_equal(job)
    c.stop()


@case("file")
def journal_is_gone(bench):
    """A coordinator makes no journal where its run directory belongs to one, nor takes another."""
    c = bench.cluster(redis=False).up()
    bench.ended_equal(c.job(cluster.spec_for("sft")).submit())
    c.stop()
    os.rename(c.path("records", "journal"), c.path("kept"))
    leader = c.daemons["coordinator-0"]
    leader.start()
    refused(leader, FAILED, r"there is no journal, but .*coordinator-0 belongs to journal [0-9a-f]{16}")
    fresh = bench.cluster(redis=False).up()
    fresh.stop()
    shutil.copytree(fresh.path("records", "journal"), c.path("records", "journal"))
    leader.start()
    refused(leader, FAILED, r"the log holds journal [0-9a-f]{16}, this run directory belongs to ")
    shutil.rmtree(c.path("records", "journal"))
    os.rename(c.path("kept"), c.path("records", "journal"))
    c.up()
    bench.ended_equal(c.job(cluster.spec_for("sft")).submit())
    c.stop()


@case("file")
def without_redis(bench):
    """Down at the start, there later, gone again: all works without, and /readyz says so."""
    c = bench.cluster()

    def store(mark):
        return all("[%s] store" % mark in d.get("/readyz")[1] for d in c.of("coordinator"))

    redis = c.daemons.pop("redis")
    c.up()
    assert store("-") and all(d.get("/readyz")[0] == OK_HTTP for d in c.of("coordinator"))
    bench.ended_equal(c.job(cluster.spec_for("grpo")).submit())
    c.daemons["redis"] = redis
    redis.start()
    sandbox.wait_for(lambda: store("+"), 20, "the coordinators to connect to Redis")
    redis.kill()
    sandbox.wait_for(lambda: store("-"), 20, "the coordinators to miss Redis")
    bench.ended_equal(c.job(cluster.spec_for("sft")).submit())
    c.stop()


@case("kafka")
def without_kafka(bench):
    """Down at the start: a coordinator says so and ends; gone for a while: the job waits."""
    c = bench.cluster()
    leader = c.daemons["coordinator-0"]
    with open(leader.argv[-1]) as f:
        settings = json.load(f)
    settings["log"]["timeout_s"] = 2
    jobs.write_json(leader.argv[-1], settings)
    leader.start()
    refused(leader, FAILED, r"tandem-coordinator: .*" + re.escape(c.kafka.brokers))
    c.up()
    job = c.job(cluster.spec_for("grpo")).submit()
    sandbox.wait_for(lambda: job.steps() >= 1, 30, "step 1")
    c.kafka.kill()
    sandbox.wait_for(lambda: all("[-] journal: it waits" in d.get("/readyz")[1]
                                 for d in c.of("coordinator")), 30, "both to miss the journal")
    c.kafka.start()
    bench.ended_equal(job)
    c.stop()


@case("kafka")
def journal_is_another(bench):
    """As journal_is_gone: the topic with it is gone, or that of another Kafka."""
    c = bench.cluster(redis=False).up()
    bench.ended_equal(c.job(cluster.spec_for("sft")).submit())
    c.stop()
    c.kafka.stop()
    os.rename(c.kafka.folder, c.path("kept"))
    c.kafka.start()
    leader = c.daemons["coordinator-0"]
    leader.start()
    refused(leader, FAILED, r"there is no journal, but .*coordinator-0 belongs to journal [0-9a-f]{16}")
    os.remove(c.path("coordinator-1", "journal-id"))
    c.daemons["coordinator-1"].start()  # makes another one
    c.wait_leader()
    leader.start()
    refused(leader, FAILED, r"holds? (journal|log) [0-9a-f]{16}")
    c.stop()
    c.kafka.stop()
    shutil.rmtree(c.kafka.folder)
    os.rename(c.path("kept"), c.kafka.folder)
    os.remove(c.path("coordinator-1", "journal-id"))
    c.up()
    bench.ended_equal(c.job(cluster.spec_for("sft")).submit())
    c.stop()


@case("file")
def missing_files(bench):
    """What a member cannot read is the answer to submit."""
    c = bench.cluster(redis=False).up()
    for path, pattern in (("train.jsonl", r"train\.jsonl: No such file"),
                          ("model/tokenizer.json", r"tokenizer\.json: No such file")):
        job = c.job(cluster.spec_for("sft"))
        os.remove(job.path(path))
        code, out, err = c.tandem("submit", "-f", "job.yaml", cwd=job.folder)
        assert (code, out) == (USAGE, "") and re.search(pattern, err), (code, out, err)
    assert c.ask("/api/v1/jobs")["jobs"] == []
    c.stop()


@case("file")
def bad_weights(bench):
    """A job that cannot be loaded waits, says why, and is in nobody's way."""
    c = bench.cluster(redis=False).up()
    spec = cluster.spec_for("sft")
    spec["tandem"]["init"] = "load"
    job = c.job(spec)
    with open(job.path("model", "model.safetensors"), "wb") as f:
        f.write(b"nonsense")
    job.submit()
    sandbox.wait_for(lambda: "model.safetensors: a header of" in job.waits_for(), 20,
                     "a word about the weights")
    bench.ended_equal(c.job(cluster.spec_for("sft")).submit())
    cancelled(job)
    c.stop()


@case("file", "kafka")
def standby(bench):
    """Says who leads; with both addresses nobody has to know."""
    c = bench.cluster().up()
    leader = c.wait_leader()
    other = next(d for d in c.of("coordinator") if d is not leader)

    def asked():
        return c.tandem("get", "jobs", "--timeout", "0", address=other.address)

    sandbox.wait_for(lambda: leader.address in asked()[2], 10, "the standby to know the leader")
    code, out, err = asked()
    assert (code, out) == (UNAVAILABLE, "") and re.search(
        r"does not lead; the leader is at %s" % leader.address, err), (code, out, err)
    for addresses in ("%s,%s" % (a.address, b.address)
                      for a, b in ((leader, other), (other, leader))):
        code, out, err = c.tandem("get", "jobs", address=addresses)
        assert code == OK, (code, out, err)
    c.stop()


def garbage(pick):
    """What strangers may send."""
    return pick.choice((b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, pick.randbytes(3000),
                        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + pick.randbytes(200), b""))


def listening():
    """Addresses of every TCP socket that waits for connections, of IPv4, in this namespace."""
    with open("/proc/net/tcp") as f:
        rows = [line.split() for line in f.readlines()[1:]]
    return [int(r[1].split(":")[1], 16) for r in rows if r[3] == "0A"]


@case("file", "kafka")
def garbage_on_every_port(bench):
    """Of daemons and workers, TCP and UNIX: the job ends equal."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("        seed %d" % seed)
    pick, sent = random.Random(seed), collections.Counter()
    c = bench.cluster(redis=False).up()
    job = c.job(cluster.spec_for("grpo")).submit()

    def poke():
        places = [(socket.AF_UNIX, path) for path in c.sockets()]
        if sandbox.isolated():
            places += [(socket.AF_INET, ("127.0.0.1", port)) for port in listening()]
        else:
            places += [(socket.AF_INET, (a.split(":")[0], int(a.split(":")[1])))
                       for d in c.daemons.values() for a in (d.http, d.address) if a]
        for family, place in places:
            s = socket.socket(family)
            s.settimeout(1)
            with contextlib.suppress(OSError), s:
                s.connect(place)
                s.sendall(garbage(pick))
                sent[family] += 1
                kept.append(s.dup())
        while len(kept) > 200:
            kept.pop(0).close()

    kept = []
    job.wait_end(watch=poke)
    for s in kept:
        s.close()
    assert min(sent[f] for f in (socket.AF_INET, socket.AF_UNIX)) > 0, sent
    bench.ended_equal(job)
    c.stop()


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("bin")
    parse.add_argument("--only", action="append", choices=sorted(CASES))
    parse.add_argument("--log", choices=("file", "kafka"), default="file")
    args = parse.parse_args()
    if args.log == "kafka" and not kafka.installed():
        print("skipped: Kafka is not installed (deploy/kafka install)")
        return SKIPPED
    where, broker = sandbox.enter(network=True), None
    if args.log == "kafka":
        broker = kafka.Kafka(os.path.join(where, "kafka"), cluster.free_port_pair())
    bench = Bench(runs.Tools(args.bin), where, broker)
    return cluster.run_cases({n: CASES[n][0] for n in args.only or CASES
                              if args.log in CASES[n][1]}, bench)


if __name__ == "__main__":
    sys.exit(main())
