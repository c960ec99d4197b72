"""Tests of the trainer, run by `cargo pal test train`. POLICY_REPLAY names the program of `tools/policy-replay`."""
