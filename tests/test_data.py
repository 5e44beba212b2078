"""Data sets by name: published files, their formats, archives and downloads."""

import contextlib
import dataclasses
import doctest
import gzip
import hashlib
import importlib
import io
import os
import struct
import sys
import tarfile
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from limits import at_most

import kernelseed
from kernelseed import data
from kernelseed.data import catalogue
from kernelseed.data import downloads as files
from kernelseed.data.dataset import channel_statistics
from kernelseed.data.downloads import Source
from kernelseed.data.formats import read_cifar
from kernelseed.errors import ArgumentError, DataError, MissingPackageError, StorageError

NAMES = ["digits", "mnist", "fashion-mnist", "kmnist", "cifar10", "cifar100"]


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(head + array.tobytes(), mtime=0)


def published(source: Source, content: bytes, url: str | None = None) -> Source:
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return dataclasses.replace(source, size=len(content), md5=md5, url=url or source.url)


def tar_gz(entries: list[tuple[tarfile.TarInfo | str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for entry, content in entries:
            if isinstance(entry, str):
                entry = tarfile.TarInfo(entry)
                entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def small_mnist(tmp_path, monkeypatch):
    """MNIST as it is, but with 20 + 10 images; the arrays, and the contents of the four files by name."""
    rng = np.random.default_rng(0)
    known = catalogue.KNOWN["mnist"]
    arrays, contents, sources = [], {}, []
    for (images, labels), count in ((known.train, 20), (known.test, 10)):
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        digits = np.arange(count, dtype=np.uint8) % 10
        arrays.append((pixels, digits))
        for source, array in ((images, pixels), (labels, digits)):
            contents[source.path] = idx(array)
            sources.append(published(source, contents[source.path]))
    small = dataclasses.replace(known, train=tuple(sources[:2]), test=tuple(sources[2:]))
    monkeypatch.setitem(catalogue.KNOWN, "mnist", small)
    return arrays, contents


def lay_out(root: Path, contents: dict[str, bytes]) -> None:
    for path, content in contents.items():
        write(root / path, content)


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


# Names


def test_the_examples_run():
    for module in (data, sys.modules["kernelseed.data.loading"]):
        result = doctest.testmod(module)
        assert result.attempted
        assert not result.failed


def test_digits_are_stretched_bytes_with_one_test_split_for_every_seed():
    from sklearn.datasets import load_digits

    raw = load_digits()
    one, two = data.load("digits", seed=1, validation=0.1), data.load("digits", seed=2, validation=0.1)
    assert torch.equal(one.test.images, two.test.images)
    assert not torch.equal(one.validation.images, two.validation.images)
    assert torch.equal(data.load_test("digits").images, one.test.images)
    assert len(one.train) + len(one.validation) + len(one.test) == len(raw.target)
    assert one.train.images.max() == 255
    assert one.test.images.long().sum() == 1_794_882  # results of different releases stay comparable
    # Put together again, the three parts are the original.
    everything = torch.cat([one.train.images, one.validation.images, one.test.images]).flatten(1)
    expected = torch.from_numpy(np.rint(raw.data * 255 / 16).astype(np.uint8))
    assert sorted(map(bytes, everything.numpy())) == sorted(map(bytes, expected.numpy()))
    for part, fraction in ((one.test, 0.2), (one.validation, 0.08)):
        share = part.labels.bincount() / torch.from_numpy(np.bincount(raw.target))
        assert torch.allclose(share, torch.full((10,), fraction), atol=0.01)
    # The constants are those of train alone.
    pixels = one.train.images.double() / 255
    assert one.mean == pytest.approx([pixels.mean().item()])
    assert one.std == pytest.approx([pixels.std(correction=0).item()])


def test_an_unknown_name_is_answered_with_the_nearest_and_with_all():
    for function in (data.load, data.load_test, data.fetch):
        with pytest.raises(DataError, match=r"'CIFAR-10' is unknown \(did you mean cifar10\?\); known are"):
            function("CIFAR-10")
    with pytest.raises(DataError, match="'zzz' is unknown; known are " + ", ".join(NAMES)):
        data.load("zzz")


def test_options_of_folders_are_refused_elsewhere():
    for option in ({"size": 8}, {"channels": 3}, {"skip_unreadable": True}):
        for function in (data.load, data.load_test):
            with pytest.raises(ArgumentError, match="are for folder:PATH only; digits"):
                function("digits", **option)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"validation": 1.0}, "validation is 1.0; .*: 0 <= validation < 1"),
        ({"validation": 0.1, "seed": -1}, "seed is -1; it must be an integer of at least 0"),
        ({"validation": 0.1, "seed": 1.5}, "seed is 1.5; it must be an integer"),
        ({"channels": 2}, "channels is 2; it must be 1"),
        ({"size": (8, 0)}, r"size is \(8, 0\); .*at least 1 each"),
        ({"size": (8,)}, r"size is \(8,\); it must be a number of pixels, or height and width"),
        ({"size": 8193}, "size is 8193; .*67,108,864 together"),
    ],
)
def test_arguments_out_of_range(argument, message):
    with pytest.raises(ArgumentError, match=message):
        data.load("digits", **argument)


