from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envkit.checks import thresholds
from envkit.ground.canonical import digest_of
from envkit.ground.errors import EnvkitError, IntegrityError, UsageError
from envkit.ground.progress import Silent
from envkit.image.name import image_name
from envkit.verify.again import _FIELDS, judge_again, read_record
from envkit.verify.driver import Options, verify_image
from envkit.verify.record import Record, schema, seal
from tests.support.again import assert_same_again
from tests.support.judging import Replay, document, inspected, observation, plan, printed
from tests.support.launches import NOISY, record, timed
from tests.support.odd import changed
from tests.support.records import passed_record
from tests.support.schema import faults


def written(tree: dict[str, Any], path: Path) -> Path:
    path.write_text(json.dumps(tree))
    return path


def sealed(tree: dict[str, Any]) -> dict[str, Any]:
    return {**tree, "sha256": seal(tree)}


@pytest.mark.parametrize("cuda", [None, "12.6"])
@pytest.mark.parametrize("options", [Options(), Options(only=("C14",)), Options(only=("C14",), skip=("C05",))])
@pytest.mark.parametrize("gate", ["clean", NOISY])
def test_a_record_gives_its_own_verdict_again(cuda: str | None, options: Options, gate: str) -> None:
    made = plan(cuda=cuda)
    runner = Replay(
        lambda spec: printed(document(timed(2.0, gate=gate), nonce=spec["nonce"]), spec["nonce"]),
        image=inspected(made, env={"HOME": "/root", "LD_PRELOAD": "x"}),
    )
    assert_same_again(verify_image(image_name("img"), made, runner, Silent(), options))
    assert_same_again(verify_image(image_name("img"), None, runner, Silent(), options))


def test_a_record_survives_another_programs_layout(tmp_path: Path) -> None:
    tree = record(2.0)
    text = json.dumps(tree, sort_keys=True).replace("2.0,", "2,").replace("1.0,", "1,")
    (tmp_path / "r.json").write_text(text)
    assert judge_again(read_record(tmp_path / "r.json")).changed == ()


