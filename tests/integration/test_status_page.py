"""The page at `/` in headless Chromium."""
import html
import os
import pathlib
import shutil
import subprocess
import threading

import pytest

import harness

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="no chromium (scripts/install-packages.sh --tests installs it)")


def chromium(tmp_path, *arguments):
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
               "--disable-background-networking", f"--user-data-dir={tmp_path / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120 * harness.SLOWDOWN, stdin=subprocess.DEVNULL,
                          env={**os.environ, "HOME": str(tmp_path)})


def test_the_page_is_one_self_contained_document(cluster):
    response = cluster.get("/")
    assert response.status == 200 and response.headers["content-type"].startswith("text/html")
    for outside in ("src=\"http", "href=\"http", "@import", "url(http", "src=\"/", "<link rel=\"stylesheet"):
        assert outside not in response.text
    assert len(response.body) < 200_000


@needs_chromium
@pytest.mark.skipif(harness.SANITIZED, reason="the page is the same in every build")
def test_the_page_lives(cluster, tmp_path):
    """With requests running, the page shows nodes and draws plots, without an error in its console."""
    stop = threading.Event()

    def load():
        number = 0
        while not stop.is_set():
            number += 1
            cluster.completion(prompt=[(number * 31 + i) % 4000 for i in range(120)], max_tokens=40, ignore_eos=True)
    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        page = chromium(tmp_path, "--virtual-time-budget=6000", "--enable-logging=stderr", "--dump-dom", cluster.url + "/")
        shot = tmp_path / "status.png"
        chromium(tmp_path, "--virtual-time-budget=9000", "--window-size=1280,800", "--hide-scrollbars", f"--screenshot={shot}",
                 cluster.url + "/")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    text = html.unescape(page.stdout)
    for word in ("prefill-0", "decode-0", "ready", "ucx", cluster.model_id):
        assert word in text, word
    assert "CONSOLE" not in page.stderr or "Uncaught" not in page.stderr, page.stderr[-2000:]
    assert shot.exists() and shot.stat().st_size > 20_000
    keep = os.environ.get("TANDEM_TEST_SCREENSHOT")
    if keep:
        shutil.copy(shot, pathlib.Path(keep))
