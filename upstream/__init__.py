"""The patch series for mlx-lm: its recipe, the script that writes it, and its checks."""
