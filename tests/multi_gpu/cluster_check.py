#!/usr/bin/env python3
"""Real clusters whose prefill and decode nodes stand on different devices of one host.

In every KV format and over every transport they answer what one device alone answers. Then each role is killed, and each kind of
node frozen, while transfers are under way: with a node no request fails, with the router those that it had do; every answer that comes
is the one that comes without faults, and nothing stays behind.

On cards a prompt computed in other company may end where two tokens are as good as each other: an answer may part from the one
wanted there, and nowhere else. On CPUs, and for trained models without faults, not even there.

Needs the programs (TANDEM_TEST_BIN names their folder) and nothing but Python's standard library. Runs on CPU nodes too.

usage: cluster_check.py [--devices cuda:0,cuda:1] [--transport KIND]... [--format F]... [--model NAME]... [--jobs N]
                        [--only tokens|faults] [--within SECONDS]
  --devices    where prefill and decode nodes run; `cpu,cpu` for a machine without cards   (default: cuda:0,cuda:1)
  --transport  may be repeated; default: each that joins these devices: nccl, cuda_ipc, ucx
  --model      chat-6m, smollm2 (TANDEM_SMOLLM2), qwen2-7b[:LAYERS] with made-up weights, or a path; may be repeated
  --jobs       clusters that run at the same time, for the texts
  --within     starts nothing new after this time; what was left out is named and fails the run
"""
import argparse
import concurrent.futures
import math
import pathlib
import signal
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from layout import FORMATS, harness, kinds_for, named_model, node, node_metrics, on_cards  # noqa: E402

TEXTS = ["Hello, how are you?", "What is the capital of France?", "Write one sentence about the sea. " * 20]
TIE = 0.1  # log probabilities that bfloat16 cannot tell apart
PEER_TIMEOUT = 10 if harness.SANITIZED else 1.5
FROZEN_SECONDS = PEER_TIMEOUT + 2


class Checker:
    def __init__(self, within):
        self.failures = []
        self.passed = 0
        self.end = time.monotonic() + within
        self.lock = threading.Lock()

    def check(self, what, good, detail=""):
        with self.lock:
            print(f"{'ok    ' if good else 'FAILED'} {what}{'' if good else ': ' + str(detail)}", flush=True)
            if good:
                self.passed += 1
            else:
                self.failures.append(what)

    def guarded(self, what, function, *arguments):
        """Runs a step if there is time for it; an error is its failure."""
        if time.monotonic() > self.end:
            return self.check(what, False, "left out, the time is up")
        try:
            return function(*arguments)
        except (AssertionError, OSError, ValueError, KeyError) as error:
            return self.check(what, False, f"{type(error).__name__}: {str(error)[-2500:]}")


def config(options, model, kind, prefill, decode, kv_format="auto", **changes):
    share = options.memory_share
    settings = {"max_batch_tokens": options.batch_tokens, "max_sequences": 16}
    base = {"model": model, "kv": {"memory": options.kv_memory, "format": kv_format},
            "router": {"control": {"peer_timeout": f"{PEER_TIMEOUT * 1000:.0f}ms"},
                       "admission": {"deadline": "60s", "max_retries": 8}, "dispatch": {"local_prefill_below": 0}},
            "prefill": [node(d, kind, share, chunk_tokens=options.batch_tokens, **settings) for d in prefill],
            "decode": [node(d, kind, share, chunk_tokens=options.batch_tokens, **settings) for d in decode]}
    return harness.merge(base, changes)


# ---- the same tokens as on one device ----
def prompts_of(model):
    """Text for models that were trained; token ids for made-up weights."""
    if model.get("load_format") != "dummy":
        return TEXTS
    return [[(7 * i * k + 11 * i + 5) % 4000 + 3 for i in range(n)] for k, n in enumerate([24, 100, 600])]


