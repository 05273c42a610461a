"""Downloads from a real server, and every way in which they break."""

import hashlib
import http.server
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envkit.ground.errors import EngineError, EnvironmentProblem, IntegrityError, TimeLimitError
from envkit.registry.download import Item, fetch, from_url, missing
from envkit.registry.retry import Policy
from envkit.registry.transport import Transport
from tests.engines.faults import Fault, Proxy, proxy_before
from tests.engines.oci_images import registry
from tests.support.clocks import before

pytestmark = pytest.mark.engine
QUICK = Policy(first_s=0.01, longest_s=1.0, silence_s=1.0)
DATA = secrets.token_bytes(3_000_000)
Get = Callable[..., list[tuple[int, int]]]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry: a server that knows ranges, and holds one blob."""
    with registry(tmp_path_factory.mktemp("registry")) as found:
        put(found, DATA)
        yield found


@pytest.fixture
def proxy(host: str) -> Iterator[Proxy]:
    with proxy_before(host) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "downloads"


def put(host: str, data: bytes) -> None:
    from envkit.registry.registry import Registry  # noqa: PLC0415

    with Transport() as transport:
        target = Registry(host, transport, {"HOME": "/nonexistent"})
        url = target.start_upload("a/b")
        assert url is not None
        digest = hashlib.sha256(data).hexdigest()
        with target.request("PUT", f"{url}&digest=sha256:{digest}", (), body=data) as answer:
            assert answer.status == 201


def item(
    transport: Transport, host: str, *, data: bytes = DATA, size: int | None = len(DATA), sha256: str = ""
) -> Item:
    digest = hashlib.sha256(data).hexdigest()
    url = f"http://{host}/v2/a/b/blobs/sha256:{digest}"
    return from_url(transport, name="torch 2.7.1", url=url, sha256=sha256 or digest, size=size)


def get(folder: Path, host: str, *, policy: Policy = QUICK, **changes: object) -> Path:
    with Transport(policy=policy) as transport:
        wanted = item(transport, host, **changes)  # type: ignore[arg-type]
        return fetch([wanted], folder, policy, lambda *_: None)[wanted.sha256]


def test_what_is_there_is_not_fetched_again(folder: Path, proxy: Proxy) -> None:
    assert get(folder, proxy.address).read_bytes() == DATA
    get(folder, proxy.address)
    assert len(proxy.seen) == 1
    assert [path.name for path in folder.iterdir()] == [hashlib.sha256(DATA).hexdigest()]


def test_progress_counts_every_byte_once(folder: Path, proxy: Proxy) -> None:
    proxy.faults = [Fault("^GET ", cut=1_000_000, times=1)]
    heard: list[tuple[int, int]] = []
    with Transport(policy=QUICK) as transport:
        fetch([item(transport, proxy.address)], folder, QUICK, lambda done, total: heard.append((done, total)))
    assert heard[-1] == (len(DATA), len(DATA))
    assert {total for _, total in heard} == {len(DATA)}


@pytest.mark.requirement("R20")
def test_a_cut_download_goes_on_where_it_ended(folder: Path, proxy: Proxy) -> None:
    proxy.faults = [Fault("^GET ", cut=1_000_000, times=2)]
    assert get(folder, proxy.address).read_bytes() == DATA
    assert [one.headers.get("Range") for one in proxy.seen] == [None, "bytes=1000000-", "bytes=2000000-"]


def test_a_later_run_goes_on_too(folder: Path, proxy: Proxy) -> None:
    proxy.faults = [Fault("^GET ", cut=1_000_000, times=1), Fault("^GET ", status=503)]
    with pytest.raises(EngineError, match=r"torch 2\.7\.1: .* answers 503"):
        get(folder, proxy.address)
    assert [path.name.rpartition(".")[2] for path in folder.iterdir()] == ["part"]
    proxy.faults = []
    assert get(folder, proxy.address).read_bytes() == DATA
    assert proxy.seen[-1].headers["Range"] == "bytes=1000000-"


def test_a_download_that_never_gets_further(folder: Path, proxy: Proxy) -> None:
    proxy.faults = [Fault("^GET ", cut=0)]
    with pytest.raises(EnvironmentProblem) as caught:
        get(folder, proxy.address)
    assert caught.value.message == f"torch 2.7.1: the connection to {proxy.address} broke"
    assert len(proxy.seen) == 5
    assert list(folder.iterdir()) == []


@pytest.mark.requirement("R15")
@pytest.mark.parametrize("times", [1, 1_000_000])
def test_a_flipped_byte_is_never_kept_and_not_tried_again(folder: Path, proxy: Proxy, times: int) -> None:
    proxy.faults = [Fault("^GET ", flip=1_234_567, times=times)]
    with pytest.raises(IntegrityError) as caught:
        get(folder, proxy.address)
    assert caught.value.exit_code == 10
    assert hashlib.sha256(DATA).hexdigest() in caught.value.message
    assert len(proxy.seen) == 1
    assert list(folder.iterdir()) == []
    proxy.faults = []
    assert get(folder, proxy.address).read_bytes() == DATA


def test_a_damaged_part_of_an_earlier_run_is_not_the_servers_fault(folder: Path, proxy: Proxy) -> None:
    folder.mkdir()
    (folder / f"{hashlib.sha256(DATA).hexdigest()}.part").write_bytes(b"junk" * 1000)
    assert get(folder, proxy.address).read_bytes() == DATA
    assert [one.headers.get("Range") for one in proxy.seen] == ["bytes=4000-", None]


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
def test_another_size_than_promised(folder: Path, host: str, size: int) -> None:
    with pytest.raises(IntegrityError, match=f"sent 3000000 bytes instead of {size}"):
        get(folder, host, size=size)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
def test_another_size_than_promised_after_a_break(folder: Path, proxy: Proxy, size: int) -> None:
    proxy.faults = [Fault("^GET ", cut=1_000_000, times=1)]
    folder.mkdir()
    (folder / f"{hashlib.sha256(DATA).hexdigest()}.part").write_bytes(DATA[:10])
    with pytest.raises(IntegrityError, match=f"sent 3000000 bytes instead of {size}"):
        get(folder, proxy.address, size=size)
    assert list(folder.iterdir()) == []


def test_another_hash_than_promised(folder: Path, host: str) -> None:
    with pytest.raises(IntegrityError, match=f"not {'0' * 64}"):
        get(folder, host, sha256="0" * 64)
    assert list(folder.iterdir()) == []


def test_without_a_promised_size(folder: Path, proxy: Proxy) -> None:
    proxy.faults = [Fault("^GET ", cut=1_000_000, times=1)]
    assert get(folder, proxy.address, size=None).read_bytes() == DATA


@pytest.mark.requirement("R40")
@pytest.mark.parametrize("damage", [b"", b"short", DATA[:-1] + b"x"])
def test_damage_in_the_folder_is_mended(folder: Path, host: str, damage: bytes) -> None:
    path = get(folder, host)
    path.write_bytes(damage)
    assert get(folder, host).read_bytes() == DATA


def test_throttling(folder: Path, proxy: Proxy) -> None:
    proxy.faults = [Fault("^GET ", status=429, headers={"Retry-After": "1"}, times=1)]
    get(folder, proxy.address)
    assert proxy.seen[1].at - proxy.seen[0].at >= 1.0


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_refusal_is_not_tried_again(folder: Path, proxy: Proxy, status: int) -> None:
    proxy.faults = [Fault("^GET ", status=status)]
    with pytest.raises(EngineError, match=f"answers {status} for"):
        get(folder, proxy.address)
    assert len(proxy.seen) == 1


def test_silence(folder: Path, proxy: Proxy) -> None:
    proxy.faults = [Fault("^GET ", silent_s=3)]
    with pytest.raises(TimeLimitError, match=r"was silent for 0\.3 s"):
        get(folder, proxy.address, policy=Policy(tries=2, first_s=0.01, silence_s=0.3))


def test_a_drip_counts_as_silence(folder: Path) -> None:
    class Drip(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(DATA)))
            self.end_headers()
            for _ in range(40):
                self.wfile.write(b"x")
                time.sleep(0.1)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Drip) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        with pytest.raises(TimeLimitError, match="was silent"):
            get(folder, f"127.0.0.1:{server.server_port}", policy=Policy(tries=1, silence_s=0.5))
        server.shutdown()


def test_the_first_failure_ends_the_others(folder: Path, proxy: Proxy) -> None:
    """One file is wrong while another would hang: the fault is told at once."""
    with Transport() as transport:
        wrong = item(transport, proxy.address, data=b"missing", size=7)
        hanging = item(transport, proxy.address)
        proxy.faults = [Fault(hanging.sha256, cut=10, times=1), Fault(hanging.sha256, silent_s=30)]
        with before(30), pytest.raises(EngineError, match="answers 404"):
            fetch([hanging, wrong], folder, Policy(first_s=20), lambda *_: None)


@pytest.mark.requirement("R40")
def test_many_at_once_each_verified(folder: Path, host: str) -> None:
    data = [secrets.token_bytes(200_000) for _ in range(12)]
    for one in data:
        put(host, one)
    with Transport() as transport:
        found = fetch([item(transport, host, data=one, size=200_000) for one in data], folder, QUICK, lambda *_: None)
    assert sorted(path.read_bytes() for path in found.values()) == sorted(data)


@pytest.mark.requirement("R22")
def test_offline(folder: Path, host: str) -> None:
    with Transport() as transport:
        wanted = item(transport, host)
        assert missing([wanted], folder) == (wanted,)
        with pytest.raises(EnvironmentProblem) as caught:
            fetch([wanted], folder, QUICK, lambda *_: None, offline=True)
        assert caught.value.details == (f"torch 2.7.1: {wanted.where}",)
        fetch([wanted], folder, QUICK, lambda *_: None)
        assert fetch([wanted], folder, QUICK, lambda *_: None, offline=True)[wanted.sha256].read_bytes() == DATA


def test_a_redirect_drops_the_login(folder: Path, host: str) -> None:
    with proxy_before(host) as first, proxy_before(host) as second:
        digest = hashlib.sha256(DATA).hexdigest()
        target = f"http://{second.address}/v2/a/b/blobs/sha256:{digest}"
        first.faults = [Fault("^GET ", status=307, headers={"Location": target})]
        with Transport() as transport:
            url = f"http://someone:not-a-secret@{first.address}/x"
            wanted = from_url(transport, name="torch 2.7.1", url=url, sha256=digest, size=len(DATA))
            assert "secret" not in wanted.where
            fetch([wanted], folder, QUICK, lambda *_: None)
        assert first.seen[0].headers["Authorization"].startswith("Basic ")
        assert "Authorization" not in second.seen[0].headers


_RUN = """
import sys
from pathlib import Path
from envkit.registry.download import fetch, from_url
from envkit.registry.retry import Policy
from envkit.registry.transport import Transport
url, sha256, size, folder = sys.argv[1:]
with Transport() as transport:
    item = from_url(transport, name="x", url=url, sha256=sha256, size=int(size))
    fetch([item], Path(folder), Policy(), lambda *_: None)