def test_available_says_where(small_mnist, tmp_path):
    _, contents = small_mnist
    assert [entry.name for entry in data.available(tmp_path)] == NAMES
    where = lambda: {entry.name: entry.where for entry in data.available(tmp_path)}  # noqa: E731
    assert where()["digits"] == "scikit-learn"
    assert where()["mnist"] is where()["cifar10"] is None
    lay_out(tmp_path, {path: content for path, content in contents.items() if "t10k" in path})
    assert where()["mnist"] == f"{tmp_path} (test only)"
    lay_out(tmp_path, contents)
    write(tmp_path / "cifar-10-binary.tar.gz", b"")
    assert where()["mnist"] == where()["cifar10"] == str(tmp_path)


def test_a_pipe_in_the_data_folder_is_not_waited_for(small_mnist, tmp_path, monkeypatch):
    """Where neither the size nor the name tell it from a file."""
    lay_out(tmp_path, small_mnist[1])
    path = tmp_path / "mnist/t10k-labels-idx1-ubyte.gz"
    path.unlink()
    os.mkfifo(path)
    known = catalogue.KNOWN["mnist"]
    unsized = tuple(dataclasses.replace(source, size=None) for source in known.test)
    monkeypatch.setitem(catalogue.KNOWN, "mnist", dataclasses.replace(known, test=unsized))
    with at_most(5), pytest.raises(DataError, match=f"{path} is not a regular file"):
        data.load_test("mnist", tmp_path)


def test_the_data_folder_is_argument_then_environment_then_cache(monkeypatch, tmp_path):
    import pooch

    monkeypatch.setenv("KERNELSEED_DATA", str(tmp_path / "environment"))
    assert files.data_folder(tmp_path / "argument") == tmp_path / "argument"
    assert files.data_folder() == tmp_path / "environment"
    monkeypatch.delenv("KERNELSEED_DATA")
    assert files.data_folder() == pooch.os_cache("kernelseed")
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    assert files.data_folder() == Path.home() / ".cache" / "kernelseed"


