"""tandem chat as a person at a terminal and a script meet it, against a server that records what it is asked."""
import contextlib
import fcntl
import http.server
import json
import os
import pty
import select
import signal
import subprocess
import termios
import threading
import time

import pytest

import harness
from harness import SLOWDOWN, tandem

FOREVER = 60 * SLOWDOWN  # seconds that an answer takes which nobody waits for to the end


class Recorder(http.server.BaseHTTPRequestHandler):
    """Speaks HTTP/1.0: the end of the connection ends the answer."""

    def do_GET(self):
        self.reply(200, "application/json", json.dumps({"object": "list", "data": [self.server.model]}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if body.get("max_tokens", 0) > self.server.most_tokens:
            error = {"error": {"message": f"maximum context length: max_tokens asks for {body['max_tokens']}"}}
            return self.reply(400, "application/json", json.dumps(error).encode())
        self.send_response_only(103)  # a hint that clients may pass over
        self.end_headers()
        self.reply(200, "text/event-stream", event("Hel") + event("lo"))
        answer = "Hello"
        end = time.monotonic() + self.server.holds
        with contextlib.suppress(OSError):
            while time.monotonic() < end:
                self.wfile.write(event("lo"))
                answer += "lo"
                time.sleep(0.02)
            if self.server.whole:
                self.server.answers.append(answer)
                self.wfile.write(b"data: [DONE]\n\n")

    def reply(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def event(text):
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as server:
        server.model, server.bodies, server.most_tokens, server.holds, server.whole = {"id": "m"}, [], 10**9, 0, True
        server.answers = []  # those that were sent whole
        server.daemon_threads = True
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def script(server, text, *arguments):
    command = [harness.BIN / "tandem", "chat", "--url", server.url, *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, env=harness.environment(),
                          timeout=60 * SLOWDOWN)


@pytest.mark.parametrize("whole", [True, False])
def test_an_answer_that_is_not_whole_is_told(server, whole):
    server.whole = whole
    run = tandem("chat", "--url", server.url, "--ask", "Hi", check=False)
    assert run.stdout == "Hello\n"
    assert run.returncode == (0 if whole else 1) and ("not whole" in run.stderr) == (not whole)


@pytest.mark.parametrize("suggested, flags, temperature, top_p", [
    (None, [], None, None),
    ({}, [], None, None),
    ({"temperature": 0.6, "top_p": 0.95}, [], 0.6, 0.95),
    ({"temperature": 0.6}, ["--temperature", "0"], 0, None),
    ({"temperature": 0.6, "top_p": 0.95}, ["--top-p", "0.5"], 0.6, 0.5),
    ({"temperature": 0.6}, ["--temperature", "1", "--model", "other"], 1, None),
    ({"temperature": 0.6}, ["--model", "unlisted"], None, None),
])
def test_how_tokens_are_drawn(server, suggested, flags, temperature, top_p):
    if suggested is not None:
        server.model["chat_sampling_params"] = suggested
    tandem("chat", "--url", server.url, "--ask", "Hi", *flags)
    body, = server.bodies
    assert (body.get("temperature"), body.get("top_p")) == (temperature, top_p)
    assert body["max_tokens"] == 512


def test_a_context_that_is_nearly_full_gets_what_is_left(server):
    server.most_tokens = 100
    assert tandem("chat", "--url", server.url, "--ask", "Hi").stdout == "Hello\n"
    assert [b.get("max_tokens") for b in server.bodies] == [512, None]
    run = tandem("chat", "--url", server.url, "--ask", "Hi", "--max-tokens", 200, check=False)
    assert run.returncode == 1 and "max_tokens asks for 200" in run.stderr


def test_a_script_holds_a_conversation(server):
    run = script(server, "one\n\ntwo\n/clear\n /help\n/etc/hosts\n/quit\nnever\n", "--system", "Be brief.")
    assert run.returncode == 0, run.stderr
    assert run.stdout == "Hello\n" * 4
    said = [[m["content"] for m in body["messages"]] for body in server.bodies]
    assert said == [["Be brief.", "one"], ["Be brief.", "one", "Hello", "two"],
                    ["Be brief.", " /help"], ["Be brief.", " /help", "Hello", "/etc/hosts"]]


@pytest.mark.parametrize("line, fragment", [("/halp", "unknown command /halp; /help"), ("/quit now", "/quit takes nothing")])
def test_a_script_ends_at_a_command_that_is_none(server, line, fragment):
    run = script(server, line + "\nnever\n")
    assert run.returncode == 2 and fragment in run.stderr and not server.bodies


def test_a_reader_that_has_had_enough_ends_the_answer(server):
    server.holds = FOREVER
    command = f"{harness.BIN / 'tandem'} chat --url {server.url} --ask Hi | head -c 3"
    begin = time.monotonic()
    run = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, env=harness.environment(),
                         timeout=60 * SLOWDOWN)
    assert (run.returncode, run.stdout, run.stderr) == (0, "Hel", "") and time.monotonic() - begin < FOREVER / 2


class Terminal:
    """tandem chat with a terminal of its own."""

    def __init__(self, server):
        self.screen = ""
        self.fd, other_end = pty.openpty()
        self.process = subprocess.Popen(
            [harness.BIN / "tandem", "chat", "--url", server.url], stdin=other_end, stdout=other_end, stderr=other_end,
            env=harness.environment(TERM="dumb"), start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(other_end)

    def type(self, text):
        os.write(self.fd, text.encode())

    def wait_for(self, text):
        """What came up to and with this text."""
        end = time.monotonic() + 20 * SLOWDOWN
        while text not in self.screen:
            ready = select.select([self.fd], [], [], max(0, end - time.monotonic()))[0]
            assert ready, f"no {text!r} in {self.screen!r}"
            try:
                self.screen += os.read(self.fd, 4096).decode()
            except OSError:  # the other end is closed
                raise AssertionError(f"ended before {text!r}: {self.screen!r}")
        at = self.screen.index(text) + len(text)
        seen, self.screen = self.screen[:at], self.screen[at:]
        return seen

    def end(self):
        """What was still on the screen when it ended, which it does with success."""
        with contextlib.suppress(OSError):  # the other end is closed
            while select.select([self.fd], [], [], 20 * SLOWDOWN)[0]:
                self.screen += os.read(self.fd, 4096).decode()
        assert self.process.wait(20 * SLOWDOWN) == 0
        os.close(self.fd)
        return self.screen


def test_a_person_at_a_terminal(server):
    terminal = Terminal(server)
    assert "/help" in terminal.wait_for("> ")
    terminal.type("/help\n")
    assert "/clear" in terminal.wait_for("> ") and not server.bodies
    terminal.type("/halp\n")
    assert "unknown command /halp" in terminal.wait_for("> ") and not server.bodies
    terminal.type("one\n")
    assert "Hello" in terminal.wait_for("> ")
    terminal.type("half a line\x03")  # Ctrl-C drops it and says how to leave
    assert "/quit leaves" in terminal.wait_for("> ")
    server.holds = 1  # long enough for what still waits to stop it
    terminal.type("and\n")
    assert "forgotten" not in terminal.wait_for("> "), "that Ctrl-C had its effect"
    server.holds = FOREVER
    terminal.type("two\n")
    terminal.wait_for("lolo")
    terminal.type("\x03")  # and stops an answer
    assert "forgotten" in terminal.wait_for("> ")
    server.holds = 0
    terminal.type("three\n")
    terminal.wait_for("> ")
    assert [m["content"] for m in server.bodies[-1]["messages"]] == ["one", "Hello", "and", server.answers[1], "three"]
    assert len(server.answers[1]) > len("Hello")
    terminal.type("/new\n")
    terminal.wait_for("> ")
    terminal.type("four\n")
    terminal.wait_for("> ")
    assert [m["content"] for m in server.bodies[-1]["messages"]] == ["four"]
    terminal.type("\x04")  # Ctrl-D
    assert terminal.end().endswith("\r\n"), "the shell's prompt begins a line"


def test_one_question_is_cut_by_the_signal_itself(server):
    """As a shell expects that runs it in a loop."""
    server.holds = FOREVER
    process = subprocess.Popen([harness.BIN / "tandem", "chat", "--url", server.url, "--ask", "Hi"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env=harness.environment())
    assert process.stdout.read(5) == b"Hello"
    process.send_signal(signal.SIGINT)
    assert process.wait(20 * SLOWDOWN) == -signal.SIGINT
