"""A gRPC client that is not ours: Python's, which knows nothing of Tandem and learns services and
messages from the server's reflection. Skipped without python3-grpcio and python3-protobuf.
foreign_client.py BIN [--only NAME]"""
import argparse
import importlib.util
import os
import signal
import sys

DEBIAN_PYTHON = "/usr/bin/python3"  # where the packages are, if not in the Python that was found
if importlib.util.find_spec("grpc") is None and os.access(DEBIAN_PYTHON, os.X_OK) \
        and os.path.realpath(sys.executable) != os.path.realpath(DEBIAN_PYTHON):
    os.execv(DEBIAN_PYTHON, [DEBIAN_PYTHON, "-B"] + sys.argv)
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import cluster  # noqa: E402
import runs  # noqa: E402
import sandbox  # noqa: E402

try:
    import grpc
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError:
    grpc = None

SKIPPED = 77
CALL_S, JOB_S = 10, 60
JOBS, HEALTH = "tandem.v1.Jobs", "grpc.health.v1.Health"
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


# ---- a client by reflection ----

def class_of(descriptor):
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory().GetPrototype(descriptor)


def reflection_file():
    """What is used here of reflection.proto: there is no package of it."""
    kinds = descriptor_pb2.FieldDescriptorProto
    messages = {
        "Request": [("file_by_filename", 3, "STRING"), ("file_containing_symbol", 4, "STRING"),
                    ("list_services", 7, "STRING")],
        "Response": [("files", 4, "Files"), ("services", 6, "Services"), ("error", 7, "Error")],
        "Files": [("packed", 1, "BYTES*")],
        "Services": [("service", 1, "Service*")],
        "Service": [("name", 1, "STRING")],
        "Error": [("code", 1, "INT32"), ("text", 2, "STRING")]}
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", package="r", syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            made = message.field.add(name=field, number=number)
            made.label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            if kind in messages:
                made.type, made.type_name = kinds.TYPE_MESSAGE, ".r." + kind
            else:
                made.type = getattr(kinds, "TYPE_" + kind)
    return file


class Client:
    """A channel to one server, and what the server says of itself."""

    def __init__(self, address, version="v1"):
        self.channel = grpc.insecure_channel(address)
        own = descriptor_pool.DescriptorPool()
        own.Add(reflection_file())
        self.question = class_of(own.FindMessageTypeByName("r.Request"))
        self.reflect = self.channel.stream_stream(
            "/grpc.reflection.%s.ServerReflection/ServerReflectionInfo" % version,
            lambda m: m.SerializeToString(),
            class_of(own.FindMessageTypeByName("r.Response")).FromString)
        self.pool, self.known = descriptor_pool.DescriptorPool(), set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def ask(self, *questions):
        """Answers, in order, of one stream."""
        return list(self.reflect(iter([self.question(**q) for q in questions]), timeout=CALL_S))

    def services(self):
        return [s.name for s in self.ask({"list_services": "*"})[0].services.service]

    def _learn(self, question):
        answer, = self.ask(question)
        assert answer.files.packed, "%s: %s" % (question, answer)
        for packed in answer.files.packed:
            file = descriptor_pb2.FileDescriptorProto.FromString(packed)
            if file.name not in self.known:
                self.known.add(file.name)
                for name in file.dependency:
                    self._learn({"file_by_filename": name})
                self.pool.Add(file)

    def service(self, name):
        try:
            return self.pool.FindServiceByName(name)
        except KeyError:
            self._learn({"file_containing_symbol": name})
            return self.pool.FindServiceByName(name)

    def call(self, of, called, timeout=CALL_S, **fields):
        """The response, or where the method streams all of them, one after the other."""
        method = self.service(of).methods_by_name[called]
        said = descriptor_pb2.MethodDescriptorProto()
        method.CopyToProto(said)
        make = self.channel.unary_stream if said.server_streaming else self.channel.unary_unary
        request = class_of(method.input_type)(**fields)
        return make("/%s/%s" % (of, called), lambda m: m.SerializeToString(),
                    class_of(method.output_type).FromString)(request, timeout=timeout)

    def jobs(self, called, timeout=CALL_S, **fields):
        return self.call(JOBS, called, timeout=timeout, **fields)

