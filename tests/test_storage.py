"""Save and load: what comes back is what was there, and nothing in a file is executed, lost or overwritten."""

import dataclasses
import json
import os
import pickle
import resource
import stat
import sys
from pathlib import Path

import pytest
import torch
from kinds import Tied, convnet, mlp
from torch import nn

import kernelseed as ks
from kernelseed.errors import ArgumentError, MissingPackageError, StorageError
from kernelseed.system import files


def resnet(dropout=0.0):
    return ks.models.resnet18(3, 1, stem="cifar", width=4, dropout=dropout)


def ksn():
    return ks.germinate(resnet(), 0.5, min_rank=2, over="weights")


NETS = {
    "ksn": ksn,
    "last_layer": lambda: ks.germinate(
        resnet(), 1.0, where=lambda name, parameter: name == "fc.weight", over="weights"
    ),
    "dropout": lambda: resnet(dropout=0.3),
    "bayesian_ensemble": lambda: nn.ModuleList([ks.germinate(resnet(), fixed=True), ks.bayesianize(resnet())]),
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
    net, x, folder = ready(NETS[kind]()), torch.randn(5, 1, 8, 8), tmp_path / "new" / "folder"
    ks.save(net, folder)
    twin = ks.load(folder)
    same_state(net, twin)
    assert type(twin) is type(net)
    assert not any(module.training for module in twin.modules())
    for samples in (0, 3):
        one, two = (ks.predict(n, x, samples=samples, seed=4) for n in (net, twin))
        for field in dataclasses.fields(one):
            assert torch.equal(getattr(one, field.name), getattr(two, field.name))
    assert sorted(files_in(folder)) == ["config.json", "model.safetensors"]


def test_tied_weights_of_a_plain_model_stay_tied(tmp_path):
    model = Tied()
    ks.save(model, tmp_path)
    twin = ks.load(tmp_path, model=Tied())
    assert twin.output.weight is twin.embedding.weight
    same_state(model, twin)


@pytest.mark.parametrize("convert", [lambda m: m, ks.germinate], ids=["plain", "ksn"])
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


@pytest.mark.parametrize(("make", "dtype"), [(ksn, torch.bfloat16), (resnet, torch.float64)])
def test_the_precision_is_kept(make, dtype, tmp_path):
    net = make().to(dtype)
    ks.save(net, tmp_path)
    same_state(net, ks.load(tmp_path))


def test_extra_entries_are_kept_in_the_config(tmp_path):
    ks.save(ksn(), tmp_path, note={"by": "me"})
    assert json.loads((tmp_path / "config.json").read_text())["note"] == {"by": "me"}
    ks.load(tmp_path)


# Distributions of the user's own


class OneSigma(ks.WeightDistribution):
    """A mean for each weight and one deviation for all."""

    def __init__(self, weight):
        super().__init__()
        self.shape = weight.shape
        self.mu = nn.Parameter(weight.clone())
        self.log_std = nn.Parameter(weight.new_tensor(-2.0))

    def moments(self):
        return ks.Gaussian(self.mu, self.log_std.exp().expand(self.shape))

    def spec(self):
        return {"shape": list(self.shape)}

    @classmethod
    def from_spec(cls, spec):
        return cls(torch.empty(spec["shape"]))


@pytest.fixture
def own(tmp_path):
    """A saved network, one of whose weights has a distribution of the user's."""
    net = ks.convert(mlp(3, 5, 4), lambda w: OneSigma(w) if len(w) == 5 else ks.MeanField(w))
    ks.save(net, tmp_path)
    return net


def test_a_distribution_of_ones_own_is_loaded_by_the_class_that_one_gives(own, tmp_path):
    twin = ks.load(tmp_path, mlp(3, 5, 4), distributions=[OneSigma])
    assert [type(w) for w in twin.weights.values()] == [OneSigma, ks.MeanField]
    x = torch.randn(6, 3)
    assert torch.equal(ks.predict(twin, x).probs, ks.predict(own, x).probs)


def test_without_its_class_the_error_names_it_and_says_what_to_do(own, tmp_path):
    with pytest.raises(
        StorageError, match=r"'OneSigma'.*none of MeanField, .*load\(folder, distributions=\["
    ) as caught:
        ks.load(tmp_path, mlp(3, 5, 4))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["os.system", "print", "__import__('os').abort()"])
