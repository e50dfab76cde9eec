import stat
from pathlib import Path as File

import pytest

from collbench.machine.nvidia_smi import LiveTools, parse_p2p, parse_topology, with_reported
from tests.builders import gpus, paths

DATA = File(__file__).parents[1] / "data" / "h200x4"


def program(folder: File, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an `nvidia-smi` of these shell lines before all others."""
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_both_texts_of_this_machine(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = (
        f'[ "$2" = -m ] && cat {DATA}/nvidia-smi-topo-m.txt\n[ "$2" = -p2p ] && cat {DATA}/nvidia-smi-topo-p2p-r.txt'
    )
    program(tmp_path, f"{answers}\nexit 0", monkeypatch)
    with LiveTools() as tools:
        reported = tools.with_reports(gpus(4), paths(4))
    assert {(path.tool_label, path.tool_peer_access) for path in reported} == {("NV18", ("OK", "OK"))}
    assert [path.devices for path in reported] == [path.devices for path in paths(4)]


@pytest.mark.parametrize(
    ("case", "body"),
    [
        ("it fails", "echo 'NVIDIA-SMI has failed'; exit 9"),
        ("it prints something else", "echo hello"),
        ("it prints no text", "printf '\\377\\376\\0'"),
    ],
)
def test_what_is_not_reported_stays_unknown(
    tmp_path: File, monkeypatch: pytest.MonkeyPatch, case: str, body: str
) -> None:
    program(tmp_path, body, monkeypatch)
    with LiveTools() as tools:
        assert tools.with_reports(gpus(2), paths(2)) == paths(2), case


def test_a_hanging_one_is_ended_and_costs_its_facts_alone(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "exec sleep 60", monkeypatch)
    with LiveTools(limit_s=0.0) as tools:
        assert tools.with_reports(gpus(2), paths(2)) == paths(2)


def test_without_the_program_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with LiveTools() as tools:
        assert tools.with_reports(gpus(2), paths(2)) == paths(2)


def test_statuses_go_by_nvidia_smis_index_and_keep_both_directions() -> None:
    topology = parse_topology("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tPIX\tSYS\nGPU1\tPIX\tX\tSYS\nGPU2\tSYS\tSYS\tX\n")
    peers = parse_p2p("\tGPU0\tGPU1\tGPU2\nGPU0\tX\tOK\tOK\nGPU1\tOK\tX\tGNS\nGPU2\tOK\tOK\tX\n")
    chosen = (gpus(3)[2], gpus(3)[1])
    (path,) = with_reported(chosen, paths(2), topology, peers)
    assert (path.tool_label, path.tool_peer_access) == ("SYS", ("OK", "GNS"))
