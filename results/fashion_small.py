"""Fashion-MNIST for two epochs at width 16: the plain network, MC-dropout, a BNN, a fixed and a random kernel seed net.

python results/fashion_small.py      writes results/fashion-small.json; runs that are done are not made again
"""

from pathlib import Path

from kernelseed.files import write_json
from kernelseed.training import Config, RunFolder, train

RUNS = Path("runs/results-fashion")


def main():
    results = []
    for method in ("baseline", "dropout", "bnn", "fksn", "ksn"):
        config = Config(data="fashion-mnist", method=method, width=16, epochs=2)
        resume = (RUNS / method / "config.json").exists()
        train(config, RUNS / method, resume=resume)
        results.append(RunFolder(RUNS / method).result())
        write_json(Path(__file__).with_name("fashion-small.json"), results)


if __name__ == "__main__":
    main()