def refused(function, code):
    """What it was refused with."""
    try:
        function()
    except grpc.RpcError as e:
        assert e.code() == code, e
        return e.details()
    raise AssertionError("it was not refused")


# ---- cases ----

class Bench:
    def __init__(self, tools, where):
        self.tools, self.where, self.made, self.clusters = tools, where, 0, []
        self.spec = cluster.spec_for("sft")
        result, _ = cluster.undisturbed(tools, os.path.join(where, "clean"), self.spec)
        self.commits = result["commits"]

    def up(self):
        self.made += 1
        made = cluster.Cluster(self.tools, os.path.join(self.where, "c%d" % self.made), rollout=0)
        self.clusters.append(made)
        return made.up()


def state_of(job):
    return job.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_number[job.state].name


def submission(c, request_id, spec):
    """What SubmitJob takes: the file's text, and whole paths for those in it."""
    job = c.job(spec)
    with open(job.path("job.yaml")) as f:
        text = f.read()
    paths = {"data.train_files": "train.jsonl", "model.path": "model",
             "trainer.default_local_dir": "out"}
    return {"request_id": request_id, "job_file": text, "name": "job.yaml",
            "overrides": ["%s=%s" % (k, job.path(v)) for k, v in paths.items()]}


def watch(client, job, after, until):
    """Events of one stream: all of them, or up to the first for which until(event) holds."""
    seen = []
    stream = client.jobs("WatchJob", timeout=JOB_S, id=job, after=after)
    for event in stream:
        seen.append(event)
        if until(event):
            stream.cancel()
            break
    return seen


@case
def submits_and_watches(bench):
    c = bench.up()
    with Client(c.wait_leader().address) as client:
        submit = submission(c, "from Python", bench.spec)
        job = client.jobs("SubmitJob", **submit)
        assert (job.id, job.request_id) == (1, "from Python"), job
        assert state_of(job) in ("QUEUED", "RUNNING"), job
        again = client.jobs("SubmitJob", **submit)
        assert again.id == 1, "the same request became job %d" % again.id
        first = watch(client, 1, 0, lambda e: e.job.step >= 2)
        rest = watch(client, 1, first[-1].seq, lambda e: False)
        seqs = [e.seq for e in first + rest]
        assert seqs == sorted(seqs) and rest[0].seq > first[-1].seq, seqs
        ended = rest[-1].job
        found = (ended.step, "%016x" % ended.weight_digest, "%016x" % ended.state_digest)
        assert state_of(ended) == "SUCCEEDED" and found == bench.commits[-1], ended
        for event in first + rest:
            step = event.job.step
            assert "%016x" % event.job.weight_digest in (bench.commits[step][1], "0" * 16), event
        # A stream from there on ends at once. The journal may have gone on, with beats.
        assert all(e.job == ended for e in watch(client, 1, rest[-1].seq, lambda e: False))
        assert [(j.id, state_of(j)) for j in client.jobs("ListJobs").jobs] == [(1, "SUCCEEDED")]
        assert len(client.jobs("ListRounds", id=1).rounds) > 0
    c.check_quiet()
    c.stop()


@case
def cancels(bench):
    c = bench.up()
    with Client(c.wait_leader().address) as client:
        spec = cluster.spec_for("sft")
        spec["trainer"]["total_epochs"] = 1000
        job = client.jobs("SubmitJob", **submission(c, "long", spec))
        watch(client, job.id, 0, lambda e: e.job.step >= 1)
        assert state_of(client.jobs("CancelJob", id=job.id, timeout=30)) == "CANCELLED"
        end, = watch(client, job.id, 0, lambda e: False)
        assert state_of(end.job) == "CANCELLED", end
        c.check_clear()
    c.check_quiet()
    c.stop()


