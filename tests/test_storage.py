"""Save and load: what comes back is what was there, and nothing in a file is executed, lost or overwritten."""

import dataclasses
import json
import os
import pickle
import stat
from pathlib import Path

import pytest
import torch
from kinds import convnet, mlp, trained
from torch import nn

import kernelseed as ks
from kernelseed.core import files
from kernelseed.core.files import StorageError


class Tied(nn.Module):
    """A user's own model, whose two embeddings are one parameter."""

    def __init__(self, size=7, dim=4):
        super().__init__()
        self.words = nn.Embedding(size, dim)
        self.middle = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, size, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(torch.relu(self.middle(self.words(x))))


def resnet(dropout=0.0):
    return ks.models.resnet18(3, 1, stem="cifar", width=4, dropout=dropout)


def last_layer(name, parameter):
    return name == "fc.weight"


NETS = {
    "ksn": lambda: ks.germinate(resnet(), 0.5, min_rank=2),
    "ksn_glorot": lambda: ks.germinate(resnet(), 0.5, init="glorot", rho_offset=-3.0),
    "fksn": lambda: ks.germinate(resnet(), 0.5, min_rank=2, fixed=True),
    "bnn": lambda: ks.bayesianize(resnet()),
    "last_layer": lambda: ks.germinate(resnet(), 1.0, where=last_layer),
    "plain": resnet,
    "dropout": lambda: resnet(dropout=0.3),
    "ensemble": lambda: nn.ModuleList([resnet(), resnet()]),
    "bayesian_ensemble": lambda: nn.ModuleList([ks.germinate(resnet()), ks.bayesianize(resnet())]),
}


def ready(net):
    """Away from its start, with BatchNorm statistics that have seen data."""
    for parameter in net.parameters():
        with torch.no_grad():
            parameter.add_(0.01 * torch.randn_like(parameter))
    for member in net if isinstance(net, nn.ModuleList) else [net]:
        member.train()(torch.randn(8, 1, 8, 8))
    return net


def files_in(folder):
    return {p.name: p.read_bytes() for p in Path(folder).iterdir()}


def same_state(one, two):
    a, b = one.state_dict(), two.state_dict()
    assert list(a) == list(b)
    for name, value in a.items():
        assert value.dtype == b[name].dtype
        assert torch.equal(value, b[name]), name


@pytest.mark.parametrize("kind", NETS)
def test_what_was_saved_comes_back(kind, tmp_path):
    net, x = ready(NETS[kind]()), torch.randn(5, 1, 8, 8)
    ks.save(net, tmp_path / "new" / "folder")
    twin = ks.load(tmp_path / "new" / "folder")
    same_state(net, twin)
    assert type(twin) is type(net)
    assert not any(module.training for module in twin.modules())
    for samples in (0, 3):
        one, two = (ks.predict(n, x, samples=samples, seed=4) for n in (net, twin))
        for field in dataclasses.fields(one):
            assert torch.equal(getattr(one, field.name), getattr(two, field.name))
    assert sorted(files_in(tmp_path / "new" / "folder")) == ["config.json", "model.safetensors"]


def test_a_dropout_rate_is_part_of_the_network(tmp_path):
    ks.save(resnet(dropout=0.3), tmp_path)
    assert {m.p for m in ks.load(tmp_path).modules() if isinstance(m, nn.Dropout)} == {0.3}


@pytest.mark.parametrize(
    "convert", [ks.bayesianize, ks.germinate, lambda m: ks.germinate(m, fixed=True)], ids=["bnn", "ksn", "fksn"]
)
def test_tied_weights_stay_tied(convert, tmp_path):
    net, x = trained(convert(Tied())), torch.randint(0, 7, (5,))
    assert net.weights.aliases
    ks.save(net, tmp_path)
    twin = ks.load(tmp_path, model=Tied())
    same_state(net, twin)
    assert twin.weights.aliases == net.weights.aliases
    assert torch.equal(twin(x), net.eval()(x))


def test_tied_weights_of_a_plain_model_stay_tied(tmp_path):
    model = Tied()
    ks.save(model, tmp_path)
    twin = ks.load(tmp_path, model=Tied())
    assert twin.head.weight is twin.words.weight
    assert torch.equal(twin.words.weight, model.words.weight)


