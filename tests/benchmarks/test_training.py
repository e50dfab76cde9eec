"""The training benchmarks on CPU cores: GPT-2's strategies, the images, and the jobs that scaling.py starts."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from benchmarks.training import images

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
TINY = ("--tiny", "--batch", "2", "--sequence", "32", "--steps", "4", "--warmup", "1")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the benchmarks' scripts importable, as they import each other."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return BENCHMARKS


def python(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def torchrun(script: str, *words: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *launch, str(BENCHMARKS / script), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)


def losses(done: subprocess.CompletedProcess[str]) -> list[float]:
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"loss=([\d.]+)$", done.stdout, re.MULTILINE)]


def words_of(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("summary ")]
    return dict(word.partition("=")[::2] for word in line.split()[1:])


@pytest.mark.timeout(240)
def test_ddp_and_fsdp_are_the_same_training() -> None:
    ddp, fsdp = (torchrun("gpt2_ddp.py", "--strategy", name, "--dtype", "fp32", *TINY) for name in ("ddp", "fsdp"))
    assert losses(ddp) == pytest.approx(losses(fsdp), abs=2e-3)
    assert len(losses(ddp)) == 5  # a warm-up step and four
    assert len(re.findall(r"^step \d+ step_time=[\d.]+ms loss=", ddp.stdout, re.MULTILINE)) == 4
    assert words_of(ddp)["same_model"] == words_of(fsdp)["same_model"] == "yes"
    assert words_of(ddp)["ranks"] == "2"
    for words in map(words_of, (ddp, fsdp)):
        parts = [
            float(words[f"host_{part}"].removesuffix("ms")) for part in ("forward", "backward", "optimizer", "time")
        ]
        assert min(parts) > 0
        assert parts[-1] <= float(words["median_step"].removesuffix("ms"))


def test_the_host_is_timed_by_part_without_the_wait_for_the_device(
    scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpt2, here = importlib.import_module("gpt2_ddp"), importlib.import_module("training.ranks").Ranks
    clock = [0.0]

    class Slow(torch.nn.Linear):
        """Takes 3 s to launch forward, 5 s backward."""

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            clock[0] += 3
            loss = super().forward(inputs).square().mean()
            loss.register_hook(lambda _: clock.__setitem__(0, clock[0] + 5))  # type: ignore[no-untyped-call]
            return loss

    def step(*_: object) -> None:
        clock[0] += 2

    monkeypatch.setattr(gpt2.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    monkeypatch.setattr(here, "finish", lambda _: clock.__setitem__(0, clock[0] + 7))  # the device is done 7 s later
    model = Slow(4, 1)
    options = gpt2.arguments(["--strategy", "none", "--warmup", "1"])
    ranks = here(0, 1, torch.device("cpu"))
    (one, two) = gpt2.train(model, torch.ones(3, 2, 4), options, ranks, gpt2.Messages(model, wanted=False))
    assert one == two == gpt2.Step(17, gpt2.Host(3, 5, 2))
    assert gpt2.timing([one, two], tokens=170) == (
        "median_step=17000.00ms tokens_per_second=10 "
        "host_time=10000.00ms host_forward=3000.00ms host_backward=5000.00ms host_optimizer=2000.00ms"
    )


@pytest.mark.timeout(240)
def test_ranks_that_never_exchange_gradients_end_apart() -> None:
    local = torchrun("gpt2_ddp.py", "--strategy", "local", *TINY)
    assert local.returncode == 0, local.stderr
    assert words_of(local)["same_model"] == "no"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "--strategy ddp needs torchrun"),
        (("--strategy", "none", "--profile-buckets"), "strategy none sends no gradients"),
        (("--strategy", "none", "--steps", "0"), "--steps"),
        (("--strategy", "none", "--sequence", "2000"), "1024 positions"),
    ],
)
def test_what_gpt2_ddp_cannot_run_is_one_line(words: tuple[str, ...], complaint: str) -> None:
    done = python("gpt2_ddp.py", "--tiny", *words)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("title", "before", "after", "same", "strategy", "fails"),
    [
        ("a fall of the loss", 5.0, 4.0, True, "ddp", False),
        ("no fall", 5.0, 5.0, True, "ddp", True),
        ("a loss that is no number", 5.0, float("nan"), True, "ddp", True),
        ("ranks that end apart", 5.0, 4.0, False, "ddp", True),
        ("FSDP's ranks that end apart", 5.0, 4.0, False, "fsdp", True),
        ("ranks that were left alone", 5.0, 4.0, False, "local", False),
        ("ranks that should have been left alone", 5.0, 4.0, True, "local", True),
    ],
)
def test_a_job_that_cannot_have_trained_fails(
    scripts: Path, title: str, before: float, after: float, same: bool, strategy: str, fails: bool
) -> None:
    gpt2 = importlib.import_module("gpt2_ddp")
    ranks = importlib.import_module("training.ranks").Ranks(0, 2, torch.device("cpu"))
    try:
        gpt2.judge(before, after, same=same, strategy=strategy, here=ranks)
    except gpt2.JobError:
        assert fails, title
    else:
        assert not fails, title


def test_one_bit_in_one_parameter_is_seen(scripts: Path) -> None:
    ranks = importlib.import_module("training.ranks")
    for dtype in (torch.float32, torch.bfloat16):
        model = torch.nn.Linear(3, 2).to(dtype)
        before = ranks.checksums(model)
        with torch.no_grad():
            model.weight.view(torch.int16 if dtype is torch.bfloat16 else torch.int32)[1, 2] ^= 1
        assert (ranks.checksums(model) != before).tolist() == [True, False]


def test_images_come_from_the_seed_and_held_out_ones_are_others() -> None:
    first, again, held_out = (images.make(50, seed=3, held_out=held_out) for held_out in (False, False, True))
    assert torch.equal(first.pixels, again.pixels)
    assert torch.equal(first.classes, again.classes)
    assert not torch.equal(first.pixels, held_out.pixels)
    assert not torch.equal(first.pixels, images.make(50, seed=4).pixels)
    assert first.pixels.shape == (50, 3, 32, 32)
    assert first.pixels.std().item() == pytest.approx(1, abs=0.01)


def test_an_images_class_is_the_one_whose_texture_it_shows_most() -> None:
    shown = images.make(60, seed=0)
    textures = images._textures(torch.Generator().manual_seed(0)).flatten(0, 1)  # (classes × textures, 3, 32, 32)
    best = torch.full((60, images.CLASSES * images.TEXTURES), -torch.inf)
    for flipped in (textures, textures.flip(3)):
        # the correlation at every shift around the edge at once, by Fourier transforms
        spectrum = torch.einsum("icyx,tcyx->ityx", torch.fft.fft2(shown.pixels), torch.fft.fft2(flipped).conj())
        best = torch.maximum(best, torch.fft.ifft2(spectrum).real.amax(dim=(2, 3)))
    right = best.argmax(dim=1) // images.TEXTURES == shown.classes
    # Nine tenths show their own texture the most: OVERLAY is from 0.1 to 1.1. So no network gets all, as on CIFAR-10.
    assert 0.75 < right.float().mean() < 0.97


@pytest.mark.parametrize("steps", [1, 2, 7, 10, 2000])
def test_the_learning_rate_rises_to_its_peak_and_falls_to_nothing(scripts: Path, steps: int) -> None:
    classify = importlib.import_module("training.classify")
    rates = [classify.rate(step, steps=steps) for step in range(steps)]
    peak = rates.index(max(rates))
    assert rates[peak] == 1
    assert peak <= max(1, steps / 10)
    assert all(a < b for a, b in pairwise(rates[: peak + 1]))
    assert all(a > b for a, b in pairwise(rates[peak:]))
    assert rates[-1] > 0
    assert classify.rate(steps, steps=steps) == 0  # LambdaLR asks for one more than there are steps


def test_ranks_share_each_step_of_the_same_order(scripts: Path) -> None:
    classify, ranks = importlib.import_module("training.classify"), importlib.import_module("training.ranks")

    def steps(rank: int, world_size: int, batch: int) -> list[torch.Tensor]:
        options = classify.arguments(["--batch", str(batch), "--epochs", "2"])
        return list(classify.order(100, options, ranks.Ranks(rank, world_size, torch.device("cpu"))))

    alone, shared = steps(0, 1, 24), [steps(rank, 3, 8) for rank in range(3)]
    assert len(alone) == 8  # two epochs of four steps of 24: four images of 100 are left out
    for whole, parts in zip(alone, zip(*shared, strict=True), strict=True):
        assert torch.equal(whole, torch.cat(parts))
    assert len(set(torch.cat(alone[:4]).tolist())) == 96
    assert not torch.equal(alone[0], alone[4]), "each epoch has an order of its own"


@pytest.mark.timeout(240)
def test_a_small_network_learns_on_two_ranks(tmp_path: Path) -> None:
    words = ("--tiny", "--images", "960", "--held-out", "500", "--epochs", "4", "--json", str(tmp_path / "a.json"))
    done = torchrun("training/classify.py", *words)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert (result["gpus"], result["batch_per_gpu"], result["global_batch"], result["steps"]) == (2, 96, 192, 20)
    assert result["accuracy"] > 0.13  # ten classes, 500 images: chance has 0.1 and a deviation of 0.013


# Answers as classify.py would: 40 s on one GPU, that over K on K, accuracies by seed; fails for three.
FAKE_COLLBENCH = """#!/bin/sh
echo "$@" >> '{log}'
while [ $# -gt 0 ]; do
    case $1 in
    --auto-select) gpus=$2 ;;
    --devices) gpus=$(echo "$2" | tr , '\\n' | wc -l) ;;
    --batch) batch=$2 ;;
    --seed) seed=$2 ;;
    --json) file=$2 ;;
    esac
    shift
