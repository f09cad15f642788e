"""Plans and requests across a process border."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from engine.client.requests import GenerateRequest
from engine.config.plain import plan_from_dict, plan_to_dict
from engine.config.plan import RunPlan
from engine.config.resolve import resolve_plan
from engine.errors import UsageError
from engine.protocol.messages import SamplingSettings

MESSAGES = ({"role": "user", "content": "hello"},)


def through_json(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value))


def test_a_plan_survives_json() -> None:
    flags = {"split": "9", "wire": "q8", "stop": ["a", "b"], "logit_bias": ["5=-1"], "emulate_rtt_ms": "20"}
    plan = resolve_plan(flags, None)
    assert plan_from_dict(through_json(plan_to_dict(plan))) == plan != RunPlan()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"modl": "x"}, r"plan has no field 'modl'; did you mean model\?"),
        ({"model": 3}, r"plan\.model must be a text, not 3"),
        ({"topology": {"stages": True}}, r"plan\.topology\.stages must be a whole number, not True"),
        ({"topology": {"wire": "f64"}}, r"plan\.topology\.wire must be one of f32, f16, q8, not 'f64'"),
        ({"topology": {"split": [1, "2"]}}, r"plan\.topology\.split\[1\] must be a whole number"),
        ({"topology": {"remote": [{}]}}, r"plan\.topology\.remote\[0\] lacks the field 'url'"),
        ({"compute": []}, r"plan\.compute must be an object"),
        ([], r"plan must be an object"),
    ],
)
def test_a_wrong_plan_names_the_field(data: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_from_dict(data)


def test_a_request_survives_json() -> None:
    sampling = SamplingSettings(temperature=0.5, logit_bias=((3, 1.5),), seed=7)
    request = GenerateRequest("r", MESSAGES, session="s", sampling=sampling, stop=("END",), strategy="mtp")
    assert GenerateRequest.from_dict(through_json(request.to_dict())) == request


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"messages": MESSAGES}, "generate lacks the field 'request'"),
        ({"request": "", "messages": MESSAGES}, "request must not be empty"),
        ({"request": "r"}, "needs either messages or a prompt"),
        ({"request": "r", "messages": MESSAGES, "prompt": "x"}, "needs either messages or a prompt"),
        (
            {"request": "r", "messages": [{"role": "robot", "content": ""}]},
            r"messages\[0\]\.role must be one of",
        ),
        ({"request": "r", "messages": [{"role": "user"}]}, r"messages\[0\] must hold a role and a content"),
        ({"request": "r", "messages": [{"role": "user", "content": 3}]}, r"messages\[0\] must hold"),
        ({"request": "r", "messages": ["hi"]}, r"messages\[0\] must be an object"),
        ({"request": "r", "prompt": "x", "max_tokens": 0}, r"generate\.max_tokens must be a whole number"),
        ({"request": "r", "prompt": "x", "sampling": {"top_p": 2}}, r"generate\.sampling\.top_p must be"),
        ({"request": "r", "prompt": "x", "sampling": {"heat": 2}}, r"generate\.sampling has no field 'heat'"),
        ({"request": "r", "prompt": "x", "stop": [""]}, r"generate\.stop must hold"),
        ({"request": "r", "prompt": "x", "strategy": "fast"}, r"generate\.strategy must be one of auto"),
        ({"request": "r", "prompt": "x", "tools": []}, r"generate has no field 'tools'"),
    ],
)
def test_a_wrong_request_names_the_field(data: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GenerateRequest.from_dict({"op": "generate", **data})
