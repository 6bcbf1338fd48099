"""Record logs between processes that are killed, over a file or a real Kafka that is killed too: one
node, or three that hold every record, of which one is killed at a time.
logs.py BIN file|kafka|brokers [--only NAME] [--seed N]

Kafka is installed by deploy/kafka on first use; without a JRE the test is skipped."""
import argparse
import collections
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import cluster  # noqa: E402
import kafka  # noqa: E402
import sandbox  # noqa: E402

SKIPPED, WAIT_S = 77, 120
CASES = {"file": {}, "kafka": {}, "brokers": {}}


def case(*kinds):
    def add(function):
        for kind in kinds:
            CASES[kind][function.__name__] = function
        return function
    return add


# ---- processes at the log

class Drive:
    """A log_drive whose output goes into a file."""
    def __init__(self, bench, *arguments):
        bench.count += 1
        self.path = os.path.join(bench.folder, "out-%d" % bench.count)
        self.arguments = arguments
        kind = "kafka" if bench.kafka else "file"
        with open(self.path, "wb") as out:
            process = subprocess.Popen([bench.tool, kind, bench.where] + [str(a) for a in arguments],
                                       stdout=out)
        process.returncode = 0  # reaped by sandbox.reap, not by subprocess
        self.pid = process.pid
        bench.drives.append(self)

    def lines(self):
        """Whole lines of the output so far, as (kind, number, number, number)."""
        with open(self.path) as out:
            text = out.read()
        rows = [line.split() for line in text[:text.rfind("\n") + 1].splitlines()]
        return [(r[0],) + tuple(int(x) for x in r[1:]) for r in rows]

    def ended(self):
        return sandbox.exit_code(self.pid) is not None

    def wait(self):
        """Its exit status."""
        sandbox.wait_for(self.ended, WAIT_S, "the end of log_drive %s" % (self.arguments,))
        return sandbox.exit_code(self.pid)

    def kill(self):
        sandbox.send(self.pid, signal.SIGKILL)
        self.wait()

    def done(self):
        assert self.wait() == 0, "log_drive %s failed" % (self.arguments,)
        return self.lines()


class Bench:
    def __init__(self, tool, folder, servers):
        """servers: a Kafka; None: a file log."""
        self.tool, self.folder, self.count, self.drives = tool, folder, 0, []
        self.kafka = servers
        self.where = servers.brokers if servers else os.path.join(folder, "logs")

    def run(self, *arguments):
        return Drive(self, *arguments).done()

    def create(self, partitions):
        self.run("delete")
        self.run("create", partitions)
        self.partitions = partitions

    def node(self):
        return random.choice(self.kafka.nodes)

    def end(self):
        for drive in self.drives:
            if not drive.ended():
                drive.kill()
        self.drives = []


def wait_for(condition, what):
    sandbox.wait_for(condition, WAIT_S, what)


def answers(lines, kind):
    return {n: (p, offset) for k, n, p, offset in lines if k == kind}


def check_read(lines, partitions, gaps=False):
    """What one reader saw: contiguous offsets, but for gaps. Returns {(partition, offset): number}."""
    following, seen = {}, {}
    for line in lines:
        if line[0] == "R":
            _, p, offset, number = line
            assert number % partitions == p, "record %d is in partition %d" % (number, p)
            assert following.get(p, offset) == offset, "after %d came %d" % (following[p] - 1, offset)
            following[p] = offset + 1
            seen[p, offset] = number
        elif line[0] == "G":
            assert gaps, "a gap where nothing was trimmed"
            assert line[2] > following.get(line[1], 0), "a gap that leads back"
            following[line[1]] = line[2]
    return seen


def check_written(seen, lines, trimmed=False):
    """Every acknowledged record is where it was said to be; nothing is there twice, nor out of order."""
    for number, place in answers(lines, "A").items():
        assert (trimmed and place not in seen) or seen.get(place) == number, \
            "record %d was acknowledged at %s, there is %s" % (number, place, seen.get(place))
    again = [n for n, count in collections.Counter(seen.values()).items() if count > 1]
    assert not again, "written once, there twice: %s" % again
    last = {}
    for (p, _), number in sorted(seen.items()):
        assert number > last.get(p, -1), "record %d came behind %d" % (number, last[p])
        last[p] = number


# ---- cases

@case("file", "kafka")
def processes(bench):
    """One process appends, two tail, one trims; the appender is killed and another takes over."""
    count, keep = 2000, 300
    bench.create(4)
    tails = [Drive(bench, "tail", 0) for _ in range(2)]
    trimmer = Drive(bench, "trim", keep)
    first = Drive(bench, "append", 0, 10 ** 6, 100, 20000)
    wait_for(lambda: len(first.lines()) > random.randrange(1500, 2500), "an appender")
    first.kill()
    second = Drive(bench, "append", 10 ** 6, count, 100, 20000)
    written = first.lines() + second.done()
    assert len(answers(written, "A")) == len(written), "not all were appended"
    last = {(p, 10 ** 6 + count - 4 + p) for p in range(4)}
    wait_for(lambda: all(last <= {(r[1], r[3]) for r in t.lines() if r[0] == "R"} for t in tails),
             "the readers")
    wait_for(lambda: len(trimmer.lines()) > 0, "a trim")
    trimmer.kill()
    seen = [check_read(t.lines(), 4, gaps=True) for t in tails]
    for one in seen:
        check_written(one, written, trimmed=True)
    both = seen[0].keys() & seen[1].keys()
    assert both and all(seen[0][place] == seen[1][place] for place in both)
    rest = bench.run("read")
    starts = {r[1]: r[2] for r in rest if r[0] == "B"}
    below = {r[1]: r[2] for r in trimmer.lines()}
    assert all(start >= 0 for start in starts.values()) and sum(starts.values()) > 0
    assert all(starts[p] in (b, starts[p]) and starts[p] <= b for p, b in below.items())
    check_written(check_read(rest, 4), written, trimmed=True)


