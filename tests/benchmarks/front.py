"""Hostile clients beside honest hospitals: how long an honest release waits for its acknowledgement.

python -m tests.benchmarks.front [seconds] [--sites 120 --rate 2] [--memory] [--no-record]

One coordinator serves its three ports. Eight honest sites deliver a release each, wait a second, and deliver the next
(`--sites`: so many, of which `--rate` a second begin to deliver; then the two parts with deliveries alone are taken);
two analysts ask on over gRPC and one over HTTPS. First alone, then beside 500 hostile connections that are made again
whenever they are closed: silent TCP connections, TLS connections without a call, handshakes of one byte a second,
calls without token or message, calls of a revoked site and of an invitation that has served, accepted sites whose
uploads drip, clients that read and write 1 kB a second, rapid resets, wrong tokens; over HTTPS half calls, answers
that nobody takes, wrong tokens. They come from eight addresses of their own, and all other processes share the
machine's processors with the coordinator. Before that the same crowd is there alone for five times as long, and nobody
delivers: what the coordinator's memory grows by then is the crowd's. A weight is taken at the end of each part: what
every process of the coordinator holds, and what the serving one holds once the allocator has given back what is free.
"""

import argparse
import asyncio
import contextlib
import datetime as dt
import itertools
import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import get_context
from pathlib import Path

from tests.benchmarks.record import sized
from tests.stage.processes.stopping import started

SITES, SLOW, WAVES = 8, 16, 100
ARRIVING = sized(15, 1)  # seconds after which the crowd is there, where it is not watched alone
LONGER = 5  # times as long as anything else the crowd is there alone
COUNTED = 200  # connections of each kind whose cost is taken
MIX = {
    "silent": 124,
    "no call": 60,
    "dripping handshake": 60,
    "held, no token": 40,
    "held, revoked": 40,
    "held, invitation served": 20,
    "slow upload": SLOW,
    "slow reader": 20,
    "resets": 30,
    "wrong token": 30,
    "https, half a call": 20,
    "https, answers not taken": 20,
    "https, wrong token": 20,
}
ADDRESSES = [f"127.0.0.{number}" for number in range(2, 10)]
SERVING = """
import ctypes, gc, json, pathlib, sys, threading
from coordinator.services.collect.server import ServerSettings, serve

def weigh():
    for _ in sys.stdin:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        print(json.dumps({"python_blocks": sys.getallocatedblocks()}), flush=True)

threading.Thread(target=weigh, daemon=True).start()
ports = sys.argv[2].split()
web = {"listen": ports[2], "certificate": "", "key": ""}
settings = ServerSettings(analysts=ports[1], web=web)
serve(pathlib.Path(sys.argv[1]), ports[0], settings, ready=lambda port: print(port, flush=True))
"""
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def study(waves=WAVES):
    """A plan of so many waves."""
    from stage.both_sides.service import SMALL

    from shared.mechanisms.latent_noise.plan import LatentNoisePlan
    from shared.plans.plan import Budget, StudyPlan, Wave

    opens, closes = dt.date(2000, 1, 1), dt.date(2999, 1, 1)
    return StudyPlan(
        study="mini",
        version=1,
        title="A small study",
        purpose="To measure.",
        coordinator="hub",
        expires=closes,
        release=LatentNoisePlan(w=0.8),
        budget=Budget(epsilon=1e6),
        waves=tuple(Wave(number=k, opens=opens, closes=closes) for k in range(1, waves + 1)),
        dictionary=SMALL,
        returning="refresh",
    )


