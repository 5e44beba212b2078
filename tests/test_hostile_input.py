"""Input that somebody else chose, or chose badly: one line that says so, little memory, and nothing printed raw."""

import copy
import csv
import json
import os
import re
import shutil
import struct
import sys
import warnings
import zlib

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limits import at_most, little_memory
from PIL import Image
from rich.text import Text

import kernelseed as ks
from kernelseed import cli, report
from kernelseed.cli import show
from kernelseed.cli.show import comparison, literal
from kernelseed.core import storage
from kernelseed.errors import KernelseedError, StorageError
from kernelseed.report.page import SECTIONS
from kernelseed.report.sections import Shown
from kernelseed.report.svg import look
from kernelseed.system import cell, printable
from kernelseed.training import Config, RunFolder, describe_run, evaluate, predict_files, trainer

FEW = settings(
    max_examples=30, derandomize=True, deadline=None, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
ESCAPE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture
def command(capsys, monkeypatch):
    """Run the command here; its exit code, and what it printed on stdout and stderr."""
    torch.set_num_threads(1)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["kernelseed", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def refused(command):
    """Run a command that must end with exit code 2 and one line."""

    def run(*arguments):
        with at_most(20), little_memory():
            code, out, err = command(*arguments)
        assert (code, out) == (2, ""), (out, err)
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert len(err) < 1000
        return err

    return run


# --- names -----------------------------------------------------------------------------------------------------

CLASSES = [b"=cmd()", b"[v2]\x1b[31m\\", b"caf\xe9", b":cat:"]
DATA = "data \x1b[2J"
FILES = ["=1+1.png", "@sum.png", "+1.png", "-1.png", "\tx.png", "[bold]b.png", "\x1b]0;title\x07.png", "\udce9.png"]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A run whose folder, data, classes and images have names that spreadsheets and terminals would act on."""
    torch.set_num_threads(1)
    folder, pixels = tmp_path_factory.mktemp("hostile"), np.random.default_rng(0)
    for name in CLASSES:
        inside = folder / DATA / os.fsdecode(name)
        inside.mkdir(parents=True)
        for i in range(3):
            Image.fromarray(pixels.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / "one.png")
            shutil.copy(folder / "one.png", inside / f"{i}\udcff.png")
    (folder / "images").mkdir()
    for name in FILES:
        shutil.copy(folder / "one.png", folder / "images" / name)
    run = folder / "run[v1]\udce9\x1b[31m"
    trainer.train(Config(data=f"folder:{folder / DATA}", width=4, epochs=1, samples=2), run, progress=False)
    return folder, run


def visible(text):
    assert not ESCAPE.search(text.replace("\n", ""))
    text.encode()
    return re.sub(r"\s+", "", text)


def test_names_are_printed_as_they_are_and_no_code_reaches_the_terminal(hostile, command, monkeypatch):
    folder, run = hostile
    monkeypatch.setattr(show.console, "_width", 200)  # so that no name goes on in the next line
    monkeypatch.chdir(folder / "images")
    code, out, err = command("predict", run, "--", *FILES)
    assert code == 0, err
    for name in FILES:
        assert visible(printable(name)) in visible(out)
    assert "\\xe9.png" in out
    for arguments in (
        ["evaluate", run, "--ood", "digits"],
        ["info", run],
        ["report", run, "-o", folder / "[a]\x1b.html"],
    ):
        code, out, err = command(*arguments)
        assert code == 0, err
        visible(out + err)
    assert "[a]\\x1b.html" in out
    code, out, err = command("predict", str(run) + "[x]\x1b", "a.png")
    assert code == 2
    assert "run[v1]\\xe9\\x1b[31m[x]\\x1b is not there" in visible(err).replace("isnotthere", " is not there")


def test_json_of_names_is_ascii_where_a_terminal_would_not_show_it_and_comes_back(hostile, command):
    folder, run = hostile
    files = [folder / "images" / name for name in FILES]
    code, out, err = command("predict", run, *files, "--json")
    assert code == 0, err
    visible(out)
    assert [row["file"] for row in json.loads(out)["predictions"]] == list(map(str, files))


def test_no_cell_of_a_table_is_a_formula_and_numbers_stay_numbers(hostile, command, monkeypatch):
    folder, run = hostile
    monkeypatch.chdir(folder / "images")
    out = folder / "out\udce9.csv"
    code, _, err = command("predict", run, "-o", out, "--", *FILES)
    assert code == 0, err
    visible(err)
    rows = list(csv.DictReader(out.read_text("utf-8").splitlines()))
    assert [row["file"] for row in rows] == [
        "'=1+1.png", "'@sum.png", "'+1.png", "'-1.png", "'\\tx.png", "[bold]b.png", "\\x1b]0;title\\x07.png",
        "\\xe9.png",
    ]  # fmt: skip
    assert {row["label"] for row in rows} <= {"'=cmd()", "[v2]\\x1b[31m\\", "caf\\xe9", ":cat:"}
    assert all(0 <= float(row["confidence"]) <= 1 for row in rows)
    assert cell(-0.5) == -0.5


def test_a_page_of_hostile_names_is_text(hostile, command):
    folder, run = hostile
    code, _, err = command("report", run, "-o", folder / "page.html")
    assert code == 0, err
    page = (folder / "page.html").read_text("utf-8")
    assert not ESCAPE.search(page.replace("\n", ""))
    assert "\\x1b[31m" in page


@FEW
@given(st.text(st.characters() | st.sampled_from("[]\\/:\x1b\x9b\udce9=a"), max_size=12))
def test_literal_text_is_what_is_printed(text):
    shown = Text.from_markup(f"[bold]{literal(text)}[/] after", emoji=False).plain
    assert shown == printable(text) + " after"
    assert shown.isprintable()
    shown.encode()


# --- settings --------------------------------------------------------------------------------------------------

HUGE = str(10**20)
SETTINGS = {
    "--batch-size": ["1", "0", "-1", HUGE],
    "--seed": ["-1", str(2**64), str(10**400)],
    "--samples": ["-1", HUGE],
    "--update-bn": ["-1", HUGE],
    "--epochs": ["0", HUGE],
    "--width": ["0", "30000", "10000000", HUGE],
    "--lr": ["inf", "nan", "0", "-1", "1e400"],
    "--prior": ["0", "-1", "nan", "inf", "1e-300"],
    "--kl": ["nan", "inf", "-1"],
    "--kl-warmup": ["-1", HUGE],
    "--rho-offset": ["nan", "inf", "1e30"],
    "--delta": ["nan", "0", "inf"],
    "--min-rank": ["0", HUGE],
    "--clip": ["nan", "0", "inf"],
    "--validation": ["nan", "1", "-0.1", "inf"],
    "--patience": ["0", HUGE],
    "--size": ["0", HUGE],
    "--channels": ["2", HUGE],
    "--devices": ["0", HUGE],
    "--nodes": ["0", HUGE],
    "--data": ["", "folder:", "folder:\udcff", "nö"],
    "--precision": ["8"],
    "--accelerator": ["", "\udcff"],
    "--accumulate": ["0", HUGE],
    "--warmup": ["-1", HUGE],
    "--ema": ["0", "1", "nan"],
    "--plain-epochs": ["nan", "inf", "-1", HUGE],
    "--init-from": ["absent", "/dev/null", "/dev/zero", __file__, "\udcff\x1b"],
    "--ranks": ["x", "=5", "fc.weight=", "fc.weight=0", "fc.weight=nan", "absent=3", "\udcff=3"],
    "--sigma": ["nan", "0", "inf", "-1"],
    "--budget": ["nan", "0", "inf", "-1"],
    "--seed-lr": ["nan", "-1", "inf"],
    "--weight-decay": ["nan", "-1", "inf"],
    "--momentum": ["nan", "1", "-1"],
    "--model": ["", "absent", "os:absent", "absent:f", "os:path", "os:getpid", "\udcff:\x1b", "../a:b"],
    "--model-args": ['{"absent": 1}', '{"num_classes": 3}'],
}


@pytest.mark.parametrize(
    ("option", "value"),
    [(option, value) for option, values in SETTINGS.items() for value in values],
    ids=lambda value: value[:20].encode("ascii", "backslashreplace").decode(),
)
def test_a_setting_that_can_not_be_is_one_line_and_leaves_no_folder(option, value, refused, tmp_path):
    message = refused("train", "--width", "4", option, value, "--out", tmp_path / "run")
    assert printable(option.strip("-").replace("-", "_").replace("data", "")) in message
    assert not list(tmp_path.iterdir())


MODEL_ARGS = {
    "nothing": "", "half": "{", "list": "[1]", "nan": "NaN", "deep": "[" * 5000,
    "twice": '{"dropout": 0, "dropout": 0}',
    "surrogate": '{"\\ud800": 1}', "digits": '{"dropout": ' + "9" * 5000 + "}", "dropout nan": '{"dropout": NaN}',
    "dropout text": '{"dropout": "x"}', "dropout list": '{"dropout": [[[]]]}',
}  # fmt: skip


@pytest.mark.parametrize("kind", MODEL_ARGS)
def test_arguments_of_a_model_that_can_not_be_are_refused(kind, command, tmp_path):
    code, out, err = command("train", "--width", 4, "--model-args", MODEL_ARGS[kind], "--out", tmp_path / "run")
    assert (code, out) == (2, ""), err
    visible(err)
    assert not list(tmp_path.iterdir())


LAUGHS = "a: &a [1]\n" + "".join(f"{y}: &{y} [{f'*{x},' * 9}]\n" for x, y in zip("abcdefgh", "bcdefghi", strict=True))
FILES_OF_SETTINGS = {
    "epochs-nan.json": '{"epochs": NaN}',
    "lr-infinite.json": '{"options": {"lr": Infinity}}',
    "float.json": '{"epochs": 3.0}',
    "bool.json": '{"epochs": true}',
    "null.json": '{"epochs": null}',
    "text.json": '{"epochs": "3"}',
    "twice.json": '{"epochs": 1, "epochs": 2}',
    "options.json": '{"options": [1]}',
    "name.json": '{"options": {"name": "ksn", "self": 1}}',
    "deep.json": '{"options": ' + '{"a": ' * 5000 + "1" + "}" * 5001,
    "nested.json": '{"epochs": ' + "[" * 500 + "]" * 500 + "}",
    "long.json": '{"data": "' + "x" * 100_000 + '"}',
    "digits.json": '{"seed": ' + "9" * 5000 + "}",
    "nul.json": '{"data": "folder:a\\u0000b"}',
    "surrogate.json": '{"data": "\\ud800"}',
    "unknown.json": '{"[bold]\\u001b[31m": 1}',
    "large.json": '{"a": "' + "x" * 9_000_000 + '"}',
    "twice.yaml": "epochs: 1\nepochs: 2\n",
    "deep.yaml": "epochs: " + "[" * 1500,
    "date.yaml": "epochs: 2001-99-99",
    "numbers.yaml": "options: {1: 2}",
    "itself.yaml": "options: &a {lr: *a}",
    "laughs.yaml": LAUGHS + "epochs: *i",
    "python.yaml": "epochs: !!python/object/apply:os.system [ls]",
    "control.yaml": "epochs: \x07",
    "infinite.yaml": "options: {lr: .inf}",
    "large.yaml": "#" * 2_000_000,
}  # fmt: skip


@pytest.mark.parametrize("name", FILES_OF_SETTINGS)
def test_a_file_of_settings_that_can_not_be_is_one_line_and_leaves_no_folder(name, refused, tmp_path):
    (tmp_path / name).write_text(FILES_OF_SETTINGS[name], "utf-8")
    visible(refused("train", "--config", tmp_path / name, "--out", tmp_path / "run").rstrip("\n"))
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_pipe_for_a_file_is_not_waited_for(refused, tmp_path):
    os.mkfifo(tmp_path / "config.json")
    assert "is not a file" in refused("train", "--config", tmp_path / "config.json", "--out", tmp_path / "run")
    assert "is not a file" in refused("info", tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "--samples", "-1"], ["predict", "--samples", HUGE], ["predict", "--risk", "nan"],
        ["predict", "--risk", "-1"], ["evaluate", "--samples", HUGE], ["evaluate", "--update-bn", "-1"],
        ["evaluate", "--update-bn", HUGE], ["evaluate", "--ood", "folder:\udcff\x1b"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_absurd_questions_about_a_run_are_refused(arguments, hostile, refused):
    folder, run = hostile
    images = [folder / "one.png"] if arguments[0] == "predict" else []
    visible(refused(arguments[0], run, *images, *arguments[1:]).rstrip("\n"))


# --- images ----------------------------------------------------------------------------------------------------


def header_only(path, width, height):
    """A PNG of a few bytes that promises many pixels."""
    Image.new("1", (1, 1)).save(path)
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", width, height)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)


def pipe(path):
    os.mkfifo(path)


def postscript(path):
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n")


HOSTILE_IMAGES = {
    "huge": lambda path: header_only(path, 1, 100_000_000),
    "square": lambda path: header_only(path, 60_000, 60_000),
    "pipe": pipe,
    "postscript": postscript,
    "folder": lambda path: path.mkdir(),
    "empty": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "header": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100)),
}


@pytest.mark.parametrize("kind", HOSTILE_IMAGES)
def test_an_image_that_is_none_is_named_by_predict_and_by_train(kind, hostile, refused, monkeypatch, tmp_path):
    def no_program(*_, **__):
        pytest.fail("a program was started")

    monkeypatch.setattr("subprocess.Popen.__init__", no_program)
    folder, run = hostile
    data = tmp_path / "data"
    shutil.copytree(folder / DATA, data)
    victim = next(data.iterdir()) / "x.png"
    HOSTILE_IMAGES[kind](victim)
    assert "x.png is not a readable image" in refused("predict", run, victim)
    message = refused("train", "--data", f"folder:{data}", "--width", "4", "--out", tmp_path / "run")
    assert "x.png is not a readable image" in message
    assert not (tmp_path / "run").exists()


# --- networks --------------------------------------------------------------------------------------------------


def net():
    return ks.germinate(ks.models.resnet18(3, 1, stem="cifar", width=4), 0.5, min_rank=2, over="weights")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A network's config, and the bytes of its weights."""
    folder = tmp_path_factory.mktemp("stored")
    ks.save(net(), folder)
    return json.loads((folder / "config.json").read_text()), (folder / "model.safetensors").read_bytes()


def load(folder, config, weights):
    """A network or an error of ours; quickly, and with little memory."""
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    (folder / "model.safetensors").write_bytes(weights)
    with at_most(20), little_memory():
        return ks.load(folder)


def wider(config, width):
    config = copy.deepcopy(config)
    config["network"]["model"]["width"] = width
    return config


def everywhere_wider(config, factor):
    """The seeds are as wide as the model, so that only the weights' file can tell."""
    config = wider(config, 4 * factor)
    for entry in config["network"]["weights"].values():
        first, second, *taps = entry["shape"]
        entry["shape"] = [first if first == 3 else first * factor, second if second == 1 else second * factor, *taps]
    return config


def ensemble(config, members):
    return {"network": {"kind": "ensemble", "members": [{"kind": "plain", "model": {"name": "resnet18"}}] * members}}


def rank_one(config, side):
    """A seed of a few bytes that germinates to more than any memory; it can belong to no model of ours."""
    config = copy.deepcopy(config)
    next(iter(config["network"]["weights"].values()))["shape"] = [side, side, 3, 3]
    return config


LARGE = {
    "a wide model": lambda config: wider(config, 600),
    "a wide network": lambda config: everywhere_wider(config, 150),
    "a network that overflows": lambda config: everywhere_wider(config, 10**9),
    "many classes": lambda config: {"network": {"kind": "plain", "model": {"name": "resnet18", "num_classes": 10**9}}},
    "many members": lambda config: ensemble(config, 20),
    "too many members": lambda config: ensemble(config, 10_000),
    "many layers": lambda config: {"network": {"kind": "plain", "model": {"name": "mlp", "widths": [1] * 300_000}}},
    "many weights": lambda config: {
        "network": {**config["network"], "weights": {f"{i}": {"distribution": "KernelSeed"} for i in range(20_000)}}
    },
    "a large seed": lambda config: rank_one(config, 10**6),
    "nested": lambda config: {"network": {"kind": "ensemble", "members": [ensemble(config, 1)["network"]]}},
}


@pytest.mark.parametrize("kind", LARGE)
def test_a_config_of_a_larger_network_is_refused_before_memory_is_taken(kind, stored, tmp_path):
    config, weights = stored
    with (
        pytest.raises(StorageError, match=r"(belongs to another architecture|can be built) \(.+\.$"),
        little_memory(100),
    ):
        load(tmp_path, LARGE[kind](config), weights)


def test_weights_that_stand_for_more_than_there_is_memory_are_refused(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "memory_limit", lambda: 100_000)
    with pytest.raises(StorageError, match=r"of [\d,]+ weights, .* memory for 0.0 GB; take another copy"):
        load(tmp_path, *stored)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-3, 300) | st.floats() | st.text(max_size=5)
    | st.sampled_from([2**31, 2**63, 10**30, "ensemble", "plain", "bayesian", "resnet18", "KernelSeed", "MeanField"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def places(value, path=()):
    """The paths to every value inside a JSON value."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield from places(inner, (*path, key))


def changed(value, path, new, remove):
    """The value with another one at the path, or none."""
    value = copy.deepcopy(value)
    if not path:
        return new
    at = value
    for key in path[:-1]:
        at = at[key]
    if remove:
        del at[path[-1]]
    else:
        at[path[-1]] = new
    return value


def or_an_error(call, *arguments):
    """Any result will do, and any error that is ours, in one line."""
    message = ""
    try:
        call(*arguments)
    except KernelseedError as error:
        message = str(error)
    assert "\n" not in message


@FEW
@given(data=st.data())
def test_any_config_is_a_network_or_an_error_of_ours(data, stored, tmp_path):
    config, weights = stored
    path = data.draw(st.sampled_from(sorted(places(config), key=str)))
    or_an_error(load, tmp_path, changed(config, path, data.draw(JSON), data.draw(st.booleans())), weights)
    or_an_error(load, tmp_path, {"network": data.draw(JSON)}, weights)


@FEW
@given(data=st.data())
def test_any_weights_are_a_network_or_an_error_of_ours(data, stored, tmp_path):
    config, weights = stored
    size = struct.unpack("<Q", weights[:8])[0]
    head = json.loads(weights[8 : 8 + size])
    path = data.draw(st.sampled_from(sorted(places(head), key=str)))
    new = json.dumps(changed(head, path, data.draw(JSON), data.draw(st.booleans()))).encode()
    or_an_error(load, tmp_path, config, struct.pack("<Q", len(new)) + new + weights[8 + size :])
    claimed = data.draw(st.integers(0, 2**64 - 1))
    or_an_error(load, tmp_path, config, struct.pack("<Q", claimed) + data.draw(st.binary(max_size=40)))
    cut = data.draw(st.integers(0, len(weights)))
    or_an_error(load, tmp_path, config, weights[:cut])


def test_weights_of_whole_numbers_are_refused(stored, tmp_path):
    config, weights = stored
    with pytest.raises(StorageError, match=r"is of type I32, and in the network torch\.float32"):
        load(tmp_path, config, weights.replace(b'"F32"', b'"I32"', 1))


# --- run folders -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain_run(hostile, tmp_path_factory):
    """A copy of the run under an ordinary name, and the contents of its files."""
    run = tmp_path_factory.mktemp("run") / "run"
    shutil.copytree(hostile[1], run)
    evaluate(run, ood="digits", shift="contrast", shift_images=5)
    return run, {name: (run / name).read_text() for name in (*ASKED, "metrics.csv")}


def sections_of(run):
    """What the report's page shows of what was found about a run."""
    shown = [Shown(record, record.label, look(0)) for record in report.read([run])]
    return [make(shown) for make in SECTIONS]


ASKED = {
    "config.json": [lambda run, image: predict_files(run, [image]), lambda run, image: describe_run(run)],
    "result.json": [
        lambda run, image: report.read([run]),
        lambda run, image: comparison([RunFolder(run).result()], ""),
    ],
    "evaluation.json": [lambda run, image: RunFolder(run).evaluation()],
    "ood.json": [lambda run, image: sections_of(run)],
    "shift.json": [lambda run, image: sections_of(run)],
}


@pytest.mark.parametrize("name", ASKED)
@FEW
@given(data=st.data())
def test_any_file_of_a_run_is_read_or_an_error_of_ours(name, data, plain_run, hostile):
    run, contents = plain_run
    value = json.loads(contents[name])
    path = data.draw(st.sampled_from(sorted(places(value), key=str)))
    (run / name).write_text(json.dumps(changed(value, path, data.draw(JSON), data.draw(st.booleans()))))
    try:
        for ask in ASKED[name]:
            with at_most(20), little_memory():
                or_an_error(ask, run, hostile[0] / "one.png")
    finally:
        (run / name).write_text(contents[name])


@FEW
@given(st.text(st.sampled_from('epoch,train_loss1.5e-nan\n"\x00δ'), max_size=60) | st.binary(max_size=40))
def test_any_curves_are_read_or_an_error_of_ours(plain_run, content):
    run, contents = plain_run
    path = run / "metrics.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        with little_memory():
            or_an_error(report.read, [run])
    finally:
        path.write_text(contents["metrics.csv"])