"""


def start(host: str, folder: Path) -> subprocess.Popen[bytes]:
    digest = hashlib.sha256(DATA).hexdigest()
    url = f"http://{host}/v2/a/b/blobs/sha256:{digest}"
    return subprocess.Popen([sys.executable, "-c", _RUN, url, digest, str(len(DATA)), str(folder)])


def test_kill_minus_nine(folder: Path, proxy: Proxy) -> None:
    proxy.faults = [Fault("^GET ", cut=1_000_000, times=1), Fault("^GET ", silent_s=30, times=1)]
    process = start(proxy.address, folder)
    deadline = time.monotonic() + 20
    while proxy.count("^GET ") < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert get(folder, proxy.address).read_bytes() == DATA
    assert [path.name for path in folder.iterdir()] == [hashlib.sha256(DATA).hexdigest()]


@pytest.mark.requirement("R32")
def test_several_processes_at_once(folder: Path, host: str) -> None:
    processes = [start(host, folder) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    assert [path.name for path in folder.iterdir()] == [hashlib.sha256(DATA).hexdigest()]


@pytest.mark.requirement("R26")
def test_a_full_disk_leaves_nothing(folder: Path, host: str) -> None:
    digest = hashlib.sha256(DATA).hexdigest()
    folder.mkdir()
    script = (
        f"mount -t tmpfs -o size=1m none {folder} && "
        f'"$0" -c "$1" http://{host}/v2/a/b/blobs/sha256:{digest} {digest} {len(DATA)} {folder}; code=$?; '
        f"ls -A {folder}; exit $code"
    )
    process = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, sys.executable, _RUN],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1
    assert f"EnvironmentProblem: disk full on {folder} (" in process.stderr
    assert process.stdout == ""
