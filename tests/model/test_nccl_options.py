"""What collectives may ask of NCCL, and which NCCL has it."""

from __future__ import annotations

import re

import pytest

from collbench.model.errors import UsageError
from collbench.model.nccl_options import NCCL_CONFIG_FIELDS, NcclOptions, checked_config, parse_config
from collbench.model.operations import Registration


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("maxCTAs=8", {"maxCTAs": 8}),
        ("CTAPolicy=2, maxCTAs = 16", {"CTAPolicy": 2, "maxCTAs": 16}),
        ("minCTAs=4,maxCTAs=4", {"minCTAs": 4, "maxCTAs": 4}),
        ("trafficClass=0", {"trafficClass": 0}),
        ("graphStreamOrdering=0,graphUsageMode=1", {"graphStreamOrdering": 0, "graphUsageMode": 1}),
    ],
)
def test_a_config_is_read(text: str, config: dict[str, int]) -> None:
    assert parse_config(text) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a field and a number"),
        ("maxCTAs", "is not a field and a number"),
        ("maxCTAs=-1", "is not a field and a number"),
        ("maxCTAs=1,maxCTAs=2", "names maxCTAs twice"),
        ("maxctas=1", "maxctas: no such field; choose from cgaClusterSize"),
        ("blocking=0", "blocking: no such field"),
        ("maxCTAs=3000000000", "is not a whole number"),
        ("minCTAs=2", "minCTAs also needs maxCTAs"),
        ("graphStreamOrdering=0", "graphStreamOrdering=0 also needs graphUsageMode=0 or 1"),
        ("graphStreamOrdering=0,graphUsageMode=2", "graphStreamOrdering=0 also needs graphUsageMode=0 or 1"),
        ("minCTAs=8,maxCTAs=4", "minCTAs also needs maxCTAs, at least as large"),
    ],
)
def test_a_config_that_nccl_would_not_take_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse_config(text)


def test_python_users_get_the_same_message() -> None:
    with pytest.raises(UsageError, match="maxCTAs=True is not a whole number"):
        checked_config({"maxCTAs": True})


@pytest.mark.parametrize(
    ("options", "version", "message"),
    [
        (NcclOptions((Registration.BUFFER,)), 21806, "--registration buffer needs NCCL 2.19, and this is 2.18.6"),
        (NcclOptions((Registration.WINDOW,)), 22602, "--registration window needs NCCL 2.27, and this is 2.26.2"),
        (NcclOptions(config={"trafficClass": 1}), 22501, "--nccl-config trafficClass=1 needs NCCL 2.26"),
        (NcclOptions(config={"CTAPolicy": 2}), 22707, "--nccl-config CTAPolicy=2 needs NCCL 2.28"),
        (NcclOptions(config={"nChannelsPerNetPeer": 2}), 22707, "needs NCCL 2.28, and this is 2.27.7"),
        (NcclOptions(config={"graphUsageMode": 2}), 22809, "graphUsageMode=2 needs NCCL 2.29, and this is 2.28.9"),
        (NcclOptions(config={"numRmaCtx": 1}), 22809, "numRmaCtx=1 needs NCCL 2.29"),
        (NcclOptions(config={"maxP2pPeers": 1}), 22907, "maxP2pPeers=1 needs NCCL 2.30, and this is 2.29.7"),
        (NcclOptions(config={"graphStreamOrdering": 1}), 23004, "needs NCCL 2.30.5, and this is 2.30.4"),
    ],
)
def test_an_older_nccl_is_refused(options: NcclOptions, version: int, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        options.check(version)
    options.check(23007)


def test_options_of_every_nccl_need_no_version() -> None:
    NcclOptions(config={"maxCTAs": 1, "splitShare": 1}).check(21801)
    NcclOptions(config={"CTAPolicy": 1}).check(22703)
    assert len(NCCL_CONFIG_FIELDS) == 14
