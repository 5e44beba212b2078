"""Models: ours against torchvision's names and counts, and models and data that a user brings."""

import dataclasses
import doctest
import json
import re
import sys
from pathlib import Path

import own_models
import pytest
import torch
from PIL import Image
from torch import nn

import kernelseed as ks
from kernelseed.errors import ArgumentError, ArgumentTypeError, ConfigError, DataError, StorageError
from kernelseed.models import BUILDERS, build, mlp, own, perceptron, resnet, resnet18, resnet34, resnet50
from kernelseed.training import Config, RunFolder, describe_run, evaluate, predict_files, train

PATH = "own_models:convnet"
SMALL = Config(model=PATH, epochs=1, batch_size=256, samples=2, update_bn=0)


# ResNets


@pytest.mark.parametrize(
    ("made", "parameters"), [(resnet18, 11_689_512), (resnet34, 21_797_672), (resnet50, 25_557_032)]
)
def test_resnets_have_torchvisions_published_numbers_of_parameters(made, parameters):
    with torch.device("meta"):
        model = made(1000)
    assert sum(p.numel() for p in model.parameters()) == parameters


def torchvision_names(convolutions, depths, shortcuts):
    """The keys of torchvision's state dicts, in its order."""

    def norm(name):
        return [f"{name}.{x}" for x in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]

    names = ["conv1.weight", *norm("bn1")]
    for stage, depth in enumerate(depths, 1):
        for block in range(depth):
            place = f"layer{stage}.{block}"
            for i in range(1, convolutions + 1):
                names += [f"{place}.conv{i}.weight", *norm(f"{place}.bn{i}")]
            if block == 0 and stage in shortcuts:
                names += [f"{place}.downsample.0.weight", *norm(f"{place}.downsample.1")]
    return [*names, "fc.weight", "fc.bias"]


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (resnet18, torchvision_names(2, (2, 2, 2, 2), (2, 3, 4))),
        (resnet34, torchvision_names(2, (3, 4, 6, 3), (2, 3, 4))),
        (resnet50, torchvision_names(3, (3, 4, 6, 3), (1, 2, 3, 4))),
    ],
)
def test_resnets_have_torchvisions_names(made, names):
    assert len(names) == {resnet18: 122, resnet34: 218, resnet50: 320}[made]
    assert list(made(width=2).state_dict()) == names


def transformers_weights(model):
    """A ResNet's tensors under the names of transformers."""
    renamed = {}
    for name, tensor in model.state_dict().items():
        stage, *rest = name.split(".")
        if stage == "fc":
            renamed[f"classifier.1.{rest[0]}"] = tensor
        elif stage in ("conv1", "bn1"):
            part = "convolution" if stage == "conv1" else "normalization"
            renamed[f"resnet.embedder.embedder.{part}.{rest[0]}"] = tensor
        else:
            block, part, *last = rest
            if part == "downsample":
                part = ("shortcut.convolution", "shortcut.normalization")[int(last.pop(0))]
            else:
                part = f"layer.{int(part[-1]) - 1}.{'convolution' if part[:4] == 'conv' else 'normalization'}"
            renamed[f"resnet.encoder.stages.{int(stage[-1]) - 1}.layers.{block}.{part}.{last[0]}"] = tensor
    return renamed


@pytest.mark.parametrize(
    ("made", "kind", "outside", "depths"),
    [(resnet34, "basic", 1, [3, 4, 6, 3]), (resnet50, "bottleneck", 4, [3, 4, 6, 3])],
)
def test_resnets_are_the_function_that_transformers_has(made, kind, outside, depths):
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4 * outside * 2**i for i in range(4)], depths=depths, layer_type=kind,
        num_labels=7,
    )  # fmt: skip
    other = transformers.ResNetForImageClassification(config).eval()
    model = made(7, width=4).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():  # as after training: nothing is 0 or 1
            if tensor.is_floating_point() and tensor.dim() == 1:
                tensor.uniform_(0.5, 1.5) if name.endswith("var") else tensor.add_(torch.randn_like(tensor) / 10)
        other.load_state_dict(transformers_weights(model))
        x = torch.randn(2, 3, 64, 48)
        torch.testing.assert_close(model(x), other(x).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("stem", "kernel", "extent"), [("imagenet", 7, 8), ("cifar", 3, 32), ("small", 3, 16)])
def test_stems(stem, kernel, extent):
    model = resnet50(10, 1, stem=stem, width=2).eval()
    assert model.conv1.kernel_size == (kernel, kernel)
    assert model.maxpool(model.conv1(torch.zeros(1, 1, 32, 32))).shape[-2:] == (extent, extent)
    assert model(torch.zeros(2, 1, 32, 32)).shape == (2, 10)


