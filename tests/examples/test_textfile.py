"""The systemd timer's script: its file is read by prometheus_client, is replaced atomically, and holds every status."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from collbench.runfile import run_file
from tests.builders import pair_run
from tests.examples.programs import EXAMPLES, FakeProgram

SCRIPT = EXAMPLES / "systemd" / "collbench-textfile"
UNITS = [EXAMPLES / "systemd" / f"collbench-check.{kind}" for kind in ("service", "timer")]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A saved run of four GPUs."""
    file = tmp_path / "saved.json"
    run_file.save(pair_run(4, lambda a, b: 300.0 + a + b), file)
    return file


def started(fake: FakeProgram, **environment: str) -> tuple[int, dict[str, list[float]], str]:
    """Run the script; return its exit status, the samples in its file by metric, and stderr."""
    parser = pytest.importorskip("prometheus_client.parser")
    folder = fake.folder / "textfiles"
    folder.mkdir(exist_ok=True)
    path = environment.pop("PATH", "/usr/bin:/bin")
    done = fake.start(SCRIPT, COLLBENCH_TEXTFILES=str(folder), PATH=path, **environment)
    assert {file.name for file in folder.iterdir()} <= {"collbench.prom"}  # no half-written file stays
    file = folder / "collbench.prom"
    samples: dict[str, list[float]] = {}
    for family in parser.text_string_to_metric_families(file.read_text() if file.exists() else ""):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample.value)
    return done.returncode, samples, done.stderr


@pytest.mark.parametrize("status", [0, 4])
def test_every_status_is_reported_with_the_figures(fake: FakeProgram, run: Path, status: int) -> None:
    fake.will(status=status, run=run)
    script_status, samples, _ = started(fake)
    assert script_status == 0
    assert samples["collbench_check_status"] == [float(status)]
    assert samples["collbench_check_timestamp_seconds"][0] > 1_700_000_000
    bandwidths = [value for name, values in samples.items() if "bandwidth" in name or "bytes_per" in name
                  for value in values]  # fmt: skip
    assert len(bandwidths) == 3  # the slowest, the median and the fastest pair


def test_without_a_measurement_only_the_status_is_written(fake: FakeProgram) -> None:
    fake.will(status=1)
    status, samples, stderr = started(fake)
    assert status == 0
    assert set(samples) == {"collbench_check_status", "collbench_check_timestamp_seconds"}
    assert samples["collbench_check_status"] == [1.0]
    assert "NV_DEGRADED" in stderr  # the page, for the journal


def test_a_hang_is_status_124(fake: FakeProgram) -> None:
    fake.will(hang=True)
    assert started(fake, COLLBENCH_LIMIT="1")[1]["collbench_check_status"] == [124.0]


def test_a_missing_collbench_is_reported_too(fake: FakeProgram) -> None:
    assert started(fake)[1]["collbench_check_status"] == [127.0]


def test_figures_that_cannot_be_exported_fail_the_service_and_keep_the_status(
    fake: FakeProgram, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    fake.will(status=3, run=broken)
    status, samples, stderr = started(fake)
    assert (status, samples["collbench_check_status"]) == (1, [3.0])
    assert "could not be exported" in stderr


def test_busy_gpus_are_left_alone_and_so_is_the_file(fake: FakeProgram, tmp_path: Path) -> None:
    fake.will(status=0)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho 4711\n")
    (tools / "nvidia-smi").chmod(0o755)
    (tmp_path / "textfiles").mkdir()
    (tmp_path / "textfiles" / "collbench.prom").write_text("collbench_check_status 3\n")
    status, samples, stderr = started(fake, PATH=f"{tools}:/usr/bin:/bin")
    assert (status, samples["collbench_check_status"], fake.calls()) == (0, [3.0], [])
    assert "in use" in stderr


def test_a_folder_that_cannot_be_written_fails_the_service(fake: FakeProgram) -> None:
    fake.will(status=0)
    done = fake.start(SCRIPT, COLLBENCH_TEXTFILES=str(fake.folder / "none"), PATH="/usr/bin:/bin")
    assert done.returncode == 1
    assert "cannot write to" in done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_units_are_read_by_systemd(unit: Path, tmp_path: Path) -> None:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(unit)
    assert "Unit" in parsed
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed; read as a configuration file only")
    for original in UNITS:  # the script stands where the unit wants it on a node only
        text = original.read_text().replace("/usr/local/lib/collbench/collbench-textfile", str(SCRIPT))
        (tmp_path / original.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit.name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if "collbench" in line]) == (0, [])


def test_the_service_starts_this_script_with_variables_that_it_reads() -> None:
    service = UNITS[0].read_text()
    assert re.search(r"^ExecStart=\S*/collbench-textfile$", service, re.MULTILINE)
    set_here = set(re.findall(r"^Environment=(COLLBENCH\w*)=", service, re.MULTILINE))
    assert set_here <= set(re.findall(r"\$\{(\w+):-", SCRIPT.read_text()))
