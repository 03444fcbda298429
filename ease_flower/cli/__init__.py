"""The command ``ease-flower``: demo, run, validate, plan, report, env.

It starts federated runs through ``flwr run`` and reads what they leave behind; it never
imports the app folders or Flower.
"""
