"""What bfloat16 products in germination do to the ELBO and to a trained network.

Trains a KSN .25 (ResNet-18, width 16) on the 8 x 8 digits of scikit-learn with each setting of
torch.set_float32_matmul_precision, and then evaluates each network with the same noise in all of them. Results go to
results/precision.json.

    python benchmarks/precision.py [--seeds 3] [--epochs 20]
"""

import argparse
import statistics
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import kernelseed as ks
from kernelseed.system.files import write_json
from kernelseed.training.origin import provenance

OUT = Path(__file__).resolve().parent.parent / "results" / "precision.json"
PRECISIONS = {"highest": "float32", "high": "rho in bfloat16", "medium": "both in bfloat16"}
DRAWS, BATCH, SPLIT = 20, 100, 1200
PRIOR = ks.ScaleMixture()


def digits():
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(data.images, dtype=torch.float32)[order, None] / 8 - 1, torch.tensor(data.target)[order]
    return (x[:SPLIT], y[:SPLIT]), (x[SPLIT:], y[SPLIT:])


def trained(seed, epochs, x, y):
    torch.manual_seed(seed)
    net = ks.germinate(ks.models.resnet18(10, 1, stem="cifar", width=16), 0.25, over="weights")
    loss = ks.ELBO(len(x), kl_weight=ks.schedules.automatic())
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            loss(net.draw(), x[rows], y[rows]).loss.backward()
            optimizer.step()
    return net


@torch.no_grad()
def terms(net, x, y):
    """KL and NLL of draws whose noise is the same in every call."""
    draws = [net.draw(torch.Generator().manual_seed(seed)) for seed in range(DRAWS)]
    return [d.kl(PRIOR).item() for d in draws], [F.cross_entropy(d(x), y).item() for d in draws]


def elbo(net, x, y):
    """The difference of each precision's KL (relative) and NLL from float32's, and how draws differ anyway."""
    found = {}
    for precision in PRECISIONS:
        torch.set_float32_matmul_precision(precision)
        found[precision] = terms(net, x, y)
    kl, nll = found["highest"]
    between = {"KL, relative": statistics.stdev(kl) / statistics.mean(kl), "NLL": statistics.stdev(nll)}
    differences = {
        name: {
            "KL, relative": statistics.mean(b / a - 1 for a, b in zip(kl, found[name][0], strict=True)),
            "NLL": statistics.mean(b - a for a, b in zip(nll, found[name][1], strict=True)),
        }
        for name in ("high", "medium")
    }
    return {"standard deviation of draws": between, "mean difference": differences}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    chosen = parser.parse_args()
    train, test = digits()
    runs = []
    for seed in range(chosen.seeds):
        for precision, meaning in PRECISIONS.items():
            torch.set_float32_matmul_precision(precision)
            net = trained(seed, chosen.epochs, *train)
            torch.set_float32_matmul_precision("highest")
            torch.manual_seed(1)
            probs = ks.predict(net.eval(), test[0], DRAWS).probs
            nll, acc = F.nll_loss(probs.log(), test[1]).item(), (probs.argmax(1) == test[1]).float().mean().item()
            runs.append({"seed": seed, "trained with": meaning, "nll": nll, "acc": acc, "elbo": elbo(net, *test)})
            print(runs[-1])
    write_json(OUT, {"setting": vars(chosen), "runs": runs, **provenance()})


if __name__ == "__main__":
    main()
