"""Pruning and shrinking, against networks whose order is known."""

import copy
import json
import math

import pytest
import torch
from kinds import generator
from torch import nn

import kernelseed as ks
from kernelseed.core import Pruned, plain_parameters
from kernelseed.core.pruning import above_the_least
from kernelseed.errors import ArgumentError, ArgumentTypeError, StorageError
from kernelseed.testing.contract import DRAWS, PRIOR, every_shape, noise_of
from kernelseed.testing.fit import check_standard_normal


def known_network():
    """Two layers of two weights: snr 4, 1 | 3, 2 and magnitude 1, 2 | 3, 4."""
    net = ks.bayesianize(nn.Sequential(nn.Linear(2, 1), nn.Linear(2, 1)))
    with torch.no_grad():
        for name, mu, snr in (("0.weight", [1.0, -2.0], [4.0, 1.0]), ("1.weight", [-3.0, 4.0], [3.0, 2.0])):
            std = torch.tensor(mu).abs() / torch.tensor(snr)
            net.weights[name].mu.copy_(torch.tensor([mu]))
            net.weights[name].rho.copy_(torch.log(torch.expm1(std))[None])
    return net


def kept(net):
    return [weight.kept.flatten().tolist() for weight in net.weights.values()]


class TestPrune:
    def test_the_order_is_one_for_all_layers(self):
        net = known_network()
        assert kept(ks.prune(net, 0.25)) == [[True, False], [True, True]]
        assert kept(ks.prune(net, 0.5)) == [[True, False], [True, False]]
        assert kept(ks.prune(net, 0.75)) == [[True, False], [False, False]]
        assert kept(ks.prune(net, 0.5, by="magnitude")) == [[False, False], [True, True]]
        assert kept(ks.prune(net, 0.0)) == [[True, True], [True, True]]

    @pytest.mark.parametrize("make", [ks.bayesianize, ks.germinate, lambda m: ks.germinate(m, over="factors")])
    def test_it_is_the_global_threshold_in_its_slowest_form(self, make):
        torch.manual_seed(0)
        net = make(nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 5)))
        with torch.no_grad():
            for parameter in net.weights.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape))
        ratios = sorted(
            (abs(m) / s, name, place)
            for name, weight in net.weights.items()
            for place, (m, s) in enumerate(
                zip(weight.moments().mean.flatten().tolist(), weight.moments().std.flatten().tolist(), strict=True)
            )
        )
        gone = {(name, place) for _, name, place in ratios[:54]}  # of 108
        for name, weight in ks.prune(net, 0.5).weights.items():
            assert [(name, i) not in gone for i in range(weight.num_weights)] == weight.kept.flatten().tolist()

    @pytest.mark.parametrize("sparsity", [0.1, 0.333, 0.75, 0.98])
    @pytest.mark.parametrize("by", ["snr", "magnitude", "random"])
    def test_counts_are_exact_even_where_all_are_equal(self, sparsity, by):
        model = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 10))
        nn.init.constant_(model[0].weight, 0.1)
        nn.init.constant_(model[1].weight, 0.1)
        plain = ks.collapse(ks.prune(ks.bayesianize(model), sparsity, by))
        zeros = sum(int((layer.weight == 0).sum()) for layer in plain)
        assert zeros == round(800 * sparsity)
        assert type(plain) is nn.Sequential
        assert torch.equal(plain[0].bias, model[0].bias)

    def test_the_least_are_found_among_equal_ones(self):
        scores = torch.tensor([1.0, 0.0, 1.0, 2.0, 1.0, math.inf])
        for count, expected in enumerate(
            [[0, 1, 2, 3, 4, 5], [0, 2, 3, 4, 5], [2, 3, 4, 5], [3, 4, 5], [3, 5], [5], []]
        ):
            assert above_the_least(scores, count).nonzero()[:, 0].tolist() == sorted(set(expected))

    def test_random_is_by_seed_and_no_order_at_all(self):
        net = ks.bayesianize(nn.Linear(100, 50))
        masks = [ks.prune(net, 0.9, "random", seed=s).weights["weight"].kept for s in (0, 0, 1)]
        assert torch.equal(masks[0], masks[1])
        both = int((masks[0] & masks[2]).sum())
        assert abs(both - 50) < 6 * math.sqrt(50 * 0.9)  # 500 of 5,000 twice, independently

    def test_what_is_pruned_is_zero_in_every_draw_and_the_rest_as_before(self):
        torch.manual_seed(0)
        net = ks.germinate(
            nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 5)), rho_offset=-1.0, over="weights"
        )
        pruned = ks.prune(net, 0.6)
        for one in (pruned, pruned.posterior()):
            before, after = net.draw(generator()), one.draw(generator())
            for name, mask in ((name, weight.kept) for name, weight in pruned.weights.items()):
                assert not after.weights[name][~mask].any()
                torch.testing.assert_close(after.weights[name][mask], before.weights[name][mask])
        assert torch.equal(ks.collapse(pruned)[0].weight, pruned.mean().weights["0.weight"])

    def test_the_network_stays_as_it_was_and_the_copy_is_another(self):
        net = ks.bayesianize(nn.Linear(6, 4)).train()
        before = copy.deepcopy(net.state_dict())
        pruned = ks.prune(net)
        assert pruned.training
        with torch.no_grad():
            for parameter in pruned.parameters():
                parameter.add_(1.0)
        assert all(torch.equal(net.state_dict()[key], value) for key, value in before.items())

    def test_more_can_be_pruned_later_but_not_less(self):
        net = known_network()
        twice = ks.prune(ks.prune(net, 0.25), 0.75)
        assert kept(twice) == kept(ks.prune(net, 0.75))
        assert kept(ks.prune(ks.prune(net, 0.5, "magnitude"), 0.75)) == [[False, False], [True, False]]
        with pytest.raises(ArgumentError, match=r"sparsity is 0.25, and 0.75 of the weights are zero already"):
            ks.prune(twice, 0.25)
        third = ks.prune(ks.bayesianize(nn.Linear(3, 4, bias=False)), 1 / 3)
        with pytest.raises(ArgumentError, match=r"sparsity is 0.1, and 0.3333 .* give at least 0.3334") as raised:
            ks.prune(third, 0.1)
        ks.prune(third, float(str(raised.value).split()[-1][:-1]))  # what it recommends is allowed

    def test_the_kl_is_that_of_what_is_left(self):
        net = known_network()
        draw, whole = ks.prune(net, 0.5).draw(generator()), net.draw(generator())
        assert draw.num_weights == 2
        for prior in (PRIOR, ks.priors.Gaussian(0.3)):
            each = sum(
                ks.Gaussian(s.source.mean[0, i], s.source.std[0, i]).at_mean().__class__(
                    s.value[0, i], ks.Gaussian(s.source.mean[0, i], s.source.std[0, i]), s.noise[0, i]
                ).kl(prior)
                for s, i in ((whole.samples["0.weight"], 0), (whole.samples["1.weight"], 0))
            )  # fmt: skip
            torch.testing.assert_close(draw.kl(prior), each)
        fixed = ks.prune(ks.germinate(nn.Linear(6, 4), fixed=True), 0.5, "magnitude").draw()
        assert fixed.kl(PRIOR) == 0
        assert fixed.num_weights == 0

    def test_a_posterior_from_before_or_one_pruned_alike_is_a_prior(self):
        whole, pruned = ks.MeanField(torch.randn(4, 6)), torch.arange(24).reshape(4, 6) % 3 != 1
        other = ks.MeanField(torch.randn(4, 6), rho_offset=-2.0)
        sample = Pruned(whole, pruned).sample(noise_of(0))
        q, p = whole.moments(), other.moments()
        each = torch.distributions.kl_divergence(
            torch.distributions.Normal(q.mean, q.std), torch.distributions.Normal(p.mean, p.std)
        )
        for prior in (other.decoded(), Pruned(other, pruned).decoded()):
            torch.testing.assert_close(sample.kl(prior), each[pruned].sum())
        less = Pruned(other, pruned & (torch.arange(24).reshape(4, 6) != 0)).decoded()
        for refused in (sample, whole.sample(noise_of(0))):
            with pytest.raises(ArgumentError, match="the prior is pruned where the weight is not"):
                less.kl(refused)

    def test_it_trains_on_and_keeps_its_zeros(self):
        torch.manual_seed(0)
        net = ks.prune(ks.bayesianize(nn.Linear(6, 4)), 0.5)
        optimizer, loss = torch.optim.Adam(net.parameters(), 0.1), ks.ELBO(num_data=10)
        for _ in range(3):
            optimizer.zero_grad()
            loss(net.draw(), torch.randn(8, 6), torch.randint(4, (8,))).loss.backward()
            optimizer.step()
        weight = net.weights["weight"]
        assert weight.of.mu.grad[weight.kept].all()
        assert not weight.of.mu.grad[~weight.kept].any()
        assert int((ks.collapse(net).weight == 0).sum()) == 12

    def test_tied_weights_are_counted_once(self):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        model[2].weight = model[0].weight
        plain = ks.collapse(ks.prune(ks.bayesianize(model), 0.5))
        assert plain[2].weight is plain[0].weight
        assert int((plain[0].weight == 0).sum()) == 8

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"sparsity": 1.2}, ArgumentError, r"sparsity is 1.2; .* 0 <= sparsity < 1"),
            ({"sparsity": 1}, ArgumentError, r"sparsity is 1; .* 0 <= sparsity < 1"),
            ({"sparsity": -0.1}, ArgumentError, r"sparsity is -0.1"),
            ({"sparsity": math.nan}, ArgumentError, r"sparsity is nan"),
            ({"sparsity": "half"}, ArgumentTypeError, r"sparsity is 'half'; it must be a number"),
            ({"by": "size"}, ArgumentError, r"by is 'size'; allowed are 'snr', 'magnitude', 'random'"),
        ],
    )
    def test_bad_arguments(self, arguments, error, message):
        with pytest.raises(error, match=message):
            ks.prune(ks.bayesianize(nn.Linear(4, 4)), **arguments)

    def test_what_can_not_be_pruned(self):
        with pytest.raises(ArgumentTypeError, match=r"net is a Linear; only a BayesianModule can be pruned"):
            ks.prune(nn.Linear(4, 4))
        with pytest.raises(ArgumentError, match=r"weight is a FixedKernelSeed, which has no standard deviation"):
            ks.prune(ks.germinate(nn.Linear(4, 4), fixed=True))
        broken = ks.bayesianize(nn.Linear(4, 4))
        nn.init.constant_(broken.weights["weight"].mu, math.nan)
        with pytest.raises(ArgumentError, match="weight has weights that are not numbers"):
            ks.prune(broken)
        whole = ks.MeanField(torch.zeros(2, 2))
        with pytest.raises(ArgumentTypeError, match="of is Pruned already"):
            Pruned(Pruned(whole, torch.ones(2, 2).bool()), torch.ones(2, 2).bool())
        with pytest.raises(ArgumentError, match=r"kept is torch.float32 of shape \(2, 2\); it must be bool"):
            Pruned(whole, torch.ones(2, 2))