# -- the hostile side: one process ------------------------------------------------------------------------------------
class Crowd:
    """500 connections of one event loop, each in a loop of its own; `tried` counts what was opened."""

    def __init__(self, ports, shown):
        self.ports, self.shown = ports, shown
        self.sites, self.analysts, self.web = ports
        self.tried = dict.fromkeys(MIX, 0)
        self.addresses = itertools.cycle(ADDRESSES)

    async def dial(self, port):
        """A connection from one of the hostile addresses."""
        return await asyncio.open_connection("127.0.0.1", port, local_addr=(next(self.addresses), 0))

    async def again(self, kind, work):
        """Do it, and when it ends, after half a second, again."""
        await asyncio.sleep(0.01 * (hash((kind, id(work))) % 300))
        while True:
            self.tried[kind] += 1
            with contextlib.suppress(OSError, ssl.SSLError, asyncio.IncompleteReadError):
                await work()
            await asyncio.sleep(0.5)

    async def silent(self, port):
        reader, writer = await self.dial(port)
        try:
            await reader.read()
        finally:
            writer.close()

    async def no_call(self):
        reader, writer = await self.dial_tls(self.analysts, "h2")
        try:
            await reader.read()
        finally:
            writer.close()

    async def dial_tls(self, port, spoken):
        """The same, with TLS to the end of its handshake."""
        context = ssl.create_default_context(cadata=self.shown["ca"])
        context.set_alpn_protocols([spoken])
        return await asyncio.open_connection(
            "127.0.0.1",
            port,
            local_addr=(next(self.addresses), 0),
            ssl=context,
            server_hostname="tributary-coordinator",
        )

    async def half_a_call(self):
        """A call that anybody may make, and a part of the next."""
        reader, writer = await self.dial_tls(self.web, "http/1.1")
        try:
            writer.write(b"GET /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /sign-in HTTP/1.1\r\nHost:")
            await reader.read()
        finally:
            writer.close()

    async def not_taken(self):
        _, writer = await self.dial_tls(self.web, "http/1.1")
        try:
            writer.transport.pause_reading()
            writer.write(b"GET /v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 100)
            await asyncio.sleep(120)
        finally:
            writer.close()

    async def guessed(self):
        reader, writer = await self.dial_tls(self.web, "http/1.1")
        try:
            while True:
                call = b"GET /v1/studies HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n\r\n"
                writer.write(call % (b"x" * 43))
                if not await reader.read(4096):
                    return
        finally:
            writer.close()

    async def drip(self, port):
        _, writer = await self.dial(port)
        try:
            for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(1)
        finally:
            writer.close()

    async def relay(self, port, rate=0):
        """A way to `port` from a hostile address, with at most `rate` bytes a second; gives its own port."""

        async def carried(reader, writer):
            with contextlib.suppress(OSError):
                far_reader, far_writer = await self.dial(port)

                async def pump(source, sink):
                    with contextlib.suppress(OSError):
                        while data := await source.read(rate or 65536):
                            sink.write(data)
                            await sink.drain()
                            await asyncio.sleep(1 if rate else 0)
                    sink.close()

                await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

        server = await asyncio.start_server(carried, "127.0.0.1", 0)
        return server.sockets[0].getsockname()[1]

    def channel(self, way, identity):
        import grpc

        key, certificate = self.shown[identity] if identity else (None, None)
        secure = grpc.ssl_channel_credentials(self.shown["ca"].encode(), key, certificate)
        options = [
            ("grpc.ssl_target_name_override", "tributary-coordinator"),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        return grpc.aio.secure_channel(f"127.0.0.1:{way}", secure, options)

    async def held(self, way, identity, path):
        """Sixteen calls that say nothing."""
        async with self.channel(way, identity) as channel:
            calls = [channel.stream_stream(path)(timeout=60) for _ in range(16)]
            await asyncio.gather(*(call.read() for call in calls), return_exceptions=True)

    async def resets(self, way, identity, path):
        async with self.channel(way, identity) as channel:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(channel.channel_ready(), 10)
                for _ in range(500):
                    calls = [channel.stream_stream(path)(timeout=60) for _ in range(8)]
                    await asyncio.sleep(0.002)
                    for call in calls:
                        call.cancel()

    async def asked(self, way, token):
        import grpc

        async with self.channel(way, "") as channel:
            call = channel.unary_unary(self.shown["studies"])
            for _ in range(200):
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await call(b"", timeout=30, metadata=(("authorization", f"Bearer {token}"),))

    async def run(self):
        sites, analysts, works = await self.relay(self.sites), await self.relay(self.analysts), []
        slow = await self.relay(self.analysts, rate=1000)
        kinds = {
            "silent": lambda k: lambda: self.silent(self.ports[k % 3]),
            "no call": lambda k: self.no_call,
            "dripping handshake": lambda k: lambda: self.drip(self.ports[k % 3]),
            "held, no token": lambda k: lambda: self.held(analysts, "", self.shown["studies"]),
            "held, revoked": lambda k: lambda: self.held(sites, "revoked", self.shown["upload"]),
            "held, invitation served": lambda k: lambda: self.held(sites, "served", self.shown["enrol"]),
            "slow reader": lambda k: lambda: self.asked(slow, self.shown["token"]),
            "resets": lambda k: (
                (lambda: self.resets(sites, "revoked", self.shown["upload"]))
                if k % 2
                else (lambda: self.resets(analysts, "", self.shown["studies"]))
            ),
            "wrong token": lambda k: lambda: self.asked(analysts, "x" * 43),
            "https, half a call": lambda k: self.half_a_call,
            "https, answers not taken": lambda k: self.not_taken,
            "https, wrong token": lambda k: self.guessed,
        }
        for kind, made in kinds.items():
            works += [self.again(kind, made(k)) for k in range(MIX[kind])]
        await asyncio.gather(*works)


def hostile(ports, shown, pipe):
    """The hostile process: the crowd, and accepted sites whose uploads drip."""
    import logging

    logging.disable(logging.CRITICAL)
    files()
    crowd = Crowd(ports, shown)

    def dripping(site):
        from shared.base.keys import Envelope
        from shared.wire.transport import Credentials
        from site_agent import egress
        from site_agent.egress import pieces

        egress.CHUNK_BYTES = pieces.CHUNK_BYTES = 40  # minutes a bundle
        certificate, pem, envelope, path = site
        while True:
            door = egress.Egress(
                address=f"127.0.0.1:{ports[0]}",
                server_name="tributary-coordinator",
                credentials=Credentials(ca_pem=shown["ca"], cert_pem=certificate, key_pem=pem),
                retries=egress.RetryPolicy(attempts=1, timeout=120.0),
            )
            crowd.tried["slow upload"] += 1
            with contextlib.suppress(Exception), door:
                door.send(Envelope.from_bytes(envelope), Path(path), lambda sent, total: time.sleep(2.0))
            time.sleep(1.0)

    for site in shown["slow"]:
        threading.Thread(target=dripping, args=(site,), daemon=True).start()
    threading.Thread(target=lambda: asyncio.run(crowd.run()), daemon=True).start()
    while pipe.poll(None):
        pipe.recv()
        pipe.send(crowd.tried)


# -- the honest side -----------------------------------------------------------------------------------------------
def files():
    """As many open files as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def resident(pid):
    """Megabytes of a process and of all that descend from it, by what they do."""
    parents, sizes, lines = {}, {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            said = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
            number = int(folder.name)
            parents[number] = int(said["PPid"])
            sizes[number] = int(said.get("RssAnon", "0 kB").split()[0]) / 1024
            lines[number] = (folder / "cmdline").read_bytes().decode(errors="replace")
    found = {"serving": sizes.get(pid, 0.0), "answering": 0.0, "opening and computing": 0.0}
    for number, size in sizes.items():
        above = number
        while above in parents and above != pid:
            above = parents[above]
        if above == pid and number != pid:
            found["answering" if "analysts_port" in lines[number] else "opening and computing"] += size
    return found


def summary(taken, failed):
    ordered = sorted(taken)

    def at(share):
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None

    return {"acknowledged": len(ordered), "failed": failed, "median_s": at(0.5), "p99_s": at(0.99), "most_s": at(1.0)}


def watched(pid, ended):
    """Megabytes by what processes do, every ten seconds until `ended`."""
    sizes = {}
    while True:
        for role, size in resident(pid).items():
            sizes.setdefault(role, []).append(round(size, 1))
        if ended.wait(10.0):
            return sizes


def weighed(serving):
    """What the serving process holds after a collection, once its allocator has given back what is free."""
    serving.stdin.write(b"weigh\n")
    serving.stdin.flush()
    told = json.loads(serving.stdout.readline())
    return {"serving_trimmed_mb": round(resident(serving.pid)["serving"], 1), **told}


def costs(hub, pid, shown):
    """What a connection of a certificate that opens nothing costs the serving process, and how long it is there."""
    import grpc

    from coordinator.services.authority import Authority
    from shared.wire.transport.ends import CODE_KEY
    from site_agent.egress import new_tls_identity

    other = Authority.create(hub.home.parent / "other", coordinator="other", names=["127.0.0.1"])
    key, asked = new_tls_identity("gone")
    strange = (key.encode(), other.issue(asked, "gone").encode())

    def spent():
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    found = {}
    for kind, (private, certificate), calls in (
        ("of another authority, refused in the handshake", strange, 1),
        ("revoked, one call", shown["revoked"], 1),
        ("revoked, sixteen calls", shown["revoked"], 16),
        ("of an invitation that has served, one call", shown["served"], 1),
    ):
        path = shown["enrol"] if certificate == shown["served"][1] else shown["upload"]
        before, refused, lasted = spent(), [], []
        for _ in range(COUNTED):
            secure = grpc.ssl_channel_credentials(shown["ca"].encode(), private, certificate)
            options = [
                ("grpc.ssl_target_name_override", "tributary-coordinator"),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_retries", 0),
            ]
            with grpc.secure_channel(f"127.0.0.1:{hub.port}", secure, options) as channel:
                silence, began = threading.Event(), time.monotonic()
                held = [channel.stream_stream(path)(iter(silence.wait, True), timeout=30) for _ in range(calls)]
                for call in held:
                    try:
                        next(call)
                    except grpc.RpcError as error:
                        refused.append(dict(error.trailing_metadata() or ()).get(CODE_KEY, error.code().name))
                lasted.append(time.monotonic() - began)
                silence.set()
            time.sleep(1 / 25)  # below the rate at which connections of one address are carried to TLS
        found[kind] = {
            "connections": COUNTED,
            "calls_refused": len(refused),
            "as": sorted(set(refused)),
            "cpu_ms_each": round(1000 * (spent() - before) / COUNTED, 2),
            "refused_after_ms_median": round(1000 * sorted(lasted)[COUNTED // 2], 1),
        }
    return found


def measure(hub, sealed, rate, analyst, browser, seconds, serving):
    """How long deliveries took from dialling to the acknowledgement; `rate` a second begin, for `seconds`."""
    from shared.errors import Refusal

    end, taken, asked, read, memory = time.monotonic() + seconds, [], [], [], {}
    failed, ended = {"sites": 0, "analysts": 0, "https": 0}, threading.Event()

    pause = len(sealed) / rate

    def delivering(number, site):
        time.sleep(number / rate)
        while time.monotonic() < end and sealed[site]:
            one = sealed[site].pop(0)
            began = time.monotonic()
            try:
                with hub.egress(site, timeout=30.0) as egress:
                    egress.send(one.envelope, one.path)
                taken.append(time.monotonic() - began)
            except Refusal as refusal:
                failed["sites"] += 1
                sys.stderr.write(f"{refusal}\n")
            time.sleep(pause)

    def asking():
        from shared.wire.analyst_messages import StudiesRequest

        while time.monotonic() < end:
            began = time.monotonic()
            try:
                with analyst() as client:
                    client.call("Studies", StudiesRequest(), timeout=30)
                asked.append(time.monotonic() - began)
            except Refusal as refusal:
                failed["analysts"] += 1
                sys.stderr.write(f"{refusal}\n")
            time.sleep(0.5)

    def reading():
        import httpx

        while time.monotonic() < end:
            began = time.monotonic()
            try:
                with browser() as client:
                    client.get("/v1/studies").raise_for_status()
                read.append(time.monotonic() - began)
            except httpx.HTTPError as error:
                failed["https"] += 1
                sys.stderr.write(f"{error}\n")
            time.sleep(0.5)

    weighing = threading.Thread(target=lambda: memory.update(watched(serving.pid, ended)))
    honest = [threading.Thread(target=delivering, args=one) for one in enumerate(sealed)]
    honest += [threading.Thread(target=asking) for _ in range(2)]
    honest.append(threading.Thread(target=reading))
    for thread in [weighing, *honest]:
        thread.start()
    for thread in honest:
        thread.join()
    ended.set()
    weighing.join()
    return {
        "sites": summary(taken, failed["sites"]),
        "analysts": summary(asked, failed["analysts"]),
        "https": summary(read, failed["https"]),
        "memory": {"every_ten_seconds_mb": memory, **weighed(serving)},
    }


def main(seconds, sites, rate):
    """What was measured with so many honest sites."""
    with contextlib.ExitStack() as ends:
        return served(ends, seconds, sites, rate)


def served(ends, seconds, sites, rate):
    """As `main`; what is started here is stopped with `ends`."""
    from stage.both_sides.service import Hub, SiteKeys

    from coordinator.services.analysts import Analysts
    from shared.wire.messages import ANALYSIS, ANALYSIS_SERVICE, SERVICE
    from shared.wire.transport import SERVER_NAME, Client, Credentials
    from site_agent.egress import Egress

    files()
    home = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    waves = min(WAVES, 3 + round(2 * seconds * rate / sites))  # more than a site has time to deliver
    names = [f"site{number}" for number in range(sites)]
    hub = Hub(home / "hub", study(), *names, *(f"slow{number}" for number in range(SLOW)), "gone")
    hub.store.revoke_site("gone")
    sealed = {
        site: [hub.seal(site, wave=k, release_id=f"{n:02x}{k:030x}") for k in range(1, waves + 1)]
        for n, site in enumerate(names)
    }
    today = dt.datetime.now(dt.UTC).date()
    tokens = [Analysts(hub.store).add(name, studies=["mini"], days=30, today=today)[1] for name in ("ada", "eve")]
    with socket.socket() as probe, socket.socket() as other:
        for one in (probe, other):
            one.bind(("127.0.0.1", 0))
        analysts, web = probe.getsockname()[1], other.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    log = (home / "log").open("wb")
    argv = [sys.executable, "-c", SERVING, str(hub.home), f"127.0.0.1:0 127.0.0.1:{analysts} 127.0.0.1:{web}"]
    pipe = subprocess.PIPE
    serving = ends.enter_context(started(argv, within=300, stdin=pipe, stdout=pipe, stderr=log, env=environment))
    hub.port = int(serving.stdout.readline())
    used, keys = hub.invite("west"), SiteKeys("west")
    asked = {
        "token": used.token,
        "site": "west",
        "csr_pem": keys.identity[1],
        "signer": keys.release,
        "approvers": {"steward": keys.steward.public},
    }
    hub.sites["west"] = keys
    with Egress.from_invitation(used) as egress:
        egress.enrol(**asked)
        hub.store.accept_site("west", keys.release.public.fingerprint)
        keys.certificate = egress.enrol(**asked).certificate_pem
    with hub.egress("west") as egress:
        egress.status("mini")

    def analyst():
        return Client(
            address=f"127.0.0.1:{analysts}",
            server_name=SERVER_NAME,
            service=ANALYSIS_SERVICE,
            credentials=Credentials(ca_pem=hub.authority.ca_pem, token=tokens[0]),
            methods=ANALYSIS,
        )

    def browser():
        import httpx

        context = ssl.create_default_context(cadata=hub.authority.ca_pem)
        headers = {"authorization": f"Bearer {tokens[0]}"}
        return httpx.Client(base_url=f"https://127.0.0.1:{web}", verify=context, headers=headers, timeout=30)

    def shown_of(site):
        mine = hub.credentials(site)
        return mine.key_pem.encode(), mine.cert_pem.encode()

    slow = []
    for number in range(SLOW):
        one = hub.seal(f"slow{number}", release_id=f"{255 - number:02x}{0:030x}")
        mine = hub.credentials(f"slow{number}")
        slow.append((mine.cert_pem, mine.key_pem, one.envelope.to_bytes(), str(one.path)))
    shown = {
        "ca": hub.authority.ca_pem,
        "revoked": shown_of("gone"),
        "token": tokens[1],
        "slow": slow,
        "served": (used.bootstrap_key_pem.encode(), used.bootstrap_cert_pem.encode()),
        "studies": f"/{ANALYSIS_SERVICE}/Studies",
        "upload": f"/{SERVICE}/Upload",
        "enrol": f"/{SERVICE}/Enrol",
    }
    results = {"load_average_before": os.getloadavg()[0]}
    whole = sites == SITES  # what more sites change nothing of is taken with the usual number
    if whole:
        results["a connection that opens nothing"] = costs(hub, serving.pid, shown)
    results["alone"] = measure(hub, sealed, rate, analyst, browser, seconds / 3, serving)
    ours, theirs = get_context("spawn").Pipe()
    crowd = get_context("spawn").Process(target=hostile, args=((hub.port, analysts, web), shown, theirs), daemon=True)
    crowd.start()
    ended = threading.Event()
    threading.Timer(LONGER * seconds if whole else ARRIVING, ended.set).start()
    crowded = {"memory": {"every_ten_seconds_mb": watched(serving.pid, ended), **weighed(serving)}}
    if whole:
        results["500 hostile connections alone"] = crowded
    results["beside 500 hostile connections"] = measure(hub, sealed, rate, analyst, browser, seconds, serving)
    ours.send("how often")
    results["opened"] = ours.recv()
    crowd.kill()
    ends.close()
    log.close()
    told = (home / "log").read_text(errors="replace").splitlines()
    results["lines of the log"] = len(told)
    return results | {"mix": MIX, "sites": sites, "rate": rate, "seconds": seconds}


def memory_alone(measured):
    """What a busy machine changes little: memory, and the CPU time of a connection."""
    parts = ("alone", "500 hostile connections alone", "beside 500 hostile connections")
    kept = {part: {"memory": measured[part]["memory"]} for part in parts}
    for part in (parts[0], parts[2]):
        kept[part]["acknowledged"] = measured[part]["sites"]["acknowledged"]
    return {name: one for name, one in measured.items() if name not in parts} | kept


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.front")
    parser.add_argument("seconds", type=float, nargs="?", default=60.0)
    parser.add_argument("--sites", type=int, default=SITES, help="honest sites, at most 200")
    parser.add_argument("--memory", action="store_true", help="record memory and CPU time alone")
    parser.add_argument("--no-record", action="store_true")
    parser.add_argument("--rate", type=float, default=float(SITES), help="deliveries that begin a second, of all sites")
    given = parser.parse_args()
    if given.memory and given.sites != SITES:
        parser.error(f"--memory is taken with {SITES} sites")
    measured = main(given.seconds, given.sites, given.rate)
    sys.stdout.write(json.dumps(measured, indent=1) + "\n")
    if not given.no_record:
        from tests.benchmarks import record

        name, found = ("front_memory", memory_alone(measured)) if given.memory else ("front", measured)
        if given.sites != SITES:
            name += f"_{given.sites}"
        sys.stdout.write(f"{record.write(name, found, 0)}\n")
