"""Starts clusters of real processes, talks to them over plain sockets and HTTP, and looks into them."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("TANDEM_TEST_BIN", ROOT / "build/release/bin")).resolve()
CHAT_MODEL = ROOT / "models/chat-6m"
GOLDEN = ROOT / "tests/data/golden"
SMOLLM2 = os.environ.get("TANDEM_SMOLLM2")
PROMPT = list(range(200, 300))  # long enough for a hand-over


def sanitizer():
    """'asan-ubsan' or '' for a plain build: some limits of time and size depend on it."""
    cache = (BIN.parent / "CMakeCache.txt")
    text = cache.read_text() if cache.exists() else ""
    match = re.search(r"^TANDEM_SANITIZE:STRING=(.*)$", text, re.M)
    return match.group(1) if match else ""


SANITIZED = bool(sanitizer())
# Limits of time end what hangs; they do not measure. A machine with 15 things to do per core is as slow as that, and a sanitizer
# slows everything down once more.
SLOWDOWN = 25 if SANITIZED else 10


def environment(**extra):
    """The environment of every process under test: without the tester's own TANDEM_ settings."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
    env.setdefault("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0:exitcode=99:detect_stack_use_after_return=0")
    env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1:halt_on_error=1")
    if SANITIZED:
        # UCX's memory hooks patch malloc, which is the sanitizer's.
        env.setdefault("UCX_MEM_EVENTS", "n")
        env.setdefault("UCX_HANDLE_ERRORS", "none")
    env.update({k: str(v) for k, v in extra.items()})
    return env


def tandem(*arguments, check=True, timeout=120, env=None, **kwargs):
    """Runs the tandem program to its end."""
    run = subprocess.run([str(BIN / "tandem"), *map(str, arguments)], capture_output=True, text=True,
                         timeout=timeout * SLOWDOWN, env=env or environment(), stdin=subprocess.DEVNULL, **kwargs)
    if check and run.returncode != 0:
        raise AssertionError(f"tandem {arguments[0]}: exit code {run.returncode}\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}")
    return run


