"""The manifests are valid for each version that they say they work with, and a pod has the least rights."""

from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.conftest import PROJECT

TEXT = (PROJECT / "deploy/kubernetes/spillbox.yaml").read_text()
MANIFESTS: dict[str, dict[str, Any]] = {one["kind"]: one for one in yaml.safe_load_all(TEXT)}
POD: dict[str, Any] = MANIFESTS["Deployment"]["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", ["1.33", "1.34", "1.35", "1.36", "1.37"])
@pytest.mark.parametrize("kind", MANIFESTS)
def test_each_is_valid(kind: str, version: str) -> None:
    kubernetes_validate.validate(MANIFESTS[kind], version, strict=True)


def test_a_field_that_there_is_not_is_found() -> None:
    wrong = {**MANIFESTS["Service"], "spec": {**MANIFESTS["Service"]["spec"], "selecter": {}}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.33", strict=True)


def test_a_pod_has_the_least_rights() -> None:
    (container,) = POD["containers"]
    mine, its = POD["securityContext"], container["securityContext"]
    assert POD["hostUsers"] is False
    assert POD["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & POD.keys()
    assert mine["seccompProfile"] == {"type": "Localhost", "localhostProfile": "spillbox.json"}
    assert its == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "procMount": "Unmasked", "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert MANIFESTS["NetworkPolicy"]["spec"]["egress"] == []
    assert "Egress" in MANIFESTS["NetworkPolicy"]["spec"]["policyTypes"]


def test_it_fits_the_image() -> None:
    image = (PROJECT / "images/service/Dockerfile").read_text()
    (container,) = POD["containers"]
    user = POD["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}\n" in image
    assert f"EXPOSE {container['ports'][0]['containerPort']}\n" in image
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/data", "/tmp"}
