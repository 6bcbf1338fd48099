"""A cluster that speaks mutual TLS: jobs run, and whoever has no certificate of its authority is
refused and told why. Certificates are made by the openssl command. tls.py BIN [--only NAME]"""
import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import cluster  # noqa: E402
import jobs  # noqa: E402
import runs  # noqa: E402
import sandbox  # noqa: E402

SKIPPED = 77
UNAVAILABLE = 4
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Authority:
    """Signs certificates."""

    def __init__(self, folder, name):
        self.folder = os.path.join(folder, name)
        os.makedirs(self.folder)
        self.cert = self._openssl("ca", "-subj", "/CN=" + name)["cert_file"]

    def _openssl(self, name, *arguments):
        key, cert = (os.path.join(self.folder, name + end) for end in (".key", ".pem"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-noenc", "-days", "2", "-keyout", key, "-out",
                        cert, *arguments], check=True, stderr=subprocess.DEVNULL)
        return {"cert_file": cert, "key_file": key}

    def sign(self, name, names="IP:127.0.0.1"):
        """Settings of a daemon with such a certificate."""
        made = self._openssl(name, "-subj", "/CN=" + name, "-addext", "subjectAltName=" + names,
                             "-addext", "basicConstraints=critical,CA:FALSE", "-CA", self.cert,
                             "-CAkey", os.path.join(self.folder, "ca.key"))
        return dict(made, ca_file=self.cert)


class Bench:
    def __init__(self, tools, where):
        self.tools, self.where, self.made, self.clusters = tools, where, 0, []
        self.spec = cluster.spec_for("sft")
        self.expected, _ = cluster.undisturbed(tools, os.path.join(where, "clean"), self.spec)
        self.ours, self.theirs = (Authority(where, n) for n in ("ours", "theirs"))
        self.daemon = self.ours.sign("daemon")

    def cluster(self, **shape):
        self.made += 1
        made = cluster.Cluster(self.tools, os.path.join(self.where, "c%d" % self.made),
                               tls=self.daemon, **shape)
        self.clusters.append(made)
        return made


def flags(tls):
    return [part for key, flag in (("ca_file", "--tls-ca"), ("cert_file", "--tls-cert"),
                                   ("key_file", "--tls-key")) if key in tls
            for part in (flag, tls[key])]


def with_tls(c, name, tls):
    """Changes one daemon's settings."""
    with open(c.path(name + ".yaml")) as f:
        settings = jobs.json.load(f)
    settings["tls"] = tls
    jobs.write_json(c.path(name + ".yaml"), settings)


def wait_page(daemon, text):
    def shown():
        with contextlib.suppress(OSError):  # it is starting
            return text in daemon.get("/status")[1]
    sandbox.wait_for(shown, 10, '"%s" on the page of %s' % (text, daemon.name))


@case
def a_job_runs(bench):
    c = bench.cluster(rollout=0).up()
    job = c.job(bench.spec)
    own = flags(bench.ours.sign("user"))
    code, out, err = c.tandem("submit", "-f", "job.yaml", *own, "--wait", cwd=job.folder)
    assert code == 0, (out, err)
    job.id = 1
    runs.check_equal(bench.expected, job.result())
    code, out, err = c.tandem("get", "jobs", *own)
    assert code == 0 and "succeeded" in out.lower(), (out, err)
    c.check_quiet()
    c.stop()


@case
def the_command_is_refused(bench):
    """Each with a cause; none of them wakes a daemon's log."""
    c = bench.cluster(rollout=0).up()
    own, other = bench.ours.sign("user"), bench.theirs.sign("user")
    for tls, why in (
            ({}, "does it speak TLS?"),
            ({"ca_file": own["ca_file"]}, "it may ask for a certificate, and we have none"),
            (dict(other, ca_file=own["ca_file"]), "it may not accept our certificate"),
            (dict(own, ca_file=other["ca_file"]), "not of the authority of our CA file")):
        code, out, err = c.tandem("get", "jobs", "--timeout", "0.2", *flags(tls))
        assert (code, out) == (UNAVAILABLE, "") and why in err, (code, out, err)
        lines = err.splitlines()
        assert all(line.startswith("tandem get: no coordinator leads") for line in lines), err
    for d in c.of("coordinator"):
        assert all(line.startswith("ts=") for line in d.said().splitlines()), d.said()
    plain = socket.create_connection(c.of("coordinator")[0].address.split(":"), timeout=10)
    with plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0")
        said = plain.recv(100)
        assert not said or said[0] == 21, said  # the end, or a TLS alert
    c.check_quiet()
    c.stop()


@case
def a_strange_controller_is_no_member(bench):
    """One with a certificate of another authority, one that trusts another one, one that speaks no
    TLS: all stay outside and say why."""
    c = bench.cluster(rollout=3, coordinators=1)
    for daemon, tls, why in zip(
            c.of("rollout"),
            (dict(bench.theirs.sign("stranger"), ca_file=bench.daemon["ca_file"]),
             dict(bench.daemon, ca_file=bench.theirs.cert), {}),
            ("it may not accept our certificate", "not of the authority of our CA file",
             "does it speak TLS?")):
        with_tls(c, daemon.name, tls)
        daemon.expected = why
    c.start()
    members = sandbox.wait_for(lambda: (c.ask("/api/v1/members") or {}).get("members"), 20,
                               "a member")
    assert [m["kind"] for m in members] == ["train"], members
    for d in c.of("rollout"):
        wait_page(d, d.expected)
        assert d.get("/readyz")[0] == 503
    assert len(c.ask("/api/v1/members")["members"]) == 1
    c.check_quiet()
    c.stop()


@case
def a_certificate_is_for_a_host(bench):
    c = bench.cluster(rollout=0, coordinators=1)
    with_tls(c, "coordinator-0", bench.ours.sign("elsewhere", "DNS:elsewhere,IP:127.0.0.2"))
    c.start()
    c.wait_leader()
    wait_page(c.of("train")[0], "Peer name 127.0.0.1 is not in peer certificate")
    assert not c.ask("/api/v1/members")["members"]
    c.stop()


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("bin")
    parse.add_argument("--only", action="append", choices=sorted(CASES))
    args = parse.parse_args()
    if not shutil.which("openssl"):
        print("skipped: there is no openssl command")
        return SKIPPED
    bench = Bench(runs.Tools(args.bin), sandbox.enter(network=True))
    return cluster.run_cases({n: CASES[n] for n in args.only or CASES}, bench)


if __name__ == "__main__":
    sys.exit(main())