def test_a_missing_package_is_named_with_its_remedy(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setitem(sys.modules, "pooch", None)
    remedy = r'pip install "kernelseed\[data\]"'
    with pytest.raises(MissingPackageError, match="digits needs sklearn.datasets, .*" + remedy):
        data.load("digits")
    with pytest.raises(MissingPackageError, match="downloading train-images-idx3-ubyte.gz needs pooch, .*" + remedy):
        data.load("mnist", tmp_path)


def test_importing_needs_torch_and_numpy_alone(monkeypatch, tmp_path):
    # The package is imported anew while the others can't be; monkeypatch brings everything back.
    for name in [name for name in sys.modules if name.startswith("kernelseed.data")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("sklearn", "pooch", "PIL", "rich", "tqdm", "requests"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(kernelseed, "data", data)
    anew = importlib.import_module("kernelseed.data")
    assert anew is not data
    assert anew.available(tmp_path)[0].name == "digits"


# Files of the official formats


def test_idx_files_are_read_as_they_are(small_mnist, tmp_path, monkeypatch):
    arrays, contents = small_mnist
    lay_out(tmp_path, contents)
    mnist = data.load("mnist", tmp_path, download=False)
    for split, (images, labels) in zip((mnist.train, mnist.test), arrays, strict=True):
        assert np.array_equal(split.images.numpy(), images[:, None])
        assert np.array_equal(split.labels.numpy(), labels)
    assert (mnist.name, mnist.validation, mnist.mean, mnist.std) == ("mnist", None, (0.1307,), (0.3081,))
    assert mnist.class_names == tuple("0123456789")
    monkeypatch.setenv("KERNELSEED_DATA", str(tmp_path))
    assert torch.equal(data.load_test("mnist", download=False).images, mnist.test.images)


def test_validation_is_a_disjoint_part_of_train(small_mnist, tmp_path):
    arrays, contents = small_mnist
    lay_out(tmp_path, contents)
    one, two, again = (data.load("mnist", tmp_path, validation=0.5, seed=seed, download=False) for seed in (1, 2, 1))
    assert one.validation.labels.bincount().tolist() == [1] * 10
    together = torch.cat([one.train.images, one.validation.images]).flatten(1).numpy()
    assert sorted(map(bytes, together)) == sorted(map(bytes, arrays[0][0].reshape(20, -1)))
    assert torch.equal(one.validation.images, again.validation.images)
    assert not torch.equal(one.validation.images, two.validation.images)
    assert torch.equal(one.test.images, two.test.images)


def test_the_test_split_needs_no_train_files(small_mnist, tmp_path):
    arrays, contents = small_mnist
    lay_out(tmp_path, {path: content for path, content in contents.items() if "t10k" in path})
    assert np.array_equal(data.load_test("mnist", tmp_path, download=False).images.numpy(), arrays[1][0][:, None])
    missing = tmp_path / "mnist/train-images-idx3-ubyte.gz"
    with pytest.raises(DataError, match=f"{missing} is missing; put it there by hand from https://") as caught:
        data.load("mnist", tmp_path, download=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], "has .* bytes; the published file"),
        (
            lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
            "has the md5 .*; the published file has",
        ),
    ],
    ids=["torn", "altered"],
)
def test_a_damaged_file_is_named_and_left_alone(small_mnist, tmp_path, damage, message):
    _, contents = small_mnist
    lay_out(tmp_path, contents)
    path = tmp_path / "mnist/t10k-images-idx3-ubyte.gz"
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=f"{path} {message} .*: delete it and load again"):
        data.load_test("mnist", tmp_path)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "t10k-images-idx3-ubyte.gz",
            idx(np.zeros((10, 28), np.uint8)),
            "is not an idx file of bytes in 3 dim",
        ),
        (
            "t10k-images-idx3-ubyte.gz",
            idx(np.zeros((9, 28, 28), np.uint8)),
            "has 9 images, and .* has 10 labels",
        ),
        ("t10k-images-idx3-ubyte.gz", b"not gzip", "can't be unzipped"),
        ("t10k-images-idx3-ubyte.gz", idx(np.zeros((10, 28, 28), np.uint8))[:-12], "can't be unzipped"),
        ("t10k-images-idx3-ubyte.gz", gzip.compress(b"\0\0\x08\x03"), "is not an idx file"),
        (
            "t10k-labels-idx1-ubyte.gz",
            idx(np.full(10, 10, np.uint8)),
            "label 10; there are 10 classes",
        ),
        (
            "t10k-labels-idx1-ubyte.gz",
            gzip.compress(b"\0\0\x08\x01\0\0\0\x0a" + bytes(9)),
            r"has 9 values; its head promises \(10,\)",
        ),
    ],
    ids=["dimensions", "counts", "no gzip", "torn", "head only", "label", "promise"],
)
def test_idx_files_that_cannot_be_right(small_mnist, tmp_path, monkeypatch, name, content, message):
    """With sizes and checksums unknown, the reader itself must notice."""
    _, contents = small_mnist
    lay_out(tmp_path, contents | {f"mnist/{name}": content})
    known = catalogue.KNOWN["mnist"]
    unchecked = tuple(dataclasses.replace(source, size=None, md5=None) for source in known.test)
    monkeypatch.setitem(catalogue.KNOWN, "mnist", dataclasses.replace(known, test=unchecked))
    with pytest.raises(DataError, match=message) as caught:
        data.load_test("mnist", tmp_path)
    assert str(tmp_path / "mnist" / name) in str(caught.value)


def cifar_records(count: int, label_bytes: int, seed: int) -> tuple[np.ndarray, np.ndarray, bytes]:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, 10, (count, label_bytes), dtype=np.uint8)
    return images, labels[:, -1], np.concatenate([labels, images.reshape(count, -1)], axis=1).tobytes()


