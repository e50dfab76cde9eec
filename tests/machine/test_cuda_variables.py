"""Which variables of CUDA and torch a run records, and which of them are refused before anything is measured."""

from __future__ import annotations

import pytest

from collbench.machine.variables import recorded, refuse
from collbench.model.errors import ExitStatus, UsageError

SET = {
    "NCCL_DEBUG": "INFO",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "CUDA_MODULE_LOADING": "EAGER",
    "CUDA_VISIBLE_DEVICES": "GPU-8932f937",
    "CUDA_HOME": "/home/somebody/cuda",
    "MY_NCCL_X": "1",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_TOKEN": "hush",
}


def test_what_changes_figures_is_recorded_and_nothing_private() -> None:
    of_cuda = {name: SET[name] for name in ("NCCL_DEBUG", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING")}
    assert recorded(SET) == of_cuda
    assert recorded(SET, torch=True) == of_cuda | {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


@pytest.mark.parametrize(
    ("environment", "refusing"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, ("", "overlap", "replay")),
        ({"CUDA_LAUNCH_BLOCKING": "0"}, ()),
        ({"CUDA_LAUNCH_BLOCKING": ""}, ()),
        ({"CUDA_DISABLE_PTX_JIT": "1"}, ()),  # collbench's PTX loads anyway [2 × H100]
        ({"CUDA_DISABLE_PTX_JIT": "0"}, ()),
        ({"CUDA_FORCE_PTX_JIT": "1"}, ()),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, ("overlap",)),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "16"}, ()),
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}, ("overlap", "replay")),  # torch asks only whether it is set
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, ()),
        (SET | {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, ()),
    ],
)
def test_only_what_makes_figures_false_is_refused(environment: dict[str, str], refusing: tuple[str, ...]) -> None:
    for command in ("", "overlap", "replay"):  # "": of the main house
        if command not in refusing:
            refuse(command, environment)
            continue
        with pytest.raises(UsageError, match=f"{next(iter(environment))}=.*unset ") as caught:
            refuse(command, environment)
        assert caught.value.exit_code is ExitStatus.BAD_INPUT
