"""C22: a split over links that makes answers slower than this machine alone would is warned of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.config.plan import ComputePlan, RunPlan, StageAddress
from engine.coordinator.alone import ONE_MACHINE, faster_alone
from engine.events import Notice
from engine.model.file import ModelFile
from engine.model.packages.folder import Package
from engine.model.packages.model import PackageModel
from engine.model.packages.write import write_package
from engine.planning.describe import head_read_bytes, layer_bytes
from engine.protocol.messages import LinkEmulation, StageInfo
from tests.faults.harness import disturbed, plan
from tests.faults.tiny_llama import LAYERS, WIDTH, write_tiny_llama

OWN_MS = 10.0  # of the first two layers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelFile:
    return ModelFile.open(write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


def stage(model: ModelFile, first: int, end: int, where: str = "") -> StageInfo:
    return StageInfo(
        first_layer=first,
        end_layer=end,
        n_layers=LAYERS,
        architecture="llama",
        model_name=model.name,
        fingerprint=model.fingerprint,
        n_embd=WIDTH,
        context=256,
        sequences=1,
        window_rows=17,
        prefill_rows=128,
        native_mtp=False,
        can_rollback=True,
        threads=1,
        exact=True,
        where=where,
    )


def elsewhere(model: ModelFile) -> RunPlan:
    return plan(model.path, (), stages=2, remote=(StageAddress("ws://second:1"),))


def alone_ms(model: ModelFile) -> float:
    """What a token takes where all layers are as fast as the first two."""
    layers = layer_bytes(model)[1]
    return OWN_MS * (sum(layers) + head_read_bytes(model)) / sum(layers[:2])


def judged(
    run_plan: RunPlan,
    model: ModelFile,
    *,
    ms: float = 100.0,
    tokens: int = 60,
    own_ms: float = OWN_MS,
    stages: tuple[StageInfo, ...] = (),
) -> Notice | None:
    """What is said of an answer whose tokens took `ms` each."""
    stages = stages or (stage(model, 0, 2), stage(model, 2, LAYERS, "second:1"))
    timings = {"predicted_n": tokens, "tpot_ms_p50": ms}
    return faster_alone(run_plan, model, stages, own_ms, timings)


def test_what_the_split_made_and_this_machine_would_make_are_told(model: ModelFile) -> None:
    notice = judged(elsewhere(model), model)
    assert notice is not None
    assert (notice.level, notice.code) == ("warning", ONE_MACHINE)
    alone = 1000 / alone_ms(model)
    assert f"this one would make about {alone:.1f} tok/s, 2 stages made 10.0" in notice.message


@pytest.mark.parametrize(("factor", "warned"), [(1.1, False), (1.3, True)])
def test_it_has_to_be_notably_faster(model: ModelFile, factor: float, warned: bool) -> None:
    assert (judged(elsewhere(model), model, ms=factor * alone_ms(model)) is not None) == warned


def test_a_few_milliseconds_are_no_matter(model: ModelFile) -> None:
    assert judged(elsewhere(model), model, ms=3.0, own_ms=0.05) is None


def test_nothing_is_said_where_it_cannot_be_known(model: ModelFile, tmp_path: Path) -> None:
    away = elsewhere(model)
    assert judged(away, model, tokens=8) is None
    assert judged(away, model, own_ms=0.0) is None
    first_elsewhere = (stage(model, 0, 2, "first:1"), stage(model, 2, LAYERS, "second:1"))
    assert judged(away, model, stages=first_elsewhere) is None
    assert judged(replace(away, compute=ComputePlan(gpu_layers=-1)), model) is None
    write_package(model, (2,), tmp_path / "package")
    package = Package.open(tmp_path / "package")
    assert judged(away, PackageModel(package)) is not None
    package.path(package.manifest.slices[1]).unlink()
    assert judged(away, PackageModel(package)) is None


def test_nothing_is_said_where_the_model_does_not_fit(
    model: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.coordinator.alone.free_memory", lambda pid: 1 << 16)
    assert judged(elsewhere(model), model) is None


def test_local_stages_are_judged_only_behind_a_link(model: ModelFile) -> None:
    assert judged(plan(model.path), model) is None
    assert judged(plan(model.path, emulation=LinkEmulation(rtt_ms=20)), model) is not None


def test_cuts_over_nodes_are_judged_unless_the_planner_chose_them(model: ModelFile) -> None:
    assert judged(plan(model.path, (2,), use_nodes=True), model) is not None
    assert judged(plan(model.path, (), use_nodes=True), model) is None  # it has said it


async def test_an_answer_over_a_slow_link_is_followed_by_one_warning(model: ModelFile) -> None:
    async with disturbed(plan(model.path, (2,), emulation=LinkEmulation(rtt_ms=20))) as running:
        result = await running.ask(max_tokens=20)
        (told,) = [event for event in result["events"] if event["code"] == ONE_MACHINE]
        assert told["message"].startswith("one machine alone is faster: this one would make about ")
        await running.ask("And now?", max_tokens=20)
        assert len([notice for notice in running.of_kind(Notice) if notice.code == ONE_MACHINE]) == 1
