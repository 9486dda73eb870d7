"""Steps beyond ESTP that earned no place in the package; here so that docs/ablation.md can be run again."""
