"""Dual encoders with LoRA adapters: building, cutting, caching, training, exporting."""
