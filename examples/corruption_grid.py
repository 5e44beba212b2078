"""What the corruptions of `kernelseed evaluate --shift` do to images: a row for each, severity 0 to 5 across.

    python examples/corruption_grid.py [grid.png] [DATA...]

DATA are names of data sets, one block of columns for each; default: digits, which need no download. The figure in
docs/shift.md is of fashion-mnist and cifar10. An image's damage follows from the seed and the image, so it is the same
in any batch, on any day.
"""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import kernelseed as ks

path = sys.argv[1] if len(sys.argv) > 1 else "grid.png"
names = sys.argv[2:] or ["digits"]
CHOSEN = {"fashion-mnist": [0, 18], "cifar10": [1, 12]}  # test images that show something; else the first two

columns = []  # a severity, and the image after each corruption
for name in names:
    images = ks.data.load_test(name).images
    for i in CHOSEN.get(name, [0, 1]):
        image = images[i : i + 1]
        for severity in (0, *ks.data.SEVERITIES):
            damaged = [ks.data.corrupt(image, c, severity) if severity else image for c in ks.data.CORRUPTIONS]
            columns.append((severity, [one[0].permute(1, 2, 0) for one in damaged]))

rows = list(ks.data.CORRUPTIONS)
figure, axes = plt.subplots(len(rows), len(columns), figsize=(0.52 * len(columns) + 1.1, 0.55 * len(rows) + 0.2))
for column, (severity, damaged) in zip(axes.T, columns, strict=True):
    column[0].set_title(severity, fontsize=8, pad=3)
    for axis, image in zip(column, damaged, strict=True):
        axis.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
for axis, name in zip(axes[:, 0], rows, strict=True):
    axis.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
figure.subplots_adjust(1.1 / figure.get_figwidth(), 0.005, 0.998, 0.955, 0.04, 0.04)
figure.savefig(path, dpi=110)
print(f"{path}: {len(rows)} corruptions of {', '.join(names)}")
