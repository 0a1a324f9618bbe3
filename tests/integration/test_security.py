"""API keys, TLS, CORS, and the control channel's shared key."""
import json
import shutil
import ssl
import subprocess

import openai
import pytest

import harness
from harness import SLOWDOWN, wait_until

KEY = "sk-test-1234"
COMMANDS = (["status"], ["chat", "--ask", "Hi"], ["bench", "serve", "--requests", 1])


def test_api_keys(start):
    cluster = start({"router": {"http": {"api_keys": [KEY, "sk-other"]}}})
    body = {"model": cluster.model_id, "prompt": [5, 6], "max_tokens": 1}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}, {"Authorization": "Basic " + KEY}):
        response = cluster.post("/v1/completions", body, headers=headers)
        assert response.status == 401 and response.json["error"]["message"], headers
        assert KEY not in response.text
    for key in (KEY, "sk-other"):
        assert cluster.post("/v1/completions", body, headers={"Authorization": f"Bearer {key}"}).status == 200
    for path in ("/health/live", "/health/ready", "/metrics", "/"):
        assert cluster.get(path).status == 200, path
    for path in ("/v1/models", "/status"):
        assert cluster.get(path).status == 401, path
    client = openai.OpenAI(base_url=cluster.url + "/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        client.models.list()
    assert openai.OpenAI(base_url=cluster.url + "/v1", api_key=KEY).models.list().data
    for command in COMMANDS:
        refused = harness.tandem(*command, "--url", cluster.url, check=False)
        assert refused.returncode == 1 and "no API key was given" in refused.stderr and "--api-key" in refused.stderr
    assert "prefill-0" in harness.tandem("status", "--run-dir", cluster.run_dir, "--api-key", KEY).stdout
    chat = harness.tandem("chat", "--run-dir", cluster.run_dir, "--ask", "Hello there", "--max-tokens", 4, "--stats",
                          env=harness.environment(TANDEM_API_KEY=KEY))
    assert "time to first token" in chat.stdout and "ucx" in chat.stdout
    assert KEY not in cluster.logs()


def test_browsers_may_ask_first(start):
    cluster = start({"router": {"http": {"api_keys": [KEY]}}})
    preflight = cluster.request("OPTIONS", "/v1/chat/completions", headers={
        "Origin": "http://a.example", "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type"})
    assert preflight.status in (200, 204)
    assert preflight.headers["access-control-allow-origin"] in ("*", "http://a.example")
    assert "POST" in preflight.headers["access-control-allow-methods"]
    allowed = preflight.headers["access-control-allow-headers"].lower()
    assert "authorization" in allowed and "content-type" in allowed
    refused = cluster.post("/v1/chat/completions", {}, headers={"Origin": "http://a.example"})
    assert refused.status == 401 and refused.json["error"]
    assert refused.headers["access-control-allow-origin"] in ("*", "http://a.example")


@pytest.fixture
def certificate(tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("no openssl program to make a certificate with")
    key, cert = tmp_path / "tls.key", tmp_path / "tls.crt"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def test_tls(start, certificate):
    cert, key = certificate
    cluster = start({"router": {"http": {"tls": {"certificate": str(cert), "key": str(key)}}}})
    assert cluster.url.startswith("https://")
    context = ssl.create_default_context(cafile=str(cert))
    host, port = cluster.address()
    import http.client
    connection = http.client.HTTPSConnection(host, port, context=context, timeout=30 * SLOWDOWN)  # verified against the certificate
    connection.request("POST", "/v1/completions", json.dumps({"model": cluster.model_id, "prompt": [5, 6], "max_tokens": 2}))
    assert connection.getresponse().status == 200
    stream = cluster.stream("/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 20, "ignore_eos": True})
    assert len(list(stream.events())) > 3 and stream.done
    assert "prefill-0" in harness.tandem("status", "--run-dir", cluster.run_dir, "--insecure").stdout
    for command in COMMANDS:
        refused = harness.tandem(*command, "--url", cluster.url, check=False)
        assert refused.returncode == 1 and "--insecure" in refused.stderr and "self-signed" in refused.stderr
        refused = harness.tandem(*command, "--url", cluster.url.replace("https", "http"), check=False)
        assert refused.returncode == 1 and "https://" in refused.stderr
    trusting = harness.environment(SSL_CERT_FILE=cert)
    assert "prefill-0" in harness.tandem("status", "--run-dir", cluster.run_dir, env=trusting).stdout


def test_a_wrong_certificate_is_named(tmp_path):
    (tmp_path / "x.pem").write_text("nonsense")
    cluster = harness.Cluster(tmp_path / "c", {"router": {"http": {"tls": {"certificate": str(tmp_path / "x.pem"),
                                                                            "key": str(tmp_path / "x.pem")}}}})
    run = harness.tandem("up", cluster.config_path, "--run-dir", cluster.run_dir, env=cluster.env, check=False)
    assert run.returncode != 0 and "x.pem" in run.stderr


def test_nodes_without_the_shared_key_stay_outside(start, tmp_path):
    cluster = start({"router": {"control": {"shared_key": "correct-horse"}}})
    assert cluster.completion(prompt=list(range(100, 180)), max_tokens=2)["usage"]
    _, control = cluster.address("router", "control")
    config = harness.merge(cluster.config, {"router": {"enabled": False, "control": {"port": control, "shared_key": "wrong-battery"}},
                                            "prefill": [], "decode": [{"name": "stranger"}]})
    path = tmp_path / "stranger.yaml"
    path.write_text(json.dumps(config))
    log_path = tmp_path / "stranger.log"
    with open(log_path, "wb") as log:
        process = subprocess.Popen([str(harness.BIN / "tandem-decode"), "--config", str(path), "--run-dir", str(tmp_path)],
                                   stdout=log, stderr=log, env=cluster.env)
        try:
            wait_until(lambda: "refused" in log_path.read_text() or "key" in log_path.read_text(), 30, "a refusal in the node's log")
            assert not [n for n in cluster.status()["nodes"] if n["id"] == "stranger" and n["state"] == "ready"]
        finally:
            process.terminate()
            process.wait(20 * SLOWDOWN)
    assert "correct-horse" not in cluster.logs() and "wrong-battery" not in log_path.read_text()
