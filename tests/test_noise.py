"""The noise: Philox's published words, one stream whoever makes it, and normals that pass for normals."""

import ctypes
import itertools
import math
import platform

import pytest
import scipy.stats
import torch

from kernelseed.fast import kernels, philox

# The file kat_vectors of Random123: rounds, counter, key, words. The last counter and key are digits of pi.
PUBLISHED = """
 7 00000000 00000000 00000000 00000000 00000000 00000000 5f6fb709 0d893f64 4f121f81 4f730a48
 7 ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 5207ddc2 45165e59 4d8ee751 8c52f662
 7 243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 4dfccaba 190a87f0 c47362ba b6b5242a
10 00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8
10 ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd
10 243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1
"""
# The chance that a perfect generator fails a test of its statistics, shared by the test's checks. The keys are fixed:
# a test that passes once passes always.
BUDGET = 1e-3
ROUNDING = 2e-6
KEY = torch.tensor([-123456789, 987654321], dtype=torch.int32)


def plain(n, key, weight=0, part=0):
    return philox._plain([n], key, [weight], [part])


MAKERS = {"C": philox.normal, "plain": plain}
every_maker = pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)


@pytest.fixture(autouse=True)
def _kernels_are_here():
    assert kernels.library() is not None, "these tests need a C compiler, as make setup's machine has"


def words_in_c(counters, key, rounds):
    words = torch.empty(counters.shape, dtype=torch.int32)
    as_int32 = (t.to(torch.int32).contiguous() for t in (counters, key))
    kernels.call("ks_philox", len(counters), *as_int32, ctypes.c_int(rounds), words)
    return words.long() & philox.WORD


def sound(p_values):
    """Whether none of these p-values is smaller than chance makes the smallest of so many."""
    return min(p_values) > BUDGET / len(p_values)


def uncorrelated(x, y):
    """The p-value of the correlation of two samples of independent numbers, of whatever distribution."""
    x, y = (t.double() - t.double().mean() for t in (x, y))
    return math.erfc(abs((x @ y / (x.norm() * y.norm())).item()) * math.sqrt(len(x) / 2))


# --- the words ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", PUBLISHED.strip().splitlines())
def test_the_published_words(line):
    rounds, *words = line.split()
    numbers = torch.tensor([int(word, 16) for word in words])
    counter, key, expected = numbers.split((4, 2, 4))
    assert philox.philox4x32(counter, key, int(rounds)).tolist() == expected.tolist()
    assert words_in_c(counter[None], key, int(rounds))[0].tolist() == expected.tolist()


@pytest.mark.parametrize("rounds", [7, 10])
def test_the_words_of_any_counter_and_key_are_the_same_in_c(rounds):
    counters = torch.randint(0, 2**32, (4096, 4))
    for key in torch.randint(0, 2**32, (4, 2)):
        assert torch.equal(words_in_c(counters, key, rounds), philox.philox4x32(counters, key, rounds))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are names of x86 processors")
@pytest.mark.parametrize("processor", ["x86-64", "x86-64-v3"])
def test_other_processors_make_the_same_words_and_stream(processor, monkeypatch, tmp_path):
    """The kernels for AVX2, and those for processors with neither AVX2 nor AVX-512."""
    if processor != "x86-64" and "AVX" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("this processor does not run code for AVX2")
    counters, key = torch.randint(0, 2**32, (100, 4)), torch.randint(0, 2**32, (2,))
    stream = philox.normal(5000, KEY, 1, 2)
    flags = tuple(flag.replace("native", processor) for flag in kernels.FLAGS)
    monkeypatch.setattr(kernels, "FLAGS", flags)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    other = kernels.library.__wrapped__()
    monkeypatch.setattr(kernels, "library", lambda: other)
    assert torch.equal(words_in_c(counters, key, 10), philox.philox4x32(counters, key))
    torch.testing.assert_close(philox.normal(5000, KEY, 1, 2), stream, rtol=0, atol=ROUNDING)


# --- the stream --------------------------------------------------------------------------------------------------