class TestPrunedContract(ks.testing.WeightDistributionContract):
    """Where every third weight is zero; what a zero changes is tested in its own words."""

    def make(self, weight):
        mask = (torch.arange(weight.numel()) % 3 != 1).reshape(weight.shape)
        return Pruned(ks.MeanField(weight, rho_offset=-2.0), mask)

    @every_shape
    def test_moments_have_the_weights_shape(self, shape):
        weight = self.learned(shape)
        moments = weight.moments()
        assert weight.shape == moments.mean.shape == moments.std.shape == shape
        assert torch.equal(moments.std > 0, weight.kept)
        assert torch.equal(weight.mean().value, moments.mean)
        torch.testing.assert_close(weight.mean().source.std, moments.std)

    @every_shape
    def test_samples_have_the_distribution_that_moments_state(self, shape):
        weight = self.learned(shape)
        moments = weight.moments()
        values = torch.stack([weight.sample(noise_of(i)).value for i in range(DRAWS)])
        assert not values[:, ~weight.kept].any()
        left = ((values - moments.mean) / moments.std)[:, weight.kept].detach().double()
        check_standard_normal(left)

    @every_shape
    def test_the_kl_is_its_definition(self, shape):
        weight = self.learned(shape, torch.float64)
        sample, whole = weight.sample(noise_of(0)), weight.moments()
        q = torch.distributions.Normal(whole.mean[weight.kept], whole.std[weight.kept])
        value = sample.value[weight.kept]
        torch.testing.assert_close(sample.kl(PRIOR), (q.log_prob(value) - PRIOR.log_prob(value)).sum())
        assert sample.num_weights == weight.num_kept == int(weight.kept.sum())

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
    def test_any_floating_dtype(self, dtype):
        weight = self.learned((4, 6)).to(dtype)
        sample = weight.sample(noise_of(0))
        assert sample.value.dtype == weight.moments().mean.dtype == dtype
        assert sample.kl(PRIOR).isfinite()


