"""What each process of the data-parallel training test runs: Lightning starts it once for every rank."""

import sys
import warnings
from pathlib import Path

import torch
from kinds import convnet

import kernelseed as ks
from kernelseed.data import Batches, Split

SEED, NUM_DATA, BATCH, STEPS = 3, 32, 8, 2


def network():
    torch.manual_seed(0)
    return ks.germinate(convnet(), 0.5, min_rank=2)


def method():
    return ks.methods.make("ksn", kl="1.0", lr=0.01)


def batches(rank, world_size):
    """The same pictures for everybody; each rank sees its share."""
    chosen = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (NUM_DATA, 1, 4, 4), generator=chosen, dtype=torch.uint8)
    split = Split(images, torch.arange(NUM_DATA) % 2)
    return Batches(split, (0.5,), (0.3,), BATCH, shuffle=True, seed=SEED, rank=rank, world_size=world_size)


def work(folder):
    import lightning as L

    from kernelseed.training.steps import EpochBatches, Training

    class Record(L.Callback):
        """The first step's averaged gradients, and the weights after the last step."""

        seen: dict

        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            if pl_module.global_step == 0:
                self.seen = {"gradients": {n: p.grad.clone() for n, p in pl_module.net.named_parameters()}}

        def on_train_end(self, trainer, pl_module):
            weights = {n: p.detach().clone() for n, p in pl_module.net.named_parameters()}
            self.seen |= {"weights": weights, "draws": draws, "steps": pl_module.global_step}
            torch.save(self.seen, Path(folder) / f"{pl_module.global_rank}.pt")

    warnings.filterwarnings("ignore", module="lightning")
    net, draws = network(), []
    draw = net.draw

    def recorded_draw():
        drawn = draw()
        draws.append({name: value.detach() for name, value in drawn.weights.items()})
        return drawn

    net.draw = recorded_draw
    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, callbacks=[Record()], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False,
    )  # fmt: skip
    share = batches(trainer.global_rank, trainer.world_size)
    module = Training(net, method(), num_data=NUM_DATA, num_batches=len(share), seed=SEED, clip=None)
    trainer.fit(module, EpochBatches(share, module))


if __name__ == "__main__":
    work(sys.argv[1])
