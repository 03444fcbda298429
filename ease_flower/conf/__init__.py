"""Shipped run configs, one TOML file each; `ease-flower run --config NAME`."""
