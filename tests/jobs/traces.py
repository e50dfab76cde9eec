"""Traces as other tools write them, from an encoder that shares no code with the readers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def inspected(
    function: str,
    number: int,
    size_bytes: int,
    *,
    rank: int = 0,
    ranks: int = 2,
    communicator: str = "0x7f8c496ae9f661",
    name: str = "unknown",
    pid: int = 100,
    peer: int | None = None,
    start: int | None = None,
    lasted: int = 10,
    source: str = "kernel_gpu",
) -> bytes:
    """Return a line of NCCL Inspector's, with the keys and in the order of inspector_json.cc."""
    kind = "coll" if peer is None else "p2p"
    call: dict[str, Any] = {kind: function, f"{kind}_sn": number}
    call |= {} if peer is None else {"p2p_peer": peer}
    call |= {f"{kind}_msg_size_bytes": size_bytes, f"{kind}_exec_time_us": lasted, f"{kind}_timing_source": source}
    call |= {f"{kind}_algobw_gbs": 1.5, f"{kind}_busbw_gbs": 1.5}
    if start is not None:
        call["event_trace_ts"] = {f"{kind}_start_ts": start, f"{kind}_stop_ts": start + 3, "kernel_events": []}
    metadata = {"inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "nccl_profiler_interface"}
    metadata |= {"dump_timestamp_us": 1748030377748202, "hostname": "node", "pid": pid}  # type: ignore[dict-item]
    header = {"id": communicator, "comm_name": name, "rank": rank, "n_ranks": ranks, "nnodes": 1}
    return json.dumps({"header": header, "metadata": metadata, f"{kind}_perf": call}).encode() + b"\n"


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
