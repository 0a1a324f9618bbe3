"""More than a cluster can take: connections, requests, KV."""
import resource
import socket
import threading
import time

import pytest

import harness
from harness import PROMPT, SLOWDOWN, wait_until


@pytest.mark.parametrize("soft, hard, opened", [(128, 128, False), (128, 2048, True)])
def test_more_connections_than_open_files(soft, hard, opened, start):
    """The system's limit is raised as far as it goes; where it ends, the surplus is told so and the rest is served."""
    cluster = start(limits={resource.RLIMIT_NOFILE: (soft, hard)})
    kept = cluster.connection()
    kept.connect()
    idle, refused = [], 0
    for _ in range(200):
        idle.append(socket.create_connection(cluster.address(), timeout=10))
    for connection in idle:
        connection.settimeout(0.01)
        try:
            refused += connection.recv(100).startswith(b"HTTP/1.1 503")
        except TimeoutError:
            pass  # nobody refused it
        except OSError:
            pass
    assert (refused == 0) == opened
    kept.request("GET", "/health/live")
    begin = time.monotonic()
    assert kept.getresponse().status == 200
    assert time.monotonic() - begin < 3 * SLOWDOWN
    for connection in idle:
        connection.close()
    wait_until(lambda: cluster.get("/health/live").status == 200, 10, "room again")
    assert cluster.completion(prompt=PROMPT, max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"] == 4


def test_a_full_queue_says_429_and_recovers(start):
    cluster = start({"router": {"admission": {"prefill_queue": 1, "decode_queue": 1}}, "prefill": [{"threads": 1, "max_sequences": 1}],
                     "decode": [{"threads": 1, "max_sequences": 1, "queue": 1}]})
    streams = [cluster.long_answer(300) for _ in range(1)]
    results = []

    def one():
        results.append(cluster.post("/v1/completions", {"model": cluster.model_id, "prompt": PROMPT, "max_tokens": 100,
                                                        "ignore_eos": True}, timeout=120))
    threads = [threading.Thread(target=one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [r for r in results if r.status != 200]
    assert refused, "twelve at once into queues of one"
    for response in refused:
        assert response.status in (429, 503)
        assert int(response.headers["retry-after"]) >= 1
        assert response.json["error"]["message"]
    for stream in streams:
        list(stream.events())
        assert stream.done
    assert cluster.completion(prompt=PROMPT, max_tokens=4, ignore_eos=True)["usage"]["completion_tokens"] == 4
    cluster.wait_idle()
    rejected = sum(r.status == 429 for r in refused)
    requests = cluster.status()["requests"]
    assert (requests["rejected"], requests["failed"]) == (rejected, len(refused) - rejected)
    told = harness.tandem("status", "--url", cluster.url).stdout
    assert f"{len(refused) - rejected} failed, {rejected} rejected" in told, told


def test_a_full_kv_pool_queues_and_never_crashes(start):
    cluster = start({"kv": {"blocks": 40}, "router": {"admission": {"deadline": "30s"}}})
    results = []

    def one(number):
        results.append(cluster.post("/v1/completions", {"model": cluster.model_id, "prompt": [(7 * number + i) % 4000 for i in range(150)],
                                                        "max_tokens": 60, "ignore_eos": True}, timeout=120))
    threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = [r.status for r in results]
    assert set(statuses) <= {200, 429, 503} and statuses.count(200) >= 2, statuses
    cluster.wait_idle()
    assert all(cluster.restarts(n) == 0 for n in ("router", "prefill-0", "decode-0"))
