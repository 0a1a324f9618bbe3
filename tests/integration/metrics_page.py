"""docs/metrics.md: what every process publishes, from its own /metrics. test_metrics.py compares; with TANDEM_TEST_UPDATE=1 it
rewrites."""
import re

INTRO = """# Metrics

<!-- Made from the processes' own /metrics by tests/integration/metrics_page.py; a test compares. -->

Every process answers `GET /metrics` in Prometheus' text format: the router on its HTTP port, nodes on their `metrics.port`. Times are in
seconds, sizes in bytes. What is worth an alert: [operations.md](operations.md#watching-it).
"""

GPU = """
## Nodes on a GPU

In addition, by card (`gpu`), each only where the card tells it: `tandem_gpu_readable_state`, `_temperature_celsius`, `_power_watts`,
`_power_limit_watts`, `_sm_clock_hertz`, `_memory_clock_hertz`, `_busy_ratio`, `_memory_used_bytes`, `_memory_total_bytes`,
`_slowed_state` (by reason), `_pcie_generation_count`, `_pcie_lanes_count`, `_nvlink_links_count`, `_nvlink_active_count`,
`_nvlink_bandwidth_bytes_per_second`, and the counters `_nvlink_errors_total`, `_pcie_errors_total`, `_ecc_errors_total` (by kind).
"""

CPU_TAIL = "tandem_decode_cpu_tail_"
EVERY = "Every process"


def families(text):
    """[(name, kind, help, labels)] of a /metrics text, by name."""
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.M))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    labels = {name: set() for name in kinds}
    for name, pairs in re.findall(r"^([a-z_]+)\{(.*)\} ", text, re.M):
        family = next((n for n in (name, re.sub(r"_(bucket|sum|count)$", "", name)) if n in kinds), None)
        labels[family].update(label for label in re.findall(r'(\w+)="', pairs) if label not in ("le", "quantile"))
    return [(name, kinds[name], helps.get(name, ""), sorted(labels[name])) for name in sorted(kinds)]


def section(title, found):
    rows = ["| metric | kind | labels | what |", "|---|---|---|---|"]
    for name, kind, what, labels in found:
        rows.append(f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {what} |")
    return f"\n## {title}\n\n" + "\n".join(rows) + "\n"


def shared(found):
    """What all processes have alike."""
    first, *others = found.values()
    return [family for family in first if all(family in other for other in others)]


def contradictions(found):
    """Metrics of one name that differ in kind, labels or meaning between processes."""
    seen, out = {}, []
    for title, own in found.items():
        for family in own:
            other_title, other = seen.setdefault(family[0], (title, family))
            if other != family:
                out.append(f"{family[0]}: {other_title} has {other[1:]}, {title} has {family[1:]}")
    return out


def render(found):
    everywhere = shared(found)
    out = INTRO + section(EVERY, everywhere)
    for title, own in found.items():
        out += section(title, [family for family in own if family not in everywhere])
    return out + f"\n`{CPU_TAIL}*` are there with `cpu_tail.enabled`.\n" + GPU


def listed(page):
    """{section: {metric: (kind, labels)}} of the page as it stands."""
    out = {}
    for title, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page, re.M | re.S):
        rows = re.findall(r"^\| `(\S+)` \| (\w+) \| (.*?) \|", body, re.M)
        out[title] = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    return out
