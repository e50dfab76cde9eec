"""Traces as other tools write them, from an encoder that shares no code with the readers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def observed(nodes: Sequence[dict[str, Any]], groups: Sequence[dict[str, Any]] = ()) -> bytes:
    """Return an execution trace of torch with these nodes, and one that lists its process groups."""
    listed = {"id": 3, "name": "## process_group:init ##", "inputs": {"values": [json.dumps(list(groups))]}}
    fields = {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "2026-11-23 04:11:58", "start_ts": 29776632}
    return json.dumps({**fields, "nodes": [listed, *nodes], "finish_ts": 29776633}).encode()


def noted(
    name: str,
    in_elements: int,
    out_elements: int,
    *,
    number: int = 10,
    rank: int = 0,
    group: str = "0",
    dtype: str = "float",
    splits: Sequence[int] = (),
    places: tuple[int, int, int] = (0, 1, 4),
) -> dict[str, Any]:
    """Return a node about a call of NCCL: arguments in the order of ParamCommsUtils.hpp."""
    tensors = [[[5, 6, 0, elements, 4, "cuda:0"]] for elements in (in_elements, out_elements)]
    values = [tensors[0], [number, False], [group, "default_pg"], rank, name, list(splits), [], *places, True]
    types = [f"GenericList[Tensor({dtype})]", "Tuple[Int,Bool]", "Tuple[String,String]", "Int", "String"]
    inputs, outputs = {"values": values, "types": types}, {"values": [tensors[1]], "types": types[:1]}
    attributes = [{"name": "rf_id", "type": "uint64", "value": number}]
    return {"id": number, "name": "record_param_comms", "inputs": inputs, "outputs": outputs, "attrs": attributes}
