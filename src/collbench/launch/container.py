"""torchrun inside an Apptainer image: the words around its command, and what must reach inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Where an image sees the folder of collbench.launch, whose small programs stand between torchrun and a rank.
SHIMS = "/collbench-launch"
# Apptainer hands the environment on unless a site or APPTAINER_CLEANENV says otherwise: these must get inside anyway,
# unchanged. Without the first three a job could use NVLink multicast that its user had forbidden.
_MUST_REACH = ("NCCL_", "NVSHMEM_", "TORCH_SYMM_MEM_", "TORCH_DISABLE_SHARE_RDZV_", "PET_")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def wrap(
    command: Sequence[str], image: str, environment: Mapping[str, str], *, apptainer: str, shims: str
) -> list[str]:
    """Return `command` as one that runs in the image with the GPUs' driver (--nv), on the devices of `environment`.

    `shims` is the folder here that the image sees, read-only, at SHIMS; "" for none. One --env for each variable: only
    so may its value hold commas [apptainer 1.1, PR 413].
    """
    inside = {name: environment[name] for name in sorted(environment) if name.startswith(_MUST_REACH)}
    inside[_VISIBLE] = environment.get(_VISIBLE, "")
    words = [apptainer, "exec", "--nv"]
    for name, value in inside.items():
        words += ["--env", f"{name}={value}"]
    return [*words, *(["--bind", f"{shims}:{SHIMS}:ro"] if shims else []), image, *command]