# The perceptron


def test_a_perceptron_has_the_widths_that_it_is_given_and_torchvisions_names():
    model = mlp(3, 2, (4, 5), widths=[7, 6])
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes == {
        "0.weight": (7, 40), "0.bias": (7,), "3.weight": (6, 7), "3.bias": (6,), "6.weight": (3, 6), "6.bias": (3,)
    }  # fmt: skip
    x = torch.randn(2, 2, 4, 5)
    hidden = (x.reshape(2, 40) @ model[0].weight.T + model[0].bias).relu() @ model[3].weight.T + model[3].bias
    torch.testing.assert_close(model(x), hidden.relu() @ model[6].weight.T + model[6].bias)
    assert [m.p for m in ks.methods.make("dropout", rate=0.2).build(model).modules() if isinstance(m, nn.Dropout)] == [
        0.2, 0.2
    ]  # fmt: skip
    assert mlp(3, 4, (), widths=())(torch.randn(2, 4)).shape == (2, 3)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_dropout_after_every_layer_leaves_names_and_function_as_they_are(name):
    torch.manual_seed(0)
    inside, everywhere = (BUILDERS[name](3, 1, width=4, dropout_in=place).eval() for place in ("blocks", "layers"))
    assert list(inside.state_dict()) == list(everywhere.state_dict())
    everywhere.load_state_dict(inside.state_dict())
    x = torch.randn(2, 1, 28, 28)
    assert torch.equal(inside(x), everywhere(x))
    blocks = {"resnet18": 8, "resnet50": 16}[name]
    layers = [sum(isinstance(m, nn.Dropout) for m in net.modules()) for net in (inside, everywhere)]
    assert layers == [blocks, 2 * blocks + 1]
    dropped = ks.methods.make("dropout", rate=0.2).build(everywhere)
    assert ks.models.from_recipe(ks.models.recipe(dropped)).layer1.dropout0.p == 0.2
    with pytest.raises(ArgumentError, match="dropout_in is 'all'; allowed are blocks, layers"):
        BUILDERS[name](3, 1, width=4, dropout_in="all")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"widths": 200}, "widths is 200; it must be a list of whole numbers"),
        ({"widths": [200, 0]}, r"widths\[1\] is 0; it must be at least 1"),
        ({"image_size": "ab"}, "image_size is 'ab'; it must be a list"),
        ({"image_size": [2.5]}, r"image_size\[0\] is 2.5; it must be an int"),
        ({"dropout": 1}, "dropout is 1; it is the share"),
    ],
)
def test_a_perceptron_that_can_not_be(given, message):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        mlp(**given)


# A function of your own


def test_a_function_gets_what_it_has_parameters_for():
    facts = {"num_classes": 3, "in_channels": 2, "image_size": [4, 5]}
    assert own.call_function(own_models.Linear, facts, {})[1].in_features == 20
    assert own.call_function(own_models.convnet, facts, {"channels": 5})[0].out_channels == 5
    assert own.call_function(own_models.convnet, facts, {"num_classes": 9})[-1].out_features == 9
    made = own.call_function(own_models.anything, facts, {"in_features": 1, "out_features": 2})
    assert (made.in_features, made.out_features) == (1, 2)  # what it has no name for is not forced on it
    assert own.import_function("own_models:Nested.convnet") is own_models.convnet


def recipe(name, arguments=()):
    return own.own_recipe(name, {"num_classes": 3, "in_channels": 2, "image_size": [4, 4]}, dict(arguments))


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("absent_module:net", {}, "but there is no module 'absent_module': check its name"),
        ("torch.absent:net", {}, "there is no module 'torch.absent'"),
        ("own_models:absent", {}, "own_models has no 'absent': name a function"),
        ("own_models:SEVEN", {}, "which is of type int: name a function"),
        ("own_models:words", {}, "words, which returned a value of type str; it must return an nn.Module"),
        (
            PATH,
            {"chanels": 4},
            r"convnet\(num_classes, in_channels, channels=8\), which can't be called with .*'chanels'",
        ),
        ("os; x:y", {}, "model is 'os; x:y'; allowed are .*mlp.* and package.module:function"),
    ],
)
def test_a_function_that_can_not_be(path, arguments, message):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        build(recipe(path, arguments), path)


