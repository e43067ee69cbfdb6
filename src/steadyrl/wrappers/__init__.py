"""The cures: wrappers that bring live environments to steady state."""
