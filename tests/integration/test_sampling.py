"""What a request gets that names no temperature: the cluster file's word, else the model's, else OpenAI's."""
import json
import subprocess

import pytest

import harness

QUESTION = {"messages": [{"role": "user", "content": "I would like a table for two in San Jose, please."}], "max_tokens": 32, "seed": 5}


@pytest.fixture
def model(tmp_path):
    """The small model, as if its makers recommended to draw the likeliest token only."""
    folder = tmp_path / "likeliest"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).symlink_to(harness.CHAT_MODEL / name)
    generation = json.loads((harness.CHAT_MODEL / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**generation, "temperature": 1.5, "top_k": 1, "max_new_tokens": 7}))
    return folder


def ask(cluster, **fields):
    response = cluster.post("/v1/chat/completions", {"model": cluster.model_id, **QUESTION, **fields})
    assert response.status == 200, response.text
    return response.json["choices"][0]["message"]["content"], response.json["usage"]["completion_tokens"]


def recommended(cluster):
    return cluster.get("/v1/models").json["data"][0]["default_sampling_params"]


def test_chats_get_a_suggestion_where_the_model_recommends_nothing(cluster):
    listed, = cluster.get("/v1/models").json["data"]
    told = cluster.status()["model"]
    for each in (listed, told):
        assert each["default_sampling_params"] == {}
        assert set(each["chat_sampling_params"]) == {"temperature", "top_p"}
    assert listed["chat_sampling_params"] == told["chat_sampling_params"]


def test_the_model_recommends(start, model):
    cluster = start({"model": {"path": str(model)}})
    expected = {"temperature": 1.5, "top_k": 1, "max_tokens": 7}
    assert recommended(cluster) == expected
    assert cluster.status()["model"]["default_sampling_params"] == expected
    assert cluster.status()["model"]["chat_sampling_params"] == {}
    assert '"sampling_defaults"' in (cluster.run_dir / "router.log").read_text()
    greedy, _ = ask(cluster, temperature=0)
    assert ask(cluster)[0] == ask(cluster, temperature=None)[0] == greedy
    assert ask(cluster, top_k=0)[0] != greedy, "the request's own word counts"
    assert ask(cluster, max_tokens=None)[1] <= 7
    completion = cluster.post("/v1/completions", {"model": cluster.model_id, "prompt": [5, 6, 7], "ignore_eos": True}).json
    assert completion["usage"]["completion_tokens"] == 16, "OpenAI's own default there"


def test_the_file_has_the_last_word(start, model):
    cluster = start({"model": {"path": str(model)}, "router": {"sampling": {"top_k": 0, "temperature": 0}}})
    assert recommended(cluster) == {"temperature": 0, "top_k": 0, "max_tokens": 7}
    assert ask(cluster)[0] == ask(cluster, top_k=1)[0]


def test_a_temperature_above_the_apis_is_lowered_aloud(start, model):
    (model / "generation_config.json").write_text('{"temperature": 2.5}')
    cluster = start({"model": {"path": str(model)}})
    assert recommended(cluster) == {"temperature": 2}
    log = [json.loads(line) for line in (cluster.run_dir / "router.log").read_text().splitlines() if line.startswith("{")]
    [warning] = [line for line in log if line["event"] == "sampling_defaults" and line["level"] == "warning"]
    assert "higher temperature" in warning["message"] and (warning["recommended"], warning["used"]) == (2.5, 2)


def test_it_can_be_switched_off(start, model):
    cluster = start({"model": {"path": str(model)}, "router": {"sampling": {"from_model": False}}})
    assert recommended(cluster) == {}
    def draw(**fields):
        return cluster.completion(prompt=[5, 6, 7], max_tokens=16, ignore_eos=True, **fields)["choices"][0]["text"]
    greedy = draw(temperature=0)
    drawn = [draw(temperature=None, seed=seed) for seed in range(8)]
    assert drawn == [draw(temperature=1, seed=seed) for seed in range(8)]
    assert any(text != greedy for text in drawn)


def test_nonsense_is_named_before_anything_starts(model, tmp_path):
    (model / "generation_config.json").write_text('{"temperature": "warm"}')
    cluster = harness.Cluster(tmp_path / "c", {"model": {"path": str(model)}})
    doctor = harness.tandem("doctor", "--json", "--config", cluster.config_path, env=cluster.env, check=False)
    [problem] = [f for f in json.loads(doctor.stdout)["findings"] if "key" in f]
    assert doctor.returncode == 1 and problem["severity"] == "problem" and problem["key"] == "router.sampling.from_model"
    assert "generation_config.json: temperature" in problem["reason"]
    run = harness.tandem("up", cluster.config_path, "--run-dir", cluster.run_dir, env=cluster.env, check=False)
    assert run.returncode == 2 and problem["text"] in run.stderr
    assert "started, process" not in run.stderr and not list(cluster.run_dir.glob("*.log")), "no role was started"
    router = subprocess.run([harness.BIN / "tandem-router", "--config", cluster.config_path], env=cluster.env, capture_output=True, text=True,
                            timeout=60 * harness.SLOWDOWN)
    assert router.returncode == 2 and problem["reason"] in router.stderr, "the router by itself, in the same words"