def test_a_module_that_is_there_but_imports_what_is_not_shows_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import absent_module")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="No module named 'absent_module'"):
        build(recipe("needs_more:net"), "needs_more:net")


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """The name of a function in a module that no one else has imported."""
    (tmp_path / "trap_of_models.py").write_text("from own_models import convnet")
    monkeypatch.syspath_prepend(tmp_path)
    yield "trap_of_models:convnet"
    sys.modules.pop("trap_of_models", None)


def test_a_recipe_never_chooses_what_is_imported(trap):
    stored = recipe(trap)
    with pytest.raises(ArgumentError, match=rf"the config names the model '{trap}'.* --model {trap} .*--trust-model"):
        build(stored)
    with pytest.raises(ArgumentError, match=f"model is '{PATH}', but there was made with '{trap}': give that one"):
        build(stored, PATH, where="there")
    with pytest.raises(ArgumentError, match="model None is unknown"):
        ks.models.from_recipe(stored)
    assert "trap_of_models" not in sys.modules
    with pytest.warns(UserWarning, match=f"as you trust there, {trap} is imported and called"):
        build(stored, trust_model=True, where="there")
    assert "trap_of_models" in sys.modules


def test_a_model_that_had_no_name_is_given_again_in_any_form():
    stored = recipe(own.GIVEN, {"channels": 4})
    module = own_models.convnet(3, 2, 4)
    copied = build(stored, module)
    assert copied is not module
    assert torch.equal(copied[0].weight, module[0].weight)
    for form in (own_models.convnet, PATH):
        assert build(stored, form)[0].out_channels == 4
    for trust in (False, True):  # there is no name that could be trusted
        with pytest.raises(ArgumentError, match="made with a model that was given in Python: give it again, model="):
            build(stored, trust_model=trust)


# Config


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "resnet19"}, "model is 'resnet19'; allowed: .*package.module:function. Did you mean 'resnet18'"),
        ({"model": "mlp", "width": 8}, "width is 8, but the model 'mlp' has none: leave it out"),
        ({"model": "a.b:c", "stem": "cifar"}, "stem is 'cifar', but the model 'a.b:c' has none"),
        (
            {"model": "mlp", "model_args": {"width": 8}},
            "model_args has 'width'; .*widths, dropout. Did you mean 'widths'",
        ),
        ({"model_args": {"num_classes": 8}}, "model_args has 'num_classes'; allowed for the model 'resnet18': dropout"),
        ({"model_args": {"dropout": float("nan")}}, "model_args is .*nan.*; it is kept as JSON"),
        ({"model_args": {"dropout": {1}}}, "model_args is .*; it is kept as JSON"),
        ({"model_args": [1]}, r"model_args is \[1\]; it must be of type dict"),
    ],
)
def test_a_config_whose_model_can_not_be(given, message):
    with pytest.raises(ConfigError, match=message):
        Config.from_json(given)


@pytest.mark.parametrize("name", BUILDERS)
def test_every_model_of_ours_is_built_for_the_data(name):
    data = ks.data.load("digits")
    own = {"model_args": {"widths": (6, 5)}} if name == "mlp" else {"width": 8, "model_args": {"dropout": 0.1}}
    config = Config(model=name, **own)
    assert Config.from_json(json.loads(json.dumps(config.as_json()))) == config
    model = config.build_model(data)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    trimmed = {} if name == "mlp" else {"trimmed": True}
    assert {**config.recipe(data), **trimmed, "dropout": 0.1} == {
        "trimmed": True,
        **ks.models.recipe(model),
        "dropout": 0.1,
    }
    assert config.layout == (torch.contiguous_format if name == "mlp" else torch.channels_last)


def test_a_config_never_imports_by_itself():
    config = dataclasses.replace(SMALL, model="absent_module:net")
    assert config.layout == torch.contiguous_format
    with pytest.raises(ArgumentError, match="names the model 'absent_module:net'"):
        config.build_model(ks.data.load("digits"))


def test_another_model_leaves_the_arguments_of_the_one_below_behind():
    below = {"model": "mlp", "model_args": {"widths": [5]}}
    assert "model_args" not in ks.training.overlay(below, {"model": "resnet18"})
    for above in ({}, {"model": "mlp"}):
        assert ks.training.overlay(below, above)["model_args"] == {"widths": [5]}


# Runs


@pytest.fixture(autouse=True)
def _one_thread(_same_start):
    torch.set_num_threads(1)