def wait_until(condition, seconds, what):
    end = time.monotonic() + seconds * SLOWDOWN
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds * SLOWDOWN} s: {what}")
        time.sleep(0.05)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def merge(base, changes):
    """Deep merge of configuration dictionaries; lists and scalars replace."""
    out = dict(base)
    for key, value in changes.items():
        out[key] = merge(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def programs_with(folder, **replaced):
    """A folder with all programs, some replaced by others: {"tandem-decode": path}. `tandem up` starts what lies beside it."""
    folder.mkdir()
    for program in BIN.iterdir():
        name = program.name.replace("-", "_")
        if program.name == "tandem":
            shutil.copy2(program, folder)  # a link would lead back to where the others are
        else:
            (folder / program.name).symlink_to(replaced.get(name, program))
    return folder


class Response:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def text(self):
        return self.body.decode("utf-8")

    @property
    def json(self):
        return strict_json(self.body)


def strict_json(data):
    """JSON without NaN and Infinity."""
    def refuse(name):
        raise ValueError(f"{name} is no JSON")
    return json.loads(data, parse_constant=refuse)


class Cluster:
    """A cluster under `tandem up`, in a folder of its own. Use as a context manager."""

    def __init__(self, folder, config=None, env=None, ready_timeout=60, limits=None, programs=BIN):
        self.folder = pathlib.Path(folder)
        self.limits = limits or {}  # resource.RLIMIT_…: (soft, hard), of every process
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run_dir = self.folder / "run"
        base = {
            "model": {"path": str(CHAT_MODEL)},
            "kv": {"memory": "64MiB"},
            "router": {"http": {"port": 0}, "control": {"port": 0, "heartbeat_interval": "100ms", "peer_timeout": "10s"},
                       # Every prompt goes through the prefill node, also when that takes a while.
                       "admission": {"deadline": "20s"}, "dispatch": {"local_prefill_below": 0}},
            "prefill": [{"threads": 1}],
            "decode": [{"threads": 1}],
        }
        self.config = merge(base, config or {})
        self.config_path = self.folder / "cluster.yaml"
        self.config_path.write_text(json.dumps(self.config, indent=1))
        self.env = environment(**(env or {}))
        self.ready_timeout = ready_timeout * SLOWDOWN
        self.programs = programs
        self.process = None
        self.tls = bool(self.config["router"]["http"].get("tls"))

    def __enter__(self):
        self.launch()
        self.wait_ready()
        return self

    def launch(self, stderr=None):
        self.log = open(self.folder / "up.log", "wb")
        self.process = subprocess.Popen(
            [str(self.programs / "tandem"), "up", str(self.config_path), "--run-dir", str(self.run_dir), "--timeout",
             str(self.ready_timeout)], stdout=self.log, stderr=stderr or self.log, stdin=subprocess.DEVNULL, env=self.env,
            start_new_session=True, preexec_fn=lambda: [resource.setrlimit(*limit) for limit in self.limits.items()])

    def __exit__(self, kind, *_):
        code = self.stop()
        if kind is None:
            assert code == 0, f"tandem up ended with {code}:\n{self.logs()}"
            self.check_sanitizers()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40 * SLOWDOWN)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        return self.process.returncode

    def check_sanitizers(self):
        for path in self.run_dir.glob("*.log"):
            text = path.read_text(errors="replace")
            assert "ERROR: AddressSanitizer" not in text and "runtime error:" not in text and \
                "ERROR: LeakSanitizer" not in text, f"{path.name}:\n{text[-6000:]}"

    def logs(self):
        parts = [(self.folder / "up.log").read_text(errors="replace")]
        parts += [f"--- {p.name}\n{p.read_text(errors='replace')[-3000:]}" for p in sorted(self.run_dir.glob("*.log"))]
        return "\n".join(parts)

    def wait_ready(self):
        def ready():
            assert self.process.poll() is None, f"tandem up ended with {self.process.returncode}:\n{self.logs()}"
            state = self.state()
            return state and state["url"] and all(p["state"] == "ready" for p in state["processes"])
        try:
            wait_until(ready, self.ready_timeout / SLOWDOWN, "every role ready")
        except AssertionError:
            self.stop()
            raise AssertionError(self.logs())

    def state(self):
        try:
            return json.loads((self.run_dir / "supervisor.json").read_text())
        except (OSError, ValueError):
            return None

    @property
    def url(self):
        return self.state()["url"]

    def address(self, name="router", endpoint="http"):
        published = json.loads((self.run_dir / f"{name}.json").read_text())
        host, port = published["endpoints"][endpoint].rsplit(":", 1)
        return host, int(port)

    def pid(self, name):
        return next(p["pid"] for p in self.state()["processes"] if p["name"] == name)

    def restarts(self, name):
        return next(p["restarts"] for p in self.state()["processes"] if p["name"] == name)

    def kill(self, name, sig=signal.SIGKILL):
        def killed():
            pid = self.pid(name)  # 0 while the role is between two processes; kill(0) would be everybody here
            if not pid:
                return False
            try:
                os.kill(pid, sig)
            except ProcessLookupError:  # ended, and its supervisor has not looked yet
                return False
            return True
        wait_until(killed, 20, f"a process of {name}")

    def connection(self, timeout=60):
        host, port = self.address()
        timeout *= SLOWDOWN
        if self.tls:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=60):
        connection = self.connection(timeout)
        try:
            if isinstance(body, (dict, list)):
                body = json.dumps(body)
            if isinstance(body, str):
                body = body.encode("utf-8", "surrogatepass")
            connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return Response(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path, **kwargs):
        return self.request("GET", path, **kwargs)

    def post(self, path, body, **kwargs):
        return self.request("POST", path, body, **kwargs)

    def completion(self, **fields):
        response = self.post("/v1/completions", {"model": self.model_id, "temperature": 0, **fields})
        assert response.status == 200, response.text
        return response.json

    def chat(self, **fields):
        response = self.post("/v1/chat/completions", {"model": self.model_id, "temperature": 0, **fields})
        assert response.status == 200, response.text
        return response.json

    def stream(self, path, body, timeout=120):
        return Stream(self, path, {"model": self.model_id, "temperature": 0, "stream": True, **body}, timeout)

    def long_answer(self, tokens=400):
        """A stream that goes on for a while."""
        return self.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True,
                                               "stream_options": {"include_usage": True}})

    @property
    def model_id(self):
        return self.config["model"].get("id") or pathlib.Path(self.config["model"]["path"]).name

    def metrics_text(self, name="router", timeout=30 * SLOWDOWN):
        if name == "router":
            return self.get("/metrics").text
        host, port = self.address(name, "metrics")
        with contextlib.closing(http.client.HTTPConnection(host, port, timeout=timeout)) as connection:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()

    def metrics(self, name="router", **how):
        return parse_metrics(self.metrics_text(name, **how))

    def status(self):
        return self.get("/status").json

    def wait_idle(self, seconds=20):
        """No request is running and the decode node holds no KV for one."""
        def idle():
            status = self.status()
            nodes = status["nodes"]
            return status["requests"]["running"] == 0 and nodes and all(
                n["running"] == 0 and n["queued"] == 0 and (n["kv"]["used"] or 0) == 0 for n in nodes
                if n["state"] == "ready")
        wait_until(idle, seconds, f"an idle cluster: {self.get('/status').text[:1500]}")

    def wait_nodes(self, count, seconds=30):
        wait_until(lambda: sum(n["state"] == "ready" for n in self.status()["nodes"]) == count, seconds,
                   f"{count} nodes ready")


