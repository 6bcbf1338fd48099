"""Kills and stops daemons and workers of a cluster at random moments, starts again what was killed,
and compares every digest with `tandem run`. Logs are files, or topics of a Kafka that is hurt, too.
cluster_kills.py BIN --kind sft|grpo [--log kafka [--brokers 3]]"""
import argparse
import concurrent.futures
import contextlib
import copy
import os
import random
import signal
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
COUNT_BY = {"file": "TD_FAULT_COUNT", "kafka": "TD_FAULT_COUNT_KAFKA"}  # of the environment
HURTS_MAX = 3  # in one job
BACK_S = (0, 0.3, 2.5)  # when what was killed is started again; the last: after it is given up
STOP_S = 1 + max(cluster.TIMERS["takeover_ms"], cluster.TIMERS["member_timeout_ms"]) / 1000
FAULTS = {}


# Of clusters. The journal of some is trimmed on the way.
SHAPES = {"lose-train": {"train": 2}, "two-jobs": {"train": 2},
          "mixed": {"timers": dict(cluster.TIMERS, state_every=30)}}
AT_ONCE = {"two-jobs": 2}
BROKER_S = 3  # longer than broker.session.timeout.ms of deploy/kafka-node
CANCEL_S = 30  # worker_grace_s, after which what nobody serves has ended, and more


class Missed(Exception):
    """The job had ended, or there was no such process, when the fault was due."""


def fault(function):
    FAULTS[function.__name__.replace("_", "-")] = function
    return function


def kill(servers, pick, workers=()):
    """At once; servers are started again."""
    for pid in [s.pid for s in servers] + list(workers):
        sandbox.send(pid, signal.SIGKILL)
    for s in servers:
        s.wait()
    time.sleep(pick.choice(BACK_S))
    cluster.start_all(servers)


def lose(c, daemon):
    if any(d.name.split("-")[0] == daemon.name.split("-")[0] for d in c.lost):
        raise Missed  # the last of its kind
    daemon.kill()
    c.lost.append(daemon)


def kill_worker(c, program, pick):
    pids = [pid for d in c.of(program) for pid in c.workers(d.name).values()]
    if not pids or not sandbox.send(pick.choice(sorted(pids)), signal.SIGKILL):
        raise Missed


def pause(c, daemon, instead=None):
    """Longer than its time. instead(): true once another one does its work."""
    c.pause(daemon)
    time.sleep(STOP_S)
    if instead:
        sandbox.wait_for(instead, 10, "somebody in the place of " + daemon.name)
    sandbox.send(daemon.pid, signal.SIGCONT)


def leader_of(c):
    leader = c.leader()
    if not leader:
        raise Missed
    return leader


@fault
def kill_rollout(c, pick):
    kill([pick.choice(c.of("rollout"))], pick)


@fault
def kill_rollout_worker(c, pick):
    kill_worker(c, "rollout", pick)


@fault
def kill_train(c, pick):
    kill(c.of("train"), pick)


@fault
def kill_train_worker(c, pick):
    kill_worker(c, "train", pick)


@fault
def kill_leader(c, pick):
    kill([leader_of(c)], pick)


@fault
def kill_coordinators(c, pick):
    kill(c.of("coordinator"), pick)


@fault
def kill_redis(c, pick):
    """It comes back empty."""
    kill(c.of("redis"), pick)


@fault
def power_cut(c, pick):
    c.kill_all()
    time.sleep(pick.choice(BACK_S[:2]))
    c.start()


@fault
def kill_some(c, pick):
    """Any of all processes, at once."""
    servers, workers = sorted(c.servers(), key=lambda s: s.name), sorted(c.all_workers())
    kill(pick.sample(servers, pick.randint(1, len(servers))), pick,
         pick.sample(workers, pick.randint(0, len(workers))))


@fault
def lose_rollout(c, pick):
    """It comes back when the job has ended."""
    lose(c, pick.choice(c.of("rollout")))


@fault
def lose_train(c, pick):
    """Its job goes to the other one."""
    serving = [d for d in c.of("train") if c.workers(d.name)]
    lose(c, pick.choice(serving or c.of("train")))


@fault
def stop_leader(c, pick):
    leader = leader_of(c)
    pause(c, leader, lambda: c.leader() not in (None, leader))


@fault
def stop_rollout(c, pick):
    pause(c, pick.choice(c.of("rollout")))