@pytest.mark.parametrize("convert", [lambda m: m, ks.bayesianize, ks.germinate], ids=["plain", "bnn", "ksn"])
def test_a_model_of_ones_own_is_rebuilt_around_another_instance(convert, tmp_path):
    net, mine, x = convert(convnet()), convnet(), torch.randn(6, 1, 4, 4)
    net(x)
    ks.save(net, tmp_path)
    before = {name: value.clone() for name, value in mine.state_dict().items()}
    assert torch.equal(ks.load(tmp_path, model=mine)(x), net.eval()(x))
    assert mine.training
    assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())  # it is only a pattern
    with pytest.raises(StorageError, match=r"none of kernelseed.models.*give the model.*load\(folder, model=...\)"):
        ks.load(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", ["ksn", "plain"])
def test_the_precision_is_kept(kind, dtype, tmp_path):
    net = NETS[kind]().to(dtype)
    ks.save(net, tmp_path)
    same_state(net, ks.load(tmp_path))


def test_extra_entries_are_kept_in_the_config(tmp_path):
    ks.save(NETS["ksn"](), tmp_path, note={"by": "me"})
    assert json.loads((tmp_path / "config.json").read_text())["note"] == {"by": "me"}
    ks.load(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_saving_overwrites_nothing(name, tmp_path):
    (tmp_path / name).write_text("mine")
    with pytest.raises(FileExistsError, match=f"{name} exists; choose another folder, or remove the file first"):
        ks.save(NETS["ksn"](), tmp_path)
    assert files_in(tmp_path) == {name: b"mine"}


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_files_have_the_permissions_that_the_user_gives_to_files(umask, tmp_path):
    before = os.umask(umask)
    try:
        ks.save(NETS["plain"](), tmp_path)
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask, path.name


# What does not fit


@pytest.fixture
def saved(tmp_path):
    ks.save(NETS["ksn"](), tmp_path)
    return tmp_path


def other_width():
    return ks.germinate(ks.models.resnet18(3, 1, stem="cifar", width=8), 0.5, min_rank=2)


@pytest.mark.parametrize("other", [other_width, NETS["bnn"], NETS["plain"]], ids=["width", "bnn", "plain"])
def test_weights_of_another_architecture_are_refused(other, saved, tmp_path):
    ks.save(other(), tmp_path / "other")
    (saved / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    with pytest.raises(StorageError, match=r"model\.safetensors belongs to another architecture \(.*weight") as caught:
        ks.load(saved)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("wrong", [lambda: mlp(3, 4, 2), lambda: convnet(channels=6)], ids=["kind", "width"])
def test_a_wrong_model_is_an_error_that_names_the_file(wrong, tmp_path):
    ks.save(ks.germinate(convnet()), tmp_path)
    with pytest.raises(StorageError, match=str(tmp_path)):
        ks.load(tmp_path, model=wrong())


@pytest.mark.parametrize("keep", [0, 7, 100, 0.5, -1])
def test_a_truncated_weights_file_is_named(keep, saved):
    path = saved / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(StorageError, match=r"model\.safetensors is not a whole safetensors file .*another copy"):
        ks.load(saved)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(name, saved):
    (saved / name).unlink()
    with pytest.raises(StorageError, match=rf"{name} is missing; give a folder that was written by kernelseed"):
        ks.load(saved)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not readable JSON"),
        ("{", "is not readable JSON"),
        ("\udcff", "is not readable JSON"),
        ("[" * 100_000, "is not readable JSON"),
        ("[]", "holds a list, not an object"),
        ("{}", "describes no network"),
        ('{"network": {}}', "does not describe a network that can be built"),
        ('{"network": {"kind": "plain", "model": {"name": "os.system"}}}', "'os.system' is unknown"),
        ('{"network": {"kind": "plain", "model": {"name": "resnet18", "width": 0}}}', "width is 0"),
        ('{"network": {"kind": "plain", "model": {"name": "resnet18", "evil": 0}}}', "evil"),
    ],
)
def test_a_config_that_is_none_is_named(text, message, saved):
    (saved / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(StorageError, match=rf"config\.json {message}|config\.json .*{message}"):
        ks.load(saved)


def edited(config, **changes):
    name, entry = next(iter(config["network"]["weights"].items()))
    return {**config, "network": {**config["network"], "weights": {name: {**entry, **changes}}}}


@pytest.mark.parametrize(
    "changes",
    [
        {"distribution": "Linear"},
        {"distribution": "__import__('os').system('true')"},
        {"shape": [2**40, 2**40]},
        {"shape": "big"},
        {"rank": None},
        {"rank": -1},
    ],
    ids=str,
)
def test_a_config_with_nonsense_in_it_is_named(changes, saved):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(edited(config, **changes)))
    with pytest.raises(StorageError, match=r"config\.json does not describe a network that can be built"):
        ks.load(saved)


class Trap:
    """Unpickling it would make a file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("dump", [lambda value, path: path.write_bytes(pickle.dumps(value)), torch.save])
def test_loading_executes_nothing(name, dump, saved, tmp_path):
    mark = tmp_path / "executed"
    dump(Trap(mark), saved / name)
    with pytest.raises(StorageError, match=name):
        ks.load(saved)
    assert not mark.exists()


# Whole or absent


def full_disk(*_, **__):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("moment", ["while it is written", "when it is renamed", "at once"])
def test_a_full_disk_leaves_the_old_file_and_no_other(moment, tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    files.write_json(path, {"old": 1})
    if moment == "when it is renamed":
        monkeypatch.setattr(os, "replace", full_disk)
    if moment == "at once":
        monkeypatch.setattr(Path, "touch", full_disk)

    def half(self, text, **_):
        with self.open("w") as file:
            file.write(text[: len(text) // 2])
        full_disk()

    if moment == "while it is written":
        monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(StorageError, match=r"can't write .*a\.json: No space left on device; what was there before"):
        files.write_json(path, {"new": 2})
    assert files.read_json(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_full_disk_when_a_network_is_saved_leaves_nothing_behind(tmp_path, monkeypatch):
    import safetensors.torch

    def half(net, path):
        Path(path).write_bytes(b"half")
        full_disk()

    monkeypatch.setattr(safetensors.torch, "save_model", half)
    with pytest.raises(StorageError, match=r"model\.safetensors: No space left"):
        ks.save(NETS["ksn"](), tmp_path)
    assert not list(tmp_path.iterdir())


def test_another_mistake_leaves_the_old_file_and_goes_through(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")

    def fail():
        with files.whole_or_nothing(path) as scratch:
            scratch.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert files_in(tmp_path) == {"a.txt": b"old"}


def test_a_folder_that_can_not_be_written_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"can't write .*absent/a\.txt: No such file or directory"):
        files.write_text(tmp_path / "absent" / "a.txt", "text")


# The hub, without a network


@pytest.mark.parametrize("kind", ["ksn", "plain", "ensemble"])
def test_pretrained_networks_go_through_a_local_folder(kind, tmp_path):
    net = ready(NETS[kind]())
    ks.hub.Pretrained(net).save_pretrained(tmp_path / "mine")
    assert {"config.json", "model.safetensors"} <= set(files_in(tmp_path / "mine"))
    same_state(net, ks.load(tmp_path / "mine"))
    same_state(net, ks.hub.Pretrained.from_pretrained(str(tmp_path / "mine")).net)
    same_state(net, ks.hub.Pretrained.from_pretrained(tmp_path / "mine").net)


def test_a_pretrained_model_of_ones_own_takes_an_instance(tmp_path):
    net = ks.germinate(convnet())
    ks.hub.Pretrained(net).save_pretrained(tmp_path)
    same_state(net, ks.hub.Pretrained.from_pretrained(tmp_path, model=convnet()).net)


def test_pushing_uploads_the_files_of_save(tmp_path, monkeypatch):
    from huggingface_hub import HfApi

    pushed = {}

    def upload_folder(self, *, repo_id, folder_path, **_):
        pushed[repo_id] = files_in(folder_path)

    class Created:
        repo_id = "me/net"

    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: Created)
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    net = NETS["ksn"]()
    ks.hub.Pretrained(net).push_to_hub("me/net")
    ks.save(net, tmp_path)
    assert {name: pushed["me/net"][name] for name in files_in(tmp_path)} == files_in(tmp_path)


def test_what_is_pretrained_elsewhere_is_fetched_by_its_name(tmp_path, monkeypatch):
    net, asked = NETS["ksn"](), []
    ks.save(net, tmp_path)

    def snapshot_download(name, *, revision, **_):
        asked.append((name, revision))
        return str(tmp_path)

    monkeypatch.setattr(ks.hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", lambda **_: str(tmp_path / "config.json"))
    same_state(net, ks.hub.Pretrained.from_pretrained("me/net", revision="v1").net)
    assert asked == [("me/net", "v1")]