def answer_of(cluster, prompt, tokens):
    """(tokens, their log probabilities, the five best of each place)"""
    reply = cluster.completion(prompt=prompt, max_tokens=tokens, ignore_eos=True, logprobs=5, timeout=120)
    found = reply["choices"][0]["logprobs"]
    return found["tokens"], found["token_logprobs"], found["top_logprobs"]


def apart(wanted, got, ties):
    """What sets two answers apart; None: nothing, or, with `ties`, two tokens at which either might have gone on."""
    if len(wanted[0]) != len(got[0]):
        return f"{len(got[0])} tokens instead of {len(wanted[0])}"
    for i, (a, b) in enumerate(zip(wanted[0], got[0])):
        if a != b:
            gap = max(max(best[i].values()) - best[i].get(other, -math.inf) for best, other in ((wanted[2], b), (got[2], a)))
            return None if ties and gap < TIE else f"token {i} is {b!r} instead of {a!r}, {gap:.3f} from it"
        if abs(wanted[1][i] - got[1][i]) > (TIE if ties else 0.02):
            return f"token {i}, {a!r}: log probability {got[1][i]:.3f} instead of {wanted[1][i]:.3f}"
    return None


def used_transport(cluster):
    """What the sender says it used, once it has."""
    detail = cluster.status()["transfers"]["transport"]
    return None if "not connected" in detail else detail


def answers(options, folder, model, kind, prefill, decode, kv_format):
    begin = time.monotonic()
    with harness.Cluster(folder, config(options, model, kind, prefill, decode, kv_format), ready_timeout=180) as cluster:
        ready = time.monotonic() - begin
        texts = [answer_of(cluster, prompt, options.tokens) for prompt in prompts_of(model)]
        if not prefill:
            return texts, "", 0
        # Heartbeats bring what the hand-overs used.
        used = harness.wait_until(lambda: used_transport(cluster), 10, "a node that names the transport it used")
        harness.wait_until(lambda: cluster.status()["transfers"]["count"] >= len(texts), 10, "counted hand-overs")
        moved = cluster.status()["transfers"]["wire_bytes"]
    print(f"       {folder.name}: ready in {ready:.1f} s, {moved / 1e6:.2f} MB moved, {used}", flush=True)
    return texts, used, moved


def same_tokens(options, checker, folder, model, kinds):
    first, second = options.devices[0], options.devices[-1]
    pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
    runs = {}
    for kv_format in options.format or FORMATS:
        name = f"{model['id']}-{kv_format}"
        # On one card two processes, joined as simply as can be; on CPUs one process that hands over nothing.
        alone = (model, "cuda_ipc", [first], [first]) if on_cards(options.devices) else (model, "ucx", [], [first])
        runs[kv_format, None] = pool.submit(answers, options, folder / f"{name}-one", *alone, kv_format)
        for kind in kinds:
            runs[kv_format, kind] = pool.submit(answers, options, folder / f"{name}-{kind}", model, kind, [first], [second],
                                                kv_format)
    for (kv_format, kind), run in runs.items():
        if kind is None:
            continue
        what = f"{model['id']}, {kv_format} over {kind}"

        def compare(kv_format=kv_format, kind=kind, run=run, what=what):
            left = max(1.0, checker.end - time.monotonic())
            wanted, _, _ = runs[kv_format, None].result(timeout=left)
            got, used, moved = run.result(timeout=left)
            # Made-up weights give thousands of tokens nearly the same probability.
            ties = on_cards(options.devices) and model.get("load_format") == "dummy"
            found = [apart(w, g, ties) for w, g in zip(wanted, got)]
            parted = sum(w[0] != g[0] for w, g in zip(wanted, got))
            checker.check(f"{what}: the same tokens as on one device{f', {parted} texts up to a tie' if parted else ''}",
                          not any(found), f"{found}\n  one {[''.join(w[0]) for w in wanted]}\n  two {[''.join(g[0]) for g in got]}")
            checker.check(f"{what}: KV moved over it", moved > 0 and used.startswith(kind.split("+")[0]), used)
        try:
            checker.guarded(what, compare)
        except concurrent.futures.TimeoutError:
            checker.check(what, False, "not ready when the time was up")
    pool.shutdown(wait=False, cancel_futures=True)


