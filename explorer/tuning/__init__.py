"""Optuna searches the space; finals and ties; studies kept, inspected and recorded.

What is exported here is imported on first use: Optuna takes half a second to import, and plain
data such as `results` must not wait for it.
"""
