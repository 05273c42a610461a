"""Files are named by their digests, so nothing else is taken for one."""

from pathlib import Path

import pytest

from envkit.ground.errors import IntegrityError
from envkit.registry.download import Item, fetch
from envkit.registry.retry import Policy
from envkit.registry.transport import Answer


def never(offset: int) -> Answer:
    raise AssertionError(offset)


@pytest.mark.parametrize("digest", ["{0}/kept", "../kept", "", "a" * 63, "A" * 64, "a" * 64 + "/../../kept"])
def test_what_is_no_digest_names_no_file(tmp_path: Path, digest: str) -> None:
    (tmp_path / "kept").write_bytes(b"words")
    item = Item(name="it", sha256=digest.format(tmp_path), size=5, where="registry.example.com/a", open=never)
    with pytest.raises(IntegrityError, match=r"it: .* is not a SHA-256"):
        fetch([item], tmp_path / "downloads", Policy(), lambda _done, _total: None)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("kept", b"words")]