@pytest.mark.parametrize("over", ["weights", "factors", "channels", "fixed"])
def test_every_kind_of_network_is_pruned_saved_and_loaded(tmp_path, over):
    torch.manual_seed(0)
    model = ks.models.mlp(10, 1, (4, 4), widths=(12, 8))
    net = ks.germinate(model, fixed=True) if over == "fixed" else ks.germinate(model, over=over)
    pruned = ks.prune(net, 0.8, "magnitude").eval()
    ks.save(pruned, tmp_path / "net")
    again = ks.load(tmp_path / "net")
    x = torch.randn(3, 16)
    for mine, loaded in ((pruned.mean(), again.mean()), (pruned.draw(generator()), again.draw(generator()))):
        assert torch.equal(mine(x), loaded(x))
        assert sum(int((w == 0).sum()) for w in loaded.weights.values()) == round(0.8 * (16 * 12 + 12 * 8 + 80))
    assert torch.equal(ks.predict(pruned, x, 3).probs, ks.predict(again, x, 3).probs)
    assert torch.equal(pruned.draw(generator()).kl(PRIOR), again.draw(generator()).kl(PRIOR))
    torch.testing.assert_close(ks.factorise(again)(x), ks.collapse(again)(x))


def test_files_that_are_not_as_they_were_saved_are_answered(tmp_path):
    from safetensors.torch import load_file, save_file

    ks.save(ks.prune(ks.bayesianize(ks.models.mlp(3, 1, (2, 2), widths=()))), tmp_path / "net")
    tensors = load_file(tmp_path / "net" / "model.safetensors")
    config = json.loads((tmp_path / "net" / "config.json").read_text())
    save_file({**tensors, "weights.0.weight.kept": torch.full((3, 4), 7)}, tmp_path / "net" / "model.safetensors")
    with pytest.raises(StorageError, match=r"kept is of type I64, and in the network torch.bool"):
        ks.load(tmp_path / "net")
    entry = config["network"]["weights"]["0.weight"]
    for nonsense in ({**entry, "of": entry}, {**entry, "of": None}, {"distribution": "Pruned"}):
        config["network"]["weights"]["0.weight"] = nonsense
        (tmp_path / "net" / "config.json").write_text(json.dumps(config))
        with pytest.raises(StorageError, match=r"does not describe a network that can be built"):
            ks.load(tmp_path / "net")