def two_shades(n=48):
    """Dark and bright images of 6 x 5 pixels."""
    labels = torch.arange(n) % 2
    images = (torch.randint(0, 60, (n, 1, 6, 5)) + 150 * labels[:, None, None, None]).to(torch.uint8)
    split = ks.data.Split(images, labels)
    return ks.data.Dataset("shades", split, None, split, ("dark", "bright"), (0.5,), (0.3,))


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A run of a function by its name, with an argument."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("runs") / "named"
    train(dataclasses.replace(SMALL, model_args={"channels": 4}), path, progress=False)
    return path


def test_a_run_keeps_the_name_and_is_used_by_saying_it_again(named):
    assert RunFolder(named).training_config().model == PATH
    assert RunFolder(named).config()["network"]["model"] == {
        "function": PATH, "num_classes": 10, "in_channels": 1, "image_size": [8, 8], "arguments": {"channels": 4}
    }  # fmt: skip
    expected = RunFolder(named).prediction("test", "ensemble")[0].probs
    digits = ks.data.load("digits")
    x = ks.data.normalise(digits.test.images, digits.mean, digits.std)
    for model in (PATH, own_models.convnet, own_models.convnet(10, 1, 4)):
        assert torch.equal(ks.predict(ks.load(named, model), x, samples=2).probs, expected)
    assert describe_run(named, model=PATH)["layers"][0]["shape"] == [4, 1, 3, 3]
    for use in (ks.load, evaluate, describe_run):
        with pytest.raises(ArgumentError, match=rf"named names the model '{PATH}'.*model='{PATH}'.*trust_model=True"):
            use(named)
        with pytest.warns(UserWarning, match=f"as you trust .*named, {PATH} is imported and called"):
            use(named, trust_model=True)


