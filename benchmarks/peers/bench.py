"""Runs collbench and the peers on this machine, saves everything that they print, and lists failed commands."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from . import outputs, runs

# No command of the benchmark takes a third of this on a healthy machine; a hung one must not use up the session.
_TIMEOUT_SECONDS = 300
# One thread per GPU, as in collbench's launch loop; no data check (it is not timed); five warm-up rounds.
_FLAGS = ("-g", "1", "-n", "20", "-w", "5", "-c", "0")

Members = tuple[int, ...]
_UNREADABLE = (OSError, ValueError, KeyError, TypeError)

Result = TypeVar("Result")


@dataclass(slots=True)
class Bench:
    """One session. `devices` are the GPUs as CUDA_VISIBLE_DEVICES and collbench's --devices name them, by index.

    `walls`: wall times in seconds by a command's name; `failures`: a line for each command without a result;
    `nccl`: the version of NCCL by the program that used it.
    """

    out: Path
    collbench: tuple[str, ...]
    nccl_tests: Path
    nvbandwidth: Path
    devices: tuple[str, ...]
    repeats: int
    failures: list[str] = field(default_factory=list)
    walls: dict[str, float] = field(default_factory=dict)
    nccl: dict[str, str] = field(default_factory=dict)
    _pairs: dict[str, runs.RunFile | None] = field(default_factory=dict)

    @property
    def all_gpus(self) -> Members:
        """Indices of all GPUs."""
        return tuple(range(len(self.devices)))

    def sets(self) -> tuple[Members, ...]:
        """Return the sets to measure: GPUs 0 and 1, and all GPUs where there are more."""
        return tuple(dict.fromkeys(((0, 1), self.all_gpus)))

    def run_nccl_tests(
        self,
        name: str,
        program: str,
        members: Members,
        *sizes: str,
        flags: Sequence[str] = _FLAGS,
        variables: Mapping[str, str] | None = None,
    ) -> dict[int, float] | None:
        """Return nccl-tests' out-of-place seconds by size; where it failed, add to `failures` and return None."""
        command = [str(self.nccl_tests / f"{program}_perf"), "-t", str(len(members)), *flags, *sizes]

        def parse(text: str) -> dict[int, float]:
            self.nccl["nccl-tests"] = outputs.nccl_version(text)
            return outputs.nccl_tests(text)

        return self._run_and_parse(name, command, self._visible(members) | dict(variables or {}), parse)

    def run_nvbandwidth(
        self, name: str, cases: Sequence[str], mebibytes: int, members: Members, *flags: str
    ) -> dict[str, dict[Members, float]] | None:
        """Return nvbandwidth's GB/s by case and members; where it failed, add to `failures` and return None."""
        command = [str(self.nvbandwidth), "-j", "-b", str(mebibytes), *flags, "-t", *cases]
        return self._run_and_parse(name, command, self._visible(members), outputs.nvbandwidth)

    def run_collbench(self, name: str, command: str, members: Members, *options: str) -> runs.RunFile | None:
        """Return collbench's run of a subcommand; where it failed, add to `failures` and return None."""
        file = self.out / "raw" / f"{name}.json"
        devices = ",".join(self.devices[i] for i in members)
        full_command = [*self.collbench, command, "--devices", devices, *options, "--force", "--output", str(file)]
        run = self._run_and_parse(name, full_command, {}, lambda _: runs.load(file))
        if run and run.nccl:
            self.nccl["collbench"] = run.nccl
        return run

    def pairs(self, number: int, members: Members | None = None) -> runs.RunFile | None:
        """Return the `number`th run, from 0, of `collbench pairs` with its defaults; the first call measures it.

        A run before the first of each set is thrown away: it loads files and the driver. `walls` has the wall times,
        by `pairs_name`.
        """
        members = members or self.all_gpus
        if pairs_name(members, 0) not in self._pairs:
            self.run_collbench(pairs_name(members, "discarded"), "pairs", members)
        name = pairs_name(members, number)
        if name not in self._pairs:
            self._pairs[name] = self.run_collbench(name, "pairs", members)
        return self._pairs[name]

    def _visible(self, members: Members) -> dict[str, str]:
        # collbench's --devices counts in nvidia-smi's order; CUDA's own may differ (docs/method/measuring.md 4).
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(self.devices[i] for i in members),
        }

    def _run_and_parse(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], parse: Callable[[str], Result]
    ) -> Result | None:
        """Run a command and return its parsed output; None where it failed or cannot be parsed."""
        printed = self._run(name, command, environment)
        if printed is None:
            return None
        try:
            return parse(printed)
        except _UNREADABLE as error:
            self.failures.append(f"{name}: cannot read its output: {error}")
            return None

    def _run(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> str | None:
        """Return what a command printed, None where it failed; save its output and its wall time."""
        raw = self.out / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        begin = time.perf_counter()
        status, printed, errors = _execute(command, {**os.environ, **environment})
        self.walls[name] = time.perf_counter() - begin
        (raw / f"{name}.txt").write_text(printed, encoding="utf-8")
        if errors:
            (raw / f"{name}.stderr").write_text(errors, encoding="utf-8")
        command_line = " ".join((*(f"{key}={value}" for key, value in environment.items()), *command))
        with (raw / "commands.txt").open("a", encoding="utf-8") as log:
            log.write(f"{self.walls[name]:.3f} s, {status}: {name}: {command_line}\n")
        print(f"{self.walls[name]:7.2f} s  {name}", flush=True)
        if status == "exit 0":
            return printed
        self.failures.append(f"{name}: `{command_line}`: {status}: {_last_line(errors or printed)}")
        return None


def pairs_name(members: Members, number: int | str) -> str:
    """Return the name of a run of `collbench pairs`, in file names and in `Bench.walls`."""
    return f"pairs-{len(members)}-gpus-{number}"


def _execute(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, str, str]:
    """Return how the command ended ("exit 0"), its standard output and its standard error."""
    try:
        # In a session of its own, so that a hung program can be killed with everything that it started.
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return "cannot start", "", str(error)
    try:
        printed, errors = process.communicate(timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"killed after {_TIMEOUT_SECONDS} s", "", ""
    finally:
        if process.poll() is None:  # also on Ctrl-C, which does not reach another session
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return f"exit {process.returncode}", printed, errors


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