# ---- faults in mid-transfer ----
class Load:
    """Threads that ask for the same answers again and again, and compare."""

    def __init__(self, cluster, prompts, wanted, tokens, threads, ties):
        self.cluster, self.prompts, self.wanted, self.tokens, self.ties = cluster, prompts, wanted, tokens, ties
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.done, self.parted, self.slowest, self.wrong, self.failed = 0, 0, 0.0, [], []
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(threads)]
        for thread in self.threads:
            thread.start()

    def run(self, i):
        while not self.stop.is_set():
            begin = time.monotonic()
            at = i % len(self.prompts)
            problem, failed = None, None
            try:
                problem = self.ask(at)
            except Exception as error:  # noqa: BLE001: whatever it is, a client would see it
                failed = f"{type(error).__name__}: {error}"
            with self.lock:
                self.done += not failed
                self.slowest = max(self.slowest, time.monotonic() - begin)
                if problem:
                    self.wrong.append(problem[-600:])
                if failed:
                    self.failed.append((begin, failed[-600:]))
            if failed:
                self.stop.wait(0.05)
            i += len(self.threads)

    def ask(self, at):
        got = answer_of(self.cluster, self.prompts[at], self.tokens)
        problem = apart(self.wanted[at], got, self.ties)
        if not problem and got[0] != self.wanted[at][0]:
            with self.lock:
                self.parted += 1
        return problem and f"prompt {at}: {problem}"

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(100)
        assert not any(t.is_alive() for t in self.threads), "a request hangs"


def failures_seen(metrics):
    """What the surviving nodes say of prompts and reservations that did not end well."""
    out = {}
    for (name, labels), value in metrics.items():
        outcome = dict(labels).get("outcome")
        if name in ("tandem_prefill_prompts_total", "tandem_decode_reservations_total") and value and \
                outcome not in ("ok", "granted"):
            out[outcome] = out.get(outcome, 0) + value
    return out


def fault(options, checker, cluster, what, role, sig, prompts, wanted):
    ties = on_cards(options.devices)
    load = Load(cluster, prompts, wanted, options.tokens, options.load, ties)

    def open_transfers():
        return harness.metric(node_metrics(cluster, "prefill-0"), "tandem_prefill_open_transfers")
    try:
        # Open: posted, and not acknowledged to its end. With several at a time the signal falls into the midst of one.
        harness.wait_until(lambda: load.done > 0 and open_transfers() > 0, 60,
                           "transfers under way")
        restarts = cluster.restarts(role)
        cluster.kill(role, sig)
        begin = time.monotonic()
        if sig == signal.SIGKILL:
            harness.wait_until(lambda: cluster.restarts(role) > restarts, 60, f"another {role}")
        if sig == signal.SIGSTOP:
            time.sleep(FROZEN_SECONDS)
            cluster.kill(role, signal.SIGCONT)
        done = load.done
        cluster.wait_ready()
        cluster.wait_nodes(3, 60)
        whole = time.monotonic()
        harness.wait_until(lambda: load.done >= done + 2 * options.load, 90, "answers after the fault")
    finally:
        load.end()
    before = cluster.status()["transfers"]["count"]
    again = apart(wanted[0], answer_of(cluster, prompts[0], options.tokens), ties)
    harness.wait_until(lambda: cluster.status()["transfers"]["count"] > before, 10, "a hand-over after the fault")
    cluster.wait_idle()
    checker.check(f"{what}: {load.done} answers as without it{f', {load.parted} up to a tie' if load.parted else ''}",
                  not load.wrong and not again, f"{len(load.wrong)} differ, the first: {(load.wrong + [again])[:1]}")
    # Nodes take each other's place; without a router nobody is served until there is another one.
    broken = [text for at, text in load.failed if role != "router" or at > whole]
    checker.check(f"{what}: {len(load.failed)} requests failed{', none once there was another' if role == 'router' else ''}",
                  not broken, f"{len(broken)}, the first: {broken[:1]}")
    other = node_metrics(cluster, "decode-1" if role == "prefill-0" else "prefill-0")
    print(f"       slowest answer {load.slowest:.2f} s, whole {whole - begin:.1f} s, a survivor counted "
          f"{failures_seen(other)}", flush=True)


