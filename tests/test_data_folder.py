"""Images in class folders."""

import os
import struct
import warnings
import zlib

import numpy as np
import pytest
import torch
from limits import at_most
from PIL import EpsImagePlugin, Image

from kernelseed import data
from kernelseed.data.images import FORMATS
from kernelseed.errors import ArgumentError, DataError


def image(path, seed=0, size=(6, 5), colour=False):
    """A random image of (height, width), as it was saved."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3) if colour else size, dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def fill(folder, classes=("cat", "dog"), count=5, **kind):
    return {
        (name, number): image(folder / name / f"{number}.png", 100 * label + number, **kind)
        for label, name in enumerate(classes)
        for number in range(count)
    }


def test_train_and_test_folders_are_read_as_they_are(tmp_path):
    train, test = fill(tmp_path / "train", colour=True), fill(tmp_path / "test", count=2, colour=True)
    pets = data.load(f"folder:{tmp_path}")
    assert pets.class_names == ("cat", "dog")
    for split, saved in ((pets.train, train), (pets.test, test)):
        assert np.array_equal(split.images.numpy(), np.stack(list(saved.values())).transpose(0, 3, 1, 2))
        assert split.labels.tolist() == [("cat", "dog").index(name) for name, _ in saved]
    pixels = pets.train.images.double() / 255
    assert pets.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist())
    assert pets.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist())


def test_one_folder_is_split_by_seed(tmp_path):
    saved = fill(tmp_path, count=10)
    one, again, two = (data.load(f"folder:{tmp_path}", seed=seed) for seed in (1, 1, 2))
    assert one.test.labels.bincount().tolist() == [2, 2]
    together = torch.cat([one.train.images, one.test.images]).flatten(1).numpy()
    assert sorted(map(bytes, together)) == sorted(pixels.tobytes() for pixels in saved.values())
    assert torch.equal(one.test.images, again.test.images)
    assert not torch.equal(one.test.images, two.test.images)
    assert torch.equal(data.load_test(f"folder:{tmp_path}", seed=2).images, two.test.images)


def test_validation_is_taken_before_the_constants(tmp_path):
    fill(tmp_path, count=10)
    pets = data.load(f"folder:{tmp_path}", validation=0.25)
    assert [len(pets.train), len(pets.validation), len(pets.test)] == [12, 4, 4]
    assert pets.mean == pytest.approx([pets.train.images.double().mean().item() / 255])


def test_one_coloured_image_makes_all_coloured(tmp_path):
    grey = fill(tmp_path / "train")
    fill(tmp_path / "test")
    name = f"folder:{tmp_path}"
    assert data.load(name).train.images.shape[1] == 1
    assert data.load(name, channels=3).train.images.shape[1] == 3
    image(tmp_path / "test/cat/new.png", colour=True)
    pets = data.load(name)
    assert pets.train.images.shape[1] == pets.test.images.shape[1] == len(pets.mean) == 3
    for channel in pets.train.images.unbind(1):
        assert np.array_equal(channel[0].numpy(), grey["cat", 0])
    assert data.load(name, channels=1).test.images.shape[1] == 1


def test_images_are_resized(tmp_path):
    fill(tmp_path, size=(20, 10))
    flat = tmp_path / "cat/0.png"
    Image.new("L", (40, 30), 77).save(flat)
    square, wide = data.load(f"folder:{tmp_path}", size=8), data.load(f"folder:{tmp_path}", size=(4, 6))
    assert square.train.images.shape[2:] == (8, 8)
    assert wide.train.images.shape[2:] == (4, 6)
    everything = torch.cat([square.train.images, square.test.images])
    assert (everything == 77).flatten(1).all(1).sum() == 1


def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path):
    fill(tmp_path, size=(1, 3))
    Image.fromarray(np.array([[0, 256, 65535]], np.uint16)).save(tmp_path / "cat/0.png")
    pets = data.load(f"folder:{tmp_path}")
    assert [0, 1, 255] in torch.cat([pets.train.images, pets.test.images]).flatten(1).tolist()


def test_hidden_files_and_other_files_are_no_images(tmp_path):
    fill(tmp_path)
    (tmp_path / "cat/notes.txt").write_text("no image")
    (tmp_path / "cat/._0.png").write_text("no image")
    (tmp_path / ".cache").mkdir()
    pets = data.load(f"folder:{tmp_path}")
    assert len(pets.train) + len(pets.test) == 10


def test_a_class_may_be_called_train(tmp_path):
    fill(tmp_path, classes=("bus", "train"))
    assert data.load(f"folder:{tmp_path}").class_names == ("bus", "train")


def test_the_test_folder_needs_no_train_folder(tmp_path):
    saved = fill(tmp_path / "test")
    split = data.load_test(f"folder:{tmp_path}")
    assert np.array_equal(split.images[:, 0].numpy(), np.stack(list(saved.values())))
    with pytest.raises(DataError, match=f"{tmp_path / 'train'} is not a folder"):
        data.load(f"folder:{tmp_path}")


def test_unreadable_images_are_named_or_counted(tmp_path):
    fill(tmp_path)
    whole = (tmp_path / "cat/0.png").read_bytes()
    (tmp_path / "cat/torn.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "dog/wrong.jpg").write_text("no image")
    with pytest.raises(DataError, match=f"{tmp_path}/cat/torn.png is not a readable image .*skip_unreadable=True"):
        data.load(f"folder:{tmp_path}")
    with pytest.warns(UserWarning, match=f"skipped 2 unreadable of 12 images, the first is {tmp_path}/cat/torn"):
        pets = data.load(f"folder:{tmp_path}", skip_unreadable=True)
    assert len(pets.train) + len(pets.test) == 10
    (tmp_path / "cat/torn.png").unlink()
    (tmp_path / "dog/wrong.jpg").unlink()
    data.load(f"folder:{tmp_path}", skip_unreadable=True)  # nothing to warn of


def test_32_bit_images_are_unreadable(tmp_path):
    fill(tmp_path)
    Image.fromarray(np.zeros((6, 5), np.float32)).save(tmp_path / "cat/0.tif")
    with pytest.raises(DataError, match=r"cat/0.tif is not a readable image .*32 bits"):
        data.load(f"folder:{tmp_path}")


def test_a_class_without_readable_images(tmp_path):
    fill(tmp_path)
    (tmp_path / "eel").mkdir()
    with pytest.raises(DataError, match=f"{tmp_path / 'eel'} has no readable images"):
        data.load(f"folder:{tmp_path}")
    (tmp_path / "eel/0.png").write_text("no image")
    with (
        pytest.warns(UserWarning, match="skipped 1 unreadable of 11"),
        pytest.raises(DataError, match=f"{tmp_path / 'eel'} has no readable images"),
    ):
        data.load(f"folder:{tmp_path}", skip_unreadable=True)


def test_folders_that_cannot_be_a_data_set(tmp_path):
    def fails(path, message):
        with pytest.raises(DataError, match=message) as caught:
            data.load(f"folder:{path}")
        assert "\n" not in str(caught.value)

    fails("", "folder: has no path")
    fails(tmp_path / "absent", f"{tmp_path / 'absent'} is not a folder")
    (tmp_path / "empty").mkdir()
    fails(tmp_path / "empty", f"{tmp_path / 'empty'} has no images")
    fill(tmp_path / "one", classes=["cat"])
    fails(tmp_path / "one", f"{tmp_path / 'one'} has one class only, cat")
    fill(tmp_path / "single", count=1)
    fails(tmp_path / "single", f"{tmp_path / 'single' / 'cat'} has one image")
    fill(tmp_path / "odd/train")
    fill(tmp_path / "odd/test", classes=["cat", "eel"])
    fails(tmp_path / "odd", "have different classes; dog, eel in one of them only")
    fill(tmp_path / "sizes/train")
    fill(tmp_path / "sizes/test", size=(7, 5))
    fails(tmp_path / "sizes", r"differ in size: .*train/cat/0.png is 6x5 and .*test/cat/0.png is 7x5 .*size=5")
    # Were class folders searched deeply, train and val would be taken for two classes.
    fill(tmp_path / "imagenet/train")
    fill(tmp_path / "imagenet/val")
    fails(tmp_path / "imagenet", "has no images")


# Single images, and files that are none


def test_single_images_are_one_tensor(tmp_path):
    saved = fill(tmp_path, count=2)
    paths = [tmp_path / name / f"{number}.png" for name, number in saved]
    assert np.array_equal(data.read_images(paths)[:, 0].numpy(), np.stack(list(saved.values())))
    image(tmp_path / "wide.png", size=(6, 9))
    with pytest.raises(DataError, match=r"have 2 different shapes; .*give size= and channels="):
        data.read_images([*paths, tmp_path / "wide.png"])
    assert data.read_images([*paths, tmp_path / "wide.png"], size=(4, 3), channels=3).shape == (5, 3, 4, 3)
    with pytest.raises(ArgumentError, match="paths is empty"):
        data.read_images([])


def test_the_formats_that_are_meant_are_read_whatever_their_names(tmp_path):
    for number, kind in enumerate(FORMATS):
        path = tmp_path / f"{number}.png"
        Image.new("RGB", (6, 5), (200, 30, 90)).save(path, format=kind)
        (read,) = data.read_images([path])
        assert read.shape == (3, 5, 6)
        assert (read.float().mean((1, 2)) - torch.tensor([200.0, 30, 90])).abs().max() < 5


def test_a_camera_held_sideways_is_turned(tmp_path):
    pixels = image(tmp_path / "upright.png")
    turned = Image.fromarray(pixels)
    turned.getexif()[0x0112] = 6  # shown rotated by a quarter
    turned.save(tmp_path / "turned.png", exif=turned.getexif())
    (read,) = data.read_images([tmp_path / "turned.png"])
    assert np.array_equal(read[0].numpy(), np.rot90(pixels, -1))


def refused(path, reason):
    """The file is no image, alone and in a folder; skipping leaves it out."""
    with pytest.raises(DataError, match=f"{path} is not a readable image .*{reason}.*: replace it or leave it out"):
        data.read_images([path])
    folder = path.parent.parent
    with pytest.raises(DataError, match=reason):
        data.load(f"folder:{folder}")
    with pytest.warns(UserWarning, match="skipped 1 unreadable of 11 images"):
        assert len(data.load(f"folder:{folder}", skip_unreadable=True).train) == 8


def test_no_program_is_started_for_an_image(tmp_path, monkeypatch):
    """Pillow hands EPS to Ghostscript, whatever the file is called."""
    mark = tmp_path / "was run"
    program = tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # look for it again
    fill(tmp_path / "mine")
    path = tmp_path / "mine/cat/photo.png"
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 6\n%%EndComments\nshowpage\n")
    refused(path, "its content is of no known format")
    assert not mark.exists()


def test_a_pipe_is_not_waited_for(tmp_path):
    fill(tmp_path)
    os.mkfifo(tmp_path / "cat/pipe.png")
    with at_most(5):
        refused(tmp_path / "cat/pipe.png", "it is not a regular file")


@pytest.mark.parametrize(
    ("width", "height"),
    [(8193, 8192), (1, 65_536), (10_000, 10_000), (100_000, 100_000)],
    ids=["pixels", "side", "over Pillow's warning", "over Pillow's error"],
)
def test_a_huge_image_is_refused_by_its_header(width, height, tmp_path):
    """The file holds no pixels: decoding it would end in "truncated"."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    fill(tmp_path)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    bomb = tmp_path / "cat/bomb.png"
    bomb.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b""))
    refused(bomb, "it has more than 67,108,864 pixels, or more than 65,535 on one side")
    with warnings.catch_warnings():  # nor does a user's own filter change that
        warnings.simplefilter("always")
        with pytest.raises(DataError, match="67,108,864"):
            data.read_images([bomb])


def test_an_image_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match=r"absent.png is not a readable image \(there is no such file\)"):
        data.read_images([tmp_path / "absent.png"])
