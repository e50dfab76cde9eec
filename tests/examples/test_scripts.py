"""Every script and manifest under examples/ is well formed, and calls collbench with arguments that it accepts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click
import pytest

from collbench.cli.program import cli
from tests.examples.programs import EXAMPLES, shellcheck

SCRIPTS = sorted(path for path in EXAMPLES.rglob("*") if path.is_file() and path.read_bytes().startswith(b"#!"))
MANIFEST = EXAMPLES / "kubernetes" / "init-container.yaml"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_valid_shell_and_may_be_started(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert script.stat().st_mode & 0o111 == 0o111


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_no_complaint(script: Path) -> None:
    program = shellcheck()
    if program is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([program, str(script)], capture_output=True, text=True, check=False)
    assert done.stdout == ""


def test_the_init_container_checks_what_the_training_container_gets() -> None:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    pod = job["spec"]["template"]["spec"]
    [check], [train] = pod["initContainers"], pod["containers"]
    assert (job["kind"], pod["restartPolicy"]) == ("Job", "Never")
    gpus = train["resources"]["limits"]["nvidia.com/gpu"]
    assert check["resources"]["limits"]["nvidia.com/gpu"] == gpus
    assert check["command"][check["command"].index("--expect") + 1] == str(gpus)
    assert check["command"][:3] == ["timeout", "--kill-after=5", "60"]
    assert check["volumeMounts"] == train["volumeMounts"]
    assert {mount["name"] for mount in check["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    for args in (check["command"][4:], train["command"][1:]):
        assert_accepted(args)


def assert_accepted(args: list[str]) -> None:
    """Fail the test if collbench does not accept these arguments."""
    context = click.Context(cli, info_name="collbench", **cli.context_settings)  # click keeps a command's -h, --help
    command = cli.get_command(context, args[0])
    assert command is not None
    command.make_context(args[0], list(args[1:]), parent=context)


def test_collbench_takes_what_the_scripts_give_it() -> None:
    assert_accepted(["check", "--quick", "--devices", "0,1", "--expect", "2", "--force", "--output", "/tmp/run.json"])  # noqa: S108
    assert_accepted(["export", "/tmp/run.json", "--format", "prometheus", "--output", "/tmp/run.prom"])  # noqa: S108
    texts = " ".join(script.read_text(encoding="utf-8") for script in SCRIPTS)
    assert '--devices "$gpus" --expect "${#list[@]}" --force --output "$run"' in texts
    assert 'export "$work/run.json" --format prometheus --output "$work/run.prom"' in texts
