"""The data sets known by name: what they are, which files they consist of, and their published constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from kernelseed.data.dataset import Split, stratified_split
from kernelseed.data.downloads import Source
from kernelseed.data.formats import cifar_record_bytes, read_cifar, read_idx
from kernelseed.data.optional import require

_DIGITS_TEST_FRACTION = 0.2


@dataclass(frozen=True)
class KnownSet:
    """A published data set: the files of each split, and `read` that makes a Split of them."""

    description: str
    train: tuple[Source, ...]
    test: tuple[Source, ...]
    read: Callable[[Sequence[Path]], Split]
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def read_digits() -> tuple[Split, Split]:
    """scikit-learn's 8x8 digits, 0..16 stretched to 0..255, with one test part for every seed."""
    digits = require("sklearn.datasets", "the data set digits").load_digits()
    images = torch.from_numpy(np.rint(digits.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(digits.target.astype(np.int64))
    return stratified_split(Split(images, labels), _DIGITS_TEST_FRACTION, seed=0)


def _idx_set(
    folder: str,
    description: str,
    *,
    address: str,
    files: Sequence[tuple[int | None, str]],  # size and md5, in the order of `names`
    class_names: str,
    mean: float,
    std: float,
) -> KnownSet:
    names = [f"{split}-{kind}-ubyte.gz" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    sources = tuple(
        Source(f"{folder}/{name}", size, md5, url=address + name)
        for name, (size, md5) in zip(names, files, strict=True)
    )
    classes = tuple(class_names.split())
    read = partial(read_idx, classes=len(classes))
    return KnownSet(description, sources[:2], sources[2:], read, classes, (mean,), (std,))


def _cifar_set(
    folder: str,
    description: str,
    *,
    archive: tuple[str, int, str],  # name, size and md5
    label_bytes: int,
    train: dict[str, int],  # images in each file
    test: dict[str, int],
    class_names: str,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> KnownSet:
    packed = Source(*archive, url=f"https://www.cs.toronto.edu/~kriz/{archive[0]}")
    # The order of the records may differ between honest copies, so only the archive has a checksum.
    train_sources, test_sources = (
        tuple(
            Source(f"{folder}/{name}", count * cifar_record_bytes(label_bytes), archive=packed)
            for name, count in split.items()
        )
        for split in (train, test)
    )
    classes = tuple(class_names.split())
    read = partial(read_cifar, classes=len(classes), label_bytes=label_bytes)
    return KnownSet(description, train_sources, test_sources, read, classes, mean, std)


KNOWN: dict[str, KnownSet] = {
    "mnist": _idx_set(
        "mnist",
        "handwritten digits, 28x28 grey, 60,000 + 10,000",
        address="https://ossci-datasets.s3.amazonaws.com/mnist/",
        files=[
            (9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            (28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
            (1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
            (4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
        ],
        class_names="0 1 2 3 4 5 6 7 8 9",
        mean=0.1307,
        std=0.3081,
    ),
    "fashion-mnist": _idx_set(
        "fashion-mnist",
        "Zalando's clothes, 28x28 grey, 60,000 + 10,000",
        address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        files=[
            (26_421_880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            (29_515, "25c81989df183df01b3e8a0aad5dffbe"),
            (4_422_102, "bef4ecab320f06d8554ea6380940ec79"),
            (5_148, "bb300cfdad3c16e7a12a480ee83cd310"),
        ],
        class_names="t-shirt trouser pullover dress coat sandal shirt sneaker bag ankle-boot",
        mean=0.2860,
        std=0.3530,
    ),
    "kmnist": _idx_set(
        "kmnist",
        "cursive Japanese characters, 28x28 grey, 60,000 + 10,000",
        address="http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        files=[
            (18_165_135, "bdb82020997e1d708af4cf47b453dcf7"),
            (None, "e144d726b3acfaa3e44228e80efcd344"),
            (3_041_136, "5c965bf0a639b31b8f53240b1b52f4d7"),
            (5_120, "7320c461ea6c1c855c0b718fb2a4b134"),
        ],
        class_names="o ki su tsu na ha ma ya re wo",
        mean=0.1918,
        std=0.3483,
    ),
    "cifar10": _cifar_set(
        "cifar-10-batches-bin",
        "photographs of 10 kinds of things, 32x32 colour, 50,000 + 10,000",
        archive=("cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),
        label_bytes=1,
        train={f"data_batch_{number}.bin": 10_000 for number in range(1, 6)},
        test={"test_batch.bin": 10_000},
        class_names="airplane automobile bird cat deer dog frog horse ship truck",
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    ),
    "cifar100": _cifar_set(
        "cifar-100-binary",
        "photographs of 100 kinds of things, 32x32 colour, 50,000 + 10,000",
        archive=("cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"),
        label_bytes=2,
        train={"train.bin": 50_000},
        test={"test.bin": 10_000},
        class_names="""
        apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
        butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
        crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
        keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
        mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain
        plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
        skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
        television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
        """,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    ),
}
