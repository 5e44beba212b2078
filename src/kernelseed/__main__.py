"""`python -m kernelseed` is the command `kernelseed`."""

from kernelseed.cli import main

if __name__ == "__main__":
    main()