FAULTS = [("router", "killed")] + [(role, verb) for verb in ("killed", "frozen") for role in ("prefill-0", "decode-0")]


def sensible_prompts(cluster, longest):
    """Text that a trained model goes on with in one way: tokens of nonsense have the same text as others, and differ by little."""
    def tokens_of(text):
        return cluster.post("/tokenize", {"model": cluster.model_id, "prompt": text}).json["tokens"]
    names = ["north", "south", "east", "west", "home", "away"]
    prompts = []
    for k, name in enumerate(names):
        ids = tokens_of(f"The ship went {name}. The sea was calm and the sky was blue. " * (longest // 8))
        prompts.append(ids[:longest - 16 * k])
    return prompts


def faults(options, checker, folder, model, kind, hits=FAULTS):
    first, second = options.devices[0], options.devices[-1]
    cluster_config = config(options, model, kind, [first], [second, second], kv={"prefix_cache": False})
    with harness.Cluster(folder / f"{model['id']}-faults-{kind}", cluster_config, ready_timeout=180) as cluster:
        prompts = sensible_prompts(cluster, options.fault_prompt)
        wanted = [answer_of(cluster, prompt, options.tokens) for prompt in prompts]
        for role, verb in hits:
            what = f"{model['id']} over {kind}: {role} {verb} in mid-transfer"
            sig = signal.SIGKILL if verb == "killed" else signal.SIGSTOP
            checker.guarded(what, fault, options, checker, cluster, what, role, sig, prompts, wanted)


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--devices", default="cuda:0,cuda:1")
    parser.add_argument("--transport", action="append")
    parser.add_argument("--format", action="append")
    parser.add_argument("--model", action="append")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", choices=["tokens", "faults"])
    parser.add_argument("--within", type=float, default=1800)
    parser.add_argument("--tokens", type=int, default=24, help="length of each answer")
    parser.add_argument("--load", type=int, default=4, help="requests in flight while a role is hit")
    parser.add_argument("--fault-prompt", type=int, default=1200, help="length of the prompts in flight then")
    parser.add_argument("--batch-tokens", type=int, default=512)
    parser.add_argument("--kv-memory", default="256MiB")
    parser.add_argument("--memory-share", type=float, default=0.2, help="gpu_memory_utilization of each node")
    options = parser.parse_args(words)
    options.devices = options.devices.split(",")
    if not options.model:
        options.model = ["smollm2"] if harness.SMOLLM2 else ["chat-6m"]
    return options


def main():
    options = parse()
    checker = Checker(options.within)
    kinds = options.transport or kinds_for(options.devices)
    with tempfile.TemporaryDirectory(prefix="tandem-multi-") as name:
        folder = pathlib.Path(name)
        for model in [named_model(m, folder / "models") for m in options.model]:
            if options.only != "faults":
                same_tokens(options, checker, folder, model, kinds)
            # Made-up weights have no margins: a prompt computed in other company may go on otherwise.
            if options.only != "tokens" and model.get("load_format") != "dummy":
                for kind in kinds:
                    what = f"{model['id']}: faults over {kind}"
                    checker.guarded(what, faults, options, checker, folder, model, kind)
    print(f"{checker.passed} passed, {len(checker.failures)} failed")
    return 1 if checker.failures else 0


if __name__ == "__main__":
    sys.exit(main())