@pytest.fixture(params=["cifar10", "cifar100"])
def small_cifar(request, monkeypatch):
    """CIFAR with 4 records a file: its name, expected (images, labels) by path, contents by path."""
    known = catalogue.KNOWN[request.param]
    label_bytes = known.read.keywords["label_bytes"]
    expected, contents = {}, {}
    for seed, source in enumerate(known.train + known.test):
        images, labels, contents[source.path] = cifar_records(4, label_bytes, seed)
        expected[source.path] = images, labels
    archive = published(known.train[0].archive, tar_gz(list(contents.items())))
    shrink = lambda source: Source(source.path, len(contents[source.path]), archive=archive)  # noqa: E731
    train, test = (tuple(map(shrink, sources)) for sources in (known.train, known.test))
    monkeypatch.setitem(catalogue.KNOWN, request.param, dataclasses.replace(known, train=train, test=test))
    return request.param, expected, contents


def assert_is_cifar(dataset: data.Dataset, expected: dict) -> None:
    for split, sources in ((dataset.train, catalogue.KNOWN[dataset.name].train), (dataset.test, None)):
        paths = [source.path for source in sources or catalogue.KNOWN[dataset.name].test]
        assert np.array_equal(split.images.numpy(), np.concatenate([expected[path][0] for path in paths]))
        assert np.array_equal(split.labels.numpy(), np.concatenate([expected[path][1] for path in paths]))


def test_cifar_records_are_read_in_the_order_of_the_files(small_cifar, tmp_path):
    name, expected, contents = small_cifar
    lay_out(tmp_path, contents)
    assert_is_cifar(data.load(name, tmp_path, download=False), expected)


def test_cifar_archive_is_unpacked_where_files_are_missing(small_cifar, tmp_path):
    name, expected, contents = small_cifar
    archive = catalogue.KNOWN[name].test[0].archive
    write(tmp_path / archive.path, tar_gz(list(contents.items())))
    test_path = catalogue.KNOWN[name].test[0].path
    data.load_test(name, tmp_path, download=False)
    assert files_below(tmp_path) == sorted([archive.path, test_path])
    before = (tmp_path / test_path).stat()
    assert_is_cifar(data.load(name, tmp_path, download=False), expected)
    assert files_below(tmp_path) == sorted([archive.path, *contents])
    assert (tmp_path / test_path).stat().st_mtime_ns == before.st_mtime_ns  # not unpacked again


def test_cifar_files_that_cannot_be_right(small_cifar, tmp_path):
    name, _, contents = small_cifar
    path = catalogue.KNOWN[name].test[0].path
    lay_out(tmp_path, contents | {path: contents[path][:-1]})
    with pytest.raises(DataError, match=f"{tmp_path / path} has .* bytes; the published file has"):
        data.load(name, tmp_path)
    lay_out(tmp_path, {path: b"\xff\xff" + contents[path][2:]})
    with pytest.raises(DataError, match=f"{tmp_path / path} has the label 255; there are 100? classes"):
        data.load(name, tmp_path)


def test_cifar_reader_wants_whole_records(tmp_path):
    for size in (0, 3072, 3074):
        path = write(tmp_path / "some.bin", bytes(size))
        with pytest.raises(DataError, match=f"has {size} bytes; they must be records of 3073"):
            read_cifar([path], classes=10, label_bytes=1)


def test_long_cifar_files_are_read_in_pieces(tmp_path, monkeypatch):
    from kernelseed.data import formats

    monkeypatch.setattr(formats, "_RECORDS_AT_ONCE", 3)
    images, labels, content = cifar_records(7, 2, seed=0)
    split = read_cifar([write(tmp_path / "some.bin", content)], classes=10, label_bytes=2)
    assert np.array_equal(split.images.numpy(), images)
    assert np.array_equal(split.labels.numpy(), labels)


# Archives


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = kind, target
    return entry