done
[ "$gpus" = 3 ] && exit 7
printf '{{"gpus": %d, "batch_per_gpu": %d, "global_batch": 96, "steps": 10, "seconds": %d, "accuracy": 0.5%d, ' \\
    "$gpus" "$batch" "$((40 / gpus))" "$seed" > "$file"
echo '"held_out": 100}}' >> "$file"
"""


ALONE = ["per-gpu 1 40", "raised 1 40", "global 1 40", "one-gpu 1 40"]


@pytest.mark.parametrize(
    ("gpus", "status", "rows"),
    [
        ("2,1", 0, [*ALONE, "per-gpu 2 20", "raised 2 20", "global 2 20", "one-gpu 1 40"]),
        ("1,3", 1, [*ALONE, "one-gpu 1 40"]),
    ],
)
def test_scaling_starts_each_job_once(tmp_path: Path, gpus: str, status: int, rows: list[str]) -> None:
    fake = tmp_path / "collbench"
    fake.write_text(FAKE_COLLBENCH.format(log=tmp_path / "log"), encoding="utf-8")
    fake.chmod(0o755)
    done = python("scaling.py", "--out", str(tmp_path / "out.json"), "--gpus", gpus, "--collbench", str(fake))
    assert done.returncode == status, done.stderr
    data = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert [f"{row['series']} {row['gpus']} {row['seconds']}" for row in data["rows"]] == rows
    started = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    second = "2" if status == 0 else "3"
    asked = [
        re.search(r"train --auto-select (\d) .*classify.py .*--batch (\d+) .*--learning-rate ([\d.]+)", line)
        for line in started
    ]
    shared, large = (str(number) for number in (96 // int(second), 96 * int(second)))
    raised = {"2": "0.00141421", "3": "0.00173205"}[second]
    rates = ["0.001", "0.001", raised, "0.001", "0.001"]
    sizes = [("1", "96"), (second, "96"), (second, "96"), (second, shared), ("1", large)]
    groups = [(*size, rate) for size, rate in zip(sizes, rates, strict=True)]
    assert [found and found.groups() for found in asked] == groups
    assert ("exit status 7" in done.stderr) is (status == 1)
    assert "| images per GPU | 1 | 96 | 10 | 40.00 | 1.00 | 100% |" in done.stdout


def test_other_seeds_run_side_by_side_for_their_accuracy_alone(tmp_path: Path) -> None:
    fake = tmp_path / "collbench"
    fake.write_text(FAKE_COLLBENCH.format(log=tmp_path / "log"), encoding="utf-8")
    fake.chmod(0o755)
    words = ("--gpus", "1,2", "--seeds", "4,0,7", "--collbench", str(fake))
    done = python("scaling.py", "--out", str(tmp_path / "out.json"), *words)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["rows"]
    assert [row["accuracies"] for row in rows] == [[0.54, 0.50, 0.57]] * 8
    started = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    found = [re.search(r"train (\S+ \S+) .*--batch (\d+) --seed (\d)", line) for line in started]
    asked = [one.groups() for one in found if one]
    jobs = ["96", "96", "96", "48", "192"]
    assert [(batch, seed) for _, batch, seed in asked[:5]] == [(batch, "4") for batch in jobs]
    assert all(on.startswith("--auto-select") for on, _, _ in asked[:5])
    places = ["--devices 0", "--devices 1,0", "--devices 1,0", "--devices 1,0", "--devices 1"]
    for seed, these in (("0", asked[5:10]), ("7", asked[10:])):  # started at once, so written in any order
        assert sorted(these) == sorted((on, batch, seed) for on, batch in zip(places, jobs, strict=True))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--gpus", "two"), "--gpus two is no list of numbers"),
        (("--gpus", "0,1"), "1 or more"),
        (("--seeds", "0,-1"), "--seeds 0,-1: 0 or more each"),
        (("--steps-of", "1,many"), "--steps-of 1,many is no list of numbers"),
        (("--gpus", "1,5"), "--batch 96 cannot be shared by 5 GPUs"),
        (("--gpus", "1", "--collbench", "/nonexistent/collbench"), "/nonexistent/collbench"),
    ],
)
def test_what_scaling_cannot_run_is_one_line(tmp_path: Path, words: tuple[str, ...], complaint: str) -> None:
    done = python("scaling.py", "--out", str(tmp_path / "out.json"), *words)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
