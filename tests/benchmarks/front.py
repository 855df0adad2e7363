"""Hostile clients beside honest hospitals: how long an honest release waits for its acknowledgement.

python -m tests.benchmarks.front [seconds]

One coordinator serves both ports. Eight honest sites deliver a release each, wait a second, and deliver the next;
two analysts ask on. First alone, then beside 500 hostile connections that are made again whenever they are closed:
silent TCP connections, TLS connections without a call, handshakes of one byte a second, calls without token or message,
calls of a revoked site and of an invitation that has served, accepted sites whose uploads drip, clients that read and
write 1 kB a second, rapid resets, wrong tokens. They come from eight addresses of their own, and all other processes
share the machine's processors with the coordinator. `0 connections` are measured first, in the same way.
"""

import asyncio
import contextlib
import datetime as dt
import itertools
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

SITES, SLOW, WAVES = 8, 16, 100
MIX = {
    "silent": 184,
    "no call": 60,
    "dripping handshake": 60,
    "held, no token": 40,
    "held, revoked": 40,
    "held, invitation served": 20,
    "slow upload": SLOW,
    "slow reader": 20,
    "resets": 30,
    "wrong token": 30,
}
ADDRESSES = [f"127.0.0.{number}" for number in range(2, 10)]
SERVING = """
import pathlib, sys
from coordinator.services.collect.server import serve
ports = sys.argv[2].split()
serve(pathlib.Path(sys.argv[1]), ports[0], analysts=ports[1], ready=lambda port: print(port, flush=True))
"""
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def study(waves=WAVES):
    """A plan of so many waves."""
    from service import SMALL

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

    def __init__(self, sites, analysts, shown):
        self.sites, self.analysts, self.shown = sites, analysts, shown
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
        context = ssl.create_default_context(cadata=self.shown["ca"])
        context.set_alpn_protocols(["h2"])
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            self.analysts,
            local_addr=(next(self.addresses), 0),
            ssl=context,
            server_hostname="tributary-coordinator",
        )
        try:
            await reader.read()
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
            "silent": lambda k: lambda: self.silent((self.sites, self.analysts)[k % 2]),
            "no call": lambda k: self.no_call,
            "dripping handshake": lambda k: lambda: self.drip((self.sites, self.analysts)[k % 2]),
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
        }
        for kind, made in kinds.items():
            works += [self.again(kind, made(k)) for k in range(MIX[kind])]
        await asyncio.gather(*works)


def hostile(sites, analysts, shown, pipe):
    """The hostile process: the crowd, and accepted sites whose uploads drip."""
    import logging

    logging.disable(logging.CRITICAL)
    files()
    crowd = Crowd(sites, analysts, shown)

    def dripping(site):
        from shared.base.keys import Envelope
        from site_agent import egress

        egress.CHUNK_BYTES = 1000
        certificate, pem, envelope, path = site
        while True:
            door = egress.Egress(
                address=f"127.0.0.1:{sites}",
                server_name="tributary-coordinator",
                ca_pem=shown["ca"],
                cert_pem=certificate,
                key_pem=pem,
                attempts=1,
                timeout=120.0,
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
    """Megabytes of a process and of those it started."""
    total = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            said = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
            if int(folder.name) == pid or int(said["PPid"]) == pid:
                total += int(said.get("VmRSS", "0 kB").split()[0]) / 1024
    return total


def summary(taken, failed):
    ordered = sorted(taken)

    def at(share):
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None

    return {"acknowledged": len(ordered), "failed": failed, "median_s": at(0.5), "p99_s": at(0.99), "most_s": at(1.0)}


def measure(hub, sealed, analyst, seconds, pid):
    """Deliver for `seconds`: how long each took from the first dialling to the acknowledgement."""
    from shared.errors import Refusal

    end, taken, asked, memory = time.monotonic() + seconds, [], [], []
    failed = {"sites": 0, "analysts": 0}

    def delivering(site):
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
            time.sleep(1.0)

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

    honest = [threading.Thread(target=delivering, args=(site,)) for site in sealed]
    honest += [threading.Thread(target=asking) for _ in range(2)]
    for thread in honest:
        thread.start()
    while any(thread.is_alive() for thread in honest):
        memory.append(resident(pid))
        time.sleep(1.0)
    return {
        "sites": summary(taken, failed["sites"]),
        "analysts": summary(asked, failed["analysts"]),
        "resident_mb": {"most": round(max(memory)), "every_ten_seconds": [round(one) for one in memory[::10]]},
    }


def main():
    """Measure, print, and write the result."""
    from service import Hub, SiteKeys

    from coordinator.services.analysts import Analysts
    from shared.wire.messages import ANALYSIS, ANALYSIS_SERVICE, SERVICE
    from shared.wire.transport import SERVER_NAME, Client, Credentials
    from site_agent.egress import Egress

    seconds = float(sys.argv[1]) if sys.argv[1:] else 60.0
    files()
    home = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    names = [f"site{number}" for number in range(SITES)]
    hub = Hub(home / "hub", study(), *names, *(f"slow{number}" for number in range(SLOW)), "gone")
    hub.store.revoke_site("gone")
    sealed = {
        site: [hub.seal(site, wave=k, release_id=f"{n:02x}{k:030x}") for k in range(1, WAVES + 1)]
        for n, site in enumerate(names)
    }
    today = dt.datetime.now(dt.UTC).date()
    tokens = [Analysts(hub.store).add(name, studies=["mini"], days=30, today=today)[1] for name in ("ada", "eve")]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        analysts = probe.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    log = (home / "log").open("wb")
    serving = subprocess.Popen(
        [sys.executable, "-c", SERVING, str(hub.home), f"127.0.0.1:0 127.0.0.1:{analysts}"],
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
    )
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

    def shown_of(site):
        mine = hub.credentials(site)
        return mine.key_pem.encode(), mine.cert_pem.encode()

    slow = []
    for number in range(SLOW):
        one, mine = (
            hub.seal(f"slow{number}", release_id=f"{255 - number:02x}{0:030x}"),
            hub.credentials(f"slow{number}"),
        )
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
    results = {"alone": measure(hub, sealed, analyst, seconds / 3, serving.pid)}
    ours, theirs = get_context("spawn").Pipe()
    crowd = get_context("spawn").Process(target=hostile, args=(hub.port, analysts, shown, theirs), daemon=True)
    crowd.start()
    time.sleep(10.0)  # the crowd is there
    results["beside 500 hostile connections"] = measure(hub, sealed, analyst, seconds, serving.pid)
    ours.send("how often")
    results["opened"] = ours.recv()
    crowd.kill()
    serving.terminate()
    serving.wait(30)
    log.close()
    told = (home / "log").read_text(errors="replace").splitlines()
    results["lines of the log"] = len(told)
    results["mix"] = MIX
    return results, seconds


if __name__ == "__main__":
    import json

    measured, lasted = main()
    sys.stdout.write(json.dumps(measured, indent=1) + "\n")
    if "--no-record" not in sys.argv:
        from tests.benchmarks import record

        sys.stdout.write(f"{record.write('front', measured | {'seconds': lasted}, 0)}\n")