def test_unpacking_takes_the_expected_members_and_nothing_else(tmp_path):
    root = tmp_path / "root"
    hostile = [("../outside", b"x"), (str(tmp_path / "absolute"), b"x"), ("folder/other.bin", b"x")]
    archive = write(tmp_path / "a.tar.gz", tar_gz([*hostile, ("folder/wanted.bin", b"wanted")]))
    files.unpack(archive, [Source("folder/wanted.bin", size=6)], root)
    assert files_below(tmp_path) == ["a.tar.gz", "root/folder/wanted.bin"]
    assert (root / "folder/wanted.bin").read_bytes() == b"wanted"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_a_link_is_not_unpacked(tmp_path, kind):
    archive = write(tmp_path / "a.tar.gz", tar_gz([("secret", b"x"), (link("wanted", "secret", kind), b"")]))
    with pytest.raises(DataError, match=r"wanted in .*a.tar.gz is a link or a folder"):
        files.unpack(archive, [Source("wanted")], tmp_path / "root")
    assert files_below(tmp_path) == ["a.tar.gz"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (tar_gz([("other", b"x")]), "lacks wanted; delete it"),
        (
            tar_gz([("wanted", b"short")]),
            "wanted in .*a.tar.gz has 5 bytes; the published file has 6: delete the archive",
        ),
        (tar_gz([("wanted", bytes(6))])[:30], "can't be unpacked"),
        (b"no archive", "can't be unpacked"),
    ],
    ids=["member missing", "member torn", "archive torn", "no archive"],
)
def test_a_broken_archive_leaves_nothing_behind(tmp_path, content, message):
    archive = write(tmp_path / "a.tar.gz", content)
    with pytest.raises(DataError, match=message):
        files.unpack(archive, [Source("wanted", size=6)], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


def test_a_file_that_exists_is_never_written_over(tmp_path):
    archive = write(tmp_path / "a.tar.gz", tar_gz([("wanted", b"new")]))
    write(tmp_path / "wanted", b"old")
    files.unpack(archive, [Source("wanted")], tmp_path)
    assert (tmp_path / "wanted").read_bytes() == b"old"


# Downloads, from a server on this machine


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        content = self.server.contents.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.server.asked.append(self.path)
        self.send_response(200)
        if not self.server.surplus:
            self.send_header("Content-Length", self.server.promise or str(len(content) + self.server.withheld))
        self.end_headers()
        self.wfile.write(content)
        with contextlib.suppress(OSError):  # the client may have enough before
            self.wfile.write(bytes(self.server.surplus))

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.contents, running.asked = {}, []
        running.withheld, running.surplus, running.promise = 0, 0, None
        running.url = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=partial(running.serve_forever, poll_interval=0.02))
        thread.start()
        yield running
        running.shutdown()
        thread.join(10)


@pytest.fixture
def served_mnist(server, small_mnist, monkeypatch):
    _, contents = small_mnist
    server.contents = {f"/{path}": content for path, content in contents.items()}
    known = catalogue.KNOWN["mnist"]
    train, test = (
        tuple(dataclasses.replace(source, url=f"{server.url}/{source.path}") for source in sources)
        for sources in (known.train, known.test)
    )
    monkeypatch.setitem(catalogue.KNOWN, "mnist", dataclasses.replace(known, train=train, test=test))
    return contents


def test_what_is_missing_is_downloaded_once(server, served_mnist, tmp_path):
    root = tmp_path / "new" / "folder"
    write(root / "mnist/t10k-labels-idx1-ubyte.gz", served_mnist["mnist/t10k-labels-idx1-ubyte.gz"])
    paths = data.fetch("mnist", root)
    assert {str(path.relative_to(root)): path.read_bytes() for path in paths} == served_mnist
    assert files_below(root) == sorted(served_mnist)
    assert len(server.asked) == 3
    assert len(data.load("mnist", root).train) == 20
    assert len(server.asked) == 3


def test_load_test_downloads_the_test_files_only(server, served_mnist, tmp_path):
    assert len(data.load_test("mnist", tmp_path)) == 10
    assert sorted(server.asked) == ["/mnist/t10k-images-idx3-ubyte.gz", "/mnist/t10k-labels-idx1-ubyte.gz"]


def test_fetch_unpacks_an_archive(server, small_cifar, tmp_path, monkeypatch):
    name, expected, contents = small_cifar
    known = catalogue.KNOWN[name]
    packed = tar_gz(list(contents.items()))
    server.contents["/packed"] = packed
    archive = published(known.test[0].archive, packed, f"{server.url}/packed")
    train, test = (
        tuple(dataclasses.replace(source, archive=archive) for source in sources)
        for sources in (known.train, known.test)
    )
    monkeypatch.setitem(catalogue.KNOWN, name, dataclasses.replace(known, train=train, test=test))
    data.fetch(name, tmp_path)
    assert files_below(tmp_path) == sorted([archive.path, *contents])
    assert_is_cifar(data.load(name, tmp_path, download=False), expected)
    assert server.asked == ["/packed"]


@pytest.mark.parametrize("name", ["digits", "folder:images"])
def test_some_need_no_fetching(tmp_path, name):
    assert data.fetch(name, tmp_path) == []
    assert files_below(tmp_path) == []


