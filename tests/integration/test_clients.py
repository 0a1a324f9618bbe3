"""Clients that leave, are slow, do not read or talk nonsense, and strangers on the ports of roles."""
import os
import socket
import struct
import time

import pytest

from harness import PROMPT, SLOWDOWN, metric, wait_until


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place(stream, cluster):
    if stream:
        leaver = cluster.long_answer(3000)
        for number, _ in enumerate(leaver.events()):
            if number == 2:
                break
    else:
        leaver = cluster.connection()
        leaver.request("POST", "/v1/completions", b'{"model": "%s", "prompt": [5, 6], "max_tokens": 3000, "ignore_eos": true}'
                       % cluster.model_id.encode(), {"Content-Type": "application/json"})
        wait_until(lambda: cluster.status()["requests"]["running"] == 1, 10, "the request running")
    other = cluster.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": 150, "ignore_eos": True})
    leaver.close()
    assert sum(1 for _ in other.events()) > 10 and other.done  # nobody else noticed
    cluster.wait_idle(5)


def test_many_cancelled_prompts_block_nobody(cluster):
    for number in range(10):
        leaver = cluster.connection()
        leaver.request("POST", "/v1/completions", b'{"model": "%s", "prompt": [%s], "max_tokens": 500, "stream": true}' % (
            cluster.model_id.encode(), b",".join(b"%d" % (300 + (number + i) % 1000) for i in range(2000))),
            {"Content-Type": "application/json"})
        leaver.sock.close()
    begin = time.monotonic()
    cluster.completion(prompt=[5, 6, 7], max_tokens=1)
    assert time.monotonic() - begin < 8 * SLOWDOWN
    cluster.wait_idle(20)


GARBAGE = {
    "zeros": bytes(4096),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "huge length": struct.pack("<IIQ", 0xFFFFFFFF, 0xFFFFFFFF, 2 ** 63) * 64,
    "random": bytes((i * 7919 + 13) % 251 for i in range(65536)),
    "nothing": b"",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_on_the_control_port_touches_nobody(name, cluster):
    address = cluster.address("router", "control")
    stream = cluster.long_answer(60)
    connections = []
    for _ in range(4):
        connection = socket.create_connection(address, timeout=10)
        try:
            connection.sendall(GARBAGE[name])
        except OSError:
            pass
        connections.append(connection)
    assert sum(1 for _ in stream.events()) > 5 and stream.done
    for connection in connections:
        connection.close()
    assert cluster.status()["ready"]


def ipv4_of(address):
    """/proc writes addresses as little-endian words; wildcards and IPv6 are reached over the loopback."""
    if len(address) != 8 or address == "00000000":
        return "127.0.0.1"
    return socket.inet_ntoa(struct.pack("<I", int(address, 16)))


def listening_ports(pid):
    """(address, port) of the TCP sockets that a process listens on, from /proc."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in open(f"/proc/{pid}/net/{table}").readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, port = fields[1].rsplit(":", 1)
                ports.add((ipv4_of(address), int(port, 16)))
    return ports


@pytest.mark.parametrize("role", ["decode-0", "prefill-0"])
def test_garbage_on_a_nodes_ports_touches_nobody(role, cluster):
    """Every port that a node listens on: its metrics endpoint, and what UCX opens for connecting."""
    listening = listening_ports(cluster.pid(role))
    assert len(listening) >= 2, "the metrics endpoint and UCX's own"
    for host, port in listening:
        for data in GARBAGE.values():
            try:
                connection = socket.create_connection((host, port), timeout=10)
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                continue
            connection.close()
    answer = cluster.completion(prompt=list(range(700, 800)), max_tokens=8, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 8
    assert cluster.restarts(role) == 0


def test_slow_clients_are_cut_off(start):
    cluster = start({"router": {"http": {"header_timeout": "500ms", "body_timeout": "500ms", "idle_timeout": "1s"}}})
    address = cluster.address()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    cases = {"header": head, "body": head + b"Content-Length: 1000\r\n\r\n{", "nothing": b""}
    for name, sent in cases.items():
        connection = socket.create_connection(address, timeout=15 * SLOWDOWN)
        connection.sendall(sent)
        begin = time.monotonic()
        data = b""
        while piece := connection.recv(4096):
            data += piece
        assert time.monotonic() - begin < 5 * SLOWDOWN, name
        if name != "nothing":
            assert data.startswith(b"HTTP/1.1 408"), (name, data[:100])
        connection.close()
    assert cluster.get("/health/live").status == 200


def test_a_client_that_does_not_read_is_let_go(start):
    """The router neither waits for it nor keeps its answer for ever."""
    cluster = start({"router": {"http": {"write_timeout": "1s"}}})
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(cluster.address())
    body = b'{"model": "chat-6m", "prompt": [5, 6, 7], "max_tokens": 3500, "ignore_eos": true, "stream": true, "n": 4, ' \
        b'"logprobs": 20}'
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                       % len(body) + body)
    other = cluster.completion(prompt=[8, 9], max_tokens=8, ignore_eos=True)
    assert other["usage"]["completion_tokens"] == 8
    # Not before the kernel's buffers are full as well.
    wait_until(lambda: metric(cluster.metrics(), "tandem_router_slow_clients_total") == 1, 60, "a client given up")
    cluster.wait_idle(60)
    assert metric(cluster.metrics(), "tandem_router_client_disconnects_total") == 0
    connection.close()
