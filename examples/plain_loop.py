"""A kernel seed network in a plain PyTorch loop: germinate, ELBO, predict. Nothing else changes.

    python examples/plain_loop.py

It trains on scikit-learn's handwritten digits for a few seconds and prints the loss terms and a line of metrics.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import kernelseed as ks

torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target))
train, test = random_split(data, [0.8, 0.2])

model = nn.Sequential(
    nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10)
)  # fmt: skip
net = ks.germinate(model, delta=0.25)
loss = ks.ELBO(num_data=len(train))
optimizer = torch.optim.Adam(net.parameter_groups(lr=2e-3))
for epoch in range(10):
    for x, y in DataLoader(train, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        terms = loss(net.draw(), x, y)
        terms.loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1:2d}  nll {terms.nll:.3f}  kl {terms.kl:.0f}")

prediction = ks.predict(net, DataLoader(test, batch_size=256), samples=10)
labels = torch.stack([y for _, y in test])
metrics = ks.metrics.summary(prediction.probs, labels)
stored, plain = (sum(p.numel() for p in m.parameters()) for m in (net, model))
print(f"{stored:,} parameters, the plain network has {plain:,}")
print("  ".join(f"{name} {value:.4f}" for name, value in metrics.items()))
