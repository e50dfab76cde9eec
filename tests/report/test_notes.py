import pytest

from collbench.model.operations import Operation, Variant, Work
from collbench.report.text.frame import device_names, settings
from tests.builders import gpus


@pytest.mark.parametrize(
    ("work", "devices", "name"),
    [
        (Work(Operation.CE_READ), (1, 0), "GPU1 → GPU0"),
        (Work(Operation.CE_READ, Variant.STAGED), (1, 0), "GPU1 → GPU0"),
        (Work(Operation.SM_READ, Variant.BOTH_WAYS), (0, 2), "GPU0 ↔ GPU2"),
        (Work(Operation.SM_READ, Variant.ONE_TO_ALL), (1, 0, 2), "GPU1 → all others"),
        (Work(Operation.SM_READ, Variant.ALL_TO_ONE), (1, 0, 2), "all others → GPU1"),
        (Work(Operation.H2D_CE, Variant.HOST), (2,), "GPU2"),
        (Work(Operation.GATHER), (0, 1, 2), "GPU0, GPU1, GPU2"),
    ],
)
def test_places_are_named_as_the_work_uses_them(work: Work, devices: tuple[int, ...], name: str) -> None:
    assert device_names(gpus(3), work, devices) == name


def test_a_variable_that_nothing_reads_is_shown_with_the_one_that_was_probably_meant() -> None:
    environment = {"NCCL_PROTOO": "LL", "NCCL_ALGO": "Ring", "NCCL_FASTRAK_X": "1", "CUDA_MODULE_LOADING": "EAGER"}
    assert settings(environment) == (
        "CUDA_MODULE_LOADING=EAGER, NCCL_ALGO=Ring, NCCL_FASTRAK_X=1, "
        "NCCL_PROTOO=LL (not read; did you mean NCCL_PROTO?)"
    )
