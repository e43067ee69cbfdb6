"""`python -m steadyrl` is the command `steadyrl`."""

from steadyrl.cli import main

if __name__ == "__main__":
    main()
