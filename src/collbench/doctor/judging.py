"""From facts about a machine to what they mean for a run on it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.doctor import judging_gpus, judging_host, judging_libraries, judging_links, judging_variables
from collbench.doctor.facts import Facts, Gpu
from collbench.doctor.findings import Finding, Level
from collbench.machine.visible import NAME, ORDER, read

# The exit status where any line fails; warnings leave it at 0.
FAILED = 1


def judge(facts: Facts) -> tuple[Finding, ...]:
    """Return all findings, in the order of the report."""
    found: list[Finding] = []
    if facts.backend == "cuda":
        gpus = visible_gpus(facts)
        found += judging_gpus.driver(facts)
        if facts.driver.gpus:
            found += judging_gpus.visibility(facts)
            found += judging_gpus.health(gpus)
            found += judging_links.judge(facts, gpus)
        found += judging_libraries.judge(facts)
    else:
        gpus = ()
        found += judging_libraries.torch_for_cores(facts.software)
    found += judging_host.judge(facts, gpus)
    found += judging_variables.judge(facts)
    return tuple(found)


def visible_gpus(facts: Facts) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves; all of them where it leaves none, for the list may be wrong."""
    gpus = facts.driver.gpus
    environment = facts.environment
    left = read([gpu.device for gpu in gpus], environment.get(NAME), environment.get(ORDER)).devices
    return tuple(gpu for gpu in gpus if gpu.device in left) or gpus


def status(findings: Sequence[Finding]) -> int:
    """Return the exit status: 0 where nothing fails, else FAILED."""
    return FAILED if any(finding.level is Level.FAIL for finding in findings) else 0