def test_a_distribution_of_ones_own_is_pruned_saved_and_loaded(tmp_path):
    from k_tied_normal import KTiedNormal

    net = ks.prune(ks.convert(nn.Linear(6, 4), KTiedNormal), 0.5).eval()
    ks.save(net, tmp_path / "net")
    again = ks.load(tmp_path / "net", nn.Linear(6, 4), distributions=[KTiedNormal])
    x = torch.randn(2, 6)
    assert torch.equal(net.draw(generator())(x), again.draw(generator())(x))


def seeds(fixed=False, over="weights"):
    """A network of two seeds, 6 x 4 and 4 x 10, of ranks 4 and 3, with known channels."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 10))
    net = ks.germinate(model, ranks={"0.*": 4, "2.*": 3}, fixed=fixed, over=over, rho_offset=-5.0)
    with torch.no_grad():
        for parameter in net.weights.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return net


KINDS = [("weights", False), ("factors", False), ("channels", False), ("weights", True)]


class TestShrink:
    @pytest.mark.parametrize(("over", "fixed"), KINDS)
    @pytest.mark.parametrize("by", ["snr", "magnitude", "random"])
    def test_a_network_in_double_precision_stays_in_it(self, over, fixed, by):
        net = seeds(fixed, over).double()
        smaller = ks.shrink(net, ks.core.least_budget(net), by)
        assert {p.dtype for p in smaller.parameters()} == {torch.float64}

    @pytest.mark.parametrize(("over", "fixed"), KINDS)
    @pytest.mark.parametrize("by", ["snr", "magnitude"])
    def test_the_order_is_that_of_a_literal_reference(self, over, fixed, by):
        net = seeds(fixed, over)
        order = []
        for name, weight in net.weights.items():
            germinator, seed = weight.factors()
            moments = weight.moments()
            for r in range(weight.rank):
                part = torch.einsum("i,j->ij", germinator[:, r], seed[r])
                part = part.T if weight.shape[0] > weight.shape[1] else part
                noise = moments.std if moments.std is not None else moments.mean.square().mean().sqrt()
                ratio = part / noise if by == "snr" else part
                order.append((ratio.square().mean().sqrt().item(), name, r))
        spared = {max(entry for entry in order if entry[1] == name)[1:] for name in net.weights}
        dropped = next(entry[1:] for entry in sorted(order) if entry[1:] not in spared)
        stored, plain = sum(p.numel() for p in net.parameters()), 4 * 6 + 6 * 10 + 10
        smaller = ks.shrink(net, (stored - 1) / plain, by)
        # The least goes; nothing else can be dropped in its place unless it is of another layer's size.
        name, channel = dropped
        whole = [r for r in range(net.weights[name].rank) if r != channel]
        assert torch.equal(smaller.weights[name].seed, net.weights[name].seed[whole])
        assert torch.equal(smaller.weights[name].mean_germinator, net.weights[name].mean_germinator[:, whole])

    @pytest.mark.parametrize(("over", "fixed"), KINDS)
    def test_it_is_the_network_without_those_channels(self, over, fixed):
        net = seeds(fixed, over)
        smaller = ks.shrink(net, 0.9 * sum(p.numel() for p in net.parameters()) / 94)
        zeroed = copy.deepcopy(net)
        with torch.no_grad():
            for name, weight in zeroed.weights.items():
                rows = {tuple(row.flatten().tolist()) for row in smaller.weights[name].seed}
                for r in range(weight.rank):
                    if tuple(weight.seed[r].flatten().tolist()) not in rows:
                        weight.mean_germinator[:, r] = 0
                        if over == "weights" and not fixed:
                            weight.rho_germinator[:, r] = 0
                        if over != "weights":  # no variance either
                            weight.seed[r] = 0
                            weight.seed_rho[r] = -80
                            weight.germinator_rho[:, r] = -80
        for name in net.weights:
            found, expected = smaller.weights[name].moments(), zeroed.weights[name].moments()
            torch.testing.assert_close(found.mean, expected.mean)
            if found.std is not None:
                torch.testing.assert_close(found.std, expected.std)
        x = torch.randn(3, 4)
        torch.testing.assert_close(smaller.mean()(x), zeroed.mean()(x))
        torch.testing.assert_close(ks.factorise(smaller)(x), ks.collapse(smaller)(x))

    @pytest.mark.parametrize(("over", "fixed"), KINDS)
    @pytest.mark.parametrize("by", ["snr", "magnitude", "random"])
    def test_never_over_budget_and_as_near_as_one_channel_allows(self, over, fixed, by):
        model = ks.models.mlp(10, 1, (6, 6), widths=(30, 20))
        net = ks.germinate(model, 0.5, fixed=True) if fixed else ks.germinate(model, 0.5, over=over)
        plain = sum(p.numel() for p in model.parameters())
        assert plain_parameters(net) == plain
        for budget in (0.3, 0.4, 0.5, 0.55):
            smaller = ks.shrink(net, budget, by)
            stored = sum(p.numel() for p in smaller.parameters())
            assert stored <= budget * plain
            for name, weight in smaller.weights.items():
                assert weight.rank >= 1
                if weight.rank < net.weights[name].rank:
                    one = sum(p.numel() for p in weight.parameters() if p.numel() > 1) // weight.rank
                    assert stored + one > budget * plain

    def test_it_is_saved_trained_and_faster(self, tmp_path):
        torch.manual_seed(0)
        net = ks.shrink(ks.germinate(ks.models.mlp(10, 1, (6, 6), widths=(64, 64)), 0.5, over="weights"), 0.3).eval()
        ks.save(net, tmp_path / "net")
        again = ks.load(tmp_path / "net")
        x = torch.randn(2, 36)
        assert torch.equal(net.draw(generator())(x), again.draw(generator())(x))
        ks.ELBO(10)(again.draw(), x, torch.zeros(2, dtype=torch.long)).loss.backward()
        assert all(p.grad is not None for p in again.parameters())

        def multiplications(module):
            return sum(layer.weight.numel() for layer in module.modules() if isinstance(layer, nn.Linear))

        assert multiplications(ks.factorise(again)) < 0.31 * multiplications(ks.collapse(again))

    def test_other_weights_stay(self):
        model = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 20))
        net = ks.germinate(model, where=lambda name, p: name == "2.weight", over="weights")
        smaller = ks.shrink(net, 0.8)
        assert torch.equal(smaller.skeleton[0].weight, model[0].weight)
        assert smaller.skeleton[0].weight is not net.skeleton[0].weight

    @pytest.mark.parametrize(
        ("budget", "error", "message"),
        [
            (5, ArgumentError, r"budget is 5, 470 of the plain network's 94 parameters; the network has \d+"),
            (0.01, ArgumentError, r"with one channel a seed: give at least 0.\d+"),
            (math.nan, ArgumentError, r"budget is nan"),
            ("small", ArgumentTypeError, r"budget is 'small'; it must be a number"),
        ],
    )
    def test_bad_budgets(self, budget, error, message):
        with pytest.raises(error, match=message):
            ks.shrink(seeds(), budget)

    def test_what_can_not_be_shrunk(self):
        with pytest.raises(ArgumentTypeError, match=r"net is a Linear; only a BayesianModule can be shrunk"):
            ks.shrink(nn.Linear(4, 4))
        with pytest.raises(ArgumentError, match=r"net has no seed whose channels could be dropped, only MeanField"):
            ks.shrink(ks.bayesianize(nn.Linear(4, 4)))
        with pytest.raises(ArgumentError, match=r"by is 'snrr'; allowed are"):
            ks.shrink(seeds(), 0.9, "snrr")
        broken = seeds()
        nn.init.constant_(broken.weights["0.weight"].seed, math.nan)
        with pytest.raises(ArgumentError, match=r"0.weight has weights that are not numbers"):
            ks.shrink(broken, 0.9)


@pytest.mark.parametrize(
    "change", [lambda net: ks.prune(net, 0.5), lambda net: ks.shrink(net, 0.6)], ids=["prune", "shrink"]
)
def test_what_was_not_trained_is_not_trained_afterwards(change):
    net = ks.germinate(nn.Linear(40, 40), 0.5, over="weights")
    net.weights["weight"].mean_germinator.requires_grad_(False)
    changed = change(net)
    trained = {name.rpartition(".")[2]: p.requires_grad for name, p in changed.weights.named_parameters()}
    assert trained == {"seed": True, "mean_germinator": False, "rho_germinator": True, "rho_offset": True}
