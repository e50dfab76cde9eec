"""The published description of the fabric file: schema and page agree with the code and with the shipped files."""

import dataclasses
import json
import pathlib
import re
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator, ValidationError

from collbench.model.errors import RunFileError
from collbench.sim import fabrics
from collbench.sim.fabrics import Fabric, FaultKind
from collbench.sim.network import Network, Transfer, shared_rates
from tests.sim import faults, random_fabrics
from tests.sim.made import fabric_text

DOCS = pathlib.Path(__file__).parents[2] / "docs"
SCHEMA: dict[str, Any] = json.loads((DOCS / "fabric-file.schema.json").read_text(encoding="utf-8"))
PAGE = (DOCS / "fabric-file.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```json\n(.*?)```", (DOCS / "quickstart.md").read_text(encoding="utf-8"), re.DOTALL)


def validate(text: str) -> None:
    Draft202012Validator(SCHEMA).validate(json.loads(text))


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_the_shipped_files_the_example_and_made_up_machines_follow_it() -> None:
    shipped = pathlib.Path(fabrics.__file__).parent / "machines"
    for name in fabrics.names():
        validate((shipped / f"{name}.json").read_text(encoding="utf-8"))
    validate(EXAMPLE)
    for seed in range(30):
        rng = np.random.default_rng(seed)
        fabric = random_fabrics.make(rng)
        possible = faults.possible(fabric)
        validate(fabric_text(faults.with_fault(fabric, possible[seed % len(possible)], rng)[0]))


def test_the_pages_example_is_read() -> None:
    fabric = fabrics.loads(EXAMPLE, "the page")
    assert (fabric.name, len(fabric.gpus), fabric.faults[0].kind) == ("two-cards", 2, FaultKind.SLOW_LINK)


def test_a_file_with_a_base_is_that_machine_with_what_it_says() -> None:
    (text,) = re.findall(r"^    (\{.*?\}\]\})$", PAGE, re.DOTALL | re.MULTILINE)
    validate(text)
    base = fabrics.load("dgx-1v")
    made = fabrics.loads(text, "the page")
    assert made == dataclasses.replace(base, name="dgx-slow", faults=made.faults)
    assert [(fault.kind, fault.devices, fault.factor) for fault in made.faults] == [(FaultKind.SLOW_GPU, (2,), 0.6)]
    assert SCHEMA["properties"]["base"]["enum"] == [*fabrics.names()]
    for field, value in (("base", "dgx"), ("base", []), ("name", ""), ("gpu", [])):
        damaged = json.dumps({**json.loads(text), field: value})
        with pytest.raises(ValidationError):
            validate(damaged)
        with pytest.raises(RunFileError):
            fabrics.loads(damaged, "damaged")


def test_the_pages_slow_uplink_root_and_sockets_slow_a_machine() -> None:
    """Each is a field of a file with a base; copies between the first GPUs below different parts get its rate."""
    (block,) = re.findall(r"^    (\"bridges\": .*?\n    \"sockets\": .*?)$", PAGE, re.DOTALL | re.MULTILINE)
    fields = [json.loads("{" + field + "}") for field in re.split(r"\n    (?=\")", block)]
    assert [list(field) for field in fields] == [["bridges"], ["host_bridges"], ["sockets"]]
    for base, field, pair, gbs in zip(
        ("pcie-4-two-bridges", "pcie-4-two-bridges", "dgx-1v"), fields, ((0, 2), (0, 2), (0, 5)), (9, 6, 6), strict=True
    ):
        text = json.dumps({**fabrics.FORMAT.head, "name": "slow", "base": base, **field})
        validate(text)
        (slow,), (fast,) = (
            shared_rates(Network(fabric), [Transfer(*pair, staged=base == "dgx-1v")])
            for fabric in (fabrics.loads(text, "it"), fabrics.load(base))
        )
        assert slow <= gbs < fast


@pytest.mark.parametrize(
    ("title", "change"),
    [
        ("another format", {"format": "other"}),
        ("no gpus", {"gpus": []}),
        ("an unknown field", {"gpu": []}),
        ("an unknown fault", {"faults": [{"kind": "rust"}]}),
        ("a rate of zero", {"bridges": [{"name": "switch0", "parent": "cpu0", "up_gbs": 0, "down_gbs": 1}]}),
        ("a pair with itself", {"unreachable": [[1, 1]]}),
    ],
)
def test_schema_and_reader_refuse_the_same(title: str, change: dict[str, Any]) -> None:
    damaged = json.dumps({**json.loads(EXAMPLE), **change})
    with pytest.raises(ValidationError):
        validate(damaged)
    with pytest.raises(RunFileError):
        fabrics.loads(damaged, "damaged")


def fields(kind: Any) -> Iterator[tuple[str, dict[str, bool]]]:
    """Yield each dataclass that a Fabric holds, with its fields and whether they are required."""
    yield kind.__name__.lower(), {f.name: f.default is dataclasses.MISSING for f in dataclasses.fields(kind)}
    for hint in typing.get_type_hints(kind).values():
        for part in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(part):
                yield from fields(part)


def described() -> dict[str, dict[str, bool]]:
    parts = {**SCHEMA["$defs"], "fabric": SCHEMA}
    return {
        name: {
            field: field in (*part["required"], *part.get("then", part)["required"])
            for field in part["properties"]
            if not field.startswith("format") and field != "base"
        }
        for name, part in parts.items()
    }


def test_the_schema_has_the_models_fields_and_asks_for_the_same() -> None:
    assert described() == dict(fields(Fabric))


def test_the_schemas_defaults_are_the_models() -> None:
    reported = {name: part["default"] for name, part in SCHEMA["$defs"]["delays"]["properties"].items()}
    assert reported == {
        field.name: field.default for field in dataclasses.fields(type(fabrics.loads(EXAMPLE, "").delays))
    }


def test_schema_and_page_know_every_fault() -> None:
    assert SCHEMA["$defs"]["fault"]["properties"]["kind"]["enum"] == [kind.value for kind in FaultKind]
    assert [kind.value for kind in FaultKind if f"| `{kind.value}` |" not in PAGE] == []