@case("file", "kafka")
def two_appenders(bench):
    """Two processes append to the same partitions: none is lost or changed."""
    bench.create(2)
    both = [Drive(bench, "append", first, 600, 50, 20000) for first in (0, 10000)]
    written = [d.done() for d in both]
    seen = check_read(bench.run("read"), 2)
    assert len(seen) == 1200
    for lines in written:
        mine = {n for n in answers(lines, "A")}
        assert len(mine) == 600
        check_written({k: v for k, v in seen.items() if v in mine}, lines)


def through(bench, partitions, count, size, timeout_ms, harm):
    """Appends while harm(bench) is done to the broker, tailed all the time. Returns what the appender said."""
    bench.create(partitions)
    tail = Drive(bench, "tail", 0)
    writer = Drive(bench, "append", 0, count, size, timeout_ms)
    wait_for(lambda: len(writer.lines()) >= count // 5, "an appender")
    harm(bench)
    written = writer.done()
    assert not answers(written, "F"), "an append failed for good"
    lines = bench.run("read")
    seen = check_read(lines, partitions)
    check_written(seen, written)
    wait_for(lambda: len(check_read(tail.lines(), partitions)) >= len(seen), "the reader")
    assert check_read(tail.lines(), partitions) == seen
    return written


def kill_and_start(bench):
    node = bench.node()
    node.kill()
    time.sleep(random.choice((0, random.uniform(0, 2), 4)))
    node.start()


def kill_and_start_all(bench):
    for node in bench.kafka.nodes:
        sandbox.send(node.pid, signal.SIGKILL)
    for node in bench.kafka.nodes:
        node.wait()
    cluster.start_all(bench.kafka.nodes)


def stand_still(bench):
    """Longer than its session."""
    node = bench.node()
    sandbox.send(node.pid, signal.SIGSTOP)
    time.sleep(4)
    sandbox.send(node.pid, signal.SIGCONT)


@case("kafka", "brokers")
def broker_killed(bench):
    """All is acknowledged within the deadline, though the broker was gone for a while."""
    written = through(bench, 4, 40000, 200, 60000, kill_and_start)
    assert len(answers(written, "A")) == len(written)


@case("kafka")
def broker_killed_short_deadline(bench):
    """Appends of unknown outcome are there once or not at all; later ones are acknowledged again."""
    written = through(bench, 4, 40000, 200, 1000, kill_and_start)
    unknown = answers(written, "U")
    assert unknown and written[-1][0] == "A", "the outage was not noticed or never ended"
    print("  %d of %d unknown" % (len(unknown), len(written)))


@case("kafka")
def broker_killed_big_records(bench):
    written = through(bench, 2, 60, 5000000, 60000, kill_and_start)
    assert len(answers(written, "A")) == len(written)


@case("kafka", "brokers")
def broker_stands_still(bench):
    """64 partitions."""
    written = through(bench, 64, 20000, 500, 60000, stand_still)
    assert len(answers(written, "A")) == len(written)


@case("kafka", "brokers")
def echo(bench):
    """What was acknowledged is found at its place at once, whoever leads its partition by now; and
    one who asks for start and end over and over gets his answers."""
    harms = [kill_and_start, stand_still, kill_and_start_all]
    bench.create(6)
    trimmer = Drive(bench, "trim", 200)
    writer = Drive(bench, "echo", 0, 1000 * len(harms), 100, 60000)
    for i, harm in enumerate(harms):
        wait_for(lambda: len(writer.lines()) >= 1000 * i + 300 or writer.ended(), "an echo")
        harm(bench)
    written = writer.done()
    assert len(answers(written, "A")) == len(written)
    said = len(trimmer.lines())
    wait_for(lambda: trimmer.ended() or len(trimmer.lines()) > said, "a trim")
    assert not trimmer.ended(), "the trimmer gave up"


@case("kafka", "brokers")
def units(bench):
    """The tests of every kind of log, on this Kafka."""
    bins = os.path.dirname(bench.tool)
    for name in ("test_log", "test_logs"):
        subprocess.run([os.path.join(bins, name)], check=True,
                       env=dict(os.environ, TD_KAFKA=bench.where))


def started(kind, folder):
    """The servers of that kind of log."""
    if kind == "file":
        return None
    ports = cluster.free_port_pairs(1 if kind == "kafka" else 3)
    where = os.path.join(folder, "broker")
    found = kafka.Kafka(where, ports[0]) if kind == "kafka" else kafka.Brokers(where, ports)
    cluster.start_all(found.nodes)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("kind", choices=sorted(CASES))
    parser.add_argument("--only")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10 ** 9)
    options = parser.parse_args()
    if options.kind != "file" and not kafka.install():
        print("skipped: Java or Kafka is missing (deploy/debian-packages kafka)")
        return SKIPPED
    folder = sandbox.enter(network=True)
    print("seed %d" % options.seed)
    random.seed(options.seed)
    bench = Bench(os.path.join(options.bin, "log_drive"), folder, started(options.kind, folder))
    for name, function in CASES[options.kind].items():
        if options.only in (None, name):
            began = time.monotonic()
            function(bench)
            bench.end()
            print("%-30s ok, %.1f s" % (name, time.monotonic() - began), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
