"""A BERT classifier from transformers as a kernel seed network: dict batches in, `output.logits` out.

    python examples/transformers_model.py

The model is tiny and the sentences are random: class 1 if the word "7" comes before the word "3". A pretrained model is
converted in the same way; the posterior then starts at its weights.
"""

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

import kernelseed as ks

LENGTH, WORDS, EPOCHS, BATCH = 8, 12, 8, 64


def sentences(count: int) -> list[dict[str, torch.Tensor]]:
    """One "7" and one "3" among other words, padded with 0 to the same length."""
    rows = []
    for _ in range(count):
        length = int(torch.randint(4, LENGTH + 1, ()))
        words = torch.randint(8, WORDS, (LENGTH,))
        first, second = torch.randperm(length)[:2].tolist()
        words[first], words[second], words[length:] = 7, 3, 0
        rows.append(
            {"input_ids": words, "attention_mask": (words > 0).long(), "labels": torch.tensor(int(first < second))}
        )
    return rows


torch.manual_seed(0)
config = BertConfig(
    vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=LENGTH, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
train, test = sentences(1024), sentences(256)
net = ks.germinate(BertForSequenceClassification(config), delta=0.5)
likelihood = ks.likelihoods.Categorical(read=lambda output: output.logits)
# A transformer from nothing learns little at first; with the whole KL from the start, its prior would hold it there.
loss = ks.ELBO(len(train), kl_weight=ks.schedules.warmup(EPOCHS * len(train) // BATCH), likelihood=likelihood)
optimizer = torch.optim.Adam(net.parameter_groups(lr=2e-3))
step = 0
for epoch in range(EPOCHS):
    for batch in DataLoader(train, batch_size=BATCH, shuffle=True):
        labels = batch.pop("labels")
        optimizer.zero_grad()
        terms = loss(net.draw(), batch, labels, step=step)
        terms.loss.backward()
        optimizer.step()
        step += 1
    print(f"epoch {epoch + 1}  nll {terms.nll:.3f}")

prediction = ks.predict(net, DataLoader(test, batch_size=128), samples=10, likelihood=likelihood)
labels = torch.stack([row["labels"] for row in test])
print(f"accuracy {(prediction.label == labels).float().mean():.4f}")
print(f"mutual information {prediction.mutual_information.mean():.4f}")
