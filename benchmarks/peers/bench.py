"""Runs collbench and the peers on this machine, keeps all that they print, and notes what failed by name."""

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

# No command of the benchmark takes a third of this on a healthy machine; a hung one must not eat the sitting.
_PATIENCE_SECONDS = 300
# One thread a GPU as collbench's launch loop has it, no data check (it is not timed), five warm-up rounds.
_FLAGS = ("-g", "1", "-n", "20", "-w", "5", "-c", "0")

Members = tuple[int, ...]
_UNREADABLE = (OSError, ValueError, KeyError, TypeError)

Result = TypeVar("Result")


@dataclass(slots=True)
class Bench:
    """One sitting. `devices` are what CUDA_VISIBLE_DEVICES and collbench's --devices call the GPUs, by position.

    `walls` are wall times in seconds by a command's name, `failures` one line for each command that gave nothing,
    `nccl` the version of NCCL by the program that used it.
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
    def everything(self) -> Members:
        """All GPUs, by position."""
        return tuple(range(len(self.devices)))

    def sets(self) -> tuple[Members, ...]:
        """Return GPUs 0 and 1, and all, once where that is the same."""
        return tuple(dict.fromkeys(((0, 1), self.everything)))

    def run_nccl_tests(
        self,
        name: str,
        program: str,
        members: Members,
        *sizes: str,
        flags: Sequence[str] = _FLAGS,
        variables: Mapping[str, str] | None = None,
    ) -> dict[int, float] | None:
        """Return nccl-tests' out-of-place seconds by size, None (and a failure noted) without."""
        command = [str(self.nccl_tests / f"{program}_perf"), "-t", str(len(members)), *flags, *sizes]

        def reader(text: str) -> dict[int, float]:
            self.nccl["nccl-tests"] = outputs.nccl_version(text)
            return outputs.nccl_tests(text)

        return self._read(name, command, self._visible(members) | dict(variables or {}), reader)

    def run_nvbandwidth(
        self, name: str, cases: Sequence[str], mebibytes: int, members: Members, *flags: str
    ) -> dict[str, dict[Members, float]] | None:
        """Return nvbandwidth's GB/s by case and members, None (and a failure noted) without."""
        command = [str(self.nvbandwidth), "-j", "-b", str(mebibytes), *flags, "-t", *cases]
        return self._read(name, command, self._visible(members), outputs.nvbandwidth)

    def run_collbench(self, name: str, command: str, members: Members, *options: str) -> runs.RunFile | None:
        """Return collbench's run of a subcommand, None (and a failure noted) without."""
        file = self.out / "raw" / f"{name}.json"
        devices = ",".join(self.devices[i] for i in members)
        whole = [*self.collbench, command, "--devices", devices, *options, "--force", "--output", str(file)]
        run = self._read(name, whole, {}, lambda _: runs.load(file))
        if run and run.nccl:
            self.nccl["collbench"] = run.nccl
        return run

    def pairs(self, number: int, members: Members | None = None) -> runs.RunFile | None:
        """Return the `number`th run, from 0, of `collbench pairs` with its defaults, measured when first asked for.

        Before the first of a set comes one that is thrown away: it pays for cold files and the driver. `walls` has
        their wall times, by `pairs_name`.
        """
        members = members or self.everything
        if pairs_name(members, 0) not in self._pairs:
            self.run_collbench(pairs_name(members, "discarded"), "pairs", members)
        name = pairs_name(members, number)
        if name not in self._pairs:
            self._pairs[name] = self.run_collbench(name, "pairs", members)
        return self._pairs[name]

    def _visible(self, members: Members) -> dict[str, str]:
        # nvidia-smi's order, which collbench's --devices means; CUDA's own may differ (docs/method.md 2.5).
        return {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(self.devices[i] for i in members),
        }

    def _read(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], reader: Callable[[str], Result]
    ) -> Result | None:
        """Run a command and return what `reader` makes of its output."""
        printed = self._run(name, command, environment)
        if printed is None:
            return None
        try:
            return reader(printed)
        except _UNREADABLE as error:
            self.failures.append(f"{name}: cannot read its output: {error}")
            return None

    def _run(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> str | None:
        """Return what a command printed, None where it failed; keep its output and its wall time."""
        raw = self.out / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        begin = time.perf_counter()
        status, printed, errors = _execute(command, {**os.environ, **environment})
        self.walls[name] = time.perf_counter() - begin
        (raw / f"{name}.txt").write_text(printed, encoding="utf-8")
        if errors:
            (raw / f"{name}.stderr").write_text(errors, encoding="utf-8")
        words = " ".join((*(f"{key}={value}" for key, value in environment.items()), *command))
        with (raw / "commands.txt").open("a", encoding="utf-8") as log:
            log.write(f"{self.walls[name]:.3f} s, {status}: {name}: {words}\n")
        print(f"{self.walls[name]:7.2f} s  {name}", flush=True)
        if status == "exit 0":
            return printed
        self.failures.append(f"{name}: `{words}`: {status}: {_last_line(errors or printed)}")
        return None


def pairs_name(members: Members, number: int | str) -> str:
    """Return the name of a run of `collbench pairs`, as files and wall times have it."""
    return f"pairs-{len(members)}-gpus-{number}"


def _execute(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, str, str]:
    """Return how it ended ("exit 0"), its standard output and error."""
    try:
        # A session of its own, so that a hung program goes with all that it started.
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
        printed, errors = process.communicate(timeout=_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"killed after {_PATIENCE_SECONDS} s", "", ""
    finally:
        if process.poll() is None:  # also on Ctrl-C, which does not reach another session
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return f"exit {process.returncode}", printed, errors


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