class Stream:
    """A streamed answer, event by event."""

    def __init__(self, cluster, path, body, timeout):
        self.connection = cluster.connection(timeout)
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        self.response = self.connection.getresponse()
        self.status = self.response.status
        self.done = False

    def events(self):
        """Each event's parsed data; ends at [DONE]."""
        for line in self.response:
            line = line.decode("utf-8").rstrip("\r\n")
            if not line or line.startswith(":"):
                continue
            assert line.startswith("data: "), f"no data line: {line!r}"
            data = line[len("data: "):]
            if data == "[DONE]":
                self.done = True
                return
            yield strict_json(data)

    def close(self):
        # shutdown, not only close: http.client keeps a second reference to the socket.
        if self.connection.sock is not None:
            try:
                self.connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.response.close()
        self.connection.close()

    def text(self):
        """The whole answer of choice 0."""
        return "".join(text_of(event) for event in self.events())


def text_of(event):
    out = ""
    for choice in event.get("choices", []):
        out += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    return out


SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (NaN|[+-]Inf|[-+0-9.eE]+)(?: \d+)?$')
LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"\s*(?:,|$)')


def parse_metrics(text):
    """The Prometheus text format, strictly: {(name, ((label, value), ...)): number}. Raises on any deviation."""
    assert text.endswith("\n"), "the last line must end"
    samples, types = {}, {}
    for line in text.split("\n")[:-1]:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, f"two TYPE lines for {name}"
            assert kind in ("counter", "gauge", "histogram", "summary", "untyped"), line
            types[name] = kind
            continue
        if line.startswith("#") or not line:
            continue
        match = SAMPLE.match(line)
        assert match, f"no sample line: {line!r}"
        name, labels, value = match.groups()
        pairs, at = [], 0
        while labels and at < len(labels):
            label = LABEL.match(labels, at)
            assert label, f"bad labels: {line!r}"
            pairs.append((label.group(1), label.group(2)))
            at = label.end()
        family = re.sub(r"_(bucket|sum|count)$", "", name) if re.sub(r"_(bucket|sum|count)$", "", name) in types else name
        assert family in types, f"no TYPE for {name}"
        key = (name, tuple(sorted(pairs)))
        assert key not in samples, f"twice: {key}"
        samples[key] = float(value)
    check_histograms(samples, types)
    return samples


def check_histograms(samples, types):
    for family, kind in types.items():
        if kind != "histogram":
            continue
        series = {}
        for (name, labels), value in samples.items():
            if name == family + "_bucket":
                bound = dict(labels)["le"]
                rest = tuple(pair for pair in labels if pair[0] != "le")
                series.setdefault(rest, []).append((float(bound.replace("+Inf", "inf")), value))
        for rest, buckets in series.items():
            buckets.sort()
            counts = [count for _, count in buckets]
            assert counts == sorted(counts), f"{family}: buckets do not grow"
            assert buckets[-1][0] == float("inf"), f"{family}: no +Inf bucket"
            assert counts[-1] == samples[(family + "_count", rest)], f"{family}: +Inf differs from _count"


def metric(samples, name, **labels):
    """Sum over all series of that name whose labels include these."""
    wanted = set(labels.items())
    found = [v for (n, pairs), v in samples.items() if n == name and wanted <= set(pairs)]
    assert found, f"no metric {name} {labels}; there are {sorted({n for n, _ in samples})}"
    return sum(found)


def url_parts(url):
    parts = urllib.parse.urlparse(url)
    return parts.hostname, parts.port