@case
def is_refused_clearly(bench):
    c = bench.up()
    leader = c.wait_leader()
    with Client(leader.address) as client:
        wrong = submission(c, "wrong", bench.spec)
        wrong["overrides"] += ["trainer.total_epochs=none", "optim.lr=-1"]
        said = refused(lambda: client.jobs("SubmitJob", **wrong),
                       grpc.StatusCode.INVALID_ARGUMENT)
        assert "trainer.total_epochs" in said and "optim.lr" in said, said
        for name in ("GetJob", "CancelJob"):
            assert refused(lambda: client.jobs(name, id=7), grpc.StatusCode.NOT_FOUND) == "no job 7"
        assert refused(lambda: list(client.jobs("WatchJob", id=7)),
                       grpc.StatusCode.NOT_FOUND) == "no job 7"
        refused(lambda: client.channel.unary_unary("/tandem.v1.Jobs/Nothing")(b"", timeout=CALL_S),
                grpc.StatusCode.UNIMPLEMENTED)
        garbage = client.channel.unary_unary("/tandem.v1.Jobs/GetJob")
        refused(lambda: garbage(b"\xff\xff", timeout=CALL_S), grpc.StatusCode.INVALID_ARGUMENT)
    standby, = (d for d in c.of("coordinator") if d is not leader)
    with Client(standby.address) as client:
        said = sandbox.wait_for(lambda: [
            t for t in [refused(lambda: client.jobs("ListJobs"), grpc.StatusCode.UNAVAILABLE)]
            if leader.address in t], 10, "the leader's address from the standby")
        assert "does not lead" in said[0], said
    c.check_quiet()
    c.stop()


@case
def health_and_reflection(bench):
    c = bench.up()
    leader = c.wait_leader()
    standby, = (d for d in c.of("coordinator") if d is not leader)
    for version in ("v1", "v1alpha"):
        with Client(standby.address, version) as client:
            named = client.services()
            assert {JOBS, HEALTH, "grpc.reflection.v1.ServerReflection"} <= set(named), named
            for name in named:
                assert client.service(name).methods, name
            both = client.ask({"file_containing_symbol": "no.Body"}, {"list_services": "*"})
            assert both[0].error.code == grpc.StatusCode.NOT_FOUND.value[0], both[0]
            assert len(both[1].services.service) == len(named), both[1]
    with Client(leader.address) as client:
        sandbox.wait_for(lambda: client.call(HEALTH, "Check", service=JOBS).status == 1, 10, "the leader to serve jobs")
    with Client(standby.address) as client:
        assert client.call(HEALTH, "Check", service="").status == 1
        assert client.call(HEALTH, "Check", service=JOBS).status == 2  # NOT_SERVING
        refused(lambda: client.call(HEALTH, "Check", service="nobody"), grpc.StatusCode.NOT_FOUND)
        stream = client.call(HEALTH, "Watch", timeout=JOB_S, service=JOBS)
        assert next(stream).status == 2
        sandbox.send(leader.pid, signal.SIGTERM)
        assert next(stream).status == 1  # it leads
        sandbox.send(standby.pid, signal.SIGTERM)
        assert next(stream).status == 2
        refused(lambda: next(stream), grpc.StatusCode.UNAVAILABLE)
    assert standby.wait() == 0 and leader.wait() == 0
    c.stop()


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("bin")
    parse.add_argument("--only", action="append", choices=sorted(CASES))
    args = parse.parse_args()
    if grpc is None:
        print("skipped: Debian's python3-grpcio and python3-protobuf are missing")
        return SKIPPED
    bench = Bench(runs.Tools(args.bin), sandbox.enter(network=True))
    return cluster.run_cases({n: CASES[n] for n in args.only or CASES}, bench)


if __name__ == "__main__":
    sys.exit(main())