def textbook(n, key, weight, part):
    """The stream as it is defined, place by place, with Box and Muller in double precision."""
    place = torch.arange(n)
    counter = 512 * (place // 2048) + place % 512
    words = torch.stack((counter, counter * 0, counter * 0 + weight, counter * 0 + part), -1)
    words = philox.philox4x32(words, key.long() & philox.WORD)
    quarter = place % 2048 // 512
    a, b = (words.gather(1, (quarter // 2 * 2 + i)[:, None])[:, 0] for i in (0, 1))
    radius = (-2 * (((a >> 1) + 0.5) / 2**31).double().log()).sqrt()
    angle = math.pi / 2 * ((b % 2**30) / 2**30 - 0.5 - (b >> 30).double())
    return radius * torch.where(quarter % 2 == 0, angle.cos(), angle.sin())


@every_maker
@pytest.mark.parametrize(("weight", "part"), [(0, 0), (7, 0), (0, 7), (2**32 - 1, 2**31)])
def test_the_stream_is_the_defined_one(maker, weight, part):
    noise = maker(10_000, KEY, weight, part)
    assert noise.dtype == torch.float32
    torch.testing.assert_close(noise.double(), textbook(10_000, KEY, weight, part), rtol=0, atol=ROUNDING)


def test_it_is_the_same_with_and_without_a_compiler(monkeypatch):
    n = 3 * philox.CHUNK * philox.BLOCK // 2 + 5  # ends within a block, within the second chunk
    in_c = philox.normal(n, KEY, 1, 2)
    monkeypatch.setattr(kernels, "library", lambda: None)
    torch.testing.assert_close(philox.normal(n, KEY, 1, 2), in_c, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("maker", [philox.normals, philox._plain], ids=["C", "plain"])
def test_many_streams_are_each_as_if_made_alone(maker):
    counts, weights, parts = [1, 2048, 0, 5000, 300_000], [3, 2**32 - 1, 0, 3, 4], [0, 1, 2, 2**31, 0]
    together = maker(counts, KEY, weights, parts).split(counts)
    for stream, *name in zip(together, counts, weights, parts, strict=True):
        n, weight, part = name
        torch.testing.assert_close(stream, philox.normal(n, KEY, weight, part), rtol=0, atol=ROUNDING)


@every_maker
def test_fewer_numbers_are_the_first_of_more(maker):
    noise = maker(300_000, KEY, 3, 4)
    for n in (0, 1, 511, 513, 2048, 2049, 299_999):
        assert torch.equal(maker(n, KEY, 3, 4), noise[:n])


@every_maker
def test_threads_and_defaults_do_not_matter(maker):
    noise = maker(300_001, KEY, 3, 4)
    torch.set_num_threads(1)
    assert torch.equal(maker(300_001, KEY, 3, 4), noise)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            assert torch.equal(maker(300_001, KEY, 3, 4), noise)
    finally:
        torch.set_default_dtype(torch.float32)


@every_maker
def test_the_extreme_words_give_finite_numbers(maker):
    """Streams found by search: a radius from the word 0, and one from a word that float32 rounds up to 1."""
    key = torch.zeros(2, dtype=torch.int32)
    largest, smallest = maker(2048, key, 3_083_763, 0), maker(2048, key, 18_229, 0)
    assert math.hypot(largest[149], largest[512 + 149]) == pytest.approx(math.sqrt(64 * math.log(2)), rel=1e-6)
    assert math.hypot(smallest[1024 + 44], smallest[1536 + 44]) == 0
    assert largest.isfinite().all()
    assert smallest.isfinite().all()


# --- under torch's transforms ------------------------------------------------------------------------------------


def test_it_compiles_in_one_graph_with_a_key_that_is_made_there():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def noise(n):
        key = torch.randint(-(2**31), 2**31, (2,)).to(torch.int32)
        return key, philox.normal(n, key, 1, 2)

    for n in (3000, 5000, 7000):  # from the second on, n is symbolic
        key, found = noise(n)
        assert torch.equal(found, philox.normal(n, key, 1, 2))


def test_transforms_of_functions_take_it():
    keys = torch.randint(-(2**31), 2**31, (3, 2)).to(torch.int32)
    expected = torch.stack([philox.normal(3000, key, 1, 2) for key in keys])

    def product(x, key):
        return x @ philox.normal(3000, key, 1, 2)

    def batched(keys):
        return torch.vmap(lambda key: philox.normal(3000, key, 1, 2), in_dims=1)(keys)

    assert torch.equal(torch.vmap(torch.func.grad(product))(torch.ones(3, 3000), keys), expected)
    assert torch.equal(torch.func.grad(product)(torch.ones(3000), keys[0]), expected[0])
    assert torch.equal(batched(keys.T), expected)
    assert torch.equal(torch.compile(batched, fullgraph=True, backend="aot_eager")(keys.T), expected)


# --- the statistics ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample():
    return philox.normal(2**22, KEY, 1)


def test_the_distribution_is_normal(sample):
    n, normal, moments = len(sample), scipy.stats.norm, scipy.stats.norm.moment
    p_values = [scipy.stats.kstest(sample[: 2**20].numpy(), normal.cdf).pvalue]
    x = sample.double()
    for k in range(1, 9):
        error = math.sqrt((moments(2 * k) - moments(k) ** 2) / n)
        p_values.append(2 * normal.sf(abs((x**k).mean().item() - moments(k)) / error))
    edges = torch.cat((torch.arange(-4.5, -1.9, 0.125), torch.arange(2, 4.6, 0.125)))
    counts = torch.bincount(torch.bucketize(x, edges.double()), minlength=len(edges) + 1)
    cumulative = normal.cdf([-math.inf, *edges.tolist(), math.inf])
    expected = n * (cumulative[1:] - cumulative[:-1])
    assert expected.min() > 5
    p_values.append(scipy.stats.chisquare(counts.numpy(), expected).pvalue)
    assert sound(p_values)


FUNCTIONS = (lambda x: x, torch.square, torch.sign, lambda x: (x.abs() > 2).float())


def test_the_four_numbers_of_a_counter_are_independent(sample):
    places = sample[: 2**20].view(-1, 4, 512).transpose(0, 1).flatten(1)
    p_values = []
    for first, second in itertools.combinations(places, 2):
        p_values += [uncorrelated(f(first), g(second)) for f in FUNCTIONS for g in FUNCTIONS]
    assert sound(p_values)


def test_the_angles_of_the_pairs_are_even_whatever_the_radius(sample):
    x, y = sample.view(-1, 2, 2, 512).unbind(2)
    turn = ((torch.atan2(y, x) / (2 * math.pi) + 0.5) * 64).long().clamp(0, 63)
    radius = (torch.exp(-(x.square() + y.square()) / 2) * 8).long().clamp(0, 7)
    counts = torch.bincount((64 * radius + turn).flatten(), minlength=512)
    assert sound([scipy.stats.chisquare(counts.numpy()).pvalue])


def test_there_is_no_serial_correlation(sample):
    lags, x = (1, 2, 511, 512, 513, 1024, 1536, 2047, 2048, 2049, 4096), sample[: 2**20]
    assert sound([uncorrelated(f(x[:-lag]), f(x[lag:])) for lag in lags for f in FUNCTIONS])


def test_streams_with_neighbouring_names_are_independent():
    """One bit apart in the key, the weight or the part; the same numbers in other places; a later block."""
    n, one = 2**17, torch.tensor([1, 0], dtype=torch.int32)
    names = [(KEY, 0, 0), (KEY, 1, 0), (KEY, 0, 1), (KEY, 1, 1), (KEY, 2**31, 0), (KEY, 0, 2**31)]
    names += [(KEY ^ one, 0, 0), (KEY ^ one.flip(0), 0, 0), (KEY.flip(0), 0, 0), (KEY ^ (one << 31), 0, 0)]
    names += [(one * 0, 0, 0), (one, 0, 0), (one.flip(0), 0, 0), (one * 0, 1, 0), (one * 0, 0, 1)]
    streams = [philox.normal(n, *name) for name in names] + [philox.normal(2 * n, KEY)[n:]]
    pairs = list(itertools.combinations(streams, 2))
    assert sound([uncorrelated(f(x), f(y)) for x, y in pairs for f in FUNCTIONS])
    # About 0.06 numbers of two streams are equal in float32 by chance, at equal places.
    assert max((x == y).sum() for x, y in pairs) < 10


# --- the kernels that use it -------------------------------------------------------------------------------------


def test_sampling_and_its_gradient_use_the_noise_of_the_stream():
    n, weight, part = 5000, ctypes.c_uint32(2**32 - 2), ctypes.c_uint32(3)
    noise = philox.normal(n, KEY, 2**32 - 2, 3).double()
    mean, rho, offset, grad = torch.randn(n), torch.randn(n) - 2, torch.tensor([0.5]), torch.randn(n)
    value, std, log_q = torch.empty(n), torch.empty(n), torch.empty(kernels.blocks(n), dtype=torch.float64)
    kernels.call("ks_sample", n, mean, rho, offset, KEY, weight, part, value, std, log_q)
    sigma = torch.nn.functional.softplus(rho.double() + 0.5)
    torch.testing.assert_close(value.double(), mean + sigma * noise, rtol=1e-6, atol=1e-6)
    assert log_q.sum().item() == pytest.approx(-(sigma.log() + noise**2 / 2).sum().item(), rel=1e-6)

    d_mean, d_rho = torch.empty(n), torch.empty(n)
    no_kl = torch.zeros(3), ctypes.c_float(0)
    kernels.call("ks_gradient", n, grad, value, std, mean, *no_kl, d_mean, d_rho)
    assert torch.equal(d_mean, grad)
    torch.testing.assert_close(d_rho.double(), grad * noise * torch.sigmoid(rho.double() + 0.5), rtol=1e-5, atol=1e-6)
