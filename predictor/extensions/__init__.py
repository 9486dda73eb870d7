"""ESTP beyond the paper: methods that go on from its validated setting, each measured in docs/ablation.md."""