def test_a_resume_needs_the_name_again_too(named, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_bytes((named / "config.json").read_bytes())  # as if killed at once
    with pytest.raises(ArgumentError, match=f"a names the model '{PATH}'"):
        train(None, tmp_path / "a", resume=True, progress=False)
    with pytest.raises(ArgumentError, match=f"model is 'own_models:words', but .*a was made with '{PATH}'"):
        train(None, tmp_path / "a", model="own_models:words", resume=True, progress=False)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["config.json"]
    train(None, tmp_path / "a", model=PATH, resume=True, progress=False)
    assert RunFolder(tmp_path / "a").weights.read_bytes() == RunFolder(named).weights.read_bytes()
    config = RunFolder(named).training_config()
    assert train(config, tmp_path / "a", resume=True, progress=False) == RunFolder(tmp_path / "a").result()


def test_every_stored_member_of_an_ensemble_is_the_callers_model(tmp_path):
    config = dataclasses.replace(SMALL, method="ensemble", options={"members": 2})
    train(config, tmp_path / "a", progress=False)
    assert len(ks.load(tmp_path / "a", PATH)) == 2
    described = json.loads((tmp_path / "a" / "config.json").read_text())
    described["network"]["members"][0]["model"] = {"name": "resnet18", "num_classes": 10, "width": 2}
    described["network"]["members"][1]["model"]["function"] = "absent_module:net"
    (tmp_path / "a" / "config.json").write_text(json.dumps(described))
    with pytest.raises(StorageError, match="model None is unknown"):  # nobody looked for the module
        ks.load(tmp_path / "a")


def test_a_model_and_data_of_your_own_in_python(tmp_path):
    data = two_shades()
    module = own_models.convnet(2, 1, 4)
    config = Config(epochs=1, batch_size=16, samples=2, update_bn=16, validation=0.25)
    result = train(config, tmp_path / "a", model=module, data=data, progress=False)
    run = RunFolder(tmp_path / "a")
    assert (result["config"]["model"], result["config"]["data"]) == ("given in Python", "given in Python")
    assert run.config()["data"]["validation"] == 12
    Image.fromarray(data.test.images[1, 0].numpy()).save(tmp_path / "bright.png")
    found = evaluate(run.path, temperature=True, model=module, data=data)
    assert found["metrics"]["mean"].keys() == result["metrics"]["mean"].keys()
    with_statistics = predict_files(run.path, [tmp_path / "bright.png"], model=module, data=data)
    with pytest.warns(UserWarning, match="no BatchNorm statistics .*given in Python: give it again there, data="):
        without = predict_files(run.path, [tmp_path / "bright.png"], model=module)
    assert without != with_statistics
    (record, _) = ks.report.read([run.path], data=data)
    assert record.images.shape == (48, 1, 6, 5)
    with pytest.warns(UserWarning, match=r"no images in the report: .*given in Python"):
        ks.report.read([run.path])
    with pytest.raises(ArgumentError, match="a was made with a model that was given in Python: give it again"):
        evaluate(run.path, data=data)
    with pytest.raises(DataError, match="data of this run was given in Python"):
        evaluate(run.path, model=module)
    renamed = dataclasses.replace(data, class_names=("black", "white"))
    with pytest.raises(
        DataError, match=r"it has classes \['black', 'white'\] and not \['dark', 'bright'\]; put it back as it was"
    ):
        evaluate(run.path, model=module, data=renamed)


def test_the_start_is_the_module_that_is_given_or_the_seed_for_what_makes_one(tmp_path, monkeypatch):
    started = {}
    steps = ks.training.trainer.Training

    class Recorded(steps):
        def on_fit_start(self):
            started[len(started)] = self.net[0].weight.detach().clone()

    monkeypatch.setattr(ks.training.trainer, "Training", Recorded)
    config, data, module = Config(method="baseline", epochs=1, samples=0), two_shades(), own_models.convnet(2, 1)
    for number, model in enumerate((module, own_models.convnet, own_models.convnet)):
        train(config, tmp_path / str(number), model=model, data=data, progress=False)
    assert torch.equal(started[0], module[0].weight)
    assert torch.equal(started[1], started[2])


class Killed(Exception):
    pass


def test_killed_and_resumed_a_users_run_ends_with_the_same_bits(tmp_path, monkeypatch):
    config, data = Config(epochs=2, batch_size=16, samples=2, update_bn=16), two_shades()
    module = own_models.convnet(2, 1)
    given = {"data": data, "progress": False}
    train(config, tmp_path / "whole", model=module, **given)
    training_step = ks.training.trainer.Training.training_step

    def dying(self, batch, batch_idx):
        if self.global_step == 4:  # in the second epoch
            raise Killed
        training_step(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(ks.training.trainer.Training, "training_step", dying)
        with pytest.raises(Killed):
            train(config, tmp_path / "killed", model=module, **given)
    other = own_models.convnet(2, 1)  # its weights are the checkpoint's
    for resumed in (None, config):
        train(resumed, tmp_path / "killed", model=other, resume=True, **given)
    whole, killed = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "killed")
    assert killed.weights.read_bytes() == whole.weights.read_bytes()
    assert killed.result()["metrics"] == whole.result()["metrics"]


def test_a_split_of_its_own_is_the_validation(tmp_path):
    data = two_shades()
    data = dataclasses.replace(data, validation=data.test)
    result = train(
        Config(method="baseline", epochs=1, samples=0), tmp_path / "a", model=own_models.convnet, data=data,
        progress=False,
    )  # fmt: skip
    assert result["config"]["validation"] == 0.5
    assert len(RunFolder(tmp_path / "a").prediction("validation", "mean")[1]) == 48


@pytest.mark.parametrize(
    ("config", "given", "message"),
    [
        ({"model": "mlp"}, {"model": own_models.convnet}, "model is 'mlp' in the config, and 'given in Python' beside"),
        ({"data": "mnist"}, {"data": two_shades()}, "data is 'mnist' in the config, and 'given in Python' beside it"),
        ({"size": 8}, {"data": two_shades()}, "size, channels and skip_unreadable are for folder:PATH"),
        ({"width": 8}, {"model": own_models.convnet}, "width is 8, but the model 'given in Python' has none"),
        ({}, {"data": [1, 2]}, "data is a list; it must be a ks.data.Dataset"),
        ({}, {"model": "own_models:absent"}, "own_models has no 'absent'"),
        ({}, {"model": "own_models:two_numbers"}, r"output of the model Sequential for 2 images is of shape \(2, 2\)"),
        ({}, {"model": "own_models:wrong_size"}, r"the model Linear can't take images of shape \(1, 8, 8\): "),
        ({"model": own.GIVEN}, {}, "a model that was given in Python"),
        ({}, {"data": dataclasses.replace(two_shades(), class_names=("x",))}, "labels go from 0 to 1, but there are 1"),
    ],
)
def test_what_can_not_be_trained_leaves_no_folder(config, given, message, tmp_path):
    with pytest.raises((ArgumentError, ArgumentTypeError, DataError), match=message):
        train(Config(**config), tmp_path / "a", **given, progress=False)
    assert not list(tmp_path.iterdir())


def test_the_examples_run():
    for module in (own, perceptron, resnet):
        failed, attempted = doctest.testmod(module)
        assert attempted
        assert not failed


def test_the_lines_of_the_page_on_models_run(tmp_path, monkeypatch):
    page = (Path(__file__).parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
    nets, script = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "nets.py").write_text(nets)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    exec(script, {})
    assert RunFolder("runs/given").evaluation()["metrics"]
    del sys.modules["nets"]
