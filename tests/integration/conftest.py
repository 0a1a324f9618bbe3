import pytest

import harness


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """One cluster for every test that leaves it as it found it."""
    with harness.Cluster(tmp_path_factory.mktemp("shared")) as cluster:
        yield cluster


@pytest.fixture
def start(tmp_path):
    """start(config, env): a cluster of the test's own, stopped when the test ends."""
    running = []

    def start_cluster(config=None, env=None, **kwargs):
        cluster = harness.Cluster(tmp_path / f"cluster{len(running)}", config, env, **kwargs)
        cluster.__enter__()
        running.append(cluster)
        return cluster

    yield start_cluster
    for cluster in running:
        cluster.__exit__(None)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test shows the logs of the processes it used."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        for value in item.funcargs.values():
            if isinstance(value, harness.Cluster):
                report.sections.append(("cluster logs", value.logs()[-5000:]))