@fault
def stop_train(c, pick):
    pause(c, pick.choice(c.of("train")))


@fault
def kill_kafka(c, pick):
    kill(c.kafka.nodes, pick)


@fault
def kill_kafka_and_redis(c, pick):
    kill(c.kafka.nodes + c.of("redis"), pick)


@fault
def kill_broker(c, pick):
    """One of several: what it led is led by another."""
    kill([pick.choice(c.kafka.nodes)], pick)


@fault
def stop_broker(c, pick):
    """One of several goes on when another leads what it led, and learns so."""
    node = pick.choice(c.kafka.nodes)
    sandbox.send(node.pid, signal.SIGSTOP)
    time.sleep(STOP_S + pick.uniform(0, BROKER_S))
    sandbox.send(node.pid, signal.SIGCONT)


@fault
def mixed(c, pick):
    nodes = len(c.kafka.nodes) if c.kafka else 0
    single = set(FAULTS) - set(COMBINED) - set(() if nodes else OF_KAFKA)
    single -= set(() if nodes > 1 else OF_BROKERS)
    FAULTS[pick.choice(sorted(single))](c, pick)


@fault
def two_jobs(c, pick):
    """Of each other's faults they are free."""
    mixed(c, pick)


@fault
def cancelled(c, pick):
    mixed(c, pick)


COMBINED = ("mixed", "two-jobs", "cancelled", "lose-rollout", "lose-train")
OF_KAFKA = ("kill-kafka", "kill-kafka-and-redis")
OF_BROKERS = ("kill-broker", "stop-broker")
WITHOUT_ROLLOUTS = ("kill-train", "kill-train-worker", "kill-leader", "kill-coordinators",
                    "power-cut", "kill-some", "lose-train", "stop-leader", "stop-train",
                    *OF_KAFKA, *OF_BROKERS)


def moment(job, step, pick):
    """A little after that step; step 0 begins with the submission. False: the job has ended."""
    def there():
        if not step:
            return True
        found = job.submitted() and job.cluster.ask("/api/v1/jobs/%d" % job.id)
        return found and (found["step"] >= step or found["state"] in cluster.ENDED)
    sandbox.wait_for(there, 60, "step %d" % step)
    time.sleep(pick.uniform(0, 0.1 if step else 1))
    return not job.submitted() or job.state() not in cluster.ENDED


def hurt_now_and_then(c, ran, hurt, pick):
    """Up to HURTS_MAX times while the jobs run. Returns how often."""
    done, c.lost = 0, []
    for step in sorted(pick.choices(range(jobs.STEPS), k=pick.choice((1, 1, 1, 2, HURTS_MAX)))):
        with contextlib.suppress(Missed):
            if moment(pick.choice(ran), step, pick):
                hurt(c, pick)
                done += 1
    return done


def check_well(c):
    """No server ended by itself, and nothing is left of any job."""
    gone = [s.name for s in c.servers() if not s.alive()]
    assert not gone, "ended by themselves: %s" % gone
    c.check_clear(CANCEL_S)
    c.check_quiet()


def equal_jobs(c, name, spec, expected, pick):
    """Jobs that end with the bits of `tandem run`. How often they were hurt."""
    ran = [c.job(spec) for _ in range(AT_ONCE.get(name, 1))]
    for job in ran:
        job.begin_submit()
    done = hurt_now_and_then(c, ran, FAULTS[name], pick)
    for job in ran:
        sandbox.wait_for(job.submitted, 60, "an answer to submit")
        assert job.wait_end() == "succeeded", c.ask("/api/v1/jobs/%d" % job.id)
    c.wait_given_up()
    for job in ran:
        found = job.result()
        kept = len(found["commits"])  # all, but where the journal is trimmed
        assert kept or name == "mixed", "the journal has no COMMIT of job %d" % job.id
        trimmed = expected["commits"][len(expected["commits"]) - kept:]
        runs.check_equal(dict(expected, commits=trimmed), found)
        job.remove()
    for d in c.lost:
        d.start()
    check_well(c)
    return done


