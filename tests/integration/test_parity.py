"""A prompt's answer is the same through three processes as through `tandem generate`, for every KV format."""
import concurrent.futures
import json

import pytest

import harness
from harness import CHAT_MODEL, metric, tandem

FORMATS = ["bf16", "int8", "k8v4", "int4"]
CHATS = [
    "I would like to book a round trip flight from Seattle to San Diego for two people next Friday, please.",
    "There are 15 trees in the grove. Grove workers will plant trees today. After they are done there will be 21 trees. How many?",
    "How do I list the files of a folder, sorted by size, in a terminal? Show me the command and explain each option of it.",
    "Tell me about ownership in Rust " + "and borrowing, and lifetimes, and how they work together " * 12 + "in detail.",
]


def reference(kv, messages, tmp_path, tokens):
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"messages": messages}))
    return json.loads(tandem("generate", CHAT_MODEL, "--chat", path, "--kv", kv, "--dtype", "bf16", "--max-tokens", tokens,
                             "--json").stdout)


@pytest.mark.parametrize("kv", FORMATS)
def test_three_processes_answer_as_one(kv, start, tmp_path):
    cluster = start({"model": {"dtype": "bf16"}, "kv": {"format": kv, "memory": "64MiB"},
                     "router": {"dispatch": {"local_prefill_below": 0}}})
    chats = [[{"role": "user", "content": text}] for text in CHATS]
    with concurrent.futures.ThreadPoolExecutor(len(chats)) as pool:  # in each other's company
        answers = list(pool.map(lambda messages: cluster.chat(messages=messages, max_tokens=40), chats))
    for messages, answer in zip(chats, answers, strict=True):
        alone = reference(kv, messages, tmp_path, 40)
        assert answer["choices"][0]["message"]["content"] == alone["text"], messages[0]["content"][:40]
        assert answer["choices"][0]["finish_reason"] == alone["finish_reason"]
        assert answer["usage"]["prompt_tokens"] == len(alone["prompt_ids"])
    # They really went from process to process, and in this format.
    transfers = cluster.status()["transfers"]
    assert transfers["count"] >= len(chats)
    ratio = transfers["wire_bytes"] / transfers["raw_bytes"]
    limits = {"bf16": (0.99, 1.05), "int8": (0.4, 0.56), "k8v4": (0.3, 0.46), "int4": (0.25, 0.60)}[kv]
    assert limits[0] < ratio < limits[1]
    assert cluster.status()["transfers"]["transport"].startswith("ucx")
    cluster.wait_idle()


@pytest.mark.parametrize("kv", ["int8", "int4"])
def test_local_prefill_answers_the_same(kv, start, tmp_path):
    cluster = start({"model": {"dtype": "bf16"}, "kv": {"format": kv}, "router": {"dispatch": {"local_prefill_below": 4000}}})
    messages = [{"role": "user", "content": CHATS[1]}]
    answer = cluster.chat(messages=messages, max_tokens=40)
    assert answer["choices"][0]["message"]["content"] == reference(kv, messages, tmp_path, 40)["text"]
    assert cluster.status()["transfers"]["count"] == 0


def test_prefix_reuse_changes_no_answer(start):
    cluster = start({"router": {"dispatch": {"local_prefill_below": 0}}})
    head = "Here is the menu of the restaurant: " + ", ".join(f"dish number {i}" for i in range(60)) + ". "
    questions = ["What is the third dish?", "Is there soup?", "What is the third dish?"]
    answers = [cluster.chat(messages=[{"role": "user", "content": head + q}], max_tokens=16) for q in questions]
    assert answers[0]["choices"][0]["message"]["content"] == answers[2]["choices"][0]["message"]["content"]
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers]
    assert cached[0] == 0 and cached[1] > 100 and cached[2] >= cached[1]


def test_token_ids_and_text_agree(cluster):
    tokens = cluster.post("/tokenize", {"model": cluster.model_id, "prompt": "The quick brown fox"}).json["tokens"]
    by_text = cluster.completion(prompt="The quick brown fox", max_tokens=8)
    by_ids = cluster.completion(prompt=tokens, max_tokens=8)
    assert by_text["choices"][0]["text"] == by_ids["choices"][0]["text"]
    back = cluster.post("/detokenize", {"model": cluster.model_id, "tokens": tokens}).json
    assert back["prompt"] == "The quick brown fox"


def test_tokens_are_counted_once(cluster):
    before = cluster.metrics()
    answer = cluster.completion(prompt=list(range(100, 180)), max_tokens=16, ignore_eos=True)
    after = cluster.metrics()
    assert answer["usage"] == {**answer["usage"], "prompt_tokens": 80, "completion_tokens": 16, "total_tokens": 96}
    for name, amount in [("tandem_router_output_tokens_total", 16), ("tandem_router_prompt_tokens_total", 80)]:
        assert metric(after, name) - metric(before, name) == amount


@pytest.mark.skipif(not harness.SMOLLM2 or harness.SANITIZED, reason="needs TANDEM_SMOLLM2 and a build without sanitizers")
def test_the_real_model_through_three_processes(start, tmp_path):
    cluster = start({"model": {"path": harness.SMOLLM2, "id": "smol", "dtype": "float32"}, "kv": {"format": "f32", "memory": "512MiB"}})
    cases = json.loads((harness.GOLDEN / "smollm2/golden.json").read_text())["cases"]
    for case in cases:
        answer = cluster.chat(messages=case["messages"], max_tokens=len(case["greedy"]))
        assert answer["choices"][0]["message"]["content"] == case["text"]