def test_a_file_never_chooses_what_is_called(name, own, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"OneSigma"', json.dumps(name)))
    with pytest.raises(
        StorageError, match="none of MeanField, KernelSeed, FixedKernelSeed, GaussianFactors, Pruned, OneSigma"
    ) as caught:
        ks.load(tmp_path, mlp(3, 5, 4), distributions=[OneSigma])
    assert "abort()]" not in str(caught.value)  # an expression is not something to paste


def test_classes_that_share_a_name_are_refused(tmp_path):
    class MeanField(ks.MeanField):
        def moments(self):
            gaussian = super().moments()
            return ks.Gaussian(2 * gaussian.mean, gaussian.std)

    with pytest.raises(ArgumentError, match=r"test_storage.*MeanField.*has the name of another.*rename"):
        ks.save(ks.convert(mlp(3, 5, 4), MeanField), tmp_path)
    assert not list(tmp_path.iterdir())
    ks.save(ks.bayesianize(mlp(3, 5, 4)), tmp_path)
    with pytest.raises(ArgumentError, match="rename"):
        ks.load(tmp_path, mlp(3, 5, 4), distributions=[MeanField])


# What is not written


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_saving_overwrites_nothing(name, tmp_path):
    (tmp_path / name).write_text("mine")
    with pytest.raises(FileExistsError, match=f"{name} exists; choose another folder, or remove the file first"):
        ks.save(ksn(), tmp_path)
    assert files_in(tmp_path) == {name: b"mine"}


def test_a_folder_that_can_not_be_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageError, match=r"can't make the folder .*file: File exists"):
        ks.save(ksn(), tmp_path / "file")


def test_what_is_no_json_leaves_nothing_behind(tmp_path):
    with pytest.raises(TypeError, match="JSON"):
        ks.save(ksn(), tmp_path, note=torch.ones(2))
    with pytest.raises(ArgumentError, match=r"'network'.*another name"):
        ks.save(ksn(), tmp_path, network="mine")
    assert not list(tmp_path.iterdir())


def test_files_have_the_permissions_that_the_user_gives_to_files(tmp_path):
    before = os.umask(0o027)
    try:
        ks.save(resnet(), tmp_path)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o640}


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingPackageError, match="needs the package safetensors: pip install"):
        ks.save(ksn(), tmp_path)


# What does not fit


@pytest.fixture
def saved(tmp_path):
    ks.save(ksn(), tmp_path)
    return tmp_path


def other_width():
    return ks.germinate(ks.models.resnet18(3, 1, stem="cifar", width=8), 0.5, min_rank=2, over="weights")


@pytest.mark.parametrize("other", [other_width, resnet], ids=["width", "plain"])
def test_weights_of_another_architecture_are_refused(other, saved, tmp_path):
    ks.save(other(), tmp_path / "other")
    (saved / "model.safetensors").write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    with pytest.raises(StorageError, match=r"model\.safetensors belongs to another architecture \(.*weight") as caught:
        ks.load(saved)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "wrong",
    [convnet(), nn.Sequential(nn.ReLU()), nn.Sequential(nn.Linear(5, 5, bias=False))],
    ids=["structure", "parameter", "shape"],
)
def test_a_wrong_model_is_an_error_that_names_the_file(wrong, tmp_path):
    ks.save(ks.germinate(nn.Sequential(nn.Linear(3, 4, bias=False)), over="weights"), tmp_path)
    with pytest.raises(StorageError, match=str(tmp_path)):
        ks.load(tmp_path, model=wrong)


