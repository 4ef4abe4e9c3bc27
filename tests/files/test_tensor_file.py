"""Files of tensors: read if they are whole, and nothing in them is run."""

import pickle
import zipfile

import pytest
import torch

from lightning_tgnn.files.tensors import load_tensors


class Evil:
    def __reduce__(self):
        return (open, ("evil", "w"))


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("zipped", [False, True])
def test_what_was_saved_is_loaded(tmp_path, zipped, mapped):
    values = torch.arange(6.0).view(2, 3)
    torch.save(values, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    assert torch.equal(load_tensors(tmp_path / "a.pt", mapped=mapped), values)


def repacked(path, kind, change=lambda name, content: content):
    """The same members, packed in another way or changed, with checksums that fit."""
    with zipfile.ZipFile(path) as archive:
        members = [(name, change(name, archive.read(name))) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in members:
            archive.writestr(name, content)


@pytest.mark.parametrize("mapped", [False, True])
def test_damage_is_refused_in_one_line(tmp_path, monkeypatch, mapped):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.pt"
    torch.save(torch.arange(6.0), path)
    whole = path.read_bytes()
    place = whole.index(torch.arange(6.0).numpy().tobytes())
    contents = {
        "checksum": whole[: place + 4] + b"\x01" + whole[place + 5 :],
        "cut": whole[:-30],
        "text": b"no tensor",
        "nothing": b"",
        "pickle": pickle.dumps(Evil()),
    }
    repacked(path, zipfile.ZIP_DEFLATED)
    contents["packed archive"] = path.read_bytes()
    path.write_bytes(whole)
    repacked(path, zipfile.ZIP_STORED, lambda name, content: content[:-4] if name.endswith("data/0") else content)
    contents["short record"] = path.read_bytes()
    for name, content in contents.items():
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"\A[^\n]+\Z") as refused:
            load_tensors(path, mapped=mapped)
        assert name not in ("checksum", "packed archive") or name in str(refused.value)
    assert not (tmp_path / "evil").exists(), "no pickle was run"


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_tensors(tmp_path / "none.pt")
