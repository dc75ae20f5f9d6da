"""`python -m layerdiff`."""

from layerdiff.cli.exits import main

if __name__ == "__main__":
    main()
