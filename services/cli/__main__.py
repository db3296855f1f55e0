"""`python -m services.cli`: the same command line, for child processes."""

from services.cli import main

if __name__ == "__main__":
    main()
