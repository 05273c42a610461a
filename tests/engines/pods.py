"""What the pod of an exported Kubernetes job prints, without a cluster."""

import base64
from pathlib import Path

from envkit.image.name import image_name
from envkit.run.bubblewrap import BubblewrapRunner
from envkit.run.model import RunLimits
from tests.support.heard import Heard
from tests.support.kubernetes import documents, started_with


def printed_by_pod(files: Path, name: str, image: str) -> bytes:
    """Return what `kubectl logs` has of the pod that verifies an image: its own command, with its ConfigMap in place.

    Args:
        files: the folder that `envkit export kubernetes` wrote.
        name: of the image in these files.
        image: for bubblewrap, such as oci:DIR.
    """
    (stored,) = documents((files / "plans" / "questions.yaml").read_text())
    job = next(
        tree for tree in documents((files / "verify.yaml").read_text()) if tree["metadata"]["name"].endswith(name)
    )
    pod = job["spec"]["template"]["spec"]
    mounted = {
        item["path"]: base64.b64decode(stored["binaryData"][item["key"]])
        if item["key"] in stored["binaryData"]
        else stored["data"][item["key"]].encode()
        for item in pod["volumes"][0]["configMap"]["items"]
    }
    place = pod["containers"][0]["volumeMounts"][0]["mountPath"]
    user = pod["securityContext"]
    result = BubblewrapRunner().run(
        image_name(image),
        started_with(pod["containers"][0]["command"], {}),
        {f"{place}/{path}": data for path, data in mounted.items()},
        gpus=None,
        limits=RunLimits(user=f"{user['runAsUser']}:{user['runAsGroup']}"),
        reporter=Heard(),
    )
    return result.stdout