def test_fields_of_a_later_version_are_valid_and_kept(tmp_path: Path) -> None:
    tree = record(2.0)
    for part in (tree, tree["run"], tree["env"]["host"], *tree["checks"]):
        part["later"] = {"rack": 7}
    tree = sealed(tree)
    assert faults(tree, schema()) == []
    again = judge_again(read_record(written(tree, tmp_path / "r.json"))).record.tree
    assert again == tree


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ('{"schema": "envkit.verify/1", "run": NaN}', "NaN is not a JSON number"),
        ('{"schema": "envkit.verify/1", "run": 1e400}', "1e400 is too large"),
        ("[]", "schema is None"),
        ('{"schema": "envkit.verify/2"}', "schema is 'envkit.verify/2', not 'envkit.verify/1'"),
        ('{"schema": "envkit.verify/1"}', "no usable run, subject, env, checks, summary, judge, sha256"),
    ],
)
def test_what_is_no_record_is_told(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(UsageError) as caught:
        read_record(tmp_path / "r.json")
    assert words in caught.value.message
    assert caught.value.exit_code == 2


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_record(tmp_path / "r.json")


def _verdict(tree: dict[str, Any]) -> None:
    tree["summary"]["verdict"] = "PASS"


def _check(tree: dict[str, Any]) -> None:
    tree["checks"][-1]["verdict"] = "PASS"


def _sample(tree: dict[str, Any]) -> None:
    next(check for check in tree["checks"] if check["samples"])["samples"]["values"][0] = 1.0


def _removed(tree: dict[str, Any]) -> None:
    tree["checks"] = [check for check in tree["checks"] if check["verdict"] != "ERROR"]


def _promise(tree: dict[str, Any]) -> None:
    tree["subject"]["spec"]["torch"] = "2.0.0"


def _machine(tree: dict[str, Any]) -> None:
    tree["env"]["host"]["cpu_model"] = "Other CPU"


def _threshold(tree: dict[str, Any]) -> None:
    tree["judge"]["thresholds"]["rules"]["C17.difference"]["values"]["fail_above"] = 1.0


@pytest.mark.parametrize("tamper", [_verdict, _check, _sample, _removed, _promise, _machine, _threshold])
def test_a_changed_record_is_refused(tmp_path: Path, tamper: Callable[[dict[str, Any]], None]) -> None:
    tree = record(2.0, options=Options())
    tamper(tree)
    with pytest.raises(IntegrityError, match="was changed after it was written") as caught:
        read_record(written(tree, tmp_path / "r.json"))
    assert caught.value.exit_code == 10


@pytest.mark.parametrize("tamper", [_verdict, _check, _removed, _promise, _machine, _threshold])
def test_one_that_was_sealed_again_contradicts_itself(tamper: Callable[[dict[str, Any]], None]) -> None:
    tree = record(2.0, options=Options())
    tamper(tree)
    with pytest.raises(IntegrityError):
        judge_again(sealed(tree))


def test_the_contradiction_is_named() -> None:
    tree = record(2.0, options=Options())
    _verdict(tree)
    with pytest.raises(IntegrityError) as caught:
        judge_again(sealed(tree))
    assert "the image: verdict PASS -> ERROR" in caught.value.details


@pytest.mark.parametrize("name", ["run", "subject", "env"])
def test_an_emptied_part_is_a_fault_and_no_traceback(name: str) -> None:
    tree = record(2.0)
    tree[name] = {}
    with pytest.raises(EnvkitError):
        judge_again(sealed(tree))


def test_other_thresholds_give_another_verdict_and_say_what_changed() -> None:
    made = plan(cuda=None)
    errors = {"loss_rel_err": 5e-4, "grad_rel_l2": 1e-3, "grad_one_minus_cos": 1e-5, "last_loss_rel_err": 1e-3}
    ratios = {"loss_ratio_fp32": 0.9, "loss_ratio_low": 0.9, "seeds": 1, "steps": 10}
    seen = observation("C14.error.mlp.fp16", observed={"network": "mlp", "precision": "fp16", **errors, **ratios})
    runner = Replay(lambda spec: printed(document(seen, nonce=spec["nonce"]), spec["nonce"]), image=inspected(made))
    first = verify_image(image_name("img"), made, runner, Silent(), Options(only=("C14",)))
    assert_same_again(first)
    strict = json.loads(json.dumps(thresholds.shipped().to_json()))
    strict["rules"]["C14.loss"]["values"]["fp16"] = 1e-4
    table = thresholds.of_record({**strict, "sha256": digest_of(_without_digest(strict))})
    again = judge_again(json.loads(first.to_bytes()), table)
    assert again.record.verdict == "FAIL" != first.verdict
    assert any(line.startswith("C14.error.mlp.fp16 on cpu: verdict PASS -> FAIL") for line in again.changed)
    assert thresholds.load() == thresholds.shipped()


def _without_digest(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key != "sha256"}


def test_a_record_of_other_rules_may_differ_and_says_who_judged_it() -> None:
    tree = record(2.0, options=Options())
    tree["summary"]["verdict"] = "PASS"
    tree["judge"] |= {"rules_sha256": "0" * 64, "envkit": "0.0.1"}
    again = judge_again(sealed(tree))
    assert (again.same_rules, again.judged_by) == (False, "0.0.1")
    assert again.changed == ("the image: verdict PASS -> ERROR",)
    assert_same_again(Record(again.record.tree))


def test_timing_that_is_not_trusted_stays_so() -> None:
    tree = record(2.0)
    distrusted = record(2.0, options=Options(only=("C14",), distrusted=frozenset({tree["env"]["fingerprint"]["hw"]})))
    assert (tree["run"]["timing_trusted"], distrusted["run"]["timing_trusted"]) == (True, False)
    assert judge_again(distrusted).changed == ()


@pytest.mark.requirement("R4")
def test_a_record_with_a_value_of_another_type_is_no_traceback() -> None:
    """Members of a record in turn, each with odd values: refused with words, or judged. One change in 41 is tried."""
    tried = refused = 0
    for _, tree in changed(passed_record(), every=41):
        tried += 1
        if not all(isinstance(tree.get(name), kind) for name, kind in _FIELDS.items()):
            continue  # `read_record` refuses these
        try:
            judge_again(sealed(tree))
        except EnvkitError:
            refused += 1
    assert tried > 150
    assert refused > tried / 4


def test_the_change_that_once_was_a_traceback() -> None:
    tree = passed_record()
    del tree["checks"][0]["gates"]
    with pytest.raises(EnvkitError):
        judge_again(sealed(tree))
