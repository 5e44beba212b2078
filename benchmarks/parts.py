"""The parts of the benchmark: each measures some subjects in turns, and gives its results as JSON."""

from functools import partial

import floors
import footprint
import subjects
import torch
import training_steps
from timing import pieces, rounds

import kernelseed as ks


def small_networks(count):
    """Ten draws of a small network on 32 examples, compared with one pass of the plain one: `predict` in both."""
    found = {}
    for name, (make, x) in subjects.SMALL.items():
        plain, nets = subjects.small(make)

        def predicted(net, samples, x=x):
            for _ in range(20):
                ks.predict(net, x, samples, batch_size=len(x))

        one_pass = partial(predicted, plain, 0)
        named = {f"{name}, plain": one_pass}
        for kind, net in nets.items():
            named[f"{name}, {kind}"] = partial(predicted, net, 10)
            named[f"floor of {name}, {kind}"] = floors.of_draws(net, one_pass, x)
        found |= rounds(named, 2 * count, name)
    return found


def small_profile(count):
    """Microseconds of `predict` with ten draws of the digits MLP, and of one pass of the plain one, by kind of work."""
    make, x = subjects.SMALL["digits MLP"]
    plain, nets = subjects.small(make)
    found = {}
    for name, net in {"plain": plain, **nets}.items():
        predicted = partial(ks.predict, net, x, 0 if net is plain else 10, batch_size=len(x))
        for piece, seconds in pieces(predicted, subjects.OF_A_PREDICTION, 20 * count).items():
            found.setdefault(piece, {})[name] = round(seconds * 1e6)
    return found


def operations(count):
    """Operations in a draw with its KL and their gradients, plain path: what a GPU launches."""
    import operations as counting

    return counting.measure()


def choices(count):
    """The choices that layers make, against the fastest way: batch 128 at 28 x 28, forward and backward."""
    import choices as made

    return made.measure(count)


def blocks(count):
    """A draw with its KL and gradients by plain operations, against the numbers that are worked on together."""
    import choices as made

    return made.blocks(count)


def predict(count):
    """Ten draws over 1,000 images, compared with ten plain passes."""
    x, _ = subjects.batch(1000)
    plain = subjects.model().eval()
    nets = {
        "predict(samples=10)": ks.germinate(plain, 0.25, over="weights"),
        "predict(samples=10), over factors": ks.germinate(plain, budget=0.31, over="factors"),
        "predict(samples=10), over channels, ranks by stage": ks.germinate(
            plain, ranks=subjects.BY_STAGE, over="channels"
        ),
    }

    @torch.no_grad()
    def ten_passes(images):
        for _ in range(10):
            for part in images.split(250):
                plain(part).softmax(1)

    last = x.to(memory_format=torch.channels_last)
    named = {"ten plain passes": partial(ten_passes, x), "ten plain passes, channels last": partial(ten_passes, last)}
    for name, net in nets.items():
        named[name] = partial(ks.predict, net, x, 10, batch_size=250)
    return rounds(named, max(3, count // 4), "prediction")


def factorised(count):
    """One forward pass of the factorised mean, compared with the plain network."""
    plain = subjects.model().eval()
    networks = {"plain": plain, "factorised": ks.factorise(ks.germinate(plain, 0.25, over="weights")).eval()}
    return _forwards(count, lambda x: {name: (network, x) for name, network in networks.items()})


def folded(count):
    """The same with BatchNorm folded into the convolutions of both, and layers dense where that is faster."""
    net = ks.germinate(subjects.model().eval(), 0.25, over="weights")

    def networks(x):
        last = x.to(memory_format=torch.channels_last)
        thin = ks.factorise(net, fold_bn=True, example=last).to(memory_format=torch.channels_last)
        return {
            "plain": (ks.fold_bn(subjects.model().eval(), x), x),
            "factorised": (ks.factorise(net, fold_bn=True, example=x), x),
            "factorised, channels last": (thin, last),
        }

    return _forwards(count, networks)


def _forwards(count, networks):
    """Forward passes of some networks, for 128 images and for one."""
    found = {}
    for size in (128, 1):
        x, _ = subjects.batch(size)

        @torch.no_grad()
        def forward(network, images, repeat=1 if size > 1 else 20):
            for _ in range(repeat):
                network(images)

        named = {f"{name}, batch {size}": partial(forward, *given) for name, given in networks(x).items()}
        found |= rounds(named, 2 * count, f"forward, batch {size}")
    return found


def single_profile(count):
    """One image: the number of convolutions, the milliseconds in them, and the milliseconds in everything else."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    plain = subjects.model().eval()
    x, found = subjects.batch(1)[0], {}
    for name, net in {
        "plain": ks.fold_bn(subjects.model().eval(), x),
        "factorised": ks.factorise(ks.germinate(plain, 0.25, over="weights"), fold_bn=True, example=x),
    }.items():
        with torch.no_grad():
            net(x)
            with recorded(activities=[ProfilerActivity.CPU]) as record:
                for _ in range(20):
                    net(x)
        events = record.key_averages()
        # For one image torch replaces some convolutions of oneDNN by matrix products.
        inside = [event for event in events if "conv" in event.key or event.key in ("aten::mm", "aten::addmm")]
        spent = sum(event.self_cpu_time_total for event in inside)
        found[name] = {
            "convolutions": sum(event.count for event in events if event.key == "aten::convolution") // 20,
            "ms in them": round(spent / 20e3, 2),
            "ms in all else": round((sum(event.self_cpu_time_total for event in events) - spent) / 20e3, 2),
        }
    return found


PARTS = {
    f.__name__: f
    for f in (
        small_networks,  # first: in the memory that large networks leave, all of it takes longer, the floor too
        small_profile,
        training_steps.steps,
        training_steps.steps_64,
        training_steps.steps_224,
        training_steps.taps,
        training_steps.steps_bf16,
        training_steps.profile,
        predict,
        factorised,
        folded,
        single_profile,
        training_steps.ddp,
        choices,
        blocks,
        operations,
        footprint.memory,
        footprint.size,
        footprint.imports,
        training_steps.scaling,
        footprint.memory_scaling,
    )
}
