"""What GPUs copy, real or simulated: the operations of each variant, and the transfers of a group."""

from __future__ import annotations

from typing import TypeAlias

from collbench.model.operations import Operation, Variant, Work

PEER_COPIES = (Operation.CE_WRITE, Operation.CE_READ, Operation.SM_WRITE, Operation.SM_READ)
HOST_COPIES = (Operation.H2D_CE, Operation.D2H_CE, Operation.H2D_SM, Operation.D2H_SM)
_FROM_HOST = (Operation.H2D_CE, Operation.H2D_SM)

Transfer: TypeAlias = tuple[int | None, int | None]  # source and destination; None is host memory


def gpu_operations(variant: Variant) -> tuple[Operation, ...]:
    """Return the copies that GPUs do in a variant, and with the plain or host variant the pointer chase."""
    if variant is Variant.HOST:
        return (*HOST_COPIES, Operation.CHASE)
    if variant.host_memory:
        return HOST_COPIES
    if variant is Variant.STAGED:
        return (Operation.CE_WRITE,)
    if variant is Variant.LOCAL:  # the GPU writes what it reads
        return (Operation.CE_WRITE, Operation.SM_WRITE)
    return (*PEER_COPIES, Operation.CHASE) if variant is Variant.PLAIN else PEER_COPIES


def transfers_of(work: Work, members: tuple[int, ...]) -> list[Transfer]:
    """Return a group's transfers; of a pointer chase as (reader, owner of the memory).

    Of copies with host memory they are the first member's: its timed one, then one in the opposite direction if the
    variant has it.
    """
    first, *rest = members
    if work.variant.host_memory:
        timed: Transfer = (None, first) if work.operation in _FROM_HOST else (first, None)
        return [timed, (timed[1], timed[0])] if work.variant.opposed else [timed]
    if work.variant is Variant.LOCAL:
        return [(first, first)]
    if work.variant is Variant.BOTH_WAYS:
        return [(first, rest[0]), (rest[0], first)]
    if work.variant is Variant.ALL_TO_ONE:
        return [(other, first) for other in rest]
    return [(first, other) for other in rest]
