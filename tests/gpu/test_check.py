"""The check that runs on GPU machines, tried on the CPU: it passes on a right split, and can fail."""

from __future__ import annotations

from tests.gpu.check import Comparison, comparisons


def test_chains_of_a_tiny_model_equal_the_whole() -> None:
    found = comparisons(["llama-q8_0", "mimo2"], [("cpu", "cpu", "cpu")])
    assert [one.found["difference"] for one in found] == [0.0, 0.0]
    assert found[1].found["draft_difference"] == 0.0
    assert all(one.good for one in found)


def test_what_is_far_from_the_whole_or_died_is_not_good() -> None:
    devices = ("gpu", "gpu", "gpu")
    near = {"difference": 0.01, "spread": 1.0, "same_token": 1.0}
    assert Comparison("m", devices, near).good
    assert not Comparison("m", devices, near | {"difference": 0.2}).good
    assert not Comparison("m", devices, near | {"draft_difference": 0.2}).good
    assert not Comparison("m", devices, {"died": -6}).good
    assert not Comparison("m", devices, {"error": "no memory"}).good
    assert Comparison("m", devices, {"refused": "not at this layer"}).good


def test_chains_on_different_devices_must_say_the_same_tokens() -> None:
    devices = ("cpu", "gpu", "gpu")
    far = {"difference": 2.0, "spread": 2.4}
    assert Comparison("m", devices, far | {"same_token": 1.0}).good
    assert not Comparison("m", devices, far | {"same_token": 0.9}).good
    assert not Comparison("m", devices, {"died": -11}).good