def cancelled_job(c, spec, pick):
    """A job that would go on for long, cancelled amid faults."""
    spec = copy.deepcopy(spec)
    spec["trainer"].update(total_training_steps=None, total_epochs=10000)
    job = c.job(spec)
    job.begin_submit()
    done = hurt_now_and_then(c, [job], FAULTS["cancelled"], pick)
    sandbox.wait_for(job.submitted, 60, "an answer to submit")
    cancel = job.begin("cancel", job.id)
    time.sleep(pick.uniform(0, 0.2))
    with contextlib.suppress(Missed):
        mixed(c, pick)
    sandbox.wait_for(lambda: sandbox.exit_code(cancel) is not None, 60, "an answer to cancel")
    assert sandbox.exit_code(cancel) == 0, job.said("cancel")
    assert job.wait_end() == "cancelled", job.said("cancel")
    check_well(c)
    job.remove()
    return done + 1


def one_case(c, name, spec, expected, seed):
    """Until a fault has met a job."""
    pick, done = random.Random(seed), 0
    while not done:
        done = cancelled_job(c, spec, pick) if name == "cancelled" else \
            equal_jobs(c, name, spec, expected, pick)
    return done


def one_kind(args, where, broker, name, spec, expected):
    """So many jobs on one cluster. Returns the number that failed."""
    tools, met, failed, begun = runs.Tools(args.bin), 0, 0, time.monotonic()
    c = None
    for i in range(args.count):
        try:
            if not c:
                c = cluster.Cluster(tools, os.path.join(where, "%s-%d" % (name, i)),
                                    kafka=broker, **SHAPES.get(name, {})).up()
            met += one_case(c, name, spec, expected, args.seed + i)
        except Exception:
            if c:
                print(c.told_all())
            traceback.print_exc(file=sys.stdout)
            print("FAILED: --log %s --fault %s --count 1 --seed %d" % (
                args.log, name, args.seed + i), flush=True)
            sandbox.end_all()
            c, failed = None, failed + 1
    if c:
        c.stop()
    print("%-20s %d jobs, %d faults, %.1f s" % (name, args.count, met, time.monotonic() - begun),
          flush=True)
    return failed


def in_lanes(args, names):
    """Most of the time is waiting: so many faults at once, each by a copy of this program."""
    def run(name):
        return subprocess.call([sys.executable, "-B", sys.argv[0], args.bin, "--kind", args.kind,
                                "--log", args.log, "--brokers", str(args.brokers), "--fault", name,
                                "--count", str(args.count), "--seed", str(args.seed)])
    with concurrent.futures.ThreadPoolExecutor(args.lanes) as lanes:
        return max(lanes.map(run, names))


def made_kafka(where, brokers):
    folder = os.path.join(where, "kafka")
    ports = cluster.free_port_pairs(brokers)
    return kafka.Kafka(folder, ports[0]) if brokers == 1 else kafka.Brokers(folder, ports)


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("bin")
    parse.add_argument("--kind", choices=("sft", "grpo"), required=True)
    parse.add_argument("--log", choices=("file", "kafka"), default="file")
    parse.add_argument("--brokers", type=int, default=1, help="of that Kafka")
    parse.add_argument("--fault", action="append", choices=sorted(FAULTS), help="only this one")
    parse.add_argument("--count", type=int)
    parse.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parse.add_argument("--lanes", type=int, default=1)
    args = parse.parse_args()
    if args.count is None:
        args.count = int(os.environ.get(COUNT_BY[args.log], 5))
    names = args.fault or list(FAULTS if args.kind == "grpo" else WITHOUT_ROLLOUTS)
    if args.log == "file":
        names = [n for n in names if n not in OF_KAFKA + OF_BROKERS]
    elif not kafka.installed():
        print("skipped: Kafka is not installed (deploy/kafka install)")
        return SKIPPED
    elif args.brokers == 1:
        names = [n for n in names if n not in OF_BROKERS]
    if not names:
        parse.error("such a fault needs --log kafka, or several --brokers of it")
    if args.lanes > 1:
        return in_lanes(args, names)
    where = sandbox.enter(network=True)
    spec = cluster.spec_for(args.kind)
    expected, seconds = cluster.undisturbed(runs.Tools(args.bin), os.path.join(where, "clean"),
                                            spec)
    print("%s: %.2f s undisturbed; --seed %d" % (args.kind, seconds, args.seed), flush=True)
    made = made_kafka(where, args.brokers) if args.log == "kafka" else None
    return 1 if sum(one_kind(args, where, made, name, spec, expected) for name in names) else 0


if __name__ == "__main__":
    sys.exit(main())