def assert_fetch_fails(root: Path, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        data.fetch("mnist", root)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{root}/mnist/train-images-idx3-ubyte.gz ")
    assert "put it there by hand from http" in str(caught.value)
    assert [path for path in root.rglob("*") if path.name != "mnist"] == []


def test_a_download_with_a_bad_checksum_leaves_nothing_behind(server, served_mnist, tmp_path):
    path = "/mnist/train-images-idx3-ubyte.gz"
    server.contents[path] = server.contents[path][:-1] + b"?"
    assert_fetch_fails(tmp_path, "as downloaded has the md5")


def test_a_broken_connection_leaves_nothing_behind(server, served_mnist, tmp_path):
    server.withheld = 100
    assert_fetch_fails(tmp_path, "can't be downloaded .*IncompleteRead|as downloaded has .* bytes")


def test_an_absent_page_leaves_nothing_behind(server, served_mnist, tmp_path):
    server.contents.clear()
    assert_fetch_fails(tmp_path, "can't be downloaded .404")


def test_a_download_has_a_limit(server, served_mnist, tmp_path, monkeypatch):
    server.surplus = 1 << 22
    size = len(served_mnist["mnist/train-images-idx3-ubyte.gz"])
    assert_fetch_fails(tmp_path, rf"can't be downloaded \(the server sends more than {size:,} bytes\)")
    known = catalogue.KNOWN["mnist"]
    unknown = tuple(dataclasses.replace(source, size=None, md5=None) for source in known.train)
    monkeypatch.setitem(catalogue.KNOWN, "mnist", dataclasses.replace(known, train=unknown))
    monkeypatch.setattr(files, "MAX_DOWNLOAD", 1 << 18)
    assert_fetch_fails(tmp_path, r"can't be downloaded \(the server sends more than 262,144 bytes\)")


def test_a_size_that_is_no_number_leaves_nothing_behind(server, served_mnist, tmp_path):
    server.promise = "many"
    assert_fetch_fails(tmp_path, "can't be downloaded .*'many'")


def test_no_network_says_what_to_put_where(served_mnist, tmp_path, monkeypatch):
    import requests

    def refuse(*args, **kwargs):
        raise requests.ConnectionError("no\nnetwork")

    monkeypatch.setattr(requests, "get", refuse)
    assert_fetch_fails(tmp_path, r"can't be downloaded \(no network\)")


def test_a_folder_that_cannot_be_written_is_said_so(served_mnist, tmp_path):
    blocked = write(tmp_path / "a file", b"")
    with pytest.raises(StorageError, match=r"can't make the folder .*: Not a directory: choose a folder that exists"):
        data.fetch("mnist", blocked)


@pytest.mark.parametrize("drawn_by", ["rich", "tqdm", None])
def test_progress_is_drawn_by_what_is_installed(server, served_mnist, tmp_path, monkeypatch, drawn_by, capsys):
    find_spec = files.importlib.util.find_spec
    absent = {"rich": set(), "tqdm": {"rich"}, None: {"rich", "tqdm"}}[drawn_by]
    monkeypatch.setattr(
        files.importlib.util,
        "find_spec",
        lambda name, *rest: None if name in absent else find_spec(name, *rest),
    )
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    assert len(data.load_test("mnist", tmp_path)) == 10
    shown = capsys.readouterr().err
    assert ("t10k-images" in shown) == (drawn_by == "rich")
    assert ("100%|" in shown) == (drawn_by == "tqdm")


# The real thing, where it is at hand

REAL = os.environ.get("KERNELSEED_DATA")
FOUND = [entry for entry in data.available(REAL)[1:] if entry.where] if REAL else []


@pytest.mark.skipif(not FOUND, reason="KERNELSEED_DATA names no folder with real data sets")
@pytest.mark.parametrize(("name", "where"), [(entry.name, entry.where) for entry in FOUND])
def test_real_sets_have_the_published_constants(name, where):
    test = data.load_test(name, download=False)
    assert len(test) == 10_000
    assert test.labels.unique().tolist() == list(range(len(catalogue.KNOWN[name].class_names)))
    if where.endswith("(test only)"):
        return
    real = data.load(name, download=False)
    mean, std = channel_statistics(real.train.images)
    assert real.mean == pytest.approx(mean, abs=1e-4)
    assert real.std == pytest.approx(std, abs=1e-4)
    names = Path(REAL, "cifar-100-binary/fine_label_names.txt")
    if name == "cifar100" and names.exists():
        assert real.class_names == tuple(names.read_text().split())
