"""A kernel seed network in a LightningModule of your own: `net.draw()` and `ELBO` in the training step.

    python examples/lightning_module.py

The KL weight has a warm-up here, so it depends on the step; Lightning counts the steps.
"""

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import kernelseed as ks


class Digits(L.LightningModule):
    def __init__(self, num_data: int) -> None:
        super().__init__()
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.net = ks.germinate(model, delta=0.5)
        self.loss = ks.ELBO(num_data, kl_weight=ks.schedules.warmup(200))

    def training_step(self, batch, batch_idx):
        terms = self.loss(self.net.draw(), *batch, step=self.global_step)
        self.log_dict({"nll": terms.nll, "kl": terms.kl, "kl_weight": terms.kl_weight})
        return terms.loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())  # in eval mode: the posterior mean

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameter_groups(lr=3e-3))


def main() -> None:
    L.seed_everything(0, verbose=False)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target))
    train, test = random_split(data, [0.8, 0.2])
    loaders = DataLoader(train, batch_size=64, shuffle=True), DataLoader(test, batch_size=256)
    module = Digits(len(train))
    trainer = L.Trainer(
        max_epochs=15, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, *loaders)
    print("  ".join(f"{name} {value.item():.4f}" for name, value in trainer.callback_metrics.items()))
    prediction = ks.predict(module.net, loaders[1], samples=10)
    labels = torch.stack([y for _, y in test])
    print(f"10 draws: accuracy {(prediction.label == labels).float().mean():.4f}")
    wrong = prediction.label != labels
    print(f"entropy: right {prediction.entropy[~wrong].mean():.3f}, wrong {prediction.entropy[wrong].mean():.3f}")


if __name__ == "__main__":
    main()