@pytest.mark.parametrize("keep", [0, 0.5])
def test_a_truncated_weights_file_is_named(keep, saved):
    path = saved / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(StorageError, match=r"model\.safetensors is not a whole safetensors file .*another copy"):
        ks.load(saved)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(name, saved):
    (saved / name).unlink()
    with pytest.raises(StorageError, match=rf"{name} is missing; .*give a folder that was written by kernelseed"):
        ks.load(saved)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not readable JSON"),
        ("\udcff", "is not readable text"),
        ("[" * 100_000, "is not readable JSON"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' is there twice"),
        ('{"a": ' + "9" * 5000 + "}", "is not readable JSON"),
        (" " * 9_000_000 + "{}", "has more than 8,388,608 bytes"),
        ("[]", "holds a list, not an object"),
        ("{}", "describes no network"),
        ('{"network": {}}', "does not describe a network that can be built"),
        ('{"network": {"kind": "plain", "model": {"name": "os.system"}}}', "'os.system' is unknown"),
        ('{"network": {"kind": "plain", "model": {"name": "resnet18", "evil": 0}}}', "evil"),
    ],
)
def test_a_config_that_is_none_is_named(text, message, saved):
    (saved / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(StorageError, match=rf"config\.json {message}|config\.json .*{message}"):
        ks.load(saved)


@pytest.mark.parametrize("changes", [{"shape": [2**40, 2**40]}, {"shape": "big"}, {"rank": -1}], ids=str)
def test_a_config_with_nonsense_in_it_is_named(changes, saved):
    config = json.loads((saved / "config.json").read_text())
    config["network"]["weights"]["fc.weight"].update(changes)
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(StorageError, match=r"config\.json does not describe a network that can be built"):
        ks.load(saved)


class Trap:
    """Unpickling it would make a file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize(
    ("name", "dump"),
    [("config.json", lambda value, path: path.write_bytes(pickle.dumps(value))), ("model.safetensors", torch.save)],
    ids=["config", "weights"],
)
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
        monkeypatch.setattr(files, "_create", full_disk)

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


def test_no_room_for_a_network_leaves_nothing_behind(tmp_path):
    # A limit on the size of files, because safetensors writes by itself and has errors of its own.
    net, before = ksn(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(StorageError, match=r"can't write .*model\.safetensors: .*File too large"):
            ks.save(net, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
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


# The hub, without a network


def test_pretrained_networks_go_through_a_local_folder(tmp_path):
    net = ready(ksn())
    ks.hub.Pretrained(net).save_pretrained(tmp_path / "mine")
    assert {"config.json", "model.safetensors"} <= set(files_in(tmp_path / "mine"))
    same_state(net, ks.load(tmp_path / "mine"))
    for folder in (tmp_path / "mine", str(tmp_path / "mine")):
        same_state(net, ks.hub.Pretrained.from_pretrained(folder).net)


def test_a_pretrained_model_and_distribution_of_ones_own_are_given(own, tmp_path):
    same_state(own, ks.hub.Pretrained.from_pretrained(tmp_path, model=mlp(3, 5, 4), distributions=[OneSigma]).net)


def test_pushing_uploads_the_files_of_save(tmp_path, monkeypatch):
    from huggingface_hub import HfApi

    pushed = {}

    def upload_folder(self, *, repo_id, folder_path, **_):
        pushed[repo_id] = files_in(folder_path)

    class Created:
        repo_id = "me/net"

    monkeypatch.setattr(HfApi, "create_repo", lambda *_, **__: Created)
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    net = ksn()
    ks.hub.Pretrained(net).push_to_hub("me/net")
    ks.save(net, tmp_path)
    assert {name: pushed["me/net"][name] for name in files_in(tmp_path)} == files_in(tmp_path)


def test_what_is_pretrained_elsewhere_is_fetched_by_its_name(tmp_path, monkeypatch):
    net, asked = ksn(), []
    ks.save(net, tmp_path)

    def snapshot_download(name, *, revision, **_):
        asked.append((name, revision))
        return str(tmp_path)

    monkeypatch.setattr(ks.hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", lambda **_: str(tmp_path / "config.json"))
    same_state(net, ks.hub.Pretrained.from_pretrained("me/net", revision="v1").net)
    assert asked == [("me/net", "v1")]
