"""`python -m sluicegate` is the command line."""

from sluicegate.cli import main

if __name__ == "__main__":
    main()
