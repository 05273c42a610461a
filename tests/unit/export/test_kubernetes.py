import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.export import kubernetes
from envkit.export.kinds import options
from envkit.ground.errors import UsageError
from envkit.ground.requirement import Form, Requirement
from envkit.verify.question import questions_of
from tests.support.command_lines import parsed
from tests.support.exports import REGISTRY, cell, exported, matrix_order, order
from tests.support.kubernetes import documents, require_valid, started_with
from tests.unit.export.test_quoting import allowed

GIVEN = {
    "namespace": "gpu-images",
    "login": "registry-login",
    "nodes": "3",
    "runtime_class": "nvidia",
    "only": "C01,C05",
}


def of_kind(text: str, kind: str) -> list[dict[str, Any]]:
    return [tree for tree in documents(text) if tree["kind"] == kind]


def pod(tree: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = tree["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("given", [{}, GIVEN], ids=["plain", "every option"])
@pytest.mark.parametrize("made", [order, matrix_order], ids=["definitions", "matrix"])
def test_the_api_server_takes_every_document_as_it_is(made: Any, given: dict[str, str]) -> None:
    files = kubernetes.export(made("kubernetes", options=options("kubernetes", given)))
    kinds = []
    for text in files.values():
        for tree in documents(text):
            require_valid(tree)
            kinds.append(tree["kind"])
    assert set(kinds) == {"Job", "DaemonSet", "ConfigMap", "NetworkPolicy"}


@pytest.mark.parametrize("name", ["123", "on", "null", "1e3"])
def test_a_name_that_yaml_has_another_reading_of_stays_a_name(name: str) -> None:
    files = exported("kubernetes", given=dict.fromkeys(("namespace", "login", "runtime_class"), name))
    for text in files.values():
        for tree in documents(text):
            require_valid(tree)
            assert tree["metadata"]["namespace"] == name


def test_a_field_that_does_not_exist_would_be_noticed() -> None:
    tree = documents(exported("kubernetes")["build.yaml"])[0]
    pod(tree)["containers"][0]["securityContext"]["privilegedd"] = True
    with pytest.raises(Exception, match="privilegedd"):
        require_valid(tree)


def containers(files: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    found = []
    for name in ("verify.yaml", "verify-every-node.yaml", "build.yaml"):
        for tree in documents(files[name]):
            if tree["kind"] != "NetworkPolicy":
                spec = pod(tree)
                found += [(spec, one) for one in (*spec.get("initContainers", ()), *spec["containers"])]
    return found


def test_no_pod_has_any_power() -> None:
    found = containers(exported("kubernetes", given=GIVEN))
    assert len(found) == 6
    for spec, container in found:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert not [volume for volume in spec["volumes"] if "hostPath" in volume]
        assert {"cpu", "memory", "ephemeral-storage"} <= set(container["resources"]["requests"])
        assert {"memory", "ephemeral-storage"} <= set(container["resources"]["limits"])
        assert {one["name"] for one in container["volumeMounts"]} <= {volume["name"] for volume in spec["volumes"]}


def test_an_image_of_root_is_proved_as_somebody_else() -> None:
    own = replace(cell(), plan=replace(cell().plan, user="0:0"))
    files = kubernetes.export(order("kubernetes", (), cells=(own,), definitions={own.name: "cpu"}))
    (job,) = of_kind(files["verify.yaml"], "Job")
    assert pod(job)["securityContext"]["runAsUser"] == 54321


@pytest.mark.parametrize(("file", "kind"), [("verify.yaml", "Job"), ("verify-every-node.yaml", "DaemonSet")])
def test_a_gpu_image_gets_its_gpus_and_its_shared_memory(file: str, kind: str) -> None:
    cpu, cuda = of_kind(exported("kubernetes", gpus=2)[file], kind)
    shm = next(volume for volume in pod(cuda)["volumes"] if volume["name"] == "shm")["emptyDir"]
    assert shm == {"medium": "Memory", "sizeLimit": f"{cell('cu126').plan.smoke.shm_mb}Mi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in pod(cuda)["containers"][0]["volumeMounts"]
    assert pod(cuda)["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert pod(cuda)["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert "nvidia.com/gpu" not in pod(cpu)["containers"][0]["resources"]["limits"]
    assert "tolerations" not in pod(cpu)


def test_the_nodes_of_a_daemon_set_have_a_gpu_and_the_images_architecture() -> None:
    cpu, cuda = of_kind(exported("kubernetes")["verify-every-node.yaml"], "DaemonSet")
    assert pod(cuda)["nodeSelector"]["nvidia.com/gpu.present"] == "true"
    assert pod(cpu)["nodeSelector"] == {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}


def test_each_index_of_a_job_gets_a_node_of_its_own() -> None:
    job = of_kind(exported("kubernetes", given={"nodes": "3"})["verify.yaml"], "Job")[0]
    assert (job["spec"]["completionMode"], job["spec"]["completions"]) == ("Indexed", 3)
    (term,) = pod(job)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert term["labelSelector"]["matchLabels"].items() <= labels.items()


def test_a_verification_that_failed_is_not_repeated_elsewhere() -> None:
    for job in of_kind(exported("kubernetes")["verify.yaml"], "Job"):
        assert job["spec"]["backoffLimitPerIndex"] == 0
        assert pod(job)["restartPolicy"] == "Never"


def test_pods_of_a_verification_reach_no_network() -> None:
    for file in ("verify.yaml", "verify-every-node.yaml"):
        trees = documents(exported("kubernetes")[file])
        (policy,) = [tree for tree in trees if tree["kind"] == "NetworkPolicy"]
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert not {"ingress", "egress"} & set(policy["spec"])
        for tree in trees:
            if tree["kind"] != "NetworkPolicy":
                labels = tree["spec"]["template"]["metadata"]["labels"]
                assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()


def test_what_a_pod_reads_is_in_its_config_map() -> None:
    files = exported("kubernetes", given={"only": "C01,C05"})
    (stored,) = documents(files["plans/questions.yaml"])
    questions = questions_of(stored["data"]["questions.json"], "questions.yaml")
    assert [one.image for one in questions] == [f"{REGISTRY}:cpu", f"{REGISTRY}:cu126"]
    for index, (job, question) in enumerate(zip(of_kind(files["verify.yaml"], "Job"), questions, strict=True)):
        items = pod(job)["volumes"][0]["configMap"]["items"]
        assert {one["key"] for one in items} <= set(stored["data"]) | set(stored["binaryData"])
        assert json.loads(stored["data"][f"{index}.json"])["nonce"] == question.nonce
        assert stored["data"][f"{index}.nonce"].strip() == question.nonce
        argv = started_with(pod(job)["containers"][0]["command"], {})
        assert argv[3:] == [
            "envkit", f"/run/envkit/{index}.nonce", "/opt/env/bin/python", "/run/envkit/payload.pyz",
            "--spec", f"/run/envkit/{index}.json", "--tier", question.tier, "--only", "C01,C05",
        ]  # fmt: skip
        assert pod(job)["containers"][0]["image"] == question.image


def test_each_index_of_the_build_has_its_plan_and_its_image() -> None:
    own = replace(cell("cu126"), axes=(("base", "registry.example.com/debian:12"),))
    files = kubernetes.export(order("kubernetes", (), cells=(cell(), own), matrix="m.yaml", definitions={}))
    (job,) = documents(files["build.yaml"])
    (stored,) = documents(files["plans/plans.yaml"])
    assert (job["spec"]["completionMode"], job["spec"]["completions"]) == ("Indexed", 2)
    for index, one in enumerate((cell(), own)):
        plan = replace(one.plan, bytecode=False)  # a pod has no sandbox to compile in
        assert json.loads(stored["data"][f"{index}.json"]) == json.loads(plan.canonical())
    argv = started_with(pod(job)["containers"][0]["command"], {"JOB_COMPLETION_INDEX": "1"})
    assert argv[2] == kubernetes.BUILD
    assert argv[4:] == [f"{REGISTRY}:cpu", "auto", f"{REGISTRY}:cu126", "registry.example.com/debian:12"]


def test_the_commands_are_taken_by_the_command_line() -> None:
    taken = parsed(shlex.split(kubernetes.BUILD.partition("/envkit ")[2]))
    assert (taken["engine"], taken["output"], taken["no_verify"]) == ("embedded", "registry:$1", True)
    for name in ("verify.yaml", "verify-every-node.yaml"):
        (line,) = re.findall(r"#\s+envkit (verify .*)", exported("kubernetes")[name])
        assert parsed(shlex.split(line))["questions"] == Path("plans/questions.yaml")


def test_the_login_is_a_docker_configuration() -> None:
    (job,) = documents(exported("kubernetes", given={"login": "registry-login"})["build.yaml"])
    container = pod(job)["containers"][0]
    assert {"name": "DOCKER_CONFIG", "value": "/run/login"} in container["env"]
    volume = next(one for one in pod(job)["volumes"] if one["name"] == "login")
    assert volume["secret"] == {
        "secretName": "registry-login",
        "items": [{"key": ".dockerconfigjson", "path": "config.json"}],
    }
    assert "DOCKER_CONFIG" not in exported("kubernetes")["build.yaml"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"registry": None}, "--registry is required"), ({"engine": "docker"}, "--engine docker needs a daemon")],
)
def test_what_a_cluster_cannot_do_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        exported("kubernetes", **fields)


@pytest.mark.parametrize("name", ["build.yaml", "verify.yaml", "verify-every-node.yaml"])
def test_config_maps_are_applied_by_the_server(name: str) -> None:
    """A client keeps a copy of what it applies in an annotation, of which there are 256 KiB; ConfigMaps hold more."""
    (line,) = [line for line in exported("kubernetes")[name].splitlines() if "kubectl apply" in line]
    assert "kubectl apply --server-side -f plans/" in line


def test_more_plans_than_a_config_map_holds_are_refused() -> None:
    large = replace(cell().plan, pip=("long" * 50_000,))
    long = [replace(cell(), name=f"i{number}", plan=large) for number in range(6)]
    with pytest.raises(UsageError, match="more than the limit of 1024000 for one ConfigMap"):
        kubernetes.export(order("kubernetes", (), cells=tuple(long), definitions={one.name: "cpu" for one in long}))


# Letters, and all that means something to a shell, to YAML or to a template.
WORD = st.text(alphabet="aZ0é木 '\"\\#:-{}[]()$`@%&*!|<>;~=,.?^", max_size=24) | st.sampled_from(
    ["no", "~", "1e3", "on"]
)


@given(st.text(alphabet=st.sampled_from("$()aA1{} \"'\\"), max_size=12))
def test_kubernetes_gives_a_word_to_the_process_as_it_is(word: str) -> None:
    known = dict.fromkeys(("a", "A", "aA", "", "1", "$"), "EXPANDED")
    assert started_with([kubernetes.literal(word)], known) == [word]


@settings(max_examples=20)
@given(requirement=WORD, base=WORD, command=WORD)
def test_no_text_breaks_out_of_its_place(requirement: str, base: str, command: str) -> None:
    own = replace(cell(), axes=(("base", base or "auto"),))
    plain = order("kubernetes", ("cpu",), definitions={}, matrix="m.yaml")
    made = allowed(replace(plain, cells=(own,), requirement=Requirement(Form.URL, requirement), command=command))
    files = kubernetes.export(made)
    assert [len(documents(files[name])) for name in ("verify.yaml", "verify-every-node.yaml")] == [2, 2]
    (job,) = documents(files["build.yaml"])
    assert started_with(pod(job)["initContainers"][0]["command"], {})[-1] == requirement
    assert started_with(pod(job)["containers"][0]["command"], {})[-1] == (base or "auto")


@given(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", fullmatch=True))
def test_every_tag_has_a_resource_name(name: str) -> None:
    made = kubernetes.resource_name("envkit-verify", name)
    assert len(made) <= 52
    assert made == made.lower().strip("-")
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


@given(st.sets(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,40}", fullmatch=True), min_size=2, max_size=2))
def test_other_tags_have_other_resource_names(names: set[str]) -> None:
    assert len({kubernetes.resource_name("envkit-verify", name) for name in names}) == 2
